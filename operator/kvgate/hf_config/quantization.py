"""`quantization_config` → the weight format, and which modules of which layer keep the model dtype."""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from kvgate.budget.model_shape import Quantization

_MODULES = {
    "qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.qkv_proj"),
    "o_proj": ("self_attn.o_proj",),
    "q_a_proj": ("self_attn.q_a_proj",),
    "q_b_proj": ("self_attn.q_b_proj", "self_attn.q_proj"),
    "kv_a_proj": ("self_attn.kv_a_proj_with_mqa",),
    "kv_b_proj": ("self_attn.kv_b_proj",),
    "gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "down_proj": ("mlp.down_proj",),
    "experts": ("mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1"),
    "shared_experts": ("mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj"),
}
"""vLLM's module → the names that a checkpoint's list of unquantised modules may use."""


_SAFE_EXPRESSION = re.compile(r"(?:[\w\-/^$]|\\.|\.\*?|\\d\+|\((?:\?:)?[\w\\.|\-]+\))*")
"""Expressions that cannot run away: names, wildcards, flat alternatives. A config may come from anybody."""


class UnknownFormat(ValueError):
    """The weights are in a format without a formula; the message names it."""


def read_quantization(config: Mapping[str, Any]) -> Quantization | None:
    """The format of the quantised linears. Raises UnknownFormat, whose text is the kind that a finding names."""
    if not config:
        return None
    method = str(config.get("quant_method", "")).lower()
    reader = {"fp8": _fp8, "awq": _awq, "gptq": _gptq, "compressed-tensors": _compressed_tensors}.get(method)
    if reader is None:
        raise UnknownFormat(f"quantization {method or 'without quant_method'}")
    return reader(config)


def of_argument(method: str) -> Quantization:
    """`--quantization METHOD` on an unquantised checkpoint; only fp8 converts while loading. Raises UnknownFormat."""
    if method == "fp8":
        return Quantization(method="fp8", format="fp8-tensor")
    raise UnknownFormat(f"quantization {method} of an unquantised checkpoint")


def _fp8(config: Mapping[str, Any]) -> Quantization:
    block = config.get("weight_block_size")
    if block:
        return Quantization(method="fp8", format="fp8-block", block=(int(block[0]), int(block[1])))
    return Quantization(
        method="fp8", format="fp8-tensor", static_activation_scale=config.get("activation_scheme") == "static"
    )


def _awq(config: Mapping[str, Any]) -> Quantization:
    if _bits(config) != 4:
        raise UnknownFormat(f"awq with {_bits(config)} bits")
    return Quantization(method="awq", format="int4-awq", group_size=_group_size(config))


def _gptq(config: Mapping[str, Any]) -> Quantization:
    if _bits(config) not in (4, 8):
        raise UnknownFormat(f"gptq with {_bits(config)} bits")
    return Quantization(
        method="gptq", format="int4-gptq" if _bits(config) == 4 else "int8-gptq", group_size=_group_size(config)
    )


def _compressed_tensors(config: Mapping[str, Any]) -> Quantization:
    groups = list((config.get("config_groups") or {}).values())
    weights = (groups[0].get("weights") or {}) if len(groups) == 1 else {}
    kind, bits, strategy = weights.get("type"), weights.get("num_bits"), weights.get("strategy")
    if (kind, bits) == ("float", 8) and strategy in ("channel", "tensor"):
        activations = groups[0].get("input_activations") or {}
        return Quantization(
            method="compressed-tensors",
            format="fp8-channel" if strategy == "channel" else "fp8-tensor",
            static_activation_scale=bool(activations) and not activations.get("dynamic"),
        )
    if (kind, bits, strategy) == ("int", 4, "group") and weights.get("symmetric", True):
        return Quantization(method="compressed-tensors", format="int4-packed", group_size=int(weights["group_size"]))
    raise UnknownFormat(f"compressed-tensors {kind or 'mixed groups'} {bits or ''} {strategy or ''}".strip())


def _bits(config: Mapping[str, Any]) -> Any:
    return config.get("bits", config.get("w_bit"))


def _group_size(config: Mapping[str, Any]) -> int:
    """-1 in the checkpoint means one scale per output channel: 0 here."""
    return max(0, int(config.get("group_size", config.get("q_group_size", 128))))


def unquantized_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The checkpoint's own list of modules that were not converted, whatever it is called."""
    names = config.get("ignore") or config.get("modules_to_not_convert") or config.get("ignored_layers") or ()
    return tuple(str(name) for name in names)


def unquantized_modules(names: Iterable[str], layer: int) -> frozenset[str]:
    """vLLM's modules of one layer that the list keeps in the model dtype."""
    patterns = tuple(names)
    if not patterns:
        return frozenset()
    return frozenset(
        module
        for module, parts in _MODULES.items()
        if any(_listed(f"model.layers.{layer}.{part}", pattern) for part in parts for pattern in patterns)
    )


def _listed(name: str, pattern: str) -> bool:
    """A pattern is a full name, a run of whole components of one, either with `*` for layer numbers, or `re:` and an expression."""
    if "*" in pattern and not pattern.startswith("re:"):
        return fnmatchcase(f".{name}.", f"*.{pattern}.*")
    if not pattern.startswith("re:"):
        return f".{pattern}." in f".{name}."
    expression = pattern[3:]
    if len(expression) > 200 or expression.count(".*") > 4 or not _SAFE_EXPRESSION.fullmatch(expression):
        raise UnknownFormat(f"the list of unquantised modules with the expression {expression[:60]!r}")
    return re.match(expression, name) is not None
