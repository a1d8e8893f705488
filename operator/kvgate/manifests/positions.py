"""Where something stands in a file, and how a field path finds its line in a YAML node."""

import re
from dataclasses import dataclass

import yaml

from kvgate.rules.finding import Finding, Severity

_STEP = re.compile(r'\[(\d+)\]|\["([^"]*)"\]|\.?([^.\[\]]+)')


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Line and column, both from 1 as editors count them."""

    line: int
    column: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """Something that could not be read at all; the rest of the input still is."""

    file: str
    position: Position
    finding: Finding


def broken(file: str, position: Position, message: str, remediation: str, *, rule: str = "Unreadable") -> Broken:
    """A part of the input that nobody could judge."""
    finding = Finding(rule=rule, severity=Severity.ERROR, field="", message=message, remediation=remediation)
    return Broken(file=file, position=position, finding=finding)


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


def _entry(node: yaml.MappingNode, name: str) -> tuple[yaml.Node, yaml.Node] | None:
    return next(((key, value) for key, value in node.value if key.value == name), None)
