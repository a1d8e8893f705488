"""Values of nodes without aliases, merges, tags and anything wrong: nearly all that people write, in one walk."""

import re
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

_MAX_DEPTH = 50
"""Deeper nodes are not plain."""
_PREFIX = "tag:yaml.org,2002:"
_STR = f"{_PREFIX}str"
_TEXTS = frozenset({_STR, f"{_PREFIX}timestamp"})
"""Tags that are read as text: for Kubernetes a date is one."""
_INT = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"-?[0-9]{1,17}\.[0-9]{1,17}")


class NotPlain(Exception):
    """Somebody else has to look at the node."""


def plain_value(node: yaml.Node) -> Any:
    """The value that a safe constructor makes of it. Raises NotPlain."""
    return _value(node, set(), 0)


def _value(node: yaml.Node, seen: set[int], depth: int) -> Any:
    if node.__class__ is yaml.ScalarNode:
        return node.value if node.tag in _TEXTS else _scalar(node.tag, node.value)
    if id(node) in seen or depth > _MAX_DEPTH:
        raise NotPlain
    seen.add(id(node))
    if node.tag == f"{_PREFIX}map" and node.__class__ is yaml.MappingNode:
        return _mapping(node.value, seen, depth + 1)
    if node.tag == f"{_PREFIX}seq" and node.__class__ is yaml.SequenceNode:
        return [_value(child, seen, depth + 1) for child in node.value]
    raise NotPlain


def _mapping(pairs: list[tuple[yaml.Node, yaml.Node]], seen: set[int], depth: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, child in pairs:
        if key.tag != _STR:
            raise NotPlain
        values[key.value] = _value(child, seen, depth)
    if len(values) != len(pairs):
        raise NotPlain
    return values


def _scalar(tag: str, text: str) -> Any:
    if tag == f"{_PREFIX}int" and _INT.fullmatch(text):
        return int(text)
    if tag == f"{_PREFIX}float" and _FLOAT.fullmatch(text):
        return float(text)
    if tag == f"{_PREFIX}null":
        return None
    if tag == f"{_PREFIX}bool" and text.lower() in SafeConstructor.bool_values:
        return SafeConstructor.bool_values[text.lower()]
    raise NotPlain
