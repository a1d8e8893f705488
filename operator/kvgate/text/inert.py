"""Make text of other people inert: it does nothing where it is printed, in a terminal, a CI log, an event or a report.

Names, paths, reasons and architectures come from manifests that anybody may have written. Every writer passes them through this
module; media with a syntax of their own (Markdown, XML, HTML, workflow commands) escape what is left.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.json import encode as json_encode

from kvgate.text.patterns import pattern

_UNSEEN = pattern(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0d\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that count as printable and show nothing; U+FE0E and U+FE0F only choose how a sign is drawn."""
_LEGACY_COMMAND = pattern(r"##(?=\w{0,20}\[)")
"""`##[error]` of GitHub's runner, `##vso[…]` of Azure's agent, `##teamcity[…]`: obeyed anywhere in a line."""
_COMMAND = pattern(r"(\s*):(?=:)")
"""`::error::` of GitHub's runner: obeyed at the start of a line, behind any spaces."""
_JSON_LEGACY_COMMAND = pattern(r"#(?=#\w{0,20}\[)")
_HALF = pattern("[\ud800-\udfff]")
_NON_FINITE = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}


def inert(text: str) -> str:
    """Return one field on one line: what is not seen, moves a cursor or begins a line becomes an escape (`\\x1b`, `\\n`, `\\u202e`).

    Those are all characters that Unicode does not call printable (controls, marks of direction, zero width, lone surrogates,
    separators of lines and paragraphs), and the beginnings of commands that a log of CI obeys.
    """
    if not (text.isascii() and text.isprintable()):
        text = "".join(c if c.isprintable() and not _UNSEEN.match(c) else _escaped(c) for c in text)
    return _LEGACY_COMMAND.sub(r"#\\x23", text) if "##" in text else text


def inert_line(line: str) -> str:
    """Return a whole line of output: inert as a field is, and no command of GitHub's runner."""
    line = inert(line)
    return f"{start[1]}\\x3a{line[start.end() :]}" if (start := _COMMAND.match(line)) else line


def inert_values(value: Any) -> Any:
    """Return the same value with every text in it inert, keys too, for reports whose readers print what is in them.

    A value that JSON has no form for becomes its text.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {inert_line(str(key)): inert_values(child) for key, child in value.items()}
    return [inert_values(child) for child in value] if isinstance(value, list | tuple) else inert_line(str(value))


def inert_json(value: Any, *, indent: int | None = None, is_compact: bool = False) -> str:
    """Return a report in strict JSON, every text in it inert."""
    text = json_text(value, indent=indent, is_compact=is_compact)
    is_plain = "\\" not in text and '"::' not in text and '" ' not in text  # most are: nothing had to be escaped
    return text if is_plain else json_text(inert_values(value), indent=indent, is_compact=is_compact)


def inert_record(record: Struct) -> str:
    """Return a record as compact JSON in one line, every text in it inert."""
    try:
        text = json_encode(record).decode()
    except OverflowError:  # a number of more than 64 bits
        text = "\\"
    is_plain = text.isascii() and text.isprintable() and "##" not in text
    is_plain = is_plain and "\\" not in text and '"::' not in text and '" ' not in text
    return text if is_plain else inert_json(to_builtins(record), is_compact=True)


def json_text(value: Any, *, indent: int | None = None, is_compact: bool = False) -> str:
    """Return JSON in ASCII that every reader takes.

    Numbers that JSON does not have become the texts "Infinity", "-Infinity" and "NaN"; half of a surrogate pair, which is no
    Unicode character, becomes the text of its escape.
    """
    encode = _encoder(indent, is_compact=is_compact).encode
    try:
        text = encode(value)
    except ValueError:
        text = "\\ud"
    if "\\ud" in text:
        text = encode(_for_every_reader(value))
    return _JSON_LEGACY_COMMAND.sub(r"\\u0023", text) if "##" in text else text


@cache
def _encoder(indent: int | None, *, is_compact: bool) -> json.JSONEncoder:
    return json.JSONEncoder(indent=indent, separators=(",", ":") if is_compact else None, allow_nan=False)


def _for_every_reader(value: Any) -> Any:
    if isinstance(value, float):
        return _NON_FINITE.get(repr(value), value)
    if isinstance(value, str):
        return _HALF.sub(lambda half: _escaped(half[0]), value)
    if isinstance(value, Mapping):
        return {_for_every_reader(key): _for_every_reader(child) for key, child in value.items()}
    return [_for_every_reader(child) for child in value] if isinstance(value, list | tuple) else value


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", errors="surrogatepass").decode("ascii")
