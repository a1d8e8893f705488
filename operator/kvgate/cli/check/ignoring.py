"""Findings that somebody answers for: by a comment in the manifest, in the configuration, or in a baseline.

A baseline holds the findings that were there when somebody began to check, so that only new ones count.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate.cli.check.directives import Directive, Ignore, Problem, WorkloadComment, directives
from kvgate.cli.exits import BadInput
from kvgate.cli.reports.placed import Ignored, Placed, shown_file
from kvgate.cli.reports.report import Item, Report, all_results
from kvgate.documents.bounded_files import read_text, write_text
from kvgate.documents.globs import any_path_matches
from kvgate.documents.streams import Comment
from kvgate.findings.finding import Finding, any_one
from kvgate.rules.repository import COMMENT_NOT_UNDERSTOOD, IGNORE_UNUSED
from kvgate.text.inert import inert_values

if TYPE_CHECKING:
    from kvgate.cli.check.repository_config import ConfigFile

_Place = tuple[str, int | None]
"""A rule, and the line where its findings are ignored; None for the whole document."""
_WORKLOAD_ELSEWHERE = COMMENT_NOT_UNDERSTOOD.finding(
    "",
    "kvgate:workload has no effect on an InferenceDeployment, which has a field for its workload",
    "state the workload in spec.workload",
)
BASELINE_VERSION = 1
MAX_BASELINE_BYTES = 16 << 20
"""Size of a file: 80,000 findings."""


class _Hints(Struct):
    """Number of unknown rules for which the nearest known one is still looked for."""

    left: int = 100


def by_comments(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items of each document with what its comments do; comments without effect become findings."""
    hints = _Hints()
    for _, group in groupby(items, key=lambda item: (item.document.file, item.document.index)):
        in_document = list(group)
        document = in_document[0].document
        yield from _commented(in_document, list(directives(document)), hints) if document.comments else in_document


def _commented(items: list[Item], found: list[Directive], hints: _Hints) -> list[Item]:
    ignores = [directive for directive in found if isinstance(directive, Ignore)]
    reasons = {_place(rule, ignore): ignore for ignore in ignores for rule in ignore.rules}
    used: set[_Place] = set()

    def judged(placed: Placed) -> Placed:
        is_here = placed.file == items[0].document.place_of_line(placed.line).file
        line = placed.rendered_line or (placed.line if is_here else 0)
        for place in ((placed.rule, None), (placed.rule, line)):
            if place in reasons:
                used.add(place)
                at = items[0].document.place_of_line(reasons[place].comment.line)
                by_comment = Ignored(reason=reasons[place].reason, by="comment", place=f"{at.file}:{at.position.line}")
                placed = replace(placed, ignored=by_comment)
        return placed

    items = [replace(item, all_findings=tuple(map(judged, item.all_findings))) for item in items]
    extra = [(each.comment, each.finding) for each in found if isinstance(each, Problem)]
    if items[0].deployment:
        extra += [(each.comment, _WORKLOAD_ELSEWHERE) for each in found if isinstance(each, WorkloadComment)]
    items = _with_comment_findings(items, extra, judged)
    if items[0].source:  # another rendering of the same file may have what the comment is for
        return items
    for is_last in (False, True):  # a comment that ignores this very rule is used by what the others leave
        unused = [
            (ignore.comment, _unused(rule, hints))
            for ignore in ignores
            for rule in ignore.rules
            if _place(rule, ignore) not in used and (rule == IGNORE_UNUSED.id) is is_last
        ]
        items = _with_comment_findings(items, unused, judged)
    return items


def _place(rule: str, ignore: Ignore) -> _Place:
    return rule, None if ignore.in_whole_document else ignore.comment.about


def _unused(rule: str, hints: _Hints) -> Finding:
    from kvgate.rules.catalogue import ALL_RULES, RULES, rule_hint

    remedy = any_one(
        "remove the comment",
        "move the comment to the line of the finding, or to the line above",
        "move the comment before the document, to ignore the rule in all of it",
    )
    if rule not in RULES:
        hints.left -= 1
        remedy = any_one(rule_hint(rule) if hints.left >= 0 else ALL_RULES)
    return IGNORE_UNUSED.finding("", f"kvgate:ignore {rule} matches no finding", remedy)


def _with_comment_findings(
    items: list[Item], extra: list[tuple[Comment, Finding]], judged: Callable[[Placed], Placed]
) -> list[Item]:
    """Add each finding about a comment to the engine that the comment stands in, or to the first one; `judged` ignores it or not."""
    added: dict[int, list[Placed]] = {}
    for comment, finding in extra:
        index = max(0, bisect_right(items, comment.about, key=lambda item: item.rendered_line or item.line) - 1)
        place = items[index].document.place_of_line(comment.line)
        line, rendered = place.position.line, place.rendered_line
        placed = Placed(finding=finding, file=place.file, line=line, column=1, path="", rendered_line=rendered)
        added.setdefault(index, []).append(judged(placed))
    return [
        replace(item, all_findings=(*item.all_findings, *added[index])) if index in added else item
        for index, item in enumerate(items)
    ]


def by_configuration(placed: Placed, file: "ConfigFile") -> Placed:
    """Mark a finding with the first entry under `ignore` for its rule and its file."""
    if placed.ignored:
        return placed
    path = file.path_below(placed.file)
    for index, entry in enumerate(file.config.ignore):
        if entry.rule == placed.rule and (not entry.paths or any_path_matches(path, entry.paths)):
            at = file.place_of(f"ignore[{index}]")
            return replace(placed, ignored=Ignored(reason=entry.reason, by="configuration", place=at))
    return placed


def by_baseline(report: Report, known: frozenset[str], place: str) -> Report:
    """Return the report with the findings of the baseline ignored; `known` are their fingerprints, `place` is its file."""
    found = {id(result.placed): result.fingerprint for result in all_results(report)}
    in_baseline = Ignored(reason="in the baseline", by="baseline", place=place)

    def marked(placed: Placed) -> Placed:
        is_known = placed.ignored is None and found[id(placed)] in known
        return replace(placed, ignored=in_baseline) if is_known else placed

    return replace(with_findings(report, marked), num_unneeded=len(known - set(found.values())))


def with_findings(report: Report, change: Callable[[Placed], Placed]) -> Report:
    """Return the same report with every finding changed."""
    items = tuple(replace(item, all_findings=tuple(map(change, item.all_findings))) for item in report.items)
    return replace(report, items=items, broken=tuple(map(change, report.broken)))


def write_baseline(path: Path, report: Report, *, inside: Path | None) -> None:
    """Write one line per finding, in a stable order; `inside`: the folder that the path must not lead out of.

    A line has what people need to review a finding, and the fingerprint, which alone decides.
    """
    rows = []
    for result in all_results(report):
        placed = result.placed
        if placed.ignored is None or placed.ignored.by == "baseline":  # it counts, or would without the baseline
            engine = result.item.title if result.item else ""
            file = shown_file(placed.file)
            row = {"file": file, "engine": engine, "rule": placed.rule, "fingerprint": result.fingerprint}
            rows.append(row)
    rows.sort(key=lambda row: list(row.values()))
    lines = ",\n".join(f"  {json.dumps(inert_values(row), ensure_ascii=False)}" for row in rows)
    write_text(path, f'{{"version": {BASELINE_VERSION}, "findings": [\n{lines}\n]}}\n', inside=inside)


def read_baseline(path: Path, *, inside: Path | None) -> frozenset[str]:
    """Return the fingerprints; `inside`: the folder that the path must not lead out of. Raises BadInput."""
    try:
        value = json.loads(read_text(path, max_bytes=MAX_BASELINE_BYTES, inside=inside))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON: {error}") from None
    is_current = isinstance(value, dict) and value.get("version") == BASELINE_VERSION
    rows: Any = value.get("findings") if is_current else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "fingerprint" in row for row in rows):
        raise BadInput(f"{path} is not a baseline of version {BASELINE_VERSION}; write it again with --write-baseline")
    return frozenset(str(row["fingerprint"]) for row in rows)
