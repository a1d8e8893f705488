"""Every rule stands in the room of the rules, and the catalogue has each of them once."""

import ast
from pathlib import Path

import kvgate
from kvgate.rules.catalogue import RULES

PACKAGE = Path(kvgate.__file__).parent


def _rules_in(file: Path) -> list[str]:
    """Ids of the rules that a file defines, at whatever depth."""
    text = file.read_text(encoding="utf-8")
    if "Rule(" not in text and "_rule(" not in text:
        return []
    calls = (each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Call))
    made = (each for each in calls if isinstance(each.func, ast.Name) and each.func.id in ("Rule", "_rule"))
    return [
        word.value.value
        for each in made
        for word in each.keywords
        if word.arg == "id" and isinstance(word.value, ast.Constant)
    ]


def test_no_other_room_defines_a_rule() -> None:
    elsewhere = {str(file) for file in PACKAGE.rglob("*.py") if file.parent.name != "rules" and _rules_in(file)}
    assert not elsewhere


def test_the_catalogue_has_each_rule_once() -> None:
    defined = [rule for file in (PACKAGE / "rules").glob("*.py") for rule in _rules_in(file)]
    assert len(defined) > 100
    assert sorted(defined) == sorted(RULES)
