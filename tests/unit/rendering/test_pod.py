"""The pod template: restricted, placed, and patient enough."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate import catalogue
from kvgate.api.v1alpha1 import Vllm
from kvgate.controller.decision import assess_owner
from kvgate.rendering.labels import HASH_ANNOTATION, PREDICTED_TOKENS_ANNOTATION
from kvgate.rendering.workload import Rendered, image_of, load_budget_seconds, render
from kvgate.text.expansion import expand_references
from support.manifests import an_owner

H100 = next(each for each in catalogue.accelerators() if each.name == "H100-SXM-80GB")


def manifests(**spec: Any) -> Rendered:
    owner = an_owner(**spec)
    judged = assess_owner(owner, "")
    rendered = render(owner, judged.assessment, judged.accelerator)
    assert isinstance(rendered, Rendered)
    return rendered


def pod(**spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = manifests(**spec).deployment["spec"]["template"]["spec"]
    return found


def container(**spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = pod(**spec)["containers"][0]
    return found


def test_the_pod_passes_the_restricted_standard() -> None:
    settings, vllm = pod(), container()
    assert settings["securityContext"]["runAsNonRoot"]
    assert settings["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert vllm["securityContext"]["allowPrivilegeEscalation"] is False
    assert vllm["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert settings["automountServiceAccountToken"] is False
    assert {next(iter(volume.keys() - {"name"})) for volume in settings["volumes"]} == {"emptyDir"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & settings.keys()


def test_tolerations_are_passed_on_as_kubernetes_spells_them() -> None:
    own = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    stated = {"key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    assert pod(template={"tolerations": [stated]})["tolerations"] == [own, stated]
    assert pod()["tolerations"] == [own]


@pytest.mark.parametrize(
    ("vllm", "count"),
    [
        ({}, "1"),
        ({"tensorParallelSize": 4}, "4"),
        ({"tensorParallelSize": 2, "dataParallelSize": 3}, "6"),
        ({"tensorParallelSize": 16, "decodeContextParallelSize": 2}, "16"),
    ],
)
def test_a_pod_asks_for_as_many_gpus_as_it_has_ranks(vllm: dict[str, Any], count: str) -> None:
    assert container(vllm=vllm | {"maxNumSeqs": 4})["resources"]["limits"] == {"nvidia.com/gpu": count}


@pytest.mark.parametrize(
    ("vllm", "memory", "expected", "shm"),
    [
        ({}, "1Gi", "2Gi", "1Gi"),
        ({}, "1G", "2073741824", "1Gi"),
        ({}, 1024, "1048577Ki", "1Gi"),
        ({"tensorParallelSize": 2}, "64Gi", "74Gi", "10Gi"),
        ({"tensorParallelSize": 8}, "0.5Gi", "16896Mi", "16Gi"),
    ],
)
def test_shared_memory_comes_on_top_of_the_memory_asked_for(
    vllm: dict[str, Any], memory: object, expected: str, shm: str
) -> None:
    template = {"resources": {"requests": {"memory": memory}, "limits": {"memory": memory}}}
    settings = pod(vllm=vllm | {"maxNumSeqs": 4}, template=template)
    resources = settings["containers"][0]["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"] == expected
    assert settings["volumes"][1]["emptyDir"] == {"medium": "Memory", "sizeLimit": shm}


def test_pods_go_to_the_gpu_that_was_judged_and_to_no_shared_one() -> None:
    terms = pod()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [
        {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-H100-80GB-HBM3"]}]}
    ]
    labels = [label for accelerator in catalogue.accelerators() for label in accelerator.gpu_labels]
    assert not [label for label in labels if label.endswith("-SHARED")]


def test_the_token_is_referenced_and_never_copied() -> None:
    model = {"name": "Qwen/Qwen3-8B", "tokenSecretRef": {"name": "hf", "key": "token"}}
    env = {variable["name"]: variable for variable in container(model=model)["env"]}
    assert env["HF_TOKEN"] == {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}


def test_weights_that_are_there_already_are_not_looked_for_on_the_hub() -> None:
    model = {"name": "Qwen/Qwen3-8B", "source": {"image": {"reference": "models/a:1"}}}
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in container(model=model)["env"]
    assert "HF_HUB_OFFLINE" not in str(container())


def test_a_variable_of_the_template_wins_over_ours_and_stands_once() -> None:
    env = container(template={"env": [{"name": "HF_HOME", "value": "/elsewhere"}]})["env"]
    assert [variable["value"] for variable in env if variable["name"] == "HF_HOME"] == ["/elsewhere"]


def test_loading_may_take_as_long_as_the_weights_need() -> None:
    small, large = assess_owner(an_owner(), ""), assess_owner(an_owner(model={"name": "deepseek-ai/DeepSeek-V3"}), "")
    unknown = assess_owner(an_owner(model={"name": "nobody/x"}), "")
    assert load_budget_seconds(small.assessment.effective) == 600
    assert load_budget_seconds(large.assessment.effective) == 3600
    assert load_budget_seconds(unknown.assessment.effective) == 3600
    assert container()["startupProbe"]["failureThreshold"] == 60


def test_no_probe_needs_an_api_key() -> None:
    """vLLM 0.6 to 0.33 answer /v1, /v2 and their like 401 without one, and /health always."""
    probes = [container()[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert probes == [{"path": "/health", "port": "http"}] * 3


VARIABLES = {"A": "value", "VLLM_API_KEY": "secret", "": "nothing"}


def received(**spec: Any) -> tuple[list[str], dict[str, str]]:
    """(Words, variables) that the process gets once the kubelet has expanded them."""
    vllm = container(**spec)
    words = [expand_references(word, VARIABLES.get) for word in (*vllm["command"], *vllm["args"])]
    return words, {
        each["name"]: expand_references(each["value"], VARIABLES.get) for each in vllm["env"] if "value" in each
    }


@given(
    text=st.text(alphabet="$()A", min_size=1) | st.text(alphabet=st.characters(codec="utf-8"), min_size=1, max_size=50)
)
def test_the_process_gets_a_users_text_byte_by_byte(text: str) -> None:
    argument, variable = f"--chat-template={text}", {"name": "GREETING", "value": text}
    words, variables = received(vllm={"maxNumSeqs": 4, "extraArgs": [argument]}, template={"env": [variable]})
    assert argument in words
    assert variables["GREETING"] == text
    assert manifests().deployment["spec"]["progressDeadlineSeconds"] == 1200


def hashes(**spec: Any) -> tuple[str, str]:
    deployment = manifests(**spec).deployment
    inner = deployment["spec"]["template"]["metadata"]["annotations"]
    return deployment["metadata"]["annotations"][HASH_ANNOTATION], inner[HASH_ANNOTATION]


def test_scaling_does_not_restart_pods_and_a_new_setting_does() -> None:
    whole, template = hashes()
    assert hashes() == (whole, template)
    assert hashes(replicas=3)[0] != whole
    assert hashes(replicas=3)[1] == template
    assert hashes(vllm={"maxNumSeqs": 5})[1] != template


def test_the_prediction_stands_on_the_deployment_and_not_on_its_pods() -> None:
    deployment = manifests().deployment
    assert int(deployment["metadata"]["annotations"][PREDICTED_TOKENS_ANNOTATION]) > 100_000
    assert PREDICTED_TOKENS_ANNOTATION not in deployment["spec"]["template"]["metadata"]["annotations"]


def test_the_selector_follows_from_the_name_alone() -> None:
    one, two = manifests().deployment, manifests(vllm={"version": "0.20.0"}, replicas=5).deployment
    assert (
        one["spec"]["selector"] == two["spec"]["selector"] == {"matchLabels": {"kvgate.io/inferencedeployment": "qwen"}}
    )
    assert one["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


@given(version=st.from_regex(r"\Av?[0-9]+\.[0-9]+([-.+a-zA-Z0-9]*)\Z").filter(lambda text: len(text) <= 64))
def test_every_version_gives_an_image_that_a_runtime_can_pull(version: str) -> None:
    spec = an_owner(vllm={"version": version, "maxNumSeqs": 4}).spec
    image = image_of(spec, H100.vendor)
    assert image is not None
    assert re.fullmatch("vllm/vllm-openai:[A-Za-z0-9_][-.A-Za-z0-9_]{0,127}", image)
    assert Vllm(image=image).image == image


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("0.19.0", "v0.19.0"),
        ("v0.6.6.post1", "v0.6.6.post1"),
        ("0.19.0+cu130", "v0.19.0-cu130"),
        ("0.20.0rc1+cu128", "v0.20.0rc1-cu128"),
    ],
)
def test_the_build_of_a_release_stands_in_its_tag_as_vllm_publishes_it(version: str, tag: str) -> None:
    """Tags of vllm/vllm-openai on Docker Hub: v0.19.0, v0.19.0-cu130, v0.19.0-cu130-ubuntu2404."""
    assert image_of(an_owner(vllm={"version": version}).spec, H100.vendor) == f"vllm/vllm-openai:{tag}"


def test_amounts_have_the_names_of_kubernetes() -> None:
    limits = {"cpu": "4", "memory": "64Gi", "ephemeral-storage": "10Gi"}
    found = container(template={"resources": {"limits": limits}})["resources"]
    assert found == {"limits": {"cpu": "4", "memory": "65Gi", "ephemeral-storage": "10Gi", "nvidia.com/gpu": "1"}}
