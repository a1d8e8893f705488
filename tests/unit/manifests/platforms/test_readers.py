"""Every reader of a platform's manifests can be found, and what stands beside engines is none."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.manifests import read_manifests
from kvgate.manifests.engines import find_engines
from kvgate.manifests.platforms.reader import resource_of_kind
from kvgate.manifests.platforms.readers import READERS, engine_words


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.what)
def test_every_reader_has_words_and_a_way_to_be_found(reader: Any) -> None:
    assert reader.words
    assert all(word == word.lower() and word in engine_words() for word in reader.words)
    assert reader.kinds or reader.recognises


@pytest.mark.parametrize(
    "kinds",
    [
        """Service Ingress HTTPRoute Gateway Secret ServiceAccount Role ClusterRole RoleBinding ClusterRoleBinding PersistentVolume
        HorizontalPodAutoscaler PodDisruptionBudget NetworkPolicy Namespace ServiceMonitor PodMonitor PrometheusRule ScaledObject
        InferencePool InferenceModel InferenceObjective Certificate Issuer ValidatingWebhookConfiguration MutatingWebhookConfiguration
        Kustomization VirtualService DestinationRule EnvoyFilter GRPCRoute TCPRoute ReferenceGrant Route IngressRoute ServiceEntry
        AuthorizationPolicy StorageClass EnvoyPatchPolicy BackendTrafficPolicy ClientTrafficPolicy SecurityPolicy AIGatewayRoute
        AIServiceBackend GCPBackendPolicy HealthCheckPolicy PodMonitoring ClusterPodMonitoring ScrapeConfig Probe GrafanaDashboard
        ResourceQuota LimitRange ExternalSecret SecretStore ClusterSecretStore SealedSecret VerticalPodAutoscaler TriggerAuthentication
        PriorityClass EC2NodeClass ResourceFlavor ClusterQueue LocalQueue ImageStream""",
        "VLLMRouter CacheServer LoraAdapter",
        "ModelServer ModelRoute AutoscalingPolicy AutoscalingPolicyBinding",
        "PodAutoscaler ModelAdapter KVCache",
        "ConfigMap PersistentVolumeClaim ResourceClaim ResourceClaimTemplate DeviceClass ComputeClass NodePool",
        "LLMInferenceServiceConfig BaseModel ClusterBaseModel AcceleratorClass",
    ],
)
def test_what_stands_beside_engines_may_name_vllm(tmp_path: Path, kinds: str) -> None:
    document = "apiVersion: example.com/v1\nkind: {}\nmetadata: {{name: a}}\nspec: {{of: vllm}}\n"
    names = kinds.split()
    (tmp_path / "x.yaml").write_text("---\n".join(document.format(kind) for kind in names), encoding="utf-8")
    manifests = read_manifests([str(tmp_path)])
    found = find_engines(manifests)
    assert [each.kind for each in found.not_understood] == []
    assert found.num_others + manifests.num_others == len(names)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: a}\nspec: {of: vllm}", ["Service"]),
        ("apiVersion: example.com/v1\nkind: Other\nmetadata: {name: a}\nspec: {of: vllm}", ["Other"]),
        ("apiVersion: example.com/v1\nkind: Other\nmetadata: {name: vllm, labels: {a: vllm}}\nspec: {of: a}", []),
        *((f"{fields}\nimage: vllm/vllm-openai:v0.32.0", []) for fields in (
            "panels: [a]\nschemaVersion: 1", "suite: a\ntests: [a]", "$schema: a\nproperties: a", "$schema: a\ndefinitions: a",
            "$defs: a\nproperties: a", "openapi: a\npaths: a", "swagger: a\ninfo: a", "scrape_configs: a", "site_name: a\nnav: a",
        )),
        ("panels: [a]\nimage: vllm/vllm-openai:v0.32.0", [""]),
        ("tests: [a]\nimage: vllm/vllm-openai:v0.32.0", [""]),
    ],
)  # fmt: skip
def test_a_document_that_names_vllm_without_an_engine_is_told(tmp_path: Path, text: str, expected: list[str]) -> None:
    (tmp_path / "x.yaml").write_text(f"{text}\n", encoding="utf-8")
    found = find_engines(read_manifests([str(tmp_path)]))
    assert ([each.kind for each in found.not_understood], found.engines) == (expected, [])


@pytest.mark.parametrize(
    ("document", "platform"),
    [
        ({"kind": "Workspace", "apiVersion": "kaito.sh/v1", "inference": {"preset": {"name": "phi-4"}}}, "kaito"),
        ({"kind": "InferenceSet", "apiVersion": "kaito.sh/v1", "spec": {"template": {"inference": {"preset": {"name": "a"}}}}}, "kaito"),
        ({"kind": "MultiRoleInference", "apiVersion": "kaito.sh/v1", "spec": {"model": {"name": "a"}, "roles": [{"type": "a"}]}}, "kaito"),
        ({"kind": "Model", "apiVersion": "kubeai.org/v1", "spec": {"url": "hf://a/b"}}, "kubeai"),
        ({"kind": "ModelClaim", "apiVersion": "model.aibrix.ai/v1", "spec": {"artifactURL": "a"}}, "aibrix"),
        ({"kind": "LLMInferenceService", "apiVersion": "serving.kserve.io/v1", "spec": {"model": {"uri": "hf://a/b"}}}, "kserve"),
        ({"kind": "InferenceService", "apiVersion": "serving.kserve.io/v1",
          "spec": {"predictor": {"model": {"modelFormat": {"name": "huggingface"}}}}}, "kserve"),
        ({"model_loading_config": {"model_id": "a"}}, "ray-serve"),
        ({"applications": [{"args": {"llm_configs": ["./other.yaml"]}}]}, "ray-serve"),
        ({"applications": [{"args": {"llm_configs": [{"model_loading_config": {"model_id": "a"}}]}}]}, "ray-serve"),
        ({"kind": "VLLMRuntime", "apiVersion": "production-stack.vllm.ai/v1", "spec": {"model": {"modelURL": "a"}}}, "production-stack"),
        ({"kind": "VLLMRuntime", "apiVersion": "serving.vllm.ai/v1", "spec": {"model": {"modelURL": "a"}}}, "production-stack"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.get("kind", "none"),
)  # fmt: skip
def test_a_document_without_the_word_vllm_is_found_by_its_platforms_own_words(
    tmp_path: Path, document: dict[str, Any], platform: str
) -> None:
    text = yaml.safe_dump({"metadata": {"name": "a"}, **document} if "kind" in document else document)
    assert "vllm" not in text or platform == "production-stack"
    (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
    assert [each.platform for each in find_engines(read_manifests([str(tmp_path)])).engines] == [platform]


def test_resources_have_the_names_of_kubectl() -> None:
    assert [resource_of_kind(kind) for kind in ("Pod", "Workspace.kaito.sh")] == ["pods", "workspaces.kaito.sh"]


@pytest.mark.parametrize(("field", "expected"), [("podSpec", ["FieldIgnored"]), ("nodeSelector", [])])
def test_fields_of_a_pod_stand_in_the_predictor_itself(tmp_path: Path, field: str, expected: list[str]) -> None:
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": ["--model=Qwen/Qwen3-4B"]}
    predictor = {"containers": [container], field: {"runtimeClassName": "nvidia"}}
    document = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "x"}}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({**document, "spec": {"predictor": predictor}}))
    (engine,) = find_engines(read_manifests([str(tmp_path)])).engines
    assert [each.finding.rule.id for each in engine.findings] == expected
