"""Events: counted when they repeat, and never a flood."""

from typing import Any

import pytest

from kvgate.cluster.client import Kind
from kvgate.cluster.errors import NotFound
from kvgate.cluster.events import EventRecorder, Notice
from support.hostile import TEXTS
from support.manifests import a_document
from support.waiting import Clock


class FakeCluster:
    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.merged: list[dict[str, Any]] = []
        self.expired = False

    async def create(self, kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
        self.created.append(body)
        return body

    async def merge(self, kind: Kind, namespace: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.expired:
            raise NotFound("patch", kind.resource, "expired")
        self.merged.append(body)
        return body


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def recorder(cluster: FakeCluster, clock: Clock) -> EventRecorder:
    return EventRecorder(cluster, instance="test", clock=clock)  # type: ignore[arg-type]


def notice(note: str = "needs 5.62 GiB") -> Notice:
    return Notice(kind="Warning", reason="BudgetExceeded", action="Assess", note=note)


async def test_the_same_event_again_is_counted(recorder: EventRecorder, cluster: FakeCluster) -> None:
    for _ in range(3):
        assert await recorder.record(a_document(), notice())
    assert len(cluster.created) == 1
    assert [body["series"]["count"] for body in cluster.merged] == [2, 3]


async def test_another_note_is_another_event(recorder: EventRecorder, cluster: FakeCluster) -> None:
    await recorder.record(a_document(), notice("a"))
    await recorder.record(a_document(), notice("b"))
    assert [body["note"] for body in cluster.created] == ["a", "b"]


async def test_an_object_may_have_five_at_once_and_then_one_in_ten_seconds(
    recorder: EventRecorder, cluster: FakeCluster, clock: Clock
) -> None:
    assert [await recorder.record(a_document(), notice(str(n))) for n in range(7)] == [True] * 5 + [False] * 2
    other = a_document()
    other["metadata"]["uid"] = "other"
    assert await recorder.record(other, notice())
    clock.now += 10
    assert await recorder.record(a_document(), notice("later"))
    assert not await recorder.record(a_document(), notice("too soon"))
    assert len(cluster.created) == 7


async def test_an_expired_event_is_written_anew(recorder: EventRecorder, cluster: FakeCluster, clock: Clock) -> None:
    await recorder.record(a_document(), notice())
    cluster.expired = True
    await recorder.record(a_document(), notice())
    assert len(cluster.created) == 2
    clock.now += 601
    cluster.expired = False
    await recorder.record(a_document(), notice())
    assert len(cluster.created) == 3


async def test_a_long_note_is_cut_to_what_the_api_server_takes(recorder: EventRecorder, cluster: FakeCluster) -> None:
    await recorder.record(a_document(), notice("x" * 2000))
    assert len(cluster.created[0]["note"].encode()) == 1024


@pytest.mark.parametrize("character", ["é", "→", "🚀", "\ud800"])
async def test_a_note_is_cut_between_characters_and_counted_in_bytes(
    recorder: EventRecorder, cluster: FakeCluster, character: str
) -> None:
    await recorder.record(a_document(), notice(character * 1024))
    note = cluster.created[0]["note"].encode()
    assert 1020 <= len(note) <= 1024


async def test_other_words_of_an_event_are_cut_as_well(cluster: FakeCluster, clock: Clock) -> None:
    recorder = EventRecorder(cluster, instance="é" * 200, clock=clock)  # type: ignore[arg-type]
    await recorder.record(a_document(), Notice(kind="Normal", reason="R" * 200, action="A" * 200, note="n"))
    event = cluster.created[0]
    assert max(len(event[key].encode()) for key in ("reason", "action", "reportingInstance")) <= 128


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_a_note_is_inert(recorder: EventRecorder, cluster: FakeCluster, text: str) -> None:
    await recorder.record(a_document(), notice(text))
    note = cluster.created[0]["note"]
    assert note.isprintable()
    assert not note.lstrip().startswith("::")
    assert len(note.encode()) <= 1024
