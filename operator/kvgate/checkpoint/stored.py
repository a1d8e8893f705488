"""Fetched checkpoints as they are stored: one compressed entry for each, under a key that a ConfigMap and a file may have."""

import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256

from kvgate.checkpoint.published import Published, PublishedError, from_text, name_key, to_json
from kvgate.text.inert import json_text

SUFFIX = ".json.gz"
"""End of an entry's key: the entry is the gzipped JSON object that a lock file has."""
MAX_TEXT_BYTES = 4_000_000
"""Size of an entry's JSON text; as much as is read of a config.json behind configFrom."""
MAX_ENTRY_BYTES = 96 << 10
"""Size of a compressed entry: a ConfigMap has room for ten of the largest. Published models take 1 to 20 KiB."""
_GZIP = 16 + zlib.MAX_WBITS
_READABLE = 100
"""Characters of the name that a key shows; its hash tells names apart."""


class EntryTooLarge(ValueError):
    """The facts of a checkpoint that an entry has no room for; the message has the size and the limit."""


def entry_key(key: str) -> str:
    """Return the key of the entry for a key of `name_key`: `qwen--qwen3-8b.1f0c….json.gz`."""
    readable = re.sub(r"[^-._a-z0-9]", "-", key.replace("/", "--"))[:_READABLE]
    return f"{readable}.{sha256(key.encode()).hexdigest()[:16]}{SUFFIX}"


def packed(published: Published) -> bytes:
    """Return the entry of a checkpoint. Raises EntryTooLarge."""
    text = json_text(to_json(published), is_compact=True).encode()
    if len(text) > MAX_TEXT_BYTES:
        raise EntryTooLarge(f"its facts have {len(text):,} bytes as text, and at most {MAX_TEXT_BYTES:,} are kept")
    compressor = zlib.compressobj(level=9, wbits=_GZIP)
    entry = compressor.compress(text) + compressor.flush()
    if len(entry) > MAX_ENTRY_BYTES:
        raise EntryTooLarge(f"its facts have {len(entry):,} bytes compressed, and at most {MAX_ENTRY_BYTES:,} are kept")
    return entry


def unpacked(entry: bytes) -> Published:
    """Read an entry. Raises PublishedError, also where it is larger than its limit or is cut off."""
    reader = zlib.decompressobj(wbits=_GZIP)
    try:
        text = reader.decompress(entry, MAX_TEXT_BYTES)
    except zlib.error as error:
        raise PublishedError(f"it is not gzipped text: {error}") from None
    if not reader.eof:
        raise PublishedError(f"it is cut off, or longer than {MAX_TEXT_BYTES:,} bytes")
    return from_text(text.decode(errors="replace"))


class StoredModels(Mapping[str, Published]):
    """Entries by the key of their checkpoint (`name_key`), each read when it is asked for: one that cannot be read is not there."""

    def __init__(self, entries: Mapping[str, bytes]) -> None:
        """`entries` are the compressed entries by `entry_key`."""
        self.entries = entries

    def __getitem__(self, key: str) -> Published:
        try:
            published = unpacked(self.entries[entry_key(key)])
        except PublishedError:
            raise KeyError(key) from None
        if name_key(published.name, published.revision) != key:  # somebody renamed the entry
            raise KeyError(key)
        return published

    def __iter__(self) -> Iterator[str]:
        for entry in self.entries.values():
            with suppress(PublishedError):
                published = unpacked(entry)
                yield name_key(published.name, published.revision)

    def __len__(self) -> int:
        return len(self.entries)
