"""The published schemas of JSON reports, closed: a key that the schema does not have fails a test too."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import fastjsonschema

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def checked_report(text: str) -> dict[str, Any]:
    """Read the JSON of `kvgate check` or `kvgate diff`, which must follow its published schema."""
    report: dict[str, Any] = json.loads(text)
    _validator("diff" if "engines" in report else "check")(report)
    return report


@cache
def _validator(command: str) -> Callable[[Any], Any]:
    schema = json.loads((REFERENCE / f"{command}.schema.json").read_text(encoding="utf-8"))
    for record in schema["$defs"].values():
        if "properties" in record:
            record["additionalProperties"] = False
    compiled: Callable[[Any], Any] = fastjsonschema.compile(schema)
    return compiled
