"""An engine whose release is not known, judged with the oldest and the newest that it may be: what holds for both is said."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from kvgate.budget.interval import Verdict
from kvgate.rules.finding import Severity
from kvgate.vllm.arguments import Located, Place, located

Key = tuple[str, str, str, int]


def joined_verdict(low: Verdict, high: Verdict) -> Verdict:
    """Join two verdicts; where they differ nothing is certain."""
    if low is high:
        return high
    return Verdict.UNKNOWN if Verdict.UNKNOWN in (low, high) else Verdict.MAY_NOT_FIT


def joined_findings(
    low: Iterable[Located], high: Iterable[Located], low_release: str, high_release: str
) -> Iterator[Located]:
    """Those of the newest; what only one says is no error, and says with which."""
    older, newer = {_key(each): each for each in low}, {_key(each): each for each in high}
    for key, each in newer.items():
        yield each if key in older else _only_with(high_release, each)
    for key, each in older.items():
        if key not in newer and each.finding.severity is not Severity.INFO:
            yield _only_with(low_release, each)


def verdicts_differ(path: str, low: Verdict, high: Verdict, low_release: str, high_release: str) -> Located:
    """Report that the verdict depends on the release."""
    message = f"with vLLM {low_release} it is {low.value}, with {high_release} {high.value}"
    remedy = "name a release in the image's tag, or give --vllm-version"
    return located("ReleaseDecides", Severity.WARNING, Place(name="vllm_version", path=path), message, remedy)


def _key(each: Located) -> Key:
    return each.finding.rule, each.finding.field, each.path, each.line


def _only_with(release: str, each: Located) -> Located:
    """Softened: nobody knows that it is this release."""
    if each.finding.severity is Severity.INFO:
        return each
    message = f"with vLLM {release}: {each.finding.message}"
    return replace(each, finding=replace(each.finding, severity=Severity.WARNING, message=message))
