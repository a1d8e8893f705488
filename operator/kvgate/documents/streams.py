"""Bytes → the text of one document after the other, and kvgate's comments in it.

No more is in memory than a block and the longest document.
"""

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

from msgspec import Struct

from kvgate.text.patterns import pattern

MAX_DOCUMENT_BYTES = 32 << 20
"""A cluster stores no object of more than 3 MiB; a List of many is one document."""
MAX_STREAM_BYTES = 1 << 30
"""Size of one file or stream; manifests are never larger."""
_BLOCK_BYTES = 1 << 20
_LONGEST_WORD = 100
_MARKS = (b"---", b"...")
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


def documents(stream: BinaryIO, is_read: Callable[[bytes], bool]) -> Iterator[tuple[int, bytes | NotText | None]]:
    """Yield (lines before, bytes) of each document. Raises NotText.

    In the place of a document that is too long there is NotText, and None if no part of it `is_read`: it is nobody's manifest.
    """
    line = 0
    for data in _between_markers(stream, is_read):
        if isinstance(data, _TooLong):
            yield line, _too_long("a document of more", MAX_DOCUMENT_BYTES, line + 1) if data.is_read else None
            line += data.num_lines
        else:
            yield line, data
            line += data.count(b"\n")


def text_of(data: bytes) -> str:
    """Return the text of a document, without what means something only between documents. Raises NotText."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise NotText("is not UTF-8", "save it as UTF-8", data.count(b"\n", 0, error.start) + 1) from None
    if text.startswith("%"):
        text = _DIRECTIVE.sub("", text)
    return f"   {text[3:]}" if text.startswith("...") else text


class _TooLong(Struct, kw_only=True):
    """A document beyond the limit, whose bytes are let go."""

    num_lines: int = 0
    is_read: bool = False
    tail: bytes = b""
    """The end of what was seen, where a word may begin."""

    def add(self, data: bytes, is_read: Callable[[bytes], bool]) -> None:
        self.num_lines += data.count(b"\n")
        self.is_read = self.is_read or is_read(self.tail + data)
        self.tail = data[-_LONGEST_WORD:]


def _between_markers(stream: BinaryIO, is_read: Callable[[bytes], bool]) -> Iterator[bytes | _TooLong]:
    """Yield the bytes between markers: one at the start of a line ends a document, whatever stands around it."""
    pending, num_pending = list[bytes](), 0
    too_long: _TooLong | None = None
    for block in _blocks(stream):
        start = 0
        for at in _markers(block):
            if too_long:
                too_long.add(block[start:at], is_read)
                yield too_long
            elif pending or at > start:
                yield b"".join((*pending, block[start:at]))
            pending, num_pending, too_long = [], 0, None
            start = at
        rest = block[start:]
        if too_long:
            too_long.add(rest, is_read)
            continue
        pending.append(rest)
        num_pending += len(rest)
        if num_pending > MAX_DOCUMENT_BYTES:
            too_long = _TooLong()
            for each in pending:
                too_long.add(each, is_read)
            pending = []
    if too_long:
        yield too_long
    elif pending:
        yield b"".join(pending)


def _markers(block: bytes) -> list[int]:
    """Return where lines begin with a marker; most blocks of large files have none, which two searches for bytes show at once."""
    starts = [0] if block.startswith(_MARKS) else []
    for mark in _MARKS:
        at = block.find(b"\n" + mark)
        while at >= 0:
            starts.append(at + 1)
            at = block.find(b"\n" + mark, at + 1)
    return sorted(at for at in starts if block[at + 3 : at + 4].isspace() or at + 3 == len(block))


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield whole lines, about a MiB at a time, with every line end as `\\n`."""
    num_bytes = 0
    while block := stream.read(_BLOCK_BYTES):
        block += stream.readline(MAX_DOCUMENT_BYTES)
        if not num_bytes:
            # a byte order mark
            block = block.removeprefix(b"\xef\xbb\xbf")
        num_bytes += len(block)
        if num_bytes > MAX_STREAM_BYTES:
            raise _too_long("more", MAX_STREAM_BYTES)
        if b"\0" in block:
            raise NotText("is a binary file", "give YAML or JSON in UTF-8")
        yield block.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in block else block


def _too_long(what: str, limit_bytes: int, line: int = 1) -> NotText:
    return NotText(f"has {what} than {limit_bytes >> 20} MiB", "give the manifests without other data", line)


class Comment(Struct, frozen=True, kw_only=True):
    line: int
    """Line in the file, from 1."""
    about: int
    """The line that it is about: its own, or the next one where it stands alone."""
    text: str

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
