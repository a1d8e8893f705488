"""What a calibration of as many starts as are kept costs: one lookup (target 20 µs), and a whole judgement with it and without.

python benchmarks/calibration_lookup.py [--runs 20000]
"""

import argparse
import time
from collections.abc import Callable
from statistics import quantiles

from msgspec.structs import replace

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.engine.request import BudgetRequest
from kvgate.budget.ground.units import gib
from kvgate.budget.observed.calibration import Calibration
from kvgate.budget.observed.starts import NextStart, ObservedStart, StartKey, StartToStart
from kvgate.calibration.observed import start_of_bytes
from kvgate.calibration.records import MAX_STARTS, read_records, write_records
from kvgate.judgement.what_if import read_request

TARGET_MICROSECONDS = 20
SPREAD = StartToStart(warm_overhead_bytes=0, cold_overhead_bytes=0, scatter_bytes=gib(0.06))


def a_request() -> BudgetRequest:
    asked = {"model": "Qwen/Qwen3-8B", "gpu": "H100-SXM-80GB", "vllm_version": "0.33.0", "max_num_seqs": 64}
    request, _ = read_request(asked)
    if request is None:
        raise LookupError("the catalogue lacks the benchmark's model or GPU")
    return request


def a_start(budget: Budget) -> ObservedStart:
    start = budget.tightest and start_of_bytes(
        budget, budget.tightest.available.expected - gib(0.5), source="benchmark"
    )
    if not start:
        raise LookupError("the benchmark's model has no prediction")
    return start


def p50_p99(call: Callable[[], object], runs: int) -> tuple[float, float]:
    """Microseconds."""
    took = []
    for _ in range(runs):
        began = time.perf_counter_ns()
        call()
        took.append((time.perf_counter_ns() - began) / 1000)
    cuts = quantiles(took, n=100)
    return cuts[49], cuts[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20_000)
    runs = parser.parse_args().runs
    alone = a_request()
    start = a_start(plan(alone))
    starts = tuple(
        replace(start, key=replace(start.key, max_num_batched_tokens=count), revision=count)
        for count in range(1, MAX_STARTS + 1)
    )
    known = Calibration(starts=starts)
    near = replace(start.key, max_num_batched_tokens=MAX_STARTS + 1)
    text, corrected = write_records(starts), replace(alone, calibration=known)

    asked = NextStart(
        max_num_seqs=start.max_num_seqs, requested_bytes=start.requested_bytes, predicted=start.predicted,
        most_bytes=start.possible_bytes[1], spread=SPREAD,
        formula_overhead=lambda _: start.overhead_bytes,
    )  # fmt: skip

    def lookup(key: StartKey) -> object:
        return known.correction(key, asked)

    print(
        f"{len(starts)} starts, {len(text.encode()) / 1024:.0f} KiB of text; target of a lookup: {TARGET_MICROSECONDS} µs"
    )
    print(f"{'':<34}{'p50 µs':>10}{'p99 µs':>10}")
    for name, call, times in (
        ("lookup, same setting", lambda: lookup(start.key), runs),
        ("lookup, only neighbours", lambda: lookup(near), runs),
        ("plan, nothing observed", lambda: plan(alone), runs // 10),
        ("plan, corrected", lambda: plan(corrected), runs // 10),
        ("reading the text, and its index", lambda: read_records(text).calibration, 100),
    ):
        p50, p99 = p50_p99(call, times)
        print(f"{name:<34}{p50:>10.1f}{p99:>10.1f}")


if __name__ == "__main__":
    main()
