"""A sweep for programs: one row per pair as CSV, everything as JSON."""

import csv
import io
from collections.abc import Iterator
from typing import Any

from kvgate.cli.assessment_json import Json, finding_json
from kvgate.planning.sweep import Cell, Sweep
from kvgate.planning.sweep_axes import label
from kvgate.text.inert import inert_json, inert_values

_ENDS = ("low", "expected", "high")


def csv_report(swept: Sweep) -> str:
    """The two values, the verdict, the refusal, and the bytes of one GPU."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [swept.x.name, swept.y.name, "verdict", "refusal", "demand_bytes", *(f"available_{end}_bytes" for end in _ENDS)]
    )
    writer.writerows(map(inert_values, _csv_rows(swept)))
    return text.getvalue()


def _csv_rows(swept: Sweep) -> Iterator[list[Any]]:
    for y, row in zip(swept.y.labels, swept.rows, strict=True):
        for x, cell in zip(swept.x.labels, row, strict=True):
            ends = [getattr(cell.available, end) for end in _ENDS] if cell.available else ["", "", ""]
            yield [
                x,
                y,
                cell.verdict.value,
                cell.refusal,
                "" if cell.demand_bytes is None else cell.demand_bytes,
                *ends,
            ]


def json_report(swept: Sweep) -> str:
    """Axes, cells row by row, the exact edge of each column, and the chosen point."""
    request = swept.request
    answer = {
        "model": request.shape.name,
        "gpu": request.accelerator.name,
        "vllm_version": request.vllm_version,
        "guarantee": swept.guarantee.value,
        "x": {"name": swept.x.name, "values": [_plain(value) for value in swept.x.values]},
        "y": {"name": swept.y.name, "values": [_plain(value) for value in swept.y.values]},
        "cells": [[_cell(cell) for cell in row] for row in swept.rows],
        "edges": None if swept.edges is None else [{"fits": e.fits, "may_fit": e.may_fit} for e in swept.edges],
        "at": None
        if swept.at is None
        else {"x": swept.at[0], "y": swept.at[1], "verdict": swept.rows[swept.at[1]][swept.at[0]].verdict},
        "findings": [finding_json(finding) for finding in swept.findings],
    }
    return inert_json(answer, indent=1)


def _plain(value: Any) -> Any:
    """Fractions as the decimal that was written."""
    return value if isinstance(value, int | str) else float(label(value))


def _cell(cell: Cell) -> Json:
    available = cell.available
    return {
        "verdict": cell.verdict.value,
        "refusal": cell.refusal or None,
        "demand_bytes": cell.demand_bytes,
        "available_kv_cache_bytes": {end: getattr(available, end) for end in _ENDS} if available else None,
    }
