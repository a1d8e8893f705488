"""A format that a name states → the quantisation that its weights likely have, and the smallest and the largest that it allows."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from kvgate.budget.model.matrix import Matrix, WeightFormat
from kvgate.budget.model.shape import ModelShape
from kvgate.hf_config.formats.modules import MODULES
from kvgate.hf_config.names import PLAIN, StatedFormat, compressed, numbers, usual_quantization_config


class Converts(StrEnum):
    """Modules that a publisher's quantisation converts at least."""

    ALL = "every linear layer but the head"
    FEED_FORWARD = "the feed-forward blocks"
    EXPERTS = "the routed experts"


_FOUR_BITS, _EIGHT_BITS = "four bits", "eight bits"
_SMALLEST = {
    _FOUR_BITS: WeightFormat(method="compressed-tensors", format="int4-packed", group_size=128),
    _EIGHT_BITS: WeightFormat(method="compressed-tensors", format="fp8-tensor"),
}
_LARGEST = {
    _FOUR_BITS: WeightFormat(method="compressed-tensors", format="int4-packed", group_size=32, has_zero_points=True),
    _EIGHT_BITS: WeightFormat(method="compressed-tensors", format="int8-packed", group_size=32),
}
"""Formats with the widest and the narrowest groups, by width."""
_TOKENS = numbers("float", 8, "token", dynamic=True)
_LIKELY: dict[str, dict[str, Any]] = {
    "int4-packed": compressed(numbers("int", 4, "group", group_size=128), None, "pack-quantized"),
    "nvfp4": compressed(
        numbers("float", 4, "tensor_group", group_size=16), numbers("float", 4, "tensor_group", dynamic="local"),
        "nvfp4-pack-quantized",
    ),
    "mxfp4": compressed(numbers("float", 4, "group", group_size=32), None, "mxfp4-pack-quantized"),
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "fp8-channel": compressed(numbers("float", 8, "channel"), _TOKENS, "float-quantized"),
    "mxfp8": compressed(numbers("float", 8, "group", group_size=32), _TOKENS, "mxfp8-quantized"),
    "int8-packed": compressed(numbers("int", 8, "group", group_size=128), None, "pack-quantized"),
}  # fmt: skip
"""Quantisation by a format that goes with the stated one, the likeliest first: the presets of llm-compressor and bitsandbytes."""


def _is_narrow(form: str) -> bool:
    return form.startswith(("int4", "nvfp4", "mxfp4", "nf4"))


def _widths(stated: StatedFormat) -> list[str]:
    """Return the widths that the stated formats have, the narrower first; tools convert to four bits where the name has no number."""
    four = any(map(_is_narrow, stated.formats))
    eight = any(each.startswith(("int8", "fp8", "mxfp8")) for each in stated.formats)
    if four and not stated.states_numbers:
        return [_FOUR_BITS]
    return [width for width, has in ((_FOUR_BITS, four), (_EIGHT_BITS, eight)) if has]


def can_be_assumed(stated: StatedFormat) -> bool:
    """Return whether vLLM reads weights of the stated format from safetensors files, and their bytes are known (not two bits, not GGUF)."""
    return PLAIN in stated.formats or _likeliest(stated) is not None


def _likeliest(stated: StatedFormat) -> Mapping[str, Any] | None:
    is_narrow = _FOUR_BITS in _widths(stated)
    return next((_LIKELY[form] for form in _LIKELY if form in stated.formats and _is_narrow(form) == is_narrow), None)


def likely_quantization_config(name: str, stated: StatedFormat) -> Mapping[str, Any] | None:
    """Return the quantisation that the publisher's tool writes by default; None for weights that are not quantised."""
    return None if PLAIN in stated.formats else usual_quantization_config(name) or _likeliest(stated)


def smallest_and_largest(
    shape: ModelShape, stated: StatedFormat, converts: Converts
) -> tuple[ModelShape, ModelShape] | None:
    """Return the shape with the smallest and the largest weights of the stated format; None for weights that are not quantised.

    The smallest has the widest groups and converts the head too. The largest has narrow groups with zero points, and converts no more
    than `converts`.
    """
    widths = [] if PLAIN in stated.formats else _widths(stated)
    if not widths:
        return None
    narrow, wide = _SMALLEST[widths[0]], _LARGEST[widths[-1]]
    return (
        replace(_stored(shape, lambda _: narrow), head_format=narrow),
        replace(_stored(shape, lambda matrix: wide if _is_converted(matrix, converts) else None), head_format=None),
    )


def _is_converted(matrix: Matrix, converts: Converts) -> bool:
    is_dense = converts is Converts.FEED_FORWARD and matrix.name in ("gate_up_proj", "down_proj")
    return converts is Converts.ALL or bool(matrix.experts) or is_dense


def _stored(shape: ModelShape, form: Callable[[Matrix], WeightFormat | None]) -> ModelShape:
    """Return the shape with another format of each matrix that vLLM can quantise; equal layers stay one object."""
    layers = {}
    for layer, _ in shape.distinct_layers:
        matrices = (
            replace(matrix, format=form(matrix)) if matrix.name in MODULES else matrix for matrix in layer.matrices
        )
        layers[id(layer)] = replace(layer, matrices=tuple(matrices))
    return replace(shape, layers=tuple(layers[id(layer)] for layer in shape.layers))
