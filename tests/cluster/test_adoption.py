"""Deployments and Services that become an object's own: orphans of its name, a restored backup, and what others made."""

import copy
import json
from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from support.inference import Objects, inference_deployment

pytestmark = pytest.mark.cluster

ADOPT = "kvgate.io/adopt"


def restored(document: dict[str, Any]) -> dict[str, Any]:
    """As a tool for backups creates an object again: every default is written out, and nothing is left of uid, owner and managers."""
    document = copy.deepcopy(document)
    document["metadata"] = {
        key: document["metadata"][key]
        for key in ("name", "namespace", "labels", "annotations")
        if key in document["metadata"]
    }
    document["metadata"].setdefault("labels", {})["velero.io/restore-name"] = "nightly"
    document.pop("status", None)
    if document["kind"] == "Service":
        del document["spec"]["clusterIP"], document["spec"]["clusterIPs"]
    return document


def create(plane: ControlPlane, *documents: dict[str, Any]) -> None:
    for document in documents:
        plane.kubectl("create", "-f", "-", input=json.dumps(document))


def own(objects: Objects, name: str) -> list[dict[str, Any]]:
    """Its children and its record, once all have it as their owner."""
    uid = objects.get("infd", name)["metadata"]["uid"]
    record = objects.get("infd", name)["status"]["admission"]["record"]
    found = [objects.get(*place) for place in (("deployment", name), ("service", name), ("admissionrecord", record))]
    for child in found:
        assert [owner["uid"] for owner in child["metadata"]["ownerReferences"]] == [uid]
    return found


def test_orphans_and_a_restored_backup_are_adopted_and_no_pod_is_replaced(
    plane: ControlPlane, objects: Objects
) -> None:
    adjusted = {"vllm": {"maxNumSeqs": 64}, "admission": {"policy": "Adjust"}}
    plane.apply(inference_deployment("orphan"), inference_deployment("backup", **adjusted))
    for name in ("orphan", "backup"):
        objects.wait_for(name, "Ready", "True")
    before = objects.get("deployment", "orphan")
    plane.kubectl("delete", "infd", "orphan", "--cascade=orphan")
    create(plane, inference_deployment("orphan"))
    saved = own(objects, "backup")
    plane.kubectl("delete", "infd", "backup", "--timeout=240s")
    for kind, child in zip(("deployment", "service", "admissionrecord"), saved, strict=True):
        wait_until(
            lambda kind=kind, child=child: objects.find(kind, child["metadata"]["name"]) is None, "it is collected"
        )  # type: ignore[misc]
    create(plane, *map(restored, saved), inference_deployment("backup", **adjusted))
    again = objects.get("deployment", "backup")
    for name, was in (("orphan", before), ("backup", again)):
        objects.wait_for(name, "Ready", "True")
        deployment, *_ = own(objects, name)
        assert deployment["metadata"]["uid"] == was["metadata"]["uid"]
        assert deployment["spec"] == was["spec"]
        assert objects.condition(name, "Drifted")[0] in ("-", "False"), (
            "defaults that somebody wrote out are no difference"
        )
    assert own(objects, "backup")[2]["spec"] == saved[2]["spec"], "the admission stands"


def web(name: str, *containers: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """Somebody's own Deployment, with a selector that never changes."""
    template = {"metadata": {"labels": {"app": name, "tier": "llm"}}, "spec": {"containers": list(containers)}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": spec,
    }


VLLM = {
    "name": "server",
    "image": "vllm/vllm-openai:v0.30.0",
    "args": ["--model", "Qwen/Qwen3-8B"],
    "env": [{"name": "A", "value": "b"}],
}
SIDECAR = {"name": "proxy", "image": "nginx:1"}


def test_what_somebody_else_made_is_taken_by_the_annotation_and_said_first(
    plane: ControlPlane, objects: Objects
) -> None:
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "theirs", "annotations": {"team": "chat"}},
        "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 80, "name": "web"}]},
    }  # fmt: skip
    plane.apply(web("theirs", VLLM, SIDECAR), service, inference_deployment("theirs"))
    message = objects.wait_for("theirs", "Stalled", "True", "NameTaken")
    assert 'or set the annotation kvgate.io/adopt: "true"' in message
    assert "Deployment theirs: spec.replicas, " in message
    assert "its pods are replaced; Service theirs: spec.selector.kvgate.io/inferencedeployment" in message
    plane.kubectl("annotate", "infd", "theirs", f"{ADOPT}=true")
    objects.wait_for("theirs", "Ready", "True")
    deployment, taken, _ = own(objects, "theirs")
    pod = deployment["spec"]["template"]
    assert deployment["spec"]["selector"] == {"matchLabels": {"app": "theirs"}}
    assert [each["name"] for each in pod["spec"]["containers"]] == ["vllm"]
    assert pod["metadata"]["labels"] == {"app": "theirs", "tier": "llm", **pod["metadata"]["labels"]}
    assert deployment["metadata"]["generation"] == 2, "one write changes the pods, and they are replaced once"
    assert taken["spec"]["selector"] == {"kvgate.io/inferencedeployment": "theirs"}
    assert taken["metadata"]["annotations"]["team"] == "chat"
    assert sorted(port["port"] for port in taken["spec"]["ports"]) == [80, 8000]
    objects.wait_for_event("theirs", ("Warning", "Adopted"))
    objects.wait_for("theirs", "Observed", "False", "PodUnreachable")
    settled = objects.settle()
    objects.resync(2)
    assert len(objects.writes()) == settled, "it stays as it is"


def test_pods_stay_where_the_template_is_the_same(plane: ControlPlane, objects: Objects) -> None:
    """Such as a rendering that somebody stored in a repository, and that another tool applied."""
    plane.apply(inference_deployment("same"))
    objects.wait_for("same", "Ready", "True")
    copied = restored(objects.get("deployment", "same"))
    del copied["metadata"]["labels"], copied["metadata"]["annotations"]
    plane.kubectl("delete", "infd", "same", "--timeout=240s")
    wait_until(lambda: objects.find("deployment", "same") is None, "it is collected")
    create(plane, copied, inference_deployment("same"))
    assert "Deployment same: nothing but its metadata changes, and its pods stay" in objects.wait_for(
        "same", "Stalled", "True", "NameTaken"
    )
    before = objects.get("deployment", "same")
    plane.kubectl("annotate", "infd", "same", f"{ADOPT}=true")
    objects.wait_for("same", "Ready", "True")
    after, *_ = own(objects, "same")
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])


def test_some_are_never_taken(plane: ControlPlane, objects: Objects) -> None:
    adopt = {ADOPT: "true"}
    owner = {
        "apiVersion": "example.org/v1",
        "kind": "Application",
        "name": "chat",
        "uid": "5e8a6a8e",
        "controller": True,
    }
    twice = web(
        "twice", VLLM, {"name": "draft", "image": "corp/llm:7", "command": ["vllm", "serve", "Qwen/Qwen3-0.6B"]}
    )
    plane.apply(web("controlled", VLLM, ownerReferences=[owner]), twice)
    for name, why in (
        ("controlled", "Deployment controlled is controlled by Application chat"),
        ("twice", "Deployment twice runs vLLM in 2 containers (server, draft)"),
    ):
        generation = objects.get("deployment", name)["metadata"]["generation"]
        plane.apply(inference_deployment(name, annotations=adopt))
        assert why in objects.wait_for(name, "Stalled", "True", "NameTaken")
        assert objects.get("deployment", name)["metadata"]["generation"] == generation
