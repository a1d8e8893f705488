"""What is gone before vLLM looks, against `Free memory on device (a/b GiB)` of logged starts."""

from dataclasses import replace

import pytest

from kvgate.budget.hardware import Parallelism
from kvgate.budget.non_torch import startup_slack
from kvgate.budget.units import GIB, gib
from kvgate.budget.versions import accounting_of
from support.builders import catalogue_accelerator


@pytest.mark.parametrize(
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
