"""YAML that stands as text in a field of other YAML, read as if it were written there: with paths, lines and columns of its own."""

from collections.abc import Sequence
from dataclasses import replace

import yaml

from kvgate.documents.nodes import YamlError, compose, construct
from kvgate.documents.positions import Broken
from kvgate.documents.written import Written
from kvgate.manifests.pods.engine_found import ReaderInput

Path = Sequence[str]
"""Names of fields; `*` is every element of a list."""


def with_texts_read(given: ReaderInput, *paths: Path) -> ReaderInput:
    """The same input, with what these texts say in their place; one that is no YAML stays a text."""
    node, read = given.document.node, dict[int, yaml.Node]()
    for path in paths:
        node = _read_below(node, path, read)
    document = replace(given.document, node=node)
    value = document.load()
    if isinstance(value, Broken):
        return given
    root = Written(value=value)
    return replace(given, document=document, root=root, values=root)


def _read_below(node: yaml.Node, path: Path, read: dict[int, yaml.Node]) -> yaml.Node:
    """A copy of the way to the text; everything beside it is the same. `read`: texts that aliases may lead to again."""
    if not path:
        if id(node) not in read:
            read[id(node)] = _read(node)
        return read[id(node)]
    if isinstance(node, yaml.MappingNode):
        pairs = [
            (key, _read_below(child, path[1:], read) if key.value == path[0] else child) for key, child in node.value
        ]
        return yaml.MappingNode(node.tag, pairs, node.start_mark, node.end_mark)
    if isinstance(node, yaml.SequenceNode) and path[0] == "*":
        items = [_read_below(child, path[1:], read) for child in node.value]
        return yaml.SequenceNode(node.tag, items, node.start_mark, node.end_mark)
    return node


def _read(node: yaml.Node) -> yaml.Node:
    """Read the text, in which only an object has a meaning."""
    if not isinstance(node, yaml.ScalarNode):
        return node
    try:
        inner = compose(node.value)
        if not isinstance(inner, yaml.MappingNode):
            return node
        construct(inner)
    except YamlError:
        return node
    _move(inner, node, set())
    return inner


def _move(inner: yaml.Node, text: yaml.ScalarNode, seen: set[int]) -> None:
    """To the lines of the file: only `|` keeps those of the text. How far it is indented is not known, so no columns."""
    if id(inner) in seen:
        return
    seen.add(id(inner))
    at = text.start_mark
    line = at.line + 1 + inner.start_mark.line
    inner.start_mark = yaml.Mark(at.name, 0, line, 0, None, 0) if text.style == "|" else at
    for child in inner.value if isinstance(inner, yaml.CollectionNode) else ():
        for each in child if isinstance(child, tuple) else (child,):
            _move(each, text, seen)
