"""Reads the tables of facts beside the tests: CSV below one comment that says where the figures come from."""

import csv
from pathlib import Path

Row = dict[str, str]


def rows_of(name: str) -> list[Row]:
    """The rows of a table; never an empty one."""
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert rows, name
    return rows
