"""The process: probes, metrics and the Lease in the main thread's loop, kopf in a thread of its own.

Nothing is watched or written before the Lease is held, and the gate that it opens stands before every request that writes.
"""

import asyncio
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import kopf
from prometheus_client import CollectorRegistry

from kvgate.calibration.records import Trust
from kvgate.cluster import leases
from kvgate.cluster.client import DEPLOYMENTS, INFERENCE_DEPLOYMENTS, PODS, SERVICES, Cluster
from kvgate.cluster.connection import load_configuration, watch_session
from kvgate.cluster.errors import ApiError, Forbidden, NotFound
from kvgate.cluster.events import EventRecorder, instance_name
from kvgate.cluster.leases import Claim, Leases
from kvgate.controller.handlers import operator_settings, registry_of
from kvgate.controller.health import Health
from kvgate.controller.judging import JudgeWorkers, judging_pool
from kvgate.controller.leadership import RENEW_SECONDS, Elector, Gate, LeaseLost
from kvgate.controller.memory import Memory
from kvgate.controller.observe import Observer, ScrapeInstruments, Scraper
from kvgate.controller.pods import KnownPods
from kvgate.controller.reconcile import ReconcileInstruments, Reconciler
from kvgate.controller.schedule import Resync, WorkQueue
from kvgate.controller.starts import ConfigMapName, ObservedStarts
from kvgate.metrics import registry as metrics
from kvgate.metrics.endpoint import endpoint_app
from kvgate.metrics.exporter import DeploymentSnapshot, counter, gauge, histogram, new_registry
from kvgate.metrics.listener import listen
from kvgate.rendering.pod import VLLM_ALONE
from kvgate.runtime.background import Troubles, repeat

BEAT_SECONDS = 1.0
STOP_SECONDS = 18.0
"""Seconds in which kopf's thread must end; the pod has 30."""
LOST_STOP_SECONDS = 3.0
"""The same where the Lease is lost: it may write nothing any more, and the process must make room."""

_log = logging.getLogger(__name__)


class CannotStart(Exception):
    """The cluster is not prepared for us; the message says what to do."""


class ThreadDied(Exception):
    """kopf's thread ended by itself: nothing reconciles any more, and the process must not look alive."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of the command."""

    metrics_host: str
    metrics_port: int
    kubeconfig: str | None = None
    namespaces: Sequence[str] = ()
    """Empty: the whole cluster."""
    resync_seconds: float = 300.0
    observe_seconds: float = 15.0
    calibration: ConfigMapName | None = None
    """Place of the observed starts."""
    trust: Trust = VLLM_ALONE
    """Rule about whose starts teach."""
    lease_namespace: str = leases.NAMESPACE
    instance: str = ""
    """The installation that this process belongs to; empty: this machine's name."""


@dataclass(kw_only=True)
class Process:
    """State that both threads share."""

    options: Options
    registry: CollectorRegistry = field(default_factory=new_registry)
    stop: threading.Event = field(default_factory=threading.Event)
    died: bool = False
    """kopf's thread ended although nobody had asked it to."""

    def __post_init__(self) -> None:
        self.gate = Gate()
        self.health = Health(resync_seconds=self.options.resync_seconds)
        self.deployments = DeploymentSnapshot()
        self.starts = ObservedStarts(self.options.calibration, self.options.trust)
        known = gauge(metrics.CALIBRATION_STARTS, self.registry)
        for state in self.starts.states:
            known.labels(state).set_function(partial(self._num_starts, state))
        self.requests = counter(metrics.API_REQUESTS, self.registry)
        errors = counter(metrics.BACKGROUND_ERRORS, self.registry)
        self.troubles = Troubles(lambda loop: errors.labels(loop).inc())
        gauge(metrics.LEADER, self.registry).set_function(self.gate.is_open)
        self.lag = gauge(metrics.EVENT_LOOP_LAG, self.registry)
        self.instruments = ReconcileInstruments(
            results=counter(metrics.RECONCILES, self.registry),
            durations=histogram(metrics.RECONCILE_DURATION, self.registry),
        )
        self.scrapes = ScrapeInstruments(
            results=counter(metrics.POD_SCRAPES, self.registry),
            durations=histogram(metrics.POD_SCRAPE_DURATION, self.registry),
        )

    def _num_starts(self, state: str) -> int:
        return self.starts.states[state]

    def observe(self, verb: str, code: str) -> None:
        """Every request of either client; the client libraries are thread-safe here."""
        self.requests.labels(verb, code).inc()


async def run(options: Options, stopped: asyncio.Event) -> None:
    """Until `stopped`. Raises CannotStart, LeaseLost, ThreadDied, NoConfiguration, OSError for a port that is taken."""
    process = Process(options=options)
    configuration = await load_configuration(options.kubeconfig)
    app = endpoint_app(
        process.registry, livez=process.health.livez, readyz=process.health.readyz, deployments=process.deployments
    )
    runner = await listen(app, options.metrics_host, options.metrics_port)
    _log.info("listening", extra={"fields": {"metrics_port": runner.addresses[0][1]}})
    try:
        async with Cluster(configuration, process.observe) as cluster:
            elector = Elector(Leases(cluster, options.lease_namespace), _claim(options), process.gate)
            if await _wait_for_cluster(cluster, process, stopped):
                await _lead(cluster, elector, process, stopped)
    finally:
        await runner.cleanup()
    _log.info("stopped")


def _claim(options: Options) -> Claim:
    machine = socket.gethostname()
    holder = f"{machine}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
    return Claim.of(options.namespaces, holder=holder, instance=options.instance or machine)


async def _lead(cluster: Cluster, elector: Elector, process: Process, stopped: asyncio.Event) -> None:
    """Wait for the Lease, work while it is held, and give it back once nothing can be written any more."""
    try:
        if await _wait_for_lease(elector, process, stopped):
            await _load_starts(cluster, process)
            await _work(elector, process, stopped)
    finally:
        await elector.release()


async def _load_starts(cluster: Cluster, process: Process) -> None:
    """Observed starts that cannot be read keep nobody from working: every resync reads them again, and what stands needs none."""
    try:
        await process.starts.load(cluster)
    except Exception as error:  # noqa: BLE001 - see above
        process.troubles.note("start", error, about="the observed starts", expected=ApiError)


async def _wait_for_cluster(cluster: Cluster, process: Process, stopped: asyncio.Event) -> bool:
    """Until all that is watched can be listed; False where we were told to stop first."""
    pause_seconds = 1.0
    while not stopped.is_set():
        try:
            await _check(cluster, process.options.namespaces)
        except ApiError as error:
            process.health.trouble = str(error)
            hint = "; the controller's role lacks a rule" if isinstance(error, Forbidden) else ""
            fields = {"verb": error.verb, "resource": error.resource}
            _log.error("cannot work yet: %s%s", error, hint, extra={"fields": fields})
        else:
            process.health.answered()
            return True
        await _pause(pause_seconds, stopped)
        pause_seconds = min(pause_seconds * 2, 30.0)
    return False


async def _wait_for_lease(elector: Elector, process: Process, stopped: asyncio.Event) -> bool:
    """Until it is held; False where we were told to stop first. Each holder that it waits for is logged once."""
    told = ""
    while not stopped.is_set():
        pause_seconds = RENEW_SECONDS
        try:
            rival = await elector.take()
        except ApiError as error:
            is_standby, reason, subject = False, f"cannot take the Lease: {error}{_lease_hint(error)}", str(error)
        else:
            if rival is None:
                process.health.answered()
                return True
            is_standby, reason, subject = elector.is_replica(rival), elector.describe(rival), rival.holder
            pause_seconds = elector.pause_seconds(rival)
        process.health.wait(reason, is_standby=is_standby)
        if subject != told:
            told = subject
            _log.warning("%s", reason)
        await _pause(pause_seconds, stopped)
    return False


def _lease_hint(error: ApiError) -> str:
    if not isinstance(error, Forbidden):
        return ""
    return (
        "; the role lacks a rule: list, create and update leases there, or name another namespace by --lease-namespace"
    )


async def _check(cluster: Cluster, namespaces: Sequence[str]) -> None:
    for namespace in namespaces or (None,):
        for kind in (INFERENCE_DEPLOYMENTS, DEPLOYMENTS, SERVICES, PODS):
            try:
                await cluster.probe(kind, namespace)
            except NotFound as error:
                raise CannotStart(
                    f"the cluster does not know {kind.resource}: install the CustomResourceDefinition of kvgate first"
                ) from error


async def _work(elector: Elector, process: Process, stopped: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    thread = threading.Thread(
        target=_thread, args=(process, lambda: loop.call_soon_threadsafe(stopped.set)), name="kopf", daemon=True
    )
    process.health.begin()
    thread.start()
    _log.info("working", extra={"fields": {"namespaces": list(process.options.namespaces) or "all"}})
    keeping = asyncio.create_task(_keep(elector, process))
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait((keeping, stopping), return_when=asyncio.FIRST_COMPLETED)
    process.stop.set()
    stopping.cancel()
    patience_seconds = LOST_STOP_SECONDS if keeping.done() else STOP_SECONDS
    await asyncio.to_thread(thread.join, patience_seconds)  # the Lease is held until the thread has ended
    if thread.is_alive():
        elector.abandon()
        _log.error("kopf's thread did not end within %g s", patience_seconds)
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping
    if process.died:
        raise ThreadDied("kopf's thread has ended by itself; see the log above")


async def _keep(elector: Elector, process: Process) -> None:
    """Confirm the Lease for ever. Raises LeaseLost; a request that fails is tried again, and the gate shuts by itself."""
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        try:
            await elector.confirm()
        except ApiError as error:
            process.health.trouble = f"the Lease cannot be confirmed: {error}"
        except LeaseLost:
            raise
        except Exception as error:  # noqa: BLE001 - a defect must not end the process: meanwhile the gate shuts by itself
            process.health.trouble = "the Lease cannot be read; see the log"
            process.troubles.note("lease", error)
        else:
            process.health.answered()


async def _pause(seconds: float, stopped: asyncio.Event) -> None:
    """Sleep, or return early when the process must stop."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopped.wait()


def _thread(process: Process, on_end: Callable[[], object]) -> None:
    try:
        asyncio.run(_operate(process))
    except Exception:  # noqa: BLE001 - the main thread must hear of whatever it is
        if not process.stop.is_set():  # told to stop amid its start, kopf finds its connections closed
            _log.exception("kopf's thread has failed")
    process.died = not process.stop.is_set()
    on_end()


async def _operate(process: Process) -> None:
    """kopf and the background tasks, in a loop of their own: kopf cancels every task in its loop when it ends."""
    options, configuration = process.options, await load_configuration(process.options.kubeconfig)
    asyncio.get_running_loop().set_exception_handler(partial(_unless_stopping, process))
    may_write = process.gate.is_open
    pool, pods = judging_pool(), KnownPods()
    memory = Memory(process.deployments, process.starts, JudgeWorkers(pool, process.starts))
    beat = asyncio.create_task(_beat(process, memory))  # from now on: the workers start for a while
    async with (
        pool,
        Cluster(configuration, process.observe, may_write=may_write) as cluster,
        Scraper(process.scrapes) as scraper,
    ):
        recorder = EventRecorder(cluster, instance=instance_name())
        learn = partial(process.starts.learn, cluster)
        reconciler = Reconciler(cluster, recorder, memory, process.instruments, on_start=learn)
        queue = WorkQueue(reconciler, resync_seconds=options.resync_seconds, troubles=process.troubles)
        reconciler.aside = queue.aside
        resync = Resync(
            connect=lambda: Cluster(configuration, process.observe, may_write=may_write),
            namespaces=options.namespaces, reconciler=reconciler, queue=queue, memory=memory, starts=process.starts,
            troubles=process.troubles,
        )  # fmt: skip
        observer = Observer(
            cluster=cluster,
            namespaces=options.namespaces,
            pods=pods,
            scrape=scraper,
            memory=memory,
            enqueue=queue.enqueue,
            troubles=process.troubles,
        )
        tasks = [
            beat,
            asyncio.create_task(observer.run_forever(options.observe_seconds)),
            asyncio.create_task(resync.run_forever(options.resync_seconds, process.health.resynced)),
        ]
        try:
            await kopf.operator(
                registry=registry_of(queue, memory, pods, _login(process), process.troubles),
                settings=operator_settings(),
                clusterwide=not options.namespaces,
                namespaces=options.namespaces,
                standalone=True,
                stop_flag=process.stop,
            )
        finally:
            queue.close()
            for task in tasks:
                task.cancel()


def _unless_stopping(process: Process, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report errors of tasks that kopf leaves behind, unless the process stops, as in _thread."""
    if not process.stop.is_set():
        loop.default_exception_handler(context)


async def _beat(process: Process, memory: Memory) -> None:
    clock = asyncio.get_running_loop().time
    due = clock()

    async def beat() -> None:
        nonlocal due
        process.lag.set(max(0.0, clock() - due))
        due = clock() + BEAT_SECONDS
        process.health.beat()
        memory.publish()

    await repeat("beat", beat, interval_seconds=BEAT_SECONDS, troubles=process.troubles)


def _login(process: Process) -> Callable[..., object]:
    async def login(**_: object) -> kopf.AiohttpSession:
        """Read anew each time: kopf asks again after a 401, and tokens are renewed in files."""
        configuration = await load_configuration(process.options.kubeconfig)
        session = await watch_session(configuration, process.observe, may_write=process.gate.is_open)
        return kopf.AiohttpSession(server=configuration.host, aiohttp_session=session)

    return login
