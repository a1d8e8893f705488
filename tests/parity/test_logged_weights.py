"""Weights that real servers logged ("Model loading took"), in GiB, against ours."""

import pytest

from kvgate.budget.answer import plan
from kvgate.budget.units import GIB
from support.builders import catalogue_accelerator, catalogue_shape, new_request

E4B = "google/gemma-4-E4B-it"

LOGGED = [
    # rotary tables of 131,072 positions, one of them scaled by 8
    ("google/gemma-3-4b-it", "H100-SXM-80GB", "0.19.0", 1, 8.58),
    ("google/gemma-3-4b-it", "B200-SXM-180GB", "0.10.0", 1, 8.58),
    ("google/gemma-3-12b-it", "H100-SXM-80GB", "0.19.0", 1, 23.31),
    ("google/gemma-3-12b-it", "RTX-3090-24GB", "0.15.1", 2, 11.97),
    ("google/gemma-3-27b-it", "H100-SXM-80GB", "0.19.0", 1, 51.45),
    # keys and values in layers that share them, the audio tower that its config leaves out, and the inputs of every layer
    (E4B, "RTX-3090-24GB", "0.19.2", 1, 15.16),
    (E4B, "RTX-3090-24GB", "0.22.1", 1, 15.18),
    (E4B, "RTX-3090-24GB", "0.27.1", 1, 15.19),
    ("google/gemma-4-31B-it", "B300-SXM-288GB", "0.26.0", 1, 58.99),
]


@pytest.mark.parametrize(("model", "gpu", "version", "tensor", "logged_gib"), LOGGED)
def test_our_weights_are_those_of_the_log(model: str, gpu: str, version: str, tensor: int, logged_gib: float) -> None:
    request = new_request(
        shape=catalogue_shape(model),
        accelerator=catalogue_accelerator(gpu),
        vllm_version=version,
        tensor=tensor,
        max_num_batched_tokens=2048,
    )
    found = plan(request).stages[0].ledger
    assert found is not None
    assert found.weights.expected / GIB == pytest.approx(logged_gib, abs=0.035)
