"""One entry of a `quantization_config` → the format of the matrices that it is about, method by method."""

from collections.abc import Mapping
from typing import Any, get_args

from kvgate.budget.model.matrix import FormatName, WeightFormat
from kvgate.hf_config.formats.modules import UnknownFormat

_FORMATS = frozenset(get_args(FormatName))
_LARGEST_ROTATION = 4096
"""Features of a Hadamard matrix; published ones have 16 to 128."""
LARGEST_GROUP = 1 << 24
"""No group or block of a checkpoint has more features; a larger number is a mistake or an attack."""


def whole(config: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    """Return the first of `keys` that is set, as a number from -1 on. Raises UnknownFormat that names the key and its value."""
    key, value = next(((key, config[key]) for key in keys if config.get(key) is not None), (keys[0], default))
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= LARGEST_GROUP:
        raise UnknownFormat(f"quantization_config with {key} {_shown(value)}")
    return value


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object under a key, empty where there is none. Raises UnknownFormat for anything else."""
    value = config.get(key) or {}
    if not isinstance(value, Mapping):
        raise UnknownFormat(f"quantization_config with {key} {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    if value is None:
        return "missing"
    text = f"of type {type(value).__name__}" if isinstance(value, Mapping | list | tuple | str) else repr(value)[:40]
    return f"{value!r}" if isinstance(value, str) and len(value) <= 30 else text


def fp8(config: Mapping[str, Any]) -> WeightFormat:
    """Read fp8: blocks where the config states their size, else one scale per matrix."""
    block = config.get("weight_block_size")
    if not block:
        static = config.get("activation_scheme") == "static"
        return WeightFormat(method="fp8", format="fp8-tensor", static_activation_scale=static)
    return WeightFormat(method="fp8", format="fp8-block", block=_block(block, "fp8"))


def _block(sizes: Any, method: str) -> tuple[int, int]:
    if not isinstance(sizes, list | tuple) or len(sizes) != 2:
        raise UnknownFormat(f"{method} with blocks {_shown(sizes)}")
    rows, columns = (whole({"blocks of": size}, "blocks of") for size in sizes)
    if rows < 1 or columns < 1:
        raise UnknownFormat(f"{method} in blocks of {rows} × {columns}")
    return rows, columns


def awq(config: Mapping[str, Any]) -> WeightFormat:
    """Read AWQ, which packs along the output and has zero points; 8 bits until vLLM 0.24 (`AWQMarlinConfig`)."""
    return _integers("awq", "awq", _bits(config), _group_size(config), one_of=(4, 8))


def gptq(config: Mapping[str, Any]) -> WeightFormat:
    """Read GPTQ, which packs along the input; 2 and 3 bits until vLLM 0.24 (`GPTQConfig`)."""
    return _integers("gptq", "gptq", _bits(config), _group_size(config), one_of=(2, 3, 4, 8))


def auto_round(config: Mapping[str, Any]) -> WeightFormat:
    """Read auto-round: integers as GPTQ or AWQ packs them, blocks of fp8, or MX formats (vLLM 0.32, `INCConfig`)."""
    data, packing = str(config.get("data_type") or "int"), str(config.get("packing_format") or "auto_round:auto_gptq")
    bits, sizes = _bits(config), config.get("group_size")
    if data in ("fp", "fp8") and isinstance(sizes, list | tuple):
        return WeightFormat(method="auto-round", format="fp8-block", block=_block(sizes, "auto-round"))
    if "mx_fp" in data and bits in (4, 8):
        return WeightFormat(method="auto-round", format="mxfp4" if bits == 4 else "mxfp8")
    if data != "int" or not packing.endswith(("gptq", "awq")):
        raise UnknownFormat(f"auto-round {data[:20]} packed as {packing[:40]}")
    kind = "awq" if packing.endswith("awq") else "gptq"
    widths = (4, 8) if kind == "awq" else (2, 3, 4, 5, 6, 7, 8)
    return _integers("auto-round", kind, bits, _group_size(config), one_of=widths)


def bitsandbytes(config: Mapping[str, Any]) -> WeightFormat:
    """Read bitsandbytes: 4 bits in blocks, or 8 with one scale per channel."""
    if config.get("load_in_8bit"):
        return WeightFormat(method="bitsandbytes", format="int8-channel")
    if not config.get("load_in_4bit"):
        raise UnknownFormat("quantization bitsandbytes without its number of bits")
    double = bool(config.get("bnb_4bit_use_double_quant"))
    return WeightFormat(method="bitsandbytes", format="nf4", double_quantized=double)


def fp_quant(config: Mapping[str, Any]) -> WeightFormat:
    """Read FP-Quant: MXFP4 or NVFP4 of rotated features (vLLM 0.32, `FPQuantLinearMethod`)."""
    kind, size = config.get("forward_dtype"), whole(config, "hadamard_group_size", default=32)
    if kind not in ("mxfp4", "nvfp4") or not 0 < size <= _LARGEST_ROTATION:
        raise UnknownFormat(f"fp_quant with forward_dtype {_shown(kind)} and hadamard_group_size {size}")
    form: FormatName = "mxfp4" if kind == "mxfp4" else "nvfp4"
    return WeightFormat(method="fp_quant", format=form, group_size=16 if form == "nvfp4" else 0, block=(size, size))


_BLOCKS = WeightFormat(method="modelopt", format="fp8-block", block=(128, 128))
_MODELOPT: dict[str, WeightFormat] = {
    "FP8": WeightFormat(method="modelopt", format="fp8-tensor", static_activation_scale=True),
    "FP8_PER_CHANNEL_PER_TOKEN": WeightFormat(method="modelopt", format="fp8-channel"),
    "FP8_PB_WO": _BLOCKS,
    "FP8_BLOCK_SCALES": _BLOCKS,
    "MXFP8": WeightFormat(method="modelopt", format="mxfp8"),
    "NVFP4": WeightFormat(method="modelopt", format="nvfp4", group_size=16),
    "W4A16_NVFP4": WeightFormat(method="modelopt", format="nvfp4-weights", group_size=16),
}
"""`quant_algo` → format (vLLM 0.32, `modelopt.py`)."""


def modelopt(config: Mapping[str, Any]) -> WeightFormat:
    """Read the format by the name of the algorithm; NVFP4 always has groups of 16."""
    algorithm = str(config.get("quant_algo") or ("MXFP8" if config.get("quant_method") == "modelopt_mxfp8" else ""))
    found = _MODELOPT.get(algorithm.upper())
    if found is None or (found.group_size and config.get("group_size") not in (None, 16)):
        raise UnknownFormat(f"quantization modelopt {algorithm[:40].upper() or 'without quant_algo'}")
    return found


def quark(stated: Mapping[str, Any]) -> WeightFormat | None:
    """Read one of Quark's `…_quant_config` objects; None where it leaves the weights as they are (vLLM 0.32, `quark.py`)."""
    weight, given = stated.get("weight"), stated.get("input_tensors")
    if weight is None:
        return None
    first, *more = weight if isinstance(weight, list | tuple) and weight else (weight,)
    inputs = given[0] if isinstance(given, list | tuple) and given else given
    if not isinstance(first, Mapping) or not isinstance(inputs, Mapping | None):
        raise UnknownFormat(f"quark with weight {_shown(weight)}")
    kind, scheme, size = (str(first.get(key) or "") for key in ("dtype", "qscheme", "group_size"))
    form = _QUARK_PAIRS.get((kind, scheme, size)) if more else _QUARK.get((kind, scheme))
    if form is None or (form.startswith("mx") and size != "32") or (form == "int4-awq" and inputs is not None):
        raise UnknownFormat(f"quark {kind[:20]} {scheme[:20]}{' in two steps' if more else ''}")
    return WeightFormat(
        method="quark",
        format=form,
        group_size=max(0, whole(first, "group_size", default=0)),
        block=_block(first.get("block_size"), "quark") if form == "fp8-block" else (0, 0),
        static_activation_scale=inputs is not None and not inputs.get("is_dynamic"),
        has_zero_points=form.startswith("int8"),
    )


_QUARK: dict[tuple[str, str], FormatName] = {
    ("fp8_e4m3", "per_tensor"): "fp8-tensor",
    ("fp8_e4m3", "per_channel"): "fp8-channel",
    ("fp8_e4m3", "per_block"): "fp8-block",
    ("fp8_e4m3", "per_group"): "mxfp8",
    ("int8", "per_tensor"): "int8-tensor",
    ("int8", "per_channel"): "int8-channel",
    ("fp4", "per_group"): "mxfp4",
    ("fp6_e3m2", "per_group"): "mxfp6",
    ("fp6_e2m3", "per_group"): "mxfp6",
    ("int4", "per_group"): "int4-awq",
    ("uint4", "per_group"): "int4-awq",
}
"""(dtype, scheme) → format; 4-bit integers are packed with zero points, as AWQ's."""
_QUARK_PAIRS: dict[tuple[str, str, str], FormatName] = {("fp4", "per_group", "16"): "nvfp4"}
"""(dtype, scheme, group size) of the first of two steps → format."""


def compressed_tensors(group: Mapping[str, Any], packing: str = "") -> WeightFormat:
    """Read one of the `config_groups`; `packing` is the format of the whole checkpoint, where the group states none of its own."""
    weights, activations = section(group, "weights"), section(group, "input_activations")
    packing = str(group.get("format") or packing)
    kind, bits, strategy = weights.get("type"), weights.get("num_bits"), weights.get("strategy")
    size = max(0, whole(weights, "group_size", default=0))
    form: FormatName | None = None
    if packing in ("marlin-24", "sparse-24-bitmask"):
        raise UnknownFormat(f"compressed-tensors {packing}")
    if not isinstance(bits, int) or not isinstance(strategy, str):
        form = None
    elif kind == "float":
        form = _FLOATS.get((bits, strategy, size))
    elif activations.get("type") == "float" and (bits, strategy) == (4, "group"):
        form = "int4-fp8"
    elif activations and packing != "pack-quantized" and bits in (4, 8):
        form = _BYTES.get((bits, strategy))
    elif strategy in ("group", "channel"):
        form = _name(bits, "packed")
    if form is None:
        named = " ".join(str(part)[:20] for part in (kind or "without weights", bits, strategy) if part)
        raise UnknownFormat(f"compressed-tensors {named}")
    if form == "nvfp4" and not activations:
        form = "nvfp4-weights"
    return WeightFormat(
        method="compressed-tensors",
        format=form,
        group_size=size,
        block=_block(weights.get("block_structure"), "compressed-tensors") if form == "fp8-block" else (0, 0),
        static_activation_scale=form[0] != "m" and bool(activations) and activations.get("dynamic") is False,
        has_zero_points=form.endswith("packed") and not weights.get("symmetric", True),
    )


_FLOATS: dict[tuple[int, str, int], FormatName] = {
    (8, "block", 0): "fp8-block",
    (8, "channel", 0): "fp8-channel",
    (8, "tensor", 0): "fp8-tensor",
    (8, "group", 32): "mxfp8",
    (4, "tensor_group", 16): "nvfp4",
    (4, "group", 32): "mxfp4",
}
"""(bits, strategy, group size) → format."""
_BYTES: dict[tuple[int, str], FormatName] = {
    (8, "channel"): "int8-channel",
    (8, "tensor"): "int8-tensor",
    (4, "channel"): "int4-bytes",
    (4, "group"): "int4-bytes",
}
"""(bits, strategy) → format of integers that are multiplied with integers."""


def _integers(method: str, kind: str, bits: int, group_size: int, *, one_of: tuple[int, ...]) -> WeightFormat:
    form = _name(bits, kind) if bits in one_of else None
    if form is None:
        raise UnknownFormat(f"{method} with {bits} bits")
    return WeightFormat(method=method, format=form, group_size=group_size)


def _name(bits: int, kind: str) -> FormatName | None:
    name: Any = f"int{bits}-{kind}"
    return name if name in _FORMATS else None


def _bits(config: Mapping[str, Any]) -> int:
    return whole(config, "bits", "w_bit")


def _group_size(config: Mapping[str, Any]) -> int:
    """Return the group size; -1 in the checkpoint means one scale per output channel, which is 0 here."""
    return max(0, whole(config, "group_size", "q_group_size", default=128))
