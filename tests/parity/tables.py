"""Reads the tables of facts beside the tests: CSV, comments first; an empty cell means that nobody set it."""

import csv
import json
from pathlib import Path
from typing import Any

Row = dict[str, str]

HERE = Path(__file__).parent
VERSION = "0.32.0"
"""The release whose own code computed every figure."""
KINDS = tuple(sorted(path.stem for path in (HERE / "kv_arithmetic").glob("*.csv")))
"""Kinds of attention; each has a table of its own."""

RELEASES = tuple(sorted(path.stem for path in (HERE / "kv_by_release").glob("[0-9]*.csv")))
"""Other releases whose own code was asked (`make kv-oracle`)."""

_NUMBERS = (
    "kv_cache_memory_bytes",
    "max_model_len",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
)
_WORDS = ("model", "gpu", "kv_cache_dtype")
_SETTINGS = (*_WORDS, *_NUMBERS, "enable_prefix_caching", "further")


def rows_of(name: str) -> list[Row]:
    """The rows of a table; never an empty one."""
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert rows, name
    return rows


def arithmetic_of(kind: str) -> dict[str, list[Row]]:
    """The rows of a kind of attention, by model."""
    models: dict[str, list[Row]] = {}
    for row in rows_of(f"kv_arithmetic/{kind}.csv"):
        models.setdefault(row["model"], []).append(row)
    return models


def answers_of(version: str) -> list[Row]:
    """The answers of a release other than VERSION, all on an H100."""
    return [
        {**row, "version": version, "gpu": "NVIDIA H100 80GB HBM3"} for row in rows_of(f"kv_by_release/{version}.csv")
    ]


def request_of(row: Row) -> dict[str, Any]:
    """The setting of a row as a request of the machine contract."""
    values: dict[str, Any] = {key: row[key] for key in _WORDS if row[key]}
    values |= {key: int(row[key]) for key in _NUMBERS if row.get(key)}
    if row["enable_prefix_caching"]:
        values["enable_prefix_caching"] = row["enable_prefix_caching"] == "yes"
    return {**values, **arguments_of(row["further"]), "vllm_version": row.get("version", VERSION)}


def arguments_of(text: str) -> dict[str, Any]:
    """Further vLLM arguments, `name=value` with blanks between."""
    return {key: _value(value) for key, value in (argument.split("=", 1) for argument in text.split())}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def setting_of(row: Row) -> str:
    """What is set, in words: for messages."""
    return " ".join(f"{key}={row[key]}" for key in _SETTINGS if row.get(key))


def weights_request(row: Row) -> dict[str, Any]:
    """The setting of a row of parameter_bytes.csv."""
    sizes = {"tensor_parallel_size": int(row["tensor"]), "pipeline_parallel_size": int(row["pipeline"])}
    quantization = {"quantization": row["quantization"]} if row["quantization"] else {}
    return {"model": row["model"], "gpu": row["gpu"], "vllm_version": VERSION, **sizes, **quantization}
