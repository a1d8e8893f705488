"""Live objects as the controllers of earlier commits left them: this release adopts their admissions, and replaces no pod."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from kvgate.rendering.admission import sha256_of
from support.doors import Door, running
from support.inference import Objects

pytestmark = pytest.mark.cluster

LEFT = {
    path.stem: yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    for path in sorted(Path(__file__).with_name("earlier_releases").glob("*.yaml"))
}
"""Commit → what its controller left of each shape; tools/upgrades.py wrote it."""
NUM_OF_EACH = 1
"""Namespaces with the shapes of each commit; five make the 100 objects of tools/upgrades.py, which also goes back."""
INFD = "/apis/kvgate.io/v1alpha1"


def in_namespace(documents: list[dict[str, Any]], namespace: str) -> Iterator[dict[str, Any]]:
    """Yield the objects; without replicas, because nobody looks at their pods here."""
    for each in documents:
        metadata = {"name": each["name"], "namespace": namespace, "annotations": each["annotations"]}
        yield {
            "apiVersion": "kvgate.io/v1alpha1", "kind": "InferenceDeployment", "metadata": metadata,
            "spec": {**each["spec"], "replicas": 0},
        }  # fmt: skip


def signed_again(status: Mapping[str, Any], before: str, uid: str) -> dict[str, Any]:
    """The status with the digest that the same record has in an object of another uid."""
    if "standing" not in status:
        return dict(status)
    standing = status["standing"]
    signed = {key: value for key, value in standing.items() if key not in ("digest", "budget")}
    for budget in (standing.get("budget"), status.get("budget"), None):
        if sha256_of([before, budget, signed]) == standing["digest"]:
            return {**status, "standing": {**standing, "digest": sha256_of([uid, budget, signed])}}
    raise AssertionError("the digest of the record is not the one of its commit")


def children(each: Mapping[str, Any], live: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for child in each["children"]:
        reference = {**child["metadata"]["ownerReferences"][0], "uid": live["metadata"]["uid"]}
        metadata = {**child["metadata"], "namespace": live["metadata"]["namespace"], "ownerReferences": [reference]}
        spec = {**child["spec"], **({"replicas": 0} if child["kind"] == "Deployment" else {})}
        yield {**child, "metadata": metadata, "spec": spec}


def templates(plane: ControlPlane) -> dict[str, Any]:
    live = plane.request("GET", "/apis/apps/v1/deployments")["items"]
    return {f"{each['metadata']['namespace']}/{each['metadata']['name']}": each["spec"]["template"] for each in live}


def all_are_judged(door: Door, number: int) -> bool:
    """Look once a second: the figures of so many objects are many to read."""
    time.sleep(1.0)
    return door.count("kvgate_deployment_info") == number


def test_an_upgrade_from_each_commit_changes_no_template(plane: ControlPlane) -> None:
    objects, made, owned = Objects(plane=plane), [], []
    namespaces = {f"{commit}-{number}": left for commit, left in LEFT.items() for number in range(NUM_OF_EACH)}
    for namespace, left in namespaces.items():
        made.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        made += in_namespace(left, namespace)
    plane.kubectl("create", "-f", "-", input="\n---\n".join(map(json.dumps, made)))
    listed = plane.request("GET", f"{INFD}/inferencedeployments")["items"]
    live = {(each["metadata"]["namespace"], each["metadata"]["name"]): each for each in listed}
    for namespace, left in namespaces.items():
        for each in left:
            document = live[namespace, each["name"]]
            status = signed_again(each["status"], each["uid"], document["metadata"]["uid"])
            path = f"{INFD}/namespaces/{namespace}/inferencedeployments/{each['name']}/status"
            plane.request("PUT", path, {**document, "status": status})
            owned += children(each, document)
    plane.kubectl(
        "apply", "--server-side", "--field-manager=kvgate", "-f", "-", input="\n---\n".join(map(json.dumps, owned))
    )
    before = templates(plane)
    assert len(before) == len(LEFT) * 5 * NUM_OF_EACH
    for _ in range(2):  # and once more, with what the first one left
        with running(
            "controller", "--metrics-host=127.0.0.1", "--resync-seconds=1", kubeconfig=plane.kubeconfig
        ) as door:
            wait_until(lambda door=door: all_are_judged(door, len(before)), "all are judged")  # type: ignore[misc]
            objects.settle(2.0)
            assert door.count("kvgate_replacements") == 0
    changed = [name for name, template in templates(plane).items() if template != before[name]]
    assert changed == []
    for document in plane.request("GET", f"{INFD}/inferencedeployments")["items"]:
        name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
        (effective,) = [each["status"]["effective"] for each in namespaces[namespace] if each["name"] == name]
        assert {key: document["status"]["effective"][key] for key in effective} == effective
        assert "standing" not in document["status"]
        assert document["status"]["admission"]["record"]
