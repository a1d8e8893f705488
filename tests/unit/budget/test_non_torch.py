"""Non-torch memory by GPU, links and release, against the figures that vLLM logged."""

from typing import Any

import pytest

from kvgate.budget.interval import Interval
from kvgate.budget.plan import plan
from kvgate.budget.units import GIB, gib
from support.builders import catalogue_accelerator, catalogue_shape, new_request

SERIES = "https://github.com/llm-d-incubation/llm-d-planner/tree/d3121e05/accuracy/results/v0.19.0/logs"
EXPLORER = "https://github.com/llm-d/llm-d-benchmark/blob/356b8e03/config_explorer/empirical-vllm-memory-results.md"


def non_torch(model: str, gpu: str, version: str, **settings: Any) -> Interval:
    request = new_request(
        shape=catalogue_shape(model), accelerator=catalogue_accelerator(gpu), vllm_version=version, **settings
    )
    ledger = plan(request).stages[0].ledger
    assert ledger is not None
    return ledger.non_torch


@pytest.mark.parametrize(
    ("model", "gpu", "version", "tensor", "logged_gib", "near_gib", "source"),
    [
        ("Qwen/Qwen3-0.6B", "H100-SXM-80GB", "0.11.0", 1, 0.13, 0.03, EXPLORER),
        ("Qwen/Qwen3-32B", "H100-SXM-80GB", "0.11.0", 2, 0.54, 0.05, EXPLORER),
        ("meta-llama/Llama-3.1-8B-Instruct", "H100-SXM-80GB", "0.19.0", 1, 0.25, 0.05, SERIES),
        ("meta-llama/Llama-3.1-8B-Instruct", "H100-SXM-80GB", "0.19.0", 2, 2.07, 0.05, SERIES),
        ("meta-llama/Llama-3.1-8B-Instruct", "H100-SXM-80GB", "0.19.0", 4, 2.13, 0.10, SERIES),
        ("ibm-granite/granite-3.1-8b-instruct", "H100-SXM-80GB", "0.19.0", 1, 0.46, 0.30, SERIES),
        ("Qwen/Qwen2.5-7B-Instruct", "RTX-3090-24GB", "0.6.6", 1, 0.10, 0.05, "public log, index id 62352993850"),
        ("Qwen/Qwen2.5-1.5B-Instruct", "RTX-4090-24GB", "0.28.1", 2, 0.06, 0.20, "public log, index id 67109588529"),
    ],
)
def test_the_logged_figure(
    model: str, gpu: str, version: str, tensor: int, logged_gib: float, near_gib: float, source: str
) -> None:
    assert source
    amount = non_torch(model, gpu, version, tensor=tensor)
    assert amount.low <= gib(logged_gib) <= amount.high
    assert amount.expected / GIB == pytest.approx(logged_gib, abs=near_gib)


def test_nccl_leaves_the_budget_with_0_11() -> None:
    before, after = (
        non_torch("Qwen/Qwen3-32B", "H100-SXM-80GB", version, tensor=2) for version in ("0.10.2", "0.11.0")
    )
    assert before.expected - after.expected > gib(1)


def test_pcie_takes_little_and_says_so() -> None:
    amount = non_torch("Qwen/Qwen3-32B", "L40S-48GB", "0.19.0", tensor=2)
    assert amount.expected < gib(0.5)
    assert amount.high > gib(0.8)


def test_memory_shared_with_the_cpu_is_wide() -> None:
    amount = non_torch("Qwen/Qwen3-8B", "GB10", "0.33.0")
    assert amount.low < 0
    assert amount.high - amount.low > gib(4)
