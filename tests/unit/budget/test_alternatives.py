"""Single changes that would fit: the least one of each kind, and none that is no change."""

import pytest

from kvgate.budget.answers.advice import alternatives
from kvgate.budget.answers.answer import plan
from kvgate.budget.answers.changes import Scope
from kvgate.budget.answers.solver import fits_low
from kvgate.budget.engine.request import Guarantee
from kvgate.budget.ground.interval import Verdict
from support.builders import catalogue_accelerator, catalogue_shape, new_request

LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"


def found(model: str, gpu: str, **settings: object) -> dict[str, object]:
    request = new_request(shape=catalogue_shape(model), accelerator=catalogue_accelerator(gpu), **settings)
    assert not fits_low(request)
    return {each.field: each.value for each in alternatives(request, Scope())}


@pytest.mark.parametrize(("tensor", "wider"), [(1, 2), (2, 4), (4, 8)])
def test_the_next_tensor_size_is_the_least_power_of_two_that_fits(tensor: int, wider: int) -> None:
    """141 GB of weights: two GPUs of 141 GB hold them, four of 80 GB hold more context than two, eight more than four."""
    gpu, length = {1: ("H200-SXM-141GB", 4096), 2: ("H100-SXM-80GB", 32_768), 4: ("H100-SXM-80GB", 131_072)}[tensor]
    settings = {"tensor": tensor, "max_model_len": length, "max_num_seqs": 4, "guarantee": Guarantee.FULL_CONTEXT}
    assert found(LLAMA_70B, gpu, **settings)["tensor_parallel_size"] == wider


def test_the_longest_length_and_the_most_sequences_fit_and_one_more_does_not() -> None:
    request = new_request(
        shape=catalogue_shape("Qwen/Qwen3-8B"), accelerator=catalogue_accelerator("L4-24GB"), max_model_len=8192,
        max_num_seqs=16, guarantee=Guarantee.FULL_CONTEXT,
    )  # fmt: skip
    values = {each.field: each.value for each in alternatives(request, Scope())}
    for field in ("max_model_len", "max_num_seqs"):
        most = values[field]
        assert isinstance(most, int)
        assert plan(request.with_settings(**{field: most})).verdict is Verdict.FITS
        assert plan(request.with_settings(**{field: most + 1})).verdict is not Verdict.FITS


def test_where_nothing_makes_room_for_the_other_engines_nothing_is_suggested() -> None:
    request = new_request(
        shape=catalogue_shape("Qwen/Qwen3-8B"), accelerator=catalogue_accelerator("H100-SXM-80GB"), shared_by=64
    )
    assert alternatives(request, Scope(accelerators=(catalogue_accelerator("H200-SXM-141GB"),))) == ()
