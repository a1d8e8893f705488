"""Fitted constants are what the logs of benchmarks/accuracy give by its one rule: `make constants` writes them."""

import pytest

from accuracy.constants import moved, undeclared
from accuracy.derivation import Derived, derive
from accuracy.readings import constants, readings
from accuracy.starts import read_starts


@pytest.fixture(scope="module")
def found() -> dict[str, Derived]:
    return derive(readings(read_starts()))


@pytest.mark.slow
def test_every_constant_is_what_the_logs_give(found: dict[str, Derived]) -> None:
    assert not moved(found)


@pytest.mark.slow
def test_a_constant_that_no_log_gives_says_that_it_is_a_guess(found: dict[str, Derived]) -> None:
    assert not undeclared(found)


def test_a_constant_names_each_of_its_starts_so_that_it_can_be_found() -> None:
    names = [start.id for start in read_starts()]
    stated = {name for constant in constants().values() for name in constant.starts}
    assert stated
    assert not [name for name in stated if sum(start.startswith(name) for start in names) != 1]
