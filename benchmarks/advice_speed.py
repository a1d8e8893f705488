"""How long the advisor takes on random questions that do not fit: p50 and p99 in milliseconds of processor time, beside a search that
tries every combination of settings.

    python benchmarks/advice_speed.py [--questions 300] [--every 20]

Each question is new to the process, as on a command line; `again` is the same question in a warm process, as in the webhook. That a
target is missed is printed, not an error: it depends on the machine.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import product
from random import Random
from statistics import quantiles

from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import BudgetRequest, Guarantee, Scope, Verdict, Workload, plan
from kvgate.budget.answers.advice import Advisor
from kvgate.budget.answers.changes import ALIKE, SETTINGS, with_change
from kvgate.budget.answers.solver import largest_max_model_len
from kvgate.judgement.advisor import ADMISSION, advice
from kvgate.judgement.what_if import read_request

ONE = "every combination of settings on these GPUs"
ALONE = replace(ADMISSION, accelerators=tuple(catalogue.accelerators()))
TARGETS_MILLISECONDS = {"command line": 50.0, "admission, again": 5.0}


def questions(count: int, seed: int = 7) -> Iterator[BudgetRequest]:
    """Random models, GPUs and loads of the catalogue that do not fit, and whose model is known in all parts."""
    random, names = Random(seed), catalogue.model_names()
    gpus = [each.name for each in catalogue.accelerators() if each.vendor == "nvidia" and not each.is_slice]
    while count:
        load = Workload(
            peak_concurrency=random.choice((4, 32)), prompt_tokens=random.choice((1000, 6000)), output_tokens=500
        )
        guarantee = random.choice(list(Guarantee))
        values = {
            "model": random.choice(names),
            "gpu": random.choice(gpus),
            "tensor_parallel_size": random.choice((1, 1, 2, 4)),
        }
        if guarantee is Guarantee.FULL_CONTEXT:
            values |= {"max_num_seqs": random.choice((4, 16)), "max_model_len": random.choice((8192, 32_768))}
        request, _ = read_request(
            values, guarantee=guarantee, workload=load if guarantee is Guarantee.WORKLOAD else None
        )
        if request and plan(request).verdict in (Verdict.DOES_NOT_FIT, Verdict.MAY_NOT_FIT):
            count -= 1
            yield request


def every_combination(request: BudgetRequest) -> int:
    """Try each combination of the settings that a search turns, with the longest context of each; return how many there are."""
    scope, start = Scope(), plan(request)
    steps = ((name, list(of(start, scope))) for name, of in SETTINGS.items())
    choices = [
        [(name, value) for value in (None, *(values[-1:] if name in ALIKE else values))] for name, values in steps
    ]
    tried = 0
    for combination in product(*choices):
        changed = request
        for name, value in combination:
            changed = changed if value is None else with_change(changed, name, value, scope)
        largest_max_model_len(changed)
        tried += 1
    return tried


def milliseconds(run: Callable[[], object]) -> float:
    start = time.thread_time()
    run()
    return (time.thread_time() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--every", type=int, default=20)
    given = parser.parse_args()
    times: dict[str, list[float]] = {}
    for number, request in enumerate(questions(given.questions)):
        runs: dict[str, Callable[[], object]] = {
            "command line": lambda of=request: advice(of),
            "command line, again": lambda of=request: advice(of),
            "admission, again": lambda of=request: advice(of, ADMISSION, checkpoints=False),
            "single changes, again": lambda of=request: [*Advisor(of, ALONE).singles()],
        }
        if number % max(1, given.questions // given.every) == 0:
            runs[ONE] = lambda of=request: every_combination(of)
        for name, run in runs.items():
            times.setdefault(name, []).append(milliseconds(run))
    print(f"{'mode':<46} {'questions':>9} {'p50 ms':>8} {'p99 ms':>8}")
    for name, taken in times.items():
        cuts = quantiles(taken, n=100)
        limit = TARGETS_MILLISECONDS.get(name)
        target = f"   target p99 {limit:g} ms   {'ok' if cuts[98] <= limit else 'MISSED'}" if limit else ""
        print(f"{name:<46} {len(taken):>9} {cuts[49]:>8.1f} {cuts[98]:>8.1f}{target}")


if __name__ == "__main__":
    main()
