"""What was admitted last lives on, on a real control plane: after a refused edit, against drift and edits, and across restarts."""

import json
from functools import partial
from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from support.inference import Objects, inference_deployment, without_times

pytestmark = pytest.mark.cluster

TOO_MANY = {"maxNumSeqs": 64}
"""Full-length requests of Qwen3-8B: an H100 holds nine."""
LABEL = "kvgate.io/inferencedeployment"


def container(objects: Objects, name: str) -> dict[str, Any]:
    found: dict[str, Any] = objects.get("deployment", name)["spec"]["template"]["spec"]["containers"][0]
    return found


def template(objects: Objects, name: str) -> Any:
    return objects.get("deployment", name)["spec"]["template"]


def admitted(objects: Objects, name: str, **spec: Any) -> None:
    objects.plane.apply(inference_deployment(name, **spec))
    objects.wait_for(name, "Ready", "True")


def refused(objects: Objects, name: str) -> None:
    """Admitted first, and edited to what does not fit."""
    admitted(objects, name)
    objects.patch(name, {"spec": {"vllm": TOO_MANY}})
    objects.wait_for(name, "Accepted", "False", "BudgetExceeded")


def test_after_a_refused_edit_scaling_works_and_the_verdict_stays(plane: ControlPlane, objects: Objects) -> None:
    refused(objects, "scaled")
    before = template(objects, "scaled")
    plane.kubectl("scale", "infd", "scaled", "--replicas=2")
    wait_until(lambda: objects.get("infd", "scaled")["status"].get("readyReplicas") == 2, "two pods are ready")
    assert objects.wait_for("scaled", "Ready", "True", "ReplicasReady").startswith("2 of 2 replicas of generation 1")
    assert objects.condition("scaled", "Accepted")[:2] == ("False", "BudgetExceeded")
    assert objects.condition("scaled", "Stalled")[:2] == ("True", "BudgetExceeded")
    assert template(objects, "scaled") == before
    assert objects.record("scaled")["generation"] == 1


def test_what_was_admitted_without_a_verdict_lives_on_after_a_refused_edit(
    plane: ControlPlane, objects: Objects
) -> None:
    admitted(objects, "unknown", model={"name": "nobody/novel-7b"})
    assert objects.condition("unknown", "Accepted")[0] == "Unknown"
    objects.patch("unknown", {"spec": {"model": {"name": "Qwen/Qwen3-8B"}, "vllm": TOO_MANY}})
    objects.wait_for("unknown", "Accepted", "False", "BudgetExceeded")
    plane.kubectl("delete", "deployment", "unknown")
    objects.patch("unknown", {"spec": {"replicas": 2}})
    wait_until(lambda: objects.get("infd", "unknown")["status"].get("readyReplicas") == 2, "it is back, with two pods")
    assert "nobody/novel-7b" in json.dumps(template(objects, "unknown"))


def is_back(objects: Objects, kind: str, uid: str) -> bool:
    found = objects.find(kind, "mended")
    return found is not None and found["metadata"]["uid"] != uid


def test_after_a_refused_edit_children_come_back_and_drift_is_undone(plane: ControlPlane, objects: Objects) -> None:
    refused(objects, "mended")
    before = template(objects, "mended")
    for kind in ("deployment", "service"):
        uid = objects.get(kind, "mended")["metadata"]["uid"]
        plane.kubectl("delete", kind, "mended")
        wait_until(partial(is_back, objects, kind, uid), f"{kind} is back")
    assert template(objects, "mended") == before
    plane.kubectl("set", "image", "deployment/mended", "vllm=example.com/other:1")
    wait_until(lambda: template(objects, "mended") == before, "the image is put back")


def test_what_others_add_to_the_children_is_undone(plane: ControlPlane, objects: Objects) -> None:
    admitted(objects, "added")
    before = template(objects, "added")

    def undone(what: str) -> None:
        wait_until(lambda: template(objects, "added") == before, f"{what} is undone")

    plane.kubectl("set", "env", "deployment/added", "LD_PRELOAD=/tmp/evil.so")
    undone("an added variable")
    sidecar = {
        "containers": [{"name": "shell", "image": "busybox"}],
        "initContainers": [{"name": "first", "image": "busybox"}],
    }
    spec = {**sidecar, "hostNetwork": True, "volumes": [{"name": "host", "hostPath": {"path": "/"}}]}
    patch = json.dumps({"spec": {"template": {"spec": spec}}})
    plane.kubectl("patch", "deployment", "added", "--type=strategic", "-p", patch)
    undone("an added container")
    plane.kubectl("rollout", "pause", "deployment/added")
    wait_until(lambda: not objects.get("deployment", "added")["spec"].get("paused"), "it is resumed")
    plane.kubectl("patch", "service", "added", "--type=merge", "-p", '{"spec": {"selector": {"nobody": "here"}}}')
    wait_until(
        lambda: objects.get("service", "added")["spec"]["selector"] == {LABEL: "added"}, "the selector is put right"
    )
    status, reason, _ = objects.condition("added", "Drifted")
    assert status == "True", "what was taken back is shown for an hour"
    assert reason != "CorrectionUndone", "nothing of it came back"


def test_a_restart_of_the_pods_by_kubectl_is_nobodys_drift(plane: ControlPlane, objects: Objects) -> None:
    admitted(objects, "restarted")
    plane.kubectl("rollout", "restart", "deployment/restarted")
    annotations = template(objects, "restarted")["metadata"]["annotations"]
    objects.resync(2)
    assert template(objects, "restarted")["metadata"]["annotations"] == annotations
    assert "kubectl.kubernetes.io/restartedAt" in annotations


def test_what_comes_back_after_each_correction_is_reported_and_not_corrected_for_ever(
    plane: ControlPlane, objects: Objects
) -> None:
    admitted(objects, "fought")
    for _ in range(3):
        plane.kubectl("set", "env", "deployment/fought", "RELOADED=1")
        wait_until(lambda: all(e["name"] != "RELOADED" for e in container(objects, "fought")["env"]), "it is undone")
    plane.kubectl("set", "env", "deployment/fought", "RELOADED=1")
    message = objects.wait_for("fought", "Drifted", "True", "CorrectionUndone")
    assert "/spec/template/spec/containers/0/env/" in message
    objects.wait_for("fought", "Observed", "False", "PodUnreachable")  # nothing changes by itself any more
    settled = objects.settle()
    objects.resync(2)
    assert len(objects.writes()) == settled
    objects.wait_for_event("fought", ("Warning", "CorrectionUndone"))
    plane.kubectl("set", "env", "deployment/fought", "RELOADED-")
    objects.wait_for("fought", "Drifted", "False", "AsRendered")


def test_an_edit_of_the_status_is_put_right_whether_it_changes_or_adds(plane: ControlPlane, objects: Objects) -> None:
    admitted(objects, "edited")
    objects.wait_for("edited", "Observed", "False", "PodUnreachable")  # nothing changes by itself any more
    status = objects.get("infd", "edited")["status"]
    for edit in (
        {"effective": {"maxNumSeqs": 4096}},
        {"alternatives": [{"field": "spec.vllm.maxNumSeqs", "value": "999"}]},
        {"admission": {"record": "another", "specDigest": "none"}, "budget": {"capacityTokens": 1}},
        {"conditions": [], "calibrationRevision": 7, "replicas": 99},
    ):
        patch = json.dumps({"status": edit})
        plane.kubectl("patch", "infd", "edited", "--subresource=status", "--type=merge", "-p", patch)

        wait_until(
            lambda: without_times(objects.get("infd", "edited")["status"]) == without_times(status),
            f"{edit} is put right",
        )
    assert "--max-num-seqs=4" in container(objects, "edited")["args"]


def test_a_spec_beyond_an_annotations_256_kib_works_and_lives_on(plane: ControlPlane, objects: Objects) -> None:
    env = [{"name": f"TEXT_{number}", "value": "x" * 4096} for number in range(64)]
    document = inference_deployment(
        "large", template={"env": env, "annotations": {f"a{n}": "y" * 4000 for n in range(40)}}
    )
    assert len(json.dumps(document)) > 400_000
    plane.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(document))
    objects.wait_for("large", "Ready", "True")
    metadata = objects.get("infd", "large")["metadata"]
    assert set(metadata.get("annotations", {})) <= {"kubectl.kubernetes.io/last-applied-configuration"}
    objects.patch("large", {"spec": {"vllm": TOO_MANY, "replicas": 2}})
    objects.wait_for("large", "Accepted", "False", "BudgetExceeded")
    wait_until(lambda: objects.get("infd", "large")["status"].get("readyReplicas") == 2, "it is scaled all the same")
    assert len(json.dumps(objects.get("infd", "large"))) < 1_400_000


def test_a_spec_that_takes_most_of_what_etcd_stores_gets_its_status(plane: ControlPlane, objects: Objects) -> None:
    env = [
        {"name": f"TEXT_{number}", "value": "<" * 4096} for number in range(60)
    ]  # each < takes six bytes in the store
    document = inference_deployment("escaped", template={"env": env})
    plane.kubectl("create", "-f", "-", input=json.dumps(document))
    objects.wait_for("escaped", "Ready", "True")
    assert objects.record("escaped")["admitted"] == objects.get("infd", "escaped")["spec"]


@pytest.mark.parametrize(
    ("name", "spec", "last"),
    [
        (
            "tiny-cpu",
            {"template": {"resources": {"requests": {"cpu": "0.0001", "memory": "1e9"}, "limits": {"cpu": "1500m"}}}},
            ("Observed", "False", "PodUnreachable"),
        ),
        (
            "bad-label",
            {"template": {"labels": {"team": "not a label value"}}},
            ("Stalled", "True", "ApiRejected"),
        ),
    ],
)
def test_what_the_api_server_rounds_or_refuses_is_written_once(
    plane: ControlPlane, objects: Objects, name: str, spec: dict[str, Any], last: tuple[str, str, str]
) -> None:
    plane.apply(inference_deployment(name, **spec))
    objects.wait_for(name, *last)
    assert objects.condition(name, "Accepted")[0] == "True"
    objects.settle()
    written = len(objects.writes(name))
    objects.resync(3)
    assert len(objects.writes(name)) == written


def test_a_mutating_policy_of_others_is_neither_fought_nor_hidden(plane: ControlPlane, objects: Objects) -> None:
    mirror = "Object{spec: Object.spec{progressDeadlineSeconds: 77}}"
    resources = [
        {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["deployments"]}
    ]
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": "deadline"},
        "spec": {
            "matchConstraints": {"resourceRules": resources},
            "matchConditions": [{"name": "one", "expression": "object.metadata.name == 'mutated'"}],
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": mirror}}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": "deadline"},
        "spec": {"policyName": "deadline"},
    }  # fmt: skip
    plane.apply(policy, binding)

    def is_served() -> bool:
        probe = {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "mutated", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {
                "containers": [{"name": "a", "image": "a"}]}}},
        }  # fmt: skip
        found = plane.request("POST", "/apis/apps/v1/namespaces/default/deployments?dryRun=All", probe)
        return bool(found["spec"]["progressDeadlineSeconds"] == 77)

    wait_until(is_served, "the policy is in force")
    admitted(objects, "mutated")
    message = objects.wait_for("mutated", "Drifted", "True", "CorrectionUndone")
    assert "spec.progressDeadlineSeconds" in message
    objects.wait_for("mutated", "Observed", "False", "PodUnreachable")  # nothing changes by itself any more
    objects.settle(3.0)
    written = len(objects.writes("mutated"))
    objects.resync(3)
    assert len(objects.writes("mutated")) == written
