"""The observed starts that the controller stores in a ConfigMap; it reads the ConfigMap again before each write, so edits survive."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from kvgate.api.base import Document
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget import Budget, Calibration, ObservedStart, Origin, StartState
from kvgate.calibration.keeping import with_start
from kvgate.calibration.observed import start_of_blocks, start_of_bytes, unused_text, unused_texts
from kvgate.calibration.records import Records, read_records, write_records
from kvgate.calibration.trust import Trust, image_repository
from kvgate.cluster.client import CONFIG_MAPS, Cluster
from kvgate.cluster.errors import ApiError
from kvgate.judge.assess import Assessment
from kvgate.rendering.observation import Crash, RunningEngine
from kvgate.rendering.pod import VLLM_ALONE
from kvgate.runtime.background import Troubles

KEY = "starts.jsonl"
"""Key in the ConfigMap's data."""

_log = logging.getLogger(__name__)


class ConfigMapName(Struct, frozen=True, kw_only=True):
    """A ConfigMap that the controller writes, by its namespace and name."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "ConfigMapName":
        """Read `NAMESPACE/NAME`. Raises ValueError."""
        namespace, slash, name = text.partition("/")
        if not (namespace and slash and name) or "/" in name:
            raise ValueError(
                f"{text!r} is not NAMESPACE/NAME of a ConfigMap; give one such as kvgate-system/kvgate-calibration"
            )
        return cls(namespace=namespace, name=name)

    def manifest(self, **content: Mapping[str, str]) -> Document:
        """Return the object with kvgate's label; `content` is its `data`."""
        labels = {"app.kubernetes.io/managed-by": "kvgate"}
        metadata = {"name": self.name, "namespace": self.namespace, "labels": labels}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **content}

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ObservedStarts:
    """The starts that this process knows and that its ConfigMap stores; without a ConfigMap they last until the process ends."""

    def __init__(
        self, config_map: ConfigMapName | None, trust: Trust = VLLM_ALONE, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._config_map = config_map
        self._trust = trust
        self._clock = clock
        self._records = Records()
        self._logged: frozenset[str] = frozenset()
        self._text = ""
        self._highest = 0
        """The highest revision that was ever seen. Somebody may delete or restore records, and no number may be used twice."""
        self._turn = asyncio.Lock()
        """Held from the read of the ConfigMap to its write, because reconciles run side by side."""
        self.calibration: Calibration = trust.calibration(())
        self.states = self._count_states()
        """Number of starts in each state, the unreadable ones included; every scrape reads it."""

    def count(self, state: str) -> int:
        """Return the number of starts in this state now."""
        return self.states[state]

    @property
    def problems(self) -> tuple[str, ...]:
        """The lines of the ConfigMap that cannot be read, each with its problem."""
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

    async def try_load(self, cluster: Cluster, troubles: Troubles, *, loop: str) -> None:
        """Read the ConfigMap; where that fails, note it and keep the starts as they were: every resync tries again."""
        try:
            await self.load(cluster)
        except Exception as error:  # noqa: BLE001 - verdicts that stand need no observed starts, so the work goes on
            troubles.note(loop, error, about="the observed starts", expected=ApiError)

    async def _load(self, cluster: Cluster) -> None:
        if self._config_map is None:
            return
        found = await cluster.find(CONFIG_MAPS, self._config_map.namespace, self._config_map.name)
        text = ((found or {}).get("data") or {}).get(KEY, "")
        if text != self._text:
            self._text = text
            self._show(read_records(text))

    async def learn(
        self, cluster: Cluster, owner: InferenceDeployment, assessment: Assessment, seen: RunningEngine | Crash
    ) -> str:
        """Learn from a start of this object, and return what `add` returns.

        Nothing is learnt where the size of the KV cache was set by hand or could not be predicted.
        """
        budget = assessment.effective
        source = f"{owner.namespace}/{owner.name}, {datetime.now(UTC):%Y-%m-%d}"
        start = _start(budget, seen, source) if budget else None
        if start is None:
            return ""
        distrust = self._trust.distrust(seen.declared_image, seen.image)
        if distrust:
            return distrust
        image = image_repository(seen.image) + "@" + seen.image.rpartition("@")[2]
        start = replace(
            start, origin=Origin.POD, namespace=owner.namespace, owner=owner.name, pod=seen.pod, image=image
        )
        return await self.add(cluster, start)

    async def add(self, cluster: Cluster, start: ObservedStart) -> str:
        """Store a start, unless the same is known. Returns the reason why it is not used or not stored, or ""."""
        async with self._turn:
            await self._load(cluster)
            revision = max(int(self._clock() * 1000), self._highest + 1)  # it grows even where the records are gone
            starts = with_start(self._records.starts, start, revision=revision)
            if self.problems:
                return f"not stored: ConfigMap {self._config_map}, key {KEY}, {self.problems[0]}"
            if starts is not self._records.starts:
                text = write_records(starts)
                if self._config_map is not None:
                    await cluster.apply(CONFIG_MAPS, self._config_map.manifest(data={KEY: text}))
                    self._text = text
                self._show(Records(starts=starts))
            return self.trouble_of(start)

    def trouble_of(self, start: ObservedStart) -> str:
        """Return the reason why starts of the same setting in its namespace are not used; empty where they are."""
        alike = (
            known for known in self.calibration.starts if (known.key, known.namespace) == (start.key, start.namespace)
        )
        return next(filter(None, (unused_text(self.calibration, known) for known in alike)), "")

    def _show(self, records: Records) -> None:
        self._records, self.calibration = records, self._trust.calibration(records.starts)
        self._highest = max(self._highest, *(start.revision for start in records.starts), 0)
        self.states = self._count_states()
        problems = frozenset((*records.problems, *unused_texts(self.calibration)))
        for text in sorted(problems - self._logged):
            _log.warning("calibration: %s", text)
        self._logged = problems


def _start(budget: Budget, seen: RunningEngine | Crash, source: str) -> ObservedStart | None:
    """Read a start. A refused one reports the bytes that it would have had, but of several pipeline stages not which one's they are."""
    if isinstance(seen, RunningEngine) and seen.reading.is_size_given:
        return None
    if isinstance(seen, RunningEngine):
        blocks, size = seen.reading.num_gpu_blocks, seen.reading.block_size
        return start_of_blocks(budget, blocks, block_size=size, source=source)
    if seen.available_kv_cache_bytes is None or budget.request.settings.parallelism.pipeline > 1:
        return None
    return start_of_bytes(budget, seen.available_kv_cache_bytes, source=f"{source} (refused to start)")
