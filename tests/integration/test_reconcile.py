"""Gather, decide and act against a cluster in memory: what is asked of the API server, and what its refusals become."""

import copy
import json
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.api.conditions import Reason
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.checkpoint.published import ModelName
from kvgate.checkpoint.stored import StoredModels
from kvgate.cluster.client import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    INFERENCE_DEPLOYMENTS,
    RESOURCE_CLAIM_TEMPLATES,
    SERVICES,
    Kind,
)
from kvgate.cluster.errors import ApiError, Conflict, Forbidden, NotFound, Rejected, Unavailable
from kvgate.controller.decision import Awaited
from kvgate.controller.fetches import Failure
from kvgate.controller.memory import Memory
from kvgate.controller.resolution import Resolution, Waiting, resolution
from kvgate.controller.starts import ObservedStarts
from kvgate.judgement.assessment import Assessment
from kvgate.metrics.exporter import DeploymentSnapshot
from kvgate.rendering.labels import HASH_ANNOTATION
from kvgate.rendering.observation import Crash, Observation, RunningEngine
from kvgate.vllm.metric_names import EngineReading
from support.manifests import UID, a_document
from support.reconciling import KEY, Call, FakeCluster, message, new, told


class NotServed(NotFound):
    """As the client names the resource of a kind that the API server lacks."""

    def __init__(self, verb: str, _: str, said: str) -> None:
        super().__init__(verb, RESOURCE_CLAIM_TEMPLATES.resource, said)


async def test_the_first_run_applies_the_second_writes_nothing() -> None:
    cluster = FakeCluster(a_document())
    reconcile, count = new(cluster)
    assert await reconcile(KEY) is None
    assert cluster.writes == [
        ("create", "admissionrecords"),
        ("apply", "deployments"),
        ("apply", "services"),
        ("apply", "status"),
        ("create", "events"),
    ]
    cluster.writes.clear()
    await reconcile(KEY)
    assert cluster.writes == []
    assert (count("written"), count("unchanged")) == (1, 1)


async def test_a_refused_spec_writes_its_status_and_nothing_else() -> None:
    cluster = FakeCluster(a_document(vllm={"maxNumSeqs": 64}))
    await new(cluster)[0](KEY)
    assert cluster.writes == [("apply", "status"), ("create", "events")]


@pytest.mark.parametrize("document", [None, "deleting"])
async def test_an_object_that_is_gone_or_going_is_left_alone(document: str | None) -> None:
    going = a_document()
    going["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    cluster = FakeCluster(going if document else None)
    reconcile, count = new(cluster)
    await reconcile(KEY)
    assert cluster.writes == []
    assert count("gone") == 1


@pytest.mark.parametrize(("refusal", "result"), [(Conflict, "conflict"), (Unavailable, "unavailable")])
@pytest.mark.parametrize("call", [("get", "inferencedeployments"), ("apply", "deployments"), ("apply", "status")])
async def test_a_transient_refusal_is_passed_on_and_the_next_run_finishes(
    refusal: type[ApiError], result: str, call: Call
) -> None:
    cluster = FakeCluster(a_document())
    cluster.refusals[call] = refusal
    reconcile, count = new(cluster)
    with pytest.raises(refusal):
        await reconcile(KEY)
    assert count(result) == 1
    cluster.refusals.clear()
    await reconcile(KEY)
    assert told(cluster)["Accepted"] == ("True", "Fits")
    assert cluster.objects["deployments"]


@pytest.mark.parametrize("call", [("apply", "deployments"), ("apply", "services"), ("get", "deployments")])
async def test_a_missing_right_is_told_on_the_object_and_passed_on(call: Call) -> None:
    cluster = FakeCluster(a_document())
    cluster.refusals[call] = Forbidden
    with pytest.raises(Forbidden):
        await new(cluster)[0](KEY)
    assert told(cluster)["Stalled"] == ("True", "ApiForbidden")


async def test_a_write_that_fails_is_told_while_it_is_tried_again() -> None:
    cluster = FakeCluster(a_document())
    cluster.refusals["apply", "services"] = Unavailable
    reconcile, _ = new(cluster)
    with pytest.raises(Unavailable):
        await reconcile(KEY)
    assert told(cluster)["Reconciling"] == ("True", "ApiUnavailable")
    assert told(cluster)["Stalled"][0] == "False"
    assert told(cluster)["Accepted"] == ("True", "Fits")
    cluster.refusals.clear()
    await reconcile(KEY)
    assert told(cluster)["Reconciling"] == ("True", "RollingOut")


async def test_a_manifest_that_the_api_server_rejects_is_told_and_not_tried_at_once() -> None:
    cluster = FakeCluster(a_document())
    cluster.refusals["apply", "deployments"] = Rejected
    await new(cluster)[0](KEY)
    assert told(cluster)["Stalled"] == ("True", "ApiRejected")
    assert told(cluster)["Accepted"] == ("True", "Fits")


async def test_a_claim_of_a_device_class_that_the_api_server_does_not_serve_is_told_and_makes_no_deployment() -> None:
    claim = {"type": "H100-SXM-80GB", "resourceClaim": {"deviceClassName": "gpu.nvidia.com"}}
    cluster = FakeCluster(a_document(accelerator=claim))
    cluster.refusals["apply", RESOURCE_CLAIM_TEMPLATES.plural] = NotServed
    await new(cluster)[0](KEY)
    assert told(cluster)["Stalled"] == ("True", "ClaimsNotServed")
    assert "resource.k8s.io/v1" in message(cluster, "Stalled")
    assert ("apply", "deployments") not in cluster.writes
    cluster.refusals.clear()
    await new(cluster)[0](KEY)
    assert told(cluster)["Stalled"][0] == "False"
    assert ("apply", "deployments") in cluster.writes


async def test_an_object_that_vanishes_before_its_status_is_written_is_no_error() -> None:
    cluster = FakeCluster(a_document())
    cluster.refusals["apply", "status"] = NotFound
    await new(cluster)[0](KEY)
    assert ("create", "events") not in cluster.writes


async def test_the_figures_are_shown_though_a_crd_of_another_release_refuses_the_status() -> None:
    cluster, snapshot = FakeCluster(a_document()), DeploymentSnapshot()
    memory = Memory(snapshot, ObservedStarts(None))
    cluster.refusals[("apply", "status")] = Rejected
    reconcile, count = new(cluster, memory)
    with pytest.raises(Rejected):
        await reconcile(KEY)
    memory.publish()
    text = snapshot.text(units=False).decode()
    owner = 'namespace="serving",inferencedeployment="qwen"'
    assert f"kvgate_kv_cache_capacity_tokens{{{owner}" in text
    for name in ("replicas", "ready_replicas", "updated_replicas", "load_budget_seconds"):
        assert f"kvgate_{name}{{{owner}}} " in text
    assert count("unavailable") == 1


async def test_an_event_that_cannot_be_written_holds_nothing_up() -> None:
    cluster = FakeCluster(a_document())
    cluster.refusals["create", "events"] = Forbidden
    await new(cluster)[0](KEY)
    assert told(cluster)["Accepted"] == ("True", "Fits")


@pytest.mark.parametrize("kind", [DEPLOYMENTS, SERVICES])
async def test_a_child_with_another_owners_uid_is_left_alone(kind: Kind) -> None:
    cluster = FakeCluster(a_document())
    metadata = {"name": "qwen", "namespace": "serving", "ownerReferences": [{"uid": UID + "-before"}]}
    foreign = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": {}}
    cluster.objects[kind.plural] = foreign
    reconcile, _ = new(cluster)
    message = f"{kind.kind} qwen exist already and are not of this InferenceDeployment; rename one or the other"
    awaited = await reconcile(KEY)
    assert awaited is not None
    assert awaited.message.startswith(message)
    assert told(cluster)["Stalled"] == ("True", "NameTaken")
    assert cluster.objects[kind.plural] is foreign
    cluster.objects[kind.plural] = None
    assert await reconcile(KEY) is None
    assert cluster.objects[kind.plural]


async def test_a_child_on_its_way_out_is_waited_for() -> None:
    cluster = FakeCluster(a_document())
    reconcile, _ = new(cluster)
    await reconcile(KEY)
    deployment = cluster.objects["deployments"]
    assert deployment is not None
    deployment["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    deployment["spec"]["replicas"] = 7
    cluster.writes.clear()
    await reconcile(KEY)
    assert ("apply", "deployments") not in cluster.writes


async def test_a_changed_config_map_is_judged_anew() -> None:
    model = {"name": "nobody/x", "configFrom": {"configMapKeyRef": {"name": "x", "key": "config.json"}}}
    cluster = FakeCluster(a_document(model=model))
    reconcile, _ = new(cluster)
    assert await reconcile(KEY) == Awaited(uid=UID, generation=1, message="ConfigMap x does not exist")
    assert told(cluster)["Accepted"] == ("Unknown", "InvalidModelConfig")
    cluster.writes.clear()
    assert await reconcile(KEY) is not None
    assert cluster.writes == [], "waiting writes nothing"
    config = """{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 12288, "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16"}"""
    cluster.objects[CONFIG_MAPS.plural] = {"data": {"config.json": config}}
    assert await reconcile(KEY) is None
    assert told(cluster)["Accepted"] == ("True", "Fits")
    assert EVENTS.resource == "events.events.k8s.io"


async def test_what_pods_say_is_written_once_and_learnt_from_once() -> None:
    cluster, memory, learnt = FakeCluster(a_document()), Memory(DeploymentSnapshot(), ObservedStarts(None)), []

    async def learn(owner: InferenceDeployment, _: Assessment, start: RunningEngine | Crash) -> str:
        learnt.append((owner.name, start))
        return "not used: it contradicts"

    reconcile, _ = new(cluster, memory, on_start=learn)
    await reconcile(KEY)
    deployment = cluster.objects["deployments"]
    assert deployment is not None
    template = deployment["spec"]["template"]["metadata"]["annotations"][HASH_ANNOTATION]
    reading = EngineReading(num_gpu_blocks=100, block_size=16, kv_cache_size_tokens=1600)
    engines = tuple(RunningEngine(pod=pod, template_hash=pod, reading=reading) for pod in (template, "earlier"))
    memory.observe({KEY: Observation(engines=engines)})
    cluster.writes.clear()
    await reconcile(KEY)
    await reconcile(KEY)
    assert cluster.writes == [("apply", "status"), ("create", "events")]
    assert told(cluster)["PredictionDrift"] == ("True", "CapacityDiffers")
    assert learnt == [("qwen", engines[0])], "of what is rendered now, not of the earlier one"
    assert message(cluster, "PredictionDrift").endswith("; not used: it contradicts")


async def test_what_cannot_be_remembered_is_tried_again_and_holds_nothing_up() -> None:
    cluster, memory = FakeCluster(a_document()), Memory(DeploymentSnapshot(), ObservedStarts(None))
    learn = AsyncMock(side_effect=[Unavailable("patch", "configmaps", "timeout"), ""])
    reconcile, _ = new(cluster, memory, on_start=learn)
    await reconcile(KEY)
    deployment = cluster.objects["deployments"]
    assert deployment is not None
    template = deployment["spec"]["template"]["metadata"]["annotations"][HASH_ANNOTATION]
    reading = EngineReading(num_gpu_blocks=100, block_size=16, kv_cache_size_tokens=1600)
    memory.observe({KEY: Observation(engines=(RunningEngine(pod="a", template_hash=template, reading=reading),))})
    for _ in range(3):
        await reconcile(KEY)
        assert told(cluster)["PredictionDrift"] == ("True", "CapacityDiffers")
    assert learn.await_count == 2


async def test_an_object_that_cannot_be_judged_says_so_and_what_was_said_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, memory = FakeCluster(a_document()), Memory(DeploymentSnapshot(), ObservedStarts(None))
    reconcile, _ = new(cluster, memory)
    await reconcile(KEY)
    document = cluster.objects[INFERENCE_DEPLOYMENTS.plural]
    assert document is not None
    document["metadata"]["generation"] = 2
    document["spec"]["vllm"]["maxNumSeqs"] = 5

    def defect(*_: object) -> None:
        raise ZeroDivisionError("of ours")

    with monkeypatch.context() as broken:
        broken.setattr(memory, "judge", defect)
        for _ in range(2):
            cluster.writes.clear()
            with pytest.raises(ZeroDivisionError):
                await reconcile(KEY)
    assert cluster.writes == [], "the second time nothing is new"
    assert told(cluster)["Accepted"] == ("Unknown", "CannotBeJudged")
    assert told(cluster)["Stalled"] == ("True", "CannotBeJudged")
    assert "the controller's log has the traceback" in message(cluster, "Stalled").replace("The", "the")
    assert "of ours" not in message(cluster, "Stalled")
    assert cluster.record["generation"] == 1
    await reconcile(KEY)
    assert told(cluster)["Accepted"] == ("True", "Fits")
    assert told(cluster)["Stalled"][0] == "False"


async def test_an_edited_status_is_put_right_and_is_not_believed() -> None:
    cluster = FakeCluster(a_document())
    reconcile, _ = new(cluster)
    await reconcile(KEY)
    document = cluster.objects[INFERENCE_DEPLOYMENTS.plural]
    assert document is not None
    right = json.loads(json.dumps(document["status"]))
    document["status"]["admission"]["record"] = "another"
    document["status"]["effective"]["maxNumSeqs"] = 4096
    document["status"]["alternatives"] = [{"field": "x", "value": "y"}]
    del document["status"]["budget"]
    cluster.writes.clear()
    await reconcile(KEY)
    assert cluster.writes == [("apply", "status")]
    assert document["status"] == right


async def test_what_was_admitted_is_rendered_whatever_is_known_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process, another catalogue, other figures: the pods and what was promised stay."""
    cluster = FakeCluster(a_document(vllm={"maxNumSeqs": 64}, admission={"policy": "Adjust"}))
    await new(cluster)[0](KEY)
    document = cluster.objects[INFERENCE_DEPLOYMENTS.plural]
    assert document is not None
    before = json.loads(json.dumps([cluster.objects["deployments"], document["status"]]))
    monkeypatch.setattr(catalogue, "find_accelerator", lambda _: None)
    look_up = "kvgate.judgement.facts.catalogue.find_accelerator"
    monkeypatch.setattr(look_up, lambda _: None)
    cluster.writes.clear()
    reconcile, _ = new(cluster)
    await reconcile(KEY)
    assert cluster.writes == []
    document["spec"]["replicas"], document["metadata"]["generation"] = 3, 2
    await reconcile(KEY)
    deployment = cluster.objects["deployments"]
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 3
    assert deployment["spec"]["template"] == before[0]["spec"]["template"]
    assert document["status"]["effective"] == before[1]["effective"]
    document["spec"]["vllm"]["maxNumSeqs"], document["metadata"]["generation"] = 63, 3
    await reconcile(KEY)
    assert told(cluster)["Accepted"] == ("Unknown", "UnknownAccelerator"), "another spec is judged anew"
    assert told(cluster)["Stalled"] == ("True", "UnknownAccelerator")
    assert deployment["spec"]["template"] == before[0]["spec"]["template"], "and the admitted one lives on"


async def test_an_object_that_cannot_be_read_any_more_keeps_its_pods_and_their_replicas() -> None:
    cluster = FakeCluster(a_document())
    reconcile, _ = new(cluster)
    await reconcile(KEY)
    document = cluster.objects[INFERENCE_DEPLOYMENTS.plural]
    assert document is not None
    document["spec"]["template"] = {"resources": {"requests": {"memory": -1}}}
    document["spec"]["replicas"], document["metadata"]["generation"] = 4, 2
    cluster.objects["deployments"] = None
    await reconcile(KEY)
    deployment = cluster.objects["deployments"]
    assert deployment is not None
    assert deployment["spec"]["replicas"] == 4
    assert told(cluster)["Accepted"] == ("False", "InvalidSpec")
    assert message(cluster, "Stalled").endswith("generation 1 keeps running")


async def test_what_is_rejected_is_written_once() -> None:
    cluster = FakeCluster(a_document())
    cluster.refusals["apply", "deployments"] = Rejected
    reconcile, _ = new(cluster)
    await reconcile(KEY)
    await reconcile(KEY)  # the Service, which the refusal had held up
    attempts: list[Call] = []
    check = cluster._check

    def counted(verb: str, resource: str) -> None:
        attempts.append((verb, resource))
        check(verb, resource)

    cluster._check = counted  # type: ignore[method-assign]
    await reconcile(KEY)
    assert not [call for call in attempts if call[0] != "get"]
    assert told(cluster)["Stalled"] == ("True", "ApiRejected"), "and still said"


async def test_what_others_added_is_removed_by_its_path() -> None:
    cluster = FakeCluster(a_document())
    reconcile, _ = new(cluster)
    await reconcile(KEY)
    service = cluster.objects["services"]
    assert service is not None
    service["spec"]["selector"]["nobody"] = "here"
    cluster.writes.clear()
    await reconcile(KEY)
    assert cluster.writes[0] == ("remove", "services")
    assert cluster.removed == ["/spec/selector/nobody"]
    assert told(cluster)["Drifted"] == ("True", "CorrectionUndone"), "it is still there in the very answer"


class Asked:
    """A resolver whose state a test sets; it remembers for whom the hub was asked."""

    def __init__(self, state: Resolution) -> None:
        self.state = state
        self.asked: list[tuple[str, str]] = []
        self.assumed: list[bool] = []
        self.forgotten: list[tuple[str, str]] = []

    def look(self, *_: object) -> Resolution:
        return self.state

    def ask(self, key: tuple[str, str], _: Resolution, *, is_assumed: bool = False) -> None:
        self.asked.append(key)
        self.assumed.append(is_assumed)

    def forget(self, key: tuple[str, str]) -> None:
        self.forgotten.append(key)


def unresolved(failure: Failure | None) -> Resolution:
    name, waiting = ModelName("mine/small"), Waiting(since=0.0, seconds=60.0)
    return resolution({}, {name: failure}, StoredModels({}), waiting=waiting, now=1.0)


async def test_the_hub_is_asked_on_for_an_object_that_stands_on_an_assumption() -> None:
    away = unresolved(Failure(reason=Reason.HUB_UNREACHABLE, message="away", is_temporary=True))
    state = replace(away, held_until=None, reason=Reason.HUB_UNREACHABLE)
    cluster, resolver = FakeCluster(a_document(model={"name": "my-org/Qwen3-8B-AWQ"})), Asked(state)
    reconcile, _ = new(cluster, resolver=resolver)
    await reconcile(KEY)
    await reconcile(KEY)
    assert resolver.assumed == [False, True], "the second run finds the verdict that stands"


async def test_the_hub_is_asked_while_an_object_waits_and_for_nothing_that_was_admitted() -> None:
    cluster, resolver = FakeCluster(a_document(model={"name": "mine/small"})), Asked(unresolved(None))
    reconcile, count = new(cluster, resolver=resolver)
    await reconcile(KEY)
    assert cluster.writes == [("apply", "status"), ("create", "events")]
    assert told(cluster)["Accepted"] == ("Unknown", "Resolving")
    assert resolver.asked == [KEY]
    resolver.state = unresolved(Failure(reason=Reason.GATED, message="mine/small is gated"))
    await reconcile(KEY)
    assert ("apply", "deployments") in cluster.writes
    assert told(cluster)["Accepted"] == ("Unknown", "UnknownModel")
    cluster.writes.clear()
    resolver.asked.clear()
    resolver.state = unresolved(None)
    await reconcile(KEY)
    assert (cluster.writes, resolver.asked) == ([], []), "its verdict stands"
    cluster.objects[INFERENCE_DEPLOYMENTS.plural] = None
    await reconcile(KEY)
    assert resolver.forgotten == [KEY]
    assert count("gone") == 1


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [(SERVICES, "ports", [{"port": 1, "name": "other"}]), (DEPLOYMENTS, "replicas", 7)],
)
async def test_a_child_that_somebody_changed_is_corrected(kind: Kind, place: str, value: Any) -> None:
    cluster = FakeCluster(a_document())
    reconcile, _ = new(cluster)
    await reconcile(KEY)
    child = cluster.objects[kind.plural]
    assert child is not None
    before = copy.deepcopy(child["spec"])
    child["spec"][place] = value
    cluster.writes.clear()
    await reconcile(KEY)
    assert ("apply", kind.plural) in cluster.writes
    assert (cluster.objects[kind.plural] or {})["spec"] == before


@pytest.mark.parametrize("kind", [DEPLOYMENTS, SERVICES])
async def test_a_child_that_is_gone_is_made_again_however_often(kind: Kind) -> None:
    cluster = FakeCluster(a_document())
    reconcile, _ = new(cluster)
    for _ in range(6):
        await reconcile(KEY)
        assert cluster.objects.pop(kind.plural)


async def test_nothing_is_kept_of_a_deleted_object() -> None:
    cluster, snapshot = FakeCluster(a_document()), DeploymentSnapshot()
    memory = Memory(snapshot, ObservedStarts(None))
    reconcile, count = new(cluster, memory)
    await reconcile(KEY)
    memory.publish()
    assert KEY in snapshot.samples
    cluster.objects["inferencedeployments"] = None
    await reconcile(KEY)
    memory.publish()
    assert count("gone") == 1
    assert KEY not in snapshot.samples


@pytest.mark.parametrize(
    ("vllm", "refusal", "expected"),
    [
        ({}, None, [("Normal", "Fits", "Assess")]),
        ({"maxNumSeqs": 4096}, None, [("Warning", "BudgetExceeded", "Assess")]),
        ({}, Rejected, [("Normal", "Fits", "Assess"), ("Warning", "ApiRejected", "Apply")]),
    ],
)
async def test_an_event_says_what_was_done(
    vllm: dict[str, Any], refusal: type[ApiError] | None, expected: list[tuple[str, str, str]]
) -> None:
    cluster = FakeCluster(a_document(vllm=vllm))
    if refusal:
        cluster.refusals["apply", "deployments"] = refusal
    await new(cluster)[0](KEY)
    assert [(each["type"], each["reason"], each["action"]) for each in cluster.created] == expected
