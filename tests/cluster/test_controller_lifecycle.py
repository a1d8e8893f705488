"""The controller as users run it, on a real control plane: what becomes of an InferenceDeployment."""

import json
from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import ControlPlaneError, wait_until
from kvgate.text.expansion import expand_references
from support.doors import Door
from support.inference import Objects, inference_deployment

pytestmark = pytest.mark.cluster

TOO_MANY = {"maxNumSeqs": 64}
"""Full-length requests of Qwen3-8B: an H100 holds nine."""


def args(deployment: dict[str, Any]) -> list[str]:
    found: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


def test_what_fits_runs_on_the_gpu_that_was_judged(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(inference_deployment("fits", replicas=2))
    objects.wait_for("fits", "Ready", "True", "ReplicasReady")
    pods = json.loads(plane.kubectl("get", "pods", "-l", "kvgate.io/inferencedeployment=fits", "-o", "json").stdout)
    assert [pod["spec"]["nodeName"] for pod in pods["items"]] == ["gpu-0", "gpu-0"]
    assert pods["items"][0]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert objects.get("service", "fits")["spec"]["ports"][0]["port"] == 8000
    status = objects.get("infd", "fits")["status"]
    assert (status["replicas"], status["readyReplicas"]) == (2, 2)
    assert status["budget"]["verdict"] == "Fits"
    told = {c["type"]: c["status"] for c in status["conditions"] if c["type"] != "Observed"}  # nobody answers there
    assert told == {
        "Accepted": "True", "Adjusted": "False", "Degraded": "False", "Loading": "False", "Predicted": "True",
        "PredictionDrift": "Unknown", "Ready": "True", "Reconciling": "False", "Scheduled": "True", "Stalled": "False",
    }  # fmt: skip
    wait_until(lambda: objects.events("fits") == [("Normal", "Fits")], "the event is there alone")


def test_a_users_text_and_the_build_of_a_release_pass_the_api_server_as_they_are_rendered(
    plane: ControlPlane, objects: Objects
) -> None:
    """Nothing of it is a reference any more; what the kubelet makes of it is in tests/unit/text/test_expansion.py."""
    vllm = {"version": "0.33.0+cu130", "maxNumSeqs": 4, "tensorParallelSize": 4}
    text = "$$(VLLM_API_KEY) $(HOME) $5$"
    secret = {"name": "VLLM_API_KEY", "secretKeyRef": {"name": "no-such", "key": "api-key"}}
    env = [secret, {"name": "GREETING", "value": text}]
    plane.apply(
        inference_deployment("texts", vllm=vllm | {"extraArgs": [f"--chat-template={text}"]}, template={"env": env})
    )
    objects.wait_for("texts", "Ready", "True")
    (pod,) = objects.pods("texts")
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "vllm/vllm-openai:v0.33.0-cu130"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert container["startupProbe"]["httpGet"]["path"] == "/health"
    words = [expand_references(word, lambda _: "replaced") for word in container["args"]]
    assert f"--chat-template={text}" in words
    values = {each["name"]: expand_references(each.get("value", ""), lambda _: "replaced") for each in container["env"]}
    assert values["GREETING"] == text
    assert objects.condition("texts", "Accepted")[:2] == ("True", "Fits")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            {"template": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}},
            "the device plugin gives it those",
        ),
        ({"vllm": {"extraArgs": ["--api-key=sk-2f9c41d07ab3"]}}, "VLLM_API_KEY in template.env with secretKeyRef"),
        ({"vllm": {"image": "vllm/vllm-openai:0.33.0+cu130"}}, "spec.vllm.image"),
    ],
)
def test_what_would_run_something_else_is_refused_by_the_api_server_itself(
    plane: ControlPlane, spec: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ControlPlaneError) as refused:
        plane.apply(inference_deployment("other", **spec))
    assert reason in str(refused.value)


def test_an_option_that_listens_elsewhere_is_refused_with_its_effect(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(inference_deployment("headless", vllm={"maxNumSeqs": 4, "extraArgs": ["--headless"]}))
    message = objects.wait_for("headless", "Accepted", "False", "SettingRefused")
    assert "--headless: vLLM starts no API server" in message
    objects.settle(1.0)
    assert objects.find("deployment", "headless") is None


def test_a_refusal_has_the_numbers_and_renders_nothing(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(inference_deployment("refused", vllm=TOO_MANY))
    message = objects.wait_for("refused", "Accepted", "False", "BudgetExceeded")
    assert "64 requests" in message
    assert "GiB" in message
    assert "maxNumSeqs 9" in message
    assert objects.condition("refused", "Stalled")[:2] == ("True", "BudgetExceeded")
    status = objects.get("infd", "refused")["status"]
    assert {"field": "spec.vllm.maxNumSeqs", "value": "9"} in status["alternatives"]
    assert "effective" not in status
    objects.settle(1.0)
    assert objects.find("deployment", "refused") is None
    assert objects.find("service", "refused") is None
    wait_until(lambda: objects.events("refused") == [("Warning", "BudgetExceeded")], "the event is there alone")


def test_an_edit_that_does_not_fit_leaves_the_running_pods_alone(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(inference_deployment("edited"))
    objects.wait_for("edited", "Ready", "True")
    before = objects.get("deployment", "edited")
    objects.patch("edited", {"spec": {"vllm": TOO_MANY}})
    objects.wait_for("edited", "Accepted", "False", "BudgetExceeded")
    assert "generation 1 keeps running" in objects.condition("edited", "Stalled")[2]
    assert objects.condition("edited", "Ready")[:2] == ("True", "ReplicasReady"), "Ready speaks of the pods that run"
    after, status = objects.get("deployment", "edited"), objects.get("infd", "edited")["status"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert status["effective"]["maxNumSeqs"] == 4
    assert status["readyReplicas"] == 1
    objects.patch("edited", {"spec": {"vllm": {"maxNumSeqs": 5}}})
    objects.wait_for("edited", "Ready", "True")
    assert "--max-num-seqs=5" in args(objects.get("deployment", "edited"))


def test_adjusted_values_are_rendered_and_the_spec_stays_the_users(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(inference_deployment("adjusted", vllm=TOO_MANY, admission={"policy": "Adjust"}))
    assert objects.wait_for("adjusted", "Adjusted", "True") == "maxNumSeqs 64 → 9"
    objects.wait_for("adjusted", "Ready", "True")
    document = objects.get("infd", "adjusted")
    assert document["spec"]["vllm"]["maxNumSeqs"] == 64
    assert document["status"]["effective"] == {"maxModelLen": 40960, "maxNumSeqs": 9, "kvCacheDtype": "auto"}
    assert "--max-num-seqs=9" in args(objects.get("deployment", "adjusted"))


def test_the_break_glass_reason_is_recorded(plane: ControlPlane, objects: Objects) -> None:
    skip = {"kvgate.io/skip-budget": "load test on Tuesday"}
    plane.apply(inference_deployment("skipped", vllm=TOO_MANY, annotations=skip))
    assert objects.wait_for("skipped", "Accepted", "True", "BudgetSkipped").startswith("load test on Tuesday: ")
    objects.wait_for("skipped", "Ready", "True")
    objects.wait_for_event("skipped", ("Warning", "BudgetSkipped"))
    assert "--max-num-seqs=64" in args(objects.get("deployment", "skipped"))


def test_an_unknown_model_is_rendered_as_written_and_an_unknown_gpu_is_not(
    plane: ControlPlane, objects: Objects
) -> None:
    plane.apply(
        inference_deployment("novel", model={"name": "nobody/novel-7b"}),
        inference_deployment("nowhere", accelerator={"type": "H9000"}),
    )
    objects.wait_for("novel", "Accepted", "Unknown", "UnknownModel")
    objects.wait_for("novel", "Ready", "True")
    assert args(objects.get("deployment", "novel")) == ["--max-num-seqs=4", "--shutdown-timeout=100"]
    objects.wait_for("nowhere", "Accepted", "Unknown", "UnknownAccelerator")
    assert objects.condition("nowhere", "Stalled")[:2] == ("True", "UnknownAccelerator")
    assert objects.find("deployment", "nowhere") is None


def test_a_config_map_is_read_and_every_way_in_which_it_is_wrong_is_told(plane: ControlPlane, objects: Objects) -> None:
    def model(key: str) -> dict[str, Any]:
        return {"name": "nobody/novel-7b", "configFrom": {"configMapKeyRef": {"name": "novel", "key": key}}}

    plane.apply(inference_deployment("config", model=model("config.json")))
    message = objects.wait_for("config", "Accepted", "Unknown", "InvalidModelConfig")
    assert "ConfigMap novel does not exist" in message
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
        "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
    }  # fmt: skip
    data = {"config.json": json.dumps(config), "broken.json": "{"}
    plane.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "novel"}, "data": data})
    objects.wait_for("config", "Accepted", "True", "Fits")  # the resync has seen it: ConfigMaps are not watched
    plane.apply(
        inference_deployment("no-key", model=model("other.json")),
        inference_deployment("broken", model=model("broken.json")),
    )
    message = objects.wait_for("no-key", "Accepted", "Unknown", "InvalidModelConfig")
    assert "no text under key other.json" in message
    assert "broken.json" not in message, "whoever may read the status may not be allowed to see the ConfigMap"
    assert "ConfigMap novel, key broken.json" in objects.wait_for("broken", "Accepted", "Unknown", "InvalidModelConfig")


def test_somebody_elses_deployment_of_that_name_is_left_alone(plane: ControlPlane, objects: Objects) -> None:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web"}]}}
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
    plane.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "taken"}, "spec": spec})
    plane.apply(inference_deployment("taken"))
    assert "Deployment taken" in objects.wait_for("taken", "Stalled", "True", "NameTaken")
    assert "ownerReferences" not in objects.get("deployment", "taken")["metadata"]
    plane.kubectl("delete", "deployment", "taken")
    objects.wait_for("taken", "Ready", "True")


def test_a_child_that_was_changed_or_deleted_is_put_right(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(inference_deployment("mended"))
    objects.wait_for("mended", "Ready", "True")
    plane.kubectl("scale", "deployment", "mended", "--replicas=3")
    wait_until(lambda: objects.get("deployment", "mended")["spec"]["replicas"] == 1, "the replicas are put back")
    plane.kubectl("delete", "service", "mended")
    wait_until(lambda: objects.find("service", "mended"), "the Service is made again")


def test_scaling_an_inference_deployment_scales_its_pods(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(inference_deployment("scaled"))
    objects.wait_for("scaled", "Ready", "True")
    plane.kubectl("scale", "infd", "scaled", "--replicas=3")
    wait_until(lambda: objects.get("infd", "scaled")["status"].get("readyReplicas") == 3, "three pods are ready")


def test_what_the_api_server_refuses_is_told_in_its_own_words(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(inference_deployment("rejected", template={"labels": {"team": "not a label value"}}))
    assert "not a label value" in objects.wait_for("rejected", "Stalled", "True", "ApiRejected")
    objects.patch("rejected", {"spec": {"template": {"labels": {"team": "serving"}}}})
    objects.wait_for("rejected", "Ready", "True")


@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_keys_of_kubernetes_and_kvgate_are_refused_in_the_template(plane: ControlPlane, part: str) -> None:
    document = inference_deployment("reserved", template={part: {"kvgate.io/inferencedeployment": "other"}})
    refused = plane.kubectl("apply", "-f", "-", input=json.dumps(document), check=False)
    assert "keys of kubernetes.io, k8s.io and kvgate.io are not yours to set" in refused.stderr


def test_a_deleted_object_takes_its_children_and_its_metrics_along(
    plane: ControlPlane, objects: Objects, door: Door
) -> None:
    plane.apply(inference_deployment("gone"))
    objects.wait_for("gone", "Ready", "True")
    wait_until(lambda: door.has('inferencedeployment="gone"'), "its metrics are served")
    plane.kubectl("delete", "infd", "gone", "--timeout=240s")
    for kind in ("deployment", "service"):
        wait_until(lambda kind=kind: objects.find(kind, "gone") is None, f"the {kind} is collected")
    wait_until(lambda: not door.has('inferencedeployment="gone"'), "its metrics are gone")


def test_a_name_that_is_used_again_gets_children_of_its_own(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(inference_deployment("again"))
    objects.wait_for("again", "Ready", "True")
    plane.kubectl("delete", "infd", "again", "--timeout=240s")
    plane.apply(inference_deployment("again", vllm={"maxNumSeqs": 2}))
    objects.wait_for("again", "Ready", "True")
    owner = objects.get("infd", "again")["metadata"]["uid"]
    assert objects.get("deployment", "again")["metadata"]["ownerReferences"][0]["uid"] == owner


def test_a_settled_cluster_is_not_written_to(objects: Objects) -> None:
    objects.wait_for("again", "Observed", "False", "PodUnreachable")  # the last one: nothing changes by itself any more
    written = objects.settle()
    assert written > 20, "the audit log must have seen the tests above"
    objects.resync(3)
    assert len(objects.writes()) == written


def test_every_write_is_one_that_the_role_allows(objects: Objects) -> None:
    from kvgate.cluster.permissions import LEASE_RULES, RULES

    allowed = {
        (r.group, resource, verb) for r in (*RULES, *LEASE_RULES) for resource in r.resources for verb in r.verbs
    }
    asked = {
        (
            e.group,
            f"{e.resource}/{e.subresource}" if e.subresource else e.resource,
            "create" if e.code == 201 else e.verb,
        )
        for e in objects.plane.audit()
        if e.user_agent.startswith("kvgate-controller") and e.resource
    }
    assert asked <= allowed
    assert ("apps", "deployments", "create") in asked
