"""The reports for people; colours only on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvgate.budget import Verdict
from kvgate.cli.exits import BadInput
from kvgate.cli.reports.placed import Placed
from kvgate.cli.reports.report import Item, Report
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
    outcome,
    release_change,
    source_change,
    summary,
    unrendered_lines,
    verdict_line,
)
from kvgate.cli.terminal import COLOUR_OF, Line, Styled, folded, table, text_of, width_of_terminal
from kvgate.judgement.assessment import Decision
from kvgate.judgement.summary import alternatives_text, changes_text, fruitless, shortened, verdict_text
from kvgate.text.inert import inert

if TYPE_CHECKING:
    from kvgate.cli.reports.difference import Difference, EngineChange

MAX_SENTENCE = 700
"""Characters: a finding with its remedy stays on one screen of 80 columns."""


def render_folded(report: Report) -> str:
    """Write the report for the standard output: on a terminal, lines go on below where its width ends."""
    return render(report, width_of_terminal())


def render(report: Report, width: int | None = None) -> str:
    """Write all items, then what could not be read, then one line that sums up."""
    lines: list[Line] = []
    for item in report.items:
        shown = report.shown(item)
        lines += [] if item.is_not_understood and not shown else [*_item_lines(item, shown), ""]
    for placed in report.unreadable:
        lines += [*broken_lines(placed), ""]
    notes = [inert(line) for line in (*unrendered_lines(report), *(each.text for each in report.sources))]
    lines += [*notes, *([""] if notes else []), "; ".join((summary(report), *hidden(report)))]
    return text_of(folded(lines, width))


def _item_lines(item: Item, findings: Sequence[Placed]) -> Iterator[Line]:
    yield head_line(item)
    yield from finding_lines(findings)
    if item.ignored:
        reasons = dict.fromkeys(
            f"{placed.rule} ({ignored.reason}; {ignored.place})" for placed, ignored in item.ignored
        )
        yield f"  ignored: {', '.join(reasons)}"
    yield from fact_lines(item)
    if item.subject is None:
        return
    # what goes with a decision about an InferenceDeployment: why, and what would fit
    assessment = item.assessment
    if assessment is None:
        if item.subject.document.is_template:
            yield "      the document contains {{ }}; if it is a Helm template, render it: helm template CHART | kvgate check -"
        return
    if searched := fruitless(assessment):
        yield f"  {searched}"
    if item.decision is Decision.ADMIT_ADJUSTED:
        yield f"  adjusted: {changes_text(assessment)}: {verdict_text(Verdict.FITS, assessment.effective)}"
    elif assessment.alternatives:
        yield f"  would fit: {alternatives_text(assessment.alternatives)}"


def head_line(item: Item, where: str = "") -> Line:
    verdict, reason = verdict_line(item)
    shown = Styled(text=verdict, colour=outcome(item)[1], is_bold=True)
    return f"{item.file}:{item.line}: {item.title}{where}: ", shown, f": {reason}" if reason else ""


def fact_lines(item: Item) -> Iterator[str]:
    """Yield what is assumed about an engine, and the files that its verdict rests on beside its manifest."""
    if item.assumed:
        yield f"  assumed: {'; '.join(each.text for each in item.assumed)}"
    if rests := "; ".join(each.text for each in item.sources if each.file):
        yield f"  rests on: {rests}"


def finding_lines(findings: Sequence[Placed]) -> Iterator[Line]:
    """Yield places, severities and rules in columns; below each finding, what to do."""
    places = [inert(f"{placed.file}:{placed.line}:{placed.column}:") for placed in findings]
    width, severity_width, rule_width = (
        max(map(len, column), default=0)
        for column in (places, [p.finding.severity for p in findings], [p.rule for p in findings])
    )
    for placed, place in zip(findings, places, strict=True):
        finding, severity = placed.finding, placed.finding.severity.value
        gap = " " * (severity_width - len(severity))
        # the path of the setting stands before the sentence, unless the sentence names the setting
        has_path = placed.path and finding.field and not finding.names_its_field
        message = (f"{placed.path}: " if has_path else "") + shortened(inert(finding.message), MAX_SENTENCE)
        rest = f"{gap} {placed.rule:<{rule_width}} {message}"
        yield f"  {place:<{width}} ", Styled(text=severity, colour=COLOUR_OF[severity]), rest
        yield from (f"      {shortened(inert(line), MAX_SENTENCE)}" for line in finding.remedy_lines)


def broken_lines(placed: Placed) -> Iterator[Line]:
    """Yield a finding that is not about an engine, at the margin."""
    for line in finding_lines([placed]):
        yield line[2:] if isinstance(line, str) else (str(line[0])[2:], *line[1:])


def lines_of_bad_input(message: str, error: BadInput) -> Iterator[Line]:
    """Yield the message of an input that cannot be used, if it has one, and its problems with their places."""
    yield from (message,) if message else ()
    for placed in error.problems:
        yield from broken_lines(placed)


def render_difference(difference: Difference) -> str:
    """Write one block for each engine that changed; unchanged engines are only counted."""
    lines: list[Line] = []
    for change in difference.changes:
        if change.kind != "unchanged":
            lines += [*_change_lines(change), ""]
    for placed in difference.unreadable:
        lines += [*broken_lines(placed), ""]
    return text_of(folded([*lines, difference_summary(difference)], width_of_terminal()))


def _change_lines(change: EngineChange) -> Iterator[Line]:
    item = change.item
    title, *values = change_cells(change)
    colour = "red" if change.is_worse else None
    yield f"{item.file}:{item.line}: ", Styled(text=title, colour=colour, is_bold=True)
    width = max(map(len, CHANGE_HEAD[1:]))
    for name, value in zip(CHANGE_HEAD[1:], values, strict=True):
        yield f"  {name:<{width}}  {value}"
    assumed = assumptions(change)
    for name, value in (*gpu_change(change), *([("assumed", assumed)] if assumed else [])):
        yield f"  {name:<{width}}  {value}"
    for each in change.changed_sources:
        yield f"  {'source':<{width}}  {source_change(each)}"
    if change.effects:
        yield "  KV cache tokens with each change alone:"
        yield from (f"    {line}" for line in table([effect_cells(each) for each in change.effects]))
    if change.changed_defaults:
        yield f"  {release_change(change)} changes the defaults of options that are not set:"
        yield from (f"    {line}" for line in table(list(map(default_change, change.changed_defaults))))
    yield from (f"  {defect_change(each)}" for each in change.defects)
    if change.is_worse:
        yield from finding_lines(item.findings)
