"""Text of one YAML document → nodes → values, safe for text that anybody may have written.

Nearly every document is plain: no aliases, merges or tags, and nothing wrong. Its value is made in one walk (`plain_value`); PyYAML's
constructor, which takes ten times as long, makes the others.
"""

import gc
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct
from yaml.composer import Composer, ComposerError
from yaml.constructor import SafeConstructor

from kvgate.documents.bounded_files import read_text
from kvgate.text.patterns import pattern

MAX_DEPTH = 100
"""Levels of nesting; a pod template has a dozen."""
MAX_NODES = 2_000_000
"""Limit of keys, values, lists and objects in all documents of an input from which nodes are made."""
MAX_ALIASED_NODES = 100_000
"""Nodes that aliases may add to the written ones."""
MAX_NUMBER = 100
"""Characters; 64 bits take 20 digits, or 66 characters as `0b…`."""
_SAFE_SIZE = 1000
"""Fewer brackets and shorter lines than this cannot nest deep enough to exhaust the parser's stack."""
_LONG = 1_000_000
_ALIASES = pattern(r"(?:^|[\s\[{,:-])[&*][^\s*&]", re.MULTILINE)
"""Pattern of a possible anchor or alias: only composing shows that an alias has no anchor."""
_NUM_EVENTS_OF_A_SCALAR = 5
"""Start and end of stream and document, and the scalar."""
_HEAD_EVENTS = 400
"""Events in which the kind of an object is looked for."""
_TOO_MANY = (f"the input holds more than {MAX_NODES} keys and values", "check its parts one by one")
_SHORT = 100
"""Characters; the tag of a longer scalar is not kept for the next time."""
_SURROGATES = pattern(
    r"\\(?:\\|u(?P<high>[dD][89abAB][0-9a-fA-F]{2})(?:\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2}))?|u[dD][c-fC-F]..)"
)
"""Halves of a character beyond 16 bits, as JSON escapes it, or an escaped backslash."""
_SCALAR = yaml.ScalarNode
_NULL, _BOOL, _TIMESTAMP = "tag:yaml.org,2002:null", "tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"
_STR, _SEQ, _MAP, _INT, _FLOAT, _BINARY = (
    f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map", "int", "float", "binary")
)
_COLLECTIONS = tuple(f"tag:yaml.org,2002:{name}" for name in ("set", "omap", "pairs"))
"""JSON has one kind of objects and one of lists."""
_TEXTS = frozenset({_STR, _TIMESTAMP})
"""Tags of scalars that are read as text: for Kubernetes a date is one."""
_PLAIN_DEPTH = 50
"""Deeper nodes are not plain."""
_PLAIN_INT = pattern(r"-?(?:0|[1-9][0-9]{0,17})")
_PLAIN_FLOAT = pattern(r"-?[0-9]{1,17}\.[0-9]{1,17}")

_Base: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVERS: Mapping[str, list[tuple[str, re.Pattern[str]]]] = _Base.yaml_implicit_resolvers


class YamlError(ValueError):
    """The text is no document that can be judged; line and column count from 1 within the text."""

    def __init__(self, message: str, remediation: str, mark: yaml.Mark | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remediation = remediation
        self.line = mark.line + 1 if mark else 1
        self.column = mark.column + 1 if mark else 1


class NodeRoom(Struct):
    """Nodes that may still be made: one takes 300 to 400 bytes, so that all of them take less than a GiB."""

    left: int = MAX_NODES


def compose(text: str, room: NodeRoom | None = None) -> yaml.Node | None:
    """Return the node of a text that holds at most one document; None where it holds none. `room`: shared by the texts of one input.

    Raises YamlError.
    """
    room = room or NodeRoom()
    room.left -= text.count("!")  # nodes with a tag, more or less
    try:
        if _may_be_deep(text):
            _check_depth(text, room)
        node = _composed(text, room)
    except yaml.YAMLError as error:
        if text.lstrip()[:1] in ("{", "[") and (joined := without_surrogates(text)) != text:
            return compose(joined, room)
        raise _converted(error, text) from None
    except YamlError:
        raise
    except ValueError as error:
        raise YamlError(f"not YAML: {error}", "correct the YAML") from None
    return None if isinstance(node, yaml.ScalarNode) and node.tag == _NULL else node


def is_harmless(text: str) -> bool:
    """Return True for YAML that composes and is more than a scalar, known without making a node; False where only composing tells."""
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


def head_of(data: bytes) -> str:
    """Return the kind and the group of an object (`Workspace.kaito.sh`) from its first lines; empty where they do not stand there."""
    loader = _Loader(data)
    try:
        found: dict[str, str] = {}
        depth, key = 0, ""
        for _ in range(_HEAD_EVENTS):
            event = loader.get_event()
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth == 1 and isinstance(event, yaml.NodeEvent):
                if key:
                    if key in ("kind", "apiVersion") and isinstance(event, yaml.ScalarEvent):
                        found.setdefault(key, event.value)
                    key = ""
                elif isinstance(event, yaml.ScalarEvent):
                    key = event.value or " "
                else:  # a key that is no text
                    return ""
            depth += isinstance(event, yaml.CollectionStartEvent)
            if event is None or isinstance(event, yaml.DocumentEndEvent) or len(found) == 2:
                break
        group = found.get("apiVersion", "").partition("/")[0]
        return f"{found['kind']}.{group}" if len(found) == 2 else ""
    except yaml.YAMLError:
        return ""
    finally:
        loader.dispose()


def value_of(text: str) -> Any:
    """Read YAML that stands in a field of other YAML; None where it is empty. Raises YamlError."""
    node = compose(text)
    return None if node is None else construct(node)


def value_of_file(path: Path, *, max_bytes: int, inside: Path) -> Any:
    """Read a file of YAML. Raises OSError, ValueError with a sentence."""
    try:
        return value_of(read_text(path, max_bytes=max_bytes, inside=inside))
    except (YamlError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is not YAML: {getattr(error, 'message', error)}") from None


def construct(node: yaml.Node) -> Any:
    """Return the value of a node. Raises YamlError for duplicate keys, alias bombs and values out of range."""
    with suppress(NotPlain):
        return plain_value(node)
    sizes = dict[int, int]()
    aliased = _num_nodes(node, sizes) - len(sizes)
    if aliased > MAX_ALIASED_NODES:
        raise YamlError(
            f"its aliases stand for {aliased} more nodes than are written", "use fewer aliases", node.start_mark
        )
    try:
        return _Constructor().construct_document(node)
    except yaml.YAMLError as error:
        raise _converted(error) from None


class NotPlain(Exception):
    """The node has an alias, a tag, a rare form of a scalar or something wrong."""


def plain_value(node: yaml.Node) -> Any:
    """Return the value that a safe constructor makes of the node. Raises NotPlain."""
    return _plain(node, set(), 0)


def _plain(node: yaml.Node, seen: set[int], depth: int) -> Any:
    if node.__class__ is yaml.ScalarNode:
        return node.value if node.tag in _TEXTS else _plain_scalar(node.tag, node.value)
    if id(node) in seen or depth > _PLAIN_DEPTH:
        raise NotPlain
    seen.add(id(node))
    if node.tag == _SEQ and node.__class__ is yaml.SequenceNode:
        return [_plain(child, seen, depth + 1) for child in node.value]
    if node.tag != _MAP or node.__class__ is not yaml.MappingNode:
        raise NotPlain
    values: dict[str, Any] = {}
    for key, child in node.value:
        if key.tag != _STR:
            raise NotPlain
        values[key.value] = _plain(child, seen, depth + 1)
    if len(values) != len(node.value):
        raise NotPlain
    return values


def _plain_scalar(tag: str, text: str) -> Any:
    if tag == _INT and _PLAIN_INT.fullmatch(text):
        return int(text)
    if tag == _FLOAT and _PLAIN_FLOAT.fullmatch(text):
        return float(text)
    if tag == _NULL:
        return None
    if tag == _BOOL and text.lower() in SafeConstructor.bool_values:
        return SafeConstructor.bool_values[text.lower()]
    raise NotPlain


@lru_cache(maxsize=4096)
def _tag_of_plain(text: str) -> str:
    """Return the tag of a scalar without quotes; most scalars of a manifest are keys that come again."""
    return next((tag for tag, pattern in _RESOLVERS.get(text[:1], ()) if pattern.match(text)), _STR)


class _Loader(_Base):  # type: ignore[misc]
    """A loader that resolves tags as its base does, and leaves out the rest: `resolve` runs once per node without a tag."""

    room = NodeRoom()

    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
        self.room.left -= 1
        if self.room.left < 0:
            raise YamlError(*_TOO_MANY)
        if kind is _SCALAR:
            if not implicit[0]:
                return _STR
            return _tag_of_plain(value) if len(value) < _SHORT else _tag_of_plain.__wrapped__(value)
        return _SEQ if kind is yaml.SequenceNode else _MAP

    def descend_resolver(self, current_node: object, current_index: object) -> None:
        """Do nothing: no resolver here looks at paths."""

    def ascend_resolver(self) -> None:
        """Do nothing, as above."""


class _AnchorsAgain(Composer, _Loader):
    """A loader of texts that give an anchor a second time: an alias stands for the nearest one before it (YAML 1.2, 3.2.2.2)."""

    def __init__(self, text: str) -> None:
        _Base.__init__(self, text)
        self.anchors: dict[str, yaml.Node] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        if not isinstance(event, yaml.AliasEvent):
            self.anchors.pop(event.anchor, None)
        return super().compose_node(parent, index)


def _composed(text: str, room: NodeRoom, loader_type: type[_Loader] = _Loader) -> yaml.Node | None:
    """Compose, for a long text without the garbage collector: its search for cycles among a million nodes takes longer than parsing."""
    loader, left = loader_type(text), room.left
    loader.room = room
    was_enabled = len(text) > _LONG and gc.isenabled()
    if was_enabled:
        gc.disable()
    try:
        node: yaml.Node | None = loader.get_single_node()
    except ComposerError as error:
        if loader_type is not _Loader or not str(error.context).startswith("found duplicate anchor"):
            raise
        room.left = left
        return _composed(text, room, _AnchorsAgain)
    finally:
        loader.dispose()
        if was_enabled:
            gc.enable()
    return node


def without_surrogates(text: str) -> str:
    """Return JSON with the characters beyond 16 bits escaped as YAML does it, for readers of YAML."""
    return _SURROGATES.sub(_joined, text)


def _joined(match: re.Match[str]) -> str:
    """Join two halves of a character, which JSON has and YAML does not know; a lone half is no character, as in Kubernetes."""
    if match[0] == "\\\\":
        return match[0]
    if match["high"] is None or match["low"] is None:
        return "\\ufffd"
    return f"\\U{0x10000 + ((int(match['high'], 16) & 0x3FF) << 10 | int(match['low'], 16) & 0x3FF):08x}"


def _may_be_deep(text: str) -> bool:
    if len(text) <= _SAFE_SIZE:
        return False
    return text.count("[") + text.count("{") > _SAFE_SIZE or max(map(len, text.split("\n"))) > _SAFE_SIZE


def _check_depth(text: str, room: NodeRoom) -> None:
    """Count levels over events, which need no recursion: libyaml's composer overflows the C stack on deep nesting."""
    depth = num_nodes = 0
    loader = _Loader(text)
    try:
        while (event := loader.get_event()) is not None:
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            num_nodes += isinstance(event, yaml.NodeEvent)
            if depth > MAX_DEPTH:
                raise _too_deep(event.start_mark)
            if num_nodes > room.left:
                raise YamlError(*_TOO_MANY, event.start_mark)
    finally:
        loader.dispose()


def _too_deep(mark: yaml.Mark) -> YamlError:
    return YamlError(f"it is nested deeper than {MAX_DEPTH} levels", "use fewer levels", mark)


def _num_nodes(node: yaml.Node, sizes: dict[int, int], depth: int = 0) -> int:
    """Count nodes as if aliases were written out, each node once (`sizes`). Raises YamlError for duplicate keys and loops on the way."""
    if depth > MAX_DEPTH:
        raise _too_deep(node.start_mark)
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise YamlError("an alias stands for a part that contains the alias", "remove the alias", node.start_mark)
        return sizes[id(node)]
    sizes[id(node)] = 0
    children = node.value if isinstance(node, yaml.SequenceNode) else []
    if isinstance(node, yaml.MappingNode):
        first: dict[str, yaml.Node] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            before = first.setdefault(key.value, key)
            if before is not key and key.value != "<<":
                raise written_twice(key, before)
        children = [child for pair in node.value for child in pair]
    sizes[id(node)] = 1 + sum(_num_nodes(child, sizes, depth + 1) for child in children)
    return sizes[id(node)]


def written_twice(key: yaml.ScalarNode, before: yaml.Node) -> YamlError:
    """Return what is wrong with a key that stands in a mapping a second time."""
    message = f"key {key.value} is written twice, first on line {before.start_mark.line + 1} of the document"
    return YamlError(message, "keep one of them", key.start_mark)


class _Constructor(SafeConstructor):
    """A constructor that reads YAML as Kubernetes does: a date is text, a set is an object, and a foreign tag has no meaning."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's signature
        """Return the value of one node. Raises YamlError and yaml.YAMLError, each with the place of what is wrong."""
        try:
            return super().construct_object(node, deep)
        except (YamlError, yaml.YAMLError):
            raise
        except Exception as error:  # of scalars: KeyError, IndexError, whatever their text leads to
            text = f"{node.value[:_SHORT]!r}" if isinstance(node, yaml.ScalarNode) else "this"
            message = f"{text} is not a value of type !!{node.tag.rpartition(':')[2]}"
            raise YamlError(message, "correct or quote it", node.start_mark) from error


def _number(constructor: SafeConstructor, node: Any) -> Any:
    """Read a number of few digits: each kind (`0b1…`, `1:59:59…`, `1e9…`) could fill the memory or the time of its user."""
    if isinstance(node, yaml.ScalarNode) and len(node.value) > MAX_NUMBER:
        raise YamlError(
            f"a number of {len(node.value)} characters is out of range",
            f"write one of at most {MAX_NUMBER}, or quote it",
            node.start_mark,
        )
    if node.tag == _FLOAT:
        return SafeConstructor.construct_yaml_float(constructor, node)
    return SafeConstructor.construct_yaml_int(constructor, node)


def _binary(constructor: SafeConstructor, node: Any) -> str:
    """Return the text that the bytes are, because JSON can hold nothing else."""
    data: bytes = SafeConstructor.construct_yaml_binary(constructor, node)
    return data.decode()


def _untagged(constructor: SafeConstructor, node: yaml.Node) -> Any:
    """Read the value behind a foreign tag, such as docker-compose's `!override`."""
    if isinstance(node, yaml.MappingNode):
        return constructor.construct_mapping(node, deep=True)
    return constructor.construct_sequence(node, deep=True) if isinstance(node, yaml.SequenceNode) else node.value


_CONSTRUCTORS: dict[str | None, Any] = {
    _TIMESTAMP: SafeConstructor.construct_yaml_str,
    _INT: _number,
    _FLOAT: _number,
    _BINARY: _binary,
    **dict.fromkeys(_COLLECTIONS, _untagged),
    "!reset": lambda constructor, node: None,  # noqa: ARG005 - docker-compose: nothing, whatever another file has
    None: _untagged,
}
"""Constructors by tag; None stands for unknown tags."""
for _tag, _construct in _CONSTRUCTORS.items():
    _Constructor.add_constructor(_tag, _construct)


def _converted(error: yaml.YAMLError, text: str = "") -> YamlError:
    if isinstance(error, yaml.MarkedYAMLError):
        context = f" ({error.context})" if error.context else ""
        return YamlError(f"not YAML: {error.problem}{context}", "correct the YAML", error.problem_mark)
    if isinstance(error, yaml.reader.ReaderError):
        before = text.encode(errors="replace")[: error.position].decode(errors="replace")
        line, column = before.count("\n"), len(before) - before.rfind("\n") - 1
        mark = yaml.Mark("", error.position, line, column, None, 0)
        return YamlError(f"not YAML: {error.reason}", "write such a character as an escape in quotes", mark)
    return YamlError(f"not YAML: {' '.join(str(error).split())}", "correct the YAML")
