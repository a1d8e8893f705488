"""One answer to a scrape for 1,000 InferenceDeployments, beside prometheus_client writing as many plain gauges in the same run.

    python benchmarks/metrics_answer.py [--deployments 1000] [--runs 9]

The target is for one answer; that it is missed is printed, not an error: it depends on the machine.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from kvgate.metrics.endpoint import metrics_answer
from kvgate.metrics.exporter import DeploymentSnapshot, new_registry, series_of
from kvgate.metrics.registry import OWNER_LABELS
from kvgate.metrics.samples import DeploymentSample, MemorySample, ObservedSample, PodSample, RolloutSample

TARGET_MILLISECONDS = 200
ACCEPTED = {
    "text 0.0.4": "text/plain;version=0.0.4",
    "OpenMetrics 1.0": "application/openmetrics-text;version=1.0.0",
}
TERMS = ("weights", "peak_activation", "non_torch", "cuda_graph", "kv_cache", "not_requested")
PODS = 2
FULL = DeploymentSample(
    namespace="serving",
    name="chat",
    model="Qwen/Qwen3-8B",
    accelerator="L4-24GB",
    kv_cache_dtype="auto",
    policy="Adjust",
    capacity_tokens=(1, 2, 3),
    capacity_bytes=(1, 2, 3),
    demand_bytes=1,
    headroom_bytes=(1, 2, 3),
    headroom_ratio=(0.1, 0.2, 0.3),
    full_length_requests=(1.1, 2.2, 3.3),
    max_model_len_tokens=1,
    max_num_seqs=1,
    gpus=1,
    observed=ObservedSample(pods=2, capacity_tokens=2, usage_ratio=0.5, error_ratio=0.01),
    demand_tokens=1,
    memory=MemorySample(total_bytes=6, requested_bytes=5, terms=tuple((term, 1) for term in TERMS)),
    load_seconds=600,
    rollout=RolloutSample(wanted=PODS, ready=PODS, updated=PODS),
    pods=tuple(
        PodSample(
            name=f"chat-7c5ddbdf54-{index}",
            node=f"gpu-{index}",
            is_ready=True,
            started_seconds=1_795_000_000.0,
            capacity_tokens=100_000,
            usage_ratio=0.25,
        )
        for index in range(PODS)
    ),
    conditions=tuple((f"Condition{number}", "True", "Reason") for number in range(8)),
)


def deployments(count: int) -> DeploymentSnapshot:
    snapshot = DeploymentSnapshot()
    snapshot.publish({("serving", f"chat-{n}"): replace(FULL, name=f"chat-{n}") for n in range(count)})
    return snapshot


def plain_gauges(count: int) -> CollectorRegistry:
    """As many series, with the two labels that all of ours have and one more."""
    into = CollectorRegistry()
    for series in range(len(list(series_of(FULL)))):
        gauge = Gauge(f"plain_{series}", "Some help.", (*OWNER_LABELS, "bound"), registry=into)
        for number in range(count):
            gauge.labels("serving", f"chat-{number}", "expected").set(number)
    return into


def milliseconds(run: Callable[[], object], runs: int) -> float:
    """Median; the first run fills the caches."""
    run()
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return median(taken) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--deployments", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    snapshot, registry, plain = deployments(options.deployments), new_registry(), plain_gauges(options.deployments)
    theirs = milliseconds(lambda: generate_latest(plain), options.runs)
    print(f"{options.deployments} InferenceDeployments with {len(list(series_of(FULL)))} series each")
    print(f"{'plain gauges, prometheus_client':<34} {theirs:>7.0f} ms")
    for name, accept in ACCEPTED.items():
        ours = milliseconds(lambda accept=accept: metrics_answer(accept, registry, snapshot), options.runs)  # type: ignore[misc]
        verdict = "ok" if ours <= TARGET_MILLISECONDS else "MISSED"
        print(
            f"{'/metrics, ' + name:<34} {ours:>7.0f} ms   {ours / theirs:.2f} of that   target {TARGET_MILLISECONDS} ms {verdict}"
        )


if __name__ == "__main__":
    main()
