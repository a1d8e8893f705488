"""The reports as Markdown: for a comment on a pull request, or for the summary of a job.

Texts that anybody may have written stand in it as `cell` or `code`, so that nothing in them acts as markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kvgate.cli.reports.placed import shown_file
from kvgate.cli.reports.report import Report, counting_results
from kvgate.cli.reports.wording import (
    CHANGE_HEAD,
    assumptions,
    change_cells,
    default_change,
    defect_change,
    difference_summary,
    effect_cells,
    gpu_change,
    hidden,
    notes,
    release_change,
    source_change,
    summary,
    unrendered_lines,
    verdict_line,
)
from kvgate.findings.finding import Severity
from kvgate.judgement.summary import shortened
from kvgate.text.inert import inert
from kvgate.text.patterns import pattern

if TYPE_CHECKING:
    from kvgate.cli.reports.difference import Difference, EngineChange

MAX_ROWS = 200
"""Engines and findings that are listed: GitHub takes comments of 65,536 characters."""
_MARKS = {Severity.ERROR: "❌", Severity.WARNING: "⚠️", Severity.INFO: "ℹ️"}
MAX_CELL = 2000
"""Characters of one sentence: GitHub takes comments of 65,536."""
_MARKUP = pattern(r"[\\|<>\[\]*~]|(?<!\w)_|_(?!\w)|&(?=#?\w+;)")
_BACKQUOTES = pattern("`+")
_CALLS = pattern(
    r"(?<![A-Za-z0-9_])[@#](?=\w)|#(?=\d)|@(?=[0-9a-f]{7,40}\b|[\w.-]+\.\w)"  # a person, an issue, a commit, an address
    r"|\b(?:https?|ftp):(?=//)|\bwww(?=\.)|\bGH-(?=\d)"
    r"|[!%$&](?=\d)|~(?=\w)|\[(?=\w+:)",  # GitLab's merge requests, milestones, snippets, epics, labels
    re.IGNORECASE,
)
"""Text that GitHub or GitLab turn into a link. A comment behind it prevents that; a backslash before it does not."""


def render(report: Report) -> str:
    """Write the sum, a table of engines, and a list of findings."""
    lines = ["### kvgate", "", cell("; ".join((summary(report), *hidden(report))))]
    if engines := [item for item in report.items if item.verdict or item.is_refused]:
        head = ("engine", "verdict", "what was judged, and how much is left", "where")
        places = [_place(shown_file(item.file), item.line) for item in engines[:MAX_ROWS]]
        cells = [(cell(item.title), *map(cell, verdict_line(item))) for item in engines[:MAX_ROWS]]
        rows = ((*each, place) for each, place in zip(cells, places, strict=True))
        lines += ["", *table(head, rows), *_rest(engines)]
    shown = {id(placed) for item in report.items for placed in report.shown(item)}
    results = [each for each in counting_results(report) if each.item is None or id(each.placed) in shown]
    found = (
        f"- {_MARKS[each.placed.finding.severity]} {_place(shown_file(each.placed.file), each.placed.line)} "
        f"**{each.placed.rule}** {cell(each.message)}"
        for each in results
    )
    noted = (f"- {note.title}: {_place(shown_file(note.file), note.line)} {cell(note.text)}" for note in notes(report))
    lines += [*_section(list(found)), *_section(list(noted))]
    return "\n".join([*lines, *_section([f"- {cell(line)}" for line in unrendered_lines(report)])])


def _section(listed: Sequence[str]) -> list[str]:
    return ["", *listed[:MAX_ROWS], *_rest(listed)] if listed else []


def _place(file: str, line: int) -> str:
    return code(f"{file}:{line}")


def _rest(listed: Sequence[object]) -> list[str]:
    return ["", f"… and {len(listed) - MAX_ROWS} more"] if len(listed) > MAX_ROWS else []


def render_difference(difference: Difference) -> str:
    """Write a table before → after of engines that change, what is assumed, changed defaults, and why engines no longer start."""
    changes = [change for change in difference.changes if change.kind != "unchanged"]
    lines = ["### kvgate: what this change does to KV cache capacity", "", cell(difference_summary(difference))]
    if changes:
        rows = [[cell(text) for text in change_cells(change)] for change in changes[:MAX_ROWS]]
        lines += ["", *table(CHANGE_HEAD, rows), *_rest(changes)]
    broken = (
        f"- ❌ {_place(placed.file, placed.line)} {cell(placed.finding.message)}" for placed in difference.unreadable
    )
    notes = [*_notes(changes[:MAX_ROWS]), *broken]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _notes(changes: Sequence[EngineChange]) -> Iterator[str]:
    for change in changes:
        for name, value in gpu_change(change):
            yield f"- {cell(change.item.title)}: {name} {cell(value)}"
        if assumed := assumptions(change):
            yield f"- {cell(change.item.title)}: assumed {cell(assumed)}"
        for each in change.changed_sources:
            yield f"- {cell(change.item.title)}: source of {cell(source_change(each))}"
    for change in changes:
        if change.effects:
            listed = "; ".join(
                f"{code(name)} {cell(values)}: {cell(tokens)}"
                for name, values, tokens in map(effect_cells, change.effects)
            )
            yield f"- {cell(change.item.title)}: KV cache tokens with each change alone: {listed}"
    for change in changes:
        if change.changed_defaults:
            defaults = map(default_change, change.changed_defaults)
            listed = ", ".join(f"{code(flag)} {cell(default)}" for flag, default in defaults)
            release = cell(release_change(change))
            yield f"- {cell(change.item.title)}: {release} changes the defaults of options that are not set: {listed}"
    yield from (
        f"- {cell(change.item.title)}: {cell(defect_change(each))}" for change in changes for each in change.defects
    )
    errors = (
        (change, placed)
        for change in changes
        if change.is_worse
        for placed in change.item.findings
        if placed.finding.severity is Severity.ERROR
    )
    for change, placed in errors:
        finding = placed.finding
        place = _place(change.file or placed.file, placed.line)
        remedy = f"; {cell(finding.remediation)}" if finding.remediation else ""
        yield f"- ❌ {place} **{finding.rule}** {cell(f'{change.item.title}: {finding.message}')}{remedy}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; its cells are Markdown already."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def cell(text: str) -> str:
    """Return Markdown that reads as the text, on one line: no links, no mentions, no markup; pairs of single backquotes stay."""
    line = shortened(inert(" ".join(text.split())), MAX_CELL)
    runs = _BACKQUOTES.findall(line)
    is_paired = len(runs) % 2 == 0 and all(len(run) == 1 for run in runs)
    parts = line.split("`") if is_paired else [line.replace("`", "'")]
    for index in range(0, len(parts), 2):
        without_markup = _MARKUP.sub(lambda match: "&amp;" if match[0] == "&" else f"\\{match[0]}", parts[index])
        parts[index] = _CALLS.sub(r"\g<0><!-- -->", without_markup)
    parts[1::2] = [part.replace("|", "\\|") for part in parts[1::2]]
    return "`".join(parts)


def code(text: str) -> str:
    """Return Markdown code: the fence has more backquotes than the text has in a row, so nothing in it is markup."""
    line = inert(text).replace("|", "\\|")
    fence = "`" * (1 + max(map(len, _BACKQUOTES.findall(line)), default=0))
    return f"{fence} {line} {fence}" if line[:1] == "`" or line[-1:] == "`" else f"{fence}{line}{fence}"
