"""The ConfigMap of observed starts: people may edit it, and what they broke is never written over."""

import asyncio
from typing import Any

import pytest

from kvgate.api.base import Document
from kvgate.api.conditions import Reason
from kvgate.budget.calibration import ObservedStart
from kvgate.budget.units import gib
from kvgate.calibration import read_records, with_start, write_records
from kvgate.cluster.client import CONFIG_MAPS, Kind
from kvgate.controller.observed import assess_owner
from kvgate.controller.starts import KEY, ObservedStarts, Place
from kvgate.rendering.observation import Crash
from support.manifests import an_owner
from support.starts import a_start

PLACE = Place(namespace="kvgate-system", name="kvgate-calibration")


class FakeCluster:
    """One ConfigMap."""

    def __init__(self, text: str | None = None) -> None:
        self.text = text
        self.writes = 0

    async def find(self, kind: Kind, namespace: str, name: str) -> Document | None:
        assert (kind, namespace, name) == (CONFIG_MAPS, PLACE.namespace, PLACE.name)
        return None if self.text is None else {"data": {KEY: self.text}}

    async def apply(self, kind: Kind, body: Document) -> Document:
        assert kind is CONFIG_MAPS
        self.text = body["data"][KEY]
        self.writes += 1
        return body


def a_crash(available_gib: float | None) -> Crash:
    available = None if available_gib is None else gib(available_gib)
    return Crash(
        pod="a", template_hash="", reason=Reason.KV_CACHE_TOO_SMALL, message="", available_kv_cache_bytes=available
    )


async def learnt(crash: Crash, **vllm: Any) -> tuple[ObservedStart, ...]:
    starts, owner = ObservedStarts(None), an_owner(vllm={"maxNumSeqs": 4, **vllm})
    assessment = assess_owner(owner, "").assessment
    await starts.learn(FakeCluster(), owner, assessment, crash)  # type: ignore[arg-type]
    return starts.calibration.starts


async def added(starts: ObservedStarts, cluster: FakeCluster, start: ObservedStart) -> str:
    return await starts.add(cluster, start)  # type: ignore[arg-type]


async def test_a_start_is_kept_once_and_survives_a_restart() -> None:
    cluster, starts = FakeCluster(), ObservedStarts(PLACE)
    assert await added(starts, cluster, a_start()) == ""
    assert await added(starts, cluster, a_start()) == ""
    assert cluster.writes == 1
    again = ObservedStarts(PLACE)
    await again.load(cluster)  # type: ignore[arg-type]
    assert again.calibration.starts == starts.calibration.starts
    assert again.states == {"used": 1, "contradictory": 0, "implausible": 0, "unreadable": 0}


class SlowCluster(FakeCluster):
    """Lets others run between a question and its answer."""

    async def find(self, kind: Kind, namespace: str, name: str) -> Document | None:
        found = await super().find(kind, namespace, name)
        await asyncio.sleep(0)
        return found

    async def apply(self, kind: Kind, body: Document) -> Document:
        await asyncio.sleep(0)
        return await super().apply(kind, body)


async def test_starts_that_are_learnt_at_the_same_time_are_all_kept() -> None:
    cluster, starts = SlowCluster(write_records(())), ObservedStarts(PLACE)
    await asyncio.gather(*(added(starts, cluster, a_start(max_num_seqs=n)) for n in (8, 16, 32)))
    assert cluster.text is not None
    kept = read_records(cluster.text).starts
    assert [(start.key.max_num_seqs, start.revision) for start in kept] == [(8, 1), (16, 2), (32, 3)]
    assert starts.calibration.starts == kept


async def test_what_somebody_took_out_stays_out() -> None:
    cluster, starts = FakeCluster(), ObservedStarts(PLACE)
    await added(starts, cluster, a_start())
    cluster.text = write_records(())
    await added(starts, cluster, a_start(max_num_seqs=128))
    assert [start.key.max_num_seqs for start in read_records(cluster.text).starts] == [128]


async def test_a_corrupt_config_map_is_told_once_and_never_written_over(caplog: pytest.LogCaptureFixture) -> None:
    header, line = write_records(with_start((), a_start())).splitlines()
    text = f"{header}\nbroken\n{line}\n"
    cluster, starts = FakeCluster(text), ObservedStarts(PLACE)
    told = [await added(starts, cluster, a_start(max_num_seqs=n)) for n in (128, 256)]
    assert (cluster.text, cluster.writes) == (text, 0)
    assert told[0] == told[1]
    assert told[0].startswith("not remembered: ConfigMap kvgate-system/kvgate-calibration, key starts.jsonl, line 2: ")
    assert [record.message for record in caplog.records if "line 2" in record.message] == [caplog.records[0].message]
    assert starts.states["unreadable"] == 1
    assert len(starts.calibration.starts) == 1


async def test_contradictory_starts_are_told_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    cluster, starts = FakeCluster(), ObservedStarts(PLACE)
    await added(starts, cluster, a_start(-0.5))
    assert "remove those that are wrong" in await added(starts, cluster, a_start(-3.0))
    assert starts.states["contradictory"] == 2
    assert sum("none is used" in record.message for record in caplog.records) == 2


async def test_without_a_place_starts_are_known_until_the_process_ends() -> None:
    cluster, starts = FakeCluster(), ObservedStarts(None)
    assert await added(starts, cluster, a_start()) == ""
    assert cluster.writes == 0
    assert len(starts.calibration.starts) == 1


@pytest.mark.parametrize("text", ["", "kvgate", "/name", "namespace/", "a/b/c"])
def test_a_place_is_a_namespace_and_a_name(text: str) -> None:
    with pytest.raises(ValueError, match="NAMESPACE/NAME"):
        Place.parse(text)


def test_a_place_reads_back() -> None:
    assert str(Place.parse("kvgate-system/kvgate-calibration")) == str(PLACE)


def document(generation: int, **status: Any) -> Document:
    return {"metadata": {"generation": generation}, "status": status}


ACCEPTED = {"type": "Accepted", "status": "True"}
REFUSED = {"type": "Accepted", "status": "False"}


@pytest.mark.parametrize(
    ("seen", "pinned"),
    [
        (document(1), None),
        (document(2, observedGeneration=1, conditions=[ACCEPTED], calibrationRevision=7), None),
        (document(2, observedGeneration=2, conditions=[ACCEPTED], calibrationRevision=7), 7),
        (document(2, observedGeneration=2, conditions=[ACCEPTED]), 0),
        (document(2, observedGeneration=2, conditions=[REFUSED], calibrationRevision=7), None),
    ],
    ids=["never judged", "another generation", "accepted", "accepted before anything was observed", "refused"],
)
def test_a_verdict_stands_for_its_generation_unless_it_was_no(seen: Document, pinned: int | None) -> None:
    from kvgate.controller.observed import pinned_revision

    assert pinned_revision(seen) == pinned


async def test_a_refused_start_tells_what_it_would_have_had() -> None:
    (start,) = await learnt(a_crash(50.0))
    assert start.available_kv_cache_bytes == gib(50.0)
    assert start.source.startswith("serving/qwen, ")
    assert start.source.endswith(" (refused to start)")


async def test_a_refusal_without_a_figure_or_of_one_stage_among_several_teaches_nothing() -> None:
    assert await learnt(a_crash(None)) == ()
    assert await learnt(a_crash(50.0), pipelineParallelSize=2) == ()
