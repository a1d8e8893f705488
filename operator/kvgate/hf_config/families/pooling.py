"""Classes that return vectors or scores: BERT and its kin, which keep no cache, and language models that vLLM converts.

Heads are float32 whatever the model's dtype is (vLLM 0.32, `ModelConfig.head_dtype`).
"""

from collections.abc import Iterator

from msgspec.structs import replace

from kvgate.budget.ground.units import round_up
from kvgate.budget.model.matrix import Matrix, Units
from kvgate.budget.model.shape import (
    DenseMlp,
    EncoderAttention,
    End,
    FullAttention,
    LayerShape,
    RotaryCache,
    SparseMlp,
)
from kvgate.budget.model.weights import VOCABULARY_MULTIPLE
from kvgate.hf_config.blocks import attention, column_parallel, dense_mlp, replicated, row_parallel, vector
from kvgate.hf_config.families.gemma import gemma3_stack
from kvgate.hf_config.family import PLAIN, Architecture, Family, Head, LanguageModel, Stack, StackReader
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.layers.attention import full_attention
from kvgate.hf_config.layers.layers import uniform_stack

_HEAD_BYTES = 4

_GENERATING = ("ForCausalLM", "ForConditionalGeneration", "ChatModel", "LMHeadModel")
_EMBEDDING = ("ForTextEncoding", "EmbeddingModel")
_CLASSIFYING = (
    "ForSequenceClassification", "ForTokenClassification", "ForAudioClassification", "ForImageClassification",
    "ForVideoClassification", "ClassificationModel",
)  # fmt: skip
_OTHER = ("ForRewardModeling", "RewardModel", "Model")


def converted_from(architecture: str) -> tuple[tuple[str, ...], bool]:
    """Return the classes that vLLM would convert into this one, and True where it adds a score.

    vLLM 0.32, `_SUFFIX_TO_DEFAULTS` and `_normalize_arch`: a name that the registry lacks, with the end of a pooling class.
    """
    for suffix in (*_EMBEDDING, *_CLASSIFYING, *_OTHER):
        if architecture.endswith(suffix):
            stem = architecture.removesuffix(suffix)
            return tuple(stem + other for other in _GENERATING), suffix in _CLASSIFYING
    return (), False


def converted(family: Family, *, scores: bool) -> Family:
    """Return the family of a language model without its head, and with a score on every rank where it classifies."""
    return replace(family, heads=(score,) if scores else (), pools=True)


def bidirectional(stack: Stack) -> Stack:
    """Return the same layers without caches; equal layers stay one object."""
    seen: dict[int, LayerShape] = {}
    for layer in stack.layers:
        mixers = tuple(
            EncoderAttention(num_heads=mixer.num_heads) if isinstance(mixer, FullAttention) else mixer
            for mixer in layer.mixers
        )
        seen.setdefault(id(layer), replace(layer, mixers=mixers))
    return replace(stack, layers=tuple(seen[id(layer)] for layer in stack.layers))


def _linear(name: str, rows: int, columns: int, *, bias: bool = True) -> Matrix:
    return replicated(name, rows, columns=columns, bias=bias, element_bytes=_HEAD_BYTES)


def num_labels(fields: Fields) -> int:
    """Return the labels that config.json names, or as many as transformers assumes."""
    return fields.count("num_labels", default=len(fields.mapping("id2label")) or 2)


def score(model: LanguageModel) -> Iterator[Matrix]:
    """Yield the score that vLLM puts in place of a language model's head."""
    yield _linear("score", num_labels(model.fields), model.hidden_size, bias=False)


def classifier(model: LanguageModel) -> Iterator[Matrix]:
    yield _linear("classifier", num_labels(model.fields), model.hidden_size)


def roberta_classifier(model: LanguageModel) -> Iterator[Matrix]:
    """Yield RoBERTa's two layers, of which the first is as wide as the model."""
    yield _linear("classifier.dense", model.hidden_size, model.hidden_size)
    yield _linear("classifier.out_proj", num_labels(model.fields), model.hidden_size)


def pooler(model: LanguageModel) -> Iterator[Matrix]:
    """Yield the dense layer in front of BERT's classifier."""
    yield _linear("pooler.dense", model.hidden_size, model.hidden_size)


def modern_pooler(model: LanguageModel) -> Iterator[Matrix]:
    """Yield the dense layer and the norm in front of ModernBERT's classifier."""
    fields, width = model.fields, model.hidden_size
    yield _linear("pooling.dense", width, width, bias=fields.flag("classifier_bias"))
    yield vector("pooling.norm", _norm_vectors(fields) * width, element_bytes=_HEAD_BYTES)


def modern_head(model: LanguageModel) -> Iterator[Matrix]:
    """Yield the same in the model dtype, which labels of tokens have."""
    fields, width = model.fields, model.hidden_size
    yield replicated("head.dense", width, columns=width, bias=fields.flag("classifier_bias"))
    yield vector("head.norm", _norm_vectors(fields) * width)


def masked_words(model: LanguageModel) -> Iterator[Matrix]:
    """Yield the head that gives every word of the vocabulary a weight (SPLADE), in the model dtype."""
    width = model.hidden_size
    yield replicated("mlm_head.dense", width, columns=width, bias=True)
    yield vector("mlm_head.layer_norm", 2 * width)
    yield replicated("mlm_head.decoder", model.fields.count("vocab_size"), columns=width, bias=True)


def embedding_norm(model: LanguageModel) -> Iterator[Matrix]:
    """Yield the norm behind the embedding, which BLOOM makes on every stage."""
    yield vector("embeddings.norm", 2 * model.hidden_size)


def sparse_and_colbert(model: LanguageModel) -> Iterator[Matrix]:
    """Yield the two heads that BGE-M3 has beside its dense vectors."""
    yield _linear("sparse_linear", 1, model.hidden_size)
    yield _linear("colbert_linear", model.hidden_size, model.hidden_size)


def reward(labels: int) -> Head:
    """Return the two layers of Qwen2's reward models, which are cut as a feed-forward block."""

    def head(model: LanguageModel) -> Iterator[Matrix]:
        width = model.hidden_size
        inner = column_parallel("score", Units(count=width), columns=width, bias=True)
        outer = row_parallel("score", labels, columns=width, bias=True)
        return (replace(matrix, element_bytes=_HEAD_BYTES) for matrix in (inner, outer))

    return head


def value_head(model: LanguageModel) -> Iterator[Matrix]:
    """Yield the one value of InternLM2's reward model."""
    yield replace(row_parallel("v_head", 1, columns=model.hidden_size), element_bytes=_HEAD_BYTES)


def _padded(name: str, rows: int, width: int) -> Matrix:
    """Return an embedding that vLLM cuts and pads as it does the vocabulary's."""
    return column_parallel(name, Units(count=round_up(rows, VOCABULARY_MULTIPLE)), columns=width)


def bert_stack(model: LanguageModel) -> Stack:
    """Read BERT and RoBERTa: learned positions, biases everywhere, a norm with a bias after every block."""
    fields, width = model.fields, model.hidden_size
    mlp = DenseMlp(intermediate_size=fields.count("intermediate_size"), gated=False)
    heads = full_attention(fields, width)
    matrices = (
        *attention(heads, width, qkv_bias=True, output_bias=True),
        *dense_mlp(mlp, width, bias=True),
        vector("layernorm", 4 * width),
    )
    layer = LayerShape(mixers=(EncoderAttention(num_heads=heads.num_heads),), mlps=(mlp,), matrices=matrices)
    first = (
        _padded("position_embeddings", fields.count("max_position_embeddings", default=512), width),
        _padded("token_type_embeddings", fields.count("type_vocab_size", default=2), width),
        vector("embeddings.norm", 2 * width),
    )
    return Stack(layers=_stored(model, layer), first=first)


def _stored(model: LanguageModel, *layers: LayerShape) -> tuple[LayerShape, ...]:
    """Return as many layers as config.json counts, the last one again and again."""
    return tuple(model.formats.stored(i, layers[min(i, len(layers) - 1)]) for i in range(model.num_layers))


def rotary_bert_stack(*, gated: bool | None = None, up_bias: bool = True) -> StackReader:
    """Return the reader of BERT with rotary positions (Nomic, GTE, Snowflake Arctic); every second layer of Nomic v2 holds experts."""

    def read(model: LanguageModel) -> Stack:
        fields, width = model.fields, model.hidden_size
        is_gated = fields.text("activation_function", default="swiglu") == "swiglu" if gated is None else gated
        bias = fields.flag("qkv_proj_bias", "bias", default=True)
        heads = full_attention(fields, width)
        mixer = EncoderAttention(num_heads=heads.num_heads)
        around = (
            *attention(heads, width, qkv_bias=bias, output_bias=bias),
            vector("layernorm", 4 * width),
        )
        inner = fields.count("intermediate_size", "n_inner", default=4 * width)
        mlp = DenseMlp(intermediate_size=inner, gated=is_gated)
        up, down = dense_mlp(mlp, width, bias=bias)
        dense = LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=(*around, replace(up, bias=bias and up_bias), down))
        experts = SparseMlp(
            num_experts=fields.optional_count("num_experts") or 1,
            num_experts_per_token=fields.count("moe_top_k", default=1),
            intermediate_size=inner,
            gated=False,
        )
        matrices = (
            *around,
            column_parallel("experts", Units(count=inner), columns=width, experts=experts.num_experts),
            row_parallel("experts", width, columns=inner, experts=experts.num_experts),
            replicated("router", experts.num_experts, columns=width),
            vector("experts.bias", width),  # one for all of them
        )
        sparse = LayerShape(mixers=(mixer,), mlps=(experts,), matrices=matrices)
        every = fields.optional_count("moe_every_n_layers")
        layers = [sparse if every and index % every == 1 else dense for index in range(model.num_layers)]
        first: tuple[Matrix, ...] = (vector("embeddings.norm", 2 * width),)
        if types := fields.optional_count("type_vocab_size"):
            first = (_padded("token_type_embeddings", types, width), *first)
        stored = tuple(model.formats.stored(index, layer) for index, layer in enumerate(layers))
        return Stack(layers=stored, first=first)

    return read


def modernbert_stack(model: LanguageModel) -> Stack:
    """Read ModernBERT: gated blocks, and no norm before the first layer's attention; layers with and without a window share no table."""
    fields, width = model.fields, model.hidden_size
    bias, mlp_bias = fields.flag("attention_bias"), fields.flag("mlp_bias")
    mlp = DenseMlp(intermediate_size=fields.count("intermediate_size", default=1152))
    heads = full_attention(fields, width)
    norm = _norm_vectors(fields) * width
    matrices = (
        *attention(heads, width, qkv_bias=bias, output_bias=bias),
        *dense_mlp(mlp, width, bias=mlp_bias),
    )
    bare = LayerShape(mixers=(EncoderAttention(num_heads=heads.num_heads),), mlps=(mlp,), matrices=matrices)
    first, others = (replace(bare, matrices=(*matrices, vector("layernorm", count * norm))) for count in (1, 2))
    table = RotaryCache(max_position=fields.count("max_position_embeddings", default=8192), rotary_dim=heads.head_dim)
    return Stack(
        layers=_stored(model, first, others),
        first=(vector("embeddings.norm", norm),),
        last=(vector("final_norm", norm),),
        rotary=(table, table),
    )


def _norm_vectors(fields: Fields) -> int:
    return 2 if fields.flag("norm_bias") else 1


_LLAMA = Architecture(bias_key="attention_bias", mlp_bias_key="mlp_bias")
_INTERNLM2 = Architecture(bias_key="bias", ends_everywhere=frozenset(End))
_GEMMA3 = Architecture(
    norms=4, bias_key="attention_bias", head_norms="head", full_attention_every=6, ends_everywhere=frozenset(End)
)


def _encoder(layers: StackReader, *heads: Head) -> Family:
    """Return the family of a class that vLLM cannot cut into stages."""
    positions = Architecture(positions=False) if layers is bert_stack else PLAIN
    return Family(layers=layers, heads=heads, known=positions, supports_pipeline=False, pools=True)


_BERT = _encoder(bert_stack)
_SPLADE = _encoder(bert_stack, masked_words)
_TOKENS = _encoder(bert_stack, classifier)
_SEQUENCE = _encoder(bert_stack, roberta_classifier)
_GTE = rotary_bert_stack(gated=True, up_bias=False)

POOLING: dict[str, Family] = {
    "BertForMaskedLM": _SPLADE,
    "BertForSequenceClassification": _encoder(bert_stack, pooler, classifier),
    "BertForTokenClassification": _TOKENS,
    "BertModel": _BERT,
    "BertSpladeSparseEmbeddingModel": _SPLADE,
    "BgeM3EmbeddingModel": _encoder(bert_stack, sparse_and_colbert),
    "Gemma3TextModel": Family(layers=gemma3_stack, both_ways=True, known=_GEMMA3, supports_pipeline=False, pools=True),
    "GteModel": _encoder(_GTE),
    "GteNewForSequenceClassification": _encoder(_GTE, pooler, classifier),
    "GteNewModel": _encoder(_GTE),
    "InternLM2ForRewardModel": Family(layers=uniform_stack, heads=(value_head,), known=_INTERNLM2, pools=True),
    "LlamaBidirectionalForSequenceClassification": Family(layers=uniform_stack, both_ways=True, heads=(score,), known=_LLAMA, pools=True),
    "LlamaBidirectionalModel": Family(layers=uniform_stack, both_ways=True, known=_LLAMA, pools=True),
    "ModernBertForSequenceClassification": _encoder(modernbert_stack, modern_pooler, classifier),
    "ModernBertForTokenClassification": _encoder(modernbert_stack, modern_head, classifier),
    "ModernBertModel": _encoder(modernbert_stack),
    "NomicBertModel": _encoder(rotary_bert_stack()),
    "Qwen2ForProcessRewardModel": Family(layers=uniform_stack, heads=(reward(2),), known=Architecture(qkv_bias=True), pools=True),
    "Qwen2ForRewardModel": Family(layers=uniform_stack, heads=(reward(1),), known=Architecture(qkv_bias=True), pools=True),
    "Qwen2Model": Family(layers=uniform_stack, known=Architecture(qkv_bias=True)),
    "RobertaForMaskedLM": _BERT,
    "RobertaForSequenceClassification": _SEQUENCE,
    "RobertaForTokenClassification": _TOKENS,
    "RobertaModel": _BERT,
    "XLMRobertaForSequenceClassification": _SEQUENCE,
    "XLMRobertaForTokenClassification": _TOKENS,
    "XLMRobertaModel": _BERT,
}  # fmt: skip
"""Classes of vLLM's registry that pool; `Qwen2Model` keeps the head of the language model that it is."""
