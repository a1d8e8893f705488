"""The machine contract of `kvgate explain --requests`: one JSON object in, one out, in order, no line lost."""

import json
import re
from collections.abc import Iterator, Mapping
from math import inf, isfinite
from typing import Any, BinaryIO

from kvgate.budget.calibration import NOTHING_OBSERVED, Calibration
from kvgate.cli.assessment_json import Json, failed, to_json
from kvgate.judge.what_if import BadRequest, assess_request
from kvgate.text.inert import inert_json, json_text

MAX_LINE_BYTES = 5 << 20
"""Size of one request; the longest config.json that is read has less than 4 MiB."""
_TOO_LONG = f"line {{}} has more than {MAX_LINE_BYTES} bytes; write a request of fewer, and one per line"
_TEXT = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\]]', re.DOTALL)
"""A text that nothing closes goes on to the end: looking for one from each of its quotes would take long."""
_VALUE = re.compile(rf"\s*:\s*({_TEXT}|-?\d[\d.eE+-]*)", re.DOTALL)
_MAX_DIGITS = 4000
"""Python reads and writes whole numbers of 4300 digits at most; a longer one is a text here."""
_NO_ID = "null"


def answers(stream: BinaryIO, calibration: Calibration = NOTHING_OBSERVED) -> Iterator[str]:
    """One JSON text per line, in order; a blank line is a bad line, and so is one that is too long."""
    for number, line in enumerate(_lines(stream), start=1):
        yield (
            _answer(line, calibration) if line is not None else _written(_NO_ID, failed(None, _TOO_LONG.format(number)))
        )


def _lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """None for a line that is too long, of which no more than the limit is ever in memory."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        is_too_long = len(line) > MAX_LINE_BYTES
        while is_too_long and line and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE_BYTES)
        yield None if is_too_long else line


def _answer(line: bytes, calibration: Calibration) -> str:
    identifier = None
    try:
        values = _parsed(line)
        identifier = _identifier(values, line)
        return _written(identifier, to_json(None, assess_request(values, calibration=calibration)))
    except BadRequest as error:
        told = str(error)
    except RecursionError:
        told = "the line is nested too deep; a config.json has a dozen levels"
    except Exception as error:  # noqa: BLE001 - a defect of ours must cost one answer, not all that follow
        told = f"kvgate failed: {type(error).__name__}: {error}; please report this line"
    return _written(identifier or _identifier_of_broken(line), failed(None, told))


def _written(identifier: str, answer: Json) -> str:
    """The answer under the id as it was written: every text in it is inert, but what is echoed for a program is exact."""
    return f'{{"id":{identifier}' + inert_json(answer, is_compact=True).removeprefix(f'{{"id":{_NO_ID}')


def _parsed(line: bytes) -> Mapping[str, Any]:
    """The object as Python reads JSON, `Infinity` included."""
    try:
        text = line.decode("utf-8-sig")
        try:
            values = json.loads(text)
        except json.JSONDecodeError:
            raise
        except ValueError:  # a whole number that is too long for Python
            values = json.loads(text, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the line is not JSON: {error}; write one JSON object per line") from None
    if not isinstance(values, dict):
        raise BadRequest(f"the line is JSON of type {type(values).__name__}; write one JSON object per line")
    return values


def _whole(digits: str) -> int | str:
    return int(digits) if len(digits) <= _MAX_DIGITS else digits


def _identifier(values: Mapping[str, Any], line: bytes) -> str:
    """The id in JSON; a number that few readers could hold (1e999) is a text, as it is written."""
    value = values.get("id")
    if isinstance(value, float) and not isfinite(value):
        value = _written_identifier(line) or value
    return json_text(value, is_compact=True)


def _identifier_of_broken(line: bytes) -> str:
    """The id of a line that is broken elsewhere, if it can be read."""
    written = _written_identifier(line) or _NO_ID
    try:
        value = json.loads(written, strict=False, parse_int=_whole)
    except ValueError:
        return _NO_ID
    return json_text(written if value in (inf, -inf) else value)


def _written_identifier(line: bytes) -> str | None:
    """The text behind the key, of the last one that stands in the object itself and not in what it holds."""
    text, depth, found = line.decode("utf-8", errors="replace"), 0, None
    for token in _TOKEN.finditer(text):
        if token[0] in "{}[]":
            depth += 1 if token[0] in "{[" else -1
        elif depth == 1 and token[0] == '"id"' and (value := _VALUE.match(text, token.end())):
            found = value[1]
    return found
