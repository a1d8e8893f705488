"""The textbook's bytes of a request beside vLLM's: where they agree, and every reason why they do not."""

from fractions import Fraction

import pytest

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.ground.units import GIB
from kvgate.budget.model.shape import (
    CompressedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    LayerShape,
    Mixer,
    SharedCache,
)
from kvgate.explained.textbook import Textbook, textbook_of
from support.builders import catalogue_shape, new_gdn, new_model_shape, new_request

FULL = FullAttention(num_heads=24, num_kv_heads=4, head_dim=256)
LATENT = LatentAttention(num_heads=128, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)


def layered(*mixers: tuple[Mixer, ...], times: int = 1, **settings: object) -> Budget:
    layers = tuple(LayerShape(mixers=of_layer) for of_layer in mixers) * times
    shape = new_model_shape(layers=layers)
    return plan(new_request(shape=shape, kv_cache_memory_bytes=43 * GIB, **{"max_model_len": 32_768, **settings}))


def told(budget: Budget) -> Textbook:
    textbook = textbook_of(budget)
    assert textbook is not None
    return textbook


def request_bytes(budget: Budget) -> int:
    assert budget.kv_cache is not None
    return budget.kv_cache.request_bytes


def test_qwen3_6_27b_takes_4_31_gib_where_the_textbook_says_16() -> None:
    gdn = new_gdn()
    budget = layered((gdn,), (gdn,), (gdn,), (FULL,), times=16, kv_cache_dtype="fp8", max_model_len=131_072)
    textbook = told(budget)
    assert textbook.request_bytes == 16 * GIB
    assert textbook.formula == "2 × 64 layers × 4 KV heads × 256 × 1 byte × 131072 tokens"
    assert request_bytes(budget) == 4_624_220_160
    assert textbook.comparison(request_bytes(budget)).endswith("is 16.00 GiB; vLLM takes 4.31 GiB")
    states, block = textbook.reasons
    assert "48 of 64 layers keep a recurrent state of 3207168 bytes" in states
    assert "takes 6 blocks" in states
    assert "1568 tokens" in block


def test_mla_is_compared_with_the_keys_of_all_heads_and_is_whole_on_every_rank() -> None:
    textbook = told(layered((LATENT,), times=61, tensor=8))
    assert textbook.request_bytes == 2 * 61 * 128 * 192 * 2 * 32_768 // 8
    assert textbook.formula.endswith("128 KV heads × 192 × 2 bytes × 32768 tokens / 8 ranks")
    (reason,) = textbook.reasons
    assert "one vector of 1152 bytes per token and layer, whole on every rank" in reason


@pytest.mark.parametrize(
    ("budget", "word"),
    [
        pytest.param(lambda: layered((FULL,), (), times=4), "4 of 8 layers do not attend", id="no attention"),
        pytest.param(
            lambda: layered((FullAttention(num_heads=8, num_kv_heads=8, head_dim=64, sliding_window=128),), times=4),
            "4 of 4 layers look back 128 tokens: they keep at most 16511 tokens (127 before the batch and 16384 in flight)",
            id="window",
        ),
        pytest.param(
            lambda: layered((FullAttention(num_heads=8, num_kv_heads=8, head_dim=64, chunk_size=8192),), (FULL,), times=2),
            "2 of 4 layers attend within chunks of 8192 tokens: they keep at most 24576",
            id="chunks",
        ),
        pytest.param(
            lambda: layered((FULL,), (FullAttention(num_heads=8, num_kv_heads=1, head_dim=512),), times=2),
            "2 of 4 layers have 1 KV head of size 512",
            id="other heads",
        ),
        pytest.param(
            lambda: layered((FullAttention(num_heads=8, num_kv_heads=4, head_dim=192, v_head_dim=128),), times=2),
            "the values of 2 of 2 layers are 128 wide, and not 192",
            id="narrow values",
        ),
        pytest.param(lambda: layered((FULL,), times=2, tensor=8), "8 ranks share 4 KV heads", id="replicated heads"),
        pytest.param(
            lambda: layered((FULL,), (SharedCache(num_heads=8, target=0),), times=2),
            "2 of 4 layers read the cache of an earlier layer",
            id="shared",
        ),
        pytest.param(
            lambda: layered((FULL, CrossAttention(num_heads=24, num_kv_heads=4, head_dim=256)), times=2, max_model_len=448),
            "2 of 2 layers keep the encoder's states as well, with room for 8192 of them",
            id="cross",
        ),
        pytest.param(
            lambda: layered((LatentAttention(
                num_heads=128, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, is_sparse=True,
                index_head_dim=128,
            ),), times=3),
            "3 layers also keep an indexer's vectors",
            id="indexer",
        ),
        pytest.param(lambda: layered((FULL,), times=8, kv_cache_dtype="int8_per_token_head"), "keeps scales", id="scales"),
        pytest.param(
            lambda: layered((FULL,), times=8, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=("0",)),
            "some layers keep bfloat16",
            id="skipped layers",
        ),
        pytest.param(
            lambda: layered(*[(FullAttention(num_heads=8, num_kv_heads=4, head_dim=256, sliding_window=1024),)] * 9, (FULL,) , (FULL,)),
            "is padding",
            id="padding",
        ),
    ],
)  # fmt: skip
def test_a_reason_is_named(budget: object, word: str) -> None:
    assert callable(budget)
    assert any(word in reason for reason in told(budget()).reasons), told(budget()).reasons


def test_compressed_mla_names_its_ratios() -> None:
    def at(ratio: int) -> tuple[Mixer, ...]:
        return (CompressedAttention(num_heads=64, head_dim=512, sliding_window=128, ratio=ratio, index_head_dim=128),)

    textbook = told(layered(at(0), *[at(4), at(128)] * 20, at(4), max_model_len=131_072))
    assert (textbook.num_kv_heads, textbook.bytes_per_element) == (1, Fraction(1))
    assert "one vector for 4 tokens in 21 layers and one vector for 128 tokens in 20 layers" in textbook.reasons[0]


def test_where_it_holds_it_says_so() -> None:
    budget = layered((FULL,), times=4)
    assert told(budget).reasons == ()
    assert "rounds it up to whole blocks" in told(budget).comparison(request_bytes(budget))


def test_a_model_without_attention_has_no_textbook() -> None:
    assert textbook_of(layered((new_gdn(),), times=4)) is None


def test_a_pipeline_compares_its_largest_stage() -> None:
    budget = layered((FULL,), times=7, pipeline=2)
    assert told(budget).num_layers == 4
    assert told(budget).request_bytes == request_bytes(budget)


@pytest.mark.parametrize("tensor", [1, 8])
@pytest.mark.parametrize(
    "model",
    [
        "CohereForAI/c4ai-command-r-v01", "CohereLabs/c4ai-command-a-03-2025", "EleutherAI/gpt-neox-20b", "LiquidAI/LFM2-1.2B",
        "MiniMaxAI/MiniMax-M2.5", "Qwen/Qwen2.5-72B", "Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3-VL-8B-Instruct",
        "THUDM/glm-4-9b-chat", "XiaomiMiMo/MiMo-V2-Flash", "ai21labs/Jamba-v0.1", "deepseek-ai/DeepSeek-V2-Lite",
        "deepseek-ai/DeepSeek-V3.2", "google/gemma-2-27b-it", "google/gemma-3-27b-it", "meta-llama/Llama-3.1-70B-Instruct",
        "mistralai/Mixtral-8x7B-v0.1", "openai/gpt-oss-120b", "openai/whisper-large-v3", "openbmb/MiniCPM3-4B",
    ],
)  # fmt: skip
def test_no_model_departs_from_it_without_a_reason(model: str, tensor: int) -> None:
    budget = plan(new_request(shape=catalogue_shape(model), max_model_len=448, tensor=tensor))
    textbook = textbook_of(budget)
    if textbook is None or textbook.reasons or budget.kv_cache is None:
        return
    assert 0 <= request_bytes(budget) - textbook.request_bytes < budget.kv_cache.bytes_per_block
