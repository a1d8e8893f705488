"""The lower bound of the time to the first token, against figures that are counted by hand."""

import pytest

from kvgate.budget.answers.prefill import PrefillBound, prefill_bound
from kvgate.judgement.what_if import assess_request


def bound(model: str, gpu: str, tokens: int = 1000, **values: object) -> PrefillBound | None:
    budget = assess_request({"model": model, "gpu": gpu, "vllm_version": "0.33.0", **values}).budget
    assert budget is not None
    return prefill_bound(budget, tokens)


def test_two_operations_for_each_parameter_and_token() -> None:
    """Qwen3-32B: 64 layers of q, k and v (10,240 rows), o (8,192 columns) and a feed-forward of 3 × 25,600, all 5,120 wide."""
    found = bound("Qwen/Qwen3-32B", "H100-SXM-80GB", tensor_parallel_size=2)
    assert found is not None
    assert found.parameters == 64 * 5120 * (8192 + 2 * 1024 + 8192 + 3 * 25600)
    assert (found.peak_flops, found.num_gpus) == (989_400_000_000_000, 2)
    assert found.seconds == pytest.approx(2 * found.parameters * 1000 / (2 * 989.4e12))


def test_of_experts_those_count_that_a_token_takes() -> None:
    """Qwen3-30B-A3B has 128 experts of three matrices of 768 × 2,048 in 48 layers, and a token takes 8 of them."""
    found = bound("Qwen/Qwen3-30B-A3B", "H100-SXM-80GB")
    assert found is not None
    attention, router = 2048 * (4096 + 2 * 512 + 4096), 2048 * 128
    assert found.parameters == 48 * (attention + router + 8 * 3 * 768 * 2048)


@pytest.mark.parametrize(
    ("model", "gpu", "tflops"),
    [
        ("Qwen/Qwen3-32B-FP8", "H100-SXM-80GB", 1978.9),
        ("Qwen/Qwen3-32B-FP8", "A100-SXM-80GB", 312),  # Marlin makes 16 bits of it
        ("Qwen/Qwen3-32B-AWQ", "L40S-48GB", 362.05),
        ("Qwen/Qwen3-32B", "RTX-A6000-48GB", None),
        ("openai/gpt-oss-20b", "H100-SXM-80GB", None),  # its 4 bits are multiplied in several ways
    ],
)
def test_the_format_of_the_weights_chooses_the_peak(model: str, gpu: str, tflops: float | None) -> None:
    found = bound(model, gpu)
    assert (found and found.peak_flops / 1e12) == tflops


def test_a_faster_gpu_and_a_shorter_prompt_take_less() -> None:
    slow, fast = bound("Qwen/Qwen3-8B", "L4-24GB"), bound("Qwen/Qwen3-8B", "L40S-48GB")
    assert slow is not None
    assert fast is not None
    assert slow.seconds > fast.seconds
    assert slow.seconds == pytest.approx(1000 / slow.tokens_per_second)
