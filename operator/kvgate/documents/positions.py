"""Positions in files: from the path of a field to its line, also in YAML that stands as text in a field of other YAML."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import yaml
from msgspec import Struct

from kvgate.documents.discovery import Why
from kvgate.documents.nodes import YamlError, compose, construct
from kvgate.findings.finding import Finding, Rule
from kvgate.rules.repository import UNREADABLE
from kvgate.text.patterns import pattern

_STEP = pattern(r'\[(\d+)\]|\["([^"]*)"\]|\.?([^.\[\]]+)')

_MAX_MERGES = 20
"""Mappings merged into mappings; nobody writes more."""


class Position(Struct, frozen=True, kw_only=True):
    """Line and column, both from 1 as editors count them."""

    line: int
    column: int = 1


class Broken(Struct, frozen=True, kw_only=True):
    """A part of the input that could not be read at all; the rest still is."""

    file: str
    position: Position
    finding: Finding
    may_be: Why | None = None
    """Kind of file that looks like this and is no manifest: it is passed over where nobody named the file."""


def broken(file: str, position: Position, message: str, remedy: str, *, rule: Rule = UNREADABLE) -> Broken:
    return Broken(file=file, position=position, finding=rule.finding("", message, remedy))


def defect(file: str, position: Position, error: Exception) -> Broken:
    """Report a document that kvgate itself fails on: a defect of ours costs one document, not those beside it."""
    from traceback import extract_tb  # only where something is wrong

    at = extract_tb(error.__traceback__)[-1]
    message = f"kvgate failed on this: {type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})"
    return broken(file, position, message, "report this with the document; all other documents are judged")


def locate(node: yaml.Node, path: str) -> tuple[yaml.Node, yaml.Node]:
    """Return (the node to show, the value) of `spec.vllm.extraArgs[1]`: shown is the field's key, or that of its nearest written parent."""
    shown = node
    for step in steps_of(path):
        if isinstance(step, str) and (entry := entry_of(node, step)):
            shown, node = entry
        elif isinstance(step, int) and isinstance(node, yaml.SequenceNode) and step < len(node.value):
            node = shown = node.value[step]
        else:
            break
    return shown, node


def steps_of(path: str) -> Iterator[str | int]:
    """Yield the names and indices of `spec.vllm.extraArgs[1]`."""
    for index, quoted, plain in _STEP.findall(path):
        yield int(index) if index else quoted or plain


def entry_of(node: yaml.Node, name: str, depth: int = 0) -> tuple[yaml.Node, yaml.Node] | None:
    """Return (key, value): the mapping's own entry, else that of a mapping which is merged into it (`<<: *base`)."""
    if not isinstance(node, yaml.MappingNode):
        return None
    own = _own_entries(node).get(name)
    if own or depth > _MAX_MERGES:
        return own
    for key, value in node.value:
        if key.value == "<<":
            bases = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for base in bases:
                if found := entry_of(base, name, depth + 1):
                    return found
    return None


def own_field(node: yaml.Node, name: str) -> yaml.Node | None:
    """Return the first value that the mapping itself has under a name."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key, value in pairs if key.value == name), None)


@lru_cache(maxsize=16)
def _own_entries(node: yaml.MappingNode) -> Mapping[str, tuple[yaml.Node, yaml.Node]]:
    """Index the entries by key; the index is kept, because thousands of paths may lead through one mapping."""
    return {key.value: (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def with_texts_read(node: yaml.Node, path: Sequence[str], read: dict[int, yaml.Node] | None = None) -> yaml.Node:
    """Return a copy of the node in which the text at a path is the YAML that it holds, with the positions that it has in the file.

    `path`: names of fields; `*` is every element of a list. A text that is no YAML object stays a text. Everything beside the way to
    the text is shared with the node. `read`: texts that are read already, to which aliases may lead again.
    """
    read = {} if read is None else read
    if not path:
        if id(node) not in read:
            read[id(node)] = _yaml_in(node)
        return read[id(node)]
    if isinstance(node, yaml.MappingNode):
        pairs = [
            (key, with_texts_read(child, path[1:], read) if key.value == path[0] else child)
            for key, child in node.value
        ]
        return yaml.MappingNode(node.tag, pairs, node.start_mark, node.end_mark)
    if isinstance(node, yaml.SequenceNode) and path[0] == "*":
        items = [with_texts_read(child, path[1:], read) for child in node.value]
        return yaml.SequenceNode(node.tag, items, node.start_mark, node.end_mark)
    return node


def _yaml_in(node: yaml.Node) -> yaml.Node:
    """Read the text of a node, in which only an object has a meaning."""
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
    """Move nodes to the lines of the file: only `|` keeps those of the text. Its indentation is not known, so there are no columns."""
    if id(inner) in seen:
        return
    seen.add(id(inner))
    at = text.start_mark
    line = at.line + 1 + inner.start_mark.line
    inner.start_mark = yaml.Mark(at.name, 0, line, 0, None, 0) if text.style == "|" else at
    for child in inner.value if isinstance(inner, yaml.CollectionNode) else ():
        for each in child if isinstance(child, tuple) else (child,):
            _move(each, text, seen)
