"""Memory of the corrections of a child: a difference that comes back each time is reported, not corrected for ever."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvgate.api.conditions import Reason
from kvgate.rendering.status import Obstacle

WINDOW_SECONDS = 3600.0
"""Seconds for which a correction is remembered; after that the same one is tried again."""
REFUSED_SECONDS = 240.0
"""Seconds for which a refusal by a quota or a policy of the cluster is believed: every resync asks once more."""
MAX_CORRECTIONS = 3
"""Corrections of the same difference in that time: it comes back because somebody wants it."""
_MAY_PASS = (Reason.QUOTA_EXCEEDED, Reason.ADMISSION_DENIED)
Difference = tuple[str, ...]
"""Hash of what is wanted, and the paths that differ from it."""


@dataclass(kw_only=True, slots=True)
class _Tried:
    at: list[float] = field(default_factory=list)
    """Moments of the corrections in the window."""
    was_in_vain: bool = False
    """The difference was there again in the very answer to the last one."""
    obstacle: Obstacle | None = None
    """Reason why the API server refused the last one."""
    for_seconds: float = WINDOW_SECONDS
    """Seconds for which that is remembered."""


class Corrections:
    """Corrections of one object's children; they live in memory, so a restart tries once more."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tried: dict[tuple[str, Difference], _Tried] = {}

    def may_try(self, kind: str, difference: Difference) -> bool:
        tried = self._recent(kind, difference)
        if tried is None:
            return True
        return not tried.was_in_vain and tried.obstacle is None and len(tried.at) < MAX_CORRECTIONS

    def obstacle(self, kind: str, difference: Difference) -> Obstacle | None:
        """Return the reason why the API server refused this, if it did."""
        tried = self._recent(kind, difference)
        return tried.obstacle if tried else None

    def note(
        self, kind: str, difference: Difference, *, left: Difference = (), obstacle: Obstacle | None = None
    ) -> None:
        """After a correction: what differs in the answer to it, or why there is none."""
        tried = self._tried.setdefault((kind, difference), _Tried())
        tried.at.append(self._clock())
        tried.obstacle = obstacle
        tried.for_seconds = REFUSED_SECONDS if obstacle and obstacle.reason in _MAY_PASS else WINDOW_SECONDS
        tried.was_in_vain = left == difference
        if left and left != difference:  # a webhook changed it on its way: that is what will be seen from now on
            self._tried[kind, left] = _Tried(at=[self._clock()], was_in_vain=True)

    def _recent(self, kind: str, difference: Difference) -> _Tried | None:
        now = self._clock()
        self._tried = {key: tried for key, tried in self._tried.items() if now - tried.at[-1] < tried.for_seconds}
        tried = self._tried.get((kind, difference))
        if tried is not None:
            tried.at = [moment for moment in tried.at if now - moment < WINDOW_SECONDS]
        return tried
