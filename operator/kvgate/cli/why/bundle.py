"""The file that somebody sends when an answer is wrong: what was given, without secrets, and the answer; it can be replayed."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

VERSION = 1


class Bundle(Struct, frozen=True, kw_only=True):
    """The texts of a run with its options, and what they led to."""

    kvgateBundle: int  # noqa: N815 - a key of the file
    kvgate: str
    """Version of kvgate that wrote it."""
    given: Sequence[tuple[str, str]]
    """(name, text) of everything that was read, without secrets."""
    options: Mapping[str, str]
    answer: Mapping[str, Any]
    """The answer with statement, facts and judgement, as `-o json` has it."""


def bundle_in(text: str) -> Bundle | None:
    if not text.lstrip().startswith("{") or '"kvgateBundle"' not in text[:400]:
        return None
    try:
        return msgspec.json.decode(text, type=Bundle)
    except (msgspec.DecodeError, RecursionError):
        return None
