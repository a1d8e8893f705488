"""Directives in comments of manifests: `# kvgate:ignore RULE reason`, `# kvgate:workload peakConcurrency=8 …`."""

import re
from collections.abc import Iterator

from kvgate.budget.request import Workload
from kvgate.documents.streams import Comment
from kvgate.manifests import Document
from kvgate.record import record
from kvgate.rules.finding import Finding, Severity

_KEYS = {
    "peakConcurrency": "peak_concurrency",
    "promptTokens": "prompt_tokens",
    "outputTokens": "output_tokens",
    "sharedPrefixTokens": "shared_prefix_tokens",
}
_REQUIRED = ("peakConcurrency", "promptTokens", "outputTokens")
_RULES = re.compile(r"\s*\w+(?:\s*,\s*[A-Z]\w*)*")
_COUNT = re.compile(r"[1-9][0-9]{0,8}")
_FORMS = "write # kvgate:ignore RULE reason, or # kvgate:workload peakConcurrency=8 promptTokens=2000 outputTokens=500"


@record
class Ignore:
    """Findings of some rules that do not count, at a line or in a whole document."""

    comment: Comment
    rules: tuple[str, ...]
    reason: str
    in_whole_document: bool


@record
class WorkloadComment:
    """Load that an engine is expected to serve."""

    comment: Comment
    workload: Workload
    in_whole_document: bool


@record
class Problem:
    """A comment that cannot be followed."""

    comment: Comment
    finding: Finding


Directive = Ignore | WorkloadComment | Problem


def directives(document: Document) -> Iterator[Directive]:
    """Return the directives of all comments that are for kvgate."""
    for comment in document.comments:
        word, _, rest = comment.text.partition(" ")
        at_head = comment.stands_alone and comment.line < document.first_line
        if word == "ignore":
            yield _ignore(comment, rest, at_head=at_head)
        elif word == "workload":
            yield _workload(comment, rest, at_head=at_head)
        else:
            yield _problem("CommentNotUnderstood", comment, f"kvgate:{word} is not understood", _FORMS)


def _ignore(comment: Comment, rest: str, *, at_head: bool) -> Directive:
    named = _RULES.match(rest)
    if named is None:
        return _problem("CommentNotUnderstood", comment, "kvgate:ignore names no rule", _FORMS)
    rules, reason = tuple(re.split(r"[,\s]+", named[0].strip())), rest[named.end() :].strip(" :,-—")
    if not reason:
        names = ",".join(rules)
        message = f"kvgate:ignore {names} gives no reason, so nothing is ignored"
        return _problem("IgnoreWithoutReason", comment, message, f"write why: # kvgate:ignore {names} because …")
    return Ignore(comment=comment, rules=rules, reason=reason, in_whole_document=at_head)


def _workload(comment: Comment, rest: str, *, at_head: bool) -> Directive:
    """All that is wrong with it, in one finding."""
    given = dict(word.partition("=")[::2] for word in re.split(r"[,\s]+", rest.strip()) if word)
    wrong = [f"{key} is not understood" for key in given if key not in _KEYS]
    wrong += [f"{key} is missing" for key in _REQUIRED if key not in given]
    wrong += [f"{key} is {value!r}" for key, value in given.items() if key in _KEYS and not _COUNT.fullmatch(value)]
    if not wrong:
        workload = Workload(**{_KEYS[key]: int(value) for key, value in given.items()})
        if workload.shared_prefix_tokens <= workload.prompt_tokens:
            return WorkloadComment(comment=comment, workload=workload, in_whole_document=at_head)
        wrong.append("sharedPrefixTokens is above promptTokens")
    return _problem("CommentNotUnderstood", comment, f"kvgate:workload: {', '.join(wrong)}", _FORMS)


def _problem(rule: str, comment: Comment, message: str, remediation: str) -> Problem:
    finding = Finding(rule=rule, severity=Severity.WARNING, field="", message=message, remediation=remediation)
    return Problem(comment=comment, finding=finding)
