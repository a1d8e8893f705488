"""The background task that asks running vLLM: its capacity becomes status, its usage a metric."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kvgate.api.conditions import Reason
from kvgate.cluster.client import Cluster
from kvgate.cluster.errors import ApiError
from kvgate.controller.crash_logs import CrashLogs
from kvgate.controller.crashes import crash_of
from kvgate.controller.pods import Pod, PodStore
from kvgate.controller.scrape import Scrape, Scraper, ScrapeResult
from kvgate.controller.store import Key, Store
from kvgate.rendering.observation import Engine, Observation, Trouble
from kvgate.rendering.pod import PORT
from kvgate.runtime.background import Troubles, repeat
from kvgate.vllm.metric_names import EngineReading

TELL_AFTER = 2
"""The same trouble so often in a row stands in a condition: one lost answer is no news."""
RELIST_SECONDS = 300.0

_log = logging.getLogger(__name__)

_WORDS = {
    ScrapeResult.TIMEOUT: (Reason.SCRAPE_TIMED_OUT, "it may be overloaded: see its CPU and its log"),
    ScrapeResult.UNREACHABLE: (
        Reason.POD_UNREACHABLE,
        f"let kvgate's controller in on port {PORT} (NetworkPolicy, mesh)",
    ),
    ScrapeResult.HTTP_ERROR: (Reason.SCRAPE_REFUSED, "spec.vllm.image must serve vLLM's /metrics without a login"),
    ScrapeResult.TOO_LARGE: (Reason.ANSWER_TOO_LARGE, "is spec.vllm.image vLLM's?"),
    ScrapeResult.NOT_VLLM: (Reason.NOT_VLLM, "remove --disable-log-stats, or set an image that runs vLLM"),
    ScrapeResult.UNREADABLE: (Reason.METRICS_UNREADABLE, "is spec.vllm.version the release of the image?"),
}
"""The reason of the condition, and what to do."""


@dataclass(kw_only=True, slots=True)
class _Asked:
    """Answers of one container so far; its capacity cannot change while it lives."""

    reading: EngineReading | None = None
    trouble: Trouble | None = None
    last: ScrapeResult | None = None
    streak: int = 0
    logged: set[ScrapeResult] = field(default_factory=set)


class Observer:
    """Asks the ready pods of Deployments that are ours by uid."""

    def __init__(
        self, *, cluster: Cluster, namespaces: Sequence[str], pods: PodStore, scrape: Scraper, store: Store,
        enqueue: Callable[[Key], None], troubles: Troubles,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._pods = pods
        self._scrape = scrape
        self._store = store
        self._enqueue = enqueue
        self._troubles = troubles
        self._logs = CrashLogs(cluster)
        self._asked: dict[tuple[str, int], _Asked] = {}
        """Answers by the pod's uid and its restarts."""

    async def run_forever(self, interval_seconds: float) -> None:
        """Every few minutes the pods are listed as well: what a broken watch did not tell."""
        clock, listed_at = asyncio.get_running_loop().time, float("-inf")

        async def round_() -> None:
            nonlocal listed_at
            if clock() - listed_at > RELIST_SECONDS:
                await self._pods.relist(self._cluster, self._namespaces)
                listed_at = clock()
            await self.run_once()

        await repeat(
            "observe", round_, interval_seconds=interval_seconds, troubles=self._troubles, spread=0.1, expected=ApiError
        )

    async def run_once(self) -> None:
        """One round: ask, remember, and reconcile those of whom something new was learnt."""
        keys, owners = self._store.keys(), self._store.deployments()  # who comes during the round waits for the next
        owned = await self._pods.by_deployment(self._cluster)
        by_key = {owners[uid]: pods for uid, pods in owned.items() if uid in owners}
        ready = [pod for pods in by_key.values() for pod in pods if pod.is_ready]
        scrapes = await asyncio.gather(*(self._scraped(pod) for pod in ready))
        self._asked = {_identity(pod): self._asked.get(_identity(pod), _Asked()) for pod in ready}
        for pod, scrape in zip(ready, scrapes, strict=True):
            if scrape is not None:
                self._note(pod, scrape)
        await self._logs.read(pod for pods in by_key.values() for pod in pods)
        seen = {key: self._seen(key, by_key.get(key, ())) for key in keys}
        for key in self._store.observe({key: found for key, found in seen.items() if found is not None}):
            self._enqueue(key)

    async def _scraped(self, pod: Pod) -> Scrape | None:
        """None where the answer of this one pod is more than the scraper was made for: the others are read all the same."""
        try:
            return await self._scrape(pod.ip)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is of this pod
            self._troubles.note("observe", error, about=f"pod {pod.namespace}/{pod.name}")
            return None

    def _seen(self, key: Key, pods: Sequence[Pod]) -> Observation | None:
        """None where what was said before stays, because the pods say what cannot be understood."""
        try:
            return self._observation(pods)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is of this object's pods
            self._troubles.note("observe", error, about="/".join(key))
            return None

    def _note(self, pod: Pod, scrape: Scrape) -> None:
        asked = self._asked[_identity(pod)]
        asked.streak = asked.streak + 1 if scrape.result is asked.last else 1
        asked.last = scrape.result
        if scrape.reading is not None:
            asked.reading, asked.trouble = scrape.reading, None
            return
        if asked.reading is not None:
            asked.reading = replace(asked.reading, usage_ratio=None)
        reason, remedy = _WORDS[scrape.result]
        if asked.streak >= TELL_AFTER and (asked.trouble is None or asked.trouble.reason is not reason):
            asked.trouble = Trouble(pod=pod.name, reason=reason, message=f"{scrape.trouble}; {remedy}")
        if scrape.result not in asked.logged:
            asked.logged.add(scrape.result)
            fields = {"namespace": pod.namespace, "pod": pod.name, "result": scrape.result.value}
            _log.warning("pod %s/%s %s", pod.namespace, pod.name, scrape.trouble, extra={"fields": fields})

    def _observation(self, pods: Sequence[Pod]) -> Observation | None:
        """None where a pod may still be understood the next time: until then, what was said stays."""
        asked = [(pod, self._asked[_identity(pod)]) for pod in pods if pod.is_ready]
        if any(found.reading is None and found.trouble is None for _, found in asked):
            return None
        return Observation(
            engines=tuple(
                Engine(
                    pod=pod.name,
                    template_hash=pod.template_hash,
                    reading=found.reading,
                    declared_image=pod.declared_image,
                    image=pod.image,
                )
                for pod, found in asked
                if found.reading is not None
            ),
            troubles=tuple(found.trouble for _, found in asked if found.trouble is not None),
            crashes=tuple(crash for pod in pods if (crash := crash_of(pod, self._logs.cause(pod))) is not None),
        )


def _identity(pod: Pod) -> tuple[str, int]:
    return pod.uid, pod.restarts
