"""The JSON Schemas of reports, from the records that the reports are written from; docstrings below fields become descriptions."""

import ast
import inspect

import msgspec

from kvgate.cli.check.repository_config import Config
from kvgate.cli.reports import records
from kvgate.text.inert import json_text

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(record: type[msgspec.Struct], version: str, title: str) -> str:
    """Return the schema of a report as the text of a file."""
    schema = msgspec.json.schema(record)
    for name, text in _field_descriptions().items():
        struct, _, field = name.partition(".")
        properties = schema["$defs"].get(struct, {}).get("properties", {})
        if field in properties:
            properties[field] = {"description": text, **properties[field]}
    return (
        json_text({"$schema": DIALECT, "title": title, "description": f"Version {version}.", **schema}, indent=2) + "\n"
    )


def _field_descriptions() -> dict[str, str]:
    """Return the docstring below each field of records.py, by `Record.field`; a record has those of its base too."""
    found: dict[str, str] = {}
    for node in ast.parse(inspect.getsource(records)).body:
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
                found[f"{node.name}.{ast.unparse(field.target)}"] = inspect.cleandoc(str(below.value.value))
    return found


def config_schema() -> str:
    """Return the schema of `.kvgate.yaml`, for editors."""
    schema = {"$schema": DIALECT, "title": ".kvgate.yaml", **Config.model_json_schema()}
    return json_text({**schema, "title": ".kvgate.yaml"}, indent=2) + "\n"


def check_schema() -> str:
    return schema_of(records.CheckRecord, records.CHECK_SCHEMA_VERSION, "The report of kvgate check -o json")


def diff_schema() -> str:
    return schema_of(records.DifferenceRecord, records.DIFF_SCHEMA_VERSION, "The report of kvgate diff -o json")
