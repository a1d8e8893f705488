"""A format that a name states → the quantisation that its weights likely have, and the smallest and the largest that it allows."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.hf_config.names import PLAIN, StatedFormat, usual_quantization_config

HEAD = ("lm_head",)
"""The module that nearly every publisher leaves out."""
ALL_BUT_FEED_FORWARD = (
    *HEAD,
    r"re:.*(?:self_attn|attention|linear_attn|mamba|short_conv|shared_expert|shared_mlp).*",
    r"re:.*mixer\.(?:q_proj|k_proj|v_proj|o_proj|in_proj|out_proj).*",
    r"re:.*(?:visual|vision|image|audio|multi_modal|mtp).*",
)
"""Modules that publishers leave out of a dense model where they leave out most."""
ALL_BUT_EXPERTS = (*ALL_BUT_FEED_FORWARD, r"re:.*(?:mlp|feed_forward)\.(?:gate_up|gate|up|down)_proj")
"""Modules that publishers leave out of a mixture of experts where they leave out most (nvidia/Gemma-4-26B-A4B-NVFP4)."""


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
_SMALLEST: dict[str, tuple[dict[str, Any], str]] = {
    _FOUR_BITS: (_integers(4, 128, symmetric=True), "pack-quantized"),
    _EIGHT_BITS: ({"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True}, "float-quantized"),
}
_LARGEST: dict[str, tuple[dict[str, Any], str]] = {
    _FOUR_BITS: (_integers(4, 32, symmetric=False), "pack-quantized"),
    _EIGHT_BITS: (_integers(8, 32, symmetric=True), "pack-quantized"),
}
_TOKENS = {"type": "float", "num_bits": 8, "strategy": "token", "dynamic": True}
_LIKELY: dict[str, dict[str, Any]] = {
    "int4-packed": _groups(_integers(4, 128, symmetric=True), "pack-quantized", ignore=HEAD, targets=["Linear"]),
    "nvfp4": _groups(
        {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16}, "nvfp4-pack-quantized",
        activations={"type": "float", "num_bits": 4, "dynamic": "local"}, ignore=HEAD, targets=["Linear"],
    ),
    "mxfp4": _groups(
        {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32}, "mxfp4-pack-quantized",
        ignore=HEAD, targets=["Linear"],
    ),
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "fp8-channel": _groups(
        {"type": "float", "num_bits": 8, "strategy": "channel"}, "float-quantized",
        activations=_TOKENS, ignore=HEAD, targets=["Linear"],
    ),
    "mxfp8": _groups(
        {"type": "float", "num_bits": 8, "strategy": "group", "group_size": 32}, "mxfp8-quantized",
        activations=_TOKENS, ignore=HEAD, targets=["Linear"],
    ),
    "int8-packed": _groups(_integers(8, 128, symmetric=True), "pack-quantized", ignore=HEAD, targets=["Linear"]),
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
    stored = (_LIKELY[form] for form in _LIKELY if form in stated.formats and _is_narrow(form) == is_narrow)
    return next(stored, None)


def likely_quantization_config(name: str, stated: StatedFormat) -> Mapping[str, Any] | None:
    """Return the quantisation that the publisher's tool writes by default; None for weights that are not quantised."""
    return None if PLAIN in stated.formats else usual_quantization_config(name) or _likeliest(stated)


def bounds_of_formats(
    stated: StatedFormat, left_out: Sequence[str]
) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return the quantisations of the smallest and the largest weights; None for weights that are not quantised.

    The smallest has the widest groups and converts the head too. The largest has narrow groups with zero points, and leaves out the
    modules of `left_out`.
    """
    widths = [] if PLAIN in stated.formats else _widths(stated)
    if not widths:
        return None
    narrow, packing = _SMALLEST[widths[0]]
    wide, wide_packing = _LARGEST[widths[-1]]
    return (
        _groups(narrow, packing, ignore=(), targets=["lm_head", "Linear"]),
        _groups(wide, wide_packing, ignore=left_out, targets=["Linear"]),
    )
