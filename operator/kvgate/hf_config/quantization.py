"""`quantization_config` → the weight format, and which modules of which layer keep the model dtype."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from typing import Any

from kvgate.budget.matrix import Matrix
from kvgate.budget.model_shape import LayerShape
from kvgate.budget.weight_format import WeightFormat

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


MAX_COMPARISONS = 10_000
"""Patterns × layers: beyond that, reading a config takes seconds."""


class UnknownFormat(ValueError):
    """The weights are in a format without a formula; the message names it."""


def read_quantization(config: Mapping[str, Any]) -> WeightFormat | None:
    """The format of the quantised linears. Raises UnknownFormat, whose text is the kind that a finding names."""
    if not config:
        return None
    method = str(config.get("quant_method", "")).lower()
    reader = {"fp8": _fp8, "awq": _awq, "gptq": _gptq, "compressed-tensors": _compressed_tensors}.get(method)
    if reader is None:
        raise UnknownFormat(f"quantization {method or 'without quant_method'}")
    return reader(config)


def of_argument(method: str) -> WeightFormat:
    """`--quantization METHOD` on an unquantised checkpoint; only fp8 converts while loading. Raises UnknownFormat."""
    if method == "fp8":
        return WeightFormat(method="fp8", format="fp8-tensor")
    raise UnknownFormat(f"quantization {method} of an unquantised checkpoint")


def _fp8(config: Mapping[str, Any]) -> WeightFormat:
    block = config.get("weight_block_size")
    if block:
        rows, columns = map(int, block)
        if rows < 1 or columns < 1:
            raise UnknownFormat(f"fp8 in blocks of {rows} × {columns}")
        return WeightFormat(method="fp8", format="fp8-block", block=(rows, columns))
    return WeightFormat(
        method="fp8", format="fp8-tensor", static_activation_scale=config.get("activation_scheme") == "static"
    )


def _awq(config: Mapping[str, Any]) -> WeightFormat:
    if _bits(config) != 4:
        raise UnknownFormat(f"awq with {_bits(config)} bits")
    return WeightFormat(method="awq", format="int4-awq", group_size=_group_size(config))


def _gptq(config: Mapping[str, Any]) -> WeightFormat:
    if _bits(config) not in (4, 8):
        raise UnknownFormat(f"gptq with {_bits(config)} bits")
    return WeightFormat(
        method="gptq", format="int4-gptq" if _bits(config) == 4 else "int8-gptq", group_size=_group_size(config)
    )


def _compressed_tensors(config: Mapping[str, Any]) -> WeightFormat:
    groups = list((config.get("config_groups") or {}).values())
    weights = (groups[0].get("weights") or {}) if len(groups) == 1 else {}
    kind, bits, strategy = weights.get("type"), weights.get("num_bits"), weights.get("strategy")
    if (kind, bits) == ("float", 8) and strategy in ("channel", "tensor"):
        activations = groups[0].get("input_activations") or {}
        return WeightFormat(
            method="compressed-tensors",
            format="fp8-channel" if strategy == "channel" else "fp8-tensor",
            static_activation_scale=bool(activations) and not activations.get("dynamic"),
        )
    if (kind, bits, strategy) == ("int", 4, "group") and weights.get("symmetric", True):
        return WeightFormat(
            method="compressed-tensors", format="int4-packed", group_size=max(0, int(weights["group_size"]))
        )
    raise UnknownFormat(f"compressed-tensors {kind or 'mixed groups'} {bits or ''} {strategy or ''}".strip())


def _bits(config: Mapping[str, Any]) -> Any:
    return config.get("bits", config.get("w_bit"))


def _group_size(config: Mapping[str, Any]) -> int:
    """-1 in the checkpoint means one scale per output channel: 0 here."""
    return max(0, int(config.get("group_size", config.get("q_group_size", 128))))


def unquantized_list(config: Mapping[str, Any], num_layers: int) -> "ModuleList":
    """The checkpoint's own list of modules that were not converted, whatever it is called. Raises UnknownFormat."""
    entries = config.get("ignore") or config.get("modules_to_not_convert") or config.get("ignored_layers") or []
    if not isinstance(entries, list | tuple):
        raise UnknownFormat("a list of unquantised modules that is not a list")
    if sum("*" in str(entry) or str(entry).startswith("re:") for entry in entries) * num_layers > MAX_COMPARISONS:
        raise UnknownFormat(f"a list of unquantised modules with {len(entries)} entries")
    return ModuleList.of([str(entry) for entry in entries])


class ModuleFormats:
    """Which module of which layer is stored how; equal layers come back as one object."""

    def __init__(self, weight_format: WeightFormat | None, exceptions: "ModuleList") -> None:
        self._format = weight_format
        self._exceptions = exceptions
        self._seen: dict[tuple[LayerShape, frozenset[str]], LayerShape] = {}

    def stored(self, index: int, layer: LayerShape) -> LayerShape:
        """The layer with the format of each of its matrices; norms, routers and exceptions stay plain."""
        kept = self._exceptions.modules_of(index) if self._format else frozenset()
        if (layer, kept) not in self._seen:
            matrices = tuple(self._applied(matrix, kept) for matrix in layer.matrices)
            self._seen[layer, kept] = replace(layer, matrices=matrices)
        return self._seen[layer, kept]

    def _applied(self, matrix: Matrix, kept: frozenset[str]) -> Matrix:
        if self._format is None or matrix.name not in _MODULES or matrix.name in kept:
            return matrix
        return replace(matrix, format=self._format)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleList:
    """The modules that a quantised checkpoint keeps in the model dtype, by the three ways to name them."""

    names: frozenset[str] = frozenset()
    """Full names, or runs of whole components of one."""
    globs: tuple[re.Pattern[str], ...] = ()
    """The same with `*`, matched against `.name.`."""
    expressions: tuple[re.Pattern[str], ...] = ()
    """`re:`, matched from the start of the name."""

    @classmethod
    def of(cls, entries: Sequence[str]) -> "ModuleList":
        """Raises UnknownFormat for an expression that could run away, or is none."""
        expressions = {entry[3:] for entry in entries if entry.startswith("re:")}
        rest = {entry for entry in entries if not entry.startswith("re:")}
        return cls(
            names=frozenset(entry for entry in rest if "*" not in entry),
            globs=tuple(re.compile(translate(f"*.{entry}.*")) for entry in sorted(rest) if "*" in entry),
            expressions=tuple(map(_expression, sorted(expressions))),
        )

    def modules_of(self, layer: int) -> frozenset[str]:
        """vLLM's modules of one layer that the list names."""
        if not (self.names or self.globs or self.expressions):
            return frozenset()
        return frozenset(
            module
            for module, parts in _MODULES.items()
            if any(self._has(f"model.layers.{layer}.{part}") for part in parts)
        )

    def _has(self, name: str) -> bool:
        return (
            any(run in self.names for run in _runs(name))
            or any(pattern.match(f".{name}.") for pattern in self.globs)
            or any(pattern.match(name) for pattern in self.expressions)
        )


def _runs(name: str) -> Iterator[str]:
    """Every run of whole components: `a.b.c` → a, a.b, a.b.c, b, b.c, c."""
    parts = name.split(".")
    return (".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))


def _expression(text: str) -> re.Pattern[str]:
    if len(text) > 200 or text.count(".*") > 4 or not _SAFE_EXPRESSION.fullmatch(text):
        raise UnknownFormat(f"the list of unquantised modules with the expression {text[:60]!r}")
    try:
        return re.compile(text)
    except re.error as error:
        raise UnknownFormat(f"the list of unquantised modules with the expression {text[:60]!r} ({error})") from None
