"""Slots are dealt out between tenants; nobody's backlog holds up another tenant."""

import asyncio

import pytest

from kvgate.runtime.fair_slots import FairSlots
from support.waiting import turns


class Holders:
    """Tasks that hold a slot until the test ends them."""

    def __init__(self, slots: FairSlots) -> None:
        self.slots, self.order = slots, list[str]()
        self.gates: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, name: str) -> None:
        self.gates[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._hold(name))

    async def end(self, name: str) -> None:
        self.gates[name].set()
        await self.tasks[name]
        await turns(5)

    async def _hold(self, name: str) -> None:
        async with self.slots.slot(name[0]):
            self.order.append(name)
            await self.gates[name].wait()


async def test_a_backlog_does_not_hold_up_another_tenants_first() -> None:
    holders = Holders(FairSlots(4))
    for number in range(10):
        holders.ask(f"a{number}")
    await turns(5)
    assert holders.order == ["a0", "a1", "a2"], "one tenant holds three quarters at most"
    holders.ask("b0")
    await turns(5)
    assert holders.order[3:] == ["b0"]
    holders.ask("b1")
    await holders.end("a0")
    assert holders.order[4:] == ["b1"], "the tenant that holds fewest is next"
    for name in ["a1", "a2", "b0", "b1"]:
        await holders.end(name)
    for name in holders.gates:
        holders.gates[name].set()
    await asyncio.gather(*holders.tasks.values())
    assert sorted(holders.order) == sorted(holders.tasks)


async def test_equal_tenants_take_turns() -> None:
    holders = Holders(FairSlots(1))
    for name in ["a0", "a1", "a2", "b0", "b1", "c0"]:
        holders.ask(name)
    await turns(5)
    for name in ["a0", "a1", "b0", "c0", "a2", "b1"]:
        await holders.end(name)
    assert holders.order == ["a0", "a1", "b0", "c0", "a2", "b1"]


async def test_whoever_stops_waiting_takes_no_slot() -> None:
    slots = FairSlots(1)
    await slots.acquire("a")
    waiting, next_one = asyncio.create_task(slots.acquire("b")), asyncio.create_task(slots.acquire("c"))
    await turns(5)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    slots.release("a")
    await next_one


async def test_a_slot_that_comes_with_the_cancellation_goes_to_the_next() -> None:
    slots = FairSlots(1)
    await slots.acquire("a")
    waiting, next_one = asyncio.create_task(slots.acquire("b")), asyncio.create_task(slots.acquire("c"))
    await turns(5)
    slots.release("a")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await next_one
