"""The advisor against brute force: the cheapest combination of whole steps, and none of whose changes is too many or too far."""

from collections.abc import Iterator
from itertools import product
from random import Random

import pytest

from kvgate.budget.answers.advice import Advisor
from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.answers.changes import (
    ALIKE,
    COSTS,
    SETTINGS,
    Loss,
    Scope,
    Value,
    hardware,
    points_of,
    with_change,
    without_media,
)
from kvgate.budget.answers.solver import fits_low
from kvgate.budget.engine.request import BudgetRequest, Capacity, Guarantee, Workload
from kvgate.budget.kv_cache.capacity import largest
from support.builders import catalogue_accelerator, catalogue_shape, new_request

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

MODELS = (
    "Qwen/Qwen3-8B", "Qwen/Qwen3-32B-AWQ", "meta-llama/Llama-3.1-70B-Instruct", "Qwen/Qwen3-30B-A3B-FP8", "google/gemma-3-27b-it",
    "Qwen/Qwen3-8B-AWQ", "Qwen/Qwen3.6-27B", "Qwen/Qwen2.5-VL-7B-Instruct", "deepseek-ai/DeepSeek-V2-Lite", "openai/gpt-oss-20b",
    "google/gemma-3-4b-it", "mistralai/Mistral-7B-Instruct-v0.3", "google/gemma-2-9b-it", "ai21labs/Jamba-v0.1",
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
    "openai/whisper-large-v3", "Zyphra/Zamba2-2.7B",
)  # fmt: skip
GPUS = (
    "T4-16GB",
    "L4-24GB",
    "RTX-4090-24GB",
    "A10G-24GB",
    "L40S-48GB",
    "A100-SXM-40GB",
    "H100-SXM-80GB",
    "RTX-5090-32GB",
)
ON_THESE_GPUS = frozenset(name for name, cost in COSTS.items() if cost.loss is Loss.MONEY) | {
    "cpu_offload_gb",
    "decode_context_parallel_size",
}


def questions(count: int, seed: int) -> Iterator[BudgetRequest]:
    """Random questions whose answer is not yes."""
    random, found = Random(seed), 0
    while found < count:
        guarantee = random.choice(list(Guarantee))
        load = Workload(
            peak_concurrency=random.choice((2, 8, 40)), prompt_tokens=random.choice((500, 6000)), output_tokens=500
        )
        is_stated = guarantee is Guarantee.FULL_CONTEXT or random.random() < 0.3
        request = new_request(
            shape=catalogue_shape(random.choice(MODELS)), accelerator=catalogue_accelerator(random.choice(GPUS)),
            vllm_version=random.choice(("0.33.0", "0.30.0", "0.19.0", "0.11.0", "0.10.2")), guarantee=guarantee,
            workload=load if guarantee is Guarantee.WORKLOAD else None, tensor=random.choice((1, 1, 1, 2, 4)),
            max_model_len=random.choice((None, 8192, 20_000, 32_768)), capacity=random.choice((*Capacity, Capacity.PROFILED)),
            max_num_seqs=random.choice((2, 5, 16, 64)) if is_stated else None,
            **({"enforce_eager": True} if random.random() < 0.2 else {}),
        )  # fmt: skip
        if plan(request).demand is not None and not fits_low(request):
            found += 1
            yield request


def fewest_points(request: BudgetRequest, scope: Scope, asked: Budget | None = None) -> float | None:
    """The least points of every combination of steps, each tried; None where none fits. `asked` has the values that points count from."""
    start, fewest = asked or plan(request), None
    before = plan(request)
    steps = {name: list(of(before, scope)) for name, of in SETTINGS.items() if name not in scope.keep}
    choices = [
        [(name, value) for value in (None, *(values[-1:] if name in ALIKE else values))]
        for name, values in steps.items()
    ]
    choices.append([("", None), *(each for each in without_media(before, scope) if each[0] not in scope.keep)])
    workload = request.workload.request_tokens if request.workload else 1
    for combination in product(*choices):
        changes: list[tuple[str, Value]] = [(name, value) for name, value in combination if value is not None]
        points = sum(points_of(start, name, value, scope) for name, value in changes)
        if fewest is not None and points >= fewest:
            continue
        changed = request
        for name, value in changes:
            changed = with_change(changed, name, value, scope)
        length = start.resolved.max_model_len
        if not fits_low(changed):
            floor = min(length, max(scope.min_max_model_len, workload))
            shorter = largest(length, lambda n, of=changed: fits_low(of.with_settings(max_model_len=n)), at_least=floor)
            if not shorter or "max_model_len" in scope.keep:
                continue
            points += points_of(start, "max_model_len", shorter, scope)
        fewest = points if fewest is None else min(fewest, points)
    return fewest


@pytest.mark.parametrize("kept", [(), ("max_model_len",), ("kv_cache_dtype", "enforce_eager")])
def test_the_search_finds_the_cheapest_combination_that_brute_force_finds(kept: tuple[str, ...]) -> None:
    number = fitting = 0
    for request in questions(500 if not kept else 100, seed=len(kept)):
        scope = Scope(keep=ON_THESE_GPUS | set(kept), min_max_model_len=1024, most_plans=10**6)
        expected = fewest_points(request, scope)
        found = next((points for points, _ in Advisor(request, scope).combinations(scope.keep)), None)
        assert found == (pytest.approx(expected) if expected is not None else None), (number, request)
        number, fitting = number + 1, fitting + (expected is not None)
    assert fitting > number // 5


def fewest_points_on_any(request: BudgetRequest, scope: Scope) -> float | None:
    """The least points over every choice of GPUs too, whose settings have steps of their own."""
    start = plan(request)
    found = [fewest_points(request, scope)]
    for name, value in (each for each in hardware(start, scope) if each[0] not in scope.keep):
        other = with_change(request, name, value, scope)
        moved = points_of(start, name, value, scope)
        alone = fewest_points(other, scope, start)
        found.append(None if alone is None else moved + alone)
    return min((each for each in found if each is not None), default=None)


def test_the_search_finds_the_cheapest_choice_of_gpus_and_settings() -> None:
    gpus = tuple(map(catalogue_accelerator, ("RTX-4090-24GB", "A100-SXM-40GB", "L40S-48GB", "H100-SXM-80GB")))
    compared = 0
    for request in questions(40, seed=11):
        scope = Scope(accelerators=gpus, keep=frozenset({"cpu_offload_gb"}), min_max_model_len=1024, most_plans=10**6)
        expected = fewest_points_on_any(request, scope)
        found = next((points for points, _ in Advisor(request, scope).combinations(scope.keep, 1000.0)), None)
        assert found == (pytest.approx(expected) if expected is not None else None), request
        compared += expected is not None
    assert compared > 25
