"""How long one judgement takes: p50 and p99 in microseconds of a warm process, beside a yardstick of the machine.

It is processor time of the thread: on a machine that does other things too, the p99 of a wall clock is the scheduler's time slice.

    python benchmarks/assess_speed.py [--runs 2000]

The target is for one mode; that it is missed is printed, not an error: it depends on the machine.
"""

import argparse
import time
from collections.abc import Callable
from statistics import quantiles
from typing import Any

from kvgate.api.v1alpha1 import InferenceDeploymentSpec
from kvgate.api.validation import parse_document
from kvgate.budget.answers.answer import plan
from kvgate.budget.answers.solver import AdjustLimits, adjust
from kvgate.judgement.assess import assess
from kvgate.judgement.facts import ConfigMissing, Facts, gather, question
from kvgate.statement.deployment import statement_of

Case = tuple[str, Callable[[], object]]
FITS = "assess, fits"
FITS_P99_MICROSECONDS = 200
MIXED_P99_MICROSECONDS = 1000
MIXED = frozenset({"Qwen/Qwen3.6-27B-FP8", "openai/gpt-oss-120b"})
"""Models whose layers differ: their cache has several groups."""
NEEDS = {
    "Qwen/Qwen3-8B": {"accelerator": "L4-24GB", "tensor": 1},
    "meta-llama/Llama-3.1-70B-Instruct": {"accelerator": "H100-SXM-80GB", "tensor": 4},
    "Qwen/Qwen3.6-27B-FP8": {"accelerator": "H100-NVL-94GB", "tensor": 1},
    "openai/gpt-oss-120b": {"accelerator": "H100-SXM-80GB", "tensor": 2},
}


def spec_of(model: str, *, length: int, sequences: int) -> InferenceDeploymentSpec:
    need = NEEDS[model]
    document: dict[str, Any] = {
        "apiVersion": "kvgate.io/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": {"name": "benchmark"},
        "spec": {
            "model": {"name": model},
            "accelerator": {"type": need["accelerator"]},
            "vllm": {"maxModelLen": length, "maxNumSeqs": sequences, "tensorParallelSize": need["tensor"]},
        },
    }
    return parse_document(document).spec


def facts_of(spec: InferenceDeploymentSpec) -> Facts:
    return gather(statement_of(spec), lambda _: ConfigMissing(message="", remediation=""))


def cases(model: str) -> list[Case]:
    small, large = spec_of(model, length=4096, sequences=2), spec_of(model, length=40_960, sequences=256)
    facts = facts_of(small)
    request = question(statement_of(small), facts)
    too_much = question(statement_of(large), facts)
    limits = AdjustLimits()
    return [
        ("plan only", lambda: plan(request)),
        (FITS, lambda: assess(small, facts)),
        ("assess, refused with alternatives", lambda: assess(large, facts)),
        ("adjust", lambda: adjust(too_much, limits)),
        ("gather and assess, fits", lambda: assess(small, facts_of(small))),
    ]


def timed(run: Callable[[], object], runs: int) -> tuple[float, float]:
    """(p50, p99) in microseconds, after ten runs that fill the caches."""
    for _ in range(10):
        run()
    seconds = []
    for _ in range(runs):
        start = time.thread_time()
        run()
        seconds.append(time.thread_time() - start)
    cuts = quantiles(seconds, n=100)
    return cuts[49] * 1e6, cuts[98] * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=2000)
    runs = parser.parse_args().runs
    print(f"{'model':<36} {'mode':<34} {'p50 µs':>9} {'p99 µs':>9}")
    print_row("yardstick", "sum(range(1000))", *timed(lambda: sum(range(1000)), runs))
    for model in NEEDS:
        for mode, run in cases(model):
            print_row(model, mode, *timed(run, runs))


def print_row(model: str, mode: str, p50: float, p99: float) -> None:
    limit = MIXED_P99_MICROSECONDS if model in MIXED else FITS_P99_MICROSECONDS
    target = f"   target p99 {limit} µs   {'ok' if p99 <= limit else 'MISSED'}" if mode == FITS else ""
    print(f"{model:<36} {mode:<34} {p50:>9.0f} {p99:>9.0f}{target}")


if __name__ == "__main__":
    main()
