"""More memory and smaller settings never take KV cache away, for every release and catalogued model; exemptions name vLLM's code.

`make fuzz` takes every model at every release, and through all steps. `make test` takes at each release every second model, and through all
steps one model of every second kind; those of the next release are the others.
"""

import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.engine.circumstances import Circumstances
from kvgate.budget.engine.request import BudgetRequest as Request
from kvgate.budget.engine.request import Capacity, GraphSettings, LoraSettings, Speculation
from kvgate.budget.ground.units import GIB, MIB
from kvgate.budget.model.shape import ModelShape
from kvgate.budget.releases.versions import _CHANGES, parse_patch
from support.builders import catalogue_accelerator, catalogue_shape, new_request

RELEASES = [".".join(str(part) for part in (*since, 0)[:3]) for since, _ in _CHANGES]
GPUS = [
    catalogue_accelerator(name)
    for name in ("H100-SXM-80GB", "A100-SXM-80GB", "B200-SXM-180GB", "L4-24GB", "RTX-5090-32GB", "MI300X-192GB")
]
SHAPES: dict[str, ModelShape] = {}
EVERY_MODEL = os.environ.get("KVGATE_EVERY_MODEL") == "1"


def shape_of(name: str) -> ModelShape:
    if name not in SHAPES:
        SHAPES[name] = catalogue_shape(name)
    return SHAPES[name]


def with_memory(request: Request, more_gib: int) -> Request:
    gpu = request.accelerator
    sizes = {
        name: getattr(gpu, name) + more_gib * GIB for name in ("memory_bytes", "memory_low_bytes", "memory_high_bytes")
    }
    return replace(request, accelerator=replace(gpu, **sizes))


def longest(shape: ModelShape) -> int:
    """A shape of 1 token states no length: its model takes any."""
    return min(shape.max_model_len, 131_072) if shape.max_model_len > 1 else 131_072


STEPS: dict[str, Callable[[Request], list[Request]]] = {
    "memory": lambda request: [with_memory(request, gib) for gib in (0, 1, 3, 9)],
    "max_num_seqs": lambda request: [request.with_settings(max_num_seqs=n) for n in (1024, 256, 255, 100, 64, 17, 4, 1)],
    "max_model_len": lambda request: [
        request.with_settings(max_model_len=max(1, longest(request.shape) * 100 // part)) for part in (100, 200, 266, 500, 1600, 5000)
    ],
    "enforce_eager": lambda request: [request.with_settings(enforce_eager=value) for value in (False, True)],
    "language_model_only": lambda request: [request.with_settings(language_model_only=value) for value in (False, True)],
    "max_num_batched_tokens": lambda request: [
        request.with_settings(max_num_batched_tokens=n) for n in (32_768, 16_384, 9000, 8192, 4096, 2500, 2048, 1000, 512)
    ],
}  # fmt: skip
"""By lever: settings of which each should leave no less than the one before."""
FIRST_STEP = {
    "memory": slice(0, 4, 3), "max_num_seqs": slice(1, 6, 4), "max_model_len": slice(0, 2), "max_num_batched_tokens": slice(3, 7, 3),
}  # fmt: skip


class Exemption(NamedTuple):
    """A case in which vLLM itself has less with the smaller setting."""

    lever: str
    since: str
    until: str
    file: str
    function: str
    why: str
    without: Callable[[Request], Request] | None = None
    """The same question without the cause, of which the property holds; None: only the count of tokens falls, not that of requests."""


def without_tried_kernels(request: Request) -> Request:
    return request.with_settings(graphs=replace(request.settings.graphs, tries_kernels=False))


def without_media(request: Request) -> Request:
    return request.with_settings(language_model_only=True)


def without_drafts(request: Request) -> Request:
    return request.with_settings(speculation=None)


def with_stated_batch(request: Request) -> Request:
    return request.with_settings(max_num_batched_tokens=8192)


EXEMPTIONS = (
    Exemption(
        "language_model_only", "0.11.1", "0.33.0", "vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner._dummy_run",
        "without media the compiled graph takes token ids, so that torch.compile tries kernels on a copy of the embedding table",
        without_tried_kernels,
    ),
    Exemption(
        "language_model_only", "0.22.0", "0.33.0", "vllm/v1/worker/gpu/model_states/default.py",
        "DefaultModelState.prepare_dummy_inputs", "the same in the V2 runner", without_tried_kernels,
    ),
    Exemption(
        "enforce_eager", "0.19.0", "0.33.0", "vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner.profile_cudagraph_memory",
        "the first sample of the estimate may be negative, and is not clamped: with drafts and recurrent states graphs give memory back",
        without_drafts,
    ),
    Exemption(
        "max_model_len", "0.8.0", "0.18.0", "vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner.profile_run",
        "a video is as long as the context allows, and as many whole ones as the batch holds are encoded: shorter ones fill it better",
        without_media,
    ),
    Exemption(
        "max_model_len", "0.19.0", "0.33.0", "vllm/multimodal/encoder_budget.py", "MultiModalBudget._get_max_items", "the same",
        without_media,
    ),
    Exemption(
        "max_model_len", "0.6.0", "0.10.2", "vllm/worker/model_runner.py", "GPUModelRunnerBase.profile_run",
        "V0 profiles as many prompts with all their items as the batch holds", without_media,
    ),
    Exemption(
        "max_model_len", "0.6.0", "0.10.2", "vllm/engine/arg_utils.py", "EngineArgs._set_default_args_v0",
        "V0 cuts prompts only where they may be longer than 32K, and a batch else holds a whole prompt", with_stated_batch,
    ),
    Exemption(
        "max_model_len", "0.6.0", "0.20.0", "vllm/v1/core/kv_cache_utils.py", "_report_kv_cache_config",
        "a block of recurrent states is max_model_len long",
    ),
    Exemption(
        "max_model_len", "0.21.0", "0.33.0", "vllm/v1/core/kv_cache_utils.py", "get_kv_cache_capacity",
        "the size is concurrency × max_model_len: windows, states and last blocks count less in a longer request",
    ),
)  # fmt: skip


def holds(exemption: Exemption, lever: str, release: str) -> bool:
    """True where the lever and the release are the exemption's."""
    span = parse_patch(exemption.since), parse_patch(release), parse_patch(exemption.until)
    return exemption.lever == lever and span[0] <= span[1] <= span[2]


def losses(before: Budget, after: Budget) -> set[str]:
    """Name what fell: `bytes` on a stage by more than a MiB, below which the allocator rounds, or `tokens` of the engine."""
    assert before.num_tokens is not None
    assert after.num_tokens is not None
    pairs = [("tokens", before.num_tokens, after.num_tokens, 0)]
    pairs += [
        ("bytes", one.available, other.available, MIB) for one, other in zip(before.stages, after.stages, strict=True)
    ]
    ends = ("low", "expected", "high")
    return {
        name for name, one, other, least in pairs for end in ends if getattr(one, end) - getattr(other, end) > least
    }


def holds_fewer_requests(before: Budget, after: Budget) -> bool:
    counts = [
        kv_cache.max_concurrency(pool.expected) if kv_cache.groups else 0
        for kv_cache, pool in ((each.kv_cache, each.num_blocks) for each in (before, after))
        if kv_cache is not None and pool is not None
    ]
    return counts[1] < counts[0]


def violations(request: Request, budget: Budget, lever: str, steps: slice = slice(None)) -> Iterator[str]:
    """Yield the steps that take something away and are not exempt. `budget` is that of the request: one of the steps changes nothing."""
    rows = [row for row in EXEMPTIONS if holds(row, lever, request.vllm_version)]
    asked = STEPS[lever](request)[steps]
    budgets = [budget if each == request else plan(each) for each in asked]
    if any(budget.num_tokens is None for budget in budgets):
        return  # a part without a formula, such as drafts that a model does not have
    for (small, large), (one, other) in zip(
        zip(asked[1:], asked, strict=False), zip(budgets[1:], budgets, strict=False), strict=True
    ):
        lost = losses(other, one)
        for row in rows:
            if not lost:
                break
            if row.without is None:
                lost -= set() if holds_fewer_requests(other, one) else {"tokens"}
            else:
                lost &= losses(plan(row.without(large)), plan(row.without(small)))
        if lost:
            yield f"{request.shape.name} {request.vllm_version} {request.accelerator.name} {lever}: {sorted(lost)}"


def new_case(name: str, release: str, turn: int, **more: object) -> Request:
    shape = shape_of(name)
    usual = {"max_model_len": longest(shape), "max_num_seqs": 256, "max_num_batched_tokens": 8192}
    fields = {key: value for key, value in {**usual, **more}.items() if value is not ...}
    return new_request(
        shape=shape, accelerator=GPUS[turn % len(GPUS)], vllm_version=release, is_whole=True, **fields
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_one_step_of_every_lever_takes_nothing_away_from_any_model(release: str) -> None:
    """GPU and tensor parallelism turn with the model and the release."""
    offset = RELEASES.index(release)
    found = []
    for index, name in enumerate(catalogue.model_names()):
        if not EVERY_MODEL and (index + offset) % 2:
            continue
        case = new_case(name, release, index + 7 * offset, tensor=(1, 8)[(index // 3 + offset) % 2])
        budget = plan(case)
        found += [
            line for lever in STEPS for line in violations(case, budget, lever, FIRST_STEP.get(lever, slice(None)))
        ]
    assert not found, f"{len(found)}: {found[:20]}"


@cache
def kinds() -> list[list[int]]:
    """Places in the catalogue of models of one class and one format of weights."""
    found: dict[object, list[int]] = {}
    for index, name in enumerate(catalogue.model_names()):
        found.setdefault((shape_of(name).architecture, shape_of(name).quantization), []).append(index)
    return list(found.values())


DRAFTS = Speculation(method="ngram", num_speculative_tokens=3)
OTHER_SETTINGS: list[dict[str, object]] = [
    {}, {"max_model_len": ..., "max_num_seqs": ..., "max_num_batched_tokens": ...}, {"lora": LoraSettings(enabled=True, max_loras=4)},
    {"tensor": 2, "pipeline": 2}, {"data": 8, "expert": True}, {"kv_cache_dtype": "fp8"}, {"enable_prefix_caching": True},
    {"skip_mm_profiling": True}, {"circumstances": Circumstances(compile_cache="warm")},
    {"circumstances": Circumstances(compile_cache="cold")}, {"circumstances": Circumstances(use_v1=False)},
    {"circumstances": Circumstances(use_v2_model_runner=True)}, {"graphs": GraphSettings(tries_kernels=False)},
    {"weights_bytes": 10 * GIB}, {"speculation": DRAFTS},
    {"speculation": Speculation(method="mtp", num_speculative_tokens=2)}, {"limit_mm_per_prompt": (("image", 1), ("video", 0))},
    {"capacity": Capacity.PINNED}, {"max_num_seqs": ..., "circumstances": Circumstances(usage_context="llm")},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("release", RELEASES)
def test_no_step_of_any_lever_takes_anything_away_beside_other_settings(release: str) -> None:
    """All steps, for models of many kinds; model, GPU and other settings turn with the release."""
    offset = RELEASES.index(release)
    names, found = catalogue.model_names(), []
    for index in (
        range(len(names)) if EVERY_MODEL else [kind[offset // 2 % len(kind)] for kind in kinds()[offset % 2 :: 2]]
    ):
        more = OTHER_SETTINGS[(5 * index + 3 * offset) % len(OTHER_SETTINGS)]
        case = new_case(names[index], release, index + 7 * offset, **more)
        budget = plan(case)
        found += [line for lever in STEPS for line in violations(case, budget, lever)]
    assert not found, f"{len(found)}: {found[:20]}"


def test_every_exemption_is_needed() -> None:
    """Without it a step of some model takes something away."""
    cases = {
        "GPUModelRunner._dummy_run": (new_case("Qwen/Qwen3.5-27B", "0.27.0", 0), "language_model_only"),
        "DefaultModelState.prepare_dummy_inputs": (new_case("google/gemma-4-31B-it", "0.29.0", 0), "language_model_only"),
        "GPUModelRunner.profile_cudagraph_memory": (new_case("Zyphra/Zamba2-2.7B", "0.25.0", 4, speculation=DRAFTS), "enforce_eager"),
        "GPUModelRunner.profile_run": (new_case("OpenGVLab/InternVL3-8B", "0.8.0", 1), "max_model_len"),
        "GPUModelRunnerBase.profile_run": (new_case("OpenGVLab/InternVL3-8B", "0.6.0", 0), "max_model_len"),
        "MultiModalBudget._get_max_items": (new_case("OpenGVLab/InternVL3-8B", "0.22.0", 1), "max_model_len"),
        "EngineArgs._set_default_args_v0": (new_case("ai21labs/Jamba-v0.1", "0.8.0", 4, max_num_batched_tokens=...), "max_model_len"),
        "_report_kv_cache_config": (new_case("state-spaces/mamba-2.8b-hf", "0.16.0", 2), "max_model_len"),
        "get_kv_cache_capacity": (new_case("google/gemma-3-27b-it", "0.24.0", 0), "max_model_len"),
    }  # fmt: skip
    assert {row.function for row in EXEMPTIONS} == cases.keys()
    for function, (case, lever) in cases.items():
        budgets = [plan(each) for each in STEPS[lever](case)]
        assert any(losses(other, one) for one, other in zip(budgets[1:], budgets, strict=False)), function
