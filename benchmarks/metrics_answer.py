"""One answer to a scrape for 1,000 InferenceDeployments with two pods each, over HTTP and compressed, as Prometheus asks for it.

    python benchmarks/metrics_answer.py [--deployments 1000] [--runs 9]

Before each answer nothing has changed, or the usage of every pod has, or every verdict as well, which no controller does. Beside it
prometheus_client writes as many plain gauges. The target is for one answer; that it is missed is printed, not an error: it depends on
the machine.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from statistics import median

import aiohttp
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from kvgate.metrics.exporter import DeploymentSnapshot, Samples, endpoint_app, metrics_answer, new_registry
from kvgate.metrics.listener import listen
from kvgate.metrics.registry import OWNER_LABELS
from kvgate.metrics.samples import DeploymentSample, MemorySample, ObservedSample, PodSample, RolloutSample, series_of

TARGET_MILLISECONDS = 100
TEXT, OPENMETRICS = "text/plain;version=0.0.4", "application/openmetrics-text;version=1.0.0"
TERMS = ("weights", "peak_activation", "non_torch", "cuda_graph", "kv_cache", "not_requested")
CONDITIONS = ("Accepted", "Predicted", "Adjusted", "Ready", "Reconciling", "Stalled", "Observed", "PredictionDrift")
PODS = 2
_chance = random.Random(1)


def deployment(number: int) -> DeploymentSample:
    """A deployment with figures of its own, so that they compress as a fleet's do."""
    tokens, size = _chance.randrange(1 << 14, 1 << 20), _chance.randrange(1 << 30, 1 << 36)
    return DeploymentSample(
        namespace=f"team-{number % 40}", name=f"chat-{number}", model="Qwen/Qwen3-8B", accelerator="L4-24GB",
        kv_cache_dtype="auto", policy="Adjust",
        capacity_tokens=(tokens - 999, tokens, tokens + 999), capacity_bytes=(size - 999, size, size + 999),
        demand_bytes=size // 3, demand_tokens=tokens // 3,
        headroom_bytes=(size // 2 - 999, size // 2, size // 2 + 999),
        headroom_ratio=(0.5 - _chance.random() / 9, 0.5, 0.5 + _chance.random() / 9),
        full_length_requests=(tokens / 8192 - 1, tokens / 8192, tokens / 8192 + 1),
        host_memory_bytes=_chance.randrange(1 << 33, 1 << 36), max_model_len_tokens=8192, max_num_seqs=64, gpus=PODS,
        memory=MemorySample(
            total_bytes=1 << 36, requested_bytes=9 << 32,
            terms=tuple((term, _chance.randrange(1 << 30, 1 << 34)) for term in TERMS),
        ),
        load_seconds=600, rollout=RolloutSample(wanted=PODS, ready=PODS, updated=PODS),
        conditions=tuple((name, "True", "WithinTolerance") for name in CONDITIONS),
    )  # fmt: skip


def with_pods(sample: DeploymentSample) -> DeploymentSample:
    """The same deployment after another look at its pods."""
    pods = tuple(
        PodSample(
            name=f"{sample.name}-7c5ddbdf54-{index}", node=f"gpu-{sample.gpus}-{index}", is_ready=True,
            started_seconds=1_795_000_000.0, capacity_tokens=sample.demand_tokens, usage_ratio=_chance.random(),
        )
        for index in range(PODS)
    )  # fmt: skip
    usage = max(pod.usage_ratio or 0.0 for pod in pods)
    seen = ObservedSample(
        pods=PODS, capacity_tokens=sample.demand_tokens, usage_ratio=usage, error_ratio=_chance.random() / 50
    )
    return replace(sample, pods=pods, observed=seen)


def fleet(count: int) -> Samples:
    samples = (with_pods(deployment(number)) for number in range(count))
    return {(sample.namespace, sample.name): sample for sample in samples}


def plain_gauges(count: int) -> CollectorRegistry:
    """As many series, with the two labels that all of ours have and one more."""
    into = CollectorRegistry()
    for series in range(len(list(series_of(with_pods(deployment(0)))))):
        gauge = Gauge(f"plain_{series}", "Some help.", (*OWNER_LABELS, "bound"), registry=into)
        for number in range(count):
            gauge.labels("serving", f"chat-{number}", "expected").set(number)
    return into


async def milliseconds(run: Callable[[], Awaitable[object]], before: Callable[[], object], runs: int) -> float:
    """Median; the first run fills the caches."""
    taken = []
    for _ in range(runs + 1):
        before()
        start = time.perf_counter()
        await run()
        taken.append(time.perf_counter() - start)
    return median(taken[1:]) * 1e3


async def measure(count: int, runs: int) -> None:
    samples, snapshot, own = fleet(count), DeploymentSnapshot(), new_registry()
    snapshot.publish(samples)

    async def scrape(accept: str) -> None:
        headers = {"Accept": accept, "Accept-Encoding": "gzip"}
        async with client.get("/metrics", headers=headers) as answer:
            await answer.read()

    changes: dict[str, Callable[[], object]] = {
        "nothing has changed": lambda: None,
        "every usage has changed": lambda: snapshot.publish({key: with_pods(each) for key, each in samples.items()}),
        "every verdict has changed": lambda: snapshot.publish(fleet(count)),
    }
    gauges = plain_gauges(count)
    plain = await milliseconds(lambda: asyncio.to_thread(generate_latest, gauges), lambda: None, 1)
    print(f"{'plain gauges, prometheus_client':<46} {plain:>6.0f} ms")
    app = endpoint_app(own, livez=lambda: (True, ""), readyz=lambda: (True, ""), deployments=snapshot)
    runner = await listen(app, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession(base, auto_decompress=False) as client:
        for name, before in changes.items():
            for format_, accept in (("text", TEXT), ("OpenMetrics", OPENMETRICS)):
                ours = await milliseconds(lambda accept=accept: scrape(accept), before, runs)  # type: ignore[misc]
                verdict = "ok" if ours <= TARGET_MILLISECONDS else "MISSED"
                print(f"{f'{name}, {format_}':<46} {ours:>6.0f} ms   target {TARGET_MILLISECONDS} ms {verdict}")
    await runner.cleanup()
    body, _ = metrics_answer(TEXT, own, snapshot)
    print(f"{len(body) / 1e6:.1f} MB, {body.count(b'{')} series")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--deployments", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    print(f"{options.deployments} InferenceDeployments with {PODS} pods each")
    asyncio.run(measure(options.deployments, options.runs))


if __name__ == "__main__":
    main()
