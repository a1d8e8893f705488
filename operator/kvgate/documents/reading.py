"""YAML and JSON streams from files, folders and standard input, one document at a time, with positions."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from msgspec import Struct, field
from msgspec.structs import replace

from kvgate.documents.bounded_files import Refused, guard_of, open_file
from kvgate.documents.discovery import PassedOver, files_below, root_of
from kvgate.documents.nodes import NodeRoom, YamlError, compose, construct, is_harmless
from kvgate.documents.positions import INVALID_YAML, Broken, Position, broken, locate
from kvgate.documents.streams import Comment, NotText, comments_in, texts

STDIN = "-"
STDIN_NAME = "<stdin>"
"""Name of standard input in findings."""

_TEMPLATE_HELP = "this looks like a Helm template; render it first: helm template CHART | kvgate check -"


class WordsOfInterest(Struct, frozen=True, kw_only=True):
    """Words by which a document is of interest; the text of any other is only checked to be YAML."""

    engine: Collection[str]
    """Words of engines in small letters, in the text in whatever letters."""
    exact: Collection[str]
    """Any other words, as the text has them."""


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
    """Comments for kvgate."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Path of a value that another part of the document sets → the path where it is written."""

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

    def _at(self, node: yaml.Node) -> Position:
        return Position(line=self.line_offset + node.start_mark.line + 1, column=node.start_mark.column + 1)

    @cached_property
    def kind(self) -> str:
        return self._scalar("kind")

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


_Item = Document | Broken | PassedOver | None
"""None: a document of no interest."""


class _Reading(Struct, frozen=True, kw_only=True):
    """The reading of one input: the words of interest, the folder that bounds it, and room for nodes."""

    words: WordsOfInterest | None = None
    """None: every document is made."""
    root: Path | None = None
    room: NodeRoom = field(default_factory=NodeRoom)

    def of_path(self, path: str) -> Iterator[_Item]:
        given = Path(path)
        guard = guard_of(given, self.root)
        if path == STDIN:
            yield from self.of_stream(STDIN_NAME, sys.stdin.buffer)
        elif not given.is_dir():
            yield from self._of_file(given, guard)
        elif guard and not given.resolve().is_relative_to(guard.resolve()):
            yield _unreadable(path, Refused(f"it leads out of {guard.resolve()}"))
        else:  # files that are not named are read only where they lie in the repository
            root = guard or root_of(given)
            for found in files_below(given, root):
                if isinstance(found, PassedOver):
                    yield found
                elif isinstance(found, OSError):
                    yield _unreadable(str(found.filename), found)
                else:
                    yield from self._of_file(found, root)

    def _of_file(self, path: Path, inside: Path | None) -> Iterator[_Item]:
        try:
            with open_file(path, inside) as file:
                yield from self.of_stream(str(path), file)
        except OSError as error:
            yield _unreadable(str(path), error)

    def of_stream(self, file: str, stream: BinaryIO) -> Iterator[_Item]:
        index, waiting, words = 0, list[Comment](), self.words
        try:
            for line_offset, text in texts(stream):
                if isinstance(text, NotText):
                    yield _not_text(file, text)
                    continue
                has_word = words is None or any(word in text for word in words.exact) or self._mentions_engine(text)
                if not has_word and is_harmless(text):
                    yield None
                    index, waiting = index + 1, []
                elif isinstance(item := self._document(file, index, line_offset, text, waiting), Broken):
                    yield item
                elif item:
                    yield from _items(item)
                    index, waiting = index + 1, []
                else:
                    waiting += comments_in(text, line_offset)
        except NotText as error:
            yield _not_text(file, error)

    def _mentions_engine(self, text: str) -> bool:
        in_small_letters = text.lower()
        return self.words is not None and any(word in in_small_letters for word in self.words.engine)

    def _document(
        self, file: str, index: int, line_offset: int, text: str, waiting: list[Comment]
    ) -> Document | Broken | None:
        """Make a document of a text; None where the text holds nothing but comments."""
        try:
            node = compose(text, self.room)
        except YamlError as error:
            return _yaml_broken(error, file, line_offset, is_template="{{" in text)
        if node is None:
            return None
        return Document(
            file=file,
            index=index,
            line_offset=line_offset,
            node=node,
            is_template="{{" in text,
            mentions_engine=self._mentions_engine(text),
            first_line=line_offset + node.start_mark.line + 1,
            comments=(*waiting, *comments_in(text, line_offset)),
        )


def read_documents(paths: Iterable[str]) -> Iterator[Document | Broken]:
    """Yield the documents of every path in order, and Broken for each part that cannot be read."""
    reading = _Reading()
    return _documents_of(item for path in paths for item in reading.of_path(path))


def parsed(file: str, stream: BinaryIO) -> Iterator[Document | Broken]:
    """Read every document of one stream. `file`: its name in findings."""
    return _documents_of(_Reading().of_stream(file, stream))


def _documents_of(items: Iterable[_Item]) -> Iterator[Document | Broken]:
    return (item for item in items if isinstance(item, Document | Broken))


def read_relevant(paths: Iterable[str], words: WordsOfInterest, root: Path | None = None) -> Iterator[_Item]:
    """Read the documents of every path, with None for each that is YAML and has none of these words.

    `root`: a path that is written below this folder must not lead out of it.
    """
    reading = _Reading(words=words, root=root)
    return (item for path in paths for item in reading.of_path(path))


def _unreadable(path: str, error: OSError) -> Broken:
    message = f"cannot be read: {error.strerror or error}"
    return broken(path, Position(line=1), message, "give a file or a folder that can be read")


def _not_text(file: str, error: NotText) -> Broken:
    return broken(file, Position(line=error.line), error.message, error.remediation)


def _items(document: Document) -> Iterator[Document]:
    """Yield the document, or the items of a List."""
    items = None
    if document.kind.endswith("List") and isinstance(document.node, yaml.MappingNode):
        items = next((value for key, value in document.node.value if key.value == "items"), None)
    if not isinstance(items, yaml.SequenceNode):
        yield document
        return
    for node in items.value:
        yield replace(document, node=node)


def _yaml_broken(error: YamlError, file: str, line_offset: int, *, is_template: bool) -> Broken:
    position = Position(line=line_offset + error.line, column=error.column)
    remediation = _TEMPLATE_HELP if is_template else error.remediation
    return broken(file, position, error.message, remediation, rule=INVALID_YAML)
