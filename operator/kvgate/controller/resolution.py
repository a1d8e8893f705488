"""The state of one object's models at the hub: whether the object waits for an answer, and the words of ModelResolved. Pure."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from kvgate.api.conditions import ConditionType, Reason
from kvgate.checkpoint.published import ModelName
from kvgate.checkpoint.stored import StoredModels
from kvgate.controller.fetches import Failure, Origin
from kvgate.rendering.observation import Statement

_OR_GIVE = "give its config.json by spec.model.configFrom"
_REMEDIES = {
    Reason.GATED: f"{_OR_GIVE}, or let the administrator set models.tokenSecret of kvgate's chart",
    Reason.NOT_FOUND: "correct spec.model.name, or give the config.json of a private model by spec.model.configFrom",
    Reason.REVISION_NOT_FOUND: "correct spec.model.revision",
    Reason.HUB_UNREACHABLE: f"let the controller's pods reach the hub: models.egress and models.endpoint of kvgate's chart, or {_OR_GIVE}",
    Reason.OFFLINE: f"let the administrator remove HF_HUB_OFFLINE from the controller, or {_OR_GIVE}",
    Reason.TOO_MANY_MODELS: f"try again later, or {_OR_GIVE}",
}
_REMEDY = f"{_OR_GIVE}; kvgate asks the hub again when the spec changes"


class Resolution(Struct, frozen=True, kw_only=True):
    """The state of an object's models that the catalogue lacks."""

    reason: Reason
    message: str
    models: StoredModels
    held_until: float | None = None
    """Time until which nothing is rendered; infinite where the spec was refused by facts that are gone; None where nobody waits."""
    origin: str = ""
    """Origin of all facts, where all are known."""

    @property
    def is_held(self) -> bool:
        return self.held_until is not None

    @property
    def has_end(self) -> bool:
        """True where the wait ends by itself; else the spec was refused, and stays so."""
        return self.held_until is not None and self.held_until != float("inf")

    @property
    def content(self) -> tuple[tuple[str, bytes], ...]:
        """The part that a judgement depends on."""
        return tuple(self.models.entries.items())

    @property
    def statement(self) -> Statement:
        status = None if self.is_held else self.reason is Reason.FOUND
        return ConditionType.MODEL_RESOLVED, status, self.reason, self.message


class Waiting(Struct, frozen=True, kw_only=True):
    """The time that an object waits for its models."""

    since: float
    seconds: float
    """Longest time for which it is held back."""
    was_found: bool = False
    """True where this very generation was judged by facts that are no longer known."""


def resolution(
    found: Mapping[ModelName, Origin], missing: Mapping[ModelName, Failure | None], models: StoredModels, *,
    waiting: Waiting, now: float,
) -> Resolution:  # fmt: skip
    """Decide from the facts that are known and the answers about those that are not; None where there is no answer yet."""
    if not missing:
        origin = "; ".join(map(str, found.values()))
        return Resolution(reason=Reason.FOUND, message=origin, models=models, origin=origin)
    final = next((each for each in missing.values() if each is not None and not each.is_temporary), None)
    if final is not None and not waiting.was_found:
        return Resolution(reason=final.reason, message=with_remedy(final), models=models)
    end = float("inf") if waiting.was_found else waiting.since + waiting.seconds
    tried = next((each for each in missing.values() if each is not None), None)
    names = " and ".join(map(str, missing))
    if now < end:
        limit = (
            "the spec was refused by facts that are no longer stored"
            if waiting.was_found
            else f"at most until {datetime.fromtimestamp(end, UTC):%Y-%m-%dT%H:%M:%SZ}"
        )
        last = f"; the last try: {tried.message}" if tried else ""
        message = (
            f"kvgate fetches what the hub has published about {names}, and renders nothing meanwhile ({limit}){last}"
        )
        return Resolution(reason=Reason.RESOLVING, message=message, models=models, held_until=end)
    late = tried or Failure(
        reason=Reason.TIME_OVER, message=f"{names} was not fetched within {waiting.seconds:g} s", is_temporary=True
    )
    return Resolution(reason=late.reason, message=with_remedy(late), models=models)


def with_remedy(failure: Failure) -> str:
    return f"{failure.message} ({_REMEDIES.get(failure.reason, _REMEDY)})"


def waiting_since(document: Mapping[str, Any], now: float) -> tuple[float, bool]:
    """Return since when the object waits according to its status, and whether its present generation was judged by fetched facts.

    A controller that starts anew goes on with the time that its predecessor wrote.
    """
    generation = document["metadata"].get("generation", 1)
    conditions: Sequence[Any] = (document.get("status") or {}).get("conditions") or ()
    for condition in conditions:
        if (
            isinstance(condition, Mapping)
            and condition.get("type") == ConditionType.MODEL_RESOLVED
            and condition.get("observedGeneration") == generation
        ):
            is_waiting = condition.get("reason") == Reason.RESOLVING
            began = now
            with suppress(ValueError):
                since = str(condition.get("lastTransitionTime"))
                began = datetime.strptime(since, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
            return min(now, began) if is_waiting else now, condition.get("reason") == Reason.FOUND
    return now, False
