"""Comments of manifests that are for kvgate: `# kvgate:ignore RULE reason`, `# kvgate:workload peakConcurrency=8 …`."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from kvgate.budget import Workload
from kvgate.documents.origins import Place
from kvgate.documents.streams import Comment
from kvgate.findings.finding import Finding, Remedy, Rule, any_one
from kvgate.manifests import Document
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.rules.repository import COMMENT_NOT_UNDERSTOOD, IGNORE_WITHOUT_REASON
from kvgate.text.patterns import pattern

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
    """A comment that cannot be followed."""

    comment: Comment
    finding: Finding


Directive = Ignore | WorkloadComment | Problem


def directives(document: Document) -> Iterator[Directive]:
    """Yield the directives of all comments that are for kvgate."""
    for comment in document.comments:
        word, _, rest = comment.text.partition(" ")
        at_head = comment.stands_alone and comment.line < document.first_line
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
        workload = Workload(**{_KEYS[key]: int(value) for key, value in given.items()})
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
