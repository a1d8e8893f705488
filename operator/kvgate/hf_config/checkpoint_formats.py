"""One entry of a `quantization_config` → the format of the matrices that it is about, method by method."""

from collections.abc import Mapping
from typing import Any

from kvgate.budget.matrix import FormatName, WeightFormat
from kvgate.hf_config.modules import UnknownFormat


def fp8(config: Mapping[str, Any]) -> WeightFormat:
    """Read fp8: blocks where the config states their size, else one scale per matrix."""
    block = config.get("weight_block_size")
    if not block:
        static = config.get("activation_scheme") == "static"
        return WeightFormat(method="fp8", format="fp8-tensor", static_activation_scale=static)
    rows, columns = map(int, block)
    if rows < 1 or columns < 1:
        raise UnknownFormat(f"fp8 in blocks of {rows} × {columns}")
    return WeightFormat(method="fp8", format="fp8-block", block=(rows, columns))


def fbgemm_fp8(_: Mapping[str, Any]) -> WeightFormat:
    """Return the one format of fbgemm_fp8: one scale per output channel."""
    return WeightFormat(method="fbgemm_fp8", format="fp8-channel")


def mxfp4(_: Mapping[str, Any]) -> WeightFormat:
    """Return the one format of mxfp4, which gpt-oss uses."""
    return WeightFormat(method="mxfp4", format="mxfp4")


def awq(config: Mapping[str, Any]) -> WeightFormat:
    """Read AWQ, which packs along the output and has zero points."""
    if _bits(config) != 4:
        raise UnknownFormat(f"awq with {_bits(config)} bits")
    return WeightFormat(method="awq", format="int4-awq", group_size=_group_size(config))


def gptq(config: Mapping[str, Any]) -> WeightFormat:
    """Read GPTQ, which packs along the input and keeps the order of its features."""
    if _bits(config) not in (4, 8):
        raise UnknownFormat(f"gptq with {_bits(config)} bits")
    form: FormatName = "int4-gptq" if _bits(config) == 4 else "int8-gptq"
    return WeightFormat(method="gptq", format=form, group_size=_group_size(config))


def auto_round(config: Mapping[str, Any]) -> WeightFormat:
    """Read auto-round, which packs as GPTQ or AWQ does."""
    packing = str(config.get("packing_format", "auto_round:auto_gptq"))
    if not packing.endswith(("gptq", "awq")):
        raise UnknownFormat(f"auto-round packed as {packing}")
    return awq(config) if packing.endswith("awq") else gptq(config)


def bitsandbytes(config: Mapping[str, Any]) -> WeightFormat:
    """Read bitsandbytes: 4 bits in blocks, or 8 with one scale per channel."""
    if config.get("load_in_8bit"):
        return WeightFormat(method="bitsandbytes", format="int8-channel")
    if not config.get("load_in_4bit"):
        raise UnknownFormat("quantization bitsandbytes without its number of bits")
    double = bool(config.get("bnb_4bit_use_double_quant"))
    return WeightFormat(method="bitsandbytes", format="nf4", double_quantized=double)


_MODELOPT: dict[str, WeightFormat] = {
    "FP8": WeightFormat(method="modelopt", format="fp8-tensor", static_activation_scale=True),
    "FP8_PER_CHANNEL_PER_TOKEN": WeightFormat(method="modelopt", format="fp8-channel"),
    "FP8_PB_WO": WeightFormat(method="modelopt", format="fp8-block", block=(128, 128)),
    "MXFP8": WeightFormat(method="modelopt", format="mxfp8"),
    "NVFP4": WeightFormat(method="modelopt", format="nvfp4", group_size=16),
    "W4A16_NVFP4": WeightFormat(method="modelopt", format="nvfp4-weights", group_size=16),
}
"""`quant_algo` → format (vLLM 0.32, `modelopt.py`)."""


def modelopt(config: Mapping[str, Any]) -> WeightFormat:
    """Read the format by the name of the algorithm; NVFP4 always has groups of 16."""
    algorithm = str(config.get("quant_algo", "")).upper()
    if algorithm not in _MODELOPT or config.get("group_size") not in (None, 16):
        raise UnknownFormat(f"quantization modelopt {algorithm or 'without quant_algo'}")
    return _MODELOPT[algorithm]


def compressed_tensors(group: Mapping[str, Any]) -> WeightFormat:
    """Read one of the `config_groups`."""
    weights, activations = group.get("weights") or {}, group.get("input_activations") or {}
    kind, bits, strategy = weights.get("type"), weights.get("num_bits"), weights.get("strategy")
    size = max(0, int(weights.get("group_size") or 0))
    form: FormatName | None = None
    if kind == "float":
        form = _FLOATS.get((bits, strategy, size))
    elif activations:
        form = "int8-channel" if (bits, strategy) in ((8, "channel"), (8, "tensor")) else None
    elif strategy in ("group", "channel"):
        form = _PACKED_INTEGERS.get(bits)
    if form is None:
        raise UnknownFormat(f"compressed-tensors {kind or 'without weights'} {bits or ''} {strategy or ''}".strip())
    rows, columns = map(int, weights.get("block_structure") or (0, 0))
    if form == "fp8-block" and min(rows, columns) < 1:
        raise UnknownFormat(f"compressed-tensors in blocks of {rows} × {columns}")
    if form == "nvfp4" and not activations:
        form = "nvfp4-weights"
    return WeightFormat(
        method="compressed-tensors",
        format=form,
        group_size=size,
        block=(rows, columns),
        static_activation_scale=bool(activations) and activations.get("dynamic") is False,
        has_zero_points=not weights.get("symmetric", True),
    )


_FLOATS: dict[tuple[Any, Any, int], FormatName] = {
    (8, "block", 0): "fp8-block",
    (8, "channel", 0): "fp8-channel",
    (8, "tensor", 0): "fp8-tensor",
    (8, "group", 32): "mxfp8",
    (4, "tensor_group", 16): "nvfp4",
    (4, "group", 32): "mxfp4",
}
"""(bits, strategy, group size) → format."""
_PACKED_INTEGERS: dict[Any, FormatName] = {4: "int4-packed", 8: "int8-packed"}


def _bits(config: Mapping[str, Any]) -> Any:
    return config.get("bits", config.get("w_bit"))


def _group_size(config: Mapping[str, Any]) -> int:
    """Return the group size; -1 in the checkpoint means one scale per output channel, which is 0 here."""
    return max(0, int(config.get("group_size", config.get("q_group_size", 128))))
