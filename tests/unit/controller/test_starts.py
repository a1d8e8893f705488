"""The ConfigMap of observed starts: people may edit it, and what they broke is never written over."""

import asyncio
from hashlib import sha256
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate.api.base import Document
from kvgate.api.conditions import Reason
from kvgate.budget.ground.units import gib
from kvgate.budget.observed.starts import ObservedStart
from kvgate.calibration.keeping import MAX_TEXT_BYTES, SALTS, SHARDS, setting_id, shard_of, with_start
from kvgate.calibration.records import MAX_STARTS, read_records, write_records
from kvgate.cluster.client import CONFIG_MAPS, NODES, Kind
from kvgate.cluster.errors import Conflict, Unavailable
from kvgate.controller.decision import assess_owner
from kvgate.controller.pods import Nodes, pod_of
from kvgate.controller.starts import KEY, ConfigMapName, ObservedStarts
from kvgate.rendering.observation import Crash, RunningEngine
from kvgate.runtime.background import Troubles
from kvgate.vllm.metric_names import EngineReading
from support.manifests import an_owner
from support.starts import a_pods_start, a_start
from support.waiting import turns

IMAGE = "docker.io/vllm/vllm-openai@sha256:12"
PLACE = ConfigMapName(namespace="kvgate-system", name="kvgate-calibration")


SHARD = f"{PLACE.name}-{shard_of('')}"


class FakeCluster:
    """ConfigMaps by name, with versions as an API server gives them; `text` is the one in which starts of no namespace are stored."""

    def __init__(self, text: str | None = None, old: str | None = None) -> None:
        self.texts = {name: given for name, given in ((SHARD, text), (PLACE.name, old)) if given is not None}
        self.writes = 0
        self.logs: dict[str, str] = {}
        self.labels: dict[str, dict[str, str]] = {}

    async def log_of_start(self, namespace: str, pod: str, container: str) -> str:
        assert container == "vllm"
        if pod not in self.logs:
            raise Unavailable("get", "pods/log", "no such log")
        return self.logs[pod]

    @property
    def text(self) -> str | None:
        return self.texts.get(SHARD)

    @text.setter
    def text(self, text: str | None) -> None:
        self.texts = {**self.texts, SHARD: text} if text is not None else {}

    async def find(self, kind: Kind, namespace: str | None, name: str) -> Document | None:
        if kind is NODES:
            return {"metadata": {"labels": self.labels[name]}} if name in self.labels else None
        assert (kind, namespace) == (CONFIG_MAPS, PLACE.namespace)
        if name not in self.texts:
            return None
        return {"metadata": {"resourceVersion": self.version(name)}, "data": {KEY: self.texts[name]}}

    def version(self, name: str) -> str:
        return sha256(self.texts.get(name, "").encode()).hexdigest()

    async def apply(self, kind: Kind, body: Document) -> Document:
        name = body["metadata"]["name"]
        assert (kind, body["metadata"]["namespace"]) == (CONFIG_MAPS, PLACE.namespace)
        assert name != PLACE.name, "the ConfigMap of older releases is never written"
        assert (body["apiVersion"], body["kind"]) == ("v1", "ConfigMap")
        assert body["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "kvgate"}
        if body["metadata"].get("resourceVersion", self.version(name)) != self.version(name):
            raise Conflict("patch", "configmaps", "it changed")
        self.texts[name] = body["data"][KEY]
        self.writes += 1
        return body


def observed_starts(place: ConfigMapName | None = PLACE, clock: float = 0.0) -> ObservedStarts:
    return ObservedStarts(place, clock=lambda: clock, salt=0)


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
    starts = observed_starts(None)
    owner = an_owner(vllm={"maxNumSeqs": 4, **vllm}, admission={"capacity": capacity})
    assessment = assess_owner(owner, "").assessment
    await starts.learn(FakeCluster(), owner, assessment, crash)  # type: ignore[arg-type]
    return starts.calibration.starts


async def added(starts: ObservedStarts, cluster: FakeCluster, start: ObservedStart) -> str:
    return await starts.add(cluster, start)  # type: ignore[arg-type]


async def test_a_start_is_kept_once_and_survives_a_restart() -> None:
    cluster, starts = FakeCluster(), observed_starts()
    assert await added(starts, cluster, a_start()) == ""
    assert await added(starts, cluster, a_start()) == ""
    assert cluster.writes == 1
    again = observed_starts()
    await again.load(cluster)  # type: ignore[arg-type]
    assert again.calibration.starts == starts.calibration.starts
    assert again.states == {
        "used": 1,
        "contradictory": 0,
        "impossible": 0,
        "implausible": 0,
        "shared": 0,
        "outdated": 0,
        "expired": 0,
        "dropped": 0,
        "untrusted": 0,
        "unreadable": 0,
    }


class SlowCluster(FakeCluster):
    """Lets others run between a question and its answer."""

    async def find(self, kind: Kind, namespace: str | None, name: str) -> Document | None:
        found = await super().find(kind, namespace, name)
        await turns()
        return found

    async def apply(self, kind: Kind, body: Document) -> Document:
        await turns()
        return await super().apply(kind, body)


async def test_starts_that_are_learnt_at_the_same_time_are_all_kept() -> None:
    cluster, starts = SlowCluster(write_records(())), observed_starts()
    await asyncio.gather(*(added(starts, cluster, a_start(max_num_batched_tokens=n)) for n in (2048, 4096, 8192)))
    assert cluster.text is not None
    kept = read_records(cluster.text).starts
    assert [(start.key.max_num_batched_tokens, start.revision) for start in kept] == [
        (2048, 1024),
        (4096, 2048),
        (8192, 3072),
    ]
    assert starts.calibration.starts == kept


async def test_what_somebody_took_out_stays_out() -> None:
    cluster, starts = FakeCluster(), observed_starts()
    await added(starts, cluster, a_start())
    cluster.text = write_records(())
    await added(starts, cluster, a_start(max_num_batched_tokens=2048))
    assert [start.key.max_num_batched_tokens for start in read_records(cluster.text).starts] == [2048]


async def test_a_corrupt_config_map_is_told_once_and_never_written_over(caplog: pytest.LogCaptureFixture) -> None:
    header, line = write_records(with_start((), a_start())).splitlines()
    text = f"{header}\nbroken\n{line}\n"
    cluster, starts = FakeCluster(text), observed_starts()
    told = [await added(starts, cluster, a_start(max_num_seqs=n)) for n in (128, 256)]
    assert (cluster.text, cluster.writes) == (text, 0)
    assert told[0] == told[1]
    assert told[0].startswith(f"not stored: ConfigMap kvgate-system/{SHARD}, key starts.jsonl, line 2: ")
    assert [record.message for record in caplog.records if "line 2" in record.message] == [caplog.records[0].message]
    assert starts.states["unreadable"] == 1
    assert len(starts.calibration.starts) == 1


async def test_contradictory_starts_are_told_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    cluster, starts = FakeCluster(), observed_starts()
    await added(starts, cluster, a_start(-0.5))
    assert "remove those that are wrong" in await added(starts, cluster, a_start(-3.0))
    assert starts.states["contradictory"] == 2
    assert sum("less certain and moves none" in record.message for record in caplog.records) == 2


async def test_without_a_place_starts_are_known_until_the_process_ends() -> None:
    cluster, starts = FakeCluster(), observed_starts(None)
    assert await added(starts, cluster, a_start()) == ""
    assert cluster.writes == 0
    assert len(starts.calibration.starts) == 1


@pytest.mark.parametrize("text", ["", "kvgate", "/name", "namespace/", "a/b/c"])
def test_a_place_is_a_namespace_and_a_name(text: str) -> None:
    with pytest.raises(ValueError, match="NAMESPACE/NAME"):
        ConfigMapName.parse(text)


def test_a_place_reads_back() -> None:
    assert str(ConfigMapName.parse("kvgate-system/kvgate-calibration")) == str(PLACE)


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


@pytest.mark.parametrize(("share", "count"), [(None, 1), (0.9, 1), (0.9000000001, 1), (0.85, 0), (1.0, 0)])
async def test_an_engine_with_another_share_of_the_gpu_than_was_predicted_teaches_nothing(
    share: float | None, count: int
) -> None:
    reading = EngineReading(num_gpu_blocks=25_000, block_size=16, gpu_memory_utilization=share)
    engine = RunningEngine(
        pod="a", template_hash="", reading=reading, declared_image="vllm/vllm-openai:v0.33.0", image=IMAGE
    )
    assert len(await learnt(engine, gpuMemoryUtilization="0.9")) == count


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
    await starts.load(cluster)  # type: ignore[arg-type]
    assert await added(starts, cluster, a_pods_start(-0.5, "b")) == ""
    assert starts.states == {
        "used": 1,
        "contradictory": 0,
        "impossible": 0,
        "implausible": 0,
        "shared": 0,
        "outdated": 0,
        "expired": 0,
        "dropped": 0,
        "untrusted": 1,
        "unreadable": 0,
    }
    assert sum(len(read_records(text).starts) for text in cluster.texts.values()) == 2


async def test_no_revision_comes_again_whatever_becomes_of_the_records() -> None:
    now = 1_700_000_000.0
    cluster, starts = FakeCluster(), observed_starts(clock=now)
    seen: list[int] = []
    early = ""
    for number, text in enumerate(["", None, write_records(()), "early"], start=1):
        if number > 1:
            cluster.text = early if text == "early" else text  # deleted, emptied, rewound; and the clock stands still
        await added(starts, cluster, a_start(max_num_seqs=number))
        assert cluster.text is not None
        early = early or cluster.text
        seen.append(read_records(cluster.text).starts[-1].revision)
    assert seen == [(1_700_000_000_000 + number) * SALTS for number in range(4)]


async def test_after_a_restart_revisions_are_later_than_any_before() -> None:
    cluster = FakeCluster()
    await added(observed_starts(clock=1000.0), cluster, a_start())
    cluster.text = None
    await added(observed_starts(clock=1001.0), cluster, a_start())
    assert cluster.text is not None
    assert [start.revision for start in read_records(cluster.text).starts] == [1_001_000 * SALTS]


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
        async def find(self, kind: Kind, namespace: str | None, name: str) -> Document | None:
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


# ── shards, older releases, two controllers ───────────────────────────────────────────────────────────────────────


async def loaded(starts: ObservedStarts, cluster: FakeCluster) -> ObservedStarts:
    await starts.load(cluster)  # type: ignore[arg-type]
    return starts


def old_text(*starts: ObservedStart) -> str:
    return write_records(starts)


async def test_the_config_map_of_an_older_release_is_read_and_its_starts_move_with_the_first_write() -> None:
    mine = [replace(a_pods_start(-0.5, pod), revision=number) for number, pod in enumerate("ab", start=1)]
    other = replace(a_pods_start(-0.5, "c", namespace="elsewhere"), revision=3)
    cluster = FakeCluster(old=old_text(*mine, other))
    starts = await loaded(observed_starts(), cluster)
    assert starts.calibration.starts == (*mine, other)
    await added(starts, cluster, a_pods_start(-0.5, "d", max_num_batched_tokens=2048))
    shard = read_records(cluster.texts[f"{PLACE.name}-{shard_of('serving')}"])
    assert shard.starts[:2] == tuple(mine)
    assert len(shard.starts) == 3
    again = await loaded(observed_starts(), cluster)
    assert again.calibration.starts == starts.calibration.starts
    assert len(again.calibration.starts) == 4


async def test_what_is_removed_from_a_shard_does_not_come_back_from_the_older_config_map() -> None:
    name = f"{PLACE.name}-{shard_of('serving')}"
    cluster = FakeCluster(old=old_text(replace(a_pods_start(-0.5, "a"), revision=1)))
    starts = await loaded(observed_starts(), cluster)
    await added(starts, cluster, a_pods_start(-0.5, "b"))
    kept = read_records(cluster.texts[name])
    cluster.texts[name] = write_records(kept.starts[1:], highest=kept.highest, taken_over=kept.taken_over)
    assert [start.pod for start in (await loaded(observed_starts(), cluster)).calibration.starts] == ["b"]


async def test_a_start_that_somebody_states_in_the_older_config_map_counts_from_the_next_read_on() -> None:
    cluster = FakeCluster(old=old_text(replace(a_pods_start(-0.5, "a"), revision=1)))
    starts = await loaded(observed_starts(), cluster)
    await added(starts, cluster, a_pods_start(-0.5, "b"))
    cluster.texts[PLACE.name] += write_records((replace(a_start(-3.0), revision=5),)).splitlines()[1] + "\n"
    await loaded(starts, cluster)
    assert [start.origin for start in starts.calibration.starts] == ["Pod", "Stated", "Pod"]


async def test_two_controllers_lose_no_start_and_give_no_number_twice() -> None:
    """A Lease is lost while its holder writes: for a moment two processes do."""
    cluster = SlowCluster()
    both = [ObservedStarts(PLACE, clock=lambda: 5.0, salt=salt) for salt in (1, 2)]
    for each in both:
        await loaded(each, cluster)
    await added(both[0], cluster, a_start(max_num_batched_tokens=1024))
    asked = enumerate((2048, 4096, 8192, 16384))
    await asyncio.gather(*(added(both[n % 2], cluster, a_start(max_num_batched_tokens=tokens)) for n, tokens in asked))
    assert cluster.text is not None
    stored = read_records(cluster.text).starts
    assert sorted(start.key.max_num_batched_tokens for start in stored) == [1024, 2048, 4096, 8192, 16384]
    assert len({start.revision for start in stored}) == 5


@pytest.mark.parametrize("clock", [0.0, -5.0, 10.0**12], ids=["a clock at 1970", "before it", "far ahead"])
async def test_after_everything_is_deleted_a_number_in_a_status_is_not_given_again(clock: float) -> None:
    starts, named = observed_starts(clock=clock), 1_800_000_000_000 * SALTS
    starts.note_revision(named)
    cluster = FakeCluster()
    for tokens in (1024, 2048, 4096):
        await added(starts, cluster, a_start(max_num_batched_tokens=tokens))
    assert cluster.text is not None
    records = read_records(cluster.text)
    revisions = [start.revision for start in records.starts]
    assert records.problems == ()
    assert revisions == sorted(set(revisions))
    assert revisions[0] > named


@pytest.mark.parametrize("forged", [None, "7", 1 << 62, -1, 3.5])
async def test_a_number_that_kvgate_did_not_write_into_a_status_changes_nothing(forged: object) -> None:
    starts, cluster = observed_starts(clock=1.0), FakeCluster()
    starts.note_revision(forged)
    await added(starts, cluster, a_start())
    assert starts.calibration.revision == 1000 * SALTS


async def test_the_newest_start_is_removed_and_its_number_is_not_given_again() -> None:
    cluster, starts = FakeCluster(), observed_starts()
    await added(starts, cluster, a_start())
    assert cluster.text is not None
    cluster.text = cluster.text.splitlines()[0] + "\n"
    fresh = await loaded(observed_starts(), cluster)
    await added(fresh, cluster, a_start())
    assert fresh.calibration.revision == 2 * SALTS


@pytest.mark.parametrize("frozen", ["*", "serving", "setting"])
async def test_where_somebody_has_frozen_it_nothing_new_is_learnt(frozen: str) -> None:
    start = a_pods_start(-0.5, "a")
    name = f"serving/{setting_id(start.key)}" if frozen == "setting" else frozen
    cluster = FakeCluster(write_records((), frozen=[name]))
    starts = await loaded(observed_starts(), cluster)
    assert "frozen" in await added(starts, cluster, start)
    assert starts.calibration.starts == ()
    elsewhere = a_pods_start(-0.5, "a", namespace="elsewhere")
    assert ("frozen" in await added(starts, cluster, elsewhere)) == (frozen == "*")


async def test_names_of_any_length_leave_room_in_the_config_map() -> None:
    cluster, starts = FakeCluster(), observed_starts()
    long = {"owner": "o" * 253, "image": "docker.io/vllm/vllm-openai@sha256:" + "1" * 300}
    base = replace(a_pods_start(-0.5, "p" * 253, node="n" * 253), **long, source="s" * 200)
    many = tuple(
        replace(base, key=replace(base.key, max_num_batched_tokens=number, cudagraphs="c" * 300), revision=number)
        for number in range(1, MAX_STARTS + 1)
    )
    name = f"{PLACE.name}-{shard_of('serving')}"
    cluster.texts[name] = write_records(many)
    assert len(cluster.texts[name]) > 1 << 20
    await added(starts, cluster, replace(base, key=replace(base.key, max_num_batched_tokens=9999)))
    assert len(cluster.texts[name]) <= MAX_TEXT_BYTES
    assert read_records(cluster.texts[name]).starts[-1].key.max_num_batched_tokens == 9999


async def test_a_tenant_who_fills_its_shard_costs_no_namespace_of_another_one() -> None:
    cluster, starts = FakeCluster(), observed_starts()
    base = a_pods_start(-0.5, "a", namespace="flood")
    flood = (
        replace(base, key=replace(base.key, max_num_batched_tokens=n), revision=n) for n in range(1, MAX_STARTS + 1)
    )
    cluster.texts[f"{PLACE.name}-{shard_of('flood')}"] = write_records(flood)
    await loaded(starts, cluster)
    namespaces = [f"team-{number}" for number in range(32)]
    for namespace in namespaces:
        await added(starts, cluster, a_pods_start(-0.5, "a", namespace=namespace))
    for number in range(20):
        await added(starts, cluster, replace(base, key=replace(base.key, max_num_batched_tokens=5000 + number)))
    kept = {start.namespace for start in starts.calibration.starts}
    assert kept == {"flood", *namespaces}
    assert len(cluster.texts) <= SHARDS


# ── what the log and the node show ────────────────────────────────────────────────────────────────────────────────


def a_log(free: str, total: str = "79.19", pod: str = "a") -> dict[str, str]:
    lines = (
        "(EngineCore pid=7) INFO 11-23 10:00:00 [gpu_worker.py:9] Available KV cache memory: 50.00 GiB",
        f"(EngineCore pid=7) INFO 11-23 10:00:09 [gpu_worker.py:9] Free memory on device ({free}/{total} GiB) on startup. Desired GPU",
    )
    return {pod: "\n".join(("(APIServer pid=1) INFO [api_server.py:1] vLLM API server version 0.33.0", *lines))}


async def of_engine(
    cluster: FakeCluster, starts: ObservedStarts, *, percent: int = 92, pod: str = "a", node: str = ""
) -> ObservedStart | str:
    owner = an_owner(vllm={"maxNumSeqs": 4})
    assessment = assess_owner(owner, "").assessment
    assert assessment.effective is not None
    assert assessment.effective.num_blocks is not None
    blocks = assessment.effective.num_blocks.expected * percent // 100
    engine = RunningEngine(
        pod=pod, template_hash="", reading=EngineReading(num_gpu_blocks=blocks, block_size=16), node=node,
        declared_image="vllm/vllm-openai:v0.33.0", image=IMAGE,
    )  # fmt: skip
    told = await starts.learn(cluster, owner, assessment, engine)  # type: ignore[arg-type]
    return next((start for start in starts.calibration.starts if start.pod == pod), told)


@pytest.mark.parametrize(
    ("logs", "shown", "state"),
    [
        (a_log("78.60"), "Empty", "used"), (a_log("60.00"), "Shared", "shared"), ({}, "Unknown", "shared"),
        ({"a": "nothing of vLLM"}, "Unknown", "shared"), (a_log("30.00", "39.00"), "Shared", "shared"),
    ],
    ids=["an empty GPU", "a neighbour", "no log", "no figures", "a slice"],
)  # fmt: skip
async def test_the_log_of_the_start_shows_whether_the_gpu_was_empty(
    logs: dict[str, str], shown: str, state: str
) -> None:
    cluster, starts = FakeCluster(), observed_starts()
    cluster.logs = logs
    start = await of_engine(cluster, starts)
    assert isinstance(start, ObservedStart)
    assert (start.gpu_at_start, starts.calibration.state(start)) == (shown, state)


LABELS = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/cuda.driver-version.full": "580.95.05"}


async def test_driver_and_product_come_from_the_nodes_labels_where_they_may_be_read() -> None:
    cluster = FakeCluster()
    cluster.labels = {"n": LABELS}
    start = await of_engine(cluster, ObservedStarts(PLACE, nodes=Nodes()), node="n")
    assert isinstance(start, ObservedStart)
    assert start.environment == (IMAGE.rpartition("@")[2], "580.95.05", "NVIDIA-H100-80GB-HBM3")
    without = await of_engine(FakeCluster(), ObservedStarts(PLACE, nodes=Nodes()), node="n")
    assert isinstance(without, ObservedStart)
    assert (without.driver, without.product) == ("", "")


async def test_on_a_node_that_shares_its_gpus_a_start_moves_nothing() -> None:
    cluster = FakeCluster()
    cluster.labels, cluster.logs = {"n": {**LABELS, "nvidia.com/gpu.sharing-strategy": "time-slicing"}}, a_log("78.60")
    start = await of_engine(cluster, ObservedStarts(PLACE, nodes=Nodes()), node="n")
    assert isinstance(start, ObservedStart)
    assert start.gpu_at_start == "Shared"


async def test_a_start_on_another_gpu_than_the_judged_one_teaches_nothing() -> None:
    cluster, starts = FakeCluster(), ObservedStarts(PLACE, nodes=Nodes())
    cluster.labels = {"n": {"nvidia.com/gpu.product": "NVIDIA-L4"}}
    assert "node n has NVIDIA-L4, which is no H100" in str(await of_engine(cluster, starts, node="n"))
    assert starts.calibration.starts == ()


async def test_the_log_of_a_known_start_is_not_read_again() -> None:
    cluster, starts = FakeCluster(), observed_starts()
    cluster.logs = a_log("78.60")
    await of_engine(cluster, starts)
    cluster.logs = {}
    again = await loaded(observed_starts(), cluster)
    assert isinstance(start := await of_engine(cluster, again), ObservedStart)
    assert start.gpu_at_start == "Empty"


async def test_an_engine_that_reports_what_no_gpu_of_its_kind_holds_teaches_nothing_and_that_is_told() -> None:
    starts = observed_starts()
    told = await of_engine(FakeCluster(), starts, percent=108)
    assert "of KV cache are impossible: its weights leave at most" in str(told)
    told = await of_engine(FakeCluster(), starts, percent=0)
    assert "are impossible: no engine runs without memory for it" in str(told)
    assert starts.calibration.starts == ()


# ── starts whose image, driver or node is no longer what runs ─────────────────────────────────────────────────────


DIGEST = "sha256:" + "1" * 64
SERVING = f"{PLACE.name}-{shard_of('serving')}"


async def after_a_resync(
    labels: dict[str, dict[str, str]], *running: str, is_forbidden: bool = False, can_read: bool = True
) -> list[bool]:
    """Marks of the starts of two objects on two nodes after a resync in which the first object ran these images."""

    class Nodeless(FakeCluster):
        async def find(self, kind: Kind, namespace: str | None, name: str) -> Document | None:
            if kind is NODES and is_forbidden:
                raise Unavailable("get", "nodes", "not allowed")
            return await super().find(kind, namespace, name)

    known = [replace(a_pods_start(-0.5, pod, node=pod), driver="580.95.05", product=H100) for pod in "ab"]
    cluster = Nodeless()
    cluster.texts[SERVING] = write_records(replace(start, revision=n) for n, start in enumerate(known, start=1))
    cluster.labels = labels
    starts = ObservedStarts(PLACE, nodes=Nodes() if can_read else None)
    for _ in range(2):
        await starts.try_load(
            cluster,  # type: ignore[arg-type]
            Troubles(lambda _: None), loop="resync", running={("serving", "owner-of-a"): frozenset(running)},
        )  # fmt: skip
    marks = [start.is_expired for start in starts.calibration.starts]
    assert cluster.writes == (1 if any(marks) else 0), "a mark is written once, and nothing where nothing changed"
    assert [start.is_expired for start in (await loaded(observed_starts(), cluster)).calibration.starts] == marks
    return marks


H100 = "NVIDIA-H100-80GB-HBM3"
OTHER_DRIVER = {**LABELS, "nvidia.com/cuda.driver-version.full": "590.10"}


@pytest.mark.parametrize(
    ("first_node", "running", "expired"),
    [
        (LABELS, [DIGEST], False), (LABELS, [], False), (LABELS, [DIGEST, "sha256:2"], False), (LABELS, ["sha256:2"], True),
        (OTHER_DRIVER, [DIGEST], True), ({**LABELS, "nvidia.com/gpu.product": "NVIDIA-L4"}, [DIGEST], True), (None, [DIGEST], True),
        ({}, [DIGEST], False),
    ],
    ids=[
        "as it was", "no pod now", "during a rollout", "another image", "another driver", "another GPU", "no node any more",
        "a node that states nothing",
    ],
)  # fmt: skip
async def test_a_start_whose_image_driver_or_node_is_no_longer_what_runs_expires(
    first_node: dict[str, str] | None, running: list[str], *, expired: bool
) -> None:
    labels = {"b": LABELS} | ({} if first_node is None else {"a": first_node})
    assert await after_a_resync(labels, *running) == [expired, False]


async def test_where_nodes_cannot_be_read_no_start_expires_because_of_them() -> None:
    assert await after_a_resync({}, DIGEST, is_forbidden=True) == [False, False]
    assert await after_a_resync({}, DIGEST, can_read=False) == [False, False]
    assert await after_a_resync({}, "sha256:2", can_read=False) == [True, False]


async def test_a_start_says_on_which_node_it_was() -> None:
    start = await of_engine(FakeCluster(), observed_starts(), node="n")
    assert isinstance(start, ObservedStart)
    assert (start.node, start.witness) == ("n", ("serving", "qwen"))


@pytest.mark.parametrize(("conflicts", "is_stored"), [(0, True), (2, True), (3, False)])
async def test_a_write_that_meets_another_is_tried_a_few_times(conflicts: int, *, is_stored: bool) -> None:
    class Contested(FakeCluster):
        left = conflicts

        async def apply(self, kind: Kind, body: Document) -> Document:
            if self.left:
                self.left -= 1
                raise Conflict("patch", "configmaps", "it changed")
            return await super().apply(kind, body)

    cluster = Contested()
    if is_stored:
        assert await observed_starts().add(cluster, a_start()) == ""  # type: ignore[arg-type]
    else:
        with pytest.raises(Conflict):
            await observed_starts().add(cluster, a_start())  # type: ignore[arg-type]
    assert (cluster.writes, cluster.left) == (int(is_stored), 0)
