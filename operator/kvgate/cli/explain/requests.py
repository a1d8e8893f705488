"""`kvgate explain --requests`: every line is a request, and every line gets an answer, in the same order."""

import json
import re
from collections.abc import Iterator
from math import inf, isfinite
from typing import Any, BinaryIO

from kvgate.budget import NOTHING_OBSERVED, Calibration
from kvgate.checkpoint.published import NO_MODELS, PublishedModels
from kvgate.cli.assessment_json import request_answer
from kvgate.cli.reports.engine_records import FailedAnswer, RequestAnswer
from kvgate.cli.stated_workload import promise_of_request
from kvgate.findings.finding import vllm_name
from kvgate.judgement.what_if import assess_request
from kvgate.statement.what_if import BadRequest
from kvgate.text.inert import inert_record, json_text
from kvgate.text.patterns import pattern
from kvgate.vllm.values import UnusableValue

MAX_LINE_BYTES = 5 << 20
"""Longest request; the longest config.json that is read has less than 4 MiB."""
_TOO_LONG = f"line {{}} has more than {MAX_LINE_BYTES} bytes; write a request of fewer, and one per line"
_TEXT = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_TOKEN = pattern(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\]]', re.DOTALL)
"""A text without its closing quote goes on to the end; to begin a new search at each quote in it would take long."""
_VALUE = pattern(rf"\s*:\s*({_TEXT}|-?\d[\d.eE+-]*)", re.DOTALL)
_MAX_DIGITS = 4000
"""Longest whole number; Python reads and writes up to 4300 digits, and a longer number is kept as a text."""
_NO_ID = "null"


def answers(
    stream: BinaryIO, calibration: Calibration = NOTHING_OBSERVED, models: PublishedModels = NO_MODELS
) -> Iterator[str]:
    """Answer every line with one JSON text, in order; a blank line and a line that is too long are answered with an error."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) <= MAX_LINE_BYTES:
            yield _answer(line, calibration, models)
            continue
        while line and not line.endswith(b"\n"):  # skip the rest, and never hold more than the limit in memory
            line = stream.readline(MAX_LINE_BYTES)
        yield _written(_NO_ID, FailedAnswer(error=_TOO_LONG.format(number)))


def _answer(line: bytes, calibration: Calibration, models: PublishedModels) -> str:
    identifier = None
    try:
        values = _parsed(line)
        value = values.get("id")
        if isinstance(value, float) and not isfinite(value):  # few programs can read 1e999: echo it as a text
            value = _written_identifier(line) or value
        identifier = str(value) if type(value) is int else json_text(value, is_compact=True)
        guarantee, workload = promise_of_request(values)
        assessment = assess_request(
            values, guarantee=guarantee, workload=workload, calibration=calibration, naming=vllm_name, models=models
        )
        return _written(identifier, request_answer(assessment))
    except UnusableValue as error:
        message = str(error)
    except RecursionError:
        message = "the line is nested too deep; a config.json has a dozen levels"
    except Exception as error:  # noqa: BLE001 - a defect of ours must cost one answer, not all that follow
        message = f"kvgate failed: {type(error).__name__}: {error}; please report this line"
    return _written(identifier or _identifier_of_broken(line), FailedAnswer(error=message))


def _written(identifier: str, answer: RequestAnswer | FailedAnswer) -> str:
    """Return the answer under this id. Every text of the answer is inert; the id is repeated exactly, for programs."""
    return f'{{"id":{identifier},{inert_record(answer)[1:]}'


def _parsed(line: bytes) -> dict[str, Any]:
    """Return the object as Python reads JSON, which includes `Infinity`. Raises BadRequest."""
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


def _identifier_of_broken(line: bytes) -> str:
    """Return the id of a line that is broken elsewhere; null where the id cannot be read."""
    written = _written_identifier(line) or _NO_ID
    try:
        value = json.loads(written, strict=False, parse_int=_whole)
    except ValueError:
        return _NO_ID
    return json_text(written if value in (inf, -inf) else value)


def _written_identifier(line: bytes) -> str | None:
    """Return the text of the last `id` that is a key of the object itself, not of an object inside it."""
    text, depth, found = line.decode("utf-8", errors="replace"), 0, None
    for token in _TOKEN.finditer(text):
        if token[0] in "{}[]":
            depth += 1 if token[0] in "{[" else -1
        elif depth == 1 and token[0] == '"id"' and (value := _VALUE.match(text, token.end())):
            found = value[1]
    return found
