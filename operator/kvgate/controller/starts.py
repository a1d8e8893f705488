"""The observed starts that the controller keeps in a ConfigMap: read again before every write, so that edits by people survive."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from kvgate.api.base import Document
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget.calibration import Calibration, ObservedStart, Origin, StartState
from kvgate.budget.plan import Budget
from kvgate.calibration.records import (
    Records,
    Trust,
    read_records,
    repository_of,
    start_of_blocks,
    start_of_bytes,
    unused_text,
    unused_texts,
    with_start,
    write_records,
)
from kvgate.cluster.client import CONFIG_MAPS, Cluster
from kvgate.judge.assess import Assessment
from kvgate.rendering.observation import Crash, RunningEngine
from kvgate.rendering.pod import VLLM_ALONE

KEY = "starts.jsonl"
"""Key in the ConfigMap's data."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigMapName:
    """Place of the ConfigMap."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "ConfigMapName":
        """`NAMESPACE/NAME`; raises ValueError."""
        namespace, slash, name = text.partition("/")
        if not (namespace and slash and name) or "/" in name:
            raise ValueError(f"{text!r} is no NAMESPACE/NAME of a ConfigMap, such as kvgate-system/kvgate-calibration")
        return cls(namespace=namespace, name=name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ObservedStarts:
    """Starts that are known in this process and in the ConfigMap; without a place, only until the process ends."""

    def __init__(
        self, place: ConfigMapName | None, trust: Trust = VLLM_ALONE, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._place = place
        self._trust = trust
        self._clock = clock
        self._records = Records()
        self._told: frozenset[str] = frozenset()
        self._text = ""
        self._highest = 0
        """The highest revision that was ever seen: records may be deleted or rewound, and no number may come again."""
        self._turn = asyncio.Lock()
        """Held from reading the ConfigMap to writing it, because reconciles run side by side."""
        self.calibration: Calibration = trust.calibration(())
        self.states = self._count_states()
        """Number of starts in every state, unreadable ones included; every scrape reads it."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems of the ConfigMap's text, each with its line."""
        return self._records.problems

    def _count_states(self) -> dict[str, int]:
        found = [self.calibration.state(start) for start in self.calibration.starts]
        return {
            **{state.value: found.count(state) for state in StartState},
            "untrusted": len(self._records.starts) - len(found),
            "unreadable": len(self.problems),
        }

    async def load(self, cluster: Cluster) -> None:
        """Read the ConfigMap. Raises ApiError."""
        async with self._turn:
            await self._load(cluster)

    async def _load(self, cluster: Cluster) -> None:
        if self._place is None:
            return
        found = await cluster.find(CONFIG_MAPS, self._place.namespace, self._place.name)
        text = ((found or {}).get("data") or {}).get(KEY, "")
        if text != self._text:
            self._text = text
            self._show(read_records(text))

    async def learn(
        self, cluster: Cluster, owner: InferenceDeployment, assessment: Assessment, seen: RunningEngine | Crash
    ) -> str:
        """Learn from a pod of this object, with the answer of `add`; nothing where the cache was given by hand or not predicted."""
        budget = assessment.effective
        source = f"{owner.namespace}/{owner.name}, {datetime.now(UTC):%Y-%m-%d}"
        start = _start(budget, seen, source) if budget else None
        if start is None:
            return ""
        distrust = self._trust.distrust(seen.declared_image, seen.image)
        if distrust:
            return distrust
        whose: Document = {"namespace": owner.namespace, "owner": owner.name, "pod": seen.pod, "image": _named(seen)}
        return await self.add(cluster, replace(start, origin=Origin.POD, **whose))

    async def add(self, cluster: Cluster, start: ObservedStart) -> str:
        """Remember it, unless it says nothing new; in a few words why it is not used, or could not be kept."""
        async with self._turn:
            return await self._add(cluster, start)

    async def _add(self, cluster: Cluster, start: ObservedStart) -> str:
        await self._load(cluster)
        starts = with_start(self._records.starts, start, revision=self._next_revision())
        if self.problems:
            return f"not remembered: ConfigMap {self._place}, key {KEY}, {self.problems[0]}"
        if starts is not self._records.starts:
            text = write_records(starts)
            if self._place is not None:
                await cluster.apply(CONFIG_MAPS, _config_map(self._place, text))
                self._text = text
            self._show(Records(starts=starts))
        return self.trouble_of(start)

    def _next_revision(self) -> int:
        """The time in milliseconds, or one more than any that was seen: it grows even where the records are gone."""
        return max(int(self._clock() * 1000), self._highest + 1)

    def trouble_of(self, start: ObservedStart) -> str:
        """Return the reason why starts of its setting in its namespace are not used; empty where they are."""
        alike = (
            known for known in self.calibration.starts if (known.key, known.namespace) == (start.key, start.namespace)
        )
        return next(filter(None, (unused_text(self.calibration, known) for known in alike)), "")

    def _show(self, records: Records) -> None:
        self._records, self.calibration = records, self._trust.calibration(records.starts)
        self._highest = max(self._highest, *(start.revision for start in records.starts), 0)
        self.states = self._count_states()
        told = frozenset((*records.problems, *unused_texts(self.calibration)))
        for text in sorted(told - self._told):
            _log.warning("calibration: %s", text)
        self._told = told


def _named(seen: RunningEngine | Crash) -> str:
    """Repository and digest of what ran."""
    return repository_of(seen.image) + "@" + seen.image.rpartition("@")[2]


def _start(budget: Budget, seen: RunningEngine | Crash, source: str) -> ObservedStart | None:
    """A refused start tells the bytes that it would have had; of several pipeline stages not which one's they are."""
    if isinstance(seen, RunningEngine):
        blocks, size = seen.reading.num_gpu_blocks, seen.reading.block_size
        return start_of_blocks(budget, blocks, block_size=size, source=source)
    if seen.available_kv_cache_bytes is None or budget.request.settings.parallelism.pipeline > 1:
        return None
    return start_of_bytes(budget, seen.available_kv_cache_bytes, source=f"{source} (refused to start)")


def _config_map(place: ConfigMapName, text: str) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": place.name,
            "namespace": place.namespace,
            "labels": {"app.kubernetes.io/managed-by": "kvgate"},
        },
        "data": {KEY: text},
    }
