"""Classes that return vectors or scores: what they hold, that encoders keep no cache, and when they start."""

from typing import Any

import pytest

from kvgate.budget.answers.answer import Budget
from kvgate.budget.ground.hardware import SINGLE_GPU
from kvgate.budget.model.shape import EncoderAttention, FullAttention, ModelShape
from kvgate.budget.model.weights import rank_weights
from kvgate.hf_config import read_config
from kvgate.judgement.what_if import assess_request
from support.builders import catalogue_shape, new_llama_config
from support.tables import table


def rank_bytes(config: dict[str, Any], stage: tuple[int, int] | None = None) -> int:
    shape = read_config(config)
    return rank_weights(shape, SINGLE_GPU, stage or (0, len(shape.layers)), unsplit_large_blocks=False).parameter_bytes


def bert_config(**overrides: Any) -> dict[str, Any]:
    values = {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12,
              "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 512,
              "type_vocab_size": 2}  # fmt: skip
    return {**values, **overrides}


def modernbert_config(**overrides: Any) -> dict[str, Any]:
    values = {"architectures": ["ModernBertModel"], "model_type": "modernbert", "hidden_size": 768, "num_hidden_layers": 22,
              "num_attention_heads": 12, "intermediate_size": 1152, "vocab_size": 50368, "max_position_embeddings": 8192,
              "norm_bias": False}  # fmt: skip
    return {**values, **overrides}


ONE_LABEL = {"id2label": {"0": "LABEL_0"}}


@table(
    ("config", "size"),
    [
        (bert_config(), 217_887_744),
        (bert_config(architectures=["BertForMaskedLM"]), 266_014_836),
        (bert_config(architectures=["BertForSequenceClassification"]), 220_256_264),
        (bert_config(architectures=["BertForTokenClassification"]), 217_893_896),
        (bert_config(architectures=["RobertaForMaskedLM"], vocab_size=50265, max_position_embeddings=514), 248_361_984),
        (modernbert_config(), 298_028_544),
        (modernbert_config(architectures=["ModernBertForSequenceClassification"], **ONE_LABEL), 300_393_988),
        (modernbert_config(architectures=["ModernBertForTokenClassification"]), 299_215_880),
    ],
)
def test_an_encoder_holds_the_bytes_that_vllm_allocates(config: dict[str, Any], size: int) -> None:
    """Sums of the parameters of vLLM 0.32.0's own classes; heads are float32."""
    assert rank_bytes(config) == size


def test_an_encoder_attends_both_ways_and_keeps_nothing() -> None:
    shape = catalogue_shape("BAAI/bge-m3")
    assert set(shape.mixers) == {EncoderAttention(num_heads=16)}
    assert (shape.keeps_caches, shape.pools, shape.supports_pipeline) == (False, True, False)


def budget_of(**request: Any) -> Budget:
    budget = assess_request({"vllm_version": "0.32.0", **request}).budget
    assert budget is not None
    return budget


def test_an_encoder_starts_with_a_small_share_of_the_gpu() -> None:
    """vLLM profiles nothing and checks nothing where no layer keeps a cache (0.32, `EngineCore._initialize_kv_caches`)."""
    budget = budget_of(model="BAAI/bge-m3", gpu="L4-24GB", gpu_memory_utilization="0.02")
    assert (budget.verdict, budget.demand_bytes, budget.kv_cache and budget.kv_cache.groups) == ("Fits", 0, ())


def test_an_encoder_that_the_gpu_does_not_hold_does_not_fit() -> None:
    assert budget_of(model="BAAI/bge-m3", gpu="L4-24GB", gpu_memory_bytes=2**30).verdict == "DoesNotFit"


def converted(suffix: str, **overrides: Any) -> ModelShape:
    return read_config(new_llama_config(architectures=[f"Llama{suffix}"], **overrides))


@pytest.mark.parametrize("suffix", ["Model", "ForTextEncoding", "RewardModel", "ForSequenceClassification"])
def test_a_class_that_vllm_converts_has_the_layers_of_its_language_model_and_no_head(suffix: str) -> None:
    shape, base = converted(suffix), read_config(new_llama_config())
    assert (shape.unmodelled_kinds, shape.layers, shape.pools) == ((), base.layers, True)
    head = base.vocab_size * base.hidden_size * 2
    score = 4 * 2 * base.hidden_size if suffix == "ForSequenceClassification" else 0
    whole = rank_bytes(new_llama_config())
    assert rank_bytes(new_llama_config(architectures=[f"Llama{suffix}"])) == whole - head + score


def test_the_score_has_a_row_for_every_label() -> None:
    labels = {"id2label": {str(index): f"L{index}" for index in range(9)}}
    config = new_llama_config(architectures=["LlamaForSequenceClassification"])
    assert rank_bytes({**config, **labels}) - rank_bytes({**config, **ONE_LABEL}) == 8 * 4 * config["hidden_size"]


def test_a_name_that_only_ends_like_a_pooling_class_stays_unknown() -> None:
    assert read_config(new_llama_config(architectures=["ToyModel"])).unmodelled_kinds == ("architecture ToyModel",)


def test_is_causal_false_means_no_cache() -> None:
    """gte-Qwen2-7B-instruct says so."""
    both_ways = read_config(new_llama_config(is_causal=False))
    assert all(isinstance(mixer, EncoderAttention) for mixer in both_ways.mixers)
    assert all(isinstance(mixer, FullAttention) for mixer in read_config(new_llama_config(is_causal=True)).mixers)
