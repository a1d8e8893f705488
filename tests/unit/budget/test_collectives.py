"""Communication between ranks: FlashInfer's workspace by rule, and what logs of several GPUs show of all memory outside torch."""

from typing import Any

import pytest

from kvgate.budget.answers.answer import plan
from kvgate.budget.engine.request import GraphSettings
from kvgate.budget.ground.units import GIB, MIB, gib
from support.builders import catalogue_accelerator, catalogue_shape, new_request
from support.tables import table

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"  # a hidden state of 8 KiB


def inputs_of(gpu: str, version: str, **settings: Any) -> dict[str, int | str]:
    shape, accelerator = catalogue_shape(settings.pop("model", LLAMA)), catalogue_accelerator(gpu)
    settings = {"max_num_batched_tokens": 8192, "max_num_seqs": 64} | settings
    ledger = plan(new_request(shape=shape, accelerator=accelerator, vllm_version=version, **settings)).stages[0].ledger
    assert ledger is not None
    return dict(ledger.lines[2].inputs)


@table(
    ("gpu", "version", "settings", "mib"),
    [
        ("H100-SXM-80GB", "0.16.0", {"tensor": 2}, 0),
        ("H100-SXM-80GB", "0.17.0", {"tensor": 2}, 3 * 512),
        ("H100-SXM-80GB", "0.19.0", {"tensor": 4}, 3 * 512),
        ("B300-SXM-288GB", "0.20.0", {"tensor": 4}, 4 * 512),  # the last buffer has 3 × 4 × 64 MiB
        ("H100-SXM-80GB", "0.22.0", {"tensor": 2}, 130 + 2 + 386),
        ("H100-SXM-80GB", "0.22.0", {"tensor": 2, "max_num_batched_tokens": 2048}, 34 + 2 + 98),
        ("H100-SXM-80GB", "0.25.0", {"tensor": 2}, 386),
        ("H100-SXM-80GB", "0.27.0", {"tensor": 2}, 512),
        ("B300-SXM-288GB", "0.29.0", {"tensor": 8}, 512),
        ("B200-SXM-180GB", "0.33.0", {"tensor": 8}, 2 * 512),  # 128 MiB without a norm
        ("H100-SXM-80GB", "0.19.0", {"tensor": 2, "enforce_eager": True}, 0),
        ("H100-SXM-80GB", "0.33.0", {"tensor": 2, "enforce_eager": True}, 512),
        ("H100-SXM-80GB", "0.33.0", {"tensor": 4, "enforce_eager": True}, 0),  # 64 MiB are more than FlashInfer reduces
        ("H100-SXM-80GB", "0.19.0", {"tensor": 2, "optimization_level": 1}, 0),
        ("H100-SXM-80GB", "0.19.0", {"tensor": 2, "graphs": GraphSettings(compiles=False)}, 0),
        ("H100-SXM-80GB", "0.19.0", {"tensor": 2, "pipeline": 2}, 0),
        ("H100-SXM-80GB", "0.22.0", {"tensor": 2, "pipeline": 2}, 130 + 2 + 386),
        ("H100-SXM-80GB", "0.23.0", {"tensor": 2, "pipeline": 2}, 0),
        ("H100-SXM-80GB", "0.19.0", {"tensor": 1}, 0),
        ("A100-SXM-80GB", "0.19.0", {"tensor": 2}, 0),
        ("H100-PCIe-80GB", "0.19.0", {"tensor": 2}, 0),
        ("GH200-480GB", "0.19.0", {"tensor": 2}, 0),
    ],
)
def test_the_workspace_of_all_reduce_follows_from_release_gpu_and_ranks(
    gpu: str, version: str, settings: dict[str, Any], mib: int
) -> None:
    assert inputs_of(gpu, version, **settings)["all_reduce_workspace_bytes"] == mib * MIB


@table(
    ("gpu", "version", "tensor", "logged_gib", "near_gib", "source"),
    [
        ("H100-SXM-80GB", "0.6.5", 2, 3.58, 0.1, "vllm-project/vllm#10511"),
        ("A100-SXM-40GB", "0.7.0", 8, 2.10, 0.1, "public log, index id 3706561278"),
        ("A100-SXM-40GB", "0.7.2", 2, 1.54, 0.1, "daxdelvira/distributed_agent_gc"),
        ("H100-SXM-80GB", "0.10.2", 4, 1.84, 0.1, "vLLM with Qwen3-Next, public log 56852833842"),
        ("H200-SXM-141GB", "0.10.2", 2, 1.38, 0.1, "public log, index id 7292846353"),
        ("L40S-48GB", "0.10.2", 8, 0.21, 0.1, "public log, index id 38962983769"),
        ("RTX-3090-24GB", "0.7.2", 2, 0.25, 0.1, "vllm-project/vllm#13061"),
        ("H100-SXM-80GB", "0.19.0", 4, 2.17, 0.1, "llm-d-incubation/llm-d-planner, accuracy/results"),
        ("GB200-192GB", "0.26.0", 4, 0.95, 0.4, "public log, index id 61511710941"),
        ("MI300X-192GB", "0.9.1", 1, 0.66, 0.1, "cmontemuino/amd-mi300x-ml-benchmarks"),
        ("MI50-32GB", "0.10.0", 2, 0.72, 0.2, "nlzy/vllm-gfx906#10"),
        ("Arc-Pro-B60-24GB", "0.29.0", 1, 1.50, 0.7, "public log, index id 65856141780"),
    ],
)
def test_the_logged_figure_of_memory_outside_torch(
    gpu: str, version: str, tensor: int, logged_gib: float, near_gib: float, source: str
) -> None:
    assert source
    request = new_request(
        shape=catalogue_shape(LLAMA), accelerator=catalogue_accelerator(gpu), vllm_version=version, tensor=tensor
    )
    ledger = plan(request).stages[0].ledger
    assert ledger is not None
    assert ledger.non_torch.low <= gib(logged_gib) <= ledger.non_torch.high
    assert ledger.non_torch.expected / GIB == pytest.approx(logged_gib, abs=near_gib)


DEEPSEEK = "deepseek-ai/DeepSeek-V3"


@pytest.mark.parametrize(
    ("version", "data", "all_to_all", "gib_expected"),
    [
        ("0.24.0", 8, "", 0),
        ("0.24.0", 8, "deepep_high_throughput", 1),
        ("0.24.0", 16, "deepep_high_throughput", 2),
        ("0.24.0", 16, "deepep_low_latency", 1 + 4 * 256 * 256 * (2 * 7168 + 224) / GIB),
        ("0.19.0", 16, "deepep_low_latency", 1 + 4 * 256 * 256 * (2 * 7168 + 224) / GIB),
        ("0.24.0", 1, "deepep_low_latency", 0),
        ("0.33.0", 16, "moonep", 0),  # no formula: a warning names the option
    ],
)
def test_deepep_has_buffers_for_the_tokens_of_every_expert(
    version: str, data: int, all_to_all: str, gib_expected: float
) -> None:
    """By rule, no start known: DeepEP's own size hint is 3.55 GiB for 256 experts and 256 tokens of 7168 channels."""
    found = inputs_of(
        "H200-SXM-141GB", version, model=DEEPSEEK, data=data, expert=True, all_to_all=all_to_all,
        max_num_batched_tokens=None,
    )  # fmt: skip
    assert found.get("all_to_all_bytes", 0) == round(gib_expected * GIB)
