"""Reconciles of one object against a cluster in memory: what is written, what a run is called, and what is remembered."""

import copy
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kvgate.cluster.client import DEPLOYMENTS, EVENTS, INFERENCE_DEPLOYMENTS, SERVICES, Kind
from kvgate.cluster.errors import ApiError, Conflict, Forbidden, NotFound, Rejected, Unavailable
from kvgate.cluster.events import EventRecorder
from kvgate.controller.memory import Memory
from kvgate.controller.reconcile import ReconcileInstruments, Reconciler
from kvgate.controller.starts import ObservedStarts
from kvgate.metrics.exporter import DeploymentSnapshot
from support.manifests import a_document

KEY = ("serving", "qwen")


class ClusterInMemory:
    """Objects by kind and name. `faults`: (verb, kind) → the error that it raises."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.writes: list[tuple[str, str]] = []
        self.faults: dict[tuple[str, str], ApiError] = {}

    def _write(self, verb: str, kind: Kind) -> None:
        if (verb, kind.kind) in self.faults:
            raise self.faults[verb, kind.kind]
        self.writes.append((verb, kind.kind))

    async def find(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any] | None:
        return copy.deepcopy(self.objects.get((kind.kind, name)))

    async def apply(self, kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
        self._write("apply", kind)
        name = body["metadata"]["name"]
        stored = copy.deepcopy(body)
        stored["metadata"] |= {"uid": f"uid-of-{kind.kind}", "generation": 1}
        self.objects[kind.kind, name] = stored
        return copy.deepcopy(stored)

    async def remove(self, kind: Kind, metadata: dict[str, Any], paths: Any) -> dict[str, Any]:
        self._write("remove", kind)
        return copy.deepcopy(self.objects[kind.kind, metadata["name"]])

    async def patch_status(self, kind: Kind, metadata: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
        self._write("patch", kind)
        stored = self.objects[kind.kind, metadata["name"]]
        merged = {**(stored.get("status") or {}), **status}
        stored["status"] = {name: value for name, value in merged.items() if value is not None}
        return copy.deepcopy(stored)

    async def create(self, kind: Kind, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        self._write("create", kind)
        self.objects[kind.kind, body["metadata"]["name"]] = body
        return body


class Setting:
    """A reconciler, and everything that it fills."""

    def __init__(self, **spec: Any) -> None:
        self.cluster, self.snapshot, self.metrics = ClusterInMemory(), DeploymentSnapshot(), CollectorRegistry()
        self.memory = Memory(self.snapshot, ObservedStarts(None))
        cluster: Any = self.cluster
        recorder = EventRecorder(cluster, instance="test")

        async def learn(*_: Any) -> str:
            return ""

        instruments = ReconcileInstruments.registered(self.metrics)
        self.reconcile = Reconciler(cluster, recorder, self.memory, instruments, learn)
        self.cluster.objects[INFERENCE_DEPLOYMENTS.kind, KEY[1]] = a_document(**spec)

    def runs(self, result: str) -> float | None:
        labels = {"result": result}
        return self.metrics.get_sample_value("kvgate_reconcile_total", labels)

    def condition(self, kind: str) -> tuple[str, str]:
        status = self.cluster.objects[INFERENCE_DEPLOYMENTS.kind, KEY[1]]["status"]
        found = next(each for each in status["conditions"] if each["type"] == kind)
        return found["status"], found["reason"]

    def events(self) -> list[tuple[str, str, str]]:
        found = (body for (kind, _), body in self.cluster.objects.items() if kind == EVENTS.kind)
        return [(each["type"], each["reason"], each["action"]) for each in found]


async def test_a_run_makes_the_children_and_the_next_one_writes_nothing() -> None:
    setting = Setting()
    await setting.reconcile(KEY)
    kinds = [kind for _, kind in setting.cluster.writes]
    assert kinds == [DEPLOYMENTS.kind, SERVICES.kind, INFERENCE_DEPLOYMENTS.kind, EVENTS.kind]
    assert setting.condition("Accepted") == ("True", "Fits")
    assert setting.events() == [("Normal", "Fits", "Assess")]
    setting.cluster.writes.clear()
    await setting.reconcile(KEY)
    assert setting.cluster.writes == []
    assert (setting.runs("written"), setting.runs("unchanged")) == (1, 1)


async def test_a_refused_object_has_no_child_and_a_warning() -> None:
    setting = Setting(vllm={"maxModelLen": 40960, "maxNumSeqs": 4096})
    await setting.reconcile(KEY)
    assert (DEPLOYMENTS.kind, KEY[1]) not in setting.cluster.objects
    assert setting.condition("Accepted") == ("False", "BudgetExceeded")
    assert setting.events() == [("Warning", "BudgetExceeded", "Assess")]


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [(SERVICES.kind, "ports", [{"port": 1, "name": "other"}]), (DEPLOYMENTS.kind, "replicas", 7)],
)
async def test_a_child_that_somebody_changed_is_corrected(kind: str, place: str, value: Any) -> None:
    setting = Setting()
    await setting.reconcile(KEY)
    child = setting.cluster.objects[kind, KEY[1]]
    before = copy.deepcopy(child["spec"])
    child["spec"][place] = value
    setting.cluster.writes.clear()
    await setting.reconcile(KEY)
    assert ("apply", kind) in setting.cluster.writes
    assert setting.cluster.objects[kind, KEY[1]]["spec"] == before


@pytest.mark.parametrize("kind", [DEPLOYMENTS.kind, SERVICES.kind])
async def test_a_child_that_is_gone_is_made_again_however_often(kind: str) -> None:
    setting = Setting()
    for _ in range(6):
        await setting.reconcile(KEY)
        assert setting.cluster.objects.pop((kind, KEY[1]), None)


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (Conflict("patch", "x", "changed"), "conflict"),
        (Forbidden("patch", "x", "no rule"), "forbidden"),
        (Unavailable("patch", "x", "away"), "unavailable"),
    ],
)
async def test_an_error_of_the_api_server_ends_the_run_and_names_it(error: ApiError, result: str) -> None:
    setting = Setting()
    setting.cluster.faults["patch", INFERENCE_DEPLOYMENTS.kind] = error
    with pytest.raises(type(error)):
        await setting.reconcile(KEY)
    assert setting.runs(result) == 1
    setting.cluster.faults.clear()
    await setting.reconcile(KEY)
    assert setting.runs("written") == 1


async def test_a_child_that_is_refused_is_told_and_not_tried_at_once_again() -> None:
    setting = Setting()
    setting.cluster.faults["apply", DEPLOYMENTS.kind] = Rejected("patch", "deployments", "spec is wrong")
    await setting.reconcile(KEY)
    assert setting.condition("Stalled") == ("True", "ApiRejected")
    assert ("Warning", "ApiRejected", "Apply") in setting.events()
    setting.cluster.faults.clear()
    setting.cluster.writes.clear()
    await setting.reconcile(KEY)
    assert ("apply", DEPLOYMENTS.kind) not in setting.cluster.writes


async def test_an_event_that_cannot_be_written_and_a_status_of_a_deleted_object_fail_nothing() -> None:
    setting = Setting()
    setting.cluster.faults["create", EVENTS.kind] = Rejected("create", "events", "no")
    await setting.reconcile(KEY)
    assert setting.runs("written") == 1
    other = Setting()
    other.cluster.faults["patch", INFERENCE_DEPLOYMENTS.kind] = NotFound("patch", "x", "deleted")
    await other.reconcile(KEY)
    assert other.runs("failed") is None


async def test_nothing_is_kept_of_a_deleted_object() -> None:
    setting = Setting()
    await setting.reconcile(KEY)
    setting.memory.publish()
    assert KEY in setting.snapshot.samples
    del setting.cluster.objects[INFERENCE_DEPLOYMENTS.kind, KEY[1]]
    await setting.reconcile(KEY)
    setting.memory.publish()
    assert setting.runs("gone") == 1
    assert KEY not in setting.snapshot.samples
