"""A format that a name states → the quantisation that its weights likely have, and the smallest and the largest that it allows."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from kvgate.budget.model.matrix import Matrix, WeightFormat
from kvgate.budget.model.shape import ModelShape
from kvgate.hf_config.formats.modules import MODULES
from kvgate.hf_config.names import PLAIN, StatedFormat, usual_quantization_config

_HEAD = ("lm_head",)
"""The module that nearly every publisher leaves out."""


class Converts(StrEnum):
    """Modules that a publisher's quantisation converts at least."""

    ALL = "every linear layer but the head"
    FEED_FORWARD = "the feed-forward blocks"
    EXPERTS = "the routed experts"


def _groups(
    weights: Mapping[str, Any], packing: str, *, ignore: Sequence[str], targets: Sequence[str],
    activations: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    groups = {
        f"group_{i}": {"targets": [target], "weights": weights, "input_activations": activations}
        for i, target in enumerate(targets)
    }
    return {"quant_method": "compressed-tensors", "format": packing, "config_groups": groups, "ignore": list(ignore)}


def _integers(bits: int, group_size: int, *, symmetric: bool) -> dict[str, Any]:
    return {
        "type": "int", "num_bits": bits, "strategy": "group", "group_size": group_size, "symmetric": symmetric,
    }  # fmt: skip


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
_TOKENS = {"type": "float", "num_bits": 8, "strategy": "token", "dynamic": True}
_LIKELY: dict[str, dict[str, Any]] = {
    "int4-packed": _groups(_integers(4, 128, symmetric=True), "pack-quantized", ignore=_HEAD, targets=["Linear"]),
    "nvfp4": _groups(
        {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16}, "nvfp4-pack-quantized",
        activations={"type": "float", "num_bits": 4, "dynamic": "local"}, ignore=_HEAD, targets=["Linear"],
    ),
    "mxfp4": _groups(
        {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32}, "mxfp4-pack-quantized",
        ignore=_HEAD, targets=["Linear"],
    ),
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "fp8-channel": _groups(
        {"type": "float", "num_bits": 8, "strategy": "channel"}, "float-quantized",
        activations=_TOKENS, ignore=_HEAD, targets=["Linear"],
    ),
    "mxfp8": _groups(
        {"type": "float", "num_bits": 8, "strategy": "group", "group_size": 32}, "mxfp8-quantized",
        activations=_TOKENS, ignore=_HEAD, targets=["Linear"],
    ),
    "int8-packed": _groups(_integers(8, 128, symmetric=True), "pack-quantized", ignore=_HEAD, targets=["Linear"]),
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
