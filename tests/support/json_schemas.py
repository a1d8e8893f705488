"""The published schemas of JSON reports, closed: a key that the schema does not have fails a test too."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import fastjsonschema

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
_ALONE = {"CheckRecord": "check", "DifferenceRecord": "diff"}
"""Reports that also have a schema of their own."""


def checked_report(text: str) -> Any:
    """Read the JSON of any command with a published schema, which it must follow: one report, or a list of explained engines."""
    report = json.loads(text)
    for each in report if isinstance(report, list) else [report]:
        name = _record_of(each)
        _validator("reports", name)(each)
        if name in _ALONE:
            _validator(_ALONE[name])(each)
    return report


def _record_of(report: dict[str, Any]) -> str:
    """Return the name of the record that a report is, by a key that no other one has."""
    of_key = {
        "documents": "CheckRecord", "engines": "DifferenceRecord", "candidates": "SizeRecord", "cells": "SweepRecord",
        "platform": "ExplainRecord", "decides": "RequestAnswer", "answers": "WhyReport",
    }  # fmt: skip
    return next((record for key, record in of_key.items() if key in report), "FailedAnswer")


@cache
def _validator(schema_name: str, record: str = "") -> Callable[[Any], Any]:
    schema = json.loads((REFERENCE / f"{schema_name}.schema.json").read_text(encoding="utf-8"))
    for each in schema["$defs"].values():
        if "properties" in each:
            each["additionalProperties"] = False
    if record:
        schema = {"$ref": f"#/$defs/{record}", "$defs": schema["$defs"]}
    compiled: Callable[[Any], Any] = fastjsonschema.compile(schema)
    return compiled
