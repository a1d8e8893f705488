"""One run per key at a time, and no trigger lost."""

import asyncio
from collections import Counter

import pytest

from kvgate.controller.schedule import SingleFlight
from support.waiting import turns


class Runs:
    """Runs that end when the test says so."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.active: Counter[str] = Counter()
        self.most_active = 0
        self.gate = asyncio.Event()

    async def __call__(self, key: str) -> int:
        self.begun[key] += 1
        self.active[key] += 1
        assert self.active[key] == 1, "two runs of one key at a time"
        self.most_active = max(self.most_active, self.active.total())
        await self.gate.wait()
        self.active[key] -= 1
        return self.begun[key]


async def test_triggers_during_a_run_become_one_more_run() -> None:
    runs = Runs()
    flight = SingleFlight(runs, limit=16)
    first = asyncio.create_task(flight("a"))
    await turns(10)
    later = [asyncio.create_task(flight("a")) for _ in range(20)]
    await turns(10)
    assert runs.begun["a"] == 1
    runs.gate.set()
    assert await first == 1
    assert set(await asyncio.gather(*later)) == {2}
    assert runs.begun["a"] == 2


async def test_keys_run_side_by_side_up_to_the_limit() -> None:
    runs = Runs()
    flight = SingleFlight(runs, limit=3)
    tasks = [asyncio.create_task(flight(f"key-{n}")) for n in range(10)]
    await turns(10)
    assert runs.active.total() == 3
    runs.gate.set()
    await asyncio.gather(*tasks)
    assert runs.most_active <= 3
    assert runs.begun.total() == 10


async def test_triggers_that_wait_for_a_place_are_one_run() -> None:
    runs = Runs()
    flight = SingleFlight(runs, limit=1)
    blocker = asyncio.create_task(flight("other"))
    await turns(10)
    waiting = [asyncio.create_task(flight("a")) for _ in range(5)]
    await turns(10)
    runs.gate.set()
    await asyncio.gather(blocker, *waiting)
    assert runs.begun["a"] == 1


async def test_a_failure_reaches_everybody_who_waits_and_the_next_run_begins_anew() -> None:
    outcomes = iter([OSError("down"), 7])

    async def run(_: str) -> int:
        await turns()
        outcome = next(outcomes)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    flight = SingleFlight(run, limit=1)
    failures = await asyncio.gather(flight("a"), flight("a"), return_exceptions=True)
    assert [str(failure) for failure in failures] == ["down", "down"]
    assert await flight("a") == 7


async def test_a_caller_that_gives_up_does_not_stop_the_run_of_the_others() -> None:
    runs = Runs()
    flight = SingleFlight(runs, limit=1)
    impatient, patient = asyncio.create_task(flight("a")), asyncio.create_task(flight("a"))
    await turns(10)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    runs.gate.set()
    assert await patient == 1
