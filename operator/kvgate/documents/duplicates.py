"""Keys that are written twice: each is found with its place, and the rest of the document can be read without it."""

from collections.abc import Iterator, Sequence
from itertools import islice

import yaml

from kvgate.documents.nodes import MAX_DEPTH, YamlError, written_twice

MAX_DUPLICATES = 100
"""Keys of one document that are reported."""


Duplicate = tuple[str, YamlError]
"""A key that stands in a mapping a second time: the path of the value, as readers write it, and what is wrong."""


def duplicates_in(node: yaml.Node) -> Sequence[Duplicate]:
    return list(islice(_duplicates(node, "", set(), 0), MAX_DUPLICATES))


def _duplicates(node: yaml.Node, path: str, seen: set[int], depth: int) -> Iterator[Duplicate]:
    if id(node) in seen or depth > MAX_DEPTH:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            yield from _duplicates(child, f"{path}[{index}]", seen, depth + 1)
    elif isinstance(node, yaml.MappingNode):
        first: dict[str, yaml.Node] = {}
        for key, child in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            is_plain = not any(mark in name for mark in ".[]")
            below = (f"{path}.{name}" if path else name) if is_plain else f'{path}["{name}"]'
            before = first.setdefault(name, key)
            if name not in ("", "<<") and before is not key:
                yield below, written_twice(key, before)
            yield from _duplicates(child, below, seen, depth + 1)


def with_last_keys(node: yaml.Node, copies: dict[int, yaml.Node] | None = None) -> yaml.Node:
    """Return a copy in which the last one of equal keys stands alone, as in parsers that accept them."""
    copies = {} if copies is None else copies
    if id(node) in copies or not isinstance(node, yaml.CollectionNode):
        return copies.get(id(node), node)
    copies[id(node)] = node  # a loop leads to the node itself, which is refused later
    if isinstance(node, yaml.SequenceNode):
        children = [with_last_keys(child, copies) for child in node.value]
        copies[id(node)] = yaml.SequenceNode(node.tag, children, node.start_mark, node.end_mark)
    else:
        last = {
            key.value if isinstance(key, yaml.ScalarNode) and key.value != "<<" else id(key): key
            for key, _ in node.value
        }
        kept = {id(key) for key in last.values()}
        pairs = [(key, with_last_keys(child, copies)) for key, child in node.value if id(key) in kept]
        copies[id(node)] = yaml.MappingNode(node.tag, pairs, node.start_mark, node.end_mark)
    return copies[id(node)]


def touches(duplicate: str, engine: str) -> bool:
    """Return whether an engine stands in a value whose key is written twice, or holds such a key."""
    return any(
        long == short or (long.startswith(short) and (not short or long[len(short)] in ".["))
        for long, short in ((duplicate, engine), (engine, duplicate))
    )
