"""Gemma 3, 3n and 4: two head widths, layers that read another layer's cache, experts beside a dense block, embeddings by layer."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from kvgate.budget.ground.units import round_up
from kvgate.budget.model.matrix import Matrix, Units
from kvgate.budget.model.shape import DenseMlp, FullAttention, LayerShape, Mixer, Mlp, SharedCache, SparseMlp
from kvgate.budget.model.weights import VOCABULARY_MULTIPLE
from kvgate.hf_config.blocks import Router, column_parallel, dense_mlp, replicated, row_parallel, sparse_mlp, vector
from kvgate.hf_config.family import LanguageModel, Stack
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.layers.attention import attention_matrices, full_attention, layer_windows
from kvgate.hf_config.layers.layers import attention_stack, stack


def gemma3_stack(model: LanguageModel) -> Stack:
    """Read Gemma 3's layers; with a vision tower, the tokens of an image see each other in both directions."""
    fields = model.fields
    base = replace(full_attention(fields, model.hidden_size), sees_images_both_ways=fields.has("vision_config"))
    windows = layer_windows(fields, model.known, model.num_layers)
    return attention_stack(model, [replace(base, sliding_window=window) for window in windows])


def gemma4_stack(model: LanguageModel) -> Stack:
    """Read Gemma 4: the last `num_kv_shared_layers` layers read the cache of the last layer of their type before them."""
    # layers without a window have heads of their own width, and with `attention_k_eq_v` fewer of them
    fields = model.fields
    base = full_attention(fields, model.hidden_size)
    base = replace(base, sees_images_both_ways=fields.text("use_bidirectional_attention") == "vision")
    num_kv_heads = fields.optional_count("num_global_key_value_heads") if fields.flag("attention_k_eq_v") else 0
    full = replace(
        base,
        head_dim=fields.optional_count("global_head_dim") or base.head_dim,
        num_kv_heads=num_kv_heads or base.num_kv_heads,
    )
    windows = layer_windows(fields, model.known, model.num_layers)
    attentions = [replace(base, sliding_window=window) if window else full for window in windows]
    mixers = _shared_caches(attentions, model.fields.optional_count("num_kv_shared_layers"))
    layers = []
    for attention, mixer in zip(attentions, mixers, strict=True):
        mlps = _mlps(model.fields, widened=isinstance(mixer, SharedCache))
        matrices = (*_projections(model, attention, mixer), *_around(model, mlps))
        layers.append(LayerShape(mixers=(mixer,), mlps=mlps, matrices=matrices))
    whole = stack(model, layers)
    return replace(whole, everywhere=(*whole.everywhere, *_embeddings_by_layer(model)))


def _projections(model: LanguageModel, attention: FullAttention, mixer: Mixer) -> Iterator[Matrix]:
    """Yield the weights of attention; a layer that reads another one's keys and values projects queries alone (vLLM 0.32)."""
    if not isinstance(mixer, SharedCache):
        yield from attention_matrices(model.fields, model.known, attention, model.hidden_size)
        return
    queries = Units(count=attention.num_heads, width=attention.head_dim)
    yield column_parallel("qkv_proj", queries, columns=model.hidden_size)
    yield row_parallel("o_proj", model.hidden_size, columns=queries.elements)
    yield vector("qk_norm", attention.head_dim)


def gemma3n_stack(model: LanguageModel) -> Stack:
    """Read Gemma 3n: `altup_num_inputs` hidden states side by side (AltUp), a low-rank residual (Laurel), an input for every layer.

    `intermediate_size` may have one entry per layer; the last layers read earlier caches.
    """
    fields, width, num_layers = model.fields, model.hidden_size, model.num_layers
    attention = full_attention(fields, width)
    windows = layer_windows(fields, model.known, num_layers)
    attentions = [replace(attention, sliding_window=window) for window in windows]
    mixers = _shared_caches(attentions, fields.optional_count("num_kv_shared_layers"))
    sizes = (
        fields.counts_per_layer("intermediate_size", num_layers, default=1)
        if isinstance(fields.values.get("intermediate_size"), list)
        else (fields.count("intermediate_size"),) * num_layers
    )
    states = fields.count("altup_num_inputs", default=4)
    beside = tuple(_beside(fields, width, states))
    layers = []
    for each, mixer, size in zip(attentions, mixers, sizes, strict=True):
        mlp = DenseMlp(intermediate_size=size)
        matrices = (*_projections(model, each, mixer), *dense_mlp(mlp, width), *beside)
        layers.append(LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=matrices))
    whole = stack(model, layers)
    others = column_parallel("altup_projections", Units(count=width), columns=width)
    more = (*_embeddings_by_layer(model), *(others,) * 2 * (states - 1))
    return replace(whole, everywhere=(*whole.everywhere, *more))


def _beside(fields: Fields, width: int, states: int) -> Iterator[Matrix]:
    """Yield what stands beside attention and feed-forward in a layer of Gemma 3n."""
    rank, own = fields.count("laurel_rank", default=64), fields.count("hidden_size_per_layer_input", default=256)
    yield replicated("altup.coefs", states + states * states, columns=states)
    yield replicated("altup.modality_router", states, columns=width)
    yield vector("altup.correct_output_scale", width, element_bytes=4)
    yield column_parallel("laurel", Units(count=rank), columns=width)
    yield row_parallel("laurel", width, columns=rank)
    yield replicated("per_layer_input_gate", own, columns=width)
    yield replicated("per_layer_projection", width, columns=own)
    yield vector("layernorm", 7 * width)


def _shared_caches(attentions: Sequence[FullAttention], num_shared: int) -> list[Mixer]:
    """Return the mixers of all layers; the last `num_shared` read the cache of an earlier layer with the same window."""
    first = len(attentions) - num_shared
    targets = {attention.sliding_window: index for index, attention in enumerate(attentions[: max(0, first)])}
    return [
        SharedCache(num_heads=attention.num_heads, target=targets[attention.sliding_window])
        if index >= first and attention.sliding_window in targets
        else attention
        for index, attention in enumerate(attentions)
    ]


def _mlps(fields: Fields, *, widened: bool) -> tuple[Mlp, ...]:
    dense = DenseMlp(intermediate_size=fields.count("intermediate_size"))
    if widened and fields.flag("use_double_wide_mlp"):
        dense = replace(dense, intermediate_size=2 * dense.intermediate_size)
    if not fields.flag("enable_moe_block", "use_second_mlp_block"):
        return (dense,)
    sparse = SparseMlp(
        num_experts=fields.count("num_experts"),
        num_experts_per_token=fields.count("top_k_experts", default=1),
        intermediate_size=fields.count("moe_intermediate_size", "expert_intermediate_size"),
        suits_trtllm=False,  # gelu_tanh, and a routing of its own
    )
    return (dense, sparse)


def _around(model: LanguageModel, mlps: tuple[Mlp, ...]) -> Iterator[Matrix]:
    hidden_size = model.hidden_size
    yield vector("layernorm", 4 * hidden_size)
    for mlp in mlps:
        if isinstance(mlp, DenseMlp):
            yield from dense_mlp(mlp, hidden_size)
        else:
            for matrix in sparse_mlp(mlp, hidden_size, Router()):
                # experts stand beside the dense block, not in it, and checkpoints name them so
                yield replace(matrix, name="layer_experts") if matrix.experts else matrix
            yield vector("router_scale", hidden_size + mlp.num_experts)
            yield vector("layernorm", 3 * hidden_size)
    if width := model.fields.optional_count("hidden_size_per_layer_input"):
        yield replicated("per_layer_input_gate", width, columns=hidden_size)
        yield replicated("per_layer_projection", hidden_size, columns=width)
        yield vector("layernorm", hidden_size)


def _embeddings_by_layer(model: LanguageModel) -> Iterator[Matrix]:
    """Yield a second embedding with a slice for every layer, and the projection of the first one to its width."""
    fields = model.fields
    width = fields.optional_count("hidden_size_per_layer_input")
    if not width:
        return
    all_layers = width * model.num_layers
    rows = round_up(fields.count("vocab_size_per_layer_input", "vocab_size"), VOCABULARY_MULTIPLE)
    yield column_parallel("embed_tokens_per_layer", Units(count=rows), columns=all_layers)
    yield column_parallel("per_layer_model_projection", Units(count=all_layers), columns=model.hidden_size)
    yield vector("per_layer_projection_norm", width)
