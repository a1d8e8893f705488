"""What is tried again, when, and what is not."""

import asyncio
from collections.abc import Callable

import pytest

from kvgate.cluster.errors import ApiError, Conflict, Forbidden, Unavailable
from kvgate.controller import work_queue
from kvgate.controller.work_queue import RetryLater, WorkQueue

KEY = ("serving", "qwen")


def failing(*errors: Exception) -> tuple[Callable[[tuple[str, str]], "asyncio.Future[None]"], list[tuple[str, str]]]:
    """A run that raises these in turn and then succeeds, and the keys that it was called with."""
    calls: list[tuple[str, str]] = []

    async def run(key: tuple[str, str]) -> None:
        calls.append(key)
        if len(calls) <= len(errors):
            raise errors[len(calls) - 1]

    return run, calls  # type: ignore[return-value]


def error(kind: type[ApiError]) -> ApiError:
    return kind("patch", "deployments.apps", "no")


@pytest.mark.parametrize("kind", [Conflict, Unavailable])
async def test_a_transient_error_asks_for_another_try_after_growing_pauses(kind: type[ApiError]) -> None:
    run, _ = failing(*[error(kind)] * 12)
    queue, pauses = WorkQueue(run), []
    for _ in range(12):
        with pytest.raises(RetryLater) as later:
            await queue.reconcile(KEY)
        pauses.append(later.value.delay_seconds)
    assert 0.8 <= pauses[0] <= 1.2
    assert 1.6 <= pauses[1] <= 2.4
    assert 240 <= pauses[-1] <= 360
    await queue.reconcile(KEY)  # succeeds, and the next failure begins from the start


async def test_a_success_ends_the_growth_of_the_pauses() -> None:
    run, calls = failing(error(Conflict))
    queue = WorkQueue(run)
    with pytest.raises(RetryLater):
        await queue.reconcile(KEY)
    await queue.reconcile(KEY)
    assert calls == [KEY, KEY]
    assert queue._pause_seconds(KEY) < 1.3


async def test_what_is_forbidden_is_logged_with_verb_and_resource_and_tried_again_slowly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(work_queue, "FORBIDDEN_RETRY_SECONDS", 0.01)
    run, calls = failing(error(Forbidden))
    queue = WorkQueue(run)
    await queue.reconcile(KEY)
    assert caplog.records[0].fields["verb"] == "patch"  # type: ignore[attr-defined]
    assert caplog.records[0].fields["resource"] == "deployments.apps"  # type: ignore[attr-defined]
    await asyncio.sleep(0.1)
    assert calls == [KEY, KEY]
    queue.close()


async def test_an_enqueued_key_is_tried_until_it_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "FIRST_RETRY_SECONDS", 0.001)
    run, calls = failing(error(Unavailable), error(Conflict))
    queue = WorkQueue(run)
    queue.enqueue(KEY)
    await asyncio.sleep(0.1)
    assert calls == [KEY] * 3
    queue.close()


async def test_a_defect_is_logged_with_its_traceback_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    run, _ = failing(ZeroDivisionError("oops"))
    with pytest.raises(RetryLater, match="oops"):
        await WorkQueue(run).reconcile(KEY)
    assert caplog.records[0].exc_info


async def test_many_triggers_at_once_are_one_run() -> None:
    run, calls = failing()
    queue = WorkQueue(run)
    for _ in range(50):
        queue.enqueue(KEY)
    await asyncio.sleep(0.05)
    assert calls == [KEY]
    queue.close()
