"""Decoders that look at an encoder's states: Whisper in every layer, Llama 3.2 Vision in some."""

from msgspec.structs import replace

from kvgate.budget.ground.units import round_up
from kvgate.budget.model.matrix import Units
from kvgate.budget.model.shape import CrossAttention, DenseMlp, FullAttention, LayerShape
from kvgate.budget.model.weights import VOCABULARY_MULTIPLE
from kvgate.hf_config.blocks import attention, column_parallel, dense_mlp, replicated, vector
from kvgate.hf_config.family import LanguageModel, Stack
from kvgate.hf_config.layers.attention import attention_matrices, full_attention
from kvgate.hf_config.layers.feed_forward import dense_of, mlp_matrices
from kvgate.hf_config.layers.layers import stack


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
    return stack(model, tuple(model.formats.stored(index, layer) for index in range(model.num_layers)), first=first)


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
    stored = tuple(model.formats.stored(index, layer) for index, layer in enumerate(layers))
    vocab_size = fields.count("vocab_size")
    # rows of the longer embedding beyond the padded vocabulary
    image_rows = round_up(vocab_size + 8, VOCABULARY_MULTIPLE) - round_up(vocab_size, VOCABULARY_MULTIPLE)
    return stack(model, stored, first=(column_parallel("embed_tokens", Units(count=image_rows), columns=width),))
