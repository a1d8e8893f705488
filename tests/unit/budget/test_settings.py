"""Defaults that a model's media raise, that a performance mode changes, and that the V0 engine has."""

from typing import Any

import pytest

from kvgate.budget.engine.circumstances import Circumstances
from kvgate.budget.engine.settings import accounting_for, resolve_settings
from kvgate.budget.releases.versions import accounting_of
from support.builders import catalogue_accelerator, catalogue_shape, new_request
from support.tables import table


@pytest.mark.parametrize(
    ("model", "version", "batched"),
    [
        ("google/gemma-4-26B-A4B-it", "0.25.1", 2496),  # as its concurrency in a public log says
        ("google/gemma-4-26B-A4B-it", "0.24.0", 2048),
        ("google/gemma-4-E4B-it", "0.25.1", 2048),  # its images do not attend both ways
    ],
)
def test_a_defaulted_batch_holds_an_item_that_nobody_may_cut(model: str, version: str, batched: int) -> None:
    request = new_request(
        shape=catalogue_shape(model), accelerator=catalogue_accelerator("L40S-48GB"), vllm_version=version
    )
    assert resolve_settings(request, accounting_of(version)).max_num_batched_tokens == batched


@table(
    ("gpu", "version", "settings", "batched", "seqs"),
    [
        ("H100-SXM-80GB", "0.33.0", {}, 16384, 2048),
        ("A100-SXM-80GB", "0.33.0", {}, 4096, 512),
        ("L4-24GB", "0.17.1", {}, 4096, 512),
        ("L4-24GB", "0.16.0", {}, 2048, 256),  # no such option yet
        ("L4-24GB", "0.33.0", {"max_num_seqs": 8}, 4096, 8),
        ("L4-24GB", "0.33.0", {"max_num_batched_tokens": 1000}, 1000, 512),
        ("L4-24GB", "0.33.0", {"enable_chunked_prefill": False, "max_model_len": 3000}, 4096, 512),
        ("L4-24GB", "0.33.0", {"enable_chunked_prefill": False, "max_model_len": 5000}, 5000, 512),
        ("L4-24GB", "0.33.0", {"max_num_seqs": 2, "max_model_len": 1000}, 2000, 2),
        ("L4-24GB", "0.33.0", {"max_num_batched_tokens": 300}, 300, 300),
    ],
)
def test_throughput_doubles_the_limits_that_nobody_chooses(
    gpu: str, version: str, settings: dict[str, int], batched: int, seqs: int
) -> None:
    request = new_request(
        accelerator=catalogue_accelerator(gpu), vllm_version=version, performance_mode="throughput", **settings
    )
    resolved = resolve_settings(request, accounting_of(version))
    assert (resolved.max_num_batched_tokens, resolved.max_num_seqs) == (batched, seqs)


@table(
    ("gpu", "version", "settings", "batched", "seqs"),
    [
        ("MI300X-192GB", "0.9.1", {"max_model_len": 131_072}, 131_072, 256),
        (
            "MI300X-192GB",
            "0.9.2.dev364+gb432b7a28",
            {"max_model_len": 131_072},
            131_072,
            256,
        ),  # logged: amd-mi300x-ml-benchmarks
        ("MI300X-192GB", "0.9.1", {"max_model_len": 131_072, "enable_chunked_prefill": True}, 2048, 256),
        ("MI300X-192GB", "0.9.2", {"max_model_len": 131_072}, 8192, 1024),
        ("MI300X-192GB", "0.10.0", {"max_model_len": 131_072}, 8192, 1024),
        ("MI300X-192GB", "0.7.3", {"max_model_len": 131_072}, 131_072, 256),
        ("H100-SXM-80GB", "0.7.3", {"max_model_len": 131_072}, 2048, 256),
        ("H100-SXM-80GB", "0.9.1", {"max_model_len": 131_072}, 8192, 1024),
    ],
)
def test_v0_takes_whole_prompts_on_amd(
    gpu: str, version: str, settings: dict[str, Any], batched: int, seqs: int
) -> None:
    request = new_request(
        shape=catalogue_shape("meta-llama/Llama-3.1-8B-Instruct"),
        accelerator=catalogue_accelerator(gpu),
        vllm_version=version,
        **settings,
    )
    resolved = resolve_settings(request, accounting_for(request))
    assert (resolved.max_num_batched_tokens, resolved.max_num_seqs) == (batched, seqs)


@pytest.mark.parametrize(("version", "batched"), [("0.6.6", 2048), ("0.7.3", 2048), ("0.8.5", 163_840)])
def test_v0_of_0_7_keeps_the_small_batch_of_cut_prompts_for_latent_attention(version: str, batched: int) -> None:
    request = new_request(
        shape=catalogue_shape("deepseek-ai/DeepSeek-R1"),
        accelerator=catalogue_accelerator("H200-SXM-141GB"),
        vllm_version=version,
        circumstances=Circumstances(use_v1=False),
    )
    assert resolve_settings(request, accounting_for(request)).max_num_batched_tokens == batched


@pytest.mark.parametrize(
    ("version", "all_to_all", "data", "batched"),
    [
        ("0.20.0", "deepep_low_latency", 8, 256),
        ("0.33.0", "nixl_ep", 8, 256),
        ("0.19.0", "deepep_low_latency", 8, 8192),
        ("0.20.0", "deepep_high_throughput", 8, 8192),
        ("0.20.0", "deepep_low_latency", 1, 8192),
    ],
)
def test_batches_of_a_fixed_size_for_experts_are_small(version: str, all_to_all: str, data: int, batched: int) -> None:
    request = new_request(
        accelerator=catalogue_accelerator("H200-SXM-141GB"), vllm_version=version, all_to_all=all_to_all, data=data,
        expert=True, max_model_len=8192,
    )  # fmt: skip
    assert resolve_settings(request, accounting_of(version)).max_num_batched_tokens == batched
