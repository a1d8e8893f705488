"""The ConfigMap of observed starts: people may edit it, and what they broke is never written over."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate.api.base import Document
from kvgate.api.conditions import Reason
from kvgate.budget.observed_starts import ObservedStart
from kvgate.budget.units import gib
from kvgate.calibration.keeping import with_start
from kvgate.calibration.records import read_records, write_records
from kvgate.cluster.client import CONFIG_MAPS, Kind
from kvgate.controller.decision import assess_owner
from kvgate.controller.pods import pod_of
from kvgate.controller.starts import KEY, ConfigMapName, ObservedStarts
from kvgate.rendering.observation import Crash, RunningEngine
from kvgate.vllm.metric_names import EngineReading
from support.manifests import an_owner
from support.starts import a_pods_start, a_start
from support.waiting import turns

IMAGE = "docker.io/vllm/vllm-openai@sha256:12"
PLACE = ConfigMapName(namespace="kvgate-system", name="kvgate-calibration")


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
        pod="a",
        template_hash="",
        reason=Reason.KV_CACHE_TOO_SMALL,
        message="",
        available_kv_cache_bytes=available,
        declared_image="vllm/vllm-openai:v0.33.0",
        image=IMAGE,
    )


async def learnt(crash: Crash | RunningEngine, capacity: str = "Profiled", **vllm: Any) -> tuple[ObservedStart, ...]:
    starts = ObservedStarts(None, clock=lambda: 0.0)
    owner = an_owner(vllm={"maxNumSeqs": 4, **vllm}, admission={"capacity": capacity})
    assessment = assess_owner(owner, "").assessment
    await starts.learn(FakeCluster(), owner, assessment, crash)  # type: ignore[arg-type]
    return starts.calibration.starts


async def added(starts: ObservedStarts, cluster: FakeCluster, start: ObservedStart) -> str:
    return await starts.add(cluster, start)  # type: ignore[arg-type]


async def test_a_start_is_kept_once_and_survives_a_restart() -> None:
    cluster, starts = FakeCluster(), ObservedStarts(PLACE, clock=lambda: 0.0)
    assert await added(starts, cluster, a_start()) == ""
    assert await added(starts, cluster, a_start()) == ""
    assert cluster.writes == 1
    again = ObservedStarts(PLACE, clock=lambda: 0.0)
    await again.load(cluster)  # type: ignore[arg-type]
    assert again.calibration.starts == starts.calibration.starts
    assert again.states == {
        "used": 1,
        "contradictory": 0,
        "implausible": 0,
        "shared": 0,
        "outdated": 0,
        "dropped": 0,
        "untrusted": 0,
        "unreadable": 0,
    }


class SlowCluster(FakeCluster):
    """Lets others run between a question and its answer."""

    async def find(self, kind: Kind, namespace: str, name: str) -> Document | None:
        found = await super().find(kind, namespace, name)
        await turns()
        return found

    async def apply(self, kind: Kind, body: Document) -> Document:
        await turns()
        return await super().apply(kind, body)


async def test_starts_that_are_learnt_at_the_same_time_are_all_kept() -> None:
    cluster, starts = SlowCluster(write_records(())), ObservedStarts(PLACE, clock=lambda: 0.0)
    await asyncio.gather(*(added(starts, cluster, a_start(max_num_batched_tokens=n)) for n in (2048, 4096, 8192)))
    assert cluster.text is not None
    kept = read_records(cluster.text).starts
    assert [(start.key.max_num_batched_tokens, start.revision) for start in kept] == [(2048, 1), (4096, 2), (8192, 3)]
    assert starts.calibration.starts == kept


async def test_what_somebody_took_out_stays_out() -> None:
    cluster, starts = FakeCluster(), ObservedStarts(PLACE, clock=lambda: 0.0)
    await added(starts, cluster, a_start())
    cluster.text = write_records(())
    await added(starts, cluster, a_start(max_num_batched_tokens=2048))
    assert [start.key.max_num_batched_tokens for start in read_records(cluster.text).starts] == [2048]


async def test_a_corrupt_config_map_is_told_once_and_never_written_over(caplog: pytest.LogCaptureFixture) -> None:
    header, line = write_records(with_start((), a_start())).splitlines()
    text = f"{header}\nbroken\n{line}\n"
    cluster, starts = FakeCluster(text), ObservedStarts(PLACE, clock=lambda: 0.0)
    told = [await added(starts, cluster, a_start(max_num_seqs=n)) for n in (128, 256)]
    assert (cluster.text, cluster.writes) == (text, 0)
    assert told[0] == told[1]
    assert told[0].startswith("not stored: ConfigMap kvgate-system/kvgate-calibration, key starts.jsonl, line 2: ")
    assert [record.message for record in caplog.records if "line 2" in record.message] == [caplog.records[0].message]
    assert starts.states["unreadable"] == 1
    assert len(starts.calibration.starts) == 1


async def test_contradictory_starts_are_told_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    cluster, starts = FakeCluster(), ObservedStarts(PLACE, clock=lambda: 0.0)
    await added(starts, cluster, a_start(-0.5))
    assert "remove those that are wrong" in await added(starts, cluster, a_start(-3.0))
    assert starts.states["contradictory"] == 2
    assert sum("less certain and moves none" in record.message for record in caplog.records) == 2


async def test_without_a_place_starts_are_known_until_the_process_ends() -> None:
    cluster, starts = FakeCluster(), ObservedStarts(None, clock=lambda: 0.0)
    assert await added(starts, cluster, a_start()) == ""
    assert cluster.writes == 0
    assert len(starts.calibration.starts) == 1


@pytest.mark.parametrize("text", ["", "kvgate", "/name", "namespace/", "a/b/c"])
def test_a_place_is_a_namespace_and_a_name(text: str) -> None:
    with pytest.raises(ValueError, match="NAMESPACE/NAME"):
        ConfigMapName.parse(text)


def test_a_place_reads_back() -> None:
    assert str(ConfigMapName.parse("kvgate-system/kvgate-calibration")) == str(PLACE)


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
    from kvgate.controller.decision import pinned_revision

    assert pinned_revision(seen) == pinned


async def test_a_refused_start_tells_what_it_would_have_had() -> None:
    (start,) = await learnt(a_crash(50.0))
    assert start.available_kv_cache_bytes == gib(50.0)
    assert start.source.startswith("serving/qwen, ")
    assert start.source.endswith(" (refused to start)")


async def test_a_refusal_without_a_figure_or_of_one_stage_among_several_teaches_nothing() -> None:
    assert await learnt(a_crash(None)) == ()
    assert await learnt(a_crash(50.0), pipelineParallelSize=2) == ()


@pytest.mark.parametrize(
    ("capacity", "is_size_given", "count"),
    [("Profiled", False, 1), ("Profiled", True, 0), ("Pinned", True, 0), ("Pinned", False, 0)],
)
async def test_an_engine_that_was_given_its_size_teaches_nothing(
    capacity: str,
    is_size_given: bool,  # noqa: FBT001
    count: int,
) -> None:
    reading = EngineReading(num_gpu_blocks=25_000, block_size=16, is_size_given=is_size_given)
    engine = RunningEngine(
        pod="a", template_hash="", reading=reading, declared_image="vllm/vllm-openai:v0.33.0", image=IMAGE
    )
    assert len(await learnt(engine, capacity)) == count
    assert await learnt(a_crash(50.0), "Pinned") == ()


# ── trust, and records that were deleted or rewound ───────────────────────────────────────────────────────────────


async def told(crash: Crash, starts: ObservedStarts | None = None) -> str:
    owner = an_owner(vllm={"maxNumSeqs": 4})
    known = starts or ObservedStarts(None)
    return await known.learn(FakeCluster(), owner, assess_owner(owner, "").assessment, crash)  # type: ignore[arg-type]


async def test_a_start_says_whose_it_was_and_what_ran() -> None:
    (start,) = await learnt(a_crash(50.0))
    assert (start.origin, start.namespace, start.owner, start.pod, start.image) == (
        "Pod",
        "serving",
        "qwen",
        "a",
        IMAGE,
    )


@pytest.mark.parametrize(
    ("images", "remark"),
    [
        ({"declared_image": "ghcr.io/some/vllm:1"}, "image ghcr.io/some/vllm is not among calibration.images"),
        ({"image": "ghcr.io/some/vllm@sha256:1"}, "image ghcr.io/some/vllm is not among calibration.images"),
        ({"image": ""}, "the container runtime does not report which image ran"),
    ],
)
async def test_what_another_image_reports_teaches_nothing_and_the_reason_is_told(
    images: dict[str, str], remark: str
) -> None:
    starts, crash = ObservedStarts(None), replace(a_crash(50.0), **images)
    assert remark in await told(crash, starts)
    assert starts.calibration.starts == ()
    assert starts.states["untrusted"] == 0, "nothing of it is kept"


async def test_records_of_an_image_that_is_trusted_no_more_are_counted_and_kept() -> None:
    record = a_pods_start(-0.5, "a", image="ghcr.io/some/vllm@sha256:1")
    cluster, starts = FakeCluster(write_records((record,))), ObservedStarts(PLACE)
    assert await added(starts, cluster, a_pods_start(-0.5, "b")) == ""
    assert starts.states == {
        "used": 1,
        "contradictory": 0,
        "implausible": 0,
        "shared": 0,
        "outdated": 0,
        "dropped": 0,
        "untrusted": 1,
        "unreadable": 0,
    }
    assert cluster.text is not None
    assert len(read_records(cluster.text).starts) == 2


async def test_no_revision_comes_again_whatever_becomes_of_the_records() -> None:
    now = 1_700_000_000.0
    cluster, starts = FakeCluster(), ObservedStarts(PLACE, clock=lambda: now)
    seen: list[int] = []
    early = ""
    for number, text in enumerate(["", None, write_records(()), "early"], start=1):
        if number > 1:
            cluster.text = early if text == "early" else text  # deleted, emptied, rewound; and the clock stands still
        await added(starts, cluster, a_start(max_num_seqs=number))
        assert cluster.text is not None
        early = early or cluster.text
        seen.append(read_records(cluster.text).starts[-1].revision)
    assert seen == [1_700_000_000_000 + number for number in range(4)]


async def test_after_a_restart_revisions_are_later_than_any_before() -> None:
    cluster = FakeCluster()
    await added(ObservedStarts(PLACE, clock=lambda: 1000.0), cluster, a_start())
    cluster.text = None
    await added(ObservedStarts(PLACE, clock=lambda: 1001.0), cluster, a_start())
    assert cluster.text is not None
    assert [start.revision for start in read_records(cluster.text).starts] == [1_001_000]


@pytest.mark.parametrize(
    "text", ["", "kvgate: yes\n", '{"format": "kvgate-calibration", "version": 9}\n', write_records((a_start(),))[:700]]
)
async def test_a_truncated_or_foreign_config_map_is_told_once_and_teaches_nothing(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, starts = FakeCluster(text), ObservedStarts(PLACE)
    for _ in range(3):
        await starts.load(cluster)  # type: ignore[arg-type]
    assert starts.calibration.starts == ()
    assert len(caplog.records) == starts.states["unreadable"] == bool(text)


async def test_a_config_map_without_data_is_an_empty_one() -> None:
    class Bare(FakeCluster):
        async def find(self, kind: Kind, namespace: str, name: str) -> Document | None:
            return {"data": None}

    starts = ObservedStarts(PLACE)
    await starts.load(Bare())  # type: ignore[arg-type]
    assert starts.calibration.starts == ()


def test_the_images_of_a_pod_are_those_of_the_engines_container() -> None:
    pod = pod_of(
        {
            "metadata": {"namespace": "serving", "name": "a", "uid": "1"},
            "spec": {
                "containers": [{"name": "sidecar", "image": "x"}, {"name": "vllm", "image": "vllm/vllm-openai:v1"}]
            },
            "status": {
                "containerStatuses": [{"name": "sidecar", "imageID": "x@sha256:1"}, {"name": "vllm", "imageID": IMAGE}]
            },
        }
    )
    assert (pod.declared_image, pod.image) == ("vllm/vllm-openai:v1", IMAGE)
