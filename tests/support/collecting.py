"""Collection of 15,000 tests, and the memory that it leaves, without work that nobody needs."""

import gc
import sys
from collections.abc import Generator

import pytest

sys.dont_write_bytecode = False
"""Where an image of a container sets the variable, each worker would rewrite the asserts of 500 files anew: 9 s of CPU."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing is garbage before the first test, and what was collected lives until the last: leave both to no search for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
