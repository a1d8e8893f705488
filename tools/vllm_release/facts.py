"""Facts of one release of vLLM beside its options: model classes, parsers, metrics, KV cache dtypes and who takes them, batch limits."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from vllm_release.hints import last_name, literal_values
from vllm_release.options import OptionFacts, read_options
from vllm_release.plain_caches import read_plain_caches
from vllm_release.reading import Reading
from vllm_release.source import NotRead, Source
from vllm_release.values import Frame, Unread

REGISTRY = "vllm/model_executor/models/registry.py"
CACHE_CONFIG = "vllm/config/cache.py"
ARGUMENTS = "vllm/engine/arg_utils.py"
METRICS = "vllm/v1/metrics/loggers.py"
CONNECTORS = ("vllm/distributed/kv_transfer/", "vllm/v1/kv_offload/", "vllm/v1/simple_kv_offload/")
"""Folders of the parts that move KV cache between GPUs, hosts and pods; each has metrics of its own."""
PARSERS = {
    "--reasoning-parser": ("vllm/reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER"),
    "--tool-call-parser": ("vllm/tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER"),
}
"""Options that take a parser's name: the file and the variable with the names that vLLM brings along."""
SERVER = "OPENAI_API_SERVER"
"""The usage context of `vllm serve`."""
_METRIC = re.compile(r"vllm:[a-z0-9_]*[a-z0-9]")
_KINDS = ("gauge", "counter", "histogram")


@dataclass(frozen=True, order=True)
class BatchTier:
    """Batch limits of devices with at least so much memory, but for those that are named."""

    from_gib: int
    max_num_batched_tokens: int
    max_num_seqs: int
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReleaseFacts:
    """All that the tables keep of one release."""

    version: str
    options: Mapping[str, OptionFacts]
    parsers: Mapping[str, frozenset[str]]
    """Names by the option that takes them."""
    model_classes: frozenset[str]
    metrics: Mapping[str, str]
    """Kinds by the names that a scrape shows, without `vllm:` and the suffixes of a histogram."""
    kv_cache_dtypes: tuple[str, ...]
    plain_caches: frozenset[tuple[str, str]]
    """(model class, condition in its source) of layers that keep the model's dtype; empty: always."""
    batch_tiers: tuple[BatchTier, ...]
    """Largest first; the last one is of all other devices."""


def read_release(source: Source) -> ReleaseFacts:
    """Everything. Raises NotRead where something is not where it used to be."""
    return ReleaseFacts(
        version=source.version,
        options=read_options(source),
        parsers={option: _names(source, path, variable) for option, (path, variable) in PARSERS.items()},
        model_classes=_names(source, REGISTRY, "_VLLM_MODELS"),
        metrics=dict(sorted(_metrics(source))),
        kv_cache_dtypes=_kv_cache_dtypes(source),
        plain_caches=read_plain_caches(source),
        batch_tiers=_batch_tiers(source),
    )


def _names(source: Source, path: str, variable: str) -> frozenset[str]:
    """Keys of a dictionary."""
    node = source.file(path).bindings.get(variable)
    found = Reading({}).value(node, Frame(source.file(path))) if isinstance(node, ast.expr) else None
    if not isinstance(found, dict) or not found:
        raise NotRead(f"{path} of vLLM {source.version} has no dictionary {variable}; find where the names are kept")
    return frozenset(found)


def _kv_cache_dtypes(source: Source) -> tuple[str, ...]:
    module = source.file(CACHE_CONFIG)
    node = module.bindings.get("CacheDType")
    values = literal_values(node, module) if node is not None else ()
    if not values:
        raise NotRead(
            f"{CACHE_CONFIG} of vLLM {source.version} has no literal CacheDType; find where the formats are listed"
        )
    return values


def _metrics(source: Source) -> Iterator[tuple[str, str]]:
    """(name, kind); a name that is no argument of a metric's class is that of an info, which is a gauge."""
    of_connectors = sorted(path for path in source.files if path.startswith(CONNECTORS))
    trees = [source.file(path).tree for path in (METRICS, *of_connectors)]
    constants = {name: value for tree in trees for name, value in _constants(tree.body)}
    kinds = dict(pair for tree in trees for pair in _kinds(tree, constants))
    for node in chain.from_iterable(map(ast.walk, trees)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _METRIC.fullmatch(node.value):
            name, kind = node.value.removeprefix("vllm:"), kinds.get(node.value, "gauge")
            yield (f"{name.removesuffix('_total')}_total" if kind == "counter" else name), kind


def _constants(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(name in the source, text) of the constants of a module and of its classes: `Names.LOADED`, "vllm:loaded"."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _constants(node.body, f"{node.name}.")
        elif (
            isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        ):
            yield from ((f"{prefix}{ast.unparse(target)}", node.value.value) for target in node.targets)


def _kinds(tree: ast.AST, constants: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(name, kind): the name is an argument of a metric's class, or the key under which a dictionary holds one."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=names, keywords=keywords):
                found = [(name, node) for name in (*names, *(keyword.value for keyword in keywords))]
            case ast.Dict(keys=keys, values=values):
                found = [(key, value) for key, value in zip(keys, values, strict=True) if key]
            case ast.Assign(targets=[ast.Subscript(slice=key)], value=value):
                found = [(key, value)]
            case _:
                continue
        for name, value in found:
            text = name.value if isinstance(name, ast.Constant) else constants.get(ast.unparse(name))
            kind = _kind(value) if isinstance(value, ast.Call) else ""
            if isinstance(text, str) and kind:
                yield text, kind


def _kind(call: ast.Call) -> str:
    """Return the kind that the called class has in its name; empty without one."""
    return next((kind for kind in _KINDS if kind in last_name(call.func).lower()), "")


# Batch limits


def _batch_tiers(source: Source) -> tuple[BatchTier, ...]:
    """`get_batch_defaults` tells devices apart by memory and name in one chain of conditions."""
    function = source.definition(ARGUMENTS, "EngineArgs.get_batch_defaults")
    chain = next((node for node in ast.walk(function) if _is_about_memory(node)), None) if function else None
    if not isinstance(chain, ast.If):
        raise NotRead(f"{ARGUMENTS} of vLLM {source.version} sets no batch limits by memory; find where they come from")
    return tuple(_tiers(chain, source))


def _is_about_memory(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "device_memory" in ast.unparse(node.test)


def _tiers(chain: ast.If, source: Source) -> Iterator[BatchTier]:
    body: list[ast.stmt] = [chain]
    while len(body) == 1 and isinstance(body[0], ast.If):
        branch = body[0]
        gib, excluded = _condition(branch.test, source)
        yield BatchTier(gib, *_limits(branch.body, source), excluded)
        body = branch.orelse
    yield BatchTier(0, *_limits(body, source))


def _condition(test: ast.expr, source: Source) -> tuple[int, tuple[str, ...]]:
    """`device_memory >= 70 * GiB_bytes and "a100" not in device_name and not is_gb10` → (70, (a100, gb10))."""
    gib, excluded = None, []
    for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]:
        match ast.unparse(part):
            case text if found := re.fullmatch(r"device_memory >= (\d+) \* GiB_bytes", text):
                gib = int(found[1])
            case text if found := re.fullmatch(r"'(\w+)' not in device_name|not is_(\w+)", text):
                excluded.append(found[1] or found[2])
            case text:
                raise NotRead(f"{ARGUMENTS} of vLLM {source.version}: batch limits depend on {text}, which is new")
    if gib is None:
        raise NotRead(f"{ARGUMENTS} of vLLM {source.version}: {ast.unparse(test)} states no memory")
    return gib, tuple(sorted(excluded))


def _limits(body: list[ast.stmt], source: Source) -> tuple[int, int]:
    """(tokens, sequences) of the API server."""
    found: dict[str, Any] = {}
    for statement in body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            pairs = zip(statement.value.keys, statement.value.values, strict=True)
            found |= {last_name(statement.targets[0]): value for key, value in pairs if last_name(key) == SERVER}
    numbers = [found.get(f"default_max_num_{what}") for what in ("batched_tokens", "seqs")]
    tokens, seqs = (Reading({}).value(node, Frame(source.file(ARGUMENTS))) if node else Unread("") for node in numbers)
    if not isinstance(tokens, int) or not isinstance(seqs, int):
        raise NotRead(f"{ARGUMENTS} of vLLM {source.version}: batch limits of {SERVER} are no numbers any more")
    return tokens, seqs
