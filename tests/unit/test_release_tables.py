"""What a release of vLLM changes stands in a table of releases, and no other module compares with a release of its own."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "operator" / "kvgate"
TABLES = {
    "budget/releases/versions.py": "defaults and accounting of the GPU, and memory of the host",
    "vllm/options.py": "words of a command line",
}
"""Modules that hold a table of releases and look a release up in it."""
_PARTS = (2, 3)


def is_release(node: ast.AST) -> bool:
    """True for a literal such as (0, 12) or (0, 8, 5): two or three numbers, of which the first is the major release of vLLM."""
    if not isinstance(node, ast.Tuple) or len(node.elts) not in _PARTS:
        return False
    numbers = [each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, int)]
    return len(numbers) == len(node.elts) and numbers[0] == 0 and numbers[1] > 0


def compared_releases(tree: ast.Module) -> list[int]:
    """Lines on which something is compared by its order with a release that is written there, or that a constant of the module has."""
    constants = set()
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
            both = (
                zip(targets[0].elts, value.elts, strict=False)
                if _are_tuples(targets[0], value)
                else [(targets[0], value)]
            )
            constants |= {target.id for target, each in both if isinstance(target, ast.Name) and is_release(each)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(
            isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops
        ):
            sides = (node.left, *node.comparators)
            if any(is_release(side) or (isinstance(side, ast.Name) and side.id in constants) for side in sides):
                found.append(node.lineno)
    return found


def _are_tuples(target: ast.AST, value: ast.AST) -> bool:
    return isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)


def test_no_module_compares_with_a_release_of_its_own() -> None:
    compared = {
        path.relative_to(PACKAGE).as_posix(): lines
        for path in sorted(PACKAGE.rglob("*.py"))
        if (lines := compared_releases(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert {path: lines for path, lines in compared.items() if path not in TABLES} == {}
    assert all((PACKAGE / path).exists() for path in TABLES)


def test_such_a_comparison_is_found() -> None:
    for text in (
        "if release < (0, 12): pass",
        "x = parse_patch(version) >= (0, 9, 2)",
        "_SINCE = (0, 12)\nif release >= _SINCE: pass",
        "_A, _B = (0, 12), (0, 20)\nok = (0, 8) <= release < _B",
    ):
        assert compared_releases(ast.parse(text)), text
    for text in ("if capability < (8, 0): pass", "if size == (0, 1): pass", "span = (0, 12)", "if x < (0, 0): pass"):
        assert not compared_releases(ast.parse(text)), text
