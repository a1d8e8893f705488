"""Why a pod waits on its node although its status does not say so: only events do (volumes, sandboxes, probes).

Events are requested, for one such pod at a time, and not watched: a watch brings every event of the cluster into the process, and the API
server keeps none of them in memory (docs/design/README.md, 0014). A pod is looked at after QUIET_SECONDS, and again each time that it has
waited a tenth longer; nothing is requested while no pod waits.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from msgspec import Struct

from kvgate.cluster.client import Cluster
from kvgate.cluster.errors import ApiError
from kvgate.controller.pods import Pod
from kvgate.rendering.hindrances import Hindrance, hindrance_in_claim, hindrance_in_events

QUIET_SECONDS = 3.0
"""Time that a pod may wait in its usual course: a start takes a second where the image is there."""
MAX_LOOKS = 8
"""Pods that one round looks at; with a round each second, no more requests than this in a second, whatever the cluster does."""
_log = logging.getLogger(__name__)


class _Looked(Struct, frozen=True, kw_only=True):
    since: float
    due: float
    found: Hindrance | None = None


class PodEvents:
    """Hindrances from events, by the uids of pods; used in the working thread's event loop only."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._looked: dict[str, _Looked] = {}
        self._has_told = False

    def hindrance(self, pod: Pod) -> Hindrance | None:
        """Return what the pod's status says, or else what its events say."""
        looked = self._looked.get(pod.uid)
        return looked.found if looked and looked.found and pod.is_quiet else pod.hindrance

    async def look(self, quiet: Iterable[Pod]) -> bool:
        """Look at the events of those that are due, and forget all other pods. Returns True where one has another hindrance."""
        now, pods = self._clock(), {pod.uid: pod for pod in quiet}
        new = _Looked(since=now, due=now + QUIET_SECONDS)
        before = {uid: self._looked.get(uid, new) for uid in pods}
        self._looked = dict(before)
        due = sorted((uid for uid in pods if before[uid].due <= now), key=lambda uid: before[uid].due)[:MAX_LOOKS]
        found = await asyncio.gather(*(self._hindrance(pods[uid]) for uid in due))
        for uid, hindrance in zip(due, found, strict=True):
            since = before[uid].since
            pause_seconds = max(QUIET_SECONDS, (now - since) / 10)
            self._looked[uid] = _Looked(since=since, due=now + pause_seconds, found=hindrance or before[uid].found)
        return any(before[uid].found != self._looked[uid].found for uid in due)

    async def _hindrance(self, pod: Pod) -> Hindrance | None:
        """Return None where the events cannot be read, which is logged once."""
        try:
            if pod.hindrance is None:
                events = await self._cluster.events_about(pod.namespace, uid=pod.uid)
                return hindrance_in_events(pod.name, pod.template_hash, events)
            kind = "PersistentVolumeClaim"
            events = [
                each
                for name in pod.claims[:MAX_LOOKS]
                for each in await self._cluster.events_about(pod.namespace, kind=kind, name=name)
            ]
            return hindrance_in_claim(pod.hindrance, events)
        except ApiError as error:
            if not self._has_told:
                _log.warning("events cannot be read, so some reasons why pods wait are not known: %s", error)
                self._has_told = True
            return None
