"""The upper bound of the decode speed, worked out by hand from config.json of known models and data sheets."""

from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate.budget.answers.answer import plan
from kvgate.budget.answers.decoding import DecodeBound, decode_bound, expected_expert_share
from kvgate.judgement.what_if import read_request
from support.builders import catalogue_accelerator, catalogue_shape, new_request

H200_BYTES_PER_SECOND = 4_800_000_000_000
# Qwen3-8B: 36 layers of width 4096 with 32 heads, 8 KV heads of 128, a gated MLP of 12288; 151936 words, no tied ends.
LAYER = 4096 * (32 + 2 * 8) * 128 + 4096 * 4096 + 3 * 4096 * 12288 + 2 * 4096 + 2 * 128
HEAD = 151936 * 4096
WEIGHTS = 2 * (36 * LAYER + 4096 + HEAD)
TOKEN = 36 * 2 * 8 * 128 * 2


def bound(model: str, batch: int, tokens: int, *, gpu: str = "H200-SXM-141GB", **settings: Any) -> DecodeBound:
    shared = settings.pop("shared_tokens", 0)
    request = new_request(shape=catalogue_shape(model), accelerator=catalogue_accelerator(gpu), **settings)
    found = decode_bound(plan(request), batch=batch, sequence_tokens=tokens, shared_tokens=shared)
    assert found is not None
    return found


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_a_dense_model_reads_its_weights_once_and_the_caches_of_the_batch(batch: int) -> None:
    found = bound("Qwen/Qwen3-8B", batch, 1000)
    assert (found.weights_bytes, found.kv_cache_bytes) == (WEIGHTS, batch * 1000 * TOKEN)
    assert found.tokens_per_second == -(-batch * H200_BYTES_PER_SECOND // (WEIGHTS + batch * 1000 * TOKEN))
    assert bound("Qwen/Qwen3-8B", 1, 1000).tokens_per_second == 315  # 4.8 TB/s ÷ 15.28 GB


def test_two_gpus_read_half_each_but_for_the_norms() -> None:
    found = bound("Qwen/Qwen3-8B", 8, 1000, tensor=2)
    norms = 2 * (36 * (2 * 4096 + 2 * 128) + 4096)
    assert found.weights_bytes == (WEIGHTS - norms) // 2 + norms
    assert found.kv_cache_bytes == 8 * 1000 * TOKEN // 2


def test_stages_share_the_caches_and_each_token_passes_all_weights() -> None:
    found = bound("Qwen/Qwen3-8B", 8, 1000, pipeline=2)
    assert (found.weights_bytes, found.kv_cache_bytes) == (WEIGHTS, 8 * 1000 * TOKEN // 2)


def test_a_shared_prefix_is_read_once() -> None:
    found = bound("Qwen/Qwen3-8B", 8, 1000, shared_tokens=600)
    assert found.kv_cache_bytes == (8 * 400 + 600) * TOKEN


def test_of_experts_the_expected_share_is_read() -> None:
    # Qwen3-30B-A3B: 48 layers, 128 experts of 3 × 2048 × 768, 8 of them for a token
    experts = 48 * 128 * 3 * 2048 * 768 * 2
    one, eight = (bound("Qwen/Qwen3-30B-A3B", batch, 1).weights_bytes for batch in (1, 8))
    rest = one - experts // 16
    assert eight == pytest.approx(rest + experts * (1 - (120 / 128) ** 8))
    layer = 2048 * (32 + 2 * 4) * 128 + 32 * 128 * 2048 + 128 * 2048 + 2 * 2048 + 2 * 128
    assert rest == pytest.approx(2 * (48 * layer + 2048 + 151936 * 2048), abs=1)


@pytest.mark.parametrize(("tokens", "share"), [(1, 1 / 16), (2, 1 - (15 / 16) ** 2), (100_000, 1.0)])
def test_the_share_of_experts_grows_to_all(tokens: int, share: float) -> None:
    assert float(expected_expert_share(128, 8, Fraction(tokens))) == pytest.approx(share)
    assert expected_expert_share(8, 8, Fraction(1)) == 1


def test_windows_limit_what_is_read_of_a_long_sequence() -> None:
    # gpt-oss-20b: 24 layers, every other one with a window of 128 tokens; 8 KV heads of 64, keys and values in bfloat16
    token = 8 * 64 * 2 * 2
    assert bound("openai/gpt-oss-20b", 1, 10_000).kv_cache_bytes == 12 * token * (10_000 + 128)


def test_mla_is_read_whole_by_every_tensor_parallel_rank() -> None:
    # DeepSeek-V3: 61 layers, 512 + 64 elements of bfloat16 for a token
    for tensor in (4, 8):
        found = bound("deepseek-ai/DeepSeek-V3", 2, 500, tensor=tensor)
        assert found.kv_cache_bytes == 2 * 500 * 61 * 576 * 2


def test_a_sparse_indexer_is_read_whole_and_of_the_rest_nothing_is_counted() -> None:
    # DeepSeek-V3.2: an indexer of 128 bytes and a scale of 4 bytes for each token of 61 layers
    found = bound("deepseek-ai/DeepSeek-V3.2", 1, 1000, tensor=8)
    assert found.kv_cache_bytes == 1000 * 61 * 132


def test_a_state_is_read_once_whatever_the_length() -> None:
    short, long = (bound("mistralai/Mamba-Codestral-7B-v0.1", 4, tokens).kv_cache_bytes for tokens in (10, 10_000))
    assert short == long > 0


def test_drafted_tokens_raise_the_bound() -> None:
    values = {"model": "Qwen/Qwen3-8B", "gpu": "H200-SXM-141GB"}
    plain, drafting = (
        decode_bound(plan(request), batch=1, sequence_tokens=1000)
        for config in ({}, {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}'})
        if (request := read_request({**values, **config})[0])
    )
    assert plain is not None
    assert drafting is not None
    assert drafting.tokens_per_second == pytest.approx(4 * plain.tokens_per_second, rel=0.01)


def test_no_bound_without_a_bandwidth() -> None:
    unknown = replace(catalogue_accelerator("H200-SXM-141GB"), memory_bandwidth_bytes_per_second=None)
    request = new_request(shape=catalogue_shape("Qwen/Qwen3-8B"), accelerator=unknown)
    assert decode_bound(plan(request), batch=1, sequence_tokens=1000) is None
