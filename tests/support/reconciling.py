"""A cluster in memory with one InferenceDeployment, and a reconciler for it."""

import copy
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from unittest.mock import AsyncMock

from prometheus_client import CollectorRegistry

from kvgate.cluster.client import ADMISSION_RECORDS, INFERENCE_DEPLOYMENTS, Cluster, Kind
from kvgate.cluster.errors import ApiError, Conflict
from kvgate.cluster.events import EventRecorder
from kvgate.controller.decision import Key
from kvgate.controller.live import LiveObjects
from kvgate.controller.memory import Memory
from kvgate.controller.reconcile import ReconcileInstruments, Reconciler
from kvgate.controller.starts import ObservedStarts
from kvgate.metrics import registry as metrics
from kvgate.metrics.exporter import DeploymentSnapshot, counter, histogram
from support.status_patch import merged

KEY = ("serving", "qwen")
Call = tuple[str, str]


def _fields(value: Any) -> dict[str, Any]:
    """The fields of what was applied, as `managedFields` names them."""
    if isinstance(value, dict):
        return {f"f:{name}": _fields(item) for name, item in value.items()}
    if isinstance(value, list) and value and all(isinstance(item, dict) and "name" in item for item in value):
        return {"k:" + json.dumps({"name": item["name"]}): {".": {}, **_fields(item)} for item in value}
    return {}


class FakeCluster:
    """Objects by kind; every write is remembered, and may be refused."""

    def __init__(self, document: dict[str, Any] | None) -> None:
        self.objects: dict[str, dict[str, Any] | None] = {INFERENCE_DEPLOYMENTS.plural: document}
        self.records: dict[str, dict[str, Any]] = {}
        """AdmissionRecords by their names."""
        self.writes: list[Call] = []
        self.refusals: dict[Call, type[ApiError]] = {}
        self.removed: list[str] = []
        self.created: list[dict[str, Any]] = []

    @property
    def record(self) -> dict[str, Any]:
        """The only record, as it says what was admitted."""
        (found,) = self.records.values()
        spec: dict[str, Any] = found["spec"]
        return spec

    def _check(self, verb: str, resource: str) -> None:
        if refusal := self.refusals.get((verb, resource)):
            raise refusal(verb, resource, "as the test says")

    async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        self._check("get", kind.plural)
        if kind is ADMISSION_RECORDS:
            return copy.deepcopy(self.records.get(name))
        found = self.objects.get(kind.plural)
        return found if found is None or found.get("metadata", {}).get("name", name) == name else None

    async def apply(self, kind: Kind, body: dict[str, Any], *, is_first: bool = False) -> dict[str, Any]:
        self._check("apply", kind.plural)
        self.writes.append(("apply", kind.plural))
        entry = {"manager": "kvgate", "operation": "Apply", "fieldsV1": _fields({"spec": body.get("spec", {})})}
        given = {"uid": f"uid-{kind.plural}", "resourceVersion": str(len(self.writes)), "managedFields": [entry]}
        self.objects[kind.plural] = {**body, "metadata": {**body["metadata"], **given}}
        return self.objects[kind.plural] or {}

    async def patch_status(self, kind: Kind, metadata: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
        self._check("apply", "status")
        self.writes.append(("apply", "status"))
        document = self.objects[kind.plural]
        assert document is not None
        assert metadata["uid"] == document["metadata"]["uid"]
        json.dumps(status, ensure_ascii=False).encode()
        document["status"] = merged(document.get("status", {}), status)
        return document

    async def remove(self, kind: Kind, metadata: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
        self._check("remove", kind.plural)
        self.writes.append(("remove", kind.plural))
        self.removed += paths
        found = self.objects[kind.plural]
        assert found is not None
        return found

    async def create(self, kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
        self._check("create", kind.plural)
        if kind is ADMISSION_RECORDS and body["metadata"]["name"] in self.records:
            raise Conflict("create", kind.resource, "it exists already")
        self.writes.append(("create", kind.plural))
        if kind is ADMISSION_RECORDS:
            self.records[body["metadata"]["name"]] = json.loads(json.dumps(body))
        else:
            self.created.append(body)
        return body

    async def merge(self, kind: Kind, namespace: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        self._check("merge", kind.plural)
        self.writes.append(("merge", kind.plural))
        found = self.records[name] if kind is ADMISSION_RECORDS else self.objects.get(kind.plural)
        if found is not None:
            found["metadata"] |= body.get("metadata", {})
        return found or body

    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        self._check("delete", kind.plural)
        self.writes.append(("delete", kind.plural))
        self.records.pop(name, None)

    async def list_metadata(self, kind: Kind, namespace: str | None = None) -> AsyncIterator[dict[str, Any]]:
        async for item in self.list(kind, namespace):
            yield {"metadata": item["metadata"]}

    async def list(self, kind: Kind, namespace: str | None = None, **_: Any) -> AsyncIterator[dict[str, Any]]:
        self._check("list", kind.plural)
        found = self.objects.get(kind.plural)
        for each in self.records.values() if kind is ADMISSION_RECORDS else filter(None, [found]):
            yield copy.deepcopy(each)


class _Unwatched(LiveObjects):
    """No watch reports what a test changes in the fake cluster, so each run reads it there."""

    async def find(self, cluster: Cluster, kind: Kind, key: Key) -> dict[str, Any] | None:
        return await cluster.find(kind, *key)


def new(
    cluster: FakeCluster, memory: Memory | None = None, **options: Any
) -> tuple[Reconciler, Callable[[str], float]]:
    """A reconciler, and how often it ended with a result."""
    registry = CollectorRegistry()
    results = counter(metrics.RECONCILES, registry)
    instruments = ReconcileInstruments(results=results, durations=histogram(metrics.RECONCILE_DURATION, registry))
    recorder = EventRecorder(cluster, instance="test")  # type: ignore[arg-type]
    memory = memory or Memory(DeploymentSnapshot(), ObservedStarts(None))
    options = {"on_start": AsyncMock(return_value=""), **options}
    reconciler = Reconciler(cluster, recorder, memory, instruments, **options)  # type: ignore[arg-type]
    reconciler.live = _Unwatched()
    return reconciler, lambda result: results.labels(result)._value.get()


def message(cluster: FakeCluster, kind: str) -> str:
    """Of one condition."""
    document = cluster.objects[INFERENCE_DEPLOYMENTS.plural]
    assert document is not None
    return next(str(each["message"]) for each in document["status"]["conditions"] if each["type"] == kind)


def told(cluster: FakeCluster) -> dict[str, tuple[str, str]]:
    document = cluster.objects[INFERENCE_DEPLOYMENTS.plural]
    assert document is not None
    return {c["type"]: (c["status"], c["reason"]) for c in document["status"]["conditions"]}
