"""The observed starts that the controller stores in ConfigMaps; it reads a ConfigMap again before each write, so edits survive."""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.api.base import Document
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget import Budget, Calibration, GpuAtStart, ObservedStart, Origin, StartState
from kvgate.calibration.keeping import (
    MAX_TICKS,
    SALTS,
    SHARDS,
    Store,
    is_frozen,
    next_revision,
    shard_name,
    shard_of,
    with_start,
)
from kvgate.calibration.observed import (
    SAME_GPU_PERCENT,
    gpu_at_start,
    impossible_text,
    start_of_blocks,
    start_of_bytes,
    unused_text,
    unused_texts,
)
from kvgate.calibration.records import Records
from kvgate.calibration.trust import Trust, image_repository
from kvgate.cluster.client import CONFIG_MAPS, Cluster
from kvgate.cluster.errors import ApiError, Conflict
from kvgate.controller.pods import NodeFacts, Nodes
from kvgate.judgement.assessment import Assessment
from kvgate.rendering.observation import Crash, RunningEngine
from kvgate.rendering.workload import CONTAINER, VLLM_ALONE
from kvgate.runtime.background import Troubles
from kvgate.sources.startup_log import UnusableLog, read_startup_log

KEY = "starts.jsonl"
MAX_ATTEMPTS = 3
"""Writes of one start; each begins with a fresh read."""
FROZEN_BY = "kvgate calibrate freeze"

SAME_SHARE = 0.0005
"""Difference of two gpu_memory_utilization that counts as none."""

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
    """The starts that this process knows and that its ConfigMaps store; without a ConfigMap they last until the process ends."""

    def __init__(
        self, config_map: ConfigMapName | None, trust: Trust = VLLM_ALONE, *, clock: Callable[[], float] = time.time,
        salt: int | None = None, nodes: Nodes | None = None,
    ) -> None:  # fmt: skip
        """`config_map` is the one of older releases; the names of the shards begin with its name. Without `nodes` no node is read."""
        self._nodes = nodes
        self._place = config_map
        self._trust = trust
        self._clock = clock
        self._salt = secrets.randbelow(SALTS) if salt is None else salt
        self._store = Store()
        self._texts: dict[str, str] = {}
        """Texts of the ConfigMaps by name, as they were read last."""
        self._shown: tuple[object, object] = ((), ())
        self._logged: frozenset[str] = frozenset()
        self._highest = 0
        """The highest revision that was ever seen. Somebody may delete or restore records, and no number may be used twice."""
        self._turn = asyncio.Lock()
        """Held from the read of a ConfigMap to its write, because reconciles run side by side."""
        self.calibration: Calibration = trust.calibration(())
        self.states = self._count_states()
        """Number of starts in each state, the unreadable ones included; every scrape reads it."""

    def count(self, state: str) -> int:
        return self.states[state]

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(f"ConfigMap {self._place_of(number)}, key {KEY}, {text}" for number, text in self._store.problems)

    def note_revision(self, revision: object) -> None:
        """Remember that a verdict names this revision: a number in a status is never given to another start."""
        if type(revision) is int and revision <= MAX_TICKS * SALTS:
            self._highest = max(self._highest, revision)

    def _place_of(self, number: int | None) -> ConfigMapName | None:
        """Return the ConfigMap of a shard, the old one where there is no number; None where the starts last until the process ends."""
        if self._place is None or number is None:
            return self._place
        return replace(self._place, name=shard_name(self._place.name, number))

    def _count_states(self) -> dict[str, int]:
        found = Counter(self.calibration.state(start) for start in self.calibration.starts)
        return {
            **{state.value: found[state] for state in StartState},
            "untrusted": len(self._store.starts) - found.total(),
            "unreadable": len(self.problems),
        }

    async def load(self, cluster: Cluster) -> None:
        """Read all ConfigMaps. Raises ApiError."""
        if self._place is None:
            return
        async with self._turn:
            await asyncio.gather(*(self._read(cluster, number) for number in (None, *range(SHARDS))))
            self._show()

    async def try_load(
        self, cluster: Cluster, troubles: Troubles, *, loop: str, running: Mapping[tuple[str, str], frozenset[str]] = {},
    ) -> None:  # fmt: skip
        """Read the ConfigMaps, and mark what has expired; where that fails, note it and keep the starts: every resync tries again."""
        try:
            await self.load(cluster)
            await self.expire(cluster, running)
        except Exception as error:  # noqa: BLE001 - verdicts that stand need no observed starts, so the work goes on
            troubles.note(loop, error, about="the observed starts", expected=ApiError)

    async def _read(self, cluster: Cluster, number: int | None) -> str | None:
        """Read one ConfigMap, the old one where there is no number, and return its version; None where it is missing."""
        place = self._place_of(number)
        if place is None:
            return None
        found = await cluster.find(CONFIG_MAPS, place.namespace, place.name)
        text = ((found or {}).get("data") or {}).get(KEY, "")
        if text != self._texts.get(place.name, ""):
            self._texts[place.name] = text
            self._store = self._store.with_text(number, text)
        version = (found or {}).get("metadata", {}).get("resourceVersion")
        return str(version) if version else None

    async def learn(
        self, cluster: Cluster, owner: InferenceDeployment, assessment: Assessment, seen: RunningEngine | Crash
    ) -> str:
        """Learn from a start of this object, and return what `add` returns.

        Nothing is learnt where the size of the KV cache was set by hand or could not be predicted.
        """
        budget = assessment.effective
        source = f"{owner.namespace}/{owner.name}, {datetime.now(UTC):%Y-%m-%d}"
        if budget is None or (start := _start(budget, seen, source)) is None:
            return ""
        distrust = (
            self._trust.distrust(seen.declared_image, seen.image)
            or _other_share(budget, seen)
            or impossible_text(start)
        )
        if distrust:
            return distrust
        image = image_repository(seen.image) + "@" + seen.image.rpartition("@")[2]
        node = await self._nodes.of(cluster, seen.node) if self._nodes else NodeFacts()
        known = catalogue.find_accelerator(node.product) if node.product else None
        least, judged = 100 - SAME_GPU_PERCENT, budget.request.accelerator.memory_bytes  # a slice has less memory
        if known and known.name != start.key.accelerator and 100 * judged >= least * known.memory_bytes:
            return (
                f"node {seen.node} has {node.product}, which is no {start.key.accelerator}: the start teaches nothing"
            )
        start = replace(
            start, origin=Origin.POD, namespace=owner.namespace, owner=owner.name, pod=seen.pod, node=seen.node, image=image,
            driver=node.driver, product=node.product, gpu_at_start=GpuAtStart.SHARED if node.is_shared else GpuAtStart.UNKNOWN,
        )  # fmt: skip
        known_starts = self._store.starts_of(shard_of(start.namespace))
        is_news = with_start(known_starts, start) is not known_starts  # else its log is not worth a request
        if isinstance(seen, RunningEngine) and is_news:
            start = await _with_log(cluster, budget, start)
        return await self.add(cluster, start)

    async def add(self, cluster: Cluster, start: ObservedStart) -> str:
        """Store a start, unless the same is known. Returns the reason why it is not used or not stored, or "".

        Another controller may write the same ConfigMap while leadership changes: then it is read again.
        """
        async with self._turn:
            for attempt in range(MAX_ATTEMPTS):
                try:
                    return await self._add(cluster, start)
                except Conflict:
                    if attempt == MAX_ATTEMPTS - 1:
                        raise
        return ""

    async def _add(self, cluster: Cluster, start: ObservedStart) -> str:
        number = shard_of(start.namespace)
        await self._read(cluster, None)
        version = await self._read(cluster, number)
        self._show()
        known, before = self._store.shards.get(number, Records()), self._store.starts_of(number)
        if is_frozen(start, self._store.frozen):
            return f"not stored: somebody has frozen what is learnt ({FROZEN_BY}); `kvgate calibrate thaw` ends that"
        if known.problems:
            return f"not stored: ConfigMap {self._place_of(number)}, key {KEY}, {known.problems[0]}"
        revision = next_revision(max(self._highest, self._store.highest), self._clock(), self._salt)
        starts = with_start(before, start, revision=revision)
        if starts is not before:
            self._highest = revision
            await self._write(cluster, number, version, starts)
        return self.trouble_of(start)

    async def _write(
        self, cluster: Cluster, number: int, version: str | None, starts: tuple[ObservedStart, ...]
    ) -> None:
        """Write the starts of a shard whose ConfigMap had this version. Raises Conflict where somebody else has written it."""
        text = self._store.text_of(number, starts, self._store.shards.get(number, Records()).frozen)
        if (place := self._place_of(number)) is not None:
            body = place.manifest(data={KEY: text})
            if version:
                body["metadata"]["resourceVersion"] = version
            await cluster.apply(CONFIG_MAPS, body)
            self._texts[place.name] = text
        self._store = self._store.with_text(number, text)
        self._show()

    async def expire(self, cluster: Cluster, running: Mapping[tuple[str, str], frozenset[str]]) -> None:
        """Mark the starts whose image, driver or node is no longer what runs: they vouch for nothing any more.

        `running` has the digests of the images that each object's pods run; an object without any is not judged by its image. Raises
        ApiError.
        """
        gone = [start for start in self._store.starts if await self._is_gone(cluster, start, running)]
        revisions = {start.revision for start in gone}
        for number in {shard_of(start.namespace) for start in gone}:
            async with self._turn:
                version = await self._read(cluster, number)
                if not self._store.shards.get(number, Records()).problems:
                    starts = self._store.starts_of(number)
                    marked = (
                        replace(start, is_expired=True) if start.revision in revisions else start for start in starts
                    )
                    await self._write(cluster, number, version, tuple(marked))

    async def _is_gone(
        self, cluster: Cluster, start: ObservedStart, running: Mapping[tuple[str, str], frozenset[str]]
    ) -> bool:
        if start.witness is None or start.is_expired:
            return False
        if (images := running.get(start.witness)) and start.image_digest not in images:
            return True
        node = await self._nodes.of(cluster, start.node) if self._nodes else NodeFacts()
        changed = ((start.driver, node.driver), (start.product, node.product))
        return node.is_gone or any(was and now and was != now for was, now in changed)

    def trouble_of(self, start: ObservedStart) -> str:
        """Return the reason why starts of the same setting in its namespace are not used; empty where they are."""
        alike = (
            known for known in self.calibration.starts if (known.key, known.namespace) == (start.key, start.namespace)
        )
        return next(filter(None, (unused_text(self.calibration, known) for known in alike)), "")

    def _show(self) -> None:
        """Make what was read the calibration that verdicts use; the same object where nothing changed."""
        starts = self._store.starts
        self._highest = max(self._highest, self._store.highest)
        if (starts, self.problems) == self._shown:
            return
        self._shown = (starts, self.problems)
        self.calibration = self._trust.calibration(starts)
        self.states = self._count_states()
        problems = frozenset((*self.problems, *unused_texts(self.calibration)))
        for text in sorted(problems - self._logged):
            _log.warning("calibration: %s", text)
        self._logged = problems


def _other_share(budget: Budget, seen: RunningEngine | Crash) -> str:
    """Return why a start is not one of the setting that was predicted; empty where nothing shows that."""
    runs = seen.reading.gpu_memory_utilization if isinstance(seen, RunningEngine) else None
    predicted = float(budget.resolved.gpu_memory_utilization)
    if runs is None or abs(runs - predicted) < SAME_SHARE:
        return ""
    return f"vLLM runs with gpu_memory_utilization {runs:g}, and {predicted:g} was predicted: the start teaches nothing"


def _start(budget: Budget, seen: RunningEngine | Crash, source: str) -> ObservedStart | None:
    """Read a start. A refused one reports the bytes that it would have had, but of several pipeline stages not which one's they are."""
    if isinstance(seen, RunningEngine) and seen.reading.is_size_given:
        return None
    if isinstance(seen, RunningEngine):
        blocks, size = seen.reading.num_gpu_blocks, seen.reading.block_size
        return start_of_blocks(budget, blocks, block_size=size, source=source)
    if seen.available_kv_cache_bytes is None or budget.request.settings.parallelism.pipeline > 1:
        return None
    source = f"{source} (refused to start)"
    return start_of_bytes(budget, seen.available_kv_cache_bytes, source=source, is_refused=True)


async def _with_log(cluster: Cluster, budget: Budget, start: ObservedStart) -> ObservedStart:
    """Add what the beginning of the engine's log shows about the GPU and the compile cache; nothing where it cannot be read.

    A log may hold prompts: nothing else of it is kept.
    """
    try:
        text = await cluster.log_of_start(start.namespace, start.pod, CONTAINER)
        log = await asyncio.to_thread(read_startup_log, text)
    except (ApiError, UnusableLog):
        return start
    occupied = gpu_at_start(budget, ((rank.total_bytes, rank.free_bytes) for rank in log.ranks))
    return replace(
        start,
        gpu_at_start=GpuAtStart.SHARED if start.gpu_at_start is GpuAtStart.SHARED else occupied,
        compile_cache=log.circumstances.get("compile_cache", ""),
        circumstances=tuple(sorted({**dict(start.circumstances), **log.circumstances}.items())),
    )
