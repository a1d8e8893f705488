"""One question on several accelerators: the same verdicts as one by one, with fewer questions."""

from typing import Any

import pytest
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import Accelerator, BudgetRequest, Verdict
from kvgate.budget.ground.units import GIB
from kvgate.judgement import on_accelerators
from kvgate.judgement.assess import judge
from kvgate.judgement.assessment import Assessment
from kvgate.judgement.on_accelerators import joined, memory_needed, verdicts_on
from kvgate.judgement.what_if import read_request

BOARDS = tuple(each for each in catalogue.accelerators() if each.vendor == "nvidia" and not each.is_slice)
MODELS = (
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-8B",
    "meta-llama/Llama-3.1-70B-Instruct",
    "Qwen/Qwen2.5-VL-7B-Instruct",
    "openai/gpt-oss-20b",
)
SETTINGS: tuple[dict[str, Any], ...] = (
    {"vllm_version": "0.10.2"},
    {"vllm_version": "0.32.0", "tensor_parallel_size": 2, "max_model_len": 8192},
    {"vllm_version": "0.8.5", "dtype": "bfloat16", "kv_cache_dtype": "fp8"},
    {"vllm_version": "0.32.0", "gpu_memory_utilization": 0.5, "max_num_seqs": 512},
)


def asked(model: str, **values: Any) -> BudgetRequest:
    request, findings = read_request({"model": model, "gpu": "L4-24GB", **values}, is_whole=True)
    assert request is not None, findings
    return request


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("values", SETTINGS, ids=range(len(SETTINGS)))
def test_verdicts_on_many_gpus_are_those_on_each(model: str, values: dict[str, Any]) -> None:
    request = asked(model, **values)
    one_by_one = [verdicts_on(request, (each,))[0] for each in BOARDS]
    for together, alone in zip(verdicts_on(request, BOARDS), one_by_one, strict=True):
        assert (together.name, together.verdict, together.reason) == (alone.name, alone.verdict, alone.reason)
        assert abs((together.lacking_bytes or 0) - (alone.lacking_bytes or 0)) < 1 << 28, "the scratch of the sampler"


def test_half_of_the_catalogue_answers_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_of: list[str] = []

    def counted(request: BudgetRequest) -> Assessment:
        asked_of.append(request.accelerator.name)
        return judge(request)

    monkeypatch.setattr(on_accelerators, "judge", counted)
    request = asked("Qwen/Qwen3-8B", max_model_len=12345, vllm_version="0.32.0")
    verdicts_on(request, BOARDS)
    assert len(asked_of) <= 0.7 * len(BOARDS)
    before = len(asked_of)
    verdicts_on(replace(request, accelerator=BOARDS[-1]), BOARDS)
    assert len(asked_of) == before, "the same question again is not judged again"


def test_a_gpu_lacks_what_the_larger_one_has_more() -> None:
    request = asked("Qwen/Qwen3-8B", max_model_len=30000, vllm_version="0.32.0")
    small, large = (catalogue.find_accelerator(name) for name in ("RTX-4060-8GB", "L4-24GB"))
    assert small is not None
    assert large is not None
    on_small, on_large = verdicts_on(request, (small, large))
    assert on_small.lacking_bytes is not None
    assert on_large.lacking_bytes is None or on_large.lacking_bytes < on_small.lacking_bytes
    assert on_small.reason == "WeightsTooLarge"


def test_a_given_cache_that_a_gpu_has_no_room_for_may_not_do() -> None:
    request = asked("Qwen/Qwen3-8B", kv_cache_memory_bytes=60 << 30, max_model_len=8192, vllm_version="0.32.0")
    verdicts = {each.name: each for each in verdicts_on(request, BOARDS)}
    assert verdicts["L4-24GB"].verdict is Verdict.MAY_NOT_FIT
    assert verdicts["L4-24GB"].reason == "KVCacheMemoryAboveGpu"
    assert verdicts["H200-SXM-141GB"].verdict is Verdict.FITS


def test_two_releases_that_differ_leave_it_open() -> None:
    request = asked("Qwen/Qwen3-8B", max_model_len=8192, vllm_version="0.32.0")
    fits, refused = verdicts_on(request, [each for each in BOARDS if each.name in ("H100-SXM-80GB", "RTX-4060-8GB")])[
        ::-1
    ]
    if fits.verdict is not Verdict.FITS:
        fits, refused = refused, fits
    (both,) = joined((fits,), (replace(refused, name=fits.name),))
    assert (both.verdict, both.lacking_bytes) == (Verdict.MAY_NOT_FIT, None)
    assert tuple(joined((fits,), (fits,))) == (fits,)


def test_a_gpu_with_the_memory_that_is_needed_is_enough_and_one_with_less_is_not() -> None:
    request = asked("Qwen/Qwen3-8B", max_model_len=30000, vllm_version="0.32.0")
    budget = judge(request).budget
    assert budget is not None
    needed = memory_needed(budget)
    assert needed is not None
    assert needed.memory_bytes is not None
    for factor, verdict in ((1.0, Verdict.FITS), (0.9, Verdict.DOES_NOT_FIT)):
        size = int(needed.memory_bytes * factor) + (1 << 22)
        spread = request.accelerator.memory_high_bytes - request.accelerator.memory_bytes
        accelerator = replace(
            request.accelerator, memory_bytes=size, memory_low_bytes=size - spread, memory_high_bytes=size + spread
        )
        assert judge(replace(request, accelerator=accelerator)).verdict is verdict


def board(gib: float, *, low: float = 0.0, high: float = 0.0, **more: Any) -> Accelerator:
    """An H100 with another memory, whose drivers report `low` GiB less and `high` GiB more."""
    ends = {"memory_low_bytes": round((gib - low) * GIB), "memory_high_bytes": round((gib + high) * GIB)}
    h100 = catalogue.find_accelerator("H100-SXM-80GB")
    assert h100 is not None
    return replace(h100, name=f"{gib} -{low} +{high} {more}", memory_bytes=round(gib * GIB), **ends, **more)


LONG = {"max_model_len": 30_000, "vllm_version": "0.33.0"}
SAMPLING = {"max_model_len": 30_000, "vllm_version": "0.20.0"}
"""The sampler of this release takes scratch for each multiprocessor: 0.17 GiB for 300 of them."""


@pytest.mark.parametrize(
    ("values", "boards"),
    [
        (LONG, [board(step / 4, low=0.1, high=0.1) for step in range(80, 104)]),
        (LONG, [board(23.5), board(24, low=4), board(24.5, low=1), board(25, high=9), board(26, low=8), board(30, low=7)]),
        (LONG, [board(19), board(20, high=8), board(21), board(22), board(22.5), board(23, high=3), board(24)]),
        ({**LONG, "tensor_parallel_size": 2}, [
            board(step / 8, nvlink=nvlink) for step in range(80, 120) for nvlink in (False, True)
        ]),
        (SAMPLING, [board(10, high=2)] + [
            board(20 + (step + number / 2) / 64, high=2, multiprocessors=count)
            for step in range(192) for number, count in enumerate((1, 300))
        ]),
    ],
    ids=["steps", "wide below", "wide above", "links", "scratch"],
)  # fmt: skip
def test_boards_that_only_look_alike_are_judged_as_if_alone(values: dict[str, Any], boards: list[Accelerator]) -> None:
    request = asked("Qwen/Qwen3-8B", **values)
    alone = [verdicts_on(request, (each,))[0] for each in boards]
    together = verdicts_on(request, boards)
    assert [(each.name, each.verdict) for each in together] == [(each.name, each.verdict) for each in alone]
    assert len({each.verdict for each in alone}) > 1


def test_no_gpu_is_no_verdict_and_lists_of_two_releases_are_of_the_same_gpus() -> None:
    request = asked("Qwen/Qwen3-8B", max_model_len=8192)
    assert verdicts_on(request, ()) == ()
    with pytest.raises(ValueError, match="shorter"):
        tuple(joined(verdicts_on(request, BOARDS[:2]), verdicts_on(request, BOARDS[:1])))
