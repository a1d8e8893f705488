"""What MLA, sparse indexers, DeepSeek-V4 and experts take in the profile run, by release."""

from typing import Any

import pytest

from kvgate.budget.answers.answer import plan
from kvgate.budget.ground.units import GIB, MIB
from support.builders import catalogue_accelerator, catalogue_shape, new_request

LITE = "deepseek-ai/DeepSeek-V2-Lite"
FLASH = "deepseek-ai/DeepSeek-V4-Flash"
MOE = "Qwen/Qwen3-30B-A3B"
CONTEXT_BYTES = 65_536 * 16 * (128 + 128) * 2
"""The context that 16 heads up-project, at its longest."""


def parts(model: str, version: str, gpu: str = "H100-SXM-80GB", **settings: Any) -> dict[str, int]:
    request = new_request(
        shape=catalogue_shape(model), accelerator=catalogue_accelerator(gpu), vllm_version=version, **settings
    )
    ledger = plan(request).stages[0].ledger
    assert ledger is not None
    return {name: value for name, value in ledger.lines[1].inputs if isinstance(value, int)}


def test_mla_allocates_its_context_in_the_profile_since_0_11() -> None:
    """DeepSeek-V2-Lite on H100 NVL with 0.10.1 logged 0.50 GiB, which is the sampler's; 0.19 on H100 logged 1.93."""
    before, after = (
        parts(LITE, version, max_num_batched_tokens=2048)["layer_bytes"] for version in ("0.10.2", "0.11.0")
    )
    assert before < 0.2 * GIB
    assert CONTEXT_BYTES <= after < CONTEXT_BYTES + 0.2 * GIB


@pytest.mark.parametrize(
    ("max_model_len", "max_num_seqs", "tokens"), [(4096, 16, 32_768), (131_072, 16, 65_536), (4096, 256, 65_536)]
)
def test_the_context_grows_with_the_length_or_the_requests(max_model_len: int, max_num_seqs: int, tokens: int) -> None:
    """`determine_chunked_prefill_workspace_size`: 8 lengths or 4 blocks of every request, at most 65,536 tokens."""
    settings = {"max_model_len": max_model_len, "max_num_seqs": max_num_seqs, "max_num_batched_tokens": 2048}
    with_it = parts(LITE, "0.33.0", **settings)["layer_bytes"]
    assert tokens * 16 * 256 * 2 <= with_it < tokens * 16 * 256 * 2 + 0.2 * GIB


def test_an_indexer_allocates_its_logits_since_0_19() -> None:
    settings = {"tensor": 8, "max_num_batched_tokens": 2048, "max_num_seqs": 1, "max_model_len": 1024}
    before, after = (
        parts("deepseek-ai/DeepSeek-V3.2", version, "H200-SXM-141GB", **settings)["layer_bytes"]
        for version in ("0.18.0", "0.19.0")
    )
    assert before < after
    assert after >= 512 * MIB


def test_deepseek_v4_pads_its_queries_and_outputs() -> None:
    """32 heads of a rank become 64, twice, beside the queries; four residual streams instead of one."""
    settings = {"tensor": 2, "max_num_batched_tokens": 8192, "max_num_seqs": 8}
    plain, pooled = (
        parts(FLASH, version, "H200-SXM-141GB", **settings)["layer_bytes"] for version in ("0.26.0", "0.27.1")
    )
    assert plain - pooled == 8192 * 64 * 512 * 2
    assert plain == 8192 * 2 * ((32 + 64 + 64) * 512 + 3 * 4096 + 5 * 4096)


def test_deepseek_v4_gathers_the_cache_of_four_requests() -> None:
    settings = {"tensor": 2, "max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 1_048_576}
    context = 1_048_576 // 4 + 128 + 64
    assert (
        parts(FLASH, "0.27.1", "H200-SXM-141GB", **settings)["workspace_bytes"] == 4 * context * 512 * 2 + 4 * 64 * 640
    )


@pytest.mark.parametrize(("version", "chunk"), [("0.13.0", 16_384), ("0.17.0", 16_384), ("0.18.0", 65_536)])
def test_experts_compute_so_many_tokens_at_a_time(version: str, chunk: int) -> None:
    """`VLLM_FUSED_MOE_CHUNK_SIZE`: 16,384 from 0.12 to 0.17, and all tokens from 0.18 on."""
    found = parts(MOE, version, max_num_batched_tokens=65_536, max_num_seqs=8)["workspace_bytes"]
    assert found == chunk * 8 * (2048 + 2048) * 2


def test_data_parallel_ranks_gather_the_tokens_of_all() -> None:
    alone, four = (
        parts(MOE, "0.33.0", "H200-SXM-141GB", data=data, expert=True, max_num_batched_tokens=2048, max_num_seqs=8)
        for data in (1, 4)
    )
    assert four["workspace_bytes"] == 4 * alone["workspace_bytes"]
    assert four["layer_bytes"] - alone["layer_bytes"] == 2 * 4 * 2048 * 2048 * 2


def test_what_no_start_has_shown_of_data_parallel_ranks_is_left_out_of_the_low_end() -> None:
    def low(data: int) -> int:
        request = new_request(
            shape=catalogue_shape(MOE), accelerator=catalogue_accelerator("H200-SXM-141GB"), vllm_version="0.33.0",
            data=data, expert=True, max_num_batched_tokens=8192, max_num_seqs=8,
        )  # fmt: skip
        ledger = plan(request).stages[0].ledger
        assert ledger is not None
        return ledger.peak_activation.low

    assert low(8) <= low(1)
