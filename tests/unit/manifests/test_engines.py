"""What stands beside a document in the same input, and is found from it."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.manifests import read_manifests
from kvgate.manifests.engines import find_engines
from kvgate.manifests.pods.engine_found import FoundEngine


def engines(folder: Path, *documents: Any) -> list[FoundEngine]:
    (folder / "x.yaml").write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return find_engines(read_manifests([str(folder)])).engines


def runtime(told: str, /, **metadata: str) -> dict[str, Any]:
    """`told` is what its option says, so that it is known from others."""
    container = {
        "name": "kserve-container",
        "image": "vllm/vllm-openai:v0.32.0",
        "args": [f"--served-model-name={told}"],
    }
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": {"name": "vllm", **metadata},
        "spec": {"containers": [container]},
    }


def service(runtime: str, /, **metadata: str) -> dict[str, Any]:
    model = {"modelFormat": {"name": "vLLM"}, "runtime": runtime, "storageUri": "hf://Qwen/Qwen3-8B"}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "x", **metadata},
        "spec": {"predictor": {"model": model}},
    }


def test_of_several_objects_of_one_name_that_of_the_own_namespace_is_meant(tmp_path: Path) -> None:
    runtimes = [runtime("a", namespace="a"), runtime("b", namespace="b"), runtime("default")]
    services = [service("vllm", **where) for where in ({"namespace": "b"}, {}, {"namespace": "elsewhere"})]
    found = [engine.arguments[0].text.partition("=")[2] for engine in engines(tmp_path, *runtimes, *services)]
    assert found == ["b", "default", "a"]


def calls_for(folder: Path, number: int) -> int:
    """How many calls it takes to find the engines of so many runtimes and services: the same number on every machine."""
    documents = [runtime(str(n), name=f"r{n}") for n in range(number)] + [service(f"r{n}") for n in range(number)]
    (folder / "x.yaml").write_text("".join(f"--- {json.dumps(each)}\n" for each in documents), encoding="utf-8")
    manifests, count = read_manifests([str(folder)]), 0

    def seen(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        found = find_engines(manifests).engines
    finally:
        sys.setprofile(None)
    assert len(found) == number
    return count


def test_hundreds_that_refer_to_one_another_are_not_compared_with_each_other(tmp_path: Path) -> None:
    """Twice as many take twice the calls; two calls for each pair would make them 2.4 times as many."""
    calls_for(tmp_path, 10)
    assert calls_for(tmp_path, 500) < 2.2 * calls_for(tmp_path, 250)


@pytest.mark.parametrize(("api_version", "num_told"), [("v1", 0), ("serving.knative.dev/v1", 1)])
def test_a_service_of_knative_that_is_not_understood_is_told(tmp_path: Path, api_version: str, num_told: int) -> None:
    pod = {"containers": [{"image": "vllm/vllm-openai:v0.32.0", "command": ["python3", "app.py"]}]}
    document = {"apiVersion": api_version, "kind": "Service", "spec": {"template": {"spec": pod}}}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    assert len(find_engines(read_manifests([str(tmp_path)])).not_understood) == num_told


def llm_service(**container: Any) -> dict[str, Any]:
    spec = {"model": {"uri": "hf://Qwen/Qwen3-8B"}, "template": {"containers": [{"name": "main", **container}]}}
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "LLMInferenceService",
        "metadata": {"name": "x"},
        "spec": spec,
    }


def test_a_simulator_is_no_engine(tmp_path: Path) -> None:
    simulator = {"image": "ghcr.io/llm-d/llm-d-inference-sim:v0.7.1", "command": ["/app/llm-d-inference-sim"]}
    assert engines(tmp_path, llm_service(**simulator)) == []


def test_a_runtime_of_another_server_is_no_engine(tmp_path: Path) -> None:
    service = llm_service()
    service["spec"]["runtime"] = "kserve-llm-sglang"
    assert engines(tmp_path, service) == []
    assert engines(tmp_path, llm_service(image="lmsysorg/sglang:v0.5.14")) == []
    assert engines(tmp_path, llm_service(command=["python3", "-m", "sglang.launch_server"])) == []


@pytest.mark.parametrize(
    ("container", "num_engines"),
    [
        ({"args": ["--moe-backend", "flashinfer_trtllm"]}, 1),
        ({"command": ["vllm", "serve", "/mnt/models"], "args": ["--served-model-name", "ollama/qwen3"]}, 1),
        ({"command": ["sh", "-c", "exec vllm serve /mnt/models --moe-backend flashinfer_trtllm"]}, 1),
        ({"command": ["python3"], "args": ["-m", "sglang.launch_server", "--model-path", "/mnt/models"]}, 0),
        ({"command": ["sh", "-c", "exec trtllm-serve /mnt/models --tp_size 2"]}, 0),
    ],
)
def test_a_program_names_another_server_and_the_value_of_an_option_does_not(
    tmp_path: Path, container: dict[str, Any], num_engines: int
) -> None:
    assert len(engines(tmp_path, llm_service(**container))) == num_engines


def test_without_a_main_container_the_one_with_gpus_is_the_engine(tmp_path: Path) -> None:
    service = llm_service()
    gpus = {"limits": {"nvidia.com/gpu": 2}}
    helper = {"name": "metrics", "image": "busybox", "command": ["sleep", "infinity"]}
    service["spec"]["template"]["containers"] = [helper, {"name": "vllm", "resources": gpus}]
    (engine,) = engines(tmp_path, service)
    assert engine.num_gpus.value == 2


@pytest.mark.parametrize(
    ("container", "is_known"),
    [({"command": ["/start.sh"]}, False), ({"command": ["vllm", "serve"]}, True), ({}, True)],
)
def test_a_command_of_its_own_that_nobody_understands_is_told(
    tmp_path: Path,
    container: dict[str, Any],
    is_known: bool,  # noqa: FBT001
) -> None:
    (engine,) = engines(tmp_path, llm_service(**container))
    assert engine.is_partial is not is_known
    assert (engine.remarks == ()) is is_known


def group(size: object, *words: str) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": 8}}
    serving = {"name": "vllm", "command": ["sh", "-c", " ".join(["vllm serve x", *words])], "resources": resources}
    return {"size": size, "workerTemplate": {"spec": {"containers": [serving]}}}


def of_groups(*groups: dict[str, Any]) -> dict[str, Any]:
    roles = [{"name": f"role-{n}", "spec": {"leaderWorkerTemplate": each}} for n, each in enumerate(groups)]
    return {"apiVersion": "disaggregatedset.x-k8s.io/v1", "kind": "DisaggregatedSet", "spec": {"roles": roles}}


def test_a_group_of_pods_is_one_engine_wherever_it_stands(tmp_path: Path) -> None:
    of_leader = group(2, "--headless") | {"leaderTemplate": group(2, "-tp", "16")["workerTemplate"]}
    found = engines(tmp_path, of_groups(of_leader, group(4, "-tp", "8", "-pp", "4")))
    assert [(engine.num_pods, engine.num_gpus.count) for engine in found] == [(2, 8), (4, 8)]
    assert [engine.arguments[1].text for engine in found] == ["-tp", "-tp"]


@pytest.mark.parametrize(("size", "expected", "num_gpus"), [(2, "16", 8), ("${SIZE}", "$((LWS_GROUP_SIZE * 8))", None)])
def test_a_group_knows_its_size(tmp_path: Path, size: object, expected: str, num_gpus: int | None) -> None:
    (engine,) = engines(tmp_path, of_groups(group(size, "-dp", "$((LWS_GROUP_SIZE * 8))", "-dpr", "$LWS_WORKER_INDEX")))
    assert [word.text for word in engine.arguments] == ["x", "-dp", expected, "-dpr", "0"]
    assert engine.num_gpus.count == num_gpus


@pytest.mark.parametrize(
    ("document", "is_told"),
    [
        ({"panels": [{"expr": "vllm:num_requests_running"}], "schemaVersion": 39}, False),
        ({"suite": "engine", "tests": [{"it": "renders vllm"}]}, False),
        ({"$schema": "draft", "properties": {"vllm": {}, "x": {"default": "vllm"}}}, False),
        ({"scrape_configs": [{"job_name": "vllm"}]}, False),
        ({"apiVersion": "route.openshift.io/v1", "kind": "Route", "spec": {"to": {"name": "vllm"}}}, False),
        ({"panels": [{"expr": "vllm:num_requests_running"}]}, True),
        ({"suite": "engine", "image": "vllm/vllm-openai"}, True),
        ({"kind": "Odd", "panels": ["vllm"], "schemaVersion": 1}, True),
    ],
)
def test_files_that_only_speak_of_vllm_are_not_told(tmp_path: Path, document: dict[str, Any], *, is_told: bool) -> None:
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    assert bool(find_engines(read_manifests([str(tmp_path)])).not_understood) is is_told


MANY = 400
CONTAINER = {"image": "vllm/vllm-openai:v0.18.0", "args": ["/models/a"]}
DOWNLOAD = {"image": "x", "command": ["sh", "-c", "hf download a/b --local-dir /models/c"]}
APP = {"image": {"repository": "vllm/vllm-openai"}, "args": ["Qwen/Qwen3-8B"]}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "document",
    [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "spec": {"initContainers": [DOWNLOAD] * MANY, "containers": [CONTAINER] * MANY},
        },
        {
            "controllers": {"a": {"containers": {f"c{number}": APP for number in range(MANY)}}},
            "persistence": {f"p{number}": {"type": "emptyDir"} for number in range(MANY)},
        },
        {
            "scenario": [
                {"model": {"name": "a/b", "huggingfaceId": "a/b"}, "number": number, "decode": {"replicas": 1}}
                for number in range(MANY)
            ]
        },
        {"resources": {"accelerators": ["L4:1"] * MANY}, "run": "vllm serve a/b\n" * MANY},
    ],
    ids=["init-containers", "volumes", "stacks", "accelerators"],
)
def test_many_parts_beside_many_others_take_no_longer_than_each(tmp_path: Path, document: dict[str, Any]) -> None:
    """Each of many engines may look at a fixed number of other parts only."""
    (tmp_path / "x.yaml").write_text(json.dumps(document), encoding="utf-8")
    started = time.process_time()
    find_engines(read_manifests([str(tmp_path)]))
    assert time.process_time() - started < 10


GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}


def workload(*containers: Any, kind: str = "Deployment") -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [*containers]}}
    spec = {"selector": {"matchLabels": {"app": "x"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def container(image: str, *command: str, **fields: Any) -> dict[str, Any]:
    return {"name": "c", "image": image, **({"command": [*command]} if command else {}), **GPU, **fields}


@pytest.mark.parametrize(
    "server",
    [
        container("lmsysorg/sglang:v0.5.3", "python3", "-m", "sglang.launch_server", "--model-path", "x"),
        container("lmsysorg/sglang:v0.5.3", "sh", "-c", "pip install x && exec python3 -m sglang.launch_server --tp 2"),
        container("ghcr.io/huggingface/text-generation-inference:3.3", args=["--model-id", "x"]),
        container("docker.io/ollama/ollama:0.9"),
        container("corp/inference:7", "trtllm-serve", "/models/x"),
        container("corp/inference:7", "mpirun", "tritonserver", "--model-repository=/models"),
    ],
)
def test_a_container_with_gpus_and_another_server_is_an_engine_that_is_not_vllm(tmp_path: Path, server: Any) -> None:
    (found,) = engines(tmp_path, workload(server))
    assert found.stated.is_set
    assert found.arguments == ()


@pytest.mark.parametrize(
    "beside",
    [
        container("docker.io/ollama/ollama:0.9", resources={}),
        container("docker.io/ollama/ollama:0.9", resources={"limits": {"nvidia.com/gpu": 0}}),
        container("lmsysorg/sglang:v0.5.3", "python3", "-m", "sglang.bench_serving"),
        container("lmsysorg/sglang-router:v0.1"),
        container("lmsysorg/sglang:v0.5.3", "sleep", "infinity"),
        container("corp/training:1", "sh", "-c", "pip install sglang && python3 train.py --rollout sglang"),
        container("corp/training:1", "torchrun", "train_sglang.py"),
        container("nvcr.io/nvidia/pytorch:25.09-py3", "python3", "convert.py", "--backend", "tensorrt-llm"),
    ],
)
def test_what_stands_beside_another_server_or_only_names_it_is_no_engine(tmp_path: Path, beside: Any) -> None:
    assert engines(tmp_path, workload(beside)) == []


def test_vllm_beside_another_server_is_an_engine_of_its_own(tmp_path: Path) -> None:
    vllm = {"name": "v", "image": "vllm/vllm-openai:v0.32.0", "args": ["--model=Qwen/Qwen3-8B"], **GPU}
    first, second = engines(tmp_path, workload(vllm, container("ollama/ollama:0.9")))
    assert (first.arguments != (), first.stated.is_set) == (True, False)
    assert second.stated.text == "ollama/ollama:0.9"


def test_the_first_pod_of_a_group_is_looked_at(tmp_path: Path) -> None:
    pods = {"leaderTemplate": {"spec": {"containers": [container("docker.io/ollama/ollama:0.9")]}}}
    group = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "x"}}
    (found,) = engines(tmp_path, {**group, "spec": {"leaderWorkerTemplate": {"size": 2, **pods}}})
    assert found.path == "spec.leaderWorkerTemplate.leaderTemplate.spec.containers[0]"


VLLM = {"name": "v", "image": "vllm/vllm-openai:v0.32.0", "args": ["--model=Qwen/Qwen3-8B"], **GPU}


def with_spec(document: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**document, "spec": {**document["spec"], **fields}}


@pytest.mark.parametrize(
    ("document", "replicas"),
    [
        (workload(VLLM), 1),
        (with_spec(workload(VLLM), replicas=3), 3),
        (with_spec(workload(VLLM), replicas=0), 1),
        (with_spec(workload(VLLM), replicas="${REPLICAS}"), 1),
        (with_spec(workload(VLLM, kind="StatefulSet"), replicas=2), 2),
        ({"spec": {"predictor": {"minReplicas": 2, "maxReplicas": 9, **service("vllm")["spec"]["predictor"]}}}, 2),
        ({"servingEngineSpec": {"modelSpec": [{"replicaCount": 1}, {"name": "a", "repository": "vllm/vllm-openai",
         "modelURL": "Qwen/Qwen3-8B", "replicaCount": 4}]}}, 4),
    ],
)  # fmt: skip
def test_the_nearest_number_around_an_engine_says_how_many_there_are(
    tmp_path: Path, document: dict[str, Any], replicas: int
) -> None:
    if "predictor" in document.get("spec", {}):
        document = {**service("vllm"), **document}
    found = engines(tmp_path, runtime("x"), document)
    assert found[-1].replicas == replicas
