"""Formats that the name of a checkpoint states (`-AWQ`, `-quantized.w4a16`, `-FP8-dynamic`): a table, without any look-up."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

from kvgate.text.patterns import pattern

MAX_NAME = 300
"""Characters of a name that is read; the two parts of a repository's name on the hub have at most 96 each."""
PLAIN = "plain"
"""Stands for weights in the model dtype among the formats that a name states (`-BF16`)."""

_INT2, _INT3 = ("int2-gptq", "int2-packed"), ("int3-gptq", "int3-packed")
_INT4 = ("int4-awq", "int4-gptq", "int4-packed", "int4-fp8", "int4-bytes")
_INT8 = ("int8-awq", "int8-gptq", "int8-packed", "int8-channel", "int8-tensor")
_FP8 = ("fp8-block", "fp8-tensor", "fp8-channel", "mxfp8")
_FP4 = ("nvfp4", "nvfp4-weights", "mxfp4")
_ANY4 = (*_INT4, *_FP4, "nf4")
_INTEGERS = (*_INT2, *_INT3, *_INT4, *_INT8)

_Table = tuple[tuple[str, str, tuple[str, ...]], ...]
_TOOLS: _Table = (
    ("GGUF", r"(?:ud[-_])?gguf|(?:ud[-_])?i?q[2-8]_(?:k(?:_(?:xl|s|m|l))?|[01]|xxs|xs|s|m|nl)", ()),
    ("bitsandbytes", r"(?:unsloth[-_])?bnb|bitsandbytes|nf4", ("nf4", "int8-channel")),
    ("AWQ", r"(?:auto)?awq", _INTEGERS),
    ("GPTQ", r"(?:auto)?gptq(?:v2)?", _INTEGERS),
    ("AutoRound", r"auto[-_]?round", (*_INTEGERS, *_FP4, *_FP8)),
    ("HQQ", r"hqq", ()),
    ("AQLM", r"aqlm", ()),
    ("EXL", r"exl[23]", ()),
    ("MLX", r"mlx", ()),
)
"""(tool or container in words, its components of a name, formats in which such a checkpoint is stored).

AWQ and GPTQ choose the numbers: llm-compressor and auto-round store what they chose in formats of their own.
"""
_NUMBERS: _Table = (
    ("NVFP4", r"nvfp4(?:a16)?", _FP4),
    ("MXFP4", r"mxfp4", ("mxfp4",)),
    ("MXFP8", r"mxfp8", ("mxfp8",)),
    ("FP4", r"fp4", _FP4),
    ("FP8", r"fp8", _FP8),
    ("W4A16", r"w4a16", _ANY4),
    ("W4A8", r"w4a8|w4afp8", (*_INT4, "mxfp4")),
    ("W4A4", r"w4a4", (*_FP4, *_INT4)),
    ("W8A8", r"w8a8", (*_INT8, *_FP8)),
    ("W8A16", r"w8a16", (*_INT8, *_FP8)),
    ("INT8", r"int-?8(?:mix)?", _INT8),
    ("INT4", r"int-?4(?:a16)?", _ANY4),
    ("8 bits", r"8[-_]?bits?", (*_INT8, *_FP8)),
    ("4 bits", r"4[-_]?bits?|4b(?=-\d{2,3}g)", _ANY4),
    ("3 bits", r"int-?3|3[-_]?bits?|w3a16", _INT3),
    ("2 bits", r"int-?2|2[-_]?bits?|w2a16", _INT2),
)
"""(numbers in words, their components of a name, formats that store them)."""
_NOTHING: _Table = (("BF16", r"bf16|fp16|16[-_]?bits?|unquantized|dequantized", (PLAIN,)),)
_BESIDE = (
    r"quantized|qat|compressed[-_]tensors|ct|fp8kv|kv[-_]?fp8|kv|dynamic|static|block|per[-_]?(?:tensor|channel|token)|mix(?:ed)?|"
    r"a?sym|gem[mv]|marlin|q?gs?\d{2,3}|group[-_]?\d{2,3}|\d{2,3}g|actorder|inc|w4"
)
"""Components that describe the format beside which they stand."""


_STATES = "|".join(pattern for table in (_TOOLS, _NUMBERS, _NOTHING) for _, pattern, _ in table)
_RUN = pattern(
    rf"(?:[-_.:]|^)(?:(?:quantized|qat)[-_.])?(?:{_STATES})(?![^-_.:])(?:[-_.:](?:{_STATES}|{_BESIDE})(?![^-_.:]))*",
    re.IGNORECASE | re.ASCII,
)
"""A component that states a format, and those beside it. Every component ends at a separator, so the search never goes back."""


class StatedFormat(Struct, frozen=True, kw_only=True):
    text: str
    """The part of the name that states it (`AWQ-INT4`)."""
    base: str
    """The name without that part: the model before somebody quantised it, under the same owner."""
    kinds: tuple[str, ...]
    """The tools and numbers that are stated, in words (`AWQ`, `INT4`)."""
    states_numbers: bool = False
    """True where numbers are stated (`INT4`, `8bit`), and not a tool alone (`AWQ`)."""
    formats: frozenset[str]
    """Names of `WeightFormat`, and PLAIN, that go with it; empty where no safetensors checkpoint stores it (GGUF)."""


@lru_cache(maxsize=1024)
def stated_format(name: str) -> StatedFormat | None:
    """Return the format that a name or a local path states; None for a name without one.

    A tool and a number narrow each other (`AWQ-INT4`); two numbers stand for a mixture (`NVFP4-FP8`).
    """
    owner, slash, model = name.rstrip("/").rpartition("/")
    runs = list(_RUN.finditer(model)) if len(name) <= MAX_NAME else []
    if not runs:
        return None
    text = "-".join(run.group().strip("-_.:") for run in runs)
    tools, numbers = _found(_TOOLS, text), _found(_NUMBERS, text)
    plain = {} if numbers or (tools and "unquantized" not in text.lower()) else _found(_NOTHING, text)
    by_tool, by_number = (frozenset(each for row in rows.values() for each in row) for rows in (tools, numbers))
    both = by_tool & by_number if tools and numbers else by_tool | by_number
    base = _RUN.sub("", model).strip("-_.:")
    return StatedFormat(
        text=text,
        base=f"{owner}{slash}{base}",
        kinds=tuple(plain or {**tools, **numbers}),
        states_numbers=bool(numbers),
        formats=frozenset({PLAIN}) if plain else both or (by_tool | by_number if by_tool else both),
    )


def _found(table: _Table, text: str) -> dict[str, tuple[str, ...]]:
    """Return the rows of a table that a text names, by their words."""
    return {
        words: formats
        for words, pattern, formats in table
        if re.search(rf"(?<![^-_.:])(?:{pattern})(?![^-_.:])", text, re.IGNORECASE | re.ASCII)
    }


def compressed(weights: Mapping[str, Any], activations: Mapping[str, Any] | None, packing: str) -> dict[str, Any]:
    """Return the config that llm-compressor writes where it converts every linear layer but the head."""
    return {
        "quant_method": "compressed-tensors",
        "format": packing,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations}},
        "ignore": ["lm_head"],
    }


def numbers(kind: str, bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    """Return one scheme of such a config."""
    return {"type": kind, "num_bits": bits, "strategy": strategy, "symmetric": True, "dynamic": False, **more}


_TOKENS = {"symmetric": True, "dynamic": True, "strategy": "token"}
_NVFP4 = numbers("float", 4, "tensor_group", group_size=16)
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
_GPTQ = {"quant_method": "gptq", "group_size": 128, "desc_act": False, "sym": True}
_AUTO_ROUND = {
    "quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "packing_format": "auto_round:auto_gptq",
}  # fmt: skip
_LLM_COMPRESSOR: dict[str, dict[str, Any]] = {
    "fp8": compressed(numbers("float", 8, "tensor"), numbers("float", 8, "tensor"), "float-quantized"),
    "fp8-dynamic": compressed(
        numbers("float", 8, "channel"), {"type": "float", "num_bits": 8, **_TOKENS}, "float-quantized"
    ),
    "fp8-block": compressed(
        numbers("float", 8, "block", block_structure=[128, 128]),
        {"type": "float", "num_bits": 8, **_TOKENS, "strategy": "group", "group_size": 128},
        "float-quantized",
    ),
    "nvfp4": compressed(_NVFP4, {**_NVFP4, "dynamic": "local"}, "nvfp4-pack-quantized"),
    "nvfp4a16": compressed(_NVFP4, None, "nvfp4-pack-quantized"),
    "quantized-w4a16": compressed(numbers("int", 4, "group", group_size=128), None, "pack-quantized"),
    "quantized-w8a16": compressed(numbers("int", 8, "channel"), None, "pack-quantized"),
    "quantized-w8a8": compressed(
        numbers("int", 8, "channel"), {"type": "int", "num_bits": 8, **_TOKENS}, "int-quantized"
    ),
}
"""Preset schemes of llm-compressor by the names that Red Hat gives them (compressed-tensors 0.12, `PRESET_SCHEMES`)."""
_BY_LLM_COMPRESSOR = {
    f"{tool}{number}": compressed(numbers("int", bits, "group", group_size=size), None, "pack-quantized")
    for tool, size in (("awq", 32), ("gptq", 128))
    for number, bits in (("", 4), ("-4bit", 4), ("-int4", 4), ("-8bit", 8), ("-int8", 8))
}
"""AWQ and GPTQ by llm-compressor, whose checkpoints state compressed-tensors: 12 logged starts of cpatonn (now cyankiwi) say so."""
_SOME_STAY_PLAIN = frozenset({"cpatonn", "cyankiwi"})
"""Publishers with a tool of their own choice who leave out other modules in each model."""
_USUAL: dict[str, dict[str, dict[str, Any]]] = {
    "redhatai": _LLM_COMPRESSOR,
    "neuralmagic": _LLM_COMPRESSOR,
    "qwen": {
        "awq": _AWQ,
        "gptq-int4": {**_GPTQ, "bits": 4},
        "gptq-int8": {**_GPTQ, "bits": 8},
        "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    },
    "hugging-quants": {"awq-int4": _AWQ, "gptq-int4": {**_GPTQ, "bits": 4}},
    "casperhansen": {"awq": _AWQ},
    "cpatonn": _BY_LLM_COMPRESSOR,
    "cyankiwi": _BY_LLM_COMPRESSOR,
    "thebloke": {"awq": _AWQ},
    "intel": {"int4-autoround": _AUTO_ROUND, "int4-inc": _AUTO_ROUND},
    "nvidia": {"fp8": {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
    "unsloth": {
        "bnb-4bit": {
            "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
        },
    },
}  # fmt: skip
"""Owner in lower case → part of the name that states a format → the config that this publisher's tool writes by default.

Publishers that leave out other modules in every model are not here: NVIDIA's NVFP4, Unsloth's dynamic 4 bits.
"""


def usual_quantization_config(name: str) -> Mapping[str, Any] | None:
    """Return the `quantization_config` that the publisher's tool writes by default for the format that a name states.

    It is an assumption: a publisher may have left out more modules than the head. None where there is no rule.
    """
    stated, owner = stated_format(name), _owner_of(name)
    if stated is None:
        return None
    return _USUAL.get(owner, {}).get(re.sub(r"[-_.]", "-", stated.text.lower()))


def converts_all(name: str) -> bool:
    """Return whether the publisher's tool converts every linear layer of a text model for the format that its name states."""
    return _owner_of(name) not in _SOME_STAY_PLAIN and usual_quantization_config(name) is not None


def _owner_of(name: str) -> str:
    """Return the owner in small letters; empty for a name without one."""
    return name.rstrip("/").rpartition("/")[0].rpartition("/")[2].lower()
