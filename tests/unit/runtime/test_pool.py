"""Worker processes: what a task may take, whose turn it is, and what becomes of a worker that is stopped, lost or grown."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate.budget.answers.answer import plan
from kvgate.budget.model.shape import ModelShape
from kvgate.budget.observed.calibration import Calibration, CalibrationScope
from kvgate.budget.observed.starts import ObservedStart
from kvgate.calibration.observed import start_of_bytes
from kvgate.runtime.pool import Pool
from kvgate.runtime.worker import Limits, OutOfTime, TaskFailed, TurnedAway, WorkerLost
from support.builders import new_request
from support.waiting import turns, until
from support.worker_tasks import (
    broken,
    busy,
    for_ever,
    grown,
    hungry,
    killed,
    numbers,
    process_id,
    same,
    shape_of,
    standing_still,
    waiting_for,
)

pytestmark = pytest.mark.slow

LIMITS = Limits(workers=2, budget_seconds=10.0)


@contextlib.asynccontextmanager
async def pool_of(**changes: Any) -> AsyncIterator[Pool]:
    async with asyncio.timeout(60), Pool(replace(LIMITS, **changes), by_content=(ModelShape,)) as pool:
        yield pool


async def test_the_last_result_is_the_answer() -> None:
    async with pool_of() as pool:
        outcome = await pool.run("a", numbers, 4)
        assert (outcome.value, outcome.is_final) == (3, True)
        assert (await pool.run("a", process_id)).value in pool.process_ids
        assert os.getpid() not in pool.process_ids


@pytest.mark.parametrize("results", [1, 2])
async def test_the_last_result_stands_when_the_time_is_over_and_the_worker_is_replaced(results: int) -> None:
    async with pool_of(budget_seconds=1.5) as pool:
        before = set(pool.process_ids)
        outcome = await pool.run("a", for_ever, results)
        assert (outcome.value, outcome.is_final, outcome.is_lost) == (f"result {results - 1}", False, False)
        await until(lambda: len(pool.process_ids) == 2 and len(before & set(pool.process_ids)) == 1)
        assert (await pool.run("a", numbers, 2)).value == 1


async def test_without_a_result_in_time_there_is_no_answer() -> None:
    async with pool_of(budget_seconds=0.2) as pool:
        with pytest.raises(OutOfTime, match=r"longer than 0\.2 s of processor time"):
            await pool.run("a", for_ever, 0)


async def test_a_worker_that_gets_no_processor_is_not_ended_for_that(tmp_path: Path) -> None:
    """A busy machine, or one that was suspended, looks like a process that is stopped for a while: the task goes on after it."""
    gate = tmp_path / "gate"
    async with pool_of(workers=1, budget_seconds=0.3) as pool:
        (before,) = pool.process_ids
        task = asyncio.create_task(pool.run("a", waiting_for, str(gate)))
        await until(lambda: pool._workers.tenant("a").held == 1)
        os.kill(before, signal.SIGSTOP)
        await asyncio.sleep(1.0)  # time is the subject: three times what it may use
        assert not task.done()
        os.kill(before, signal.SIGCONT)
        gate.touch()
        outcome = await task
        assert (outcome.value, outcome.is_final, outcome.is_starved) == ("done", True, False)
        assert pool.process_ids == (before,)


@pytest.mark.parametrize("results", [0, 1])
async def test_the_wall_time_ends_a_worker_that_stands_still_and_blames_no_input(results: int) -> None:
    async with pool_of(workers=1, wall_seconds=0.4) as pool:
        before = pool.process_ids
        if results:
            outcome = await pool.run("a", standing_still, results)
            assert (outcome.value, outcome.is_final, outcome.is_starved) == ("result 0", False, True)
        else:
            with pytest.raises(TurnedAway, match=r"too busy for it for 0\.4 s"):
                await pool.run("a", standing_still, results)
        await until(lambda: pool.process_ids not in ((), before))
        assert (await pool.run("a", numbers, 1)).value == 0


async def test_the_time_for_which_a_caller_waited_counts_in_its_wall_time(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with pool_of(workers=1, wall_seconds=20.0) as pool:
        first = asyncio.create_task(pool.run("a", waiting_for, str(gate)))
        await turns()
        second = asyncio.create_task(pool.run("a", standing_still, 0, wait_seconds=10.0))
        await asyncio.sleep(0.5)  # time is the subject: the second one waits so long
        pool._limits = replace(pool._limits, wall_seconds=1.0)
        gate.touch()
        await first
        with pytest.raises(TurnedAway, match=r"for 0\.[0-5]\d* s"):
            await second


@pytest.mark.parametrize("task", [killed, hungry])
async def test_a_lost_worker_costs_its_own_task_only(task: Any) -> None:
    async with pool_of() as pool:
        with pytest.raises(WorkerLost):
            await pool.run("a", task, 0)
        other = asyncio.create_task(pool.run("b", busy, 0.2))
        outcome = await pool.run("a", task, 1)
        assert (outcome.value, outcome.is_final, outcome.is_lost) == ("result 0", False, True)
        assert (await other).value == "done"
        assert [(await pool.run("a", numbers, 1)).value for _ in range(4)] == [0] * 4


async def test_a_worker_that_has_grown_is_replaced_after_its_answer() -> None:
    async with pool_of(workers=1) as pool:
        first = (await pool.run("a", grown)).value
        second = (await pool.run("a", process_id)).value
        assert first != second


async def test_what_a_task_raises_reaches_the_caller_and_the_worker_goes_on() -> None:
    async with pool_of(workers=1) as pool:
        before = pool.process_ids
        with pytest.raises(TaskFailed, match="ZeroDivisionError: a defect"):
            await pool.run("a", broken)
        assert (await pool.run("a", numbers, 1)).value == 0
        assert pool.process_ids == before


async def test_the_event_loop_turns_while_workers_are_busy() -> None:
    async with pool_of() as pool:
        tasks = [asyncio.create_task(pool.run(tenant, busy, 0.2)) for tenant in "ab"]
        lags = []
        while not all(task.done() for task in tasks):
            started = time.monotonic()
            await asyncio.sleep(0.01)  # time is the subject: how late the loop wakes up
            lags.append(time.monotonic() - started)
        assert len(lags) > 4
        assert sorted(lags)[len(lags) // 2] < 0.1


async def test_one_tenant_never_has_every_worker(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with pool_of() as pool:
        flood = [asyncio.create_task(pool.run("tenant", waiting_for, str(gate))) for _ in range(6)]
        await turns()
        assert (await pool.run("victim", numbers, 1)).value == 0
        assert not any(task.done() for task in flood)
        gate.touch()
        await asyncio.gather(*flood)


async def test_whoever_used_least_is_next_however_many_others_wait(tmp_path: Path) -> None:
    gate, order = tmp_path / "gate", []

    async def ask(pool: Pool, tenant: str) -> None:
        await pool.run(tenant, numbers, 1)
        order.append(tenant)

    async with pool_of(workers=1) as pool, asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.run("blocker", waiting_for, str(gate)))
        await turns()
        for used_seconds, tenant in ((7.0, "second"), (5.0, "first"), (9.0, "third")):
            pool._workers.tenant(tenant).used_seconds = used_seconds
            for _ in range(3):
                tasks.create_task(ask(pool, tenant))
            await turns()
        tasks.create_task(ask(pool, "victim"))
        await turns()
        gate.touch()
    assert order == ["victim", *["first"] * 3, *["second"] * 3, *["third"] * 3]


async def test_time_on_a_worker_counts_and_no_credit_is_saved_up(tmp_path: Path) -> None:
    async with pool_of(workers=1) as pool:
        await pool.run("idle", numbers, 1)
        for _ in range(3):
            await pool.run("busy", busy, 0.03)
        assert pool._workers.tenant("idle").used_seconds >= 0.05


async def test_beyond_its_queue_a_tenant_is_turned_away_at_once_and_others_are_not(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with pool_of(max_waiting=2) as pool:
        flood = [asyncio.create_task(pool.run("tenant", waiting_for, str(gate))) for _ in range(3)]
        await turns()
        with pytest.raises(TurnedAway, match="2 assessments of tenant wait already"):
            await pool.run("tenant", numbers, 1)
        assert (await pool.run("victim", numbers, 1)).value == 0
        gate.touch()
        await asyncio.gather(*flood)


async def test_who_waits_too_long_is_turned_away_and_leaves_no_trace(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with pool_of(workers=1) as pool:
        first = asyncio.create_task(pool.run("a", waiting_for, str(gate)))
        await turns()
        with pytest.raises(TurnedAway, match=r"no worker had time for a within 0\.02 s"):
            await pool.run("a", numbers, 1, wait_seconds=0.02)
        gate.touch()
        await first
        assert (await pool.run("a", numbers, 1)).value == 0


async def test_a_caller_that_gives_up_takes_its_worker_along_and_no_other() -> None:
    async with pool_of() as pool:
        running = asyncio.create_task(pool.run("a", for_ever, 1))
        waiting = asyncio.create_task(pool.run("a", numbers, 1))
        await until(lambda: pool._workers.tenant("a").held == 1 and len(pool._workers.tenant("a").waiting) == 1)
        for task in (running, waiting):
            task.cancel()
        assert await asyncio.gather(running, waiting, return_exceptions=True) != []
        assert [(await pool.run("a", numbers, 1)).value for _ in range(3)] == [0] * 3
        await until(lambda: len(pool.process_ids) == 2)


def a_start(revision: int) -> ObservedStart:
    start = start_of_bytes(plan(new_request()), 20 << 30, source="a test")
    assert start is not None
    return replace(start, revision=revision)


async def test_what_all_know_is_sent_once_and_comes_back_as_the_same_object() -> None:
    starts = tuple(replace(a_start(revision), namespace="a", owner="x") for revision in range(1, 4))
    whole = Calibration(starts=starts, scope=CalibrationScope.NAMESPACE)
    async with pool_of(workers=1) as pool:
        pool.share(whole)
        for known in (whole, whole, whole.as_of(2), whole.as_of(2).seen_from("a", "x"), whole.seen_from("a", "y")):
            assert (await pool.run("a", same, known)).value is known
        newer = Calibration(starts=starts[:1])
        pool.share(newer)
        assert (await pool.run("a", same, newer)).value is newer
        stranger = (await pool.run("a", same, whole.as_of(2).seen_from("a", "x"))).value
        assert isinstance(stranger, Calibration)
        assert (stranger.starts, stranger.scope) == (starts[:2], CalibrationScope.NAMESPACE)
        assert [stranger.state(start) for start in starts] == [whole.as_of(2).state(start) for start in starts]


async def test_equal_shapes_of_many_answers_are_one_object() -> None:
    async with pool_of() as pool:
        answers = [(await pool.run("a", shape_of, "Qwen/Qwen3-8B", number)).value for number in range(4)]
        assert [number for number, _ in answers] == [0, 1, 2, 3]
        assert len({id(shape) for _, shape in answers}) == 1
        assert len(pool._contents) == 1
        del answers
        assert len(pool._contents) == 0


async def test_processes_end_with_their_pool() -> None:
    async with pool_of() as pool:
        ids = pool.process_ids
        waiting = asyncio.create_task(pool.run("a", for_ever, 1))
        await until(lambda: pool._workers.tenant("a").held == 1)
    await asyncio.gather(waiting, return_exceptions=True)
    await until(lambda: not any(is_running(each) for each in ids))


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
