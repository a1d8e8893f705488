"""Bytes → the text of one document after the other, and kvgate's comments in it.

No more is in memory than a block and the longest document.
"""

import re
from collections.abc import Iterator
from typing import BinaryIO

from msgspec import Struct

from kvgate.text.patterns import pattern

MAX_DOCUMENT_BYTES = 32 << 20
"""A cluster stores no object of more than 3 MiB; a List of many is one document."""
MAX_STREAM_BYTES = 1 << 30
"""Size of one file or stream; manifests are never larger."""
_BLOCK_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MARKER = pattern(rb"^(?:---|\.\.\.)(?=\s|\Z)", re.MULTILINE)
_DIRECTIVE = pattern(r"^%.*$", re.MULTILINE)
_COMMENT = pattern(r"#\s*kvgate:(.*)")
_SAYS_NOTHING = pattern(r"\s*(?:#|---|$)")


class NotText(ValueError):
    """Reason why the rest of a stream is not read; line counts from 1."""

    def __init__(self, message: str, remediation: str, line: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.remediation = remediation
        self.line = line


def texts(stream: BinaryIO) -> Iterator[tuple[int, str | NotText]]:
    """Yield (lines before, text) of each document, or NotText in its place for one that is not UTF-8. Raises NotText."""
    line = 0
    for data in _documents(stream):
        try:
            text = data.decode()
            # Directives and `...` mean something between documents, and nothing in one.
            if text.startswith("%"):
                text = _DIRECTIVE.sub("", text)
            yield line, f"   {text[3:]}" if text.startswith("...") else text
        except UnicodeDecodeError as error:
            at = line + data.count(b"\n", 0, error.start) + 1
            yield line, NotText("is not UTF-8", "save it as UTF-8", at)
        line += data.count(b"\n")


def _documents(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes between markers: one at the start of a line ends a document, whatever stands around it."""
    pending: list[bytes] = []
    for block in _blocks(stream):
        start = 0
        for match in _MARKER.finditer(block):
            if pending or match.start() > start:
                yield b"".join((*pending, block[start : match.start()]))
            pending.clear()
            start = match.start()
        pending.append(block[start:])
        if sum(map(len, pending)) > MAX_DOCUMENT_BYTES:
            raise _too_long("a document of more", MAX_DOCUMENT_BYTES)
    if pending:
        yield b"".join(pending)


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield whole lines, about a MiB at a time, with every line end as `\\n`."""
    num_bytes = 0
    while block := stream.read(_BLOCK_BYTES):
        block += stream.readline(MAX_DOCUMENT_BYTES)
        if not num_bytes:
            block = block.removeprefix(_BYTE_ORDER_MARK)
        num_bytes += len(block)
        if num_bytes > MAX_STREAM_BYTES:
            raise _too_long("more", MAX_STREAM_BYTES)
        if b"\0" in block:
            raise NotText("is a binary file", "give YAML or JSON in UTF-8")
        yield block.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in block else block


def _too_long(what: str, limit_bytes: int) -> NotText:
    return NotText(f"has {what} than {limit_bytes >> 20} MiB", "give the manifests without other data")


class Comment(Struct, frozen=True, kw_only=True):
    """One comment that is for kvgate."""

    line: int
    """Line in the file, from 1."""
    about: int
    """The line that it is about: its own, or the next one where it stands alone."""
    text: str
    """After `kvgate:`."""

    @property
    def stands_alone(self) -> bool:
        return self.about != self.line


def comments_in(text: str, line_offset: int) -> Iterator[Comment]:
    """Yield kvgate's comments in the text of a document."""
    if "kvgate:" not in text:
        return
    lines = text.split("\n")
    found, about = list[Comment](), len(lines)
    for number in reversed(range(len(lines))):
        about = about if _SAYS_NOTHING.match(lines[number]) else number
        if match := _COMMENT.search(lines[number]):
            found.append(Comment(line=line_offset + number + 1, about=line_offset + about + 1, text=match[1].strip()))
    yield from reversed(found)
