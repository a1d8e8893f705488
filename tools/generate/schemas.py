"""The JSON Schemas of reports, from the records that the reports are written from; docstrings below fields become descriptions."""

import ast
import inspect
import re
from typing import Any

import msgspec

from kvgate.cli.check.repository_config import Config
from kvgate.cli.reports import answer_records, engine_records, records
from kvgate.cli.why import answer as why_answer
from kvgate.cli.why import record as why_record
from kvgate.judgement import assessment
from kvgate.text.inert import json_text

DIALECT = "https://json-schema.org/draft/2020-12/schema"


REPORTS: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("check", records.CheckRecord),
    ("diff", records.DifferenceRecord),
    ("explain", records.ExplainRecord),
    ("explain --requests", engine_records.RequestAnswer),
    ("explain --requests, a line that is no request", engine_records.FailedAnswer),
    ("size", answer_records.SizeRecord),
    ("sweep", answer_records.SweepRecord),
    ("why", why_record.WhyReport),
)
"""(command, the record that it writes with -o json); `explain` writes a list of them for several engines."""


def schema_of(record: type[msgspec.Struct], title: str) -> str:
    """Return the schema of a report as the text of a file."""
    return _text(title, _described(msgspec.json.schema(record)))


def reports_schema() -> str:
    """Return the one schema of every report: `$defs` has each record, and a report is any of those of the commands."""
    found, defs = msgspec.json.schema_components([record for _, record in REPORTS], ref_template="#/$defs/{name}")
    each = [{"title": f"kvgate {name}", **schema} for (name, _), schema in zip(REPORTS, found, strict=True)]
    several = {"title": "kvgate explain, several engines", "type": "array", "items": found[2]}
    return _text("The reports of kvgate as JSON", _described({"anyOf": [*each, several], "$defs": defs}))


def _text(title: str, schema: dict[str, Any]) -> str:
    head = {"$schema": DIALECT, "title": title, "description": f"Version {engine_records.SCHEMA_VERSION}."}
    return json_text({**head, **schema}, indent=2) + "\n"


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the docstrings below the fields of the records."""
    for name, text in _field_descriptions().items():
        struct, _, field = name.partition(".")
        properties = schema["$defs"].get(struct, {}).get("properties", {})
        if field in properties:
            properties[field] = {"description": text, **properties[field]}
    return schema


def _field_descriptions() -> dict[str, str]:
    """Return the docstring below each field of the records, by `Record.field`; a record has those of its base too."""
    found: dict[str, str] = {}
    modules = (assessment, engine_records, records, answer_records, why_answer, why_record)
    for node in [each for module in modules for each in ast.parse(inspect.getsource(module)).body]:
        if not isinstance(node, ast.ClassDef):
            continue
        for base in node.bases:
            prefix = f"{ast.unparse(base)}."
            found |= {
                f"{node.name}.{name[len(prefix) :]}": text for name, text in found.items() if name.startswith(prefix)
            }
        for field, below in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                text = inspect.cleandoc(str(below.value.value))
                found[f"{node.name}.{ast.unparse(field.target)}"] = re.sub("(?<!`)None", "null", text)
    return found


def config_schema() -> str:
    """Return the schema of `.kvgate.yaml`, for editors."""
    schema = {"$schema": DIALECT, "title": ".kvgate.yaml", **Config.model_json_schema()}
    return json_text({**schema, "title": ".kvgate.yaml"}, indent=2) + "\n"


def check_schema() -> str:
    return schema_of(records.CheckRecord, "The report of kvgate check -o json")


def diff_schema() -> str:
    return schema_of(records.DifferenceRecord, "The report of kvgate diff -o json")
