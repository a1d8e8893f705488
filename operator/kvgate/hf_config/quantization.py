"""`quantization_config` → which module of which layer is stored how."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.matrix import Matrix, Units, WeightFormat
from kvgate.budget.model_shape import CrossAttention, FullAttention, LayerShape, SharedCache
from kvgate.hf_config import checkpoint_formats as formats
from kvgate.hf_config.modules import MODULES, ModuleList, Place, UnknownFormat

_EXPERTS = frozenset({"experts", "layer_experts"})
_HEADS = frozenset({"lm_head", "model.lm_head"})
_EXCEPTION_KEYS = ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")
"""Lists of modules that keep the model dtype; fp8 checkpoints do not read `ignore` (nvidia's DeepSeek-V4 has one for its experts)."""
_READERS: dict[str, Callable[[Mapping[str, Any]], WeightFormat]] = {
    "fp8": formats.fp8,
    "fbgemm_fp8": formats.fbgemm_fp8,
    "mxfp4": formats.mxfp4,
    "gpt_oss_mxfp4": formats.mxfp4,
    "awq": formats.awq,
    "gptq": formats.gptq,
    "auto-round": formats.auto_round,
    "bitsandbytes": formats.bitsandbytes,
    "modelopt": formats.modelopt,
    "modelopt_fp4": formats.modelopt,
    "modelopt_mixed": formats.modelopt,
}
"""Methods with one format for all that they quantise."""

_FP8_ONLINE = WeightFormat(method="fp8", format="fp8-tensor", converts_while_loading=True)
_ONLINE: dict[str, WeightFormat] = {
    "fp8": _FP8_ONLINE,
    "fp8_per_tensor": _FP8_ONLINE,
    "fp8_per_block": replace(_FP8_ONLINE, format="fp8-block", block=(128, 128)),
    "fp8_per_channel": replace(_FP8_ONLINE, format="fp8-channel"),
    "mxfp8": replace(_FP8_ONLINE, format="mxfp8"),
    "bitsandbytes": replace(_FP8_ONLINE, method="bitsandbytes", format="nf4", double_quantized=True),
}
"""Values of `--quantization` that convert a plain checkpoint (vLLM 0.32, `vllm/config/quantization.py`)."""


class FormatRule(Struct, frozen=True, kw_only=True):
    """Modules that are stored alike."""

    format: WeightFormat
    modules: ModuleList | None = None
    """Those that a list names; None: every linear layer."""
    kinds: frozenset[str] | None = None
    """Only vLLM's modules of these names (`experts`)."""

    def applies(self, place: Place, module: str) -> bool:
        if self.kinds is not None and module not in self.kinds:
            return False
        return self.modules is None or self.modules.has(place, module)


class Quantization(Struct, frozen=True, kw_only=True):
    """The quantisation that a checkpoint, or an argument, states for the whole model."""

    rules: tuple[FormatRule, ...]
    """The first that applies decides; a module without one stays plain."""
    exceptions: ModuleList
    cache_scales: tuple[Matrix, ...] = ()
    """Scales for an fp8 cache that attention layers hold, used or not (vLLM 0.32, `BaseKVCacheMethod`)."""
    head: WeightFormat | None = None

    @property
    def main(self) -> WeightFormat:
        """The format by which a finding calls the checkpoint."""
        return self.rules[0].format


def read_quantization(config: Mapping[str, Any], num_layers: int, *, expert_dtype: str = "") -> Quantization | None:
    """Read the quantisation from a checkpoint's own config. Raises UnknownFormat, whose text is the kind that a finding names.

    `expert_dtype` is DeepSeek-V4's key beside it.
    """
    if not config:
        return None
    config = _flat(config)
    method = _method(config)
    rules = _rules(method, config, num_layers, expert_dtype)
    # the head is quantised only where a list names it, or GPTQ's flag says so
    named = (rule.format for rule in rules if rule.modules is not None and rule.modules.names & _HEADS)
    return Quantization(
        rules=rules,
        exceptions=_exceptions(config, num_layers),
        cache_scales=_cache_scales(method, has_scheme=kv_cache_scheme(config) is not None),
        head=next(named, rules[0].format if config.get("lm_head") is True else None),
    )


def requested_quantization(method: str) -> Quantization:
    """Return what `--quantization METHOD` does to a plain checkpoint: it is converted while it is loaded. Raises UnknownFormat."""
    stored = _ONLINE.get(method)
    if stored is None:
        raise UnknownFormat(f"quantization {method} of an unquantised checkpoint")
    return Quantization(rules=(FormatRule(format=stored),), exceptions=ModuleList())


def kv_cache_scheme(config: object) -> str | None:
    """Return the cache dtype that `auto` becomes where a ModelOpt or compressed-tensors checkpoint states one."""
    if not isinstance(config, Mapping):
        return None
    config = _flat(config)
    scheme = config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo")
    if isinstance(scheme, Mapping):
        bits = scheme.get("num_bits") if scheme.get("type") == "float" else None
        return {8: "fp8", 4: "nvfp4"}.get(bits) if isinstance(bits, int) else None
    return {"FP8": "fp8", "NVFP4": "nvfp4"}.get(scheme.upper()) if isinstance(scheme, str) else None


def _flat(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return one mapping: a hf_quant_config.json has its settings under `quantization`, and its producer beside them."""
    nested = config.get("quantization")
    return {**config, **nested} if isinstance(nested, Mapping) else config


def _method(config: Mapping[str, Any]) -> str:
    """Return the method; ModelOpt's older exports do not name it, but their producer."""
    producer = config.get("producer")
    made_by = str(producer.get("name", "")) if isinstance(producer, Mapping) else ""
    return str(config.get("quant_method") or made_by).lower()


def _rules(method: str, config: Mapping[str, Any], num_layers: int, expert_dtype: str) -> tuple[FormatRule, ...]:
    if method == "compressed-tensors":
        return _groups(config, num_layers)
    if method not in _READERS:
        raise UnknownFormat(f"quantization {method or 'without quant_method'}")
    listed = _listed(config, num_layers)
    if listed and method.startswith("modelopt"):
        return listed
    main = _READERS[method](config)
    if main.format == "mxfp4":
        return (FormatRule(format=main, kinds=_EXPERTS),)
    if expert_dtype == "fp4":  # DeepSeek-V4: exponents for scales, and experts of their own
        main = replace(main, scale_bytes=1)
        experts = FormatRule(format=WeightFormat(method=method, format="mxfp4"), kinds=_EXPERTS)
        return (*listed, experts, FormatRule(format=main))
    return (*listed, FormatRule(format=main))


def _listed(config: Mapping[str, Any], num_layers: int) -> tuple[FormatRule, ...]:
    """Read `quantized_layers`, which names every module with its algorithm."""
    layers = config.get("quantized_layers")
    if not isinstance(layers, Mapping):
        return ()
    by_algorithm: dict[str, list[str]] = {}
    for name, entry in layers.items():
        by_algorithm.setdefault(str(entry["quant_algo"]), []).append(str(name))
    return tuple(
        FormatRule(format=formats.modelopt({"quant_algo": name}), modules=ModuleList.of(modules, num_layers))
        for name, modules in by_algorithm.items()
    )


def _groups(config: Mapping[str, Any], num_layers: int) -> tuple[FormatRule, ...]:
    """Read the groups of compressed-tensors: `Linear` is every linear layer, other targets are names or expressions."""
    groups = list((config.get("config_groups") or {}).values())
    if not groups or (config.get("sparsity_config") or {}).get("format") not in (None, "dense"):
        raise UnknownFormat("compressed-tensors without groups, or with sparse weights")
    rules = []
    for group in groups:
        targets = [str(target) for target in group.get("targets") or ["Linear"]]
        modules = None if "Linear" in targets else ModuleList.of(targets, num_layers)
        rules.append(FormatRule(format=formats.compressed_tensors(group), modules=modules))
    return tuple(sorted(rules, key=lambda rule: rule.modules is None))  # names go before kinds


def _exceptions(config: Mapping[str, Any], num_layers: int) -> ModuleList:
    """Read the modules that keep the model dtype, those of GPTQ (`dynamic`) and auto-round (`extra_config`) too."""
    keys = (key for key in _EXCEPTION_KEYS if key != "ignore" or _method(config) != "fp8")
    entries: Any = next((config[key] for key in keys if config.get(key)), [])
    if not isinstance(entries, list | tuple):
        raise UnknownFormat("a list of unquantised modules that is not a list")
    names = [*map(str, entries)]
    for name in config.get("dynamic") or {}:
        if not str(name).startswith("-:"):  # a format of its own for some modules
            raise UnknownFormat("gptq with several formats")
        names.append(f"re:{name[2:]}")
    for name, entry in (config.get("extra_config") or {}).items():
        if int(entry.get("bits", 16)) < 16:
            raise UnknownFormat("auto-round with several formats")
        names.append(str(name))
    return ModuleList.of(names, num_layers)


_PLAIN_SCALES = (Matrix(name="kv_scales", rows=(Units(count=4),)),)
"""Scales of keys, values, queries and probabilities, in the model dtype."""
_STATIC_SCALES = tuple(Matrix(name="kv_scales", rows=(Units(count=3),), element_bytes=size) for size in (None, 4))
"""Scales where compressed-tensors has a scheme for the cache (Laguna-XS.2-FP8: 18 bytes in 6 elements)."""


def _cache_scales(method: str, *, has_scheme: bool) -> tuple[Matrix, ...]:
    if method == "compressed-tensors" and has_scheme:
        return _STATIC_SCALES
    always = method in ("fp8", "compressed-tensors")
    return _PLAIN_SCALES if always or (has_scheme and method.startswith("modelopt")) else ()


class ModuleFormats:
    """The storage format of each module of each layer; equal layers come back as one object."""

    def __init__(self, quantization: Quantization | None) -> None:
        self.quantization = quantization
        self._seen: dict[tuple[LayerShape, tuple[WeightFormat | None, ...]], LayerShape] = {}

    def stored(self, place: Place, layer: LayerShape) -> LayerShape:
        """Return the layer with the format of each of its matrices; norms, routers and exceptions stay plain."""
        kinds = dict.fromkeys(matrix.name for matrix in layer.matrices)
        found = {name: self._format_of(place, name) for name in kinds}
        key = (layer, tuple(found.values()))
        if key not in self._seen:
            matrices = (replace(matrix, format=found[matrix.name]) for matrix in layer.matrices)
            caching = sum(isinstance(mixer, FullAttention | SharedCache | CrossAttention) for mixer in layer.mixers)
            scales = self.quantization.cache_scales * caching if self.quantization else ()
            self._seen[key] = replace(layer, matrices=(*matrices, *scales))
        return self._seen[key]

    def _format_of(self, place: Place, module: str) -> WeightFormat | None:
        if self.quantization is None or module not in MODULES or self.quantization.exceptions.has(place, module):
            return None
        return next((rule.format for rule in self.quantization.rules if rule.applies(place, module)), None)
