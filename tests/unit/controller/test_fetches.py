"""The order of fetches: fair between namespaces, within the pace that the hub allows, and one fetch for one name."""

from collections.abc import Iterator
from typing import Any

import pytest

from kvgate.api.conditions import Reason
from kvgate.checkpoint.not_fetched import NotFetched
from kvgate.checkpoint.not_fetched import Reason as FetchReason
from kvgate.checkpoint.published import ModelName, Published
from kvgate.checkpoint.stored import MAX_ENTRY_BYTES, unpacked
from kvgate.controller import fetches
from kvgate.controller.fetches import WORKERS, Failure, Fetched, FetchLimits, FetchQueue, fetch_in_worker, fetched
from kvgate.fetching import fetch as fetching
from kvgate.runtime.worker import Outcome, OutOfTime, TurnedAway, WorkerLost
from support.builders import new_llama_config

LIMITS = FetchLimits(per_minute=60, burst=3, at_once=3, at_once_per_namespace=2, waiting_per_namespace=100)


def names(namespace: str, number: int) -> list[ModelName]:
    return [ModelName(f"{namespace}/model-{index}") for index in range(number)]


def asking(queue: FetchQueue, **numbers: int) -> None:
    for namespace, number in numbers.items():
        for name in names(namespace, number):
            queue.ask(namespace, name)


def begun(queue: FetchQueue, now: float) -> Iterator[tuple[str, ModelName]]:
    while (turn := queue.next(now)) is not None:
        yield turn


def test_the_namespace_that_came_later_does_not_wait_for_the_names_of_the_first() -> None:
    queue = FetchQueue(LIMITS)
    asking(queue, greedy=100)
    assert [namespace for namespace, _ in begun(queue, 0)] == ["greedy", "greedy"], "one worker stays free"
    asking(queue, victim=1)
    assert queue.next(0) == ("victim", ModelName("victim/model-0"))


def test_no_more_names_are_fetched_at_once_than_the_limit() -> None:
    queue = FetchQueue(LIMITS)
    asking(queue, a=2, b=2, c=2)
    running = [name for _, name in begun(queue, 0)]
    assert len(running) == LIMITS.at_once
    assert queue.wait_seconds(9) is None, "only the end of a fetch makes room"
    queue.done(running[0])
    assert [namespace for namespace, _ in begun(queue, 9)] == ["a"]
    assert len(names("a", 2)) + queue.waiting == 2 + 5


def test_turns_go_round_between_namespaces() -> None:
    queue, order, now = FetchQueue(LIMITS), [], 0.0
    asking(queue, a=6, b=6, c=2)
    while queue.waiting:
        for namespace, name in list(begun(queue, now)):
            order.append(namespace)
            queue.done(name)
        now += 1
    assert sorted(order[:3]) == ["a", "b", "c"]
    assert sorted(order[3:6]) == ["a", "b", "c"]
    assert order.count("a") == order.count("b") == 6


def test_no_more_names_are_fetched_in_a_minute_than_the_limit_after_a_burst() -> None:
    queue, times = FetchQueue(LIMITS), []
    asking(queue, a=100)
    for second in range(61):
        while (turn := queue.next(float(second))) is not None:
            times.append(second)
            queue.done(turn[1])
    assert times[:3] == [0, 0, 0]
    assert len(times) == 60 + 3
    assert queue.wait_seconds(60.0) == pytest.approx(1.0)


def test_a_name_that_two_namespaces_ask_for_is_fetched_once() -> None:
    queue, name = FetchQueue(LIMITS), ModelName("meta/model")
    assert queue.ask("a", name)
    assert queue.ask("b", name)
    assert queue.next(0) == ("a", name)
    assert queue.next(0) is None
    queue.done(name)
    assert queue.next(10) is None
    assert queue.waiting == 0


def test_a_name_comes_again_when_it_is_due_and_not_before() -> None:
    queue, name = FetchQueue(LIMITS), ModelName("meta/model")
    queue.ask("a", name)
    assert queue.next(0)
    queue.done(name, again_at=30.0)
    assert queue.next(29.0) is None
    assert queue.wait_seconds(29.0) == pytest.approx(1.0)
    assert queue.next(30.0) == ("a", name)


def test_too_many_names_of_one_namespace_are_turned_away_and_another_has_room() -> None:
    queue = FetchQueue(LIMITS)
    assert all(queue.ask("greedy", name) for name in names("greedy", 100))
    assert not queue.ask("greedy", ModelName("one/more"))
    assert queue.ask("other", ModelName("one/more"))


def test_what_nobody_needs_any_more_is_not_fetched() -> None:
    queue, name = FetchQueue(LIMITS), ModelName("meta/model")
    queue.ask("a", name)
    queue.withdraw("a", name)
    queue.withdraw("b", name)
    assert queue.next(0) is None
    assert queue.wait_seconds(0) is None


def test_a_name_that_is_withdrawn_during_its_fetch_ends_as_any_other() -> None:
    queue, name = FetchQueue(LIMITS), ModelName("meta/model")
    queue.ask("a", name)
    assert queue.next(0)
    queue.withdraw("a", name)
    queue.done(name)
    assert queue.waiting == 0


def test_a_pause_holds_back_all() -> None:
    queue = FetchQueue(LIMITS)
    asking(queue, a=1)
    queue.pause(20.0)
    assert queue.next(19.0) is None
    assert queue.wait_seconds(19.0) == pytest.approx(1.0)
    assert queue.next(20.0)


def answering(monkeypatch: pytest.MonkeyPatch, answer: Published | NotFetched) -> None:
    monkeypatch.setattr(fetching, "fetch", lambda name, revision, *, limits: answer)


def test_a_fetched_model_is_stored_under_the_name_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, Published(name="New/Name", commit="0a1b", source="hub", config=new_llama_config()))
    (found,) = fetched("old/name", "v1")
    assert isinstance(found, Fetched)
    published = unpacked(found.entry)
    assert (published.name, published.revision, found.commit, found.source) == ("old/name", "v1", "0a1b", "hub")


@pytest.mark.parametrize("reason", FetchReason)
def test_every_reason_of_a_fetch_is_a_reason_of_the_condition(
    monkeypatch: pytest.MonkeyPatch, reason: FetchReason
) -> None:
    answering(monkeypatch, NotFetched(name="a/b", reason=reason, message="a/b: no"))
    assert [each.reason for each in fetched("a/b", "")] == [Reason(reason.value)]  # type: ignore[union-attr]


def test_a_model_that_there_is_no_room_for_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = {str(number): hash(str(number)) for number in range(MAX_ENTRY_BYTES // 8)}
    answering(monkeypatch, Published(name="a/b", config=noise))
    (found,) = fetched("a/b", "")
    assert isinstance(found, Failure)
    assert (found.reason, found.is_temporary) == (Reason.TOO_LARGE, False)


def test_a_worker_without_room_for_a_thread_has_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_: object, **__: object) -> Published:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(fetching, "fetch", fetch)
    with pytest.raises(MemoryError):
        list(fetched("a/b", ""))


class OnePool:
    """Answers one task."""

    def __init__(self, outcome: Outcome[Any] | Exception) -> None:
        self._outcome = outcome

    async def run(self, *_: object) -> Outcome[Any]:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


@pytest.mark.parametrize(
    ("outcome", "reason", "is_temporary"),
    [
        (OutOfTime("it took longer than 30 s"), Reason.TIME_OVER, True),
        (TurnedAway("8 wait already"), Reason.TIME_OVER, True),
        (WorkerLost("no memory"), Reason.TOO_LARGE, False),
    ],
)
async def test_what_ends_a_worker_is_told(outcome: Exception, reason: Reason, is_temporary: bool) -> None:  # noqa: FBT001 - a case
    answer = await fetch_in_worker(OnePool(outcome), "a", ModelName("a/b"))  # type: ignore[arg-type]
    assert isinstance(answer, Failure)
    assert (answer.reason, answer.is_temporary) == (reason, is_temporary)
    assert "a/b" in answer.message


def test_a_fetch_reports_its_own_limits_before_its_worker_is_ended() -> None:
    assert fetches.BOUNDS.max_seconds < WORKERS.wall_seconds
    assert fetches.BOUNDS.max_bytes < WORKERS.memory_bytes
    default = FetchLimits()
    assert default.at_once_per_namespace < default.at_once <= WORKERS.workers
