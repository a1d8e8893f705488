"""`quantization_config` → rules, the first of which that applies to a module says how it is stored: one builder per method."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.model.matrix import WeightFormat
from kvgate.hf_config.formats import checkpoint_formats as formats
from kvgate.hf_config.formats.modules import ModuleList, Place, UnknownFormat

EXPERTS = frozenset({"experts", "layer_experts"})
MAX_RULES = 64
"""Formats of one checkpoint, one after the other; published ones have less than ten."""
MAX_LOOKUPS = 2_000
"""Lists with patterns × layers: each pattern is run on every name of every module of a layer, and beyond this it takes seconds."""
_OWN_KEYS = ("bits", "group_size", "sym")
"""Keys of a module's own entry in auto-round's `extra_config`."""
_EXPRESSION_SIGNS = frozenset("*+?^$()[]{}|\\")
"""auto-round reads a name with one of these as an expression (vLLM 0.32, `INCConfigParser`)."""


class FormatRule(Struct, frozen=True, kw_only=True):
    """Modules that are stored alike."""

    format: WeightFormat | None
    """None: they keep the model dtype."""
    modules: ModuleList | None = None
    """Those that a list names; None: every linear layer."""
    kinds: frozenset[str] | None = None
    """Only vLLM's modules of these names (`experts`)."""

    def applies(self, place: Place, module: str) -> bool:
        if self.kinds is not None and module not in self.kinds:
            return False
        return self.modules is None or self.modules.has(place, module)


Rules = tuple[FormatRule, ...]
_RulesReader = Callable[[Mapping[str, Any], int], Rules]
_PLAIN_EXPERTS = FormatRule(format=None, kinds=EXPERTS)


def read_rules(method: str, config: Mapping[str, Any], num_layers: int, expert_dtype: str) -> Rules:
    """Return the rules of a method, the most particular first. Raises UnknownFormat for what has no formula."""
    reader = _READERS.get(method)
    if reader is None:
        raise UnknownFormat(f"quantization {method[:40] or 'without quant_method'}")
    rules = reader(config, num_layers)
    lists = [rule.modules for rule in rules if rule.modules is not None]
    patterns = sum(bool(each.expressions or each.globs) for each in lists)
    if patterns > 1 and patterns * num_layers > MAX_LOOKUPS:
        raise UnknownFormat(f"quantization {method} with {patterns} lists of patterns for {num_layers} layers")
    main = rules[-1].format
    if expert_dtype == "fp4" and main is not None and main.format != "mxfp4":
        # DeepSeek-V4: exponents for scales, and experts of their own
        experts = FormatRule(format=WeightFormat(method=method, format="mxfp4"), kinds=EXPERTS)
        return (*rules[:-1], experts, replace(rules[-1], format=replace(main, scale_bytes=1)))
    return rules


def _alike(read: Callable[[Mapping[str, Any]], WeightFormat], *before: FormatRule) -> _RulesReader:
    """Read a method with one format for all that it quantises, but for the rules `before`."""
    return lambda config, _: (*before, FormatRule(format=read(config)))


def _always(stored: WeightFormat, *before: FormatRule, kinds: frozenset[str] | None = None) -> _RulesReader:
    """Return the reader of a method that has one format, whatever the config says."""
    return lambda *_: (*before, FormatRule(format=stored, kinds=kinds))


def _gptq(config: Mapping[str, Any], num_layers: int) -> Rules:
    """Read GPTQ with `dynamic`, which changes or leaves out modules by expressions, and its list of quantised modules."""
    main = formats.gptq(config)
    named = []
    for expression, changes in formats.section(config, "dynamic").items():
        own = None if expression.startswith("-:") else formats.gptq({**config, **_object(changes, "dynamic")})
        named.append((f"re:{expression[2:] if expression[:2] in ('+:', '-:') else expression}", own))
    rules = _grouped(named, num_layers, whole_experts=True)
    listed = config.get("modules_in_block_to_quantize")
    names = [*map(str, _flattened(listed))] if isinstance(listed, list | tuple) else []
    only = ModuleList.of(names, num_layers) if names else None  # the only modules that are quantised; None: all
    experts = (FormatRule(format=main, kinds=EXPERTS),) if only else ()  # the list is not looked up for them
    return (*rules, *experts, FormatRule(format=main, modules=only))


def _auto_round(config: Mapping[str, Any], num_layers: int) -> Rules:
    """Read auto-round with `extra_config`, formats of single modules, and the blocks that are quantised at all."""
    main = formats.auto_round(config)
    known: dict[str, WeightFormat | None] = {}
    names: dict[WeightFormat | None, list[str]] = {}
    expressions: list[tuple[str, WeightFormat | None]] = []
    for name, entry in formats.section(config, "extra_config").items():
        changes = {key: value for key, value in _object(entry, "extra_config").items() if key in _OWN_KEYS}
        if (key := repr(changes)) not in known:
            is_plain = formats.whole(changes, "bits", default=0) >= 16
            known[key] = None if is_plain else formats.auto_round({**config, **changes})
        if _EXPRESSION_SIGNS.isdisjoint(name):
            names.setdefault(known[key], []).append(name)
        else:
            expressions.append((f"re:.*(?:{name})", known[key]))
    by_name = [(name, own) for own, alike in names.items() for name in alike]
    blocks = config.get("block_name_to_quantize") or config.get("to_quant_block_names")
    listed = blocks.split(",") if isinstance(blocks, str) else blocks
    modules = ModuleList.of(map(str, _flattened(listed)), num_layers) if isinstance(listed, list) and listed else None
    return (*_grouped((*by_name, *expressions), num_layers), FormatRule(format=main, modules=modules))


def _flattened(listed: Iterable[Any]) -> Iterator[Any]:
    for each in listed:
        yield from each if isinstance(each, list | tuple) else (each,)


def _modelopt(config: Mapping[str, Any], num_layers: int) -> Rules:
    """Read `quantized_layers`, which names every module with its algorithm, or the one algorithm of all.

    The class for fp8 experts knows only one scale per matrix (vLLM 0.32, `ModelOptFp8MoEMethod`).
    """
    listed = _listed(config, num_layers)
    if not listed:
        main = FormatRule(format=formats.modelopt(config))
        is_fp8 = str(config.get("quant_algo")).upper() in ("FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO")
        return (FormatRule(format=formats.modelopt({"quant_algo": "FP8"}), kinds=EXPERTS), main) if is_fp8 else (main,)
    return listed


def _fp8(config: Mapping[str, Any], num_layers: int) -> Rules:
    """Read fp8; a list of layers beside it is ModelOpt's (nvidia's DeepSeek-V4, whose experts are NVFP4)."""
    return (*_listed(config, num_layers), FormatRule(format=formats.fp8(config)))


def _listed(config: Mapping[str, Any], num_layers: int) -> Rules:
    layers = formats.section(config, "quantized_layers")
    named = [(str(name), formats.modelopt(_object(entry, "quantized_layers"))) for name, entry in layers.items()]
    named.sort(key=lambda entry: entry[1].format)
    return _grouped(named, num_layers)


def _quark(config: Mapping[str, Any], num_layers: int) -> Rules:
    """Read Quark's config of all layers, and those of single ones before it."""
    if formats.section(config, "layer_type_quant_config"):
        raise UnknownFormat("quark with formats by type of layer")
    main = formats.quark(formats.section(config, "global_quant_config"))
    named = [
        (str(name), formats.quark(_object(entry, "layer_quant_config")))
        for name, entry in formats.section(config, "layer_quant_config").items()
    ]
    if main is None and not named:
        raise UnknownFormat("quark without a format of weights")
    return (*_grouped(named, num_layers), FormatRule(format=main))


def _compressed_tensors(config: Mapping[str, Any], num_layers: int) -> Rules:
    """Read the groups: `Linear` is every linear layer, `RoutedExperts` all experts, other targets are names or expressions."""
    groups = [_object(group, "config_groups") for group in formats.section(config, "config_groups").values()]
    sparsity = formats.section(config, "sparsity_config")
    if sparsity.get("format") not in (None, "dense"):
        raise UnknownFormat(f"compressed-tensors with sparse weights ({str(sparsity['format'])[:30]})")
    if len(groups) > MAX_RULES:
        raise UnknownFormat(f"compressed-tensors with {len(groups)} groups")
    rules = []
    for group in groups:
        targets = [str(target) for target in group.get("targets") or ["Linear"]]
        if len(targets) == 1 and targets[0].endswith("Attention"):
            continue  # scales of the cache, and no weights
        stored = formats.compressed_tensors(group, str(config.get("format") or ""))
        is_experts = {"RoutedExperts", "FusedMoE"}.issuperset(targets)
        is_all = "Linear" in targets or is_experts
        modules = None if is_all else ModuleList.of(targets, num_layers)
        rules.append(FormatRule(format=stored, modules=modules, kinds=EXPERTS if is_experts else None))
    if not rules:
        raise UnknownFormat("compressed-tensors without groups")
    return tuple(sorted(rules, key=lambda rule: rule.modules is None and rule.kinds is None))  # names before kinds


def _grouped(
    named: Iterable[tuple[str, WeightFormat | None]], num_layers: int, *, whole_experts: bool = False
) -> Rules:
    """Return one rule per run of equal formats, so that a list of thousands of names is looked through once."""
    runs = [(stored, [name for name, _ in run]) for stored, run in groupby(named, key=lambda entry: entry[1])]
    if len(runs) > MAX_RULES:
        raise UnknownFormat(f"a quantization_config with {len(runs)} formats by module, one after the other")
    lists = ((stored, ModuleList.of(names, num_layers)) for stored, names in runs)
    return tuple(
        FormatRule(format=stored, modules=replace(modules, whole_experts=whole_experts)) for stored, modules in lists
    )


def _object(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UnknownFormat(f"quantization_config whose {key} has an entry of type {type(value).__name__}")
    return value


_MXFP4 = _always(WeightFormat(method="mxfp4", format="mxfp4"), kinds=EXPERTS)
_READERS: dict[str, _RulesReader] = {
    "awq": _alike(formats.awq),
    "awq_marlin": _alike(formats.awq),
    "gptq": _gptq,
    "gptq_marlin": _gptq,
    "auto-round": _auto_round,
    "intel/auto-round": _auto_round,
    "inc": _auto_round,
    "fp8": _fp8,
    # neither has a kernel for experts (vLLM 0.32, `FBGEMMFp8Config.get_quant_method`)
    "fbgemm_fp8": _always(WeightFormat(method="fbgemm_fp8", format="fp8-channel"), _PLAIN_EXPERTS),
    "fp_quant": _alike(formats.fp_quant, _PLAIN_EXPERTS),
    "mxfp4": _MXFP4,
    "gpt_oss_mxfp4": _MXFP4,
    "mxfp8": _always(WeightFormat(method="mxfp8", format="mxfp8")),  # MiniMax's, which ModelOpt's class reads
    "bitsandbytes": _alike(formats.bitsandbytes),
    # vLLM converts the experts of a plain checkpoint while it loads them
    "experts_int8": _always(
        WeightFormat(method="experts_int8", format="int8-channel", converts_while_loading=True), kinds=EXPERTS
    ),
    "quark": _quark,
    "compressed-tensors": _compressed_tensors,
    **dict.fromkeys(("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"), _modelopt),
}
"""`quant_method` → the reader of its rules; what is not here has no formula."""
