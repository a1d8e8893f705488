"""The background task that reads the metrics of running vLLM: the capacity becomes status, the usage a metric.

A read is bounded in time and bytes, because anything may answer at a pod's address.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self, TypeVar

import aiohttp
from msgspec import Struct
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter, Histogram
from yarl import URL

from kvgate.api.conditions import Reason
from kvgate.cluster.client import USER_AGENT, Cluster
from kvgate.cluster.errors import ApiError
from kvgate.controller.crashes import CrashLogs, crash_of
from kvgate.controller.decision import Key
from kvgate.controller.memory import Memory
from kvgate.controller.pod_events import PodEvents
from kvgate.controller.pods import KnownPods, Pod
from kvgate.metrics import exporter, registry
from kvgate.rendering.observation import Observation, PodTrouble, RunningEngine, ToldLength
from kvgate.rendering.workload import PORT
from kvgate.runtime.background import Troubles, repeat
from kvgate.sources.engine_metrics import (
    CutMetrics,
    NotAnEngine,
    UnknownNames,
    UnreadableMetrics,
    read_engine,
    read_max_model_len,
)
from kvgate.vllm.metric_names import EngineReading

TIMEOUT_SECONDS = 2.0
"""Time from the start of the connection to the last byte."""
MAX_BYTES = 1 << 20
"""Largest answer that is read; vLLM 0.32 sends 160 KB."""
MAX_CONCURRENT = 64
"""Pods that are read at the same time. With 500 pods that hang, a round takes 16 s."""
_CHUNK_BYTES = 1 << 16
_HEADERS = {
    "Accept-Encoding": "identity",  # and nothing is ever decompressed: a small answer stays small
    "User-Agent": USER_AGENT,
}
_OPEN_METRICS = "application/openmetrics-text"
_JSON = "application/json"
_TYPES = ("text/plain", _OPEN_METRICS)
_ACCEPTED = {_TYPES: "text/plain;version=0.0.4", (_JSON,): _JSON}
_Read = TypeVar("_Read")


class ScrapeResult(StrEnum):
    """Result of a scrape; the values of the label `result`."""

    READ = "read"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    HTTP_ERROR = "http_error"
    TOO_LARGE = "too_large"
    CUT = "cut"
    NOT_VLLM = "not_vllm"
    UNKNOWN_NAMES = "unknown_names"
    UNREADABLE = "unreadable"
    CHANGED = "changed"


_UNREAD: dict[type[Exception], ScrapeResult] = {
    NotAnEngine: ScrapeResult.NOT_VLLM,
    UnknownNames: ScrapeResult.UNKNOWN_NAMES,
    CutMetrics: ScrapeResult.CUT,
}


class Scrape(Struct, frozen=True, kw_only=True):
    """A reading, or what was wrong; with unknown names and with a changed capacity, both."""

    result: ScrapeResult
    reading: EngineReading | None = None
    trouble: str = ""
    """Completes `pod NAME …`. The same trouble has the same words each time, so that the status is written once."""
    http_status: int | None = None
    """Status of an answer that is none of 200."""


class ScrapeInstruments(Struct, frozen=True, kw_only=True):
    results: Counter
    durations: Histogram

    @classmethod
    def registered(cls, into: CollectorRegistry) -> "ScrapeInstruments":
        return cls(
            results=exporter.counter(registry.POD_SCRAPES, into),
            durations=exporter.histogram(registry.POD_SCRAPE_DURATION, into),
        )


class Scraper:
    """Sends one GET of `/metrics` per pod, in one event loop. No redirect is followed, no proxy used, no cookie or connection kept."""

    def __init__(self, instruments: ScrapeInstruments, *, port: int = PORT) -> None:
        self._instruments = instruments
        self._port = port
        self._turn = asyncio.Semaphore(MAX_CONCURRENT)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            headers=_HEADERS, auto_decompress=False, trust_env=False,
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def __call__(self, ip: str, known: EngineReading | None = None) -> Scrape:
        """Read one pod, of which `known` was read before; whatever the server does becomes a result and never an exception."""
        async with self._turn:
            with self._instruments.durations.time():
                scrape = await self._scrape(ip, known)
        self._instruments.results.labels(scrape.result).inc()
        return scrape

    async def length(self, ip: str) -> int | Scrape:
        """Read the longest request that a pod serves, or what is wrong with its answer."""
        async with self._turn:
            return await self._asked(ip, "/v1/models", (_JSON,), lambda body, _: read_max_model_len(body))

    async def _scrape(self, ip: str, known: EngineReading | None) -> Scrape:
        reading = await self._asked(
            ip, "/metrics", _TYPES, lambda body, kind: read_engine(body, is_open_metrics=kind == _OPEN_METRICS)
        )
        if isinstance(reading, Scrape):
            return reading
        if known is not None and reading != known:
            trouble = "reports another capacity than before, and its container did not restart"
            return Scrape(result=ScrapeResult.CHANGED, reading=reading, trouble=trouble)
        if reading.missing:
            trouble = f"has unknown metrics of vLLM, and no known one for {', '.join(reading.missing)}"
            return Scrape(result=ScrapeResult.UNKNOWN_NAMES, reading=reading, trouble=trouble)
        return Scrape(result=ScrapeResult.READ, reading=reading)

    async def _asked(
        self, ip: str, path: str, types: tuple[str, ...], read: Callable[[bytes, str], _Read]
    ) -> _Read | Scrape:
        """Return what `read` makes of the body and its type, or what is wrong with the answer."""
        try:
            return await self._get(URL.build(scheme="http", host=ip, port=self._port, path=path), types, read)
        except (NotAnEngine, UnreadableMetrics) as error:
            return Scrape(result=_UNREAD.get(type(error), ScrapeResult.UNREADABLE), trouble=str(error))
        except aiohttp.ClientPayloadError:
            return Scrape(result=ScrapeResult.CUT, trouble="closes the connection inside the answer")
        except TimeoutError:
            return Scrape(result=ScrapeResult.TIMEOUT, trouble=f"does not answer within {TIMEOUT_SECONDS:g} s")
        except (aiohttp.ClientOSError, aiohttp.ServerConnectionError, OSError) as error:
            number = getattr(error, "errno", None)  # the system's words for it stay the same from scrape to scrape
            reason = os.strerror(number).lower() if number else "the connection was closed"
            return Scrape(result=ScrapeResult.UNREACHABLE, trouble=f"cannot be reached: {reason}")
        except (aiohttp.ClientError, ValueError) as error:
            return Scrape(result=ScrapeResult.HTTP_ERROR, trouble=f"does not answer in HTTP: {type(error).__name__}")

    async def _get(self, url: URL, types: tuple[str, ...], read: Callable[[bytes, str], _Read]) -> _Read | Scrape:
        """Return what the body says. An answer that is too large is left at the first byte too many, which closes its connection."""
        async with self._session.get(url, headers={"Accept": _ACCEPTED[types]}, allow_redirects=False) as response:
            if response.status != 200:
                trouble = f"answers HTTP {response.status}"
                return Scrape(result=ScrapeResult.HTTP_ERROR, trouble=trouble, http_status=response.status)
            if response.content_type not in types:
                trouble = f"answers {response.content_type!r:.80} instead of {types[0]}"
                return Scrape(result=ScrapeResult.NOT_VLLM, trouble=trouble)
            if response.headers.get("Content-Encoding", "identity") != "identity":
                trouble = "sends a compressed answer, which kvgate did not request"
                return Scrape(result=ScrapeResult.UNREADABLE, trouble=trouble)
            body = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                body += chunk
                if len(body) > MAX_BYTES:
                    return Scrape(result=ScrapeResult.TOO_LARGE, trouble=f"answers more than {MAX_BYTES >> 20} MiB")
            return read(bytes(body), response.content_type)


REPORT_AFTER = 2
"""Number of times that the same trouble must occur in a row before a condition reports it; one lost answer is normal."""
MOST_LEFT_OUT = 8
"""Answers that a pod may owe before it is read less often: one round later each time, and in the end two minutes apart."""
SETTLED_AFTER = 20
"""Number of times in a row that a container must report the same other capacity, before it replaces the first: five minutes."""
RELIST_SECONDS = 300.0

_log = logging.getLogger(__name__)

_WORDS = {
    ScrapeResult.TIMEOUT: (Reason.SCRAPE_TIMED_OUT, "it may be overloaded: look at its CPU usage and its log"),
    ScrapeResult.UNREACHABLE: (
        Reason.POD_UNREACHABLE,
        f"allow kvgate's controller to connect to port {PORT} (NetworkPolicy, service mesh)",
    ),
    ScrapeResult.HTTP_ERROR: (
        Reason.SCRAPE_REFUSED,
        "the image in spec.vllm.image must serve vLLM's /metrics without a login",
    ),
    ScrapeResult.TOO_LARGE: (Reason.ANSWER_TOO_LARGE, "check that spec.vllm.image runs vLLM"),
    ScrapeResult.NOT_VLLM: (
        Reason.NOT_VLLM,
        "remove --disable-log-stats, or set spec.vllm.image to an image that runs vLLM",
    ),
    ScrapeResult.CUT: (
        Reason.ANSWER_CUT,
        f"check the proxy or service mesh in front of port {PORT}",
    ),
    ScrapeResult.UNKNOWN_NAMES: (
        Reason.RELEASE_UNKNOWN,
        "update kvgate, or run a release of vLLM that it knows: alerts and dashboards miss these figures",
    ),
    ScrapeResult.CHANGED: (
        Reason.CAPACITY_CHANGES,
        "kvgate goes on with the first one until the other has stayed for five minutes: check that spec.vllm.image runs vLLM",
    ),
    ScrapeResult.UNREADABLE: (Reason.METRICS_UNREADABLE, "check that spec.vllm.version is the release in the image"),
}
"""Reason of the condition for each result, and what to do."""
_NO_ANSWER = (ScrapeResult.TIMEOUT, ScrapeResult.UNREACHABLE, ScrapeResult.CUT)


@dataclass(kw_only=True, slots=True)
class _Answers:
    """Answers of one container so far; its capacity does not change while it runs."""

    reading: EngineReading | None = None
    other: EngineReading | None = None
    """A capacity that it reported later, as the last one of this kind."""
    repeats: int = 0
    """Number of times in a row that the other capacity was the same."""
    trouble: PodTrouble | None = None
    last: ScrapeResult | None = None
    streak: int = 0
    left_out: int = 0
    """Rounds that pass before the container is read again."""
    logged: set[ScrapeResult] = field(default_factory=set)
    length: int | Scrape | None = None
    """Longest request that it serves, which does not change either, or what was wrong when it was asked."""

    @property
    def is_length_settled(self) -> bool:
        """True where asking again would bring nothing else."""
        return isinstance(self.length, int) or (self.length is not None and self.length.result not in _NO_ANSWER)

    def is_due(self) -> bool:
        """Return True where the container is read in this round."""
        self.left_out = max(0, self.left_out - 1)
        return self.left_out == 0

    def settled(self, scrape: Scrape) -> Scrape:
        """Return the scrape without its capacity, unless that has stayed long enough to take the place of the first one."""
        if scrape.result is not ScrapeResult.CHANGED:
            self.other = None
            return scrape
        self.repeats = self.repeats + 1 if scrape.reading == self.other else 1
        self.other = scrape.reading
        if self.repeats < SETTLED_AFTER:
            return replace(scrape, reading=None)
        return Scrape(result=ScrapeResult.READ, reading=scrape.reading)


class Observer:
    """Reads the ready pods of Deployments that are ours by their uid."""

    def __init__(
        self, *, cluster: Cluster, namespaces: Sequence[str], pods: KnownPods, scrape: Scraper,
        length: Callable[[str], Awaitable[int | Scrape]], memory: Memory,
        enqueue: Callable[[Key], None], troubles: Troubles,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._pods = pods
        self._scrape, self._length = scrape, length
        self._memory = memory
        self._enqueue = enqueue
        self._troubles = troubles
        self._logs = CrashLogs(cluster)
        self._events = PodEvents(cluster)
        self._owners = frozenset[str]()
        """Uids of our Deployments at the last look."""
        self._untold = frozenset[Key]()
        """Objects whose pods' hindrances changed before any run has seen the object: after a start the watch begins those runs."""
        self._round = asyncio.Lock()
        self.has_begun = asyncio.Event()
        """Set once it is known why pods are not ready, or that this cannot be known now."""
        self._answers: dict[tuple[str, int], _Answers] = {}
        """Answers by the pod's uid and its restarts."""

    async def run_forever(self, interval_seconds: float) -> None:
        """Observe for ever. Every few minutes the pods are listed as well, to find what a broken watch did not report."""
        clock, listed_at = asyncio.get_running_loop().time, float("-inf")

        async def round_() -> None:
            nonlocal listed_at
            try:
                if clock() - listed_at > RELIST_SECONDS:
                    await self._pods.relist(self._cluster, self._namespaces)
                    listed_at = clock()
                if not self.has_begun.is_set():
                    await self.look_at_hindrances()
            finally:
                self.has_begun.set()
            await self.run_once()

        await repeat(
            "observe", round_, interval_seconds=interval_seconds, troubles=self._troubles, spread=0.1, expected=ApiError
        )

    async def run_hindrances_forever(self) -> None:
        """Whenever the watch reports that a pod's hindrance changed, reconcile the objects that it concerns, a second later at most."""

        async def look() -> None:
            await self._pods.hindered.wait()
            self._pods.hindered.clear()
            try:
                await self.look_at_hindrances()
            except ApiError:
                self._pods.hindered.set()
                raise

        await repeat("hindrances", look, interval_seconds=1.0, troubles=self._troubles, expected=ApiError)

    async def run_events_forever(self) -> None:
        """Once a second, look for pods that wait without a word, or that came before their object was known to own their Deployment."""
        await repeat("events", self.look_at_events, interval_seconds=1.0, troubles=self._troubles, expected=ApiError)

    async def look_at_events(self) -> None:
        if (owners := frozenset(self._memory.deployments())) != self._owners:
            self._owners = owners
            self._pods.hindered.set()
        owned = await self._owned() if self._pods.quiet else {}
        if await self._events.look(pod for pods in owned.values() for pod in pods if pod.is_quiet):
            self._pods.hindered.set()

    async def look_at_hindrances(self) -> None:
        """Keep why pods are not ready, and where an engine ended, read why at once."""
        ended, owned = frozenset(self._pods.ended_anew), await self._owned()
        found = {
            key: [each for each in map(self._events.hindrance, pods) if each is not None] for key, pods in owned.items()
        }
        self._untold = (self._untold | frozenset(self._memory.hinder(found))) & owned.keys()
        for key in (told := self._untold & self._memory.keys()):
            self._enqueue(key)
        self._untold -= told
        crashed = self._memory.crashed()
        news = ((key, pods) for key, pods in owned.items() if ended or key in crashed)
        if concerned := {key for key, pods in news if self._is_news(pods, ended, crashed.get(key, frozenset()))}:
            await self.run_once(concerned)
        self._pods.ended_anew -= {uid for uid in ended if not self._is_due(uid, owned)}
        if self._pods.ended_anew:
            self._pods.hindered.set()

    @staticmethod
    def _is_news(pods: Sequence[Pod], ended: Collection[str], crashed: Collection[str]) -> bool:
        """Return True where an engine ended, or where one that has crashed is gone or ready."""
        still = {pod.name for pod in pods if pod.ended and not pod.is_ready}
        return any(pod.uid in ended for pod in pods) or not still.issuperset(crashed)

    def _is_due(self, uid: str, owned: Mapping[Key, Sequence[Pod]]) -> bool:
        return any(pod.uid == uid and self._logs.is_due(pod) for pods in owned.values() for pod in pods)

    async def _owned(self) -> dict[Key, list[Pod]]:
        """Return the pods of Deployments that are ours by their uid."""
        owners = self._memory.deployments()
        by_deployment = await self._pods.by_deployment(self._cluster)
        return {owners[uid]: pods for uid, pods in by_deployment.items() if uid in owners}

    async def run_once(self, only: Collection[Key] | None = None) -> None:
        """Run one round: read the pods, remember the answers, and reconcile the objects about which something new was learnt.

        `only` limits the round to the pods of these objects.
        """
        async with self._round:
            keys = self._memory.keys()  # an object that comes during the round waits
            by_key = await self._owned()
            self._memory.see_pods(
                {key: tuple(pod.sample for pod in by_key.get(key, ()) if not pod.is_over) for key in keys}
            )
            ready = [pod for pods in by_key.values() for pod in pods if pod.is_ready]
            self._answers = {_identity(pod): self._answers.get(_identity(pod), _Answers()) for pod in ready}
            keys = keys if only is None else keys & frozenset(only)
            await self._scrape_all([pod for key in keys for pod in by_key.get(key, ()) if pod.is_ready])
            await self._logs.read(pod for pods in by_key.values() for pod in pods)
            seen: dict[Key, Observation] = {}
            for key in keys:
                try:
                    found = self._observation(key, by_key.get(key, ()))
                except Exception as error:  # noqa: BLE001 - whatever it is, it is about this object's pods
                    self._troubles.note("observe", error, about="/".join(key))
                else:
                    seen |= {} if found is None else {key: found}
            for key in self._memory.observe(seen):
                self._enqueue(key)

    async def _scrape_all(self, ready: Sequence[Pod]) -> None:
        pods = [pod for pod in ready if self._answers[_identity(pod)].is_due()]
        asked = await asyncio.gather(*map(self._ask, pods), return_exceptions=True)
        for pod, scrape in zip(pods, asked, strict=True):
            if isinstance(scrape, Scrape):
                self._note(pod, scrape)
            elif isinstance(
                scrape, Exception
            ):  # whatever it is, it is of this pod, and the others are read all the same
                self._troubles.note("observe", scrape, about=f"pod {pod.namespace}/{pod.name}")

    async def _ask(self, pod: Pod) -> Scrape:
        """Read a pod, and the longest request that it serves until that is known."""
        answer = self._answers[_identity(pod)]
        scrape = await self._scrape(pod.ip, answer.reading)
        if not answer.is_length_settled and scrape.result not in _NO_ANSWER:
            answer.length = await self._length(pod.ip)
        return scrape

    def _note(self, pod: Pod, scrape: Scrape) -> None:
        answer = self._answers[_identity(pod)]
        scrape = answer.settled(scrape)
        answer.streak = answer.streak + 1 if scrape.result is answer.last else 1
        answer.last = scrape.result
        answer.left_out = min(answer.streak - MOST_LEFT_OUT, MOST_LEFT_OUT) if scrape.result in _NO_ANSWER else 0
        if scrape.result is ScrapeResult.READ:
            answer.reading, answer.trouble = scrape.reading, None
            return
        if scrape.reading is not None:
            answer.reading = scrape.reading
        elif answer.reading is not None:
            answer.reading = replace(answer.reading, usage_ratio=None)
        reason, remedy = _WORDS[scrape.result]
        if answer.streak >= REPORT_AFTER and (answer.trouble is None or answer.trouble.reason is not reason):
            answer.trouble = PodTrouble(pod=pod.name, reason=reason, message=f"{scrape.trouble}; {remedy}")
        if scrape.result not in answer.logged:
            answer.logged.add(scrape.result)
            fields = {"namespace": pod.namespace, "pod": pod.name, "result": scrape.result.value}
            _log.warning("pod %s/%s %s", pod.namespace, pod.name, scrape.trouble, extra={"fields": fields})

    def _observation(self, key: Key, pods: Sequence[Pod]) -> Observation | None:
        """Return what these pods report. While a ready pod has given neither a reading nor a trouble, only the crashes are new."""
        answers = [(pod, self._answers[_identity(pod)]) for pod in pods if pod.is_ready]
        crashes = tuple(
            crash
            for pod in pods
            if not self._logs.is_due(pod) and (crash := crash_of(pod, self._logs.cause(pod))) is not None
        )
        if any(found.reading is None and found.trouble is None for _, found in answers):
            known = self._memory.observation(key) or Observation()
            return replace(known, crashes=crashes) if crashes != known.crashes else None
        return Observation(
            engines=tuple(
                RunningEngine(
                    pod=pod.name,
                    template_hash=pod.template_hash,
                    reading=found.reading,
                    declared_image=pod.declared_image,
                    image=pod.image,
                    node=pod.node,
                )
                for pod, found in answers
                if found.reading is not None
            ),
            lengths=tuple(_told(pod.name, found.length) for pod, found in answers if found.length is not None),
            troubles=tuple(found.trouble for _, found in answers if found.trouble is not None),
            crashes=crashes,
        )


_LOCKED = (401, 403)
_NO_KEY = "wants the API key of the engine at /v1/models, and kvgate never reads one: compare max_model_len in the pod's log yourself"


def _told(pod: str, length: int | Scrape) -> ToldLength:
    if isinstance(length, int):
        return ToldLength(pod=pod, tokens=length)
    if length.http_status in _LOCKED:
        return ToldLength(pod=pod, reason=Reason.API_KEY_REQUIRED, message=_NO_KEY)
    return ToldLength(pod=pod, reason=Reason.LENGTH_NOT_TOLD, message=f"{length.trouble}, asked for /v1/models")


def _identity(pod: Pod) -> tuple[str, int]:
    return pod.uid, pod.restarts
