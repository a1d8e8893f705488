"""A fleet to look at: the samples of deploy/ in kvgate's own exporter, beside fake vLLMs of several releases, in a Prometheus.

    with monitored(ensure_prometheus("3")) as fleet:
        fleet.prometheus.query("kvgate_leader")

It is no cluster: pods are addresses on the loopback with the labels that Kubernetes would give them, of which the shipped scrape
configuration makes what it makes of real ones. One deployment is refused, one mispredicted, one unknown, one runs vLLM 0.8.5
with the names of its time; and one vLLM belongs to nobody.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from controlplane import prometheus
from controlplane.programs import free_ports, wait_until
from controlplane.prometheus import Prometheus
from fleet import discovered_pods
from fleet.discovered_pods import engine_pod, kvgate_pod
from fleet.fake_dcgm import Gpu, serving_gpus
from fleet.fake_vllm import Engine, Replay, serving
from fleet.pace import faster
from kvgate.api.conditions import ConditionType, Reason
from kvgate.api.validation import parse_document
from kvgate.cluster import leases
from kvgate.judgement.assess import assess
from kvgate.judgement.assessment import Assessment, Decision
from kvgate.judgement.facts import ConfigMissing, gather
from kvgate.judgement.summary import accepted
from kvgate.metrics import registry
from kvgate.metrics.exporter import DeploymentSnapshot, Samples, counter, endpoint_app, gauge, histogram, new_registry
from kvgate.metrics.listener import listen
from kvgate.metrics.samples import DeploymentSample, ObservedSample, PodSample, RolloutSample, sample_of
from kvgate.rendering.workload import load_budget_seconds
from kvgate.statement.deployment import statement_of
from mixin.alerts import rule_groups
from mixin.scraping import ENGINES, KVGATE, OTHER_ENGINES, scrape_configuration
from pictures.grafana import Window

SAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "samples"
NAMESPACE = "serving"
DRIFTING = "qwen3-8b"
PREDICTION_ERRORS = {DRIFTING: -0.14, "llama-3-1-70b": -0.034}
USUAL_ERROR = 0.003
RELEASES = {"qwen3-8b": "0.8.5", "llama-3-1-70b": "0.10.2"}
"""Releases of vLLM, where they are not the recorded one."""
PACES = {"llama-3-1-70b": 0.2, "qwen3-32b": 0.5, "qwen3-6-27b": 0.85}
"""Speeds of the recorded run; a slower one has less load at the end."""
OTHER = "chatbot"
"""An engine without an InferenceDeployment."""
REPLICAS = {"llama-3-1-8b": 2, OTHER: 2}
"""Replicas, where there are more than one, as in the manifest of the sample."""
SCRAPE_SECONDS = 0.5
PAST_THE_WORST = 45.0
"""Second of the recording: preemptions have been going on for a while."""
TICK_SECONDS = 0.1
QUIET_SECONDS = 8
PACE = 60
"""A minute of a rule is a second here."""
PARTS = {"llama-3-1-8b": frozenset({"adapters", "offloading", "transfers"})}
"""Optional parts of engines that the metrics of a deployment show."""
RESTARTED_SECONDS = 15
"""Second of the recording in which the last pod of each deployment of several has restarted, with a new template."""
STARTED_SECONDS = 1_795_000_000.0
"""Start of every pod, in seconds since 1970."""

_Target = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """Under pressure at the end of its window."""

    prometheus: Prometheus
    window: Window


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """A fake vLLM."""

    port: int
    replay: Replay


@contextmanager
def monitored(
    assets: Path, *, speed: float = 3, until_second: float = PAST_THE_WORST, is_busy: bool = True
) -> Iterator[Fleet]:
    """The block begins at this second of the recorded run; in a fleet that is not busy everything is ready, and nobody asks for "
    "anything."""
    samples = tuple(judged_samples())
    is_ready = (ConditionType.READY, "True")
    running = [sample.name for sample in samples if is_ready in {condition[:2] for condition in sample.conditions}]
    with ExitStack() as stack:
        pods = {
            name: [stack.enter_context(_pod_of(name)) for _ in range(REPLICAS.get(name, 1))]
            for name in (*running, OTHER)
        }
        ports = stack.enter_context(kvgate_processes(lambda: _published(samples, pods), is_busy=is_busy))
        dcgm = stack.enter_context(serving_gpus(lambda: _gpus(samples, pods)))
        targets = {
            KVGATE.name: [kvgate_pod(name, _address(port)).target() for name, port in ports.items()],
            ENGINES.name: [target for name in running for target in _targets(name, pods[name])],
            OTHER_ENGINES.name: [_other(pod.port) for pod in pods[OTHER]],
        }
        more = (
            _twice(running[0], pods[running[0]]),
            {"job_name": "dcgm", "static_configs": [{"targets": [_address(dcgm)]}]},
        )
        server = stack.enter_context(_prometheus(assets, targets, more))
        server.until(f"count(up == 1) == {sum(map(len, targets.values())) + len(pods[running[0]]) + 1}")
        start = time.time()
        if not is_busy:
            wait_until(lambda: time.time() > start + QUIET_SECONDS, "some quiet seconds are over", within_seconds=60)
            yield Fleet(
                prometheus=server, window=Window(start_seconds=start, end_seconds=time.time() - 2 * SCRAPE_SECONDS)
            )
            return
        _begin(pods, speed)
        wait_until(lambda: pods[OTHER][0].replay.seconds >= until_second, "the run is so far", within_seconds=120)
        yield Fleet(prometheus=server, window=Window(start_seconds=start, end_seconds=time.time() - 2 * SCRAPE_SECONDS))


def _begin(pods: Mapping[str, list[Pod]], speed: float) -> None:
    """No two pods of a deployment are equally busy."""
    for name, each in pods.items():
        for index, pod in enumerate(each):
            pod.replay.begin(speed=speed * PACES.get(name, 1) * (1 - 0.08 * index))


def _prometheus(assets: Path, targets: Mapping[str, list[_Target]], more: Iterable[Mapping[str, Any]]) -> Any:
    """Run a Prometheus with the shipped configuration and rules, at shorter intervals; alerts need seconds and not minutes."""
    often = f"{SCRAPE_SECONDS * 1000:g}ms"
    configuration = scrape_configuration(
        lambda job: {"static_configs": targets[job]}, interval=often, rule_files=("rules.yaml",)
    )
    configuration["scrape_configs"] += more
    groups = [{**group, "interval": often} for group in faster(rule_groups(), PACE)["groups"]]
    return prometheus.serving(
        assets, yaml.safe_dump(configuration), files={"rules.yaml": yaml.safe_dump({"groups": groups})}
    )


def _twice(name: str, pods: list[Pod]) -> Mapping[str, Any]:
    """A job of the user's own for pods that ours scrapes as well, without the label of their owner."""
    configs = [
        {"targets": [f"127.0.0.1:{pod.port}"], "labels": {"namespace": NAMESPACE, "pod": f"{name}-{index}"}}
        for index, pod in enumerate(pods)
    ]
    rules = [rule.fields() for rule in ENGINES.metric_relabelings]
    return {"job_name": "their-own", "static_configs": configs, "metric_relabel_configs": rules}


def judged_samples() -> Iterator[DeploymentSample]:
    """Return the samples of deploy/ with the conditions of a settled cluster."""
    for path in sorted(SAMPLES.glob("*.yaml")):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        document["metadata"].setdefault("namespace", NAMESPACE)
        deployment = parse_document(document)
        assessment = assess(deployment.spec, gather(statement_of(deployment.spec), _no_config))
        sample = sample_of(deployment, assessment, ())
        conditions = tuple(_conditions(sample.name, assessment))
        yield replace(sample, conditions=conditions, load_seconds=load_budget_seconds(assessment.effective))


def _no_config(_: object) -> ConfigMissing:
    return ConfigMissing(message="there is no cluster", remediation="")


def _conditions(name: str, assessment: Assessment) -> Iterator[tuple[str, str, str]]:
    """Return the conditions that the controller sets when everything has settled."""
    predicted = assessment.budget is not None and assessment.budget.tightest is not None
    refused, is_adjusted = assessment.decision is Decision.REFUSE, assessment.decision is Decision.ADMIT_ADJUSTED
    status, reason, _ = accepted(assessment)
    yield ConditionType.ACCEPTED, "Unknown" if status is None else str(status), reason
    yield ConditionType.PREDICTED, str(predicted), Reason.LEDGER_COMPUTED if predicted else reason
    yield ConditionType.ADJUSTED, str(is_adjusted), Reason.ADJUSTED if is_adjusted else Reason.AS_WRITTEN
    runs = predicted and not refused
    yield ConditionType.READY, str(runs), Reason.REPLICAS_READY if runs else Reason.NOT_RENDERED
    yield ConditionType.RECONCILING, "False", Reason.REPLICAS_READY if runs else Reason.NOT_RENDERED
    yield ConditionType.STALLED, str(refused), reason if refused else Reason.REPLICAS_READY
    if runs:
        yield ConditionType.OBSERVED, "True", Reason.CAPACITY_REPORTED
        is_off = name == DRIFTING
        yield (
            ConditionType.PREDICTION_DRIFT,
            str(is_off),
            Reason.CAPACITY_DIFFERS if is_off else Reason.WITHIN_TOLERANCE,
        )


@contextmanager
def _pod_of(name: str) -> Iterator[Pod]:
    (port,) = free_ports(1)
    engine = Engine(vllm_version=RELEASES.get(name, "0.33.0"), model_name=name, parts=PARTS.get(name, frozenset()))
    with serving(engine, ("127.0.0.1", port)) as replay:
        yield Pod(port=port, replay=replay)


def _address(port: int) -> str:
    return f"127.0.0.1:{port}"


def _targets(name: str, pods: list[Pod]) -> Iterator[_Target]:
    for index, pod in enumerate(pods):
        yield engine_pod(name, NAMESPACE, _address(pod.port), replica=index).target()


def _other(port: int) -> _Target:
    return discovered_pods.Pod(
        namespace="research", name=f"{OTHER}-{port}", address=_address(port), labels={"app": OTHER}
    ).target()


@contextmanager
def kvgate_processes(published: Callable[[], Samples], *, is_busy: bool = True) -> Iterator[dict[str, int]]:
    """kvgate's two processes: the real exporter and endpoint, busy with nothing real, or idle. Yields their ports."""
    loop, stop, ready = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    ports: dict[str, int] = {}

    async def serve() -> None:
        snapshot, registries = DeploymentSnapshot(), {"controller": new_registry(), "webhook": new_registry()}
        ticks = (_controller(registries["controller"]), _webhook(registries["webhook"]))
        runners = []
        for name, into in registries.items():
            app = endpoint_app(into, livez=_fine, readyz=_fine, deployments=snapshot if name == "controller" else None)
            runners.append(await listen(app, "127.0.0.1", 0))
            ports[name] = runners[-1].addresses[0][1]
        ready.set()
        while not stop.is_set():
            snapshot.publish(published())
            for tick in ticks if is_busy else ():
                tick()
            await asyncio.sleep(TICK_SECONDS)
        for runner in runners:
            await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait()
    try:
        yield ports
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def _fine() -> tuple[bool, str]:
    return True, "ok"


def _controller(into: CollectorRegistry) -> Callable[[], None]:
    """Record what a controller measures, one tick after the other."""
    chance = random.Random(1)  # noqa: S311  # the same noise in every run
    gauge(registry.LEADER, into).labels(leases.NAME).set(1)
    gauge(registry.QUEUE_DEPTH, into).set(0)
    starts = gauge(registry.CALIBRATION_STARTS, into)
    starts.labels("used").set(3)
    starts.labels("contradictory").set(1)
    lag = gauge(registry.EVENT_LOOP_LAG, into)
    reconciles, durations = counter(registry.RECONCILES, into), histogram(registry.RECONCILE_DURATION, into)
    requests = counter(registry.API_REQUESTS, into)
    scrapes, scrape_durations = counter(registry.POD_SCRAPES, into), histogram(registry.POD_SCRAPE_DURATION, into)

    def tick() -> None:
        lag.set(chance.random() * 0.01)
        reconciles.labels("unchanged").inc(chance.randint(0, 2))
        reconciles.labels("written").inc(chance.randint(0, 1))
        durations.observe(chance.lognormvariate(-4, 0.8))
        requests.labels("get", "200").inc(chance.randint(0, 3))
        requests.labels("patch", "200").inc(chance.randint(0, 2))
        scrapes.labels("read").inc()
        scrape_durations.observe(chance.lognormvariate(-4.5, 0.4))

    return tick


def _webhook(into: CollectorRegistry) -> Callable[[], None]:
    chance = random.Random(2)  # noqa: S311  # the same noise in every run
    gauge(registry.CERTIFICATE_EXPIRY, into).set(time.time() + 61 * 86400)
    reviews, durations = counter(registry.ADMISSION_REVIEWS, into), histogram(registry.ADMISSION_REVIEW_DURATION, into)
    counter(registry.ADMISSION_ERRORS, into)

    def tick() -> None:
        for decision, share in ((Decision.ADMIT, 0.6), (Decision.REFUSE, 0.2), (Decision.ADMIT_ADJUSTED, 0.2)):
            reviews.labels(decision, "Reject", "CREATE").inc(chance.random() < share)
        durations.observe(chance.lognormvariate(-5.5, 0.7))

    return tick


def _published(samples: tuple[DeploymentSample, ...], pods: Mapping[str, list[Pod]]) -> Samples:
    """Return the observations of a controller after a scrape of all pods."""
    return {
        (sample.namespace, sample.name): replace(
            sample, observed=_observed(sample, running), pods=tuple(_pods(sample, running)), rollout=_rollout(running)
        )
        for sample in samples
        for running in (pods.get(sample.name, ()),)
    }


def _rollout(pods: Sequence[Pod]) -> RolloutSample | None:
    """Return the replicas; an InferenceDeployment whose spec is not rendered has no Deployment."""
    if not pods:
        return None
    is_under_way = _restarted_at(pods) > time.time()
    return RolloutSample(wanted=len(pods), ready=len(pods), updated=len(pods) - is_under_way)


def _restarted_at(pods: Sequence[Pod]) -> float:
    """Return the time at which the last pod restarts; 0 for a single pod, and where nothing has begun."""
    if len(pods) < 2 or not pods[-1].replay.seconds:
        return 0
    replay = pods[-1].replay
    return time.time() + (RESTARTED_SECONDS - replay.seconds) / replay.speed


def _pods(sample: DeploymentSample, pods: Sequence[Pod]) -> Iterator[PodSample]:
    """Return the pods; the first has one percent more KV cache than the others."""
    smallest, restarted_at = _observed(sample, pods).capacity_tokens, _restarted_at(pods)
    for index, pod in enumerate(pods):
        is_new = index == len(pods) - 1 and 0 < restarted_at <= time.time()
        yield PodSample(
            name=f"{sample.name}-{index}", node=f"gpu-{index}", is_ready=True, restarts=int(is_new),
            started_seconds=round(restarted_at) if is_new else STARTED_SECONDS,
            capacity_tokens=smallest and round(smallest * (1 + 0.01 * (not index and len(pods) > 1))),
            usage_ratio=pod.replay.row()["kv_cache_usage"],
        )  # fmt: skip


def _gpus(samples: Iterable[DeploymentSample], pods: Mapping[str, list[Pod]]) -> Iterator[Gpu]:
    """Return the GPUs of the pods that run: they use what was requested, and one pod has a stranger beside it."""
    for sample in samples:
        for index, pod in enumerate(pods.get(sample.name, ())):
            requested = sample.memory.requested_bytes if sample.memory else 0
            stranger = 6 * 2**30 * (sample.name == DRIFTING)
            busy = 100 * min(1.0, pod.replay.row()["requests_running"] / 5)
            yield Gpu(
                namespace=NAMESPACE, pod=f"{sample.name}-{index}", index=index, used_bytes=requested + stranger, busy_percent=busy
            )  # fmt: skip


def _observed(sample: DeploymentSample, pods: Sequence[Pod]) -> ObservedSample:
    if not pods or not sample.capacity_tokens:
        return ObservedSample(pods=0)
    error = PREDICTION_ERRORS.get(sample.name, USUAL_ERROR)
    return ObservedSample(
        pods=len(pods),
        capacity_tokens=round(sample.capacity_tokens[1] * (1 + error)),
        usage_ratio=max(pod.replay.row()["kv_cache_usage"] for pod in pods),
        error_ratio=error,
    )
