"""Pixtral towers with the projector of Mistral Small 3.1 and its successors."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from kvgate.budget.matrix import Matrix, WeightFormat
from kvgate.budget.model_shape import Encoder, MediaItem
from kvgate.hf_config.blocks import replicated, vector
from kvgate.hf_config.encoders.parts import TowerLayer, built_layers, counted, patch_embedding, two_linears
from kvgate.hf_config.fields import Fields

PIXTRAL_DEFAULTS = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 1024,
    "patch_size": 16, "num_channels": 3,
}  # fmt: skip
"""Defaults of `PixtralVisionConfig` in transformers 4.57."""


def pixtral_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Gated layers without biases; 2 × 2 patches are merged in front of the projector."""
    vision = config.section("vision_config").over(PIXTRAL_DEFAULTS)
    merge = config.count("spatial_merge_size", default=2)
    layer = TowerLayer(
        hidden_size=vision.count("hidden_size"),
        intermediate_size=vision.count("intermediate_size"),
        num_heads=vision.count("num_attention_heads"),
        head_dim=vision.optional_count("head_dim"),
        gated=True,
        attention_bias=False,
        mlp_bias=False,
        norm_vectors=2,
    )
    converted = _converted(config)
    side = vision.count("image_size") // (vision.count("patch_size") * merge)
    return (
        Encoder(
            matrices=(
                *counted(built_layers(config, vision, default=-1), _stored(layer.matrices(), converted)),
                *counted(1, _patches(vision, layer.hidden_size)),
                *counted(1, _stored(_projector(config, layer.hidden_size, hidden_size, merge), converted)),
            ),
            hidden_size=layer.hidden_size,
            intermediate_size=layer.intermediate_size,
            items=(MediaItem(modality="image", tokens=side * side),),
            patches_per_token=merge * merge,
        ),
    )


def _converted(config: Fields) -> WeightFormat | None:
    """The format that the tower's linears get where the checkpoint's list of exceptions misses them.

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
    """vLLM's own linears in the format; norms and torch's plain linear of the patch merger as they are."""
    for matrix in matrices:
        is_plain = converted is None or matrix.columns == 1 or matrix.name == "patch_merger"
        yield matrix if is_plain else replace(matrix, format=converted)


def _patches(vision: Fields, width: int) -> Iterator[Matrix]:
    patch = vision.count("patch_size")
    yield patch_embedding(width, columns=vision.count("num_channels") * patch * patch)
    yield vector("ln_pre", width)


def _projector(config: Fields, width: int, hidden_size: int, merge: int) -> Iterator[Matrix]:
    bias = config.flag("multimodal_projector_bias")
    yield vector("multi_modal_projector.norm", width)
    yield replicated("patch_merger", width, columns=width * merge * merge)
    yield from two_linears("multi_modal_projector", columns=width, inner=hidden_size, rows=hidden_size, bias=bias)
