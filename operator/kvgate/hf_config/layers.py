"""The decoder layers: which kind of attention each has, and which feed-forward block."""

from collections.abc import Iterable, Iterator

from kvgate.budget.matrix import Matrix, Units
from kvgate.budget.model_shape import DenseMlp, End, FullAttention, LayerShape, Mixer, Mlp, SparseMlp
from kvgate.hf_config.architectures import Architecture
from kvgate.hf_config.blocks import (
    LatentRanks,
    Router,
    attention,
    cut_vector,
    dense_mlp,
    latent_attention,
    latent_mixer,
    replicated,
    sparse_mlp,
    vector,
)
from kvgate.hf_config.family import LanguageModel, Stack
from kvgate.hf_config.fields import HEADS, HIDDEN, Fields

_LATENT_MODEL_TYPES = frozenset({
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe_lite", "pangu_ultra_moe", "longcat_flash",
    "glm_moe_dsa", "kimi_linear", "deepseek_mtp", "bailing_hybrid",
})  # fmt: skip
"""Model types that vLLM serves with MLA where kv_lora_rank is set (0.32, `is_deepseek_mla`); MiniCPM3 is not one of them."""

_UNMODELLED_KEYS = {
    "compress_ratios": "compressed MLA",
    "index_topk": "sparse MLA",
    "sparse_attention_config": "sparse MLA",
    "attention_chunk_size": "chunked-local attention",
    "linear_attn_config": "KDA (linear attention)",
    "linear_num_key_heads": "GDN (linear attention)",
    "hybrid_override_pattern": "Mamba hybrid",
    "mamba_d_state": "Mamba hybrid",
    "mamba_n_heads": "Mamba hybrid",
    "state_size": "Mamba",
    "conv_L_cache": "short convolution hybrid",
    "attn_type_list": "linear attention",
    "hybrid_layer_pattern": "sliding-window attention",
    "num_kv_shared_layers": "KV sharing across layers",
    "decoder_layers": "encoder-decoder cross attention",
    "cross_attention_layers": "encoder-decoder cross attention",
    "block_configs": "per-layer block configurations",
}
"""Keys that mean a kind of cache without a formula here."""


def _asks_for(key: str, value: object) -> bool:
    """A key that is set; MiniMax-M2 lists its layers as 1, which is softmax attention."""
    softmax = key == "attn_type_list" and isinstance(value, list) and all(kind == 1 for kind in value)
    return bool(value) and not softmax


def unmodelled_mixer(fields: Fields) -> str | None:
    """The kind of attention or state, beside full attention and MLA, that this config asks for; None where there is none."""
    for key, kind in _UNMODELLED_KEYS.items():
        if _asks_for(key, fields.values.get(key)):
            return kind
    kinds = {str(kind) for kind in fields.sequence("layer_types")} - {"full_attention", "attention"}
    if kinds:
        return "sliding-window attention" if "sliding_attention" in kinds else f"{min(kinds).replace('_', ' ')} layers"
    windowed = fields.optional_count("sliding_window") and fields.flag("use_sliding_window", default=True)
    return "sliding-window attention" if windowed else None


def uniform_stack(model: LanguageModel) -> Stack:
    """Layers that all attend alike; a first few may be dense where the others hold experts."""
    fields, known, hidden_size = model.fields, model.known, model.hidden_size
    mixer, attention = _attention(fields, known, hidden_size)
    around = (*attention, vector("layernorm", _norm_elements(fields, known, hidden_size)))
    layers = []
    for index, mlp in enumerate(_mlps(fields, known, model.num_layers)):
        matrices = (*around, *_mlp_matrices(fields, known, mlp, hidden_size))
        layers.append(model.formats.stored(index, LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=matrices)))
    return stack(model, layers, first=_positions(fields, known, hidden_size))


def stack(
    model: LanguageModel, layers: Iterable[LayerShape], *, first: tuple[Matrix, ...] = (), last: tuple[Matrix, ...] = ()
) -> Stack:
    """Layers with the norm before the head, on the stages where the class keeps it."""
    norm = vector("norm", model.hidden_size * (2 if model.known.norm_bias else 1))
    if End.NORM in model.known.ends_everywhere:
        return Stack(layers=tuple(layers), first=first, last=last, everywhere=(norm,))
    return Stack(layers=tuple(layers), first=first, last=(norm, *last))


def _positions(fields: Fields, known: Architecture, hidden_size: int) -> tuple[Matrix, ...]:
    """Learned positions, of models without rotary ones."""
    if known.learned_positions is None:
        return ()
    rows = fields.count("max_position_embeddings", "n_positions") + known.learned_positions
    return (replicated("embed_positions", rows, columns=hidden_size),)


def _norm_elements(fields: Fields, known: Architecture, hidden_size: int) -> int:
    """StableLM's parallel residual shares one norm between attention and feed-forward."""
    norms = 1 if fields.text("model_type") == "stablelm" and fields.flag("use_parallel_residual") else known.norms
    return norms * hidden_size * (2 if known.norm_bias else 1)


def _mlps(fields: Fields, known: Architecture, num_layers: int) -> tuple[Mlp, ...]:
    """One per layer; a width that no layer uses need not be in the config."""
    sparse = _sparse(fields)
    if sparse is None:
        return (_dense(fields, known),) * num_layers
    is_sparse = _sparse_layers(fields, num_layers)
    if all(is_sparse):
        return (sparse,) * num_layers
    dense = _dense(fields, known)
    return tuple(sparse if here else dense for here in is_sparse)


def _mlp_matrices(fields: Fields, known: Architecture, mlp: Mlp, hidden_size: int) -> Iterator[Matrix]:
    if isinstance(mlp, SparseMlp):
        return sparse_mlp(mlp, hidden_size, _router(fields, known))
    bias = fields.flag(known.mlp_bias_key, default=known.mlp_bias) if known.mlp_bias_key else known.mlp_bias
    return dense_mlp(mlp, hidden_size, bias=bias)


def _router(fields: Fields, known: Architecture) -> Router:
    return Router(
        bias=known.router_bias and fields.text("topk_method", default="noaux_tc") == "noaux_tc",
        element_bytes=known.router_bytes_per_element,
        shared_gate=known.shared_gate,
    )


def _attention(fields: Fields, known: Architecture, hidden_size: int) -> tuple[Mixer, tuple[Matrix, ...]]:
    """What the attention of every layer caches, and its weights."""
    num_heads = fields.count(*HEADS)
    if fields.has("kv_lora_rank"):
        ranks = _latent_ranks(fields)
        matrices = tuple(latent_attention(ranks, num_heads, hidden_size))
        if fields.text("model_type") in _LATENT_MODEL_TYPES:
            return latent_mixer(ranks, num_heads), matrices
        return _full(fields, num_heads, ranks.qk_nope_head_dim + ranks.qk_rope_head_dim), matrices
    head_dim = fields.optional_count("head_dim", "hidden_size_per_head", "kv_channels") or hidden_size // num_heads
    if head_dim == 0 and not fields.problems:
        fields.problems.append(f"{HEADS[0]} is {num_heads}, more than hidden_size {hidden_size}; one of them is wrong")
    mixer = _full(fields, num_heads, head_dim)
    return mixer, tuple(_attention_matrices(fields, known, mixer, hidden_size))


def _full(fields: Fields, num_heads: int, head_dim: int) -> FullAttention:
    return FullAttention(num_heads=num_heads, num_kv_heads=_num_kv_heads(fields, num_heads), head_dim=head_dim)


def _attention_matrices(
    fields: Fields, known: Architecture, mixer: FullAttention, hidden_size: int
) -> Iterator[Matrix]:
    bias = fields.flag(known.bias_key, default=known.qkv_bias) if known.bias_key else known.qkv_bias
    output_bias = (bias and known.output_bias_follows) if known.bias_key else known.output_bias
    yield from attention(mixer, hidden_size, qkv_bias=bias, output_bias=output_bias)
    if not known.head_norms or (known.head_norm_key and not fields.flag(known.head_norm_key)):
        return
    if known.head_norms == "head":
        yield vector("qk_norm", 2 * mixer.head_dim)
    else:
        spanning = Units(count=(mixer.num_heads + mixer.num_kv_heads) * mixer.head_dim)
        yield cut_vector("qk_norm", spanning)


def _num_kv_heads(fields: Fields, num_heads: int) -> int:
    """vLLM 0.32, `get_total_num_kv_heads`: the first key that is set; Falcon's multi_query means one head."""
    if fields.text("model_type") == "falcon" and not fields.flag("new_decoder_architecture"):
        return 1 if fields.flag("multi_query") else num_heads
    return fields.count(
        "n_head_kv",
        "num_kv_heads",
        "num_key_value_heads",
        "multi_query_group_num",
        "num_attention_groups",
        default=num_heads,
    )


def _latent_ranks(fields: Fields) -> LatentRanks:
    return LatentRanks(
        q_lora_rank=fields.optional_count("q_lora_rank") or None,
        kv_lora_rank=fields.count("kv_lora_rank"),
        qk_nope_head_dim=fields.count("qk_nope_head_dim"),
        qk_rope_head_dim=fields.count("qk_rope_head_dim"),
        v_head_dim=fields.count("v_head_dim", default=fields.count(*HIDDEN) // fields.count(*HEADS)),
    )


def _dense(fields: Fields, known: Architecture) -> DenseMlp:
    default = None if known.gated_mlp else 4 * fields.count(*HIDDEN)
    size = fields.count("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", default=default)
    if fields.text("model_type") == "qwen":
        size //= 2  # the config counts gate and up together
    return DenseMlp(intermediate_size=size, gated=known.gated_mlp)


def _sparse(fields: Fields) -> SparseMlp | None:
    num_experts = fields.optional_count("num_experts", "n_routed_experts", "num_local_experts")
    if num_experts <= 1:
        return None
    size = fields.count("moe_intermediate_size", "intermediate_size")
    return SparseMlp(
        num_experts=num_experts,
        num_experts_per_token=fields.count("num_experts_per_tok", "moe_topk", "num_experts_per_token", default=1),
        intermediate_size=size,
        shared_intermediate_size=fields.optional_count("shared_expert_intermediate_size")
        or size * fields.optional_count("n_shared_experts"),
    )


def _sparse_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Which layers hold experts: after the dense prefix, at the sparse step, and not listed as dense."""
    prefix = fields.optional_count("first_k_dense_replace")
    frequency = fields.optional_count("moe_layer_freq") or 1
    step = fields.optional_count("decoder_sparse_step") or 1
    dense = {index for index in fields.sequence("mlp_only_layers") if isinstance(index, int)}
    return tuple(
        i >= prefix and i % frequency == 0 and (i + 1) % step == 0 and i not in dense for i in range(num_layers)
    )
