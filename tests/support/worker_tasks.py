"""Tasks for worker processes, which find them by the name of this module."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from kvgate.budget.model.shape import ModelShape
from support.builders import catalogue_shape


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


def process_id() -> Iterator[int]:
    yield os.getpid()


def for_ever(results: int) -> Iterator[str]:
    """So many results, then none and no end."""
    for number in range(results):
        yield f"result {number}"
    while True:
        sum(range(10_000))


def standing_still(results: int) -> Iterator[str]:
    """So many results, then no end, without use of a processor."""
    yield from (f"result {number}" for number in range(results))
    while True:
        signal.pause()


def busy(seconds: float) -> Iterator[str]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
    yield "done"


def waiting_for(path: str) -> Iterator[str]:
    """Ends once there is such a file: a test says when."""
    while not Path(path).exists():
        time.sleep(0.005)
    yield "done"


def killed(results: int) -> Iterator[str]:
    yield from (f"result {number}" for number in range(results))
    os.kill(os.getpid(), signal.SIGKILL)


def hungry(results: int) -> Iterator[str]:
    yield from (f"result {number}" for number in range(results))
    held = []
    while True:
        held.append(bytes(64 << 20))


def grown() -> Iterator[int]:
    kept.append(bytearray(os.urandom(1 << 20) * 80))
    yield os.getpid()


kept: list[bytearray] = []


def broken() -> Iterator[str]:
    yield "first"
    raise ZeroDivisionError("a defect")


def same(value: object) -> Iterator[object]:
    yield value


def shape_of(name: str, number: int) -> Iterator[tuple[int, ModelShape]]:
    yield number, catalogue_shape(name)
