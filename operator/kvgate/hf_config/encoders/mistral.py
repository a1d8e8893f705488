"""The towers of Mistral's models, Pixtral for pictures and Voxtral for sound, and Whisper's encoder, which Voxtral uses."""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from kvgate.budget.model.matrix import Matrix, WeightFormat, whole
from kvgate.budget.model.shape import Encoder, MediaItem, TowerBlock
from kvgate.hf_config.blocks import replicated, vector
from kvgate.hf_config.encoders.parts import (
    TowerLayer,
    built_layers,
    counted,
    layer_norm,
    patch_embedding,
    tower,
    two_linears,
)
from kvgate.hf_config.fields import Fields

_PIXTRAL_DEFAULTS = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 1024,
    "patch_size": 16, "num_channels": 3,
}  # fmt: skip
"""Defaults of `PixtralVisionConfig` in transformers 4.57."""
_QWEN2_AUDIO_DEFAULTS = {
    "num_mel_bins": 128, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "d_model": 1280,
    "max_source_positions": 1500,
}  # fmt: skip
"""Defaults of `Qwen2AudioEncoderConfig` in transformers 5."""
_STATES_PER_EMBEDDING = 4
"""States of the encoder behind one embedding of Voxtral's language model."""


def pixtral_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return the tower of Mistral Small 3.1: gated layers without biases; 2 × 2 patches are merged in front of the projector."""
    vision = config.section("vision_config").over(_PIXTRAL_DEFAULTS)
    merge = config.count("spatial_merge_size", default=2)
    width = vision.count("hidden_size")
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=vision.count("intermediate_size"),
        num_heads=vision.count("num_attention_heads"),
        head_dim=vision.optional_count("head_dim"),
        gated=True,
        attention_bias=False,
        mlp_bias=False,
        norm_vectors=2,
    )
    converted = _converted(config)
    patch = vision.count("patch_size")
    side = vision.count("image_size") // (patch * merge)
    layers = counted(built_layers(config, vision, default=-1), _stored(layer.matrices(), converted))
    patches = (patch_embedding(width, columns=vision.count("num_channels") * patch * patch), vector("ln_pre", width))
    bias = config.flag("multimodal_projector_bias")
    projector = (
        vector("multi_modal_projector.norm", width),
        replicated("patch_merger", width, columns=width * merge * merge),
        *two_linears("multi_modal_projector", columns=width, inner=hidden_size, rows=hidden_size, bias=bias),
    )
    return (
        Encoder(
            matrices=(*layers, *counted(1, (*patches, *_stored(projector, converted)))),
            hidden_size=width,
            intermediate_size=layer.intermediate_size,
            items=(MediaItem(modality="image", tokens=side * side),),
            patches_per_token=merge * merge,
            block=TowerBlock(feed_forward="gated", hidden=6, has_mask=True),
        ),
    )


def _converted(config: Fields) -> WeightFormat | None:
    """Return the format that the tower's linears get where the checkpoint's list of exceptions misses them.

    vLLM 0.32 renames `model.vision_tower.…` in such lists, and not a bare `model.vision_tower`: that names no module of its own.
    """
    declared = config.mapping("quantization_config")
    names = [str(name) for name in Fields(declared).sequence("modules_to_not_convert")]
    missed = bool(names) and not any(name.startswith(("vision_tower", "model.vision_tower.")) for name in names)
    if declared.get("quant_method") != "fp8" or declared.get("weight_block_size") or not missed:
        return None
    static = declared.get("activation_scheme") == "static"
    return WeightFormat(method="fp8", format="fp8-tensor", static_activation_scale=static)


def _stored(matrices: Iterable[Matrix], converted: WeightFormat | None) -> Iterator[Matrix]:
    """Yield vLLM's own linears in the format; norms, and torch's plain linear of the patch merger, stay as they are."""
    for matrix in matrices:
        is_plain = converted is None or matrix.columns == 1 or matrix.name == "patch_merger"
        yield matrix if is_plain else replace(matrix, format=converted)


def whisper_audio(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return Whisper's encoder; the decoder is as wide, and attends to every state: thirty seconds of sound are always 1500."""
    item = MediaItem(modality="audio", tokens=config.count("max_source_positions"))
    return (_whisper_encoder(config, hidden_size, item),)


def voxtral_audio(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return Voxtral's encoder, which is Whisper's with an adapter.

    Sounds are cut into pieces of thirty seconds, as many as the context has room for.
    """
    audio = config.section("audio_config")
    width = audio.count("d_model", "hidden_size")
    piece = max(1, audio.count("max_source_positions") // _STATES_PER_EMBEDDING)
    longest = config.section("text_config").count("max_position_embeddings", default=piece)
    item = MediaItem(modality="audio", tokens=max(piece, longest // piece * piece), step_tokens=piece)
    adapter = (
        replicated("audio_language_adapter", hidden_size, columns=_STATES_PER_EMBEDDING * width),
        replicated("audio_language_adapter", hidden_size, columns=hidden_size),
    )
    encoder = _whisper_encoder(audio, width, item)
    matrices = (*encoder.matrices, *counted(1, adapter))
    return (replace(encoder, matrices=matrices, patches_per_token=_STATES_PER_EMBEDDING),)


def qwen2_audio(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return Qwen2-Audio's encoder: transformers' own Whisper, whole on every rank and without a bias of keys; two states are pooled."""
    audio = config.section("audio_config").over(_QWEN2_AUDIO_DEFAULTS)
    width = audio.count("d_model")
    item = MediaItem(modality="audio", tokens=max(1, audio.count("max_source_positions") // 2))
    encoder = _whisper_encoder(audio, width, item)
    matrices = [(whole(matrix), count) for matrix, count in encoder.matrices if matrix.name != "qkv_proj"]
    layers = audio.count("encoder_layers")
    matrices += [(replicated("q_proj", width, columns=width, bias=True), 2 * layers)]  # those of values are alike
    matrices += [(replicated("k_proj", width, columns=width), layers)]
    matrices += [(replicated("multi_modal_projector", hidden_size, columns=width, bias=True), 1)]
    return (replace(encoder, matrices=tuple(matrices), patches_per_token=2),)


def _whisper_encoder(audio: Fields, width: int, item: MediaItem) -> Encoder:
    """Return two convolutions over the spectrum, positions, and plain layers."""
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=audio.count("encoder_ffn_dim", "intermediate_size"),
        num_heads=audio.count("encoder_attention_heads", "num_attention_heads"),
    )
    around = (
        replicated("conv1", width, columns=3 * audio.count("num_mel_bins"), bias=True),
        replicated("conv2", width, columns=3 * width, bias=True),
        replicated("embed_positions", audio.count("max_source_positions"), columns=width),
        layer_norm("layer_norm", width),
    )
    return tower(layer, audio.count("encoder_layers", "num_hidden_layers"), around, item, block=TowerBlock())
