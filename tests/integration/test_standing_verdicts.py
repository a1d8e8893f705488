"""Every way in which a verdict could move by itself, on a cluster in memory: the pods, the values and the promised figures stay."""

import copy
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import ObservedStart
from kvgate.budget.units import gib
from kvgate.calibration.keeping import with_start
from kvgate.calibration.records import MAX_STARTS, write_records
from kvgate.controller.memory import Memory
from kvgate.controller.starts import KEY as STARTS
from kvgate.controller.starts import ConfigMapName, ObservedStarts
from kvgate.judge import facts
from kvgate.metrics.exporter import DeploymentSnapshot
from kvgate.rendering import pod
from kvgate.rendering.labels import ADMISSION_ANNOTATION
from support.manifests import a_document
from support.reconciling import KEY, FakeCluster, message, new, told
from support.starts import a_pods_start, a_start

SEQS = {"maxNumSeqs": 12}
ADJUST = {"policy": "Adjust", "adjust": {"knobs": ["MaxModelLen"]}}
MAP = ConfigMapName(namespace="kvgate-system", name="kvgate-calibration")
LESS, MORE = a_start(-6, max_num_seqs=12), a_start(1.2, max_num_seqs=12)
"""Starts of the object's setting after which kvgate renders 30,416 or 35,072 tokens; without one it renders 33,952."""


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
        parts = {name: status.get(name) for name in ("effective", "budget", "calibrationRevision", "standing")}
        for each in conditions:
            del each["lastTransitionTime"]
        return json.loads(json.dumps([conditions, parts, self.template]))

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
    world.keep(LESS)
    await world.resync()
    shown = world.status["recalibrated"]
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
    assert world.status["provenance"]["recalibrations"] == 1
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
    assert world.status["provenance"].get("recalibrations", 0) == 0


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
    assert world.status["provenance"]["recalibrations"] == 3, "scaling is no edit"


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
    other = replace(
        known, memory_bytes=known.memory_bytes - gib(2), gpu_labels=("ANOTHER-LABEL",), resource="nvidia.com/h100"
    )
    patched.setattr(facts.catalogue, "find_accelerator", lambda _: other)


def forgotten_gpu(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(facts.catalogue, "find_accelerator", lambda _: None)
    patched.setattr(catalogue, "accelerators", lambda: ())


def another_release_table(patched: pytest.MonkeyPatch) -> None:
    real = pod.accounting_of

    def table(version: str) -> Any:
        found = real(version)
        return replace(found, shutdown_timeout=not found.shutdown_timeout)

    patched.setattr(pod, "accounting_of", table)


def another_renderer(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(pod, "GRACE_SECONDS", 300)
    patched.setattr(pod, "PRE_STOP_SECONDS", 5)
    patched.setattr(pod, "MAX_LOAD_SECONDS", 300)


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


def wipe_record(world: World) -> None:
    del world.status["standing"]


def edit_record(world: World) -> None:
    world.status["standing"]["effective"]["maxModelLen"] = 40960
    world.status["budget"]["capacityTokens"] = 1
    world.status["conditions"] = []


def write_nonsense(world: World) -> None:
    budget = {**world.status["budget"], "verdict": "DoesNotFit", "capacityTokens": 1}
    world.document["status"] = {
        "budget": budget,
        "effective": {"kvCacheDtype": "fp8"},
        "provenance": {"templateDigest": "x"},
    }


EDITS = {"wiped": wipe, "without its record": wipe_record, "edited": edit_record, "nonsense": write_nonsense}


@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("edit", EDITS)
async def test_a_status_that_somebody_changes_comes_back(edit: str, *, is_restarted: bool) -> None:
    """The record is in memory; after a restart the running Deployment is the witness."""
    world = await World(LESS).start()
    before = world.stands()
    world.keep(MORE)  # it would be judged otherwise today
    provenance = copy.deepcopy(world.status["provenance"])
    EDITS[edit](world)
    world.cluster.writes.clear()
    await (world.start() if is_restarted else world.resync())
    assert world.stands() == before
    if edit in ("edited", "without its record"):
        assert world.status["provenance"] == provenance
    assert ("apply", "deployments") not in world.cluster.writes
    world.edit(replicas=2)
    await world.start()
    assert world.template == before[2]


def other_values(deployment: dict[str, Any]) -> None:
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    args[:] = [each.replace("30416", "40000") for each in args]


def other_copy(deployment: dict[str, Any]) -> None:
    annotations = deployment["metadata"]["annotations"]
    annotations[ADMISSION_ANNOTATION] = annotations[ADMISSION_ANNOTATION].replace("30416", "40000")


def broken_copy(deployment: dict[str, Any]) -> None:
    deployment["metadata"]["annotations"][ADMISSION_ANNOTATION] = "[" * 5000


@pytest.mark.parametrize("forge", [other_values, other_copy, broken_copy])
async def test_a_witness_that_does_not_run_what_it_says_is_not_believed(
    forge: Callable[[dict[str, Any]], None],
) -> None:
    world = await World(LESS).start()
    world.keep(MORE)
    wipe(world)
    forge(world.cluster.objects["deployments"] or {})
    await world.start()
    assert world.status["effective"]["maxModelLen"] == 34576, "it is judged anew"


async def test_a_witness_says_nothing_about_another_spec_nor_against_a_refusal() -> None:
    world = await World(LESS).start()
    world.keep(MORE)
    wipe(world)
    world.edit(vllm={"maxNumSeqs": 12, "maxModelLen": 40000})
    await world.start()
    assert world.status["effective"]["maxModelLen"] == 34576
    world = await World(LESS).start()
    world.keep(MORE)
    world.document["status"] = {"conditions": [{"type": "Accepted", "status": "False"}]}
    await world.start()
    assert world.status["effective"]["maxModelLen"] == 34576


def as_an_older_release(status: dict[str, Any]) -> None:
    """It knows neither today's prediction nor the origin of the record."""
    for name in ("provenance", "recalibrated"):
        status.pop(name, None)


def as_a_newer_release(status: dict[str, Any]) -> None:
    status["forecast"] = {"of": "tomorrow"}
    status["standing"]["unsigned"] = {"more": 1}
    status["provenance"]["novel"] = "x"
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
    assert {"provenance", "recalibrated"} <= set(world.status), "with a newer CRD they are back"


async def test_a_record_that_this_release_cannot_read_is_left_for_one_that_can() -> None:
    """A later release allows more in the spec: after a downgrade neither object nor record can be read, and nothing is lost."""
    world = await World(LESS).start()
    template = world.template
    world.document["spec"]["novel"] = world.status["standing"]["spec"]["novel"] = True
    world.document["metadata"]["generation"] = 2
    record = copy.deepcopy(world.status["standing"])
    await world.start()
    assert told(world.cluster)["Accepted"] == ("False", "InvalidSpec")
    assert world.status["standing"] == record
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
