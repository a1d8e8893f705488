"""Text of one YAML document → nodes → values, safe for text that anybody may have written."""

import gc
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

from kvgate.manifests.plain_values import NotPlain, plain_value

MAX_DEPTH = 100
"""Levels of nesting; a pod template has a dozen."""
MAX_ALIASED_NODES = 100_000
"""What aliases may add to the nodes that are written."""
_SAFE_SIZE = 1000
"""Fewer brackets and shorter lines than this cannot nest deep enough to exhaust the parser's stack."""
_LONG = 1_000_000
"""Characters."""
_ALIASES = re.compile(r"(?:^|[\s\[{,:-])[&*][^\s*&]", re.MULTILINE)
"""What may be an anchor or an alias: only composing tells that an alias has no anchor."""
_NUM_EVENTS_OF_A_SCALAR = 5
"""Start and end of stream and document, and the scalar."""
_SHORT = 100
"""Characters; what is longer is not kept for the next time."""
_SCALAR = yaml.ScalarNode
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_STR, _SEQ, _MAP = (f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map"))

_Base: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVERS: Mapping[str, list[tuple[str, re.Pattern[str]]]] = _Base.yaml_implicit_resolvers


@lru_cache(maxsize=4096)
def _tag_of_plain(text: str) -> str:
    """Of a scalar without quotes; most of a manifest's are keys that come again."""
    return next((tag for tag, pattern in _RESOLVERS.get(text[:1], ()) if pattern.match(text)), _STR)


class _Loader(_Base):  # type: ignore[misc]
    """Resolves tags as its base does, without what only other loaders use: this is asked once per node."""

    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
        if kind is _SCALAR:
            if not implicit[0]:
                return _STR
            return _tag_of_plain(value) if len(value) < _SHORT else _tag_of_plain.__wrapped__(value)
        return _SEQ if kind is yaml.SequenceNode else _MAP

    def descend_resolver(self, current_node: object, current_index: object) -> None:
        """No resolver here looks at paths."""

    def ascend_resolver(self) -> None:
        """As above."""


class YamlError(ValueError):
    """The text is no document that can be judged; line and column count from 1 within the text."""

    def __init__(self, message: str, remediation: str, mark: yaml.Mark | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remediation = remediation
        self.line = mark.line + 1 if mark else 1
        self.column = mark.column + 1 if mark else 1


class _Constructor(SafeConstructor):
    """As Kubernetes reads YAML: a date is text, and a tag that is not YAML's own says nothing."""


def _untagged(constructor: SafeConstructor, node: yaml.Node) -> Any:
    """What stands behind the tag: other programs have theirs, such as docker-compose `!override`."""
    if isinstance(node, yaml.MappingNode):
        return constructor.construct_mapping(node, deep=True)
    return constructor.construct_sequence(node, deep=True) if isinstance(node, yaml.SequenceNode) else node.value


def _reset(constructor: SafeConstructor, node: yaml.Node) -> None:
    """docker-compose's `!reset`: nothing, whatever another file has."""


_CONSTRUCTORS = {_TIMESTAMP: SafeConstructor.construct_yaml_str, "!reset": _reset, None: _untagged}
"""By tag; None for those that nobody knows."""
for _tag, _construct in _CONSTRUCTORS.items():
    _Constructor.add_constructor(_tag, _construct)  # type: ignore[type-var]


def compose(text: str) -> yaml.Node | None:
    """The node of a text that holds at most one document; None where it holds none. Raises YamlError."""
    try:
        if _may_be_deep(text):
            _check_depth(text)
        node = _composed(text)
    except yaml.YAMLError as error:
        raise _converted(error) from None
    return None if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null" else node


def _composed(text: str) -> yaml.Node | None:
    """A long one without the garbage collector: looking for cycles among a million nodes takes longer than parsing."""
    loader = _Loader(text)
    was_enabled = len(text) > _LONG and gc.isenabled()
    if was_enabled:
        gc.disable()
    try:
        node: yaml.Node | None = loader.get_single_node()
        return node
    finally:
        loader.dispose()
        if was_enabled:
            gc.enable()


def is_harmless(text: str) -> bool:
    """It is YAML that composes, and more than a scalar: known without making a node. False where only composing tells."""
    may_alias = ("*" in text or "&" in text) and _ALIASES.search(text)
    if may_alias or _may_be_deep(text):
        return False
    loader = _Loader(text)
    try:
        return bool(loader.raw_parse() > _NUM_EVENTS_OF_A_SCALAR)
    except (AttributeError, yaml.YAMLError):
        return False
    finally:
        loader.dispose()


def _may_be_deep(text: str) -> bool:
    if len(text) <= _SAFE_SIZE:
        return False
    return text.count("[") + text.count("{") > _SAFE_SIZE or max(map(len, text.split("\n"))) > _SAFE_SIZE


def _check_depth(text: str) -> None:
    """Count levels over events, which need no recursion: libyaml's composer overflows the C stack on deep nesting."""
    depth = 0
    loader = _Loader(text)
    try:
        while (event := loader.get_event()) is not None:
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise _too_deep(event.start_mark)
    finally:
        loader.dispose()


def _too_deep(mark: yaml.Mark) -> YamlError:
    return YamlError(f"nested deeper than {MAX_DEPTH} levels", "write it flatter", mark)


def construct(node: yaml.Node) -> Any:
    """The value of a node. Raises YamlError for duplicate keys, alias bombs and values out of range."""
    try:
        return plain_value(node)
    except NotPlain:
        return _construct_with_care(node)


def value_of(text: str) -> Any:
    """Of YAML that stands in a field of other YAML; None where it is empty. Raises YamlError."""
    node = compose(text)
    return None if node is None else construct(node)


def _construct_with_care(node: yaml.Node) -> Any:
    """Whatever is not plain, and whatever is wrong."""
    nodes = _Census()
    aliased = nodes.count(node, 0) - len(nodes.sizes)
    if aliased > MAX_ALIASED_NODES:
        raise YamlError(
            f"its aliases stand for {aliased} more nodes than are written", "write less with aliases", node.start_mark
        )
    try:
        return _Constructor().construct_document(node)
    except yaml.YAMLError as error:
        raise _converted(error) from None
    except ValueError as error:
        raise YamlError(
            f"a value is out of range: {error}", "write a smaller one, or quote it", node.start_mark
        ) from None


class _Census:
    """Counts nodes as if aliases were written out, each node once; finds duplicate keys and loops on its way."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}

    def count(self, node: yaml.Node, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise _too_deep(node.start_mark)
        if id(node) in self.sizes:
            if not self.sizes[id(node)]:
                raise YamlError("an alias stands for a part that it is in", "remove the alias", node.start_mark)
            return self.sizes[id(node)]
        self.sizes[id(node)] = 0
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
            children = [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        self.sizes[id(node)] = 1 + sum(self.count(child, depth + 1) for child in children)
        return self.sizes[id(node)]


def _check_keys(node: yaml.MappingNode) -> None:
    first: dict[str, yaml.Node] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        before = first.setdefault(key.value, key)
        if before is not key and key.value != "<<":
            message = f"key {key.value} is written twice, on line {before.start_mark.line + 1} of the document before"
            raise YamlError(message, "keep one of them", key.start_mark)


def _converted(error: yaml.YAMLError) -> YamlError:
    if isinstance(error, yaml.MarkedYAMLError):
        context = f" ({error.context})" if error.context else ""
        return YamlError(f"not YAML: {error.problem}{context}", "correct the YAML", error.problem_mark)
    return YamlError(f"not YAML: {' '.join(str(error).split())}", "correct the YAML")
