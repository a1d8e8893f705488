"""The schema and CEL of the CRD on a real API server say what the command line says, document by document."""

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.plane import ControlPlane
from controlplane.programs import ControlPlaneError, wait_until
from kvgate.api.validation import InvalidDocument, parse_document
from support.builders import new_document

pytestmark = pytest.mark.cluster

CRD = Path(__file__).resolve().parents[2] / "crds" / "kvgate.io_inferencedeployments.yaml"
COLLECTION = "/apis/kvgate.io/v1alpha1/namespaces/default/inferencedeployments"
DRY_RUN = f"{COLLECTION}?dryRun=All&fieldValidation=Strict"

SCRATCH = {"name": "scratch", "emptyDir": {}}
CONTAINER = {"name": "logs", "image": "registry/logs:1"}
POD_PARTS: list[dict[str, Any]] = [
    {"runtimeClassName": "nvidia", "schedulerName": "volcano", "serviceAccountName": "weights", "volumes": []},
    {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}, "nodeAffinity": None}},
    {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]},
    {"volumes": [SCRATCH, {"name": "node", "hostPath": {"path": "/mnt"}}], "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]},
    {"volumes": [SCRATCH], "volumeMounts": [{"name": "scratch", "mountPath": "/cache/huggingface"},
                                            {"name": "scratch", "mountPath": "/etc/ssl/certs"}]},
    {"volumes": [{"name": "big", "emptyDir": {"sizeLimit": "1.5Gi", "medium": "Memory"}}]},
    {"volumes": [{"name": "big", "ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": 5}}}}}}]},
    {"envFrom": [{"configMapRef": {"name": "proxy"}, "prefix": "P_"}, {"secretRef": {"name": "keys"}}]},
    {"lifecycle": {"postStart": {"exec": {"command": ["true"]}}, "preStop": {"httpGet": {"port": "http"}}}},
    {"initContainers": [{**CONTAINER, "restartPolicy": "Always"}], "containers": [{**CONTAINER, "name": "other"}]},
    {"containers": [{**CONTAINER, "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "1Gi"}}, "args": ["$(X)"]}]},
]  # fmt: skip
WRONG_POD_PARTS: list[dict[str, Any]] = [
    {"affinity": {"podAffinity": []}}, {"affinity": {"nodeAfinity": {}}}, {"affinity": "node"},
    {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"namespaces": ["a"]}]}}},
    {"topologySpreadConstraints": [{"maxSkew": "1", "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]},
    {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "Never"}]},
    {"volumes": [{"name": "cache", "emptyDir": {}}]}, {"volumes": [{"name": "shm", "emptyDir": {}}]}, {"volumes": [{"name": "a"}]},
    {"volumes": [{**SCRATCH, "secret": {"secretName": "a"}}]}, {"volumes": [SCRATCH, SCRATCH]}, {"volumes": [{"emptyDir": {}}]},
    {"volumes": [{"name": "nfs", "nfs": {"server": "a", "path": "/"}}]}, {"volumes": [{"name": "a", "emptyDir": {"sizeLimit": "lots"}}]},
    {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]},
    *({"volumes": [SCRATCH], "volumeMounts": [{"name": "scratch", "mountPath": path}]} for path in (
        "/", "/cache", "/cache/", "/model/x", "/dev/shm", "/usr/local/lib", "/etc/ld.so.preload", "scratch", "/a/../usr", "//usr", "/a:b",
        "/a/..", "/./usr")),
    {"volumes": [SCRATCH], "volumeMounts": [{"name": "scratch", "mountPath": "/a"}, {"name": "scratch", "mountPath": "/a"}]},
    {"envFrom": [{"configMapRef": "proxy"}]}, {"envFrom": {"configMapRef": {}}}, {"lifecycle": {"preStop": {"sleep": {}}}},
    {"initContainers": [{**CONTAINER, "name": "vllm"}]}, {"containers": [{**CONTAINER, "name": "vllm"}]}, {"containers": [{"image": "a"}]},
    {"initContainers": [CONTAINER], "containers": [CONTAINER]}, {"containers": [CONTAINER, CONTAINER]},
    {"containers": [{**CONTAINER, "securityContext": {"privileged": True}}]}, {"containers": [{**CONTAINER, "tty": True}]},
    {"tolerations": [{"operator": "Exists", "tolerationSeconds": "5"}]}, {"serviceAccountName": "A"}, {"hostPID": True},
]  # fmt: skip


VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "model": (
        [{"name": "Qwen/Qwen3-8B"}, {"name": "gpt2", "revision": "main"},
         {"name": "a/b", "source": {"image": {"reference": "registry/weights:1"}}},
         {"name": "a/b", "source": {"persistentVolumeClaim": {"claimName": "weights", "path": "models/b"}}},
         {"name": "a/b", "configFrom": {"configMapKeyRef": {"name": "shape", "key": "config.json"}}},
         {"name": "a/b", "tokenSecretRef": {"name": "hub", "key": "token"}}],
        [{}, {"name": ""}, {"name": "a/b/c"}, {"name": "../x"}, {"name": "a" * 257}, {"name": 5}, {"nam": "a/b"},
         {"name": "a/b", "source": {}}, {"name": "a/b", "tokenSecretRef": {"name": "hub", "key": "a/b"}},
         {"name": "a/b", "source": {"image": {"reference": "x"}, "persistentVolumeClaim": {"claimName": "y"}}},
         {"name": "a/b", "source": {"persistentVolumeClaim": {"claimName": "y", "path": "/etc"}}},
         {"name": "a/b", "source": {"persistentVolumeClaim": {"claimName": "y", "path": "a/../b"}}},
         {"name": "a/b", "source": {"image": {"reference": "Weights"}}},
         {"name": "a/b", "configFrom": {}}, {"name": "a/b", "revision": "a b"}],
    ),
    "accelerator": (
        [{"type": "H100-SXM-80GB"}, {"type": "NVIDIA H100 80GB HBM3"}, {"type": "L4-24GB", "sharedBy": 64},
         {"type": "L4-24GB", "sharedBy": 2, "claim": "GpuShared"}, {"type": "L4-24GB", "sharedBy": 1, "claim": "Gpu"}],
        [{}, {"type": ""}, {"type": 1}, {"type": "x" * 254}, {"type": "L4-24GB", "sharedBy": 0}, {"type": "L4-24GB", "sharedBy": 65},
         {"type": "L4-24GB", "sharedBy": "2"}, {"type": "L4-24GB", "sharedBy": 2, "claim": "gpu"},
         {"type": "L4-24GB", "claim": "GpuMemory"}, {"type": "L4-24GB", "sharedBy": 1, "claim": "GpuShared"}],
    ),
    "vllm.version": (["0.33.0", "v0.6.6.post1", "0.19.0+cu130"], ["latest", "", 0.33, "0"]),
    "vllm.image": (
        ["vllm/vllm-openai:v0.33.0", "localhost:5000/a__b/c.d:V1", "[::1]:5000/x", "x:1@sha256:" + "a" * 64],
        ["", "vllm:0.19.0+cu128", "a b", "vllm:", "VLLM", "a//b", "x@sha256:abc", "https://x/y", "x:" + "t" * 129, "$(IMAGE)"],
    ),
    "vllm.maxModelLen": ([1, 131072, "auto"], [0, -1, "32k", "Auto", "", "32768", 10**9, 1.5, True]),
    "vllm.maxNumSeqs": ([1, 1024], [0, 10**7, "8"]),
    "vllm.kvCacheDtype": (["auto", "fp8_e4m3"], ["FP8", "", 8]),
    "vllm.dtype": (["auto", "half"], ["fp8", "bf16"]),
    "vllm.gpuMemoryUtilization": (["0.9", "1", "1.000", "0.005"], ["0", "0.000", "1.5", "0,9", ".9", 0.9, 1, "0.9999", "90%"]),
    "vllm.tensorParallelSize": ([1, 8, 32], [0, 2048, "2"]),
    "vllm.pipelineParallelSize": ([1, 4], [0]),
    "vllm.dataParallelSize": ([1, 16], [0]),
    "vllm.prefillContextParallelSize": ([1, 4], [0]),
    "vllm.blockSize": ([16, 256], [0, 99999]),
    "vllm.enforceEager": ([True, False], ["yes", 1]),
    "vllm.kvCacheMemoryBytes": ([1, 1 << 40], [0, "1Gi"]),
    "vllm.extraArgs": (
        [[], ["--seed=7"], ["--trust-remote-code", "--max-lora-rank=8"], ["--model-impl=auto"]],
        [["--max-model-len=5"], ["--max_model_len", "5"], ["--max-model=5"], ["--gpu-m=0.5"], ["-tp", "4"], ["-tp=4"], ["--port=1"],
         ["-ep"], ["-pcp=2"], ["--prefill-context-parallel-size", "2"], ["--api-key=x"], ["--api_key", "x"], ["--hf-token"],
         ["--tensor-parallel-size.x=1"], [""], ["--host"], ["-qfp8"], "--seed", ["x" * 1025], ["a"] * 33, [1]],
    ),
    "workload": (
        [{"peakConcurrency": 4, "promptTokens": 100, "outputTokens": 10}],
        [{}, {"peakConcurrency": 4, "promptTokens": 100}, {"peakConcurrency": 0, "promptTokens": 1, "outputTokens": 1}, []],
    ),
    "admission": (
        [{}, {"policy": "Warn"}, {"guarantee": "FullContext"},
         {"policy": "Adjust", "adjust": {"knobs": ["MaxModelLen"], "minMaxNumSeqs": 2}},
         {"adjust": {"knobs": ["MaxModelLen", "MaxNumSeqs", "KvCacheDtype", "GpuMemoryUtilization"]}}],
        [{"policy": "reject"}, {"guarantee": "All"}, {"adjust": {"knobs": []}}, {"adjust": {"knobs": ["Blocks"]}},
         {"adjust": {"minMaxModelLen": 0}}, {"polcy": "Warn"}],
    ),
    "replicas": ([0, 3], [-1, 1.5, "2", 10**6]),
    "suspend": ([True, False], ["yes", 1]),
    "model.servedModelNames": ([["qwen"], ["qwen", "team/qwen:8b"]], [[], ["-x"], [""], ["a", "a"], ["a b"], "qwen", [1], ["a"] * 17]),
    "strategy": (
        [{}, {"type": "Recreate"}, {"rollingUpdate": {"maxSurge": 1}}, {"rollingUpdate": {"maxUnavailable": "50%"}},
         {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}}],
        [{"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}, {"rollingUpdate": {"maxUnavailable": 0}}, {"type": "BlueGreen"},
         {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}, {"rollingUpdate": {"maxSurge": -1}},
         {"rollingUpdate": {"maxUnavailable": "101%"}}, {"rollingUpdate": {"maxUnavailable": 10**5}}, {"rollingUpdate": {"maxsurge": 1}}],
    ),
    "podDisruptionBudget": (
        [{}, {"enabled": False}, {"maxUnavailable": 0}, {"maxUnavailable": "34%"}],
        [{"enabled": "no"}, {"maxUnavailable": -1}, {"maxUnavailable": "half"}, {"minAvailable": 1}],
    ),
    "template": (
        [{}, {"labels": {"team": "ml"}, "nodeSelector": {"zone": "a"}}, {"resources": {"requests": {"cpu": 4, "memory": "64Gi"}}},
         {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
         {"env": [{"name": "A", "value": "1"}, {"name": "B", "secretKeyRef": {"name": "s", "key": "k"}}]},
         {"env": [{"name": "VLLM_API_KEY", "secretKeyRef": {"name": "s", "key": "k"}}, {"name": "NCCL_DEBUG", "value": "$(X)"}]},
         {"imagePullSecrets": ["registry"], "cacheClaimName": "cache", "priorityClassName": "high"},
         *POD_PARTS],
        [{"labels": {"kvgate.io/x": "1"}}, {"annotations": {"a.kubernetes.io/b": "1"}}, {"resources": {"limits": {"nvidia.com/gpu": 1}}},
         {"resources": {"requests": {"memory": "lots"}}}, {"tolerations": [{"operator": "Like"}]}, {"env": [{"name": "1A"}]},
         *({"env": [{"name": name, "value": "1"}]} for name in (
             "NVIDIA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "LD_PRELOAD", "PATH", "PYTHONPATH", "VLLM_DP_SIZE",
             "VLLM_MODEL_REDIRECT_PATH")),
         {"env": [{"name": "A", "value": "1", "secretKeyRef": {"name": "s", "key": "k"}}]}, {"hostNetwork": True}, *WRONG_POD_PARTS],
    ),
}  # fmt: skip
"""Field of the spec → values that are right, values that are wrong."""


def with_value(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = deepcopy(document)
    node = changed["spec"]
    *parents, last = path.split(".")
    for parent in parents:
        node = node.setdefault(parent, {})
    node[last] = value
    return changed


def base() -> dict[str, Any]:
    document = new_document()
    document["metadata"] = {"name": "qwen"}
    return document


def documents() -> Iterator[dict[str, Any]]:
    """Every value alone; rules between fields; then 300 mixtures, the same in every run."""
    for path, (right, wrong) in VALUES.items():
        yield from (with_value(base(), path, value) for value in (*right, *wrong))
    yield with_value(base(), "admission", {"guarantee": "Workload"})
    yield with_value(with_value(base(), "vllm.tensorParallelSize", 1024), "vllm.dataParallelSize", 2)
    yield with_value(with_value(base(), "vllm.tensorParallelSize", 1024), "vllm.prefillContextParallelSize", 2)
    for name in ("a" * 45, "a" * 46, "9b", "a.b", "a-b"):
        yield {**base(), "metadata": {"name": name}}
    choose = random.Random(20261121)
    for _ in range(300):
        document = base()
        for path in choose.sample(sorted(VALUES), 5):
            right, wrong = VALUES[path]
            document = with_value(document, path, choose.choice(wrong if choose.random() < 0.12 else right))
        yield document


def refusal_of_the_server(plane: ControlPlane, document: dict[str, Any]) -> str | None:
    try:
        plane.request("POST", DRY_RUN, document)
    except ControlPlaneError as error:
        return str(error)
    return None


def refusal_of_the_command_line(document: dict[str, Any]) -> str | None:
    try:
        parse_document(document)
    except InvalidDocument as error:
        return str(error)
    return None


def test_server_and_command_line_accept_and_refuse_the_same_documents(plane: ControlPlane) -> None:
    counts = {True: 0, False: 0}
    for document in documents():
        server, ours = refusal_of_the_server(plane, document), refusal_of_the_command_line(document)
        assert (server is None) == (ours is None), (
            f"{document['metadata']} {document['spec']}\nserver: {server}\nours: {ours}"
        )
        counts[server is None] += 1
    assert min(counts.values()) >= 100


def test_a_valid_document_comes_back_unpruned(plane: ControlPlane) -> None:
    document = base()
    for path, (right, _) in VALUES.items():
        document = with_value(document, path, right[0] if path.endswith("Size") else right[-1])
    answer = plane.request("POST", DRY_RUN, document)
    assert parse_document(answer).spec == parse_document(document).spec


def test_kubectl_explains_the_fields(plane: ControlPlane) -> None:
    wait_until(
        lambda: "Longest request" in plane.kubectl("explain", "infd.spec.vllm.maxModelLen", check=False).stdout,
        "kubectl explain knows the field",
    )


def without_rules(node: Any) -> Any:
    """A CRD from before there were any."""
    if isinstance(node, dict):
        return {key: without_rules(child) for key, child in node.items() if key != "x-kubernetes-validations"}
    return [without_rules(child) for child in node] if isinstance(node, list) else node


def test_an_object_from_before_a_rule_keeps_its_status_and_its_other_fields_can_change(plane: ControlPlane) -> None:
    """The API server holds new rules against what changes: an upgrade blocks neither the controller nor a correction."""
    crd = yaml.load(CRD.read_text(encoding="utf-8"), yaml.CSafeLoader)
    plane.kubectl("replace", "-f", "-", input=yaml.safe_dump(without_rules(crd)))
    old = with_value(
        base(), "template", {"env": [{"name": "LD_PRELOAD", "value": "x.so"}, {"name": "A", "value": "1"}]}
    )
    old = with_value(old, "vllm.extraArgs", ["--api-key=not-a-secret"])
    wait_until(lambda: refusal_of_the_server(plane, old) is None, "the CRD without rules is served")
    plane.request("POST", COLLECTION, old)
    plane.kubectl("replace", "-f", str(CRD))
    another = {**old, "metadata": {"name": "another"}}
    wait_until(lambda: refusal_of_the_server(plane, another) is not None, "the rules are served")

    def patch(changes: dict[str, Any], *options: str) -> None:
        plane.kubectl("patch", "infd", "qwen", "--type=merge", "-p", json.dumps(changes), *options)

    patch({"status": {"observedGeneration": 1}}, "--subresource=status")
    patch({"spec": {"replicas": 3}})
    with pytest.raises(ControlPlaneError, match="holds a secret"):
        patch({"spec": {"vllm": {"extraArgs": ["--api-key=2"]}}})
    patch({"spec": {"template": {"env": None}, "vllm": {"extraArgs": None}}})
    plane.kubectl("delete", "infd", "qwen")
