"""SECURITY.md promises nothing that no test holds."""

import ast
import re
from pathlib import Path

from support.tables import table

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "held by |" not in line]


@table(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_every_test_that_the_page_names_exists(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_promise_names_its_test() -> None:
    assert ROWS
    assert [row for row in ROWS if "::test_" not in row] == []
