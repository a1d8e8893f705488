"""The real /metrics of both processes on the loopback, with one InferenceDeployment and reviews that go on."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from kvgate.api.conditions import ConditionType
from kvgate.api.status import Condition
from kvgate.api.validation import parse_document
from kvgate.engine import assess
from kvgate.facts import ConfigMissing, gather
from kvgate.metrics import registry as metrics
from kvgate.metrics.endpoint import endpoint_app, listen
from kvgate.metrics.exporter import DeploymentSample, ObservedSample, counter, gauge, histogram, new_registry, sample_of
from kvgate.metrics.registry import Kind
from kvgate.metrics.snapshot import DeploymentSnapshot

TICK_SECONDS = 0.1
MAKE = {Kind.COUNTER: counter, Kind.GAUGE: gauge, Kind.HISTOGRAM: histogram}
GIVEN = {metrics.BUILD_INFO, metrics.CATALOGUE_ENTRIES}
"""Of every registry."""


def condition(kind: ConditionType) -> Condition:
    return Condition.model_validate({
        "type": kind, "status": "True", "reason": "Fits", "message": "", "lastTransitionTime": "2026-11-21T00:00:00Z",
    })  # fmt: skip


def chat() -> DeploymentSample:
    """serving/chat, as judged, and as a pod reported it."""
    deployment = parse_document({
        "apiVersion": "kvgate.io/v1alpha1", "kind": "InferenceDeployment",
        "metadata": {"name": "chat", "namespace": "serving"},
        "spec": {"model": {"name": "Qwen/Qwen3-8B"}, "accelerator": {"type": "L4-24GB"}, "vllm": {"maxModelLen": 4096, "maxNumSeqs": 4}},
    })  # fmt: skip
    assessment = assess(deployment.spec, gather(deployment.spec, lambda _: ConfigMissing(message="", remediation="")))
    observed = ObservedSample(pods=1, capacity_tokens=30_000, usage_ratio=0.5, error_ratio=-0.25)
    return sample_of(deployment, assessment, map(condition, ConditionType), observed)


def every_instrument(into: CollectorRegistry) -> dict[str, Any]:
    """With a value under each label set that is set once."""
    made = {metric.name: MAKE[metric.kind](metric, into) for metric in metrics.PER_PROCESS if metric not in GIVEN}
    return {name: one.labels(*("x",) * len(one._labelnames)) if one._labelnames else one for name, one in made.items()}


async def tick(instruments: dict[str, Any]) -> None:
    """Reviews, reconciles and scrapes, some of them bad."""
    instruments[metrics.LEADER.name].set(1)
    instruments[metrics.CERTIFICATE_EXPIRY.name].set_to_current_time()
    while True:
        for one in instruments.values():
            if hasattr(one, "observe"):
                one.observe(0.01)
            elif hasattr(one, "set_to_current_time"):
                continue
            else:
                one.inc()
        await asyncio.sleep(TICK_SECONDS)


async def _serve(host: str, port: int, ready: threading.Event, stop: asyncio.Event) -> None:
    registry, snapshot, sample = new_registry(), DeploymentSnapshot(), chat()
    snapshot.publish({(sample.namespace, sample.name): sample})
    ticking = asyncio.create_task(tick(every_instrument(registry)))
    app = endpoint_app(registry, livez=lambda: (True, "ok"), readyz=lambda: (True, "ok"), deployments=snapshot)
    runner = await listen(app, host, port)
    ready.set()
    await stop.wait()
    ticking.cancel()
    await runner.cleanup()


@contextmanager
def kvgate_metrics(host: str, port: int) -> Iterator[None]:
    """Both processes in one: the controller's and the webhook's metrics on one page."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(_serve(host, port, ready, stop),))
    thread.start()
    try:
        assert ready.wait(10), f"nothing listens on {host}:{port}"
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
