"""Weights that real servers logged ("Model loading took"), in GiB, against ours."""

import pytest

from kvgate.budget.answers.answer import plan
from kvgate.budget.ground.units import GIB
from support.builders import catalogue_accelerator, catalogue_shape, new_request
from support.tables import table

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
    # a table for four times as many positions, and what the first layers add to 2048 tokens
    ("Qwen/Qwen3-VL-30B-A3B-Instruct", "RTX-3090-24GB", "0.11.0", 4, 14.77),
    # Marlin's padding on Hopper, before vLLM brought Triton's kernels; on Ada ever since
    ("openai/gpt-oss-20b", "H100-NVL-94GB", "0.10.1", 1, 13.72),
    ("openai/gpt-oss-120b", "H100-SXM-80GB", "0.10.1", 1, 65.97),
    ("openai/gpt-oss-20b", "RTX-4090-24GB", "0.12.0", 1, 13.72),
    ("google/gemma-4-31B-it", "B300-SXM-288GB", "0.26.0", 1, 58.99),
]


def test_the_queries_of_deepseek_v4_are_part_of_its_weights() -> None:
    """DeepSeek-V4-Flash on two H200 with 0.27.1 and 8192 tokens; 0.5 GiB is the pool, which neither 0.26 nor 0.30 has."""
    weights = {}
    for version in ("0.26.0", "0.27.1", "0.30.0"):
        request = new_request(
            shape=catalogue_shape("deepseek-ai/DeepSeek-V4-Flash"),
            accelerator=catalogue_accelerator("H200-SXM-141GB"),
            vllm_version=version,
            tensor=2,
            max_num_batched_tokens=8192,
        )
        ledger = plan(request).stages[0].ledger
        assert ledger is not None
        weights[version] = ledger.weights.expected
    assert weights["0.27.1"] / GIB == pytest.approx(74.34, abs=0.1)
    assert weights["0.27.1"] - weights["0.26.0"] == weights["0.27.1"] - weights["0.30.0"] == 8192 * 64 * 512 * 2


@table(("model", "gpu", "version", "tensor", "logged_gib"), LOGGED)
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
