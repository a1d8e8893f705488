"""Findings that somebody answers for: by a comment in the manifest, in the configuration, or in a baseline.

A baseline holds the findings that were there when somebody began to check, so that only new ones count.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert
from msgspec.structs import replace

from kvgate.budget import Workload
from kvgate.cli.exits import BadInput, read_given
from kvgate.cli.reports.placed import Ignored, Placed, shown_file
from kvgate.cli.reports.report import Item, Report, all_results
from kvgate.documents.bounded_files import write_text
from kvgate.documents.globs import any_path_matches
from kvgate.documents.origins import Place, comments_of_values
from kvgate.documents.streams import Comment
from kvgate.findings.finding import Finding, Remedy, Rule, any_one
from kvgate.manifests import Document
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.rules.repository import COMMENT_NOT_UNDERSTOOD, IGNORE_UNUSED, IGNORE_WITHOUT_REASON
from kvgate.text.inert import inert_values
from kvgate.text.patterns import pattern

if TYPE_CHECKING:
    from kvgate.cli.check.repository_config import ConfigFile


_KEYS = {
    "peakConcurrency": "peak_concurrency",
    "promptTokens": "prompt_tokens",
    "outputTokens": "output_tokens",
    "sharedPrefixTokens": "shared_prefix_tokens",
}
_REQUIRED = ("peakConcurrency", "promptTokens", "outputTokens")
_RULES = pattern(r"\s*\w+(?:\s*,\s*[A-Z]\w*)*")
_COUNT, _MAX_COUNT = re.compile(r"[1-9][0-9]{0,8}"), 999_999_999
_FORMS = any_one(
    "write # kvgate:ignore RULE reason",
    "write # kvgate:workload peakConcurrency=8 promptTokens=2000 outputTokens=500",
)


class Ignore(Struct, frozen=True, kw_only=True):
    """Rules whose findings do not count, at a line or in a whole document."""

    comment: Comment
    rules: tuple[str, ...]
    reason: str
    in_whole_document: bool


class WorkloadComment(Struct, frozen=True, kw_only=True):
    """Load that an engine is expected to serve."""

    comment: Comment
    workload: Workload
    in_whole_document: bool


class Problem(Struct, frozen=True, kw_only=True):
    comment: Comment
    finding: Finding


Directive = Ignore | WorkloadComment | Problem


def directives(document: Document) -> Iterator[Directive]:
    return _directives(document.comments, document.first_line)


def _directives(comments: Iterable[Comment], first_line: int) -> Iterator[Directive]:
    for comment in comments:
        word, _, rest = comment.text.partition(" ")
        at_head = comment.stands_alone and comment.line < first_line
        if word == "ignore":
            yield _ignore(comment, rest, at_head=at_head)
        elif word == "workload":
            yield _workload(comment, rest, at_head=at_head)
        else:
            yield _problem(
                COMMENT_NOT_UNDERSTOOD, comment, f"kvgate:{word} is neither kvgate:ignore nor kvgate:workload", _FORMS
            )


def _ignore(comment: Comment, rest: str, *, at_head: bool) -> Directive:
    named = _RULES.match(rest)
    if named is None:
        return _problem(COMMENT_NOT_UNDERSTOOD, comment, "kvgate:ignore is not followed by the id of a rule", _FORMS)
    rules, reason = tuple(re.split(r"[,\s]+", named[0].strip())), rest[named.end() :].strip(" :,-—")
    if not reason:
        names = ",".join(rules)
        message = f"kvgate:ignore {names} gives no reason, so nothing is ignored"
        return _problem(IGNORE_WITHOUT_REASON, comment, message, f"add a reason: # kvgate:ignore {names} because …")
    return Ignore(comment=comment, rules=rules, reason=reason, in_whole_document=at_head)


def _workload(comment: Comment, rest: str, *, at_head: bool) -> Directive:
    """Read the workload, or report everything that is wrong with it in one finding."""
    given = dict(word.partition("=")[::2] for word in re.split(r"[,\s]+", rest.strip()) if word)
    wrong = [f"{key} is none of its keys ({', '.join(_KEYS)})" for key in given if key not in _KEYS]
    wrong += [f"{key} is missing" for key in _REQUIRED if key not in given]
    wrong += [
        f"{key} is {value!r}, which is not a whole number from 1 to {_MAX_COUNT}"
        for key, value in given.items()
        if key in _KEYS and not _COUNT.fullmatch(value)
    ]
    if not wrong:
        workload = convert({_KEYS[key]: int(value) for key, value in given.items()}, Workload)
        if workload.shared_prefix_tokens <= workload.prompt_tokens:
            return WorkloadComment(comment=comment, workload=workload, in_whole_document=at_head)
        prefix, prompt = workload.shared_prefix_tokens, workload.prompt_tokens
        wrong.append(f"sharedPrefixTokens is {prefix}, above promptTokens, which is {prompt}")
    return _problem(COMMENT_NOT_UNDERSTOOD, comment, f"kvgate:workload: {'; '.join(wrong)}", _FORMS)


def _problem(rule: Rule, comment: Comment, message: str, remedy: str | Remedy) -> Problem:
    return Problem(comment=comment, finding=rule.finding("", message, remedy))


def commented_workloads(engines: Sequence[FoundEngine]) -> Iterator[Workload | None]:
    """Yield the workload that a comment states for each engine, in their order; None where no comment does.

    A comment inside an engine is about that engine, and wins over one before the whole document, which is about all of its engines.
    """
    for _, group in groupby(engines, key=lambda engine: (engine.document.file, engine.document.index)):
        in_document = list(group)
        comments = [each for each in directives(in_document[0].document) if isinstance(each, WorkloadComment)]
        if not comments:
            yield from [None] * len(in_document)
            continue
        for_all = next((each.workload for each in reversed(comments) if each.in_whole_document), None)
        starts = _first_lines(in_document)
        in_order = sorted(starts)
        own = {
            in_order[max(0, bisect_right(in_order, each.comment.about) - 1)]: each.workload
            for each in comments
            if not each.in_whole_document
        }
        yield from (own.get(start, for_all) for start in starts)


def _first_lines(engines: list[FoundEngine]) -> list[int]:
    """Return the line where each engine begins; the first engine of an object begins where the object does.

    One document may hold several objects, as a List.
    """
    lines = [_line(engine.document.place_of(engine.path)) for engine in engines]
    first: dict[int, int] = {}
    for engine, line in zip(engines, lines, strict=True):
        first[id(engine.document)] = min(line, first.get(id(engine.document), line))
    return [
        _line(engine.document.place_of("")) if line == first[id(engine.document)] else line
        for engine, line in zip(engines, lines, strict=True)
    ]


def _line(place: Place) -> int:
    """Return the line that comments count in."""
    return place.rendered_line or place.position.line


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


_MAX_HINTS = 100
"""Unknown rules for which the nearest known one is looked for."""


def by_comments(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items of each document with what its comments do; comments without effect become findings."""
    hints = iter(range(_MAX_HINTS))
    for _, group in groupby(items, key=lambda item: (item.document.file, item.document.index)):
        in_document = list(group)
        document = in_document[0].document
        has_any = document.comments or document.origin  # a chart's values have comments too
        yield from _commented(in_document, list(directives(document)), hints) if has_any else in_document


def _commented(items: list[Item], found: list[Directive], hints: Iterator[int]) -> list[Item]:
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
        return placed if placed.ignored or is_here else _by_values(placed)

    items = [replace(item, all_findings=tuple(map(judged, item.all_findings))) for item in items]
    extra = [(each.comment, each.finding) for each in found if isinstance(each, Problem)]
    if items[0].subject:
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


def _by_values(placed: Placed) -> Placed:
    """Return a finding that stands in a file of values, ignored where a comment there says so."""
    for each in _directives(comments_of_values(placed.file), 0) if placed.rendered_line else ():
        if isinstance(each, Ignore) and placed.rule in each.rules and each.comment.about == placed.line:
            place = f"{placed.file}:{each.comment.line}"
            return replace(placed, ignored=Ignored(reason=each.reason, by="comment", place=place))
    return placed


def _place(rule: str, ignore: Ignore) -> _Place:
    return rule, None if ignore.in_whole_document else ignore.comment.about


def _unused(rule: str, hints: Iterator[int]) -> Finding:
    from kvgate.rules.catalogue import ALL_RULES, RULES, rule_hint

    remedy = any_one(
        "remove the comment",
        "move the comment to the line of the finding, or to the line above",
        "move the comment before the document, to ignore the rule in all of it",
    )
    if rule not in RULES:
        remedy = any_one(ALL_RULES if next(hints, None) is None else rule_hint(rule))
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
    text = read_given(path, max_bytes=MAX_BASELINE_BYTES, inside=inside, kind="JSON")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON: {error}") from None
    is_current = isinstance(value, dict) and value.get("version") == BASELINE_VERSION
    rows: Any = value.get("findings") if is_current else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "fingerprint" in row for row in rows):
        raise BadInput(f"{path} is not a baseline of version {BASELINE_VERSION}; write it again with --write-baseline")
    return frozenset(str(row["fingerprint"]) for row in rows)
