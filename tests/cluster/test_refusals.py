"""Who refuses is named: the role, a quota, a policy of the cluster; and what no release can read stops nobody else."""

import json
from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from fleet.doors import answers
from support.doors import Door
from support.inference import Objects, inference_deployment

pytestmark = pytest.mark.cluster


def quota(plane: ControlPlane, namespace: str, **hard: str) -> None:
    plane.kubectl("create", "namespace", namespace)
    limits = ",".join(f"{resource.replace('_', '/')}={amount}" for resource, amount in hard.items())
    plane.kubectl("create", "quota", "few", "-n", namespace, f"--hard={limits}")

    def is_counted() -> bool:
        return "hard" in json.loads(plane.kubectl("get", "quota", "few", "-n", namespace, "-o", "json").stdout).get(
            "status", {}
        )

    wait_until(is_counted, "the quota is in force")


def test_a_quota_of_deployments_is_called_a_quota(plane: ControlPlane, objects: Objects) -> None:
    quota(plane, "no-deployments", **{"count_deployments.apps": "0"})
    plane.apply(inference_deployment("over", namespace="no-deployments"))
    message = objects.wait_for("over", "Stalled", "True", "QuotaExceeded", namespace="no-deployments")
    assert "exceeded quota: few" in message
    assert objects.condition("over", "Accepted", "no-deployments")[:2] == ("True", "Fits")


def test_a_quota_of_pods_reaches_the_status(plane: ControlPlane, objects: Objects) -> None:
    quota(plane, "no-pods", pods="0")
    plane.apply(inference_deployment("empty", namespace="no-pods"))
    message = objects.wait_for("empty", "Stalled", "True", "QuotaExceeded", namespace="no-pods")
    assert "exceeded quota: few, requested: pods=1" in message
    plane.kubectl("patch", "quota", "few", "-n", "no-pods", "--type=merge", "-p", '{"spec": {"hard": {"pods": "5"}}}')
    plane.kubectl("scale", "infd", "empty", "-n", "no-pods", "--replicas=2")
    objects.wait_for("empty", "Ready", "True", namespace="no-pods")


def policy(name: str, reason: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    api = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["deployments"],
    }
    validation = {
        "expression": f"object.metadata.name != '{name}'",
        "message": "not on a Friday",
        **({"reason": reason} if reason else {}),
    }
    spec = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return {**api, "kind": "ValidatingAdmissionPolicy", "spec": spec}, {
        **api, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "reason", "told"), [("denied", "Forbidden", "AdmissionDenied"), ("invalid", None, "ApiRejected")]
)
def test_a_policy_of_the_cluster_is_named_and_not_taken_for_the_role(
    plane: ControlPlane, objects: Objects, name: str, reason: str | None, told: str
) -> None:
    plane.apply(*policy(name, reason))
    probe = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}},
    }  # fmt: skip

    def is_denied() -> bool:
        return (
            "Friday"
            in plane.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(probe), check=False).stderr
        )

    wait_until(is_denied, "the policy is in force")
    plane.apply(inference_deployment(name))
    message = objects.wait_for(name, "Stalled", "True", told)
    assert "not on a Friday" in message
    assert "role" not in message


def test_what_a_config_map_holds_stops_nobody_and_is_told(plane: ControlPlane, objects: Objects, door: Door) -> None:
    """Half a surrogate pair raised in every reconcile, and the resync ended without a word."""
    data = {"config.json": r'{"architectures": ["\ud800ForCausalLM"], "model_type": "qwen3"}', "secret-name": "x"}
    plane.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "half"}, "data": data})

    def model(key: str) -> dict[str, Any]:
        return {"name": "nobody/novel-7b", "configFrom": {"configMapKeyRef": {"name": "half", "key": key}}}

    plane.apply(
        inference_deployment("half", model=model("config.json")), inference_deployment("no-key", model=model("other"))
    )
    assert "half of a surrogate pair" in objects.wait_for("half", "Accepted", "Unknown", "InvalidModelConfig")
    assert "secret-name" not in objects.wait_for("no-key", "Accepted", "Unknown", "InvalidModelConfig")
    plane.apply(inference_deployment("healthy"))
    objects.wait_for("healthy", "Ready", "True")
    objects.resync(3)  # /livez would say if they had ended
    assert answers(door.metrics_port, "/livez")
    assert door.count("kvgate_background_errors_total") == 0


def test_a_long_note_of_many_bytes_is_an_event(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(
        inference_deployment("wordy", vllm={"maxNumSeqs": 64}, annotations={"kvgate.io/skip-budget": "→" * 250})
    )
    objects.wait_for("wordy", "Accepted", "True", "BudgetSkipped")
    wait_until(lambda: ("Warning", "BudgetSkipped") in objects.events("wordy"), "the event is there")
