"""Findings that somebody answers for: by a comment in the manifest, or in the configuration."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from kvgate.cli.check.directives import Directive, Ignore, Problem, WorkloadComment, directives
from kvgate.cli.check.report import Ignored, Item, Placed, Report
from kvgate.documents.globs import any_path_matches
from kvgate.documents.streams import Comment
from kvgate.manifests import Document
from kvgate.rules.finding import Finding, Severity

if TYPE_CHECKING:
    from kvgate.cli.check.repository_config_file import ConfigFile

_Place = tuple[str, int | None]
"""A rule, and the line where its findings are ignored; None for the whole document."""
_SAID_ELSEWHERE = Finding(
    rule="CommentNotUnderstood",
    severity=Severity.WARNING,
    field="",
    message="kvgate:workload is for manifests of other platforms; an InferenceDeployment has a field for it",
    remediation="write spec.workload",
)


@dataclass(slots=True)
class _Hints:
    """Unknown rules for which the nearest known one is still looked for: each takes a millisecond."""

    left: int = 100


def by_comments(items: Iterable[Item]) -> Iterator[Item]:
    """The items of each document with what its comments say; those that cannot be followed, or match nothing, are told."""
    hints = _Hints()
    for _, group in groupby(items, key=lambda item: (item.document.file, item.document.index)):
        in_document = list(group)
        document = in_document[0].document
        yield from _commented(in_document, list(directives(document)), hints) if document.comments else in_document


def _commented(items: list[Item], found: list[Directive], hints: _Hints) -> list[Item]:
    ignores = [directive for directive in found if isinstance(directive, Ignore)]
    used: set[_Place] = set()
    by_place = {_place(rule, ignore): ignore.reason for ignore in ignores for rule in ignore.rules}
    items = [replace(item, told=tuple(_pardoned(placed, by_place, used) for placed in item.told)) for item in items]
    extra = [(d.comment, d.finding) for d in found if isinstance(d, Problem)]
    if items[0].checked:
        extra += [(d.comment, _SAID_ELSEWHERE) for d in found if isinstance(d, WorkloadComment)]
    extra += [
        (ignore.comment, _unused(rule, hints))
        for ignore in ignores
        for rule in ignore.rules
        if _place(rule, ignore) not in used
    ]
    told: dict[int, list[Placed]] = {}
    for comment, finding in extra:
        index = _nearest(items, comment)
        told.setdefault(index, []).append(_at(items[index].document, comment, finding))
    for index, placed in told.items():
        items[index] = replace(items[index], told=(*items[index].told, *placed))
    return items


def _place(rule: str, ignore: Ignore) -> _Place:
    return rule, None if ignore.in_whole_document else ignore.comment.about


def _pardoned(placed: Placed, ignores: Mapping[_Place, str], used: set[_Place]) -> Placed:
    """`ignores`: reasons. `used` is told which places had something to ignore."""
    for line in (None, placed.line):
        place = (placed.rule, line)
        if place in ignores:
            used.add(place)
            placed = replace(placed, ignored=Ignored(reason=ignores[place], by="comment"))
    return placed


def _nearest(items: list[Item], comment: Comment) -> int:
    """The engine that the comment stands in, or the first one."""
    return max(0, bisect_right(items, comment.about, key=lambda item: item.line) - 1)


def _at(document: Document, comment: Comment, finding: Finding) -> Placed:
    return Placed(finding=finding, file=document.file, line=comment.line, column=1, path="")


def _unused(rule: str, hints: _Hints) -> Finding:
    return Finding(
        rule="IgnoreUnused",
        severity=Severity.INFO,
        field="",
        message=f"kvgate:ignore {rule} matches no finding",
        remediation=_what_to_do(rule, hints),
    )


def _what_to_do(rule: str, hints: _Hints) -> str:
    from difflib import get_close_matches

    from kvgate.cli.rule_texts import rule_texts

    if rule in rule_texts():
        return "remove it, or put it on the line of the finding or the one above, or before the document for all of it"
    hints.left -= 1
    near = get_close_matches(rule, rule_texts(), n=1, cutoff=0.5) if hints.left >= 0 else ()
    return f"did you mean {near[0]}?" if near else "`kvgate rules` lists the rules"


def by_configuration(placed: Placed, file: "ConfigFile") -> Placed:
    """Mark a finding with the first entry under `ignore` for its rule and its file."""
    if placed.ignored:
        return placed
    path = file.path_below(placed.file)
    for entry in file.config.ignore:
        if entry.rule == placed.rule and (not entry.paths or any_path_matches(path, entry.paths)):
            return replace(placed, ignored=Ignored(reason=entry.reason, by="configuration"))
    return placed


def with_findings(report: Report, change: Callable[[Placed], Placed]) -> Report:
    """The same report, every finding changed."""
    items = tuple(replace(item, told=tuple(map(change, item.told))) for item in report.items)
    return replace(report, items=items, broken=tuple(map(change, report.broken)))
