"""YAML and JSON streams, one document at a time, with positions."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from msgspec import Struct, field
from msgspec.structs import replace

from kvgate.documents.bounded_files import open_file
from kvgate.documents.discovery import PassedOver, Why
from kvgate.documents.duplicates import duplicates_in, with_last_keys
from kvgate.documents.interest import (
    MAX_CHECKED_BYTES,
    MAX_VALUES_BYTES,
    NO_INTEREST,
    Interest,
    WordsOfInterest,
    interest_of,
)
from kvgate.documents.launch_files import Form, form_of, is_script, node_of_text, text_of_launch
from kvgate.documents.nodes import NodeRoom, YamlError, compose, construct, is_harmless
from kvgate.documents.origins import NO_CHARTS, Origin, PathMap, Place
from kvgate.documents.positions import Broken, Position, broken, locate, own_field
from kvgate.documents.streams import Comment, NotText, comments_in, documents, text_of
from kvgate.rules.repository import INVALID_YAML
from kvgate.text.patterns import pattern

STDIN = "-"
STDIN_NAME = "<stdin>"

_TEMPLATE_HELP = "this looks like a Helm template; render it first: helm template CHART | kvgate check -"
_NAME = r"[-~ ]*([\w.][\w. -]{0,100}?)[-~ ]*"
_FIELD = pattern(rf"\{{\{{\{{{_NAME}\}}\}}\}}|\{{\{{{_NAME}\}}\}}")
"""A field of a template that stands for a value: `{{ .Values.image }}`, `{{{PREFIX}}}`."""
_NO_NAME = re.compile(r"\W+")
_COMMENT_OF_CODE = pattern(rb"^\s*(?://|/\*)", re.MULTILINE)


_FIELDS_OF_OBJECTS = frozenset({"apiVersion", "metadata", "spec"})


class Document(Struct, frozen=True, kw_only=True, dict=True):
    """One document of a stream; items of a List are documents too."""

    file: str
    index: int
    """Index of the document in its file, from 0; items of a List share one."""
    line_offset: int
    """Lines of the file before the text that the node's marks count in."""
    node: yaml.Node
    is_template: bool = False
    """Its text holds `{{`: it may be a template that was not rendered."""
    mentions_engine: bool = False
    """Its text holds one of the engine words that the caller looks for."""
    first_line: int = 1
    """First line of the whole document, also for the items of a List."""
    comments: tuple[Comment, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Path of a value that another part of the document sets → the path where it is written."""
    origin: Origin | None = None
    """The place that it was rendered from; None where it stands in its file as it is."""
    form: Form | None = None
    """The language of a file that is no YAML; its text is the node."""

    @property
    def position(self) -> Position:
        return self._at(self.node)

    def position_of(self, path: str, line: int = 0) -> Position:
        """Return the position of a field, or of its nearest written parent. `line`: a line of a text that has several, from 1."""
        shown, value = locate(self.node, self.elsewhere.get(path, path))
        if not line or not isinstance(value, yaml.ScalarNode):
            return self._at(shown)
        first = value.start_mark.line + (1 if value.style in ("|", ">") else 0)
        return Position(line=self.line_offset + first + line + 1)

    def position_in(self, path: str, line: int) -> Position:
        """Return the position of a line of a text, the first one is 0; that of the text where it does not stand in lines of its own."""
        at = self.position_of(path, line)
        _, value = locate(self.node, path)
        is_block = isinstance(value, yaml.ScalarNode) and value.style in ("|", ">")
        return Position(line=at.line + 1) if is_block and not line else at

    def place_of(self, path: str, line: int = 0) -> Place:
        """Return the place of a field for people: in the file that it was rendered from, as well as that is known."""
        at = self.position_of(path, line)
        return self.origin.place(self.node, path, at) if self.origin else Place(file=self.file, position=at)

    def place_of_line(self, line: int) -> Place:
        at = Position(line=line)
        return self.origin.place_of_line(at) if self.origin else Place(file=self.file, position=at)

    @property
    def files(self) -> Sequence[str]:
        return self.file, *(self.origin.files if self.origin else ())

    def _at(self, node: yaml.Node) -> Position:
        return Position(line=self.line_offset + node.start_mark.line + 1, column=node.start_mark.column + 1)

    @cached_property
    def kind(self) -> str:
        """Return the kind of an object; empty where a field of this name stands beside an image, as among the values of a chart."""
        pairs = self.node.value if isinstance(self.node, yaml.MappingNode) else ()
        names = {key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode)}
        return "" if "image" in names and not names & _FIELDS_OF_OBJECTS else self._scalar("kind")

    @cached_property
    def api_version(self) -> str:
        return self._scalar("apiVersion")

    @cached_property
    def group_kind(self) -> str:
        """Kind and group as Kubernetes writes them: `Workspace.kaito.sh`, and `Pod` in the core group; no apiVersion means `apps` here."""
        group = self.api_version.partition("/")[0] or "apps"
        if "." in self.kind:  # no kind is written so, and it must not pass as a kind with its group
            return ""
        return self.kind if group == "v1" else f"{self.kind}.{group}"

    def _scalar(self, name: str) -> str:
        pairs = self.node.value if isinstance(self.node, yaml.MappingNode) else ()
        return next((v.value for k, v in pairs if k.value == name and isinstance(v, yaml.ScalarNode)), "")

    @property
    def duplicates(self) -> list[tuple[str, Broken]]:
        """The keys that are written twice, each with its path."""
        return [
            (path, _yaml_broken(error, self.file, self.line_offset, is_template=self.is_template))
            for path, error in duplicates_in(self.node)
        ]

    def with_last_keys(self) -> "Document":
        """Return the document without the first ones of equal keys."""
        return replace(self, node=with_last_keys(self.node))

    @property
    def is_object(self) -> bool:
        """True for an object or values; False for a list or a text, which is no manifest."""
        return isinstance(self.node, yaml.MappingNode)

    def load(self) -> Any | Broken:
        """Construct the value, which most documents do not need."""
        try:
            value = construct(self.node)
        except YamlError as error:
            return _yaml_broken(error, self.file, self.line_offset, is_template=self.is_template)
        if isinstance(self.node, yaml.MappingNode) and not isinstance(value, Mapping):
            wrong = YamlError(
                f"its tag {self.node.tag} does not make an object", "remove the tag", self.node.start_mark
            )
            return _yaml_broken(wrong, self.file, self.line_offset, is_template=self.is_template)
        return value


Item = Document | Broken | PassedOver | None
"""None: a document of no interest."""


class Reading(Struct, frozen=True, kw_only=True):
    """The reading of one input: the words of interest, room for nodes, and the charts that streams were rendered from."""

    words: WordsOfInterest | None = None
    """None: every document is made."""
    seen: Callable[[int], None] | None = None
    """Called with the bytes of each document."""
    room: NodeRoom = field(default_factory=NodeRoom)
    path_map: PathMap = NO_CHARTS

    def of_file(self, path: Path, inside: Path | None) -> Iterator[Item]:
        """Read a file. `inside`: the folder that it must not lie outside of."""
        try:
            with open_file(path, inside) as file:
                beginning = (
                    file.peek(2) if isinstance(file, BufferedReader) else b""
                )  # pipes and devices are read as YAML
                if form := form_of(path.name) or (Form.SCRIPT if is_script(path.name, beginning) else None):
                    yield from self._of_launch_file(path, form, file)
                else:
                    yield from self.of_stream(str(path), file)
        except OSError as error:
            yield unreadable(str(path), error)

    def of_text(self, name: str, data: bytes) -> Iterator[Item]:
        """Read a text that stands in no file; its name says in which language it is."""
        if form := form_of(name):
            yield from self._of_launch_file(Path(name), form, BytesIO(data))
        else:
            yield from self.of_stream(name, BytesIO(data))

    def _of_launch_file(self, path: Path, form: Form, file: BinaryIO) -> Iterator[Item]:
        """Read a file that starts programs; one that does not name vLLM is none of the input's documents."""
        try:
            text = text_of_launch(file)
        except ValueError:
            yield PassedOver(why=Why.LARGE_SCRIPT, path=path)
            return
        if text is not None:
            yield Document(
                file=str(path), index=0, line_offset=0, node=node_of_text(text), mentions_engine=True, form=form,
                comments=tuple(comments_in(text, 0)),
            )  # fmt: skip

    def of_stream(self, file: str, stream: BinaryIO) -> Iterator[Item]:
        """Read every document of a stream. `file`: its name in findings."""
        index, waiting = 0, list[Comment]()
        is_named = bool(self.words and self.words.is_named and self.words.is_named(file))
        try:
            for line_offset, data in documents(stream, lambda part: self._interest(part, is_named=is_named).is_read):
                if isinstance(data, NotText):
                    yield _not_text(file, data)
                    continue
                if self.seen:
                    self.seen(len(data or b""))
                interest = self._interest(data, is_named=is_named) if data else NO_INTEREST
                item: Item | list[Comment] = None
                if interest.is_too_large:
                    item = PassedOver(why=Why.LARGE_DATA)
                elif data and (interest.is_read or len(data) <= MAX_CHECKED_BYTES):
                    item = self._of_bytes(file, index, line_offset, data, interest, waiting)
                if isinstance(item, list):
                    waiting += item
                    continue
                yield from _items(item) if isinstance(item, Document) else (item,)
                if not isinstance(item, Broken):
                    index, waiting = index + 1, []
        except NotText as error:
            yield _not_text(file, error)

    def _interest(self, data: bytes, *, is_named: bool) -> Interest:
        if is_named:
            return Interest(mentions_engine=True, is_too_large=len(data) > MAX_VALUES_BYTES)
        return interest_of(data, self.words) if self.words else Interest(may_support=True)

    def _of_bytes(
        self, file: str, index: int, line_offset: int, data: bytes, interest: Interest, waiting: list[Comment]
    ) -> Document | Broken | list[Comment] | None:
        """Make a document; None if it is YAML of no interest, and the comments where it holds nothing else."""
        left = self.room.left
        is_template = b"{{" in data
        try:
            text = text_of(data)
            if not interest.is_read and is_harmless(text):
                return None
            text, node = self._composed(text, is_template=is_template)
        except NotText as error:
            broken = _not_text(file, error, line_offset)
            return broken if interest.is_read else replace(broken, may_be=Why.NO_YAML)
        except YamlError as error:
            self.room.left = left
            if data.startswith(b"#!"):
                return _not_text(
                    file, NotText("is a script, and no manifest", "give the manifest or the values that run it")
                )
            broken = _yaml_broken(error, file, line_offset, is_template=is_template)
            is_json = data.lstrip().startswith(b"{") and _COMMENT_OF_CODE.search(data) is not None
            may_be = Why.JSON if is_json else broken.may_be or (None if interest.is_read else Why.NO_YAML)
            return replace(broken, may_be=may_be)
        comments = list(comments_in(text, line_offset))
        if node is None:
            return comments
        origin = self.path_map.template(text, line_offset, is_stream=file == STDIN_NAME)
        return Document(
            file=file,
            index=index,
            line_offset=line_offset,
            node=node,
            is_template=is_template,
            mentions_engine=interest.mentions_engine,
            first_line=line_offset + node.start_mark.line + 1,
            comments=(*waiting, *comments),
            origin=origin,
        )

    def _composed(self, text: str, *, is_template: bool) -> tuple[str, yaml.Node | None]:
        """Return the text and its nodes: fields without quotes, as `{{X}}`, are variables in it where YAML cannot read them."""
        left = self.room.left
        try:
            node = compose(text, self.room)
            is_filled = not is_template or node is None or not _has_mappings_as_keys(node)
        except YamlError:
            if with_fields_as_variables(text) == text:
                raise
            is_filled = False
        if not is_filled:
            self.room.left, text = left, with_fields_as_variables(text)
            node = compose(text, self.room)
        return text, node


def _has_mappings_as_keys(root: yaml.Node) -> bool:
    """Return whether YAML has read a field without quotes, as `{{X}}`, which it takes for a mapping whose key is a mapping."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or isinstance(node, yaml.ScalarNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            if any(isinstance(key, yaml.MappingNode) for key, _ in node.value):
                return True
            waiting += (value for _, value in node.value)
        else:
            waiting += node.value
    return False


def with_fields_as_variables(text: str) -> str:
    """Return a template with `$(NAME)` in the place of every field that stands for a value: a variable that nobody sets."""
    return _FIELD.sub(lambda found: f"$({_NO_NAME.sub('_', found[1] or found[2]).strip('_')})", text)


def parsed(file: str, stream: BinaryIO) -> Iterator[Document | Broken]:
    """Read every document of one stream. `file`: its name in findings."""
    return (item for item in Reading().of_stream(file, stream) if isinstance(item, Document | Broken))


def unreadable(path: str, error: OSError) -> Broken:
    message = f"cannot be read: {error.strerror or error}"
    return broken(path, Position(line=1), message, "give a file or a folder that can be read")


def _not_text(file: str, error: NotText, line_offset: int = 0) -> Broken:
    return broken(file, Position(line=line_offset + error.line), error.message, error.remediation)


def _items(document: Document) -> Iterator[Document]:
    items = own_field(document.node, "items") if document.kind.endswith("List") else None
    if isinstance(items, yaml.SequenceNode):
        yield from (replace(document, node=node) for node in items.value)
    else:
        yield document


def _yaml_broken(error: YamlError, file: str, line_offset: int, *, is_template: bool) -> Broken:
    position = Position(line=line_offset + error.line, column=error.column)
    remediation = _TEMPLATE_HELP if is_template else error.remediation
    found = broken(file, position, error.message, remediation, rule=INVALID_YAML)
    return replace(found, may_be=Why.TEMPLATE if is_template else None)
