"""What is tried again, when, and what is not."""

import asyncio
from collections.abc import Callable

import pytest

from kvgate.cluster.errors import ApiError, Conflict, Forbidden, Unavailable
from kvgate.controller import schedule
from kvgate.controller.decision import Awaited
from kvgate.controller.schedule import WorkQueue
from kvgate.runtime.background import Troubles
from support.waiting import until

KEY = ("serving", "qwen")
CONFIG = Awaited(uid="uid-1", generation=1, message="ConfigMap x does not exist")
Run = Callable[[tuple[str, str]], "asyncio.Future[Awaited | None]"]


def ending(*results: Exception | Awaited | None) -> tuple[Run, list[tuple[str, str]]]:
    """A run that ends with these in turn and then with nothing more to do, and the keys that it was called with."""
    calls: list[tuple[str, str]] = []

    async def run(key: tuple[str, str]) -> Awaited | None:
        calls.append(key)
        result = results[len(calls) - 1] if len(calls) <= len(results) else None
        if isinstance(result, Exception):
            raise result
        return result

    return run, calls  # type: ignore[return-value]


def new(run: Run, *, resync_seconds: float = 300.0) -> WorkQueue:
    return WorkQueue(run, resync_seconds=resync_seconds, troubles=Troubles(lambda _: None))


def error(kind: type[ApiError]) -> ApiError:
    return kind("patch", "deployments.apps", "no")


def planned(queue: WorkQueue) -> float | None:
    """Seconds until the next run; None where there is none."""
    timer = queue._timers.get(KEY)
    return None if timer is None else timer.when() - asyncio.get_running_loop().time()


def take(queue: WorkQueue) -> float:
    """The same, and the plan is dropped."""
    seconds = planned(queue)
    assert seconds is not None
    queue._timers.pop(KEY).cancel()
    return seconds


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_jittered", lambda seconds: seconds)


@pytest.mark.parametrize("kind", [Conflict, Unavailable])
async def test_a_transient_error_is_tried_again_after_growing_pauses(
    kind: type[ApiError], caplog: pytest.LogCaptureFixture
) -> None:
    run, _ = ending(*[error(kind)] * 12)
    queue, pauses = new(run), []
    for _ in range(12):
        await queue.reconcile(KEY)
        pauses.append(take(queue))
    assert 0.7 <= pauses[0] <= 1.2
    assert 1.5 <= pauses[1] <= 2.4
    assert 47 <= pauses[-1] <= 72
    about = {"namespace": "serving", "name": "qwen", "verb": "patch", "resource": "deployments.apps"}
    assert [record.__dict__["fields"] for record in caplog.records] == [about] * 12


async def test_a_success_ends_the_growth_of_the_pauses() -> None:
    run, calls = ending(error(Conflict))
    queue = new(run)
    await queue.reconcile(KEY)
    take(queue)
    await queue.reconcile(KEY)
    assert calls == [KEY, KEY]
    assert planned(queue) is None
    assert queue._pause_seconds(KEY) < 1.3


async def test_what_is_forbidden_is_logged_with_verb_and_resource_and_tried_again_slowly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schedule, "FORBIDDEN_RETRY_SECONDS", 0.01)
    run, calls = ending(error(Forbidden))
    queue = new(run)
    await queue.reconcile(KEY)
    assert caplog.records[0].fields["verb"] == "patch"  # type: ignore[attr-defined]
    assert caplog.records[0].fields["resource"] == "deployments.apps"  # type: ignore[attr-defined]
    await until(lambda: calls == [KEY, KEY])
    queue.close()


async def test_an_enqueued_key_is_tried_until_it_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "FIRST_RETRY_SECONDS", 0.001)
    run, calls = ending(error(Unavailable), error(Conflict))
    queue = new(run)
    queue.enqueue(KEY)
    await until(lambda: calls == [KEY] * 3)
    queue.close()


async def test_a_defect_is_logged_with_its_traceback_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    queue = new(ending(ZeroDivisionError("oops"))[0])
    await queue.reconcile(KEY)
    assert caplog.records[0].exc_info
    assert caplog.records[0].getMessage() == "reconcile of serving/qwen failed: ZeroDivisionError: oops"
    assert take(queue) < 1.3


async def test_many_triggers_at_once_are_one_run() -> None:
    run, calls = ending()
    queue = new(run)
    for _ in range(50):
        queue.enqueue(KEY)
    await until(lambda: not queue._timers and not queue._tasks)
    assert calls == [KEY]
    queue.close()


async def test_the_depth_is_that_of_the_keys_whose_run_is_due_and_has_not_begun() -> None:
    begun, gate = [], asyncio.Event()

    async def run(key: tuple[str, str]) -> None:
        begun.append(key)
        await gate.wait()

    queue = new(run)
    waiting = 3
    for number in range(schedule.MAX_CONCURRENT + waiting):
        queue.enqueue((f"team-{number}", "chat"))
    queue.enqueue(("later", "chat"), delay_seconds=100)
    await until(lambda: len(begun) == schedule.MAX_CONCURRENT)
    assert queue.depth() == waiting
    gate.set()
    await until(lambda: len(begun) == schedule.MAX_CONCURRENT + waiting)
    assert queue.depth() == 0
    queue.close()


@pytest.mark.parametrize("delays", [(100.0, 5.0), (5.0, 100.0)])
async def test_of_two_moments_the_earlier_one_counts(delays: tuple[float, float]) -> None:
    queue = new(ending()[0])
    for delay_seconds in delays:
        queue.enqueue(KEY, delay_seconds=delay_seconds)
    assert 4 < take(queue) <= 5


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    ("waited_seconds", "resync_seconds", "pause"),
    [(0, 300, 15), (14, 300, 15), (30, 300, 30), (120, 300, 120), (3600, 300, 300), (0, 2, 2)],
)
async def test_what_is_awaited_is_looked_for_again_after_as_long_as_it_was_waited_for(
    waited_seconds: float, resync_seconds: float, pause: float
) -> None:
    queue = new(ending(CONFIG, CONFIG)[0], resync_seconds=resync_seconds)
    await queue.reconcile(KEY)
    take(queue)
    awaited, since = queue._waits[KEY]
    queue._waits[KEY] = awaited, since - waited_seconds
    await queue.reconcile(KEY)
    assert take(queue) == pytest.approx(pause, abs=0.5)


@pytest.mark.usefixtures("exact")
async def test_many_runs_in_a_row_do_not_make_the_pause_longer() -> None:
    queue = new(ending(*[CONFIG] * 20)[0])
    for _ in range(20):
        await queue.reconcile(KEY)
    assert take(queue) == pytest.approx(15, abs=0.5)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("then", [None, Awaited(uid="uid-1", generation=2, message=CONFIG.message)])
async def test_another_wait_begins_anew(then: Awaited | None) -> None:
    queue = new(ending(CONFIG, then, CONFIG)[0])
    await queue.reconcile(KEY)
    queue._waits[KEY] = CONFIG, queue._waits[KEY][1] - 200
    take(queue)
    await queue.reconcile(KEY)
    if then is None:
        assert planned(queue) is None
        assert not queue._waits
        await queue.reconcile(KEY)
    assert take(queue) == pytest.approx(15, abs=0.5)


async def test_what_begins_later_leaves_places_for_what_changed() -> None:
    running: list[tuple[str, str]] = []
    go_on = asyncio.Event()

    async def run(key: tuple[str, str]) -> None:
        running.append(key)
        await go_on.wait()

    queue = new(run)  # type: ignore[arg-type]
    unchanged = [("serving", f"n{number}") for number in range(20)]
    for key in unchanged:
        queue.begin_later(key)
    await asyncio.sleep(0.01)
    assert running == [], "the pods are not known yet"
    queue.awaited_by_later.set()
    await until(lambda: len(running) == schedule.MAX_LATER)
    queue.begin(KEY)
    await until(lambda: KEY in running)
    assert queue.depth() == len(unchanged) - schedule.MAX_LATER
    go_on.set()
    await until(lambda: len(running) == len(unchanged) + 1)
    assert queue.depth() == 0
