"""The break-glass annotation at a given time: whether it counts, until when, and what it never excuses."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from kvgate.api import SKIP_BUDGET_ANNOTATION, SKIP_BUDGET_UNTIL_ANNOTATION
from kvgate.findings.finding import Finding, Rule, Scope, any_one, error_rules
from kvgate.rules.pinned import BUDGET_NOT_SKIPPED, BUDGET_SKIPPED

if TYPE_CHECKING:
    from kvgate.api.v1alpha1 import InferenceDeployment

_EXAMPLE = '"2026-12-24T18:00:00Z"'


class Skip(Struct, frozen=True, kw_only=True):
    """The break-glass annotation of one object."""

    reason: str
    until: datetime | None = None
    """Its end, in UTC; None where it has none, or one that cannot be read."""
    is_over: bool = False
    unread: str | None = None
    """Text of an end that cannot be read; None where it can."""
    excess: str = ""
    """Why it is longer than the administrator allows; empty where it is not."""

    @property
    def counts(self) -> bool:
        return not self.is_over and self.unread is None and not self.excess

    @property
    def end(self) -> str:
        """The end as RFC 3339 writes it; empty where there is none."""
        return self.until.isoformat(timespec="seconds").replace("+00:00", "Z") if self.until else ""

    @property
    def problem(self) -> str:
        """Why it does not count; empty where it does."""
        if self.unread is not None:
            return f"{SKIP_BUDGET_UNTIL_ANNOTATION} is {self.unread!r}, which is no date with time and time zone"
        return f"{SKIP_BUDGET_ANNOTATION} ended at {self.end}" if self.is_over else self.excess

    def as_admitted(self) -> Skip:
        """Return the skip as it counted when the object was admitted; a verdict stands for its spec."""
        return replace(self, is_over=False, unread=None, excess="")

    def finding(self, refused: Iterable[Finding], *, is_needed: bool) -> Finding | None:
        """Return what there is to say; None for a skip that is well written and not needed.

        `refused` are the findings of the object, and `is_needed` says whether it would be refused or changed without the annotation.
        """
        about = "metadata.annotations"
        others = sorted(rule.id for rule in self.not_excused(refused))
        if self.unread is not None:
            remedy = f"set it to a date such as {_EXAMPLE}: until then the budget decides"
            return BUDGET_NOT_SKIPPED.finding(about, self.problem, remedy)
        if not is_needed:
            return None
        if self.is_over or self.excess:
            which = "an earlier" if self.excess and self.until else "a later" if self.is_over else "a"
            later = f"set {SKIP_BUDGET_UNTIL_ANNOTATION} to {which} date"
            return BUDGET_NOT_SKIPPED.finding(about, self.problem, any_one("change the spec so that it fits", later))
        if others:
            message = f"{SKIP_BUDGET_ANNOTATION} skips the budget, not what vLLM refuses ({', '.join(others)})"
            return BUDGET_NOT_SKIPPED.finding(about, message)
        end = f"until {self.end}" if self.end else "without an end"
        message = f"{SKIP_BUDGET_ANNOTATION}: admitted {end} although it does not fit: {self.reason}"
        remedy = "" if self.end else f"give it an end: set {SKIP_BUDGET_UNTIL_ANNOTATION} to a date such as {_EXAMPLE}"
        return BUDGET_SKIPPED.finding(about, message, remedy)

    @staticmethod
    def not_excused(findings: Iterable[Finding]) -> frozenset[Rule]:
        """Return the rules of the errors that are not about memory: vLLM refuses a setting, whatever memory there is."""
        return frozenset(rule for rule in error_rules(findings) if rule.scope is not Scope.MEMORY)


def skip_of(owner: InferenceDeployment, now: datetime, max_days: int = 0) -> Skip | None:
    """Return the break-glass annotation as it counts at `now`, which has a time zone; None where there is none.

    It may last for at most `max_days` from now on; 0: for ever.
    """
    reason, text = owner.skip_reason, owner.skip_until
    if reason is None:
        return None
    allowed = f"here it may last for {max_days} days at most"
    if text is None:
        return Skip(reason=reason, excess=f"{SKIP_BUDGET_ANNOTATION} has no end, and {allowed}" if max_days else "")
    try:
        end = datetime.fromisoformat(text.strip().upper())
        until = end.astimezone(UTC) if end.tzinfo else None
    except (ValueError, OverflowError):
        until = None
    if until is None:
        return Skip(reason=reason, unread=text)
    is_too_long = max_days > 0 and until - now > timedelta(days=max_days)
    skip = Skip(reason=reason, until=until, is_over=until <= now)
    return replace(skip, excess=f"{SKIP_BUDGET_ANNOTATION} ends at {skip.end}, and {allowed}") if is_too_long else skip
