"""The machine contract of `kvgate explain --requests`: one JSON object in, one out, in order, no line lost."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvgate.budget.calibration import NOTHING_OBSERVED, Calibration
from kvgate.cli.answers import Json, failed, to_json
from kvgate.what_if import BadRequest, assess_request

_IDENTIFIER = re.compile(r'"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)')


def answers(lines: Iterable[bytes], calibration: Calibration = NOTHING_OBSERVED) -> Iterator[str]:
    """One JSON text per line, in order; a blank line is a bad line."""
    for line in lines:
        yield json.dumps(_answer_line(line, calibration), separators=(",", ":"))


def _answer_line(line: bytes, calibration: Calibration) -> Json:
    identifier: object = None
    try:
        values = _parsed(line)
        identifier = values.get("id")
        return to_json(identifier, assess_request(values, calibration=calibration))
    except BadRequest as error:
        return failed(identifier if identifier is not None else _identifier(line), str(error))
    except Exception as error:  # noqa: BLE001 - a defect of ours must cost one answer, not all that follow
        return failed(identifier, f"kvgate failed: {type(error).__name__}: {error}; please report this line")


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        values = json.loads(line.decode("utf-8-sig"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the line is not JSON: {error}; write one JSON object per line") from None
    if not isinstance(values, dict):
        raise BadRequest(f"the line is JSON of type {type(values).__name__}; write one JSON object per line")
    return values


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def _identifier(line: bytes) -> object:
    """The id of a line that is broken elsewhere."""
    match = _IDENTIFIER.search(line.decode("utf-8", errors="replace"))
    return json.loads(match[1]) if match else None
