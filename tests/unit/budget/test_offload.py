"""Weights in host memory: what stays on the GPU, held against logged starts, and the pinned memory of a rank."""

from typing import Any

import pytest

from kvgate.budget.answers.answer import plan
from kvgate.budget.engine.request import OffloadSettings
from kvgate.budget.gpu.ledger import Ledger
from kvgate.budget.ground.units import GIB, gib
from support.builders import catalogue_shape, new_accelerator, new_request

_SOURCE = "https://github.com/TheBuccaneer/vllm-offload-profiles/blob/HEAD/data/provenance/gpu_memory_configuration"


def ledger(model: str, offload: OffloadSettings, **changes: Any) -> Ledger:
    asked = {"max_model_len": 8192, "vllm_version": "0.32.0", **changes}
    budget = plan(new_request(shape=catalogue_shape(model), offload=offload, **asked))
    assert budget.tightest is not None
    assert budget.tightest.ledger is not None
    return budget.tightest.ledger


@pytest.mark.parametrize(
    ("model", "weights_gib"),
    [("meta-llama/Llama-3.1-8B-Instruct", 2.91), ("Qwen/Qwen2.5-7B-Instruct", 2.17)],
)
def test_twelve_gib_less_as_two_starts_of_0_17_logged(model: str, weights_gib: float) -> None:
    """fixd_llama_gmem086_offload12.log and fixd_qwen_gmem086_offload12.log of `_SOURCE`."""
    weights = ledger(model, OffloadSettings(cpu_bytes=12 * GIB), vllm_version="0.17.1").weights
    assert weights.expected == pytest.approx(gib(weights_gib), abs=gib(0.006))
    assert weights.low < weights.expected < weights.high


def test_layers_move_and_nothing_else() -> None:
    left = ledger("Qwen/Qwen3-8B", OffloadSettings(cpu_bytes=1000 * GIB)).weights
    ends = 2 * 151_936 * 4096 * 2
    assert left.expected == pytest.approx(ends, rel=0.03)


def test_pinned_tensors_take_powers_of_two() -> None:
    host = ledger("Qwen/Qwen2.5-7B-Instruct", OffloadSettings(cpu_bytes=12 * GIB)).host_bytes
    assert 12 * GIB < host.expected < 24 * GIB
    assert host.low >= 11 * GIB


def test_kernels_that_repack_weights_take_them_back_before_0_17() -> None:
    whole = ledger("Qwen/Qwen3-8B-AWQ", OffloadSettings(), vllm_version="0.14.0").weights
    old, new = (
        ledger("Qwen/Qwen3-8B-AWQ", OffloadSettings(cpu_bytes=2 * GIB), vllm_version=version).weights
        for version in ("0.14.0", "0.17.1")
    )
    assert old.expected == whole.expected
    assert old.low < whole.low < whole.high <= old.high
    assert new.high < whole.low


def test_named_parameters_move_alone_and_unknown_names_leave_the_figure_open() -> None:
    model, much = "Qwen/Qwen3-30B-A3B", 1000 * GIB
    experts = ledger(model, OffloadSettings(cpu_bytes=much, cpu_params=("experts",))).weights
    everything = ledger(model, OffloadSettings(cpu_bytes=much)).weights
    strange = ledger(model, OffloadSettings(cpu_bytes=much, cpu_params=("of_a_fork",))).weights
    whole = ledger(model, OffloadSettings()).weights
    assert everything.expected < experts.expected < gib(8)
    assert strange.low < gib(8)
    assert strange.high >= whole.high


def test_groups_leave_buffers_for_the_layers_that_are_fetched() -> None:
    whole = ledger("Qwen/Qwen3-8B", OffloadSettings()).weights.expected
    one = ledger("Qwen/Qwen3-8B", OffloadSettings(group_size=4)).weights.expected
    two = ledger("Qwen/Qwen3-8B", OffloadSettings(group_size=4, num_in_group=2)).weights.expected
    deep = ledger("Qwen/Qwen3-8B", OffloadSettings(group_size=4, prefetch_step=3)).weights.expected
    layer = (whole - one) // 8  # nine layers of 36 move, and one buffer stays
    assert whole - two == pytest.approx(17 * layer, rel=0.01)
    assert whole - deep == pytest.approx(6 * layer, rel=0.01)


def test_the_backend_decides_between_both() -> None:
    both: dict[str, Any] = {"cpu_bytes": 2 * GIB, "group_size": 4}
    by_backend = {
        backend: ledger("Qwen/Qwen3-8B", OffloadSettings(**both, backend=backend)).weights.expected
        for backend in ("auto", "uva", "prefetch")
    }
    assert by_backend["auto"] == by_backend["prefetch"] < by_backend["uva"]


def test_weights_that_the_user_gives_are_as_loaded() -> None:
    request = new_request(
        shape=catalogue_shape("Qwen/Qwen3-8B"), offload=OffloadSettings(cpu_bytes=GIB), weights_bytes=9 * GIB
    )
    budget = plan(request)
    assert budget.tightest is not None
    assert budget.tightest.ledger is not None
    assert budget.tightest.ledger.weights.expected == 9 * GIB


def test_a_model_beyond_the_gpu_starts_with_the_rest_in_host_memory() -> None:
    small = new_accelerator(memory_gib=16)
    shape = catalogue_shape("Qwen/Qwen3-8B")
    for offload, starts in ((OffloadSettings(), False), (OffloadSettings(cpu_bytes=8 * GIB), True)):
        budget = plan(new_request(shape=shape, accelerator=small, max_model_len=4096, offload=offload))
        assert (budget.verdict.value == "Fits") is starts
