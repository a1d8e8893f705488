"""Positions in files, and the way from a field path to its line in a YAML node."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import yaml

from kvgate.record import record
from kvgate.rules.finding import Finding, Severity

_STEP = re.compile(r'\[(\d+)\]|\["([^"]*)"\]|\.?([^.\[\]]+)')

_MAX_MERGES = 20
"""Mappings merged into mappings; nobody writes more."""


@record
class Position:
    """Line and column, both from 1 as editors count them."""

    line: int
    column: int = 1


@record
class Broken:
    """Something that could not be read at all; the rest of the input still is."""

    file: str
    position: Position
    finding: Finding


def broken(file: str, position: Position, message: str, remediation: str, *, rule: str = "Unreadable") -> Broken:
    """A part of the input that nobody could judge."""
    finding = Finding(rule=rule, severity=Severity.ERROR, field="", message=message, remediation=remediation)
    return Broken(file=file, position=position, finding=finding)


def defect(file: str, position: Position, error: Exception) -> Broken:
    """A document that kvgate fails on: a defect of ours costs one document, not those beside it."""
    from traceback import extract_tb  # only where something is wrong

    at = extract_tb(error.__traceback__)[-1]
    message = f"kvgate failed on this: {type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})"
    return broken(file, position, message, "report it with the document; all others are judged")


def locate(node: yaml.Node, path: str) -> tuple[yaml.Node, yaml.Node]:
    """(what to show, the value) for `spec.vllm.extraArgs[1]`: the field's key, or that of its nearest parent which is written."""
    shown = node
    for index, quoted, plain in _STEP.findall(path):
        name = quoted or plain
        if index and isinstance(node, yaml.SequenceNode) and int(index) < len(node.value):
            node = shown = node.value[int(index)]
        elif name and isinstance(node, yaml.MappingNode) and (entry := _entry(node, name)):
            shown, node = entry
        else:
            break
    return shown, node


def _entry(node: yaml.MappingNode, name: str, depth: int = 0) -> tuple[yaml.Node, yaml.Node] | None:
    """Its own, else that of a mapping which is merged into it (`<<: *base`); construction puts merged entries first."""
    own = _own_entries(node).get(name)
    if own or depth > _MAX_MERGES:
        return own
    for base in _merged_into(node):
        if found := _entry(base, name, depth + 1):
            return found
    return None


@lru_cache(maxsize=16)
def _own_entries(node: yaml.MappingNode) -> Mapping[str, tuple[yaml.Node, yaml.Node]]:
    """Kept, because thousands of paths may lead through one mapping."""
    return {key.value: (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def _merged_into(node: yaml.MappingNode) -> Iterator[yaml.MappingNode]:
    for key, value in node.value:
        if key.value == "<<":
            bases = value.value if isinstance(value, yaml.SequenceNode) else [value]
            yield from (base for base in bases if isinstance(base, yaml.MappingNode))
