"""Every way in which a verdict could move by itself, on a cluster in memory: the pods, the values and the promised figures stay."""

import contextlib
import copy
import json
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import ObservedStart
from kvgate.budget.ground.units import gib
from kvgate.calibration.keeping import with_start
from kvgate.calibration.records import MAX_STARTS, write_records
from kvgate.cluster.errors import ApiError, Conflict, Denied, Forbidden, NotFound, Unavailable
from kvgate.controller.memory import Memory
from kvgate.controller.schedule import Resync
from kvgate.controller.starts import KEY as STARTS
from kvgate.controller.starts import ConfigMapName, ObservedStarts
from kvgate.judgement import facts
from kvgate.metrics.exporter import DeploymentSnapshot
from kvgate.rendering import workload
from kvgate.rendering.admission import _digest_of
from kvgate.runtime.background import Troubles
from support.manifests import a_document
from support.reconciling import KEY, FakeCluster, message, new, told
from support.starts import a_pods_start, a_start

SEQS = {"maxNumSeqs": 12}
ADJUST = {"policy": "Adjust", "adjust": {"knobs": ["MaxModelLen"]}}
MAP = ConfigMapName(namespace="kvgate-system", name="kvgate-calibration")
LESS, MORE = a_start(-6, max_num_seqs=12), a_start(1.2, max_num_seqs=12)
"""Starts of the object's setting after which kvgate renders 30,416 or 35,072 tokens; without one it renders 33,952."""


class _Connection:
    """The cluster in memory as a connection that is opened and closed."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    async def __aenter__(self) -> FakeCluster:
        return self._cluster

    async def __aexit__(self, *_: object) -> None:
        pass


class World:
    """One object and its controller, with the ConfigMap of observed starts."""

    def __init__(self, *starts: ObservedStart, **spec: Any) -> None:
        self.cluster = FakeCluster(a_document(**{"vllm": SEQS, "admission": ADJUST, **spec}))
        self.keep(*starts)

    def keep(self, *starts: ObservedStart) -> None:
        known: tuple[ObservedStart, ...] = ()
        for start in starts:
            known = with_start(known, start)
        self.write(write_records(known))

    def write(self, text: str | None) -> None:
        self.cluster.objects["configmaps"] = None
        if text is not None:
            self.cluster.objects["configmaps"] = {"metadata": {"name": MAP.name}, "data": {STARTS: text}}

    async def start(self) -> "World":
        """A new process: another replica, or the same one again."""
        self.starts = ObservedStarts(MAP)
        self.memory = Memory(DeploymentSnapshot(), self.starts)
        self.reconcile, _ = new(self.cluster, self.memory)
        await self.resync()
        return self

    async def resync(self) -> None:
        await self.starts.load(self.cluster)  # type: ignore[arg-type]
        await self.reconcile(KEY)

    async def resync_listed(self) -> None:
        """A round of the same process that lists the objects and their records."""
        queue: list[Any] = []
        resync = Resync(
            connect=lambda: _Connection(self.cluster), namespaces=(), reconciler=self.reconcile,  # type: ignore[arg-type, return-value]
            queue=SimpleNamespace(enqueue=queue.append), memory=self.memory, starts=self.starts, troubles=Troubles(lambda _: None),  # type: ignore[arg-type]
        )  # fmt: skip
        await resync.run_once()
        for key in queue:
            await self.reconcile(key)

    @property
    def document(self) -> dict[str, Any]:
        return self.cluster.objects["inferencedeployments"] or {}

    @property
    def status(self) -> dict[str, Any]:
        return self.document["status"]  # type: ignore[no-any-return]

    @property
    def template(self) -> Any:
        return copy.deepcopy((self.cluster.objects["deployments"] or {})["spec"]["template"])

    def stands(self) -> Any:
        """What must not move."""
        status = copy.deepcopy(self.status)
        conditions = [each for each in status["conditions"] if each["type"] in ("Accepted", "Adjusted", "Predicted")]
        parts = {name: status.get(name) for name in ("effective", "budget", "calibrationRevision", "admission")}
        for each in conditions:
            del each["lastTransitionTime"]
        return json.loads(json.dumps([conditions, parts, self.template, self.cluster.records]))

    def edit(self, **spec: Any) -> None:
        self.document["spec"].update(spec)
        self.document["metadata"]["generation"] += 1


def outdated(world: World) -> tuple[str, str]:
    return told(world.cluster).get("PredictionOutdated", ("-", "-"))


def another_tenants(count: int) -> Iterable[ObservedStart]:
    start = a_pods_start(-9, "p", namespace="hostile", owner="evil", max_num_seqs=12)
    for number in range(count):
        yield replace(
            start,
            pod=f"p{number}",
            key=replace(start.key, max_num_batched_tokens=8192 + number // 2),
            revision=number + 5,
        )


LOSSES: dict[str, Callable[[World], None]] = {
    "deleted": lambda world: world.write(None),
    "emptied": lambda world: world.write(""),
    "truncated": lambda world: world.write(write_records((LESS,))[:-80]),
    "not text of kvgate's": lambda world: world.write("\x00{" * 1000),
    "rewound": lambda world: world.keep(),
    "replaced": lambda world: world.keep(MORE),
    "contradicted": lambda world: world.keep(LESS, MORE),
    "filled by another tenant": lambda world: world.write(write_records(another_tenants(MAX_STARTS))),
}


@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("name", LOSSES)
async def test_whatever_becomes_of_the_starts_nothing_moves(name: str, *, is_restarted: bool) -> None:
    world = await World(LESS).start()
    before = world.stands()
    assert before[1]["effective"]["maxModelLen"] == 30416, "the start counts"
    LOSSES[name](world)
    world.cluster.writes.clear()
    await (world.start() if is_restarted else world.resync())
    assert world.stands() == before
    assert {resource for _, resource in world.cluster.writes} <= {"status", "events"}
    assert outdated(world)[0] == "True", "and today's prediction is shown"
    world.cluster.writes.clear()
    for _ in range(3):
        await world.resync()
    await world.start()
    assert world.cluster.writes == [], "once"


async def test_a_tenant_pushes_nobody_out_and_moves_nobody_elses_verdict() -> None:
    own = tuple(a_pods_start(-1.5, f"q{number}", owner="qwen", max_num_seqs=12) for number in range(2))
    world = await World(*own).start()
    before = world.stands()
    world.keep(*own, *another_tenants(2 * MAX_STARTS))
    await world.resync()
    assert len(world.starts.calibration.starts) == MAX_STARTS
    assert {start.pod for start in world.starts.calibration.starts} >= {"q0", "q1"}
    assert world.stands() == before
    assert outdated(world) == ("-", "-"), "nor does another tenant's start change what would be predicted"


async def test_todays_prediction_is_shown_and_the_next_edit_is_judged_by_it() -> None:
    world = await World().start()
    assert "recalibrated" not in world.status
    assert world.memory._samples[KEY].recalibrated_tokens is None
    world.keep(LESS)
    await world.resync()
    shown = world.status["recalibrated"]
    figures = world.memory._samples[KEY]
    assert figures.recalibrated_tokens is not None
    assert figures.recalibrated_tokens[1] == shown["capacityTokens"] == 365_648
    assert figures.capacity_tokens is not None
    assert figures.capacity_tokens[1] == world.status["budget"]["capacityTokens"] > 365_648, "what was admitted stands"
    assert (shown["verdict"], shown["accepted"], shown["differencePercent"]) == ("Fits", "True", "-10.7")
    assert shown["effective"]["maxModelLen"] == 30416
    assert shown["message"] == "it follows 1 observed start of the same setting"
    assert outdated(world) == ("True", "VerdictMoved")
    told_today = message(world.cluster, "PredictionOutdated")
    assert "365,648 tokens of KV cache today" in told_today
    assert "stands until the spec is edited, or spec.admission.recalibrate" in told_today
    assert ("Warning", "VerdictMoved") in [(kind, reason) for kind, reason in events(world)]
    world.edit(vllm={**SEQS, "maxModelLen": 40000})
    await world.resync()
    assert world.status["effective"]["maxModelLen"] == 30416
    assert "recalibrated" not in world.status
    assert outdated(world) == ("False", "AsAdmitted")


async def test_the_metrics_show_what_was_admitted_whatever_is_known_today(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await World().start()
    then = world.memory._samples[KEY]
    smaller = catalogue.find_accelerator("RTX-A6000-48GB")
    monkeypatch.setattr("kvgate.judgement.facts.catalogue.find_accelerator", lambda _: smaller)
    await world.start()
    assert "recalibrated" in world.status
    now = world.memory._samples[KEY]
    assert now.capacity_tokens == then.capacity_tokens
    assert (now.max_model_len_tokens, now.demand_tokens) == (then.max_model_len_tokens, then.demand_tokens)


def events(world: World) -> list[tuple[str, str]]:
    return [(each["type"], each["reason"]) for each in world.cluster.created]


async def test_a_verdict_that_would_be_a_refusal_today_takes_nothing_away() -> None:
    for recalibrate in (False, True):
        world = await World(vllm={"maxNumSeqs": 9}, admission={"policy": "Reject", "recalibrate": recalibrate}).start()
        before = world.stands()
        assert told(world.cluster)["Accepted"] == ("True", "Fits")
        world.keep(a_start(-8, max_num_seqs=9))
        for _ in range(2):
            await world.start()
            assert world.stands() == before
        assert world.status["recalibrated"]["accepted"] == "False"
        assert "what runs keeps running" in message(world.cluster, "PredictionOutdated")


async def test_small_movements_are_not_written() -> None:
    world = await World(LESS).start()
    for error in (-6.0, -5.9, -6.2, -6.4, -6.1):
        world.cluster.writes.clear()
        world.keep(a_start(error, max_num_seqs=12))
        await world.resync()
        assert world.cluster.writes == []
    assert "recalibrated" not in world.status


async def test_a_prediction_that_wanders_at_the_limit_does_not_flap() -> None:
    world, written = await World().start(), 0
    for error in (-0.50, -0.56, -0.61, -0.57, -0.55, -0.62, -0.58, -0.61, -0.56):
        world.cluster.writes.clear()
        world.keep(a_start(error, max_num_seqs=12))
        await world.resync()
        written += ("apply", "status") in world.cluster.writes
    assert written <= 1


# -- admission.recalibrate -------------------------------------------------------------------------------------------------------------


async def test_where_the_spec_wants_it_a_better_prediction_is_used_at_once() -> None:
    world = await World(admission={**ADJUST, "recalibrate": True}).start()
    before = world.template
    world.keep(LESS)
    await world.resync()
    assert world.status["effective"]["maxModelLen"] == 30416
    assert "--max-model-len=30416" in world.template["spec"]["containers"][0]["args"]
    assert world.template != before
    assert world.cluster.record["recalibrations"] == 1
    assert "recalibrated" not in world.status
    world.cluster.writes.clear()
    await world.resync()
    await world.start()
    assert world.cluster.writes == []


async def test_where_no_value_changes_no_pod_does() -> None:
    world = await World(vllm={"maxNumSeqs": 4}, admission={"recalibrate": True}).start()
    before = world.template
    world.keep(a_start(-1, max_num_seqs=4))
    await world.resync()
    assert world.status["budget"]["observedStarts"] == 1
    assert world.template == before
    assert world.cluster.record.get("recalibrations", 0) == 0


@pytest.mark.parametrize("name", ["deleted", "emptied", "truncated", "rewound", "filled by another tenant"])
async def test_lost_starts_are_no_better_prediction(name: str) -> None:
    world = await World(LESS, admission={**ADJUST, "recalibrate": True}).start()
    before = world.stands()
    LOSSES[name](world)
    await world.start()
    assert world.stands() == before
    assert "are not recorded any more" in message(world.cluster, "PredictionOutdated")


async def test_the_pods_of_one_spec_are_replaced_three_times_at_most() -> None:
    world = await World(admission={**ADJUST, "recalibrate": True}).start()
    values = []
    for revision, error in enumerate((-6, 1.2, -6, 1.2, -6, 1.2), start=1):
        world.write(write_records((replace(a_start(error, max_num_seqs=12), revision=revision),)))
        await world.resync()
        values.append(world.status["effective"]["maxModelLen"])
    assert values == [30416, 34576, 30416, 30416, 30416, 30416]
    assert (
        "were replaced 3 times already" in message(world.cluster, "PredictionOutdated")
        or "recalibrated" not in world.status
    )
    world.edit(replicas=3)
    await world.resync()
    assert world.cluster.record["recalibrations"] == 3, "scaling is no edit"


async def test_switching_it_on_is_no_edit_and_off_moves_nothing() -> None:
    world = await World().start()
    world.keep(LESS)
    await world.resync()
    before = world.stands()
    world.edit(admission={**ADJUST, "recalibrate": True})
    await world.resync()
    assert world.status["effective"]["maxModelLen"] == 30416
    world.keep(LESS, MORE)
    world.edit(admission={**ADJUST, "recalibrate": False})
    await world.resync()
    assert world.status["effective"]["maxModelLen"] == 30416
    assert before[1]["effective"]["maxModelLen"] == 33952


# -- other processes, other releases ---------------------------------------------------------------------------------------------------


def larger_model(patched: pytest.MonkeyPatch) -> None:
    shape = catalogue.find_model("Qwen/Qwen3-8B")
    assert shape is not None
    patched.setattr(facts.catalogue, "find_model", lambda _: replace(shape, vocab_size=2 * shape.vocab_size))


def smaller_gpu(patched: pytest.MonkeyPatch) -> None:
    known = catalogue.find_accelerator("H100-SXM-80GB")
    assert known is not None
    sizes = ("memory_bytes", "memory_low_bytes", "memory_high_bytes")
    less = {name: getattr(known, name) - gib(2) for name in sizes}
    other = replace(known, **less, gpu_labels=("ANOTHER-LABEL",), resource="nvidia.com/h100")
    patched.setattr(facts.catalogue, "find_accelerator", lambda _: other)


def forgotten_gpu(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(facts.catalogue, "find_accelerator", lambda _: None)
    patched.setattr(catalogue, "accelerators", lambda: ())


def another_release_table(patched: pytest.MonkeyPatch) -> None:
    real = workload.accounting_of

    def table(version: str) -> Any:
        found = real(version)
        return replace(found, shutdown_timeout=not found.shutdown_timeout)

    patched.setattr(workload, "accounting_of", table)


def another_renderer(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(workload, "GRACE_SECONDS", 300)
    patched.setattr(workload, "PRE_STOP_SECONDS", 5)
    patched.setattr(workload, "MAX_LOAD_SECONDS", 300)


UPGRADES = {
    "another shape of the model": larger_model,
    "another size of the GPU": smaller_gpu,
    "a GPU that is gone": forgotten_gpu,
    "another table of releases": another_release_table,
    "another renderer": another_renderer,
}


@pytest.mark.parametrize("upgrade", UPGRADES)
async def test_an_upgrade_moves_no_pod(upgrade: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await World(replicas=1).start()
    before = world.stands()
    UPGRADES[upgrade](monkeypatch)
    world.cluster.writes.clear()
    await world.start()
    assert world.stands() == before
    await world.start()
    world.cluster.writes.clear()
    await world.resync()
    assert world.cluster.writes == [], "it settles"
    world.edit(replicas=3)
    await world.resync()
    assert (world.cluster.objects["deployments"] or {})["spec"]["replicas"] == 3
    assert world.template == before[2], "scaling renders no other pod either"


async def test_drift_after_an_upgrade_is_corrected_as_this_release_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await World().start()
    another_renderer(monkeypatch)
    deployment = world.cluster.objects["deployments"] or {}
    deployment["spec"]["template"]["spec"]["containers"][0]["args"].append("--max-num-seqs=4096")
    await world.start()
    container = world.template["spec"]["containers"][0]
    assert "--max-num-seqs=4096" not in container["args"]
    assert world.template["spec"]["terminationGracePeriodSeconds"] == 300
    world.cluster.writes.clear()
    await world.start()
    assert world.cluster.writes == []


async def test_an_upgrade_is_named_where_it_moves_the_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await World().start()
    monkeypatch.setattr("kvgate.rendering.recalibration.__version__", "9.9.9")
    smaller_gpu(monkeypatch)
    await world.start()
    shown = world.status["recalibrated"]
    assert shown["message"] == "kvgate 0.1.0 admitted the spec, and kvgate 9.9.9 computes other figures"
    assert shown["kvgateVersion"] == "9.9.9"


def wipe(world: World) -> None:
    world.document["status"] = {}


def without_its_name(world: World) -> None:
    del world.status["admission"]


def edit(world: World) -> None:
    world.status["admission"] |= {"record": "qwen-0123456789abcdef", "specDigest": "0" * 64}
    world.status["effective"]["maxModelLen"] = 40960
    world.status["budget"]["capacityTokens"] = 1
    world.status["conditions"] = []


def write_nonsense(world: World) -> None:
    budget = {**world.status["budget"], "verdict": "DoesNotFit", "capacityTokens": 1}
    world.document["status"] = {"budget": budget, "effective": {"kvCacheDtype": "fp8"}, "admission": {"record": "../x"}}


def refuse(world: World) -> None:
    world.document["status"] = {"conditions": [{"type": "Accepted", "status": "False"}]}


def lose_the_record(world: World) -> None:
    world.cluster.records.clear()


def lose_record_and_status(world: World) -> None:
    world.cluster.records.clear()
    world.document["status"] = {}


CHANGES = {
    "status wiped": wipe,
    "status without the name of the record": without_its_name,
    "status edited": edit,
    "status of nonsense": write_nonsense,
    "status with a refusal": refuse,
    "record deleted": lose_the_record,
    "record and status deleted": lose_record_and_status,
}


@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("change", CHANGES)
async def test_what_somebody_deletes_or_changes_comes_back(change: str, *, is_restarted: bool) -> None:
    """The record is the admission; where it is gone, the Deployment says by its digest which judgement it was."""
    world = await World(LESS).start()
    before = world.stands()
    world.keep(LESS, MORE)  # it would be judged otherwise today
    CHANGES[change](world)
    world.cluster.writes.clear()
    await (world.start() if is_restarted else world.resync_listed())
    assert world.stands() == before
    assert ("apply", "deployments") not in world.cluster.writes
    world.edit(replicas=2)
    await world.start()
    assert world.template == before[2]
    assert list(world.cluster.records.values()) == list(before[3].values())


def other_values(world: World) -> None:
    args = (world.cluster.objects["deployments"] or {})["spec"]["template"]["spec"]["containers"][0]["args"]
    args[:] = [each.replace("30416", "40000") for each in args]


async def test_pods_that_somebody_edits_prove_nothing() -> None:
    world = await World(LESS).start()
    before = world.stands()
    world.keep(MORE)
    wipe(world)
    other_values(world)
    await world.start()
    assert world.stands() == before


def noted(name: str, text: str) -> Callable[[World], None]:
    def change(world: World) -> None:
        (world.cluster.objects["deployments"] or {})["metadata"]["annotations"][f"kvgate.io/{name}"] = text

    return change


def forged_record(world: World) -> None:
    """A record with other values, below the name that its content has."""
    (record,) = world.cluster.records.values()
    record["spec"]["effective"]["maxModelLen"] = 40000
    record["metadata"]["name"] = f"qwen-{_digest_of(record['spec'])[:16]}"
    world.cluster.records = {record["metadata"]["name"]: record}
    noted("admission-record", record["metadata"]["name"])(world)


FORGERIES: dict[str, Callable[[World], None]] = {
    "a record with other values": forged_record,
    "another digest": noted("admission-digest", "0" * 64),
    "another revision": noted("calibration-revision", "99"),
    "no digest": noted("admission-digest", "[" * 5000),
}


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_what_kvgate_did_not_write_is_not_believed(forgery: str) -> None:
    world = await World(replace(LESS, revision=1), admission=ADJUST).start()
    assert world.status["effective"]["maxModelLen"] == 30416
    world.keep(LESS, MORE)
    wipe(world)
    if "record" not in forgery:
        world.cluster.records.clear()
    FORGERIES[forgery](world)
    await world.start()
    judged_today = (await World(LESS, MORE).start()).status["effective"]["maxModelLen"]
    assert world.status["effective"]["maxModelLen"] == judged_today, "it is judged anew"
    await world.resync_listed()
    await world.resync_listed()
    assert world.cluster.record["effective"]["maxModelLen"] == judged_today, "and the forged record is gone"


async def test_a_record_says_nothing_about_another_spec() -> None:
    world = await World(LESS).start()
    world.keep(MORE)
    wipe(world)
    world.edit(vllm={"maxNumSeqs": 12, "maxModelLen": 40000})
    await world.start()
    assert world.status["effective"]["maxModelLen"] == 34576


async def test_an_edit_and_its_undoing_are_two_admissions() -> None:
    world = await World(LESS).start()
    first = world.cluster.record
    world.keep(MORE)
    world.edit(vllm={**SEQS, "maxModelLen": 16384})
    await world.resync()
    assert world.cluster.record["effective"]["maxModelLen"] == 16384, "one record at a time"
    world.edit(vllm=SEQS)
    await world.resync()
    assert world.status["effective"]["maxModelLen"] == 34576, "the first admission is not revived"
    assert world.cluster.record != first


async def test_a_refused_edit_and_its_undoing_are_none() -> None:
    world = await World(LESS, admission={"policy": "Reject"}, vllm={"maxNumSeqs": 4}).start()
    before = world.stands()
    world.keep(MORE)
    world.edit(vllm={"maxNumSeqs": 400})
    await world.start()
    assert told(world.cluster)["Accepted"] == ("False", "BudgetExceeded")
    assert world.cluster.records == before[3]
    world.edit(vllm={"maxNumSeqs": 4})
    await world.start()
    assert world.stands()[1:] == before[1:], "all but the generation that the conditions are about"


async def test_a_hundred_scalings_write_no_record() -> None:
    world = await World(LESS).start()
    before, size = world.cluster.record, len(json.dumps(world.document))
    for replicas in range(100):
        world.cluster.writes.clear()
        world.edit(replicas=replicas)
        await world.resync()
        budget = {("apply", "poddisruptionbudgets")} if replicas == 2 else set()  # the first with more than one replica
        assert set(world.cluster.writes) <= {("apply", "deployments"), ("apply", "status"), *budget}
    assert world.cluster.record == before
    assert len(json.dumps(world.document)) < size + 100


@pytest.mark.parametrize("keeps_owners", [True, False])
async def test_a_restore_from_a_backup_gives_the_same_objects_other_uids(*, keeps_owners: bool) -> None:
    world = await World(LESS).start()
    before = world.stands()
    world.keep(MORE)
    wipe(world)
    world.document["metadata"]["uid"] = "after-the-restore"
    children = [*world.cluster.records.values(), *map(world.cluster.objects.get, ("deployments", "services"))]
    for child in children if not keeps_owners else ():
        del (child or {})["metadata"]["ownerReferences"]
    world.cluster.writes.clear()
    await world.start()
    assert world.stands()[:3] == before[:3]
    assert {write for write in world.cluster.writes if write[0] == "merge"} == {
        ("merge", "admissionrecords"),
        ("merge", "deployments"),
        ("merge", "services"),
    }
    for child in (*world.cluster.records.values(), *map(world.cluster.objects.get, ("deployments", "services"))):
        assert [owner["uid"] for owner in (child or {})["metadata"]["ownerReferences"]] == ["after-the-restore"]
    world.cluster.writes.clear()
    await world.start()
    assert world.cluster.writes == []


@pytest.mark.parametrize("refusal", [Denied, Forbidden, Unavailable, NotFound])
async def test_nothing_is_rendered_without_a_record(refusal: type[ApiError]) -> None:
    world = World(LESS)
    world.cluster.refusals["create", "admissionrecords"] = refusal
    with contextlib.suppress(Forbidden, Unavailable):
        await world.start()
    assert "deployments" not in world.cluster.objects
    assert told(world.cluster)["Stalled"][0] == ("False" if refusal is Unavailable else "True")
    world.cluster.refusals.clear()
    await world.resync()
    assert told(world.cluster)["Accepted"] == ("True", "Adjusted")
    assert world.cluster.record["effective"]["maxModelLen"] == 30416


async def test_a_conflict_about_something_else_is_tried_again() -> None:
    """The API server answers 409 too where a quota was counted by another request meanwhile; no record of the name is there."""
    world = World(LESS)
    world.cluster.refusals["create", "admissionrecords"] = Conflict
    with pytest.raises(Conflict):
        await world.start()
    assert "status" not in (world.cluster.objects["inferencedeployments"] or {}), "nothing is told as settled"
    world.cluster.refusals.clear()
    await world.resync()
    assert told(world.cluster)["Accepted"] == ("True", "Adjusted")


async def test_an_edit_that_failed_half_way_is_no_replacement_that_nobody_asked_for() -> None:
    """Its record was stored, and its Deployment not changed: the next run changes it at once, and waits for no canary."""
    world = await World(LESS).start()
    deployment = world.cluster.objects["deployments"] or {}
    deployment["status"] = {
        "observedGeneration": 1,
        "replicas": 1,
        "updatedReplicas": 1,
        "availableReplicas": 1,
        "readyReplicas": 1,
    }
    await world.resync()
    world.edit(vllm={**SEQS, "maxModelLen": 16384})
    world.cluster.refusals["apply", "deployments"] = Unavailable
    with pytest.raises(Unavailable):
        await world.resync()
    assert len(world.cluster.records) == 2
    world.cluster.refusals.clear()
    await world.resync()
    assert "--max-model-len=16384" in world.template["spec"]["containers"][0]["args"]
    assert told(world.cluster).get("ReplacementPending", ("False", ""))[0] == "False"


async def test_a_name_that_somebody_took_is_reported() -> None:
    known = await World(LESS).start()
    ((name, record),) = known.cluster.records.items()
    world = World(LESS)
    world.cluster.records[name] = {**record, "spec": {**record["spec"], "message": "believe me"}}
    await world.start()
    assert told(world.cluster)["Stalled"] == ("True", "ApiRejected")
    text = message(world.cluster, "Stalled")
    assert (
        f"create admissionrecords.kvgate.io: {name} exists and is not the record of this InferenceDeployment; delete it"
        in text
    )
    assert "deployments" not in world.cluster.objects


async def test_a_record_that_was_not_deleted_goes_at_the_next_resync() -> None:
    world = await World(LESS).start()
    world.cluster.refusals["delete", "admissionrecords"] = Unavailable
    world.edit(vllm={**SEQS, "maxModelLen": 16384})
    await world.resync()
    assert len(world.cluster.records) == 2
    world.cluster.refusals.clear()
    await world.resync_listed()
    assert world.cluster.record["effective"]["maxModelLen"] == 16384


def as_an_older_release(status: dict[str, Any]) -> None:
    """It knows neither today's prediction nor the admission."""
    for name in ("admission", "recalibrated"):
        status.pop(name, None)


def as_a_newer_release(status: dict[str, Any]) -> None:
    status["forecast"] = {"of": "tomorrow"}
    status["admission"]["novel"] = 1
    status["effective"]["novelKnob"] = 3


@pytest.mark.parametrize("release", [as_an_older_release, as_a_newer_release])
async def test_a_downgrade_and_an_upgrade_move_nothing(release: Callable[[dict[str, Any]], None]) -> None:
    world = await World(LESS).start()
    before = world.stands()
    world.keep(MORE)
    release(world.status)
    forecast = world.status.get("forecast")
    await world.start()
    assert world.stands() == before
    assert world.status.get("forecast") == forecast, "a field that this release does not know is left alone"


async def test_what_an_older_crd_drops_is_not_written_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(LESS)
    patch_status = world.cluster.patch_status

    async def pruned(*request: Any) -> dict[str, Any]:
        stored = await patch_status(*request)
        as_an_older_release(stored["status"])
        return stored

    monkeypatch.setattr(world.cluster, "patch_status", pruned)
    await world.start()
    before = world.stands()
    world.keep(MORE)
    await world.resync()
    assert outdated(world) == ("True", "VerdictMoved")
    world.cluster.writes.clear()
    for _ in range(3):
        await world.resync()
    assert world.cluster.writes == []
    await world.start()
    await world.resync()
    assert world.stands() == before
    assert world.cluster.writes == [("apply", "status")], "once, by the next process"
    monkeypatch.undo()
    world.edit(replicas=2)
    await world.resync()
    await world.resync()
    assert {"admission", "recalibrated"} <= set(world.status), "with a newer CRD they are back"


async def test_a_record_that_this_release_cannot_read_is_left_for_one_that_can() -> None:
    """A later release allows more in the spec: after a downgrade neither object nor record can be read, and nothing is lost."""
    world = await World(LESS).start()
    template = world.template
    ((name, record),) = world.cluster.records.items()
    world.document["spec"]["novel"] = record["spec"]["admitted"]["novel"] = True
    world.document["metadata"]["generation"] = 2
    await world.start()
    assert told(world.cluster)["Accepted"] == ("False", "InvalidSpec")
    assert world.cluster.records == {name: record}
    assert world.status["admission"]["record"] == name
    assert world.template == template


async def test_the_text_of_a_model_may_be_deleted() -> None:
    config = json.dumps({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
        "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
    })  # fmt: skip
    model = {"name": "nobody/x", "configFrom": {"configMapKeyRef": {"name": "x", "key": "config.json"}}}
    cluster = FakeCluster(a_document(model=model, vllm=SEQS, admission=ADJUST))
    cluster.objects["configmaps"] = {"data": {"config.json": config}}
    await new(cluster)[0](KEY)
    before = json.dumps(
        [cluster.objects["deployments"], (cluster.objects["inferencedeployments"] or {})["status"]["budget"]]
    )
    cluster.objects["configmaps"] = None
    for _ in range(2):
        await new(cluster)[0](KEY)
    assert (
        json.dumps(
            [cluster.objects["deployments"], (cluster.objects["inferencedeployments"] or {})["status"]["budget"]]
        )
        == before
    )


async def test_an_object_is_judged_once_until_a_start_of_such_an_engine_is_learnt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, judged = await World(LESS).start(), []
    judge = world.memory._judge

    async def counted(*question: Any) -> Any:
        judged.append(question)
        return await judge(*question)

    monkeypatch.setattr(world.memory, "_judge", counted)
    elsewhere = a_start(-1, max_num_seqs=12, gpu="A100-SXM-80GB")
    world.keep(LESS, elsewhere)
    for _ in range(3):
        await world.resync()
    assert judged == [], "a start of another GPU says nothing about this one"
    world.keep(LESS, elsewhere, replace(LESS, available_kv_cache_bytes=LESS.available_kv_cache_bytes + (1 << 28)))
    for _ in range(3):
        await world.resync()
    assert len(judged) == 2, "as of the admission, and as of today"
