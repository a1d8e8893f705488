"""Kubernetes' own types in a spec are those of the API server, which takes a pod with every field that a spec may have."""

import json
from pathlib import Path

import pytest
import yaml

from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from generate.kubernetes_types import kubernetes_types
from kvgate.api.kubernetes_types import DATA
from support.inference import Objects

pytestmark = pytest.mark.cluster
ALLOWED = {
    "allowHostPath": True, "allowedServiceAccounts": ["weights"], "allowedInitImages": ["registry.example.com/team/*"],
    "allowedSidecarImages": ["registry.example.com/team/*"],
}  # fmt: skip
OPTIONS = ("--metrics-host=127.0.0.1", "--resync-seconds=1", "--observe-seconds=1", f"--pods={json.dumps(ALLOWED)}")
EVERY_FIELD = Path(__file__).resolve().parents[1] / "rendering" / "input" / "every-field.yaml"


def test_the_types_are_those_of_the_api_server(plane: ControlPlane) -> None:
    """`PYTHONPATH=tools python -m generate.kubernetes_types` writes the file."""
    assert kubernetes_types(lambda path: plane.request("GET", path)) == DATA.read_text(encoding="utf-8")


def test_a_pod_with_every_field_is_made_and_stays_as_it_is(plane: ControlPlane, objects: Objects) -> None:
    document = yaml.safe_load(EVERY_FIELD.read_text(encoding="utf-8"))
    document["metadata"]["namespace"] = "default"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "weights", "namespace": "default"}}
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "nvidia",
    }
    plane.apply(account, runtime, document)
    wait_until(lambda: len(objects.pods("everything")) == 2, "both pods are made")
    pod = objects.pods("everything")[0]["spec"]
    assert [each["name"] for each in pod["containers"]] == ["vllm", "log-shipper"]
    assert [each["name"] for each in pod["initContainers"]] == ["download", "proxy"]
    everywhere = [each["securityContext"]["capabilities"] for each in (*pod["containers"], *pod["initContainers"])]
    assert everywhere == [{"drop": ["ALL"]}] * 4
    assert {each["name"] for each in pod["volumes"]} >= {"cache", "shm", "node", "disk", "bucket"}
    before = objects.get("deployment", "everything")["metadata"]["generation"]
    wait_until(lambda: len(objects.writes("everything")) > 0, "the controller wrote")
    plane.kubectl("annotate", "infd", "everything", "look=again")
    objects.wait_for("everything", "Accepted", "True")
    assert objects.get("deployment", "everything")["metadata"]["generation"] == before, "nothing is corrected for ever"
    assert objects.condition("everything", "Drifted") == ("-", "-", "-")


def test_what_the_administrator_does_not_allow_is_not_rendered(plane: ControlPlane, objects: Objects) -> None:
    document = yaml.safe_load(EVERY_FIELD.read_text(encoding="utf-8"))
    document["metadata"] |= {"namespace": "default", "name": "refused"}
    document["spec"]["template"]["serviceAccountName"] = "another"
    plane.apply(document)
    message = objects.wait_for("refused", "Accepted", "False", "InvalidSpec")
    assert "pods.allowedServiceAccounts" in message
    assert objects.find("deployment", "refused") is None
