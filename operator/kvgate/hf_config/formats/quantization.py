"""`quantization_config` → which module of which layer is stored how; and the files beside a config.json that may hold it."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.model.matrix import Matrix, Units, WeightFormat
from kvgate.budget.model.shape import CrossAttention, FullAttention, LayerShape, SharedCache
from kvgate.hf_config.fields import ModelConfigError
from kvgate.hf_config.formats.format_rules import EXPERTS, FormatRule, read_rules
from kvgate.hf_config.formats.modules import MODULES, ModuleList, Place, UnknownFormat

_HEADS = frozenset({"lm_head", "model.lm_head"})
_EXCEPTION_KEYS = (
    "ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "exclude", "llm_int8_skip_modules",
)  # fmt: skip
"""Lists of modules that keep the model dtype; fp8 checkpoints do not read `ignore` (nvidia's DeepSeek-V4 has one for its experts)."""
_FP8_ONLINE = WeightFormat(method="fp8", format="fp8-tensor", converts_while_loading=True)
_ONLINE: dict[str, tuple[WeightFormat, frozenset[str] | None]] = {
    "fp8": (_FP8_ONLINE, None),
    "fp8_per_tensor": (_FP8_ONLINE, None),
    "fp8_per_block": (replace(_FP8_ONLINE, format="fp8-block", block=(128, 128)), None),
    "fp8_per_channel": (replace(_FP8_ONLINE, format="fp8-channel"), None),
    "mxfp8": (replace(_FP8_ONLINE, format="mxfp8"), None),
    "mxfp4": (replace(_FP8_ONLINE, method="mxfp4", format="mxfp4"), None),
    "int8_per_channel_weight_only": (replace(_FP8_ONLINE, method="int8", format="int8-channel"), EXPERTS),
    "experts_int8": (replace(_FP8_ONLINE, method="experts_int8", format="int8-channel"), EXPERTS),
    "nvfp4_per_token": (replace(_FP8_ONLINE, method="nvfp4", format="nvfp4", group_size=16), EXPERTS),
    "bitsandbytes": (replace(_FP8_ONLINE, method="bitsandbytes", format="nf4", double_quantized=True), None),
}
"""Values of `--quantization` that convert a plain checkpoint, and the modules that they convert (None: all linear layers).

vLLM 0.33, `vllm/config/quantization.py`: `_ONLINE_SHORTHANDS`.
"""


class Quantization(Struct, frozen=True, kw_only=True):
    """The quantisation that a checkpoint, or an argument, states for the whole model."""

    rules: tuple[FormatRule, ...]
    """The first that applies decides; a module without one stays plain."""
    exceptions: ModuleList
    cache_scales: tuple[Matrix, ...] = ()
    """Scales for an fp8 cache that attention layers hold, used or not (vLLM 0.32, `BaseKVCacheMethod`)."""
    head: WeightFormat | None = None

    @property
    def main(self) -> WeightFormat | None:
        """The format of most modules, by which a finding calls the checkpoint; None where every rule keeps the model dtype."""
        by_breadth = sorted(self.rules, key=lambda rule: (rule.kinds is not None, rule.modules is not None))
        return next((rule.format for rule in by_breadth if rule.format is not None), None)


def read_quantization(config: Mapping[str, Any], num_layers: int, *, expert_dtype: str = "") -> Quantization | None:
    """Read the quantisation from a checkpoint's own config. Raises UnknownFormat, whose text is the kind that a finding names.

    `expert_dtype` is DeepSeek-V4's key beside it.
    """
    if not config:
        return None
    config = _flat(config)
    method = _method(config)
    rules = read_rules(method, config, num_layers, expert_dtype)
    keys = (key for key in _EXCEPTION_KEYS if key != "ignore" or method != "fp8")
    # modules that keep the model dtype
    exceptions: Any = next((config[key] for key in keys if config.get(key)), [])
    if not isinstance(exceptions, list | tuple):
        raise UnknownFormat("a list of unquantised modules that is not a list")
    # the head is quantised only where a list names it, or GPTQ's flag says so
    named = (rule.format for rule in rules if rule.modules is not None and rule.modules.names & _HEADS)
    return Quantization(
        rules=rules,
        exceptions=ModuleList.of(map(str, exceptions), num_layers),
        cache_scales=_cache_scales(method, config),
        head=next(named, rules[-1].format if config.get("lm_head") is True else None),
    )


def requested_quantization(method: str) -> Quantization:
    """Return what `--quantization METHOD` does to a plain checkpoint: it is converted while it is loaded. Raises UnknownFormat."""
    if method not in _ONLINE:
        raise UnknownFormat(f"quantization {method} of an unquantised checkpoint")
    stored, kinds = _ONLINE[method]
    return Quantization(rules=(FormatRule(format=stored, kinds=kinds),), exceptions=ModuleList())


_MODELOPT_CLASSES = {
    "NVFP4": "modelopt_fp4", "W4A16_NVFP4": "modelopt_fp4", "MXFP8": "modelopt_mxfp8", "MIXED_PRECISION": "modelopt_mixed",
}  # fmt: skip


def format_kinds(config: object) -> tuple[str, ...]:
    """Return the method that a checkpoint states, and its variants that not every release reads; empty for a plain checkpoint."""
    if not isinstance(config, Mapping) or not config:
        return ()
    config = _flat(config)
    method = _method(config)
    if method.startswith("modelopt"):
        return (_MODELOPT_CLASSES.get(str(config.get("quant_algo")).upper(), method),)
    if method == "gptq":
        variants = {
            "gptq with desc_act": config.get("desc_act") is True and config.get("group_size") != -1,
            "gptq without sym": config.get("sym") is False,
            "gptq with 2 or 3 bits": config.get("bits") in (2, 3),
        }
        return (method, *(name for name, has in variants.items() if has))
    if method != "compressed-tensors":
        return (method[:40],) if method else ()
    groups = config.get("config_groups")
    weights = (
        [group.get("weights") for group in groups.values() if isinstance(group, Mapping)]
        if isinstance(groups, Mapping)
        else []
    )
    sparsity = config.get("sparsity_config")
    variants = {
        "compressed-tensors with sparse weights": isinstance(sparsity, Mapping)
        and sparsity.get("format") not in (None, "dense"),
        "compressed-tensors with actorder": any(
            isinstance(each, Mapping) and each.get("actorder") in ("group", "dynamic") for each in weights
        ),
    }
    return (method, *(name for name, has in variants.items() if has))


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


_PLAIN_SCALES = (Matrix(name="kv_scales", rows=(Units(count=4),)),)
"""Scales of keys, values, queries and probabilities, in the model dtype."""
_SCALES_AND_ZERO_POINTS = tuple(
    Matrix(name="kv_scales", rows=(Units(count=3),), element_bytes=size) for size in (None, 4)
)
"""Scales of compressed-tensors in float32, and zero points in the model dtype, for keys, values and queries."""


def _cache_scales(method: str, config: Mapping[str, Any]) -> tuple[Matrix, ...]:
    """Return the scales that an attention layer holds, used or not (vLLM 0.32, measured on models of each method)."""
    if method == "compressed-tensors":
        return _SCALES_AND_ZERO_POINTS
    if "quantized_layers" in config and kv_cache_scheme(config) is None:
        return ()
    return _PLAIN_SCALES if method in ("fp8", "mxfp8", "quark") or method.startswith("modelopt") else ()


class ModuleFormats:
    """The storage format of each module of each layer; equal layers come back as one object."""

    def __init__(self, quantization: Quantization | None) -> None:
        self.quantization = quantization
        self._seen: dict[tuple[LayerShape, tuple[WeightFormat | None, ...]], LayerShape] = {}

    def stored(self, place: Place, layer: LayerShape) -> LayerShape:
        """Return the layer with the format of each of its matrices; norms, routers and exceptions stay plain."""
        found = {name: self._format_of(place, name) for name in dict.fromkeys(matrix.name for matrix in layer.matrices)}
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


HF_QUANT_CONFIG = "hf_quant_config.json"
"""ModelOpt 0.29 and older write it instead of the config's `quantization_config`; vLLM reads it since 0.10.2 without being told to."""
QUANTIZATION_FILES = (HF_QUANT_CONFIG, "quantize_config.json", "quant_config.json", "quantization_config.json")
"""Files worth reading, in the order in which they count: ModelOpt's, AutoGPTQ's and AutoAWQ's, old AWQ's, auto-round's."""
_KEYS = ("quantization_config", "compression_config")
_METHODS = {"quantize_config.json": "gptq", "quant_config.json": "awq", "quantization_config.json": "auto-round"}
"""The method whose class reads a file that names none (vLLM 0.32, `get_config_filenames`)."""


def quantization_files(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the files beside a config.json that can change what it says: none where it states its quantisation itself.

    vLLM 0.32: `get_config` for ModelOpt's file, `get_quant_config` for the others and for layers that are listed elsewhere.
    """
    own = config.get("quantization_config")
    if own is not None:
        flat = _flat(own) if isinstance(own, Mapping) else {}
        is_mixed = flat.get("quant_method") == "modelopt_mixed" or flat.get("quant_algo") == "MIXED_PRECISION"
        # ModelOpt's mixed precision may have its list of layers in the other file
        return (HF_QUANT_CONFIG,) if is_mixed and not flat.get("quantized_layers") else ()
    text = config.get("text_config")
    inner = text if isinstance(text, Mapping) else {}
    stated = any(part.get(key) is not None for part in (config, inner) for key in _KEYS)
    return (HF_QUANT_CONFIG,) if stated else QUANTIZATION_FILES


def with_quantization_beside(config: Mapping[str, Any], files: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config with the quantisation that stands beside it, under the key that vLLM gives it.

    `files` has the parsed content of files by their names. vLLM reads all but ModelOpt's file only if `--quantization` names
    their method; without it the checkpoint does not load, so the file counts here in any case. Raises ModelConfigError for a
    content that is not an object.
    """
    name = next((name for name in quantization_files(config) if name in files), None)
    if name is None:
        return config
    stated = files[name]
    if not isinstance(stated, Mapping):
        raise ModelConfigError((f"{name} beside it is JSON of type {type(stated).__name__}, not an object",))
    method = "awq" if "w_bit" in stated else _METHODS.get(name)
    return {**config, "quantization_config": {"quant_method": method, **stated} if method else stated}
