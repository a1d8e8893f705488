"""The modules of a layer by all their names, and the lists of modules in the config of a quantised checkpoint."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from functools import cache, lru_cache
from typing import Protocol

from msgspec import Struct, field

from kvgate.text.patterns import pattern


class UnknownFormat(ValueError):
    """The weights are in a format without a formula; the message names it."""


Place = int | str
"""Index of a decoder layer, or the whole name of a layer that stands elsewhere (`mtp.layers.0`)."""

MAX_COMPARISONS = 10_000
"""Patterns × layers: beyond that, reading a config takes seconds."""
MAX_EXPRESSION = 500
"""Characters of one expression or glob; the longest published one has 57."""
MAX_PROGRAMS = 1_000_000
"""Instructions of all expressions × layers: each may be looked at once for every character of a name."""
_MAX_PROGRAM_BYTES = 1 << 20
"""Memory for one expression; RE2 refuses what needs more."""


def _under(blocks: Sequence[str], modules: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{block}.{module}" for block in blocks for module in modules)


_MLP = ("mlp", "feed_forward", "mixer")
_SPARSE = ("mlp", "block_sparse_moe", "ffn", "feed_forward", "mixer", "moe")
_GATED = ("gate_proj", "up_proj", "down_proj", "w1", "w3", "w2", "gate_up_proj")

MODULES: dict[str, tuple[str, ...]] = {
    # attention
    "qkv_proj": (
        *_under(("self_attn", "mixer"), ("q_proj", "k_proj", "v_proj", "qkv_proj")),
        "attention.query_key_value",
    ),
    "o_proj": ("self_attn.o_proj", "mixer.o_proj", "self_attn.out_proj"),
    "g_proj": ("self_attn.g_proj", "attention.g_proj"),
    # latent attention and its indexers
    "q_a_proj": ("self_attn.q_a_proj", "self_attn.fused_qkv_a_proj"),
    "q_b_proj": ("self_attn.q_b_proj", "self_attn.q_proj"),
    "kv_a_proj": ("self_attn.kv_a_proj_with_mqa", "self_attn.fused_qkv_a_proj"),
    "kv_b_proj": ("self_attn.kv_b_proj",),
    "indexer_wq_b": _under(("self_attn", "attn"), ("indexer.wq_b",)),
    "index_q_proj": ("self_attn.index_q_proj",),
    "index_k_proj": ("self_attn.index_k_proj",),
    # DeepSeek-V4
    "fused_wqa_wkv": _under(("attn",), ("fused_wqa_wkv", "wq_a", "wkv")),
    "wq_b": ("attn.wq_b",),
    "wo_a": ("attn.wo_a",),
    "wo_b": ("attn.wo_b",),
    "e_proj": ("e_proj",),
    "h_proj": ("h_proj",),
    # states
    "in_proj_qkvz": _under(("linear_attn",), ("in_proj_qkvz", "in_proj_qkv", "in_proj_z")),
    "in_proj_ba": _under(("linear_attn",), ("in_proj_ba", "in_proj_b", "in_proj_a")),
    **{
        name: (f"self_attn.{name}",)
        for name in ("f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj", "b_proj", "output_gate")
    },
    "dense": ("attention.dense",),
    "in_proj": _under(("mixer", "mamba", "conv", "short_conv", "linear_attn"), ("in_proj",)),
    "out_proj": _under(("linear_attn", "mixer", "mamba", "conv", "short_conv", "self_attn"), ("out_proj",)),
    # feed-forward
    "gate_up_proj": _under(_MLP, ("gate_proj", "up_proj", "gate_up_proj", "w1", "w3")),
    "down_proj": _under(_MLP, ("down_proj", "w2")),
    "experts": (
        *_under(_SPARSE, [f"experts.0.{module}" for module in _GATED]),
        "experts.0.gate_proj",
        "block_sparse_moe.input_linear",
        "block_sparse_moe.output_linear",
    ),
    "layer_experts": _under(("experts", "moe.experts"), ("0.gate_proj", "0.up_proj", "0.down_proj", "gate_up_proj")),
    "shared_experts": (
        *_under(_SPARSE, _under(("shared_experts", "shared_expert"), _GATED)),
        "shared_mlp.input_linear",
        "shared_mlp.output_linear",
    ),
    "fc1_latent_proj": ("mixer.fc1_latent_proj",),
    "fc2_latent_proj": ("mixer.fc2_latent_proj",),
}
"""vLLM's module (`Matrix.name`) → the names that checkpoints use for it inside a layer; what is not here is never quantised."""

_IN_LAYER = pattern(r"(?:(?P<before>[\w.]+)\.)?layers\.(?P<layer>\d{1,6})(?:\.(?P<tail>.+))?")
_TEXT_PARTS = frozenset({"model", "language_model", "text_model", "backbone", "transformer", "decoder"})
"""Names that may stand before the layers of the language model; the layers of towers and drafts have others."""
_LANGUAGE_MODEL = pattern(r"^(?:model\.language_model|language_model\.model|language_model|backbone)(?=\.)")


class Pattern(Protocol):
    """A compiled expression, of whichever engine."""

    def match(self, text: str, /) -> object:
        """Return None where the text does not begin with a match."""


class ModuleList(Struct, frozen=True, kw_only=True):
    """Modules by the ways in which checkpoints name them; names of layers are kept by layer, without what stands before."""

    names: frozenset[str] = frozenset()
    """Full names, or runs of whole components of one."""
    globs: tuple[Pattern, ...] = ()
    """The same with `*`, matched against `.name.`."""
    expressions: tuple[Pattern, ...] = ()
    """`re:`, matched from the start of the name."""
    layer_names: Mapping[int, set[str]] = field(default_factory=dict)
    layer_globs: Mapping[int, set[str]] = field(default_factory=dict)
    names_number: bool = False
    """True where one of the names has a number as a component: then layers differ by them."""
    whole_experts: bool = False
    """True where the experts of a layer are matched as one module, as vLLM does for GPTQ, and not by the names of their parts."""

    @classmethod
    def of(cls, entries: Iterable[str], num_layers: int) -> "ModuleList":
        """Sort the entries of a list. Raises UnknownFormat for an expression that RE2 cannot run and for a list that takes too long."""
        names: set[str] = set()
        globs: set[str] = set()
        expressions: set[str] = set()
        layer_names: dict[int, set[str]] = {}
        layer_globs: dict[int, set[str]] = {}
        for entry in entries:
            if entry.startswith("re:"):
                expressions.add(entry[3:])
            elif (found := _IN_LAYER.fullmatch(entry)) and _TEXT_PARTS.issuperset(
                (found["before"] or "model").split(".")
            ):
                tail, layer = found["tail"] or "", int(found["layer"])
                (layer_globs if "*" in tail else layer_names).setdefault(layer, set()).add(_checked(tail))
            else:
                (globs if "*" in entry else names).add(_LANGUAGE_MODEL.sub("model", _checked(entry)))
        if (len(globs) + len(expressions)) * num_layers + sum(map(len, layer_globs.values())) > MAX_COMPARISONS:
            raise UnknownFormat(f"a list of modules with {len(globs) + len(expressions)} patterns")
        return cls(
            names=frozenset(names),
            globs=(re.compile("|".join(translate(f"*.{entry}.*") for entry in sorted(globs))),) if globs else (),
            expressions=_expressions(tuple(sorted(expressions)), num_layers) if expressions else (),
            layer_names=layer_names,
            layer_globs=layer_globs,
            names_number=any(part.isdecimal() for name in names for part in name.split(".")),
        )

    def has(self, place: Place, module: str) -> bool:
        """True where the list names a module of a layer by any of its names."""
        tails = _experts_as_one(module) if self.whole_experts else MODULES.get(module, ())
        if isinstance(place, str):
            names = [f"{place}.{tail}" for tail in tails]
            return any(self._names_any(_runs(name)) or self._has_pattern(name) for name in names)
        if self._has_by_name(place, module):
            return True
        globs = self.layer_globs.get(place, ())
        if any(_compiled(f"{glob}.*").match(f"{tail}.") for tail in tails for glob in globs):
            return True
        has_patterns = bool(self.globs or self.expressions)
        return has_patterns and any(self._has_pattern(f"model.layers.{place}.{tail}") for tail in tails)

    def _has_by_name(self, layer: int, module: str) -> bool:
        of_layer = self.layer_names.get(layer)
        if of_layer and ("" in of_layer or not of_layer.isdisjoint(_beginnings(module))):
            return True
        if not self.names_number:
            return self._names_any(_numberless_runs(module))
        return any(self._names_any(_runs(f"model.layers.{layer}.{tail}")) for tail in MODULES.get(module, ()))

    def _names_any(self, runs: Iterable[str]) -> bool:
        return bool(self.names) and not self.names.isdisjoint(runs)

    def _has_pattern(self, name: str) -> bool:
        return any(pattern.match(f".{name}.") for pattern in self.globs) or any(
            pattern.match(name) for pattern in self.expressions
        )


@cache
def _experts_as_one(module: str) -> tuple[str, ...]:
    """Return the names of a module with all parts of experts left out: `mlp.experts`."""
    return tuple(dict.fromkeys(re.sub(r"((?:^|\.)experts)\..*", r"\1", tail) for tail in MODULES.get(module, ())))


def _checked(entry: str) -> str:
    if len(entry) > MAX_EXPRESSION:
        raise UnknownFormat(f"a list of modules with a name of {len(entry)} characters")
    return entry


def _runs(name: str) -> Iterator[str]:
    """Yield every run of whole components: `a.b.c` → a, a.b, a.b.c, b, b.c, c."""
    parts = name.split(".")
    return (".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))


@cache
def _numberless_runs(module: str) -> frozenset[str]:
    """Return the runs of `model.layers.N.…`, for each of the module's names, without those that hold the number."""
    after = (run for tail in MODULES.get(module, ()) for run in _runs(tail))
    return frozenset(("model", "model.layers", "layers", *after))


@cache
def _beginnings(module: str) -> frozenset[str]:
    """Return the runs of components from the first one on, for each of the module's names in a layer."""
    names = (tail.split(".") for tail in MODULES.get(module, ()))
    return frozenset(".".join(parts[:i]) for parts in names for i in range(1, len(parts) + 1))


@lru_cache(maxsize=4096)
def _compiled(text: str) -> re.Pattern[str]:
    """Compile a glob, which runs in linear time: each `*` becomes a group that never gives back what it took."""
    return re.compile(translate(text))


@lru_cache(maxsize=256)
def _expressions(texts: tuple[str, ...], num_layers: int) -> tuple[Pattern, ...]:
    """Join the patterns into as few as possible, run by RE2 in linear time: a config may come from anybody."""
    import re2  # a few milliseconds, which few commands need

    options = re2.Options()
    options.max_mem, options.log_errors = _MAX_PROGRAM_BYTES, False
    # names of the language model as vLLM's text models have them
    plain = [
        text.replace("model\\.language_model\\.", "model\\.").replace("language_model\\.model\\.", "model\\.")
        for text in texts
    ]
    patterns = []
    for text, each in zip(texts, plain, strict=True):
        try:
            _check(each)
            patterns.append(re2.compile(each, options))
        except (re.error, re2.error, ValueError) as error:
            reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error
            raise UnknownFormat(f"a list of modules with the expression {text[:60]!r} ({reason})") from None
    if sum(pattern.programsize for pattern in patterns) * num_layers > MAX_PROGRAMS:
        raise UnknownFormat(f"a list of modules with {len(texts)} expressions, which would take too long")
    try:
        return (re2.compile("|".join(f"(?:{each})" for each in plain), options),)
    except re2.error:  # two groups of one name, or too large together
        return tuple(patterns)


def _check(expression: str) -> None:
    """Refuse an expression that Python's `re`, which vLLM uses, refuses or may read otherwise than RE2.

    Raises ValueError or re.error.
    """
    if len(expression) > MAX_EXPRESSION:
        raise ValueError(f"{len(expression)} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # sets within sets: Python means to change how it reads them
            re.compile(expression)
    except (RecursionError, OverflowError, Warning) as error:
        raise ValueError(str(error)) from None
