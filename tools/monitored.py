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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

import prometheus
from fake_vllm import Engine, Replay, serving
from grafana import Window
from kvgate.api.conditions import ConditionType
from kvgate.api.validation import parse_document
from kvgate.engine import Assessment, Decision, assess
from kvgate.facts import ConfigMissing, gather
from kvgate.metrics import registry
from kvgate.metrics.endpoint import endpoint_app, listen
from kvgate.metrics.exporter import DeploymentSample, counter, gauge, histogram, new_registry, sample_of
from kvgate.metrics.registry import Metric
from kvgate.metrics.snapshot import DeploymentSnapshot
from kvgate.monitoring.rules import rule_groups
from kvgate.monitoring.scraping import ENGINES, KVGATE, OTHER_ENGINES, OTHER_PORT, scrape_configuration
from programs import free_ports, wait_until
from prometheus import Prometheus

SAMPLES = Path(__file__).resolve().parent.parent / "deploy" / "samples"
NAMESPACE = "serving"
PREDICTION_ERRORS = {"qwen3-8b": -0.14, "llama-3-1-70b": -0.034}
USUAL_ERROR = 0.006
RELEASES = {"llama-3-1-8b": "0.8.5", "llama-3-1-70b": "0.10.2"}
"""Of vLLM, where it is not the recorded one."""
PODS_EACH = 2
SCRAPE_SECONDS = 0.5
PAST_THE_WORST = 45.0
"""Second of the recording: preemptions have been going on for a while."""
TICK_SECONDS = 0.1

_Target = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """Under pressure at the end of its window."""

    prometheus: Prometheus
    window: Window


@contextmanager
def monitored(assets: Path, *, speed: float = 3, until_second: float = PAST_THE_WORST) -> Iterator[Fleet]:
    """The block begins at this second of the recorded run."""
    samples = tuple(_judged_samples())
    running = [sample for sample in samples if _condition(sample, ConditionType.READY) == "True"]
    with ExitStack() as stack:
        replays = [stack.enter_context(_engine(sample.name)) for sample in running]
        other = stack.enter_context(_engine("chatbot"))
        ports = stack.enter_context(_processes(samples, replays[0][0]))
        targets = {
            KVGATE.name: [_process(name, port) for name, port in ports.items()],
            ENGINES.name: [
                target for sample, (_, at) in zip(running, replays, strict=True) for target in _pods(sample.name, at)
            ],
            OTHER_ENGINES.name: [_other(port) for port in other[1]],
        }
        server = stack.enter_context(_prometheus(assets, targets, twice=_twice(running[0].name, replays[0][1])))
        start = time.time()
        for replay, _ in (*replays, other):
            replay.begin(speed=speed)
        wait_until(lambda: other[0].seconds >= until_second, "the recorded run is so far", within_seconds=120)
        yield Fleet(
            prometheus=server, window=Window(start_seconds=start + 2, end_seconds=time.time() - 2 * SCRAPE_SECONDS)
        )


def _prometheus(assets: Path, targets: Mapping[str, list[_Target]], *, twice: Mapping[str, Any]) -> Any:
    """With the shipped configuration and rules, in a hurry."""
    often = f"{SCRAPE_SECONDS * 1000:g}ms"
    configuration = scrape_configuration(
        lambda job: {"static_configs": targets[job]}, interval=often, rule_files=("rules.yaml",)
    )
    configuration["scrape_configs"].append(twice)
    groups = [{**group, "interval": often} for group in rule_groups()["groups"]]
    return prometheus.serving(
        assets, yaml.safe_dump(configuration), files={"rules.yaml": yaml.safe_dump({"groups": groups})}
    )


def _twice(name: str, ports: tuple[int, ...]) -> Mapping[str, Any]:
    """A job of the user's own for pods that ours scrapes as well, without the label of their owner."""
    configs = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": NAMESPACE, "pod": f"{name}-{index}"}}
        for index, port in enumerate(ports)
    ]
    rules = [rule.fields() for rule in ENGINES.metric_relabelings]
    return {"job_name": "their-own", "static_configs": configs, "metric_relabel_configs": rules}


def _judged_samples() -> Iterator[DeploymentSample]:
    for path in sorted(SAMPLES.glob("*.yaml")):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        document["metadata"].setdefault("namespace", NAMESPACE)
        deployment = parse_document(document)
        assessment = assess(deployment.spec, gather(deployment.spec, _no_config))
        yield replace(sample_of(deployment, assessment, ()), conditions=tuple(_conditions(assessment)))


def _no_config(_: object) -> ConfigMissing:
    return ConfigMissing(message="there is no cluster", remediation="")


def _conditions(assessment: Assessment) -> Iterator[tuple[str, str]]:
    """As the controller would set them once everything has settled."""
    predicted = assessment.budget is not None and assessment.budget.tightest is not None
    refused = assessment.decision is Decision.REFUSE
    yield ConditionType.ACCEPTED, "False" if refused else "True" if predicted else "Unknown"
    yield ConditionType.PREDICTED, str(predicted)
    yield ConditionType.ADJUSTED, str(assessment.decision is Decision.ADMIT_ADJUSTED)
    yield ConditionType.READY, str(predicted and not refused)
    yield ConditionType.RECONCILING, "False"
    yield ConditionType.STALLED, str(refused)


def _condition(sample: DeploymentSample, type_: str) -> str:
    return dict(sample.conditions).get(type_, "")


@contextmanager
def _engine(name: str) -> Iterator[tuple[Replay, tuple[int, ...]]]:
    """The pods of one deployment, all at the same second of the run."""
    ports = free_ports(PODS_EACH)
    engine = Engine(vllm_version=RELEASES.get(name, "0.33.0"), model_name=name)
    with serving(engine, *(("127.0.0.1", port) for port in ports)) as replay:
        yield replay, ports


def _pods(name: str, ports: tuple[int, ...]) -> Iterator[_Target]:
    for index, port in enumerate(ports):
        pod = f"{name}-{index}"
        yield _pod(pod, port, port_name="http", namespace=NAMESPACE, label_kvgate_io_inferencedeployment=name)


def _other(port: int) -> _Target:
    return _pod(f"chatbot-{port}", port, namespace="research", container_image="vllm/vllm-openai:v0.33.0",
                container_port_number=str(OTHER_PORT), label_app="chatbot")  # fmt: skip


def _process(name: str, port: int) -> _Target:
    return _pod(f"kvgate-{name}", port, port_name="metrics", namespace="kvgate-system",
                label_app_kubernetes_io_name="kvgate", label_app_kubernetes_io_component=name)  # fmt: skip


def _pod(name: str, port: int, *, namespace: str, port_name: str = "", **meta: str) -> _Target:
    """A target with what `kubernetes_sd_configs` would say of its pod."""
    said = {"name": name, "container_port_name": port_name, **meta}
    present = {f"labelpresent_{key.removeprefix('label_')}": "true" for key in meta if key.startswith("label_")}
    labels = {f"__meta_kubernetes_pod_{key}": value for key, value in {**said, **present}.items()}
    return {"targets": [f"127.0.0.1:{port}"], "labels": {"__meta_kubernetes_namespace": namespace, **labels}}


@contextmanager
def _processes(samples: tuple[DeploymentSample, ...], replay: Replay) -> Iterator[dict[str, int]]:
    """kvgate's two processes: the real exporter and endpoint, busy with nothing real. Yields their ports."""
    snapshot, stop = Observed(samples, replay), asyncio.Event()
    ports: dict[str, int] = {}
    loop = asyncio.new_event_loop()
    ready = threading.Event()

    async def serve() -> None:
        runners = []
        for name, tick in (("controller", _controller), ("webhook", _webhook)):
            into = new_registry()
            runner = await listen(_app(into, snapshot if name == "controller" else None), "127.0.0.1", 0)
            runners.append((runner, tick(into)))
            ports[name] = runner.addresses[0][1]
        ready.set()
        while not stop.is_set():
            for _, tick_once in runners:
                tick_once()
            await asyncio.sleep(TICK_SECONDS)
        for runner, _ in runners:
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


def _app(into: CollectorRegistry, snapshot: DeploymentSnapshot | None) -> Any:
    def fine() -> tuple[bool, str]:
        return True, "ok"

    return endpoint_app(into, livez=fine, readyz=fine, deployments=snapshot)


def _controller(into: CollectorRegistry) -> Callable[[], None]:
    """What a controller measures, one tick after the other."""
    chance = random.Random(1)  # noqa: S311  # the same noise in every run
    gauge(registry.LEADER, into).set(1)
    starts = gauge(registry.CALIBRATION_STARTS, into)
    starts.labels("used").set(3)
    starts.labels("contradictory").set(1)
    lag = gauge(registry.EVENT_LOOP_LAG, into)
    reconciles, durations = counter(registry.RECONCILES, into), histogram(registry.RECONCILE_DURATION, into)
    requests = counter(registry.API_REQUESTS, into)
    scrapes, scrape_durations = counter(registry.POD_SCRAPES, into), histogram(registry.POD_SCRAPE_DURATION, into)

    def tick() -> None:
        lag.set(chance.random() * 0.01)
        reconciles.labels("accepted").inc(chance.randint(0, 2))
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


class Observed(DeploymentSnapshot):
    """The snapshot, and what the controller would have read from the engines."""

    def __init__(self, samples: tuple[DeploymentSample, ...], replay: Replay) -> None:
        super().__init__()
        self._replay = replay
        self._running = [sample for sample in samples if _condition(sample, ConditionType.READY) == "True"]
        self.publish({(sample.namespace, sample.name): sample for sample in samples})

    def text(self, *, units: bool) -> str:
        return super().text(units=units) + "".join(self._observed())

    def _observed(self) -> Iterator[str]:
        usage = self._replay.row()["kv_cache_usage"]
        for sample in self._running:
            error = PREDICTION_ERRORS.get(sample.name, USUAL_ERROR)
            expected = sample.capacity_tokens[1] if sample.capacity_tokens else 0
            figures: tuple[tuple[Metric, float], ...] = (
                (registry.OBSERVED_KV_CACHE_CAPACITY_TOKENS, round(expected * (1 + error))),
                (registry.OBSERVED_KV_CACHE_USAGE_RATIO, usage),
                (registry.OBSERVED_PODS, PODS_EACH),
                (registry.PREDICTION_ERROR_RATIO, error),
            )
            for metric, figure in figures:
                yield f'{metric.name}{{namespace="{sample.namespace}",inferencedeployment="{sample.name}"}} {figure}\n'
