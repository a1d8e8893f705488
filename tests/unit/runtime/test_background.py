"""No exception ends a loop in the background: each is counted, and logged once until it works again."""

import asyncio
import logging

import pytest

from kvgate.runtime import background
from kvgate.runtime.background import MAX_REMEMBERED, Troubles, repeat


class Unavailable(Exception):
    """As of an API server."""


def failing(*errors: Exception | None) -> tuple[list[int], "asyncio.Event", object]:
    """A step that ends with these in turn, and then is over."""
    calls: list[int] = []
    over = asyncio.Event()

    async def step() -> None:
        calls.append(len(calls))
        if len(calls) > len(errors):
            over.set()
            await asyncio.Event().wait()
        error = errors[len(calls) - 1]
        if error is not None:
            raise error

    return calls, over, step


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the loop would have paused for."""
    found: list[float] = []
    sleep = asyncio.sleep

    async def no_sleep(seconds: float) -> None:
        found.append(seconds)
        await sleep(0)

    monkeypatch.setattr(background.asyncio, "sleep", no_sleep)
    return found


async def run(step: object, over: asyncio.Event, troubles: Troubles, **options: object) -> None:
    task = asyncio.create_task(repeat("resync", step, interval_seconds=30.0, troubles=troubles, **options))  # type: ignore[arg-type]
    await over.wait()
    task.cancel()


@pytest.mark.parametrize(
    "error", [ValueError("x"), RecursionError(), KeyError("k"), UnicodeEncodeError("utf-8", "x", 0, 1, "no")]
)
async def test_no_exception_ends_a_loop_and_its_pauses_grow(error: Exception, pauses: list[float]) -> None:
    counted: list[str] = []
    calls, over, step = failing(*[error] * 7, None, error)
    await run(step, over, Troubles(counted.append))
    assert len(calls) == 10
    assert counted == ["resync"] * 8
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30, 1]


async def test_a_cause_is_logged_once_with_its_traceback_until_it_works_again(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    defect, outage = ValueError("broken"), Unavailable("away")
    _, over, step = failing(defect, defect, outage, outage, None, defect)
    await run(step, over, Troubles(lambda _: None), expected=Unavailable)
    logged = [(record.levelno, record.getMessage(), record.exc_info is not None) for record in caplog.records]
    assert logged == [
        (logging.ERROR, "resync failed: ValueError: broken", True),
        (logging.WARNING, "resync failed: Unavailable: away", False),
        (logging.ERROR, "resync failed: ValueError: broken", True),
    ]


async def test_objects_are_told_apart_and_memory_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    troubles = Troubles(lambda _: None)
    for name in ("a", "b", "a"):
        troubles.note("reconcile", ValueError("x"), about=f"serving/{name}")
    assert len(caplog.records) == 2
    troubles.over("reconcile", about="serving/a")
    for name in ("a", "b"):
        troubles.note("reconcile", ValueError("x"), about=f"serving/{name}")
    assert len(caplog.records) == 3
    for number in range(MAX_REMEMBERED + 10):
        troubles.note("reconcile", ValueError("x"), about=str(number))
    assert len(troubles._logged) == MAX_REMEMBERED


async def test_a_loop_may_begin_with_a_pause_and_ends_when_it_is_cancelled(pauses: list[float]) -> None:
    _, over, step = failing(None)
    task = asyncio.create_task(
        repeat("beat", step, interval_seconds=5.0, troubles=Troubles(lambda _: None), pauses_first=True)  # type: ignore[arg-type]
    )
    await over.wait()
    assert pauses == [5, 5]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
