"""Bytes → the text of one document after the other; no more is in memory than a block and the longest document."""

import re
from collections.abc import Iterator
from typing import BinaryIO

MAX_DOCUMENT_BYTES = 32 << 20
"""A cluster stores no object of more than 3 MiB; a List of many is one document."""
MAX_STREAM_BYTES = 1 << 30
"""Size of one file or stream; manifests are never larger."""
_BLOCK_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MARKER = re.compile(rb"^(?:---|\.\.\.)(?=\s|\Z)", re.MULTILINE)
_DIRECTIVE = re.compile(r"^%.*$", re.MULTILINE)


class NotText(ValueError):
    """Reason why the rest of a stream is not read; line counts from 1."""

    def __init__(self, message: str, remediation: str, line: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.remediation = remediation
        self.line = line


def texts(stream: BinaryIO) -> Iterator[tuple[int, str | NotText]]:
    """(lines before, text) of each document; what is not UTF-8 is told in its place. Raises NotText."""
    line = 0
    for data in _documents(stream):
        try:
            yield line, _without_prefix(data.decode())
        except UnicodeDecodeError as error:
            at = line + data.count(b"\n", 0, error.start) + 1
            yield line, NotText("is not UTF-8", "save it as UTF-8", at)
        line += data.count(b"\n")


def _documents(stream: BinaryIO) -> Iterator[bytes]:
    """A marker at the start of a line ends a document, whatever stands around it."""
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
    """Whole lines, about a MiB at a time, every line end as `\\n`."""
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


def _without_prefix(text: str) -> str:
    """Directives and `...` mean something between documents, and nothing in one."""
    if text.startswith("%"):
        return _DIRECTIVE.sub("", text)
    return f"   {text[3:]}" if text.startswith("...") else text
