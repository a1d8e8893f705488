"""Events of events.k8s.io/v1. A repeated event is counted instead of written again, and the number of events of an object is limited."""

import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from msgspec import Struct

from kvgate.api.base import Document
from kvgate.cluster.client import EVENTS, Cluster
from kvgate.cluster.errors import NotFound
from kvgate.text.inert import inert_line

CONTROLLER = "kvgate.io/controller"
MAX_NOTE_BYTES = 1024
"""Longest note that the API server accepts, in bytes of UTF-8."""
MAX_WORD_BYTES = 128
"""Longest reason, action and reportingInstance."""
BURST = 5
SECONDS_PER_EVENT = 10.0
"""Time between two events of one object, after the first BURST events."""
SERIES_SECONDS = 600.0
"""Time in which a repeated event is counted in the one before."""
MAX_REMEMBERED = 4096
"""Number of events, and of objects, that are remembered; the oldest are forgotten."""


class Notice(Struct, frozen=True, kw_only=True):
    kind: Literal["Normal", "Warning"]
    reason: str
    action: str
    """Action of kvgate: Assess, Apply, Observe."""
    note: str


@dataclass(kw_only=True, slots=True)
class _Series:
    name: str
    count: int
    last: float


@dataclass(kw_only=True, slots=True)
class _Allowance:
    tokens: float
    last: float


class EventRecorder:
    """Writes events and remembers them; one per process."""

    def __init__(self, cluster: Cluster, *, instance: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        """Without an instance it is the pod's name, which is its host name."""
        self._cluster = cluster
        self._instance = instance or os.environ.get("HOSTNAME") or "kvgate"
        self._clock = clock
        self._series: OrderedDict[tuple[str, str, str], _Series] = OrderedDict()
        self._budgets: OrderedDict[str, _Allowance] = OrderedDict()

    async def record(self, about: Document, notice: Notice) -> bool:
        """Write an event. Returns False where the object has had too many. Raises ApiError."""
        metadata, now = about["metadata"], self._clock()
        if not self._allows(metadata["uid"], now):
            return False
        key = (metadata["uid"], notice.reason, hashlib.sha256(notice.note.encode(errors="replace")).hexdigest())
        series = self._series.get(key)
        if series is not None and now - series.last < SERIES_SECONDS and await self._continue(metadata, series, now):
            return True
        name = f"{metadata['name']}.{time.time_ns():x}"
        regarding = {key: metadata[key] for key in ("name", "namespace", "uid")}
        event: Document = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "eventTime": micro_time(),
            "type": notice.kind,
            "reason": shortened_bytes(notice.reason, MAX_WORD_BYTES),
            "action": shortened_bytes(notice.action, MAX_WORD_BYTES),
            "note": shortened_bytes(inert_line(notice.note), MAX_NOTE_BYTES),
            "regarding": {"apiVersion": about["apiVersion"], "kind": about["kind"], **regarding},
            "reportingController": CONTROLLER,
            "reportingInstance": shortened_bytes(self._instance, MAX_WORD_BYTES),
        }
        await self._cluster.create(EVENTS, event)
        self._series[key] = _Series(name=name, count=1, last=now)
        _forget_oldest(self._series)
        return True

    async def _continue(self, metadata: Document, series: _Series, now: float) -> bool:
        """Count a repeated event. Returns False where the event has expired meanwhile."""
        body = {"series": {"count": series.count + 1, "lastObservedTime": micro_time()}}
        try:
            await self._cluster.merge(EVENTS, metadata["namespace"], series.name, body)
        except NotFound:
            return False
        series.count, series.last = series.count + 1, now
        return True

    def _allows(self, uid: str, now: float) -> bool:
        budget = self._budgets.setdefault(uid, _Allowance(tokens=BURST, last=now))
        budget.tokens = min(BURST, budget.tokens + (now - budget.last) / SECONDS_PER_EVENT)
        budget.last = now
        _forget_oldest(self._budgets)
        if budget.tokens < 1:
            return False
        budget.tokens -= 1
        return True


def shortened_bytes(text: str, limit_bytes: int) -> str:
    """Shorten a text to this many bytes of UTF-8, with an ellipsis; half a surrogate pair becomes a question mark."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= limit_bytes:
        return encoded.decode()
    ellipsis = "…".encode()
    return encoded[: limit_bytes - len(ellipsis)].decode(errors="ignore") + ellipsis.decode()


def _forget_oldest(remembered: OrderedDict[Any, Any]) -> None:
    while len(remembered) > MAX_REMEMBERED:
        remembered.popitem(last=False)


def micro_time() -> str:
    """Return the time in the format of MicroTime: RFC 3339 with microseconds and a Z."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
