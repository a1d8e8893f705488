"""The names that `kvgate.budget` exports: each one loads, and nothing loads before it is used."""

import subprocess
import sys

import pytest

import kvgate.budget
from support.tables import table


@table("name", kvgate.budget.__all__)
def test_an_exported_name_loads(name: str) -> None:
    assert getattr(kvgate.budget, name) is not None


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = kvgate.budget.nonsense


def test_a_name_loads_its_module_and_no_more() -> None:
    program = (
        "import sys, kvgate.budget; before = [m for m in sys.modules if m.startswith('kvgate.budget.')];"
        "from kvgate.budget import Accelerator; after = [m for m in sys.modules if m.startswith('kvgate.budget.')];"
        "print(before, after)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[] ['kvgate.budget.ground', 'kvgate.budget.ground.hardware']"
