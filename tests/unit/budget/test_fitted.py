"""Fitted constants: they live in one module, every one is used, and each says what it rests on."""

import re
from pathlib import Path

from kvgate.budget.ground import fitted
from kvgate.budget.ground.fitted import Fitted
from kvgate.budget.ground.interval import Interval
from support.tables import table

CONSTANTS = {name: value for name, value in vars(fitted).items() if isinstance(value, Fitted)}
BUDGET = Path(fitted.__file__).parents[1]


def test_every_constant_is_used_through_the_module_so_that_a_benchmark_can_replace_it() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in BUDGET.rglob("*.py"))
    used = set(re.findall(r"fitted\.([A-Z][A-Z0-9_]+)", text))
    assert used == CONSTANTS.keys()


def test_no_other_module_of_the_gpu_ledger_states_a_figure_in_gib() -> None:
    elsewhere = [
        f"{path.name}: {line.strip()}"
        for path in BUDGET.rglob("*.py")
        if path.name not in ("fitted.py", "units.py", "memory.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\bgib\(-?[0-9.]+\)", line) and "memory_bytes" not in line
    ]
    assert not elsewhere


@table("name", CONSTANTS)
def test_a_constant_says_why_it_has_its_value(name: str) -> None:
    constant = CONSTANTS[name]
    assert len(constant.why) > 20
    assert constant.sources <= len(constant.starts)
    assert not (constant.is_guess and constant.starts)


def test_a_share_is_stated_in_thousandths() -> None:
    share = Fitted(interval=Interval(low=-250, expected=0, high=500), unit="thousandths", why="a test of shares")
    assert share.of(8000) == Interval(low=-2000, expected=0, high=4000)
