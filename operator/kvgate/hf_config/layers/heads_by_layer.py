"""Classes whose layers attend each in its own way: Laguna, Step 3.5, MiMo-V2, Llama 4, gpt-oss, and Whisper and Llama 3.2 Vision,
which look at an encoder's states."""

from msgspec.structs import replace

from kvgate.budget.ground.units import round_up
from kvgate.budget.model.matrix import Units
from kvgate.budget.model.shape import CrossAttention, DenseMlp, FullAttention, LayerShape, SparseMlp
from kvgate.budget.model.weights import VOCABULARY_MULTIPLE
from kvgate.hf_config.blocks import attention, column_parallel, dense_mlp, replicated, vector
from kvgate.hf_config.family import Gate, LanguageModel, Stack
from kvgate.hf_config.layers.attention import (
    attention_matrices,
    dense_of,
    full_attention,
    layer_windows,
    mlp_matrices,
    mlps_of,
)
from kvgate.hf_config.layers.layers import attention_stack, stack
from kvgate.hf_config.layers.positions import rotary_tables


def laguna_stack(model: LanguageModel) -> Stack:
    """Read Laguna: query heads by layer; a gate for each head (`gating` true or per-head) or for each element."""
    fields, num_layers = model.fields, model.num_layers
    base = full_attention(fields, model.hidden_size)
    heads = fields.counts_per_layer("num_attention_heads_per_layer", num_layers, default=base.num_heads)
    sinks = fields.flag("swa_attention_sink_enabled")
    mixers = [
        replace(base, num_heads=count, sliding_window=window, has_sinks=sinks and window > 0)
        for count, window in zip(heads, layer_windows(fields, model.known, num_layers), strict=True)
    ]
    gating = fields.values.get("gating")
    per_head = gating is True or gating == "per-head"
    return attention_stack(_gated(model, ("head" if per_head else "element") if gating else ""), mixers)


def _gated(model: LanguageModel, gate: Gate) -> LanguageModel:
    return replace(model, known=replace(model.known, attention_gate=gate))


def step_stack(model: LanguageModel) -> Stack:
    """Read Step 3.5: layers of the type in `attention_other_setting` have its heads; `moe_layers_enum` names those with experts."""
    fields, num_layers = model.fields, model.num_layers
    base = full_attention(fields, model.hidden_size)
    other = fields.section("attention_other_setting")
    kinds = fields.per_layer("layer_types", num_layers)
    mixers = []
    for index, window in enumerate(layer_windows(fields, model.known, num_layers)):
        mixer = base
        if other.values and kinds and kinds[index] == other.values.get("attention_type"):
            mixer = FullAttention(
                num_heads=other.count("num_attention_heads", default=base.num_heads),
                num_kv_heads=other.count("num_attention_groups", default=base.num_kv_heads),
                head_dim=other.count("head_dim", default=base.head_dim),
            )
        mixers.append(replace(mixer, sliding_window=window))
    gated = _gated(model, "head" if fields.flag("use_head_wise_attn_gate") else "")
    sparse = SparseMlp(
        num_experts=fields.count("moe_num_experts", "num_experts"),
        num_experts_per_token=fields.count("moe_top_k", "num_experts_per_tok", default=1),
        intermediate_size=fields.count("moe_intermediate_size"),
        shared_intermediate_size=fields.count("share_expert_dim"),
    )
    dense = DenseMlp(intermediate_size=fields.count("intermediate_size"))
    listed = {text.strip() for text in fields.text("moe_layers_enum").split(",")} - {""}
    first = fields.optional_count("first_k_dense_replace") or 1
    mlps = [sparse if (str(i) in listed if listed else i >= first) else dense for i in range(num_layers)]
    return attention_stack(gated, mixers, mlps)


def mimo_stack(model: LanguageModel) -> Stack:
    """Read MiMo-V2: `hybrid_layer_pattern` 1 is a window, with heads and widths of its own (`swa_…`)."""
    fields = model.fields
    full = full_attention(fields, model.hidden_size)
    full = replace(full, v_head_dim=_narrower(fields.optional_count("v_head_dim"), full.head_dim))
    full = replace(full, has_sinks=fields.flag("add_full_attention_sink_bias"))
    head_dim = fields.count("swa_head_dim", default=full.head_dim)
    windowed = FullAttention(
        num_heads=fields.count("swa_num_attention_heads", default=full.num_heads),
        num_kv_heads=fields.count("swa_num_key_value_heads", default=full.num_kv_heads),
        head_dim=head_dim,
        v_head_dim=_narrower(fields.optional_count("swa_v_head_dim"), head_dim),
        sliding_window=fields.count("sliding_window_size", "sliding_window"),
        has_sinks=fields.flag("add_swa_attention_sink_bias"),
    )
    pattern = fields.per_layer("hybrid_layer_pattern", model.num_layers) or [0] * model.num_layers
    whole = attention_stack(model, [windowed if kind == 1 else full for kind in pattern])
    return replace(whole, rotary=rotary_tables(fields, model.known, model.hidden_size) * 2)  # with bases of their own


def _narrower(v_head_dim: int, head_dim: int) -> int:
    """Return the width of values, 0 where it is that of keys."""
    return 0 if v_head_dim == head_dim else v_head_dim


def llama4_stack(model: LanguageModel) -> Stack:
    """Read Llama 4: layers with rotary positions attend within chunks; every n-th holds experts and one that all tokens pass."""
    fields, num_layers = model.fields, model.num_layers
    full = full_attention(fields, model.hidden_size)
    chunked = replace(full, chunk_size=fields.optional_count("attention_chunk_size"))
    has_rope = fields.per_layer("no_rope_layers", num_layers) or [(i + 1) % 4 != 0 for i in range(num_layers)]
    dense = DenseMlp(intermediate_size=fields.count("intermediate_size_mlp", "intermediate_size"))
    mlps = [
        replace(mlp, shared_intermediate_size=mlp.intermediate_size) if isinstance(mlp, SparseMlp) else dense
        for mlp in mlps_of(fields, model.known, num_layers)
    ]
    return attention_stack(model, [chunked if rope else full for rope in has_rope], mlps)


def gpt_oss_stack(model: LanguageModel) -> Stack:
    """Read gpt-oss: every layer has sinks; those with an even index have a window, whatever `layer_types` says."""
    fields = model.fields
    full = replace(full_attention(fields, model.hidden_size), has_sinks=True)
    windowed = replace(full, sliding_window=fields.optional_count("sliding_window"))
    return attention_stack(model, [full if index % 2 else windowed for index in range(model.num_layers)])


def cross_attention_of(mixer: FullAttention) -> CrossAttention:
    """Return the same heads over the encoder's states."""
    return CrossAttention(num_heads=mixer.num_heads, num_kv_heads=mixer.num_kv_heads, head_dim=mixer.head_dim)


def whisper_stack(model: LanguageModel) -> Stack:
    """Read Whisper's decoder: the embedding is the head too, and whole on every rank; positions are learned."""
    fields, width = model.fields, model.hidden_size
    num_heads = fields.count("decoder_attention_heads", "num_attention_heads")
    mixer = FullAttention(num_heads=num_heads, num_kv_heads=num_heads, head_dim=max(1, width // num_heads))
    mlp = DenseMlp(intermediate_size=fields.count("decoder_ffn_dim"), gated=False)
    attending = tuple(
        attention(mixer, width, qkv_bias=True, output_bias=True)
    )  # over itself, and over the encoder's states
    matrices = (*attending, *attending, *dense_mlp(mlp, width, bias=True), vector("layernorm", 6 * width))
    layer = LayerShape(mixers=(mixer, cross_attention_of(mixer)), mlps=(mlp,), matrices=matrices)
    first = (
        replicated("embed_tokens", fields.count("vocab_size"), columns=width),
        replicated("embed_positions", fields.count("max_target_positions"), columns=width),
    )
    return stack(model, [layer] * model.num_layers, first=first)


def mllama_stack(model: LanguageModel) -> Stack:
    """Read Llama 3.2 Vision: `cross_attention_layers` attend to the image instead of the text; the embedding has 8 rows for images."""
    fields, known, width = model.fields, model.known, model.hidden_size
    mixer, mlp = full_attention(fields, width), dense_of(fields, model.known)
    crossing = fields.layer_numbers("cross_attention_layers")
    own = (
        *attention_matrices(fields, known, mixer, width),
        *mlp_matrices(fields, known, mlp, width),
        vector("layernorm", 2 * width),
    )
    crossed = (
        *attention_matrices(fields, replace(known, head_norms="head"), mixer, width),
        *mlp_matrices(fields, known, mlp, width),
        vector("layernorm", 2 * width),
        vector("cross_attn_gates", 2),
    )
    layers = (
        LayerShape(mixers=(cross_attention_of(mixer),), mlps=(mlp,), matrices=crossed)
        if index in crossing
        else LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=own)
        for index in range(model.num_layers)
    )
    vocab_size = fields.count("vocab_size")
    # rows of the longer embedding beyond the padded vocabulary
    image_rows = round_up(vocab_size + 8, VOCABULARY_MULTIPLE) - round_up(vocab_size, VOCABULARY_MULTIPLE)
    return stack(model, layers, first=(column_parallel("embed_tokens", Units(count=image_rows), columns=width),))
