"""YAML and JSON streams from files, folders and standard input, one document at a time, with positions."""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from kvgate.manifests.comments import Comment, comments_in
from kvgate.manifests.nodes import YamlError, compose, construct
from kvgate.manifests.positions import Broken, Position, broken, locate

MAX_BYTES = 32 << 20
"""Of one file or stream; more is not a manifest."""
SUFFIXES = (".yaml", ".yml", ".json")
"""What is read in a folder; a file that is named is read whatever its name."""
STDIN = "-"
STDIN_NAME = "<stdin>"
"""What its findings are shown at."""

_ENGINE_WORDS = re.compile(
    r"vllm|kserve|kubeai|kaito\.sh|modelartifacts|dynamo|llm_configs|model_loading_config", re.IGNORECASE
)
_MARKER = re.compile(r"^(?:---|\.\.\.)(?=\s|\Z)", re.MULTILINE)
_DIRECTIVE = re.compile(r"^%.*$", re.MULTILINE)
_TEMPLATE_HELP = "this looks like a Helm template; render it first: helm template CHART | kvgate check -"


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document of a stream; items of a List are documents too."""

    file: str
    index: int
    """Of the document in its file, from 0; items of a List share one."""
    line_offset: int
    """Lines of the file before the text that the node's marks count in."""
    node: yaml.Node
    is_template: bool = False
    """Its text holds `{{`: a finding may be about a template that nobody rendered."""
    mentions_engine: bool = False
    """Its text holds a word that every document of a known platform has one of."""
    first_line: int = 1
    """Of the whole document, also for the items of a List."""
    comments: tuple[Comment, ...] = ()
    """Those that are for kvgate."""

    @property
    def position(self) -> Position:
        return self._at(self.node)

    def position_of(self, path: str, line: int = 0) -> Position:
        """Of a field, or of its nearest parent that is written; of a line in it where it is a text of several."""
        shown, value = locate(self.node, path)
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

    def _scalar(self, name: str) -> str:
        pairs = self.node.value if isinstance(self.node, yaml.MappingNode) else ()
        return next((v.value for k, v in pairs if k.value == name and isinstance(v, yaml.ScalarNode)), "")

    def load(self) -> Any | Broken:
        """The value; constructed only when asked, because most documents are not ours."""
        try:
            return construct(self.node)
        except YamlError as error:
            return _yaml_broken(error, self.file, self.line_offset, is_template=self.is_template)


def read_documents(paths: Iterable[str]) -> Iterator[Document | Broken]:
    """Every document of every path, in order; what cannot be read is told in its place and stops nothing."""
    for path in paths:
        if path == STDIN:
            yield from _parsed(STDIN_NAME, sys.stdin.buffer.read(MAX_BYTES + 1))
        else:
            yield from _of_path(Path(path))


def _of_path(path: Path) -> Iterator[Document | Broken]:
    if path.is_dir():
        for file in _files_below(path):
            yield from [_pipe(file)] if file.is_fifo() else _of_file(file)
    else:
        yield from _of_file(path)


def _pipe(path: Path) -> Broken:
    """Reading one that lies in a folder could wait for ever."""
    return broken(str(path), Position(line=1), "is a pipe", "name it if it is meant")


def _files_below(folder: Path) -> Iterator[Path]:
    """Sorted; hidden folders and files are left out, linked folders are not followed, so that no loop is possible."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield Path(root, name)


def _of_file(path: Path) -> Iterator[Document | Broken]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        yield broken(
            str(path), Position(line=1), f"cannot be read: {reason}", "give a file or a folder that can be read"
        )
        return
    yield from _parsed(str(path), data)


def _parsed(file: str, data: bytes) -> Iterator[Document | Broken]:
    text = _text(file, data)
    if isinstance(text, Broken):
        yield text
        return
    index, waiting = 0, list[Comment]()
    for line_offset, chunk in _chunks(text):
        try:
            node = compose(chunk)
        except YamlError as error:
            yield _yaml_broken(error, file, line_offset, is_template="{{" in chunk)
            continue
        if node is None:
            waiting += comments_in(chunk, line_offset)
            continue
        document = Document(
            file=file,
            index=index,
            line_offset=line_offset,
            node=node,
            is_template="{{" in chunk,
            mentions_engine=_ENGINE_WORDS.search(chunk) is not None,
            first_line=line_offset + node.start_mark.line + 1,
            comments=(*waiting, *comments_in(chunk, line_offset)),
        )
        yield from _items(document)
        index, waiting = index + 1, []


def _text(file: str, data: bytes) -> str | Broken:
    start = Position(line=1)
    if len(data) > MAX_BYTES:
        return broken(file, start, f"has more than {MAX_BYTES >> 20} MiB", "give the manifests without other data")
    if b"\0" in data:
        return broken(file, start, "is a binary file", "give YAML or JSON in UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return broken(file, Position(line=line), "is not UTF-8", "save it as UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _chunks(text: str) -> Iterator[tuple[int, str]]:
    """(lines before, text) of each document: a marker at the start of a line ends one, whatever stands around it."""
    starts = [0, *(match.start() for match in _MARKER.finditer(text) if match.start())]
    line = 0
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        chunk = text[start:end]
        yield line, _without_prefix(chunk)
        line += chunk.count("\n")


def _without_prefix(chunk: str) -> str:
    """Directives and `...` mean something between documents, and nothing in one."""
    if chunk.startswith("%"):
        return _DIRECTIVE.sub("", chunk)
    return f"   {chunk[3:]}" if chunk.startswith("...") else chunk


def _items(document: Document) -> Iterator[Document]:
    """The document, or the items of a List."""
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
    return broken(file, position, error.message, remediation, rule="InvalidYaml")
