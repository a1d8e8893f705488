"""What changes beside the spec is followed within seconds, without the resync: it comes far too late to help here."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from support.doors import Door, running
from support.inference import Objects, inference_deployment

pytestmark = pytest.mark.cluster

SKIP = "kvgate.io/skip-budget"
TOO_MANY = {"maxNumSeqs": 64}
"""Full-length requests of Qwen3-8B: an H100 holds nine."""
NOVEL = {"name": "nobody/novel-7b", "configFrom": {"configMapKeyRef": {"name": "novel", "key": "config.json"}}}


@pytest.fixture(scope="module")
def door(plane: ControlPlane) -> Iterator[Door]:
    with running(
        "controller", "--metrics-host=127.0.0.1", "--resync-seconds=3600", kubeconfig=plane.kubeconfig
    ) as door:
        yield door


@pytest.fixture
def objects(plane: ControlPlane, door: Door) -> Objects:
    return Objects(plane=plane)


def foreign_deployment(name: str) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web"}]}}
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def config_map(name: str) -> dict[str, Any]:
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
        "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
    }  # fmt: skip
    data = {"config.json": json.dumps(config)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_the_break_glass_annotation_is_followed_when_it_comes_and_when_it_goes(
    plane: ControlPlane, objects: Objects
) -> None:
    plane.apply(inference_deployment("urgent", vllm=TOO_MANY))
    objects.wait_for("urgent", "Accepted", "False", "BudgetExceeded")
    plane.kubectl("annotate", "infd", "urgent", f"{SKIP}=load test on Tuesday")
    message = objects.wait_for("urgent", "Accepted", "True", "BudgetSkipped")
    assert message.startswith("load test on Tuesday: ")
    objects.wait_for("urgent", "Ready", "True")
    objects.wait_for_event("urgent", ("Warning", "BudgetSkipped"))
    pods = objects.get("deployment", "urgent")["metadata"]["generation"]
    plane.kubectl("annotate", "infd", "urgent", f"{SKIP}-")
    objects.wait_for("urgent", "Accepted", "False", "BudgetExceeded")
    assert "generation 1 keeps running" in objects.condition("urgent", "Stalled")[2]
    objects.settle(1.0)
    assert objects.get("deployment", "urgent")["metadata"]["generation"] == pods
    assert objects.get("deployment", "urgent")["spec"]["replicas"] == 1


def test_another_reason_in_the_annotation_is_told_and_the_metadata_stays_the_users(
    plane: ControlPlane, objects: Objects
) -> None:
    plane.apply(inference_deployment("renamed", vllm=TOO_MANY, annotations={SKIP: "Tuesday"}))
    objects.wait_for("renamed", "Accepted", "True", "BudgetSkipped")
    plane.kubectl("annotate", "--overwrite", "infd", "renamed", f"{SKIP}=Wednesday")
    wait_until(
        lambda: objects.condition("renamed", "Accepted")[2].startswith("Wednesday: "), "the new reason is told",
    )  # fmt: skip
    metadata = objects.get("infd", "renamed")["metadata"]
    assert [key for key in metadata["annotations"] if "kvgate.io/" in key] == [SKIP]
    assert "finalizers" not in metadata
    assert {write.subresource for write in objects.writes("renamed") if write.resource == "inferencedeployments"} == {
        "status"
    }


def test_what_comes_late_is_found_soon_and_waiting_writes_nothing(plane: ControlPlane, objects: Objects) -> None:
    def looks_for(config_map: str) -> int:
        return sum((e.resource, e.name) == ("configmaps", config_map) for e in plane.audit())

    elsewhere = {**NOVEL, "configFrom": {"configMapKeyRef": {"name": "never", "key": "config.json"}}}
    plane.apply(
        foreign_deployment("taken"),
        inference_deployment("taken"),
        inference_deployment("late", model=NOVEL),
        inference_deployment("waiting", model=elsewhere, replicas=0),
    )
    objects.wait_for("taken", "Stalled", "True", "NameTaken")
    objects.wait_for("waiting", "Accepted", "Unknown", "InvalidModelConfig")
    objects.wait_for("late", "Accepted", "Unknown", "InvalidModelConfig")
    objects.wait_for("late", "Ready", "True")
    objects.wait_for("waiting", "Ready", "True", "ScaledToZero")
    written, looks = len(objects.writes("waiting")), looks_for("never")
    plane.apply(config_map("novel"))
    plane.kubectl("delete", "deployment", "taken")
    objects.wait_for("late", "Accepted", "True", "Fits")
    objects.wait_for("taken", "Ready", "True")
    wait_until(lambda: looks_for("never") > looks, "the ConfigMap was looked for again")
    objects.settle(1.0)
    assert len(objects.writes("waiting")) == written
