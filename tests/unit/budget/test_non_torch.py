"""Memory outside torch: against the figures that vLLM logged, and `Free memory on device (a/b GiB)` at start-up."""

from typing import Any

import pytest
from msgspec.structs import replace

from kvgate.budget.answers.answer import plan
from kvgate.budget.gpu.non_torch import startup_slack
from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.ground.interval import Interval
from kvgate.budget.ground.units import GIB, gib
from kvgate.budget.releases.versions import accounting_of
from support.builders import catalogue_accelerator, catalogue_shape, new_request
from support.tables import table

SERIES = "https://github.com/llm-d-incubation/llm-d-planner/tree/d3121e05/accuracy/results/v0.19.0/logs"
EXPLORER = "https://github.com/llm-d/llm-d-benchmark/blob/356b8e03/config_explorer/empirical-vllm-memory-results.md"


def non_torch(model: str, gpu: str, version: str, **settings: Any) -> Interval:
    request = new_request(
        shape=catalogue_shape(model), accelerator=catalogue_accelerator(gpu), vllm_version=version, **settings
    )
    ledger = plan(request).stages[0].ledger
    assert ledger is not None
    return ledger.non_torch


@table(
    ("model", "gpu", "version", "tensor", "logged_gib", "near_gib", "source"),
    [
        ("Qwen/Qwen3-0.6B", "H100-SXM-80GB", "0.11.0", 1, 0.13, 0.06, EXPLORER),
        ("Qwen/Qwen3-32B", "H100-SXM-80GB", "0.11.0", 2, 0.54, 0.07, EXPLORER),
        ("meta-llama/Llama-3.1-8B-Instruct", "H100-SXM-80GB", "0.19.0", 1, 0.25, 0.05, SERIES),
        ("meta-llama/Llama-3.1-8B-Instruct", "H100-SXM-80GB", "0.19.0", 2, 2.07, 0.09, SERIES),
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


def test_a_stage_without_the_sampler_has_fewer_kernels() -> None:
    """Llama-3.1-8B in two and in four stages shows 0.07 GiB (llm-d-planner, 0.19.0); one GPU shows 0.25."""
    request = new_request(
        shape=catalogue_shape("meta-llama/Llama-3.1-8B-Instruct"), accelerator=catalogue_accelerator("H100-SXM-80GB"),
        vllm_version="0.19.0", pipeline=2, max_num_seqs=1024, max_num_batched_tokens=8192,
    )  # fmt: skip
    first, last = (stage.ledger for stage in plan(request).stages)
    assert first is not None
    assert last is not None
    assert first.non_torch.low <= gib(0.07) <= first.non_torch.high
    assert first.non_torch.expected / GIB == pytest.approx(0.07, abs=0.1)
    assert last.non_torch.expected > first.non_torch.expected


def test_nccl_leaves_the_budget_with_0_11() -> None:
    before, after = (
        non_torch("Qwen/Qwen3-32B", "H100-SXM-80GB", version, tensor=2) for version in ("0.10.2", "0.11.0")
    )
    assert before.expected - after.expected > gib(0.8)


def test_pcie_takes_little_and_says_so() -> None:
    amount = non_torch("Qwen/Qwen3-32B", "L40S-48GB", "0.19.0", tensor=2)
    assert gib(0.1) < amount.expected < gib(0.5)
    assert gib(0.5) < amount.high < gib(0.8)


def test_memory_shared_with_the_cpu_is_wide() -> None:
    amount = non_torch("Qwen/Qwen3-8B", "GB10", "0.33.0")
    assert amount.low < 0
    assert amount.high - amount.low > gib(4)


@table(
    ("gpu", "version", "tensor", "free_gib", "total_gib", "source"),
    [
        ("H100-SXM-80GB", "0.11.0", 1, 78.57, 79.18, "llm-d-benchmark, empirical-vllm-memory-results.md"),
        ("H100-SXM-80GB", "0.11.0", 2, 77.64, 79.18, "llm-d-benchmark, empirical-vllm-memory-results.md"),
        ("H100-SXM-80GB", "0.19.0", 1, 78.68, 79.19, "llm-d-planner, accuracy/results/v0.19.0"),
        ("H200-SXM-141GB", "0.10.2", 2, 139.21, 139.81, "public log, index id 7292846353"),
        ("GB200-192GB", "0.26.0", 4, 181.84, 184.31, "public log, index id 61511710941"),
        ("RTX-PRO-6000-Server-96GB", "0.27.1", 4, 94.05, 95.01, "public log, index id 57923772900"),
        ("RTX-5090-32GB", "0.28.0", 1, 30.86, 31.36, "public log, index id 69451098589"),
        ("RTX-3090-24GB", "0.29.0", 1, 23.05, 23.56, "public log, index id 69231470721"),
        ("A100-SXM-80GB", "0.31.0", 1, 78.84, 79.25, "public log, index id 70682754770"),
        ("MI300X-192GB", "0.28.0", 1, 191.36, 191.69, "public log, index id 69526563042"),
        ("GB10-128GB", "0.30.0", 1, 112.26, 119.63, "public log, index id 61222544093"),
    ],
)
def test_what_was_gone_lies_in_the_interval(
    gpu: str, version: str, tensor: int, free_gib: float, total_gib: float, source: str
) -> None:
    assert source
    slack = startup_slack(catalogue_accelerator(gpu), accounting_of(version), Parallelism(tensor=tensor))
    assert slack.low <= gib(total_gib - free_gib) <= slack.high


def test_ranks_cost_more_and_what_is_not_known_is_wider() -> None:
    gpu, accounting = catalogue_accelerator("L40S-48GB"), accounting_of("0.33.0")
    alone, pair = (startup_slack(gpu, accounting, Parallelism(tensor=tensor)) for tensor in (1, 2))
    assert pair.expected > alone.expected
    foreign = startup_slack(replace(gpu, vendor="amd"), accounting, Parallelism())
    assert foreign.high - foreign.low > alone.high - alone.low
    assert alone.high < GIB
