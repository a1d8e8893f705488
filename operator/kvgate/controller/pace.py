"""The pace at which pods are replaced that nobody edited: after an upgrade of kvgate, or where the spec follows better predictions.

One engine goes first; where it is ready, a few load at a time; where one fails, no further one begins. A Deployment that was changed so
has an annotation with the release, so that the next process knows from the Deployments alone where the last one stopped.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from kvgate import __version__
from kvgate.api.conditions import ConditionType, Reason
from kvgate.controller.decision import Key
from kvgate.rendering.labels import PACED_ANNOTATION
from kvgate.rendering.observation import Statement, rollout_of

MAX_REPLACING = 3
"""Engines that load at a time; the others serve meanwhile."""


class Progress(StrEnum):
    """State of an object in the wave; the values of the label `state`."""

    WAITING = "waiting"
    LOADING = "loading"
    FAILED = "failed"
    READY = "ready"


class Pace:
    """The wave of this release. Used in the working thread's event loop only; until the Deployments were listed once, nobody begins."""

    def __init__(self, limit: int = MAX_REPLACING, release: str = __version__) -> None:
        self.release = release
        self.is_known = False
        """True from the first list of Deployments on."""
        self.enqueue: Callable[[Key], None] = lambda _: None
        """Called with each object whose turn it may be now."""
        self._limit = limit
        self._states: dict[Key, Progress] = {}

    def count(self, state: Progress) -> int:
        """Return the number of objects in this state; any thread may ask."""
        return [*self._states.values()].count(state)

    def note(self, key: Key, deployment: Mapping[str, Any] | None, *, is_stalled: bool = False) -> None:
        """Remember how a Deployment stands that this wave changed, and let others begin where it leaves room."""
        metadata = deployment["metadata"] if deployment else {}
        before = self._states.get(key)
        if deployment is None or (metadata.get("annotations") or {}).get(PACED_ANNOTATION) != self.release:
            if before is not Progress.WAITING:
                self._states.pop(key, None)
        elif rollout_of(deployment).is_complete:
            self._states[key] = Progress.READY
        elif before is not Progress.READY or is_stalled:  # one that was ready may lose a pod later
            self._states[key] = Progress.FAILED if is_stalled or rollout_of(deployment).stuck else Progress.LOADING
        if before is not self._states.get(key):
            self._go_on()

    def turn(self, key: Key) -> Statement | None:
        """Return None where the object begins now, else the condition of its wait."""
        reason = self._reason_to_wait(key)
        if reason is None:
            self._states[key] = Progress.LOADING
            return None
        self._states[key] = Progress.WAITING
        return ConditionType.REPLACEMENT_PENDING, True, reason[0], reason[1]

    def rest(self, key: Key) -> None:
        """Remember that the object waits no more, because its pods need not be replaced or because somebody edited it."""
        if self._states.get(key) is Progress.WAITING:
            del self._states[key]

    def forget(self, key: Key) -> None:
        if self._states.pop(key, None) is not None:
            self._go_on()

    def _reason_to_wait(self, key: Key) -> tuple[Reason, str] | None:
        others = {each: state for each, state in self._states.items() if each != key}
        by_state = {state: sorted("/".join(each) for each, has in others.items() if has is state) for state in Progress}
        loading, failed = by_state[Progress.LOADING], by_state[Progress.FAILED]
        if failed:
            text = f"{', '.join(failed[:3])} did not become ready with the pods that kvgate {self.release} renders"
            return Reason.REPLACEMENT_HALTED, f"{text}; the pods here stay until it is, or is edited or deleted"
        if not self.is_known or (loading and not by_state[Progress.READY]):
            return (
                Reason.CANARY_FIRST,
                f"{', '.join(loading) or 'one object'} gets the pods of kvgate {self.release} first",
            )
        if len(loading) >= self._limit:
            return (
                Reason.TURN_AWAITED,
                f"at most {self._limit} engines load at a time, now those of {', '.join(loading[:3])}",
            )
        return None

    def _go_on(self) -> None:
        waiting = [key for key, state in self._states.items() if state is Progress.WAITING]
        for key in waiting if self.count(Progress.FAILED) else waiting[: self._limit]:
            self.enqueue(key)
