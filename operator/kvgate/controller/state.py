"""State that the two threads of the controller share: its options, its health, its gate and its metrics."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec import Struct
from prometheus_client import CollectorRegistry

from kvgate.api.allowed import NOTHING_ALLOWED, AllowedPods
from kvgate.calibration.trust import Trust
from kvgate.cluster import leases
from kvgate.controller.leadership import Gate
from kvgate.controller.model_store import ModelStore
from kvgate.controller.observe import ScrapeInstruments
from kvgate.controller.pace import MAX_REPLACING, Pace, Progress
from kvgate.controller.pods import Nodes
from kvgate.controller.reconcile import ReconcileInstruments
from kvgate.controller.resolving import ResolvingInstruments
from kvgate.controller.starts import ConfigMapName, ObservedStarts
from kvgate.metrics import registry as metrics
from kvgate.metrics.exporter import DeploymentSnapshot, counter, gauge, new_registry
from kvgate.rendering.workload import VLLM_ALONE
from kvgate.runtime.background import Troubles
from kvgate.runtime.service import OtlpOptions

MAX_LAG_SECONDS = 10.0
"""Time without a beat of the working thread's event loop after which something blocks it."""
RESOLVE_SECONDS = 60.0
"""Time for which an object is held back while its model is fetched."""
MAX_SILENCE_SECONDS = 30.0
"""Time without an answer of the API server after which the process is not ready."""


class ControllerOptions(Struct, frozen=True, kw_only=True):
    metrics_host: str
    metrics_port: int
    kubeconfig: str | None = None
    namespaces: Sequence[str] = ()
    """Empty: the whole cluster."""
    resync_seconds: float = 300.0
    observe_seconds: float = 15.0
    calibration_map: ConfigMapName | None = None
    trust: Trust = VLLM_ALONE
    read_nodes: bool = False
    audit: bool = False
    """True where a refusal is reported, and what would be refused runs."""
    max_skip_days: int = 0
    watch_nodes: bool = False
    models_map: ConfigMapName | None = None
    """ConfigMap of the fetched models; None where the hub is asked for nothing."""
    resolve_seconds: float = RESOLVE_SECONDS
    allowed: AllowedPods = NOTHING_ALLOWED
    """Parts of pods that the administrator allows."""
    max_replacing: int = MAX_REPLACING
    """Engines that load at a time where pods are replaced that nobody edited."""
    pass_labels: Sequence[str] = ()
    pass_annotations: Sequence[str] = ()
    lease_namespace: str = leases.NAMESPACE
    instance: str = ""
    """The installation that this process belongs to; empty: the name of the machine."""
    webhook_secret: tuple[str, str] | None = None
    """Namespace and name of the Secret of the webhook's certificate; None where kvgate does not make it."""
    webhook_configuration: str = ""
    """Name of the ValidatingWebhookConfiguration that gets its CA."""
    otlp: OtlpOptions | None = None
    """Receiver of the metrics; None where nothing is pushed."""


@dataclass(kw_only=True)
class Health:
    """Answers of the probes. Either thread writes it with single assignments, so it needs no lock.

    Alive means that the event loop turns and the resync comes round; ready means that the API server answers. A replica that waits for
    another one of its own installation is ready, or a rollout would wait for it for ever. One that waits for another installation is
    not ready: that is a mistake that somebody must see.
    """

    resync_seconds: float
    clock: Callable[[], float] = time.monotonic
    is_working: bool = False
    beat_at: float = 0.0
    resynced_at: float = 0.0
    answered_at: float | None = None
    answers_since: float = 0.0
    """The first answer after the last outage; the resync is not held to a time in which nobody answered."""
    trouble: str = "starting"
    """Reason why the process is not ready: the error of the start, or of the last confirmation of the Lease."""
    is_standby: bool = False
    """True while it waits for a replica of its own installation."""

    def begin(self) -> None:
        self.beat_at = self.resynced_at = self.clock()
        self.is_working = True

    def wait(self, reason: str, *, is_standby: bool) -> None:
        self.trouble, self.is_standby = reason, is_standby

    def beat(self) -> None:
        self.beat_at = self.clock()

    def resynced(self) -> None:
        self.resynced_at = self.clock()

    def answered(self) -> None:
        now = self.clock()
        if not self._answers(now):
            self.answers_since = now
        self.answered_at = now

    def livez(self) -> tuple[bool, str]:
        """A process that waits for the API server is alive: a restart would not help it."""
        now = self.clock()
        if not self.is_working:
            return True, "not working yet"
        if now - self.beat_at > MAX_LAG_SECONDS:
            return False, f"the event loop has not turned for {now - self.beat_at:.0f} s"
        waited_seconds = (self.answered_at or 0.0) - max(self.resynced_at, self.answers_since)
        if waited_seconds > 3 * self.resync_seconds + MAX_SILENCE_SECONDS:
            return False, f"no resync for {waited_seconds:.0f} s although the API server answers"
        return True, "ok"

    def readyz(self) -> tuple[bool, str]:
        if not self.is_working:
            return self.is_standby, self.trouble
        return (True, "ok") if self._answers(self.clock()) else (False, self.trouble)

    def _answers(self, now: float) -> bool:
        return self.answered_at is not None and now - self.answered_at <= MAX_SILENCE_SECONDS


@dataclass(kw_only=True)
class Process:
    options: ControllerOptions
    registry: CollectorRegistry = field(default_factory=new_registry)
    stop: threading.Event = field(default_factory=threading.Event)
    died: bool = False
    """True where the working thread ended although nobody had requested that."""

    def __post_init__(self) -> None:
        self.gate = Gate()
        self.health = Health(resync_seconds=self.options.resync_seconds)
        self.deployments = DeploymentSnapshot()
        self.starts = ObservedStarts(
            self.options.calibration_map, self.options.trust, nodes=Nodes() if self.options.read_nodes else None
        )
        self.models = ModelStore(self.options.models_map)
        known = gauge(metrics.CALIBRATION_STARTS, self.registry)
        for state in self.starts.states:
            known.labels(state).set_function(partial(self.starts.count, state))
        self.requests = counter(metrics.API_REQUESTS, self.registry)
        errors = counter(metrics.BACKGROUND_ERRORS, self.registry)
        self.troubles = Troubles(lambda loop: errors.labels(loop).inc())
        lease = leases.Claim.of(self.options.namespaces, holder="", instance="").lease
        self.leader = gauge(metrics.LEADER, self.registry).labels(lease)
        self.queue_depth = gauge(metrics.QUEUE_DEPTH, self.registry)
        self.pace = Pace(self.options.max_replacing)
        replacements = gauge(metrics.REPLACEMENTS, self.registry)
        for progress in Progress:
            replacements.labels(progress).set_function(partial(self.pace.count, progress))
        self.lag = gauge(metrics.EVENT_LOOP_LAG, self.registry)
        self.instruments = ReconcileInstruments.registered(self.registry)
        self.resolving = ResolvingInstruments.registered(self.registry)
        self.scrapes = ScrapeInstruments.registered(self.registry)

    def count_request(self, verb: str, code: str) -> None:
        """Count a request of either client; prometheus_client's counters are thread-safe."""
        self.requests.labels(verb, code).inc()
