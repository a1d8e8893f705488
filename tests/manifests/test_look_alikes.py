"""Manifests that work and look like an offence: no rule of severity error raises on them, and each rule raises on its own example.

A false refusal is the worst answer. Who adds a rule of severity error adds look-alikes here: what could make the thing legal in vLLM, its
parser, Kubernetes or compose (a default, a variable, the last flag, another release, entrypoint, container, volume, kind of GPU …).
"""

import json
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.cli.rule_examples import example_of
from kvgate.findings.finding import Rule, Severity
from kvgate.rules.catalogue import RULES
from support.command_line import invoked

H100, L4, T4, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-L4", "Tesla-T4", "NVIDIA-A100-SXM4-80GB"
IMAGE = "vllm/vllm-openai:v0.32.0"
MODULE, DYNAMO = ("python3", "-m", "vllm.entrypoints.openai.api_server"), ("python3", "-m", "dynamo.vllm", "--model")
SMALL, SHORT = ("Qwen/Qwen3-4B", "--max-model-len=8192"), ("Qwen/Qwen3-8B", "--max-model-len=4096")
TINY, BIG = ("Qwen/Qwen3-0.6B", "--max-model-len=4096"), ("Qwen/Qwen3-32B", "--max-model-len=4096")
AWQ, GPTQ = (
    ("Qwen/Qwen2.5-7B-Instruct-AWQ", "--max-model-len=4096"),
    ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "--max-model-len=4096"),
)
LONG = ("Qwen/Qwen3-8B", "--max-model-len=40960")
HOST = {"limits": {"nvidia.com/gpu": 1, "memory": "32Gi"}}
SPECULATE = "--speculative-config"
TRANSFER = '--kv-transfer-config={{"kv_connector":"{}","kv_role":"kv_both"}}'
CONNECTOR = TRANSFER.format("OffloadingConnector")
EXPANDABLE = [{"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "expandable_segments:True"}]
NGRAM = f'{SPECULATE}={{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4}}'
YARN = '{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}'
ERRORS = {rule.id: rule for rule in RULES.values() if Severity.ERROR in rule.severities}


def pod(
    *args: str, gpu: str | None = L4, gpus: int | None = 1, release: str = "0.32.0", image: str = "", command: Any = ("vllm", "serve"),
    container: dict[str, Any] | None = None, shm: bool = True, **spec: Any,
) -> dict[str, Any]:  # fmt: skip
    """A pod with one engine; `command` None: the image's entrypoint."""
    vllm: dict[str, Any] = {"name": "vllm", "image": image or f"vllm/vllm-openai:v{release}", "args": list(args)}
    vllm |= {"command": list(command)} if command else {}
    vllm |= {"resources": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {}
    vllm |= {"volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]} if shm else {}
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory"}}] if shm else []
    nodes = {"nodeSelector": {"nvidia.com/gpu.product": gpu}} if gpu else {}
    spec = {"containers": [vllm | (container or {})], "volumes": volumes, **nodes, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "look-alike"}, "spec": spec}


def env(**values: str) -> dict[str, Any]:
    return {"env": [{"name": name, "value": value} for name, value in values.items()]}


def script(text: str, **more: Any) -> dict[str, Any]:
    return pod(text, command=("bash", "-c"), **more)


def ours(gpu: str = "H100-SXM-80GB", model: str = "Qwen/Qwen3-8B", **spec: Any) -> dict[str, Any]:
    """An InferenceDeployment."""
    top = {key: spec.pop(key) for key in ("workload", "admission", "draft", "template") if key in spec}
    shared = {"sharedBy": spec.pop("shared")} if "shared" in spec else {}
    body = {"model": {"name": model}, "accelerator": {"type": gpu, **shared}, "vllm": {"maxNumSeqs": 4, **spec}, **top}
    return {"apiVersion": "kvgate.io/v1alpha1", "kind": "InferenceDeployment", "metadata": {"name": "x"}, "spec": body}


def compose(**services: Any) -> dict[str, Any]:
    image = {"image": "vllm/vllm-openai:v0.32.0", "ipc": "host", "gpus": [{"count": 1}]}
    return {"services": {name: {**image, **service} for name, service in services.items()}}


def values(stated: str, **fields: Any) -> str:
    """Values of a chart that nobody knows, whose settings other engines have too."""
    settings = {"model": "Qwen/Qwen3-32B", "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "dtype": "fp8"}
    where = {"resources": {"limits": {"nvidia.com/gpu": 1}}, "nodeSelector": {"nvidia.com/gpu.product": L4}}
    return f"# not vllm\n{stated}\n{yaml.safe_dump({**settings, **where, **fields})}"


def graph(framework: str, **container: Any) -> dict[str, Any]:
    """A graph of Dynamo with one worker."""
    worker = {
        "resources": {"limits": {"gpu": "1"}},
        "extraPodSpec": {"mainContainer": {"image": "corp/worker:1", **container}},
    }
    kind = {"apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment", "metadata": {"name": "x"}}
    return {**kind, "spec": {"backendFramework": framework, "services": {"worker": worker}}}


def group(size: int, worker: dict[str, Any]) -> dict[str, Any]:
    """A LeaderWorkerSet of pods like this one."""
    template = {"size": size, "workerTemplate": {"spec": worker["spec"]}}
    kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "x"}}
    return {**kind, "spec": {"leaderWorkerTemplate": template}}


def beside(manifest: dict[str, Any], *, name: str = "vllm", namespace: str = "default", **spec: Any) -> str:
    """A pod, and a Service with such a name beside it."""
    kind = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}}
    return yaml.safe_dump_all([manifest, {**kind, "spec": {"ports": [{"port": 8000}], **spec}}])


def prefer(gpu: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": [gpu]}]}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}]}}


def require(operator: str, *gpus: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": operator, "values": list(gpus)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


OFFENCES: dict[str, Any] = {
    "SharedGpuOverbooked": compose(
        a={"command": f"{' '.join(SMALL)} --gpu-memory-utilization 0.9", "gpus": [{"device_ids": ["0"]}]},
        b={"command": f"{' '.join(SMALL)} --gpu-memory-utilization 0.9", "gpus": [{"device_ids": ["0"]}]},
    ),
    "ModelClassNotInRelease": pod("Qwen/Qwen3.5-27B", "--max-model-len=4096", gpu=H100, release="0.9.2"),
}
"""Manifests of rules whose example raises no more than a warning."""

LOOK_ALIKES: dict[str, list[Any]] = {
    "AdministratorMustAllow": [
        ours(template={"volumes": [{"name": "data", "emptyDir": {}}], "volumeMounts": [{"name": "data", "mountPath": "/data"}]}),
        ours(template={"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}),
        ours(template={"runtimeClassName": "nvidia", "schedulerName": "volcano"}),
    ],
    "WeightsTooLarge": [
        pod(*BIG, "-tp=4", gpus=4),
        pod(*BIG, "--pipeline-parallel-size=4", gpus=4),
        pod(*BIG, gpu=H100),
        pod("Qwen/Qwen3-32B-AWQ", "--max-model-len=2048"),
        pod(*BIG, "--cpu-offload-gb=60"),
        pod(*BIG, gpu=None, affinity=prefer(L4)),
        pod(*BIG, gpu=None, affinity=require("In", L4, H100)),
        pod(*BIG, gpu=None, affinity=require("NotIn", L4)),
        pod(*SMALL, initContainers=[{"name": "check", "image": IMAGE, "command": ["vllm", "serve", *BIG]}]),
        script(f"# vllm serve {BIG[0]}\nexec vllm serve {' '.join(SMALL)}"),
        script(f"if false; then vllm serve {BIG[0]}; fi; vllm serve {' '.join(SMALL)}", gpu=H100),
        pod("--model=Qwen/Qwen3-32B", "--model=Qwen/Qwen3-4B", "--max-model-len=8192", command=MODULE),
        pod("--model", "Qwen/Qwen3-4B", "--model", "Qwen/Qwen3-32B", "--max-model-len=8192"),  # `vllm serve` takes the first
        ours("L4-24GB", "Qwen/Qwen3-32B", tensorParallelSize=4, maxModelLen=4096),
        group(4, pod(*BIG, "-pp=4", "--distributed-executor-backend=ray")),
    ],
    "KVCacheTooSmall": [
        pod("Qwen/Qwen3-32B", "--max-model-len=30000", gpu=H100, image="corp/vllm:0.15.1"),
        pod("Qwen/Qwen3-32B", "--max-model-len=34000", "--swap-space=4", gpu=H100, image="corp/llm:7"),
        pod(*LONG, "--max-model-len=8192"),
        pod(*LONG, "--max_model_len", "8k"),
        pod(*LONG, "--kv-cache-dtype=fp8", "--gpu-memory-utilization=0.95"),
        pod(*LONG, "-tp", "2", gpus=2),
        pod("Qwen/Qwen3-8B", "--max-model-len=auto"),
        pod("Qwen/Qwen3-8B", "--max-model-len=-1"),
        pod(*LONG, gpu=None, affinity=prefer(L4)),
        pod(*LONG, "--cpu-offload-gb=8"),
        pod("$(MODEL)", "--max-model-len=$(LENGTH)", container=env(MODEL="Qwen/Qwen3-8B", LENGTH="8192")),
        script("vllm serve Qwen/Qwen3-8B --max-model-len ${LENGTH:-8192}"),
        script("LENGTH=40960; LENGTH=8192; vllm serve Qwen/Qwen3-8B --max-model-len $LENGTH"),
        {**pod("Qwen/Qwen3-8B", "--max-model-len=8192"), "metadata": {"name": "x", "annotations": {"note": "--max-model-len=40960"}}},
        compose(vllm={"command": "Qwen/Qwen3-8B --max-model-len 8192 # --max-model-len 40960"}),
        ours("L4-24GB", maxModelLen=8192),
    ],
    "MambaCacheBlocksExceeded": [
        pod("Qwen/Qwen3.5-27B", "--max-model-len=4096", "--max-num-seqs=1024", "--max-num-seqs=32", gpu=H100),
        pod("Qwen/Qwen3.5-27B", "--max-model-len=4096", "--max-num-seqs=1024", "--enforce-eager", gpu=H100),
        pod("Qwen/Qwen3.5-27B", "--max-model-len=4096", "--max-num-seqs=1024", "-tp=8", gpu=H100, gpus=8),
        pod("Qwen/Qwen3-8B", "--max-model-len=4096", "--max-num-seqs=1024", gpu=H100),
    ],
    "GuaranteeNotMet": [
        ours(maxModelLen=32768, maxNumSeqs=64, admission={"guarantee": "Startup"}),
        ours(maxModelLen=32768, maxNumSeqs=64, workload={"peakConcurrency": 8, "promptTokens": 1000, "outputTokens": 500}),
        ours(maxModelLen=32768, maxNumSeqs=8),
        pod("Qwen/Qwen3-8B", "--max-model-len=32768", "--max-num-seqs=64", gpu=H100),
    ],
    "HostMemoryTooSmall": [
        pod(*SMALL, "--kv-offloading-size=40", "--kv-offloading-size=4", container={"resources": HOST}),
        pod(*SMALL, "--kv-offloading-size=40"),
        pod(*SMALL, "--kv-offloading-size=40", container={"resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"memory": "1Gi"}}}),
        pod(*SMALL, container={"resources": {"limits": {"nvidia.com/gpu": 1, "memory": "64Gi"}}}, initContainers=[
            {"name": "fetch", "image": "busybox:1", "resources": {"limits": {"memory": "64Mi"}}}]),
        pod(*SMALL, container={"resources": {"limits": {"nvidia.com/gpu": 1, "ephemeral-storage": "1Gi", "hugepages-2Mi": "1Gi"}}}),
    ],
    "SharedMemoryTooSmall": [
        pod(*SMALL, "-tp=2", gpus=2),
        pod(*SMALL, "-tp=2", gpus=2, shm=False, hostIPC=True),
        pod(*SMALL, "-tp=2", gpus=2, shm=False, container={"volumeMounts": [{"name": "dev", "mountPath": "/dev"}]},
            volumes=[{"name": "dev", "hostPath": {"path": "/dev"}}]),
        pod(*SMALL, "-tp=2", gpus=2, shm=False, container={"volumeMounts": [{"name": "shm", "mountPath": "/dev/shm/"}]},
            volumes=[{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "10Gi"}}]),
        pod(*SMALL, "-tp=2", gpus=2, shm=False, release="0.20.0"),
        pod(*SMALL, "-tp=2", "-tp=1", gpus=1, shm=False),
        script(f"mount -o remount,size=10g /dev/shm; vllm serve {' '.join(SMALL)} -tp 2", gpus=2, shm=False),
        compose(vllm={"command": f"{' '.join(SMALL)} -tp 2", "gpus": [{"count": 2}]}),
        compose(vllm={"command": f"{' '.join(SMALL)} -tp 2", "gpus": [{"count": 2}], "ipc": "private", "shm_size": "8gb"}),
    ],
    "UtilizationTooHigh": [
        pod(*SMALL, "--gpu-memory-utilization=1.0", "--gpu-memory-utilization=0.9"),
        pod(*SMALL, "--gpu-memory-utilization=1.0", release="0.8.5"),
        pod(*SMALL, "--gpu-memory-utilization=0.95", gpu=H100),
        script(f"VALUE=1.0; VALUE=0.9; vllm serve {' '.join(SMALL)} --gpu-memory-utilization $VALUE"),
    ],
    "SharedGpuOverbooked": [
        ours(model="Qwen/Qwen3-4B", shared=2, gpuMemoryUtilization="0.45", maxModelLen=8192),
        compose(
            a={"command": f"{' '.join(SMALL)} --gpu-memory-utilization 0.9", "gpus": [{"device_ids": ["0"]}]},
            b={"command": f"{' '.join(SMALL)} --gpu-memory-utilization 0.9", "gpus": [{"device_ids": ["1"]}]},
        ),
        compose(
            a={"command": f"{' '.join(SMALL)} --gpu-memory-utilization 0.9", "profiles": ["a"]},
            b={"command": f"{' '.join(SMALL)} --gpu-memory-utilization 0.9", "profiles": ["b"]},
        ),
    ],
    "MaxModelLenAboveModel": [
        pod("/models/own.gguf", "--hf-config-path=Qwen/Qwen3-4B", "--max-model-len=8192", release="0.20.0"),
        pod("/models/own.gguf", "--hf-config-path=/models/own", "--max-model-len=300000", release="0.20.0"),
        pod("/models/own", "--hf-config-path=Qwen/Qwen3-4B", f'--hf-overrides={{"rope_parameters":{YARN}}}', "--max-model-len=131072"),
        pod("Qwen/Qwen3-8B", "--max-model-len=65536", gpu=H100, container=env(VLLM_ALLOW_LONG_MAX_MODEL_LEN="1")),
        pod("Qwen/Qwen3-8B", "--max-model-len=40960", gpu=H100),
        pod("Qwen/Qwen3-8B", "--max-model-len=40k", gpu=H100),
        pod("Qwen/Qwen3-8B", "--max-model-len=65536", "--max-model-len=auto", gpu=H100),
        pod("Qwen/Qwen3-8B", "--max-model-len=65536", gpu=H100, container={"envFrom": [{"configMapRef": {"name": "env"}}]}),
        pod("Qwen/Qwen3-8B", "--max-model-len=65536", gpu=H100, container={"env": [
            {"name": "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "valueFrom": {"configMapKeyRef": {"name": "env", "key": "long"}}}]}),
        pod("Qwen/Qwen3-8B", "--max-model-len=65536", gpu=H100, command=("env", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1", "vllm", "serve")),
        script("export VLLM_ALLOW_LONG_MAX_MODEL_LEN=1\nvllm serve Qwen/Qwen3-8B --max-model-len 65536", gpu=H100),
        script("VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve Qwen/Qwen3-8B --max-model-len 65536", gpu=H100),
        pod("Qwen/Qwen3-8B", "--max-model-len=65536", f'--hf-overrides={{"rope_parameters": {YARN}}}', gpu=H100),
        pod("Qwen/Qwen3-8B", "--max-model-len=131072", f"--rope-scaling={YARN}", gpu=H100, release="0.9.2"),
        pod("Qwen/Qwen3-8B", "--max-model-len=65536", '--hf-overrides={"max_position_embeddings": 131072}', gpu=H100),
    ],
    "ParallelSizeRefused": [
        pod("Qwen/Qwen3-8B", "-tp=3", "-tp=2", "--max-model-len=8192", gpus=2, gpu=H100),
        pod("Qwen/Qwen3-8B", "--data-parallel-size=3", "--max-model-len=8192", gpus=3, gpu=H100),
        pod("Qwen/Qwen3-8B", "--pipeline-parallel-size=3", "--max-model-len=8192", gpus=3, gpu=H100),
        pod("Qwen/Qwen3-8B", "-tp=16", "--max-model-len=8192", gpus=16, gpu=H100),
        ours(tensorParallelSize=2, maxModelLen=8192),
    ],
    "SpeculationRefused": [
        pod(*SHORT, f'{SPECULATE}={{"model":"AngelSlim/Qwen3-8B_eagle3","num_speculative_tokens":3,"method":"eagle3"}}', gpu=H100),
        pod(*SHORT, NGRAM, gpu=H100),
        pod(*SHORT, f"{SPECULATE}.method=ngram", f"{SPECULATE}.num_speculative_tokens=3", f"{SPECULATE}.prompt_lookup_max=4", gpu=H100),
        pod(*SHORT, f'{SPECULATE}={{"method":"nothing"}}', NGRAM, gpu=H100),
    ],
    "KVCacheDtypeRefused": [
        ours("T4-16GB", "Qwen/Qwen3-0.6B", kvCacheDtype="auto", maxModelLen=4096),
        pod("Qwen/Qwen3-0.6B", "--max-model-len=4096", "--kv-cache-dtype=fp8"),
        pod("Qwen/Qwen3-0.6B", "--max-model-len=4096", "--kv-cache-dtype=fp8", "--kv-cache-dtype=auto", "--dtype=half", gpu=T4),
        pod(*TINY, "--kv-cache-dtype=fp8_e5m2", gpu=A100, release="0.8.5", container=env(VLLM_USE_V1="0")),
    ],
    "BatchBelowMaxNumSeqs": [
        pod(*SMALL, "--max-num-seqs=128", "--max-num-batched-tokens=64", "--max-num-batched-tokens=2048"),
        pod(*SMALL, "--max-num-seqs=128", "--max-num-batched-tokens=128"),
        pod(*SMALL, "--max-num-seqs=128", "--max-num-batched-tokens=64", "--max-num-seqs=64"),
        ours(maxModelLen=1024, maxNumSeqs=128, maxNumBatchedTokens=2048),
    ],
    "BatchBelowMaxModelLen": [
        pod(*SMALL, "--max-num-batched-tokens=4096"),
        pod(*SMALL, "--no-enable-chunked-prefill", "--max-num-batched-tokens=8192"),
        pod(*SMALL, "--no-enable-chunked-prefill", "--enable-chunked-prefill", "--max-num-batched-tokens=4096"),
        pod(*SMALL, "--no-enable-chunked-prefill", "--max-num-batched-tokens=4096", "--max-model-len=4096"),
        pod(*SMALL, "--no-enable-chunked-prefill"),
    ],
    "DtypeRefused": [
        pod("Qwen/Qwen3-0.6B", "--max-model-len=4096", "--dtype=bfloat16", "--dtype=half", gpu=T4),
        pod("Qwen/Qwen3-0.6B", "--max-model-len=4096", "--dtype=float16", gpu=T4),
        pod("Qwen/Qwen3-0.6B", "--max-model-len=4096", "--dtype=auto", gpu=T4),
        pod("Qwen/Qwen3-0.6B", "--max-model-len=4096", gpu=T4),
        pod("Qwen/Qwen3-0.6B", "--max-model-len=4096", "--dtype=bfloat16"),
        pod("Qwen/Qwen3-0.6B", "--max-model-len=4096", "--dtype=bfloat16", gpu=None, affinity=prefer(T4)),
        pod("google/gemma-2-9b-it", "--max-model-len=4096", gpu=H100),
        pod("google/gemma-2-9b-it", "--max-model-len=4096", "--dtype=half", "--dtype=bfloat16", gpu=H100),
        pod("google/gemma-2-9b-it", "--max-model-len=4096", "--dtype=half", gpu=H100, release="0.8.5"),
        pod("google/gemma-3-1b-it", "--max-model-len=4096", "--dtype=half", gpu=H100, release="0.10.2"),
        pod("google/gemma-2-9b-it", "--max-model-len=4096", "--dtype=half", gpu=H100, image="corp/llm:7"),
        pod(*AWQ, release="0.11.0"),
        pod(*AWQ, "--quantization=awq", "--dtype=half", release="0.11.0"),
        pod(*AWQ, "--quantization=awq_marlin", "--dtype=bfloat16", release="0.11.0"),
        pod(*AWQ, "--dtype=bfloat16", release="0.11.0"),
        pod(*AWQ, "--quantization=awq", "--dtype=bfloat16", release="0.24.0"),
        pod(*AWQ, "--quantization=awq", "--quantization=awq_marlin", "--dtype=bfloat16", release="0.11.0"),
        pod(*GPTQ, "--dtype=bfloat16", release="0.19.1"),
        pod(*GPTQ, "--quantization=gptq", "--dtype=bfloat16", release="0.22.0"),
        pod(*GPTQ, "--quantization=gptq", release="0.19.1"),
        pod(*GPTQ, "--quantization=gptq", gpu=T4, release="0.19.1"),
    ],
    "BlockSizeRefused": [
        ours(blockSize=32, maxModelLen=8192),
        pod("Qwen/Qwen3-8B", "--max-model-len=8192", "--block-size=24", "--block-size=16", gpu=H100),
        pod("Qwen/Qwen3-8B", "--max-model-len=8192", "--block-size=128", gpu=H100),
    ],
    "CacheKernelMissing": [
        ours("H200-SXM-141GB", "deepseek-ai/DeepSeek-V3.2", tensorParallelSize=8, maxModelLen=8192),
        ours("A100-SXM-80GB", "deepseek-ai/DeepSeek-V2-Lite", maxModelLen=8192),
    ],
    "HybridManagerOff": [
        pod("Qwen/Qwen3.5-4B", "--max-model-len=8192", TRANSFER.format("NixlConnector"), gpu=H100),
        pod("Qwen/Qwen3.5-4B", "--max-model-len=8192", TRANSFER.format("SomebodysConnector"), gpu=H100),
        pod("Qwen/Qwen3.5-4B", "--max-model-len=8192", TRANSFER.format("NixlConnector"), "--no-disable-hybrid-kv-cache-manager",
            gpu=H100, release="0.21.0"),
        pod(*SMALL, TRANSFER.format("LMCacheConnectorV1"), gpu=H100),
        pod("google/gemma-3-4b-it", "--max-model-len=8192", TRANSFER.format("LMCacheConnectorV1"), gpu=H100),
        pod("Qwen/Qwen3.5-4B", "--max-model-len=8192", '--kv-events-config={"publisher":"zmq"}', gpu=H100),
        pod(*SMALL, "--kv-offloading-size=4", "--disable-hybrid-kv-cache-manager", gpu=H100, release="0.16.0"),
        pod(*SMALL, "--kv-offloading-size=4", gpu=H100),
    ],
    "WeightFormatRefused": [
        ours(model="Qwen/Qwen3-8B-FP8", maxModelLen=8192),
        pod("Qwen/Qwen3-8B-FP8", "--max-model-len=8192", gpu=A100),
        pod("Qwen/Qwen3-8B-AWQ", "--max-model-len=4096", "--dtype=half", gpu=T4),
        pod("Qwen/Qwen3-8B-FP8", "--max-model-len=8192", gpu=None, affinity=require("NotIn", T4)),
    ],
    "WeightFormatDeprecated": [
        ours("H200-SXM-141GB", "meta-llama/Llama-3.1-405B-Instruct-FP8", version="0.32.0", tensorParallelSize=8, maxModelLen=8192,
             extraArgs=["--allow-deprecated-quantization"]),
        pod("meta-llama/Llama-3.1-405B-Instruct-FP8", "--max-model-len=8192", "-tp=8", gpu="NVIDIA-H200", gpus=8, release="0.10.0"),
    ],
    "QuantizationContradictsCheckpoint": [
        pod("Qwen/Qwen3-8B-AWQ", "--max-model-len=4096", "--quantization=awq_marlin"),
        pod("Qwen/Qwen3-8B-AWQ", "--max-model-len=4096", "--quantization=awq"),
        pod("Qwen/Qwen3-8B-AWQ", "--max-model-len=4096", "--quantization=gptq", "--quantization=awq"),
        pod("Qwen/Qwen3-8B-AWQ", "--max-model-len=4096"),
        pod("Qwen/Qwen3-4B", "--max-model-len=4096", "--quantization=awq", "--revision=awq"),
        pod("/models/Qwen/Qwen3-4B", "--max-model-len=4096", "--quantization=awq"),
        pod("Qwen/Qwen3-4B", "--max-model-len=4096", "--quantization=awq", '--hf-overrides={"quantization_config_file":"a.json"}'),
        pod("Qwen/Qwen3-4B", "--max-model-len=4096", "--quantization=fp8"),
        pod("Qwen/Qwen3-4B", "--max-model-len=4096", "-q", "bitsandbytes"),
        pod("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "--max-model-len=4096", "--quantization=gptq_marlin"),
    ],
    "LoraRefused": [
        pod("Qwen/Qwen3-8B", "--max-model-len=8192", "--enable-lora", "--max-loras=4", "--max-cpu-loras=8", gpu=H100),
        pod("Qwen/Qwen3-8B", "--max-model-len=8192", "--enable-lora", "--max-loras=4", gpu=H100),
        pod("Qwen/Qwen3-8B", "--max-model-len=8192", "--enable-lora", "--max-lora-rank=64", gpu=H100),
    ],
    "OffloadRefused": [
        pod("Qwen/Qwen3-8B", "--max-model-len=8192", "--offload-group-size=4", "--offload-num-in-group=1", gpu=H100),
        pod(*SMALL, "--offload-group-size=4", "--offload-num-in-group=8", "--offload-num-in-group=2", gpu=H100),
        pod("Qwen/Qwen3-8B", "--max-model-len=8192", "--cpu-offload-gb=4", gpu=H100),
    ],
    "KVConnectorRefused": [
        pod(*SMALL, CONNECTOR, release="0.11.0"),
        pod(*SMALL, CONNECTOR.replace("Offloading", "P2pNccl"), release="0.23.0"),
        pod(*SMALL, CONNECTOR, release="0.20.0", container={"env": EXPANDABLE}),
        pod(*SMALL, CONNECTOR, "--enable-sleep-mode", container={"env": EXPANDABLE}),
        pod(*SMALL, CONNECTOR, "--enable-cumem-allocator", container={"env": EXPANDABLE}),
        pod(*SMALL, container={"env": EXPANDABLE}),
        pod(*SMALL, CONNECTOR, container={"env": [{"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "expandable_segments:False"}]}),
        script(f"unset PYTORCH_CUDA_ALLOC_CONF\nvllm serve {' '.join(SMALL)} '{CONNECTOR}'", container={"env": EXPANDABLE}),
        script(
            f"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False\nexec vllm serve {' '.join(SMALL)} '{CONNECTOR}'",
            container={"env": EXPANDABLE},
        ),
        pod(*SMALL, CONNECTOR, command=("env", "PYTORCH_CUDA_ALLOC_CONF=", "vllm", "serve"), container={"env": EXPANDABLE}),
        pod(*SMALL, CONNECTOR.replace("Offloading", "Nixl"), "--enable-sleep-mode", release="0.33.0"),
        pod(*SMALL, CONNECTOR.replace("Connector", "Connectors").replace("{", '{"kv_connector_module_path":"corp.kv",')),
    ],
    "SlicesCannotBeJoined": [
        ours("H100-80GB-MIG-3g.40gb", "Qwen/Qwen3-4B", tensorParallelSize=1, maxModelLen=8192),
        pod(*SMALL, "--data-parallel-size=2", gpus=None, gpu=H100, container={"resources": {"limits": {"nvidia.com/mig-3g.40gb": 2}}}),
    ],
    "RequestAboveMaxModelLen": [
        ours(maxModelLen=8192, maxNumSeqs=16, workload={"peakConcurrency": 16, "promptTokens": 7692, "outputTokens": 500}),
    ],
    "CapacityConflict": [
        ours(maxModelLen=8192, admission={"capacity": "Pinned"}),
        ours(maxModelLen=8192, extraArgs=["--enable-sleep-mode"]),
    ],
    "ModelClassNotInRelease": [
        pod("Qwen/Qwen3.5-27B", "--max-model-len=4096", gpu=H100, image="corp/vllm:0.11.0"),
        pod("Qwen/Qwen3.5-27B", "--max-model-len=4096", gpu=H100, image="vllm/vllm-openai:v0.11.0-qwen35"),
        ours(model="Qwen/Qwen3-30B-A3B", version="0.32.0", maxModelLen=8192),
        pod("Qwen/Qwen3-30B-A3B", "--max-model-len=8192", gpu=H100, image="corp/llm:7"),
        pod("Qwen/Qwen3-30B-A3B", "--max-model-len=8192", "--model-impl=transformers", gpu=H100, release="0.9.2"),
    ],
    "OptionUnknown": [
        script(f"docker run --gpus all --shm-size 16g {IMAGE} --model {' '.join(SMALL)}"),
        script(f"docker run --shm-size=16g {IMAGE} & exec vllm serve {' '.join(SMALL)}"),
        compose(vllm={"command": " ".join(SMALL), "shm_size": "16g"}),
        f"image: {IMAGE}\ndockerArgs: [--gpus=all, --shm-size=16g, --ipc=host]\nargs: [--model=Qwen/Qwen3-4B, --max-model-len=4096]\n",
        pod(*TINY, "--tp-size=1", image="openmmlab/lmdeploy:v0.10.0", command=("python3", "/app/api_server.py")),
        pod(*TINY, "--tp-size=1", command=("python3", "/opt/lmdeploy/serve/openai/api_server.py")),
        pod("Qwen/Qwen3-4B", "--max_model_len=8192"),
        pod("Qwen/Qwen3-4B", "--max-model-le", "8192"),
        pod("Qwen/Qwen3-4B", "--max-num-batched-token=4096", "--max-model-len=8192"),
        pod(*SMALL, "-cc.mode=3", "--compilation-config.cudagraph_mode", "NONE"),
        pod(*SMALL, "--is-prefill-worker", "--enable-multimodal", "--migration-limit=3", command=DYNAMO),
        pod(*SMALL, "--omni", "--stage-configs-path=/s.yaml", "--usp=2", image="vllm/vllm-omni:v0.20.0"),
        pod("--model=Qwen/Qwen3-4B", "--kaito-config-file=/c.yaml", command=("python3", "/workspace/vllm/inference_api.py")),
        pod("--model=Qwen/Qwen3-4B", image="vllm/vllm-openai:v0.11.0", command=None),
        pod("--model", "Qwen/Qwen3-4B", image="vllm/vllm-openai:v0.12.0"),
        pod("--model=Qwen/Qwen3-4B", image="vllm/vllm-openai:v0.11.0"),
        script("accelerate launch --num_processes 1 /workspace/tfs/inference_api.py --pipeline text-generation"),
        pod(*SMALL, "--a-new-option", release="99.0.0"),
        pod(*SMALL, "--a-new-option", image="corp/llm:7"),
    ],
    "OptionAmbiguous": [
        pod(*SMALL, "--max-num-seqs=5", "--mode=random", image="ghcr.io/llm-d/llm-d-inference-sim-dev:v0.5.0", command=None),
        pod("--model=Qwen/Qwen3-4B", "--max-model-len=8192"),
        pod(*SMALL, "--max-num-se=64"),
        pod(*SMALL, "-t", "1"),
        pod(*SMALL, "--max-num=64", command=DYNAMO),
    ],
    "OptionValue": [
        # another engine, by what says which one it is
        values("backend: {type: trtllm}"),
        values("framework: dynamo-sglang"),
        values("inferenceEngine: TGI"),
        values("engine: {name: mocker}"),
        values("", trtllm_config={"max_batch_size": 8, "kv_cache_config": {"dtype": "fp8"}}),
        values("backend: {type: an-engine-that-nobody-knows}"),
        values("backend: sglang", vllm={"image": IMAGE}, sglang={"image": "lmsysorg/sglang:v0.5.3"}),
        graph("sglang", args=["--model=Qwen/Qwen3-32B", "--max-model-len=4096", "--max-num-seqs=4", "--dtype=fp8"]),
        {"servingEngineSpec": {"modelSpec": [
            {"name": "x", "repository": "lmsysorg/sglang", "tag": "v0.5.3", "modelURL": "Qwen/Qwen3-4B", "vllmConfig": {"dtype": "fp8"}}]}},
        {"modelArtifacts": {"uri": "hf://Qwen/Qwen3-4B", "name": "vllm"}, "decode": {"containers": [
            {"image": "lmsysorg/sglang:v0.5.3", "modelCommand": "imageDefault", "args": ["--dtype=fp8"]}]}},
        {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "x"}, "spec": {"predictor": {"model": {
            "modelFormat": {"name": "huggingface"}, "runtime": "kserve-sglang", "args": ["--model_id=Qwen/Qwen3-4B", "--dtype=fp8"]}}}},
        pod(*SMALL, "--max-num-seqs=$(SEQS)"),
        pod(*SMALL, "--max-num-seqs=<N>"),
        pod(*SMALL, "--max-num-batched-tokens=8k", "--quantization=None"),
        pod(*SMALL, "--enable-prefix-caching", "--no-enable-prefix-caching"),
        pod(*SMALL, "--enable-chunked-prefill=false", release="0.7.3"),
        pod(*SMALL, "--enable-chunked-prefill=false", image="corp/llm:7"),
        pod(*SMALL, "--limit-mm-per-prompt=image=4", release="0.8.5"),
        pod(*SMALL, "--max-num-seqs={{ .Values.seqs }}"),
        compose(vllm={"command": f"""{' '.join(SMALL)} --override-generation-config '{{"temperature": 0.1}}'"""}),
    ],
    "ParserUnknown": [
        pod(*SMALL, "--enable-auto-tool-choice", "--tool-call-parser=hermes"),
        pod(*SMALL, "--enable-auto-tool-choice", "--tool-call-parser=mine", "--tool-parser-plugin=/p.py"),
        pod(*SMALL, "--reasoning-parser=mine", "--reasoning-parser=qwen3"),
    ],
    "OptionNotYet": [
        pod(*SMALL, "--monokernel", image="nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0-kimi-k3-dev.1", command=DYNAMO),
        pod(*SMALL, "--nnodes=1", image="vllm/vllm-openai:v0.11.0-kimi-k3"),
        pod(*SMALL, "--nnodes=1", image="corp/vllm:0.11.0"),
        pod(*SMALL, "--nnodes=1", image="vllm/vllm-openai:nightly-2025-09-20"),
        pod(*SMALL, "--nnodes=1", image="vllm/vllm-openai:${TAG:?such as v0.11.0}"),
        pod(*SMALL, "--kv-cache-memory-bytes=4000000000", release="0.10.2"),
        pod(*SMALL, "--kv-cache-memory-bytes=4000000000", image="corp/llm:7"),
        pod(*SMALL, "--kv-cache-memory-bytes=4000000000", image="vllm/vllm-openai:latest"),
    ],
    "OptionRemoved": [
        pod(*SMALL, "--swap-space=4", image="vllm/vllm-openai:v0.18.0rc1"),
        pod(*SMALL, "--swap-space=4", image="vllm/vllm-openai:latest"),
        pod(*SMALL, "--swap-space=4", image="corp/vllm:0.18.0"),
        pod(*SMALL, "--swap-space=4", release="0.17.1"),
        pod(*SMALL, "--swap-space=4", image="corp/llm:7"),
        pod(*SMALL, "--num-scheduler-steps=8", release="0.8.5"),
    ],
    "UnexpectedWord": [
        pod("--model=Qwen/Qwen3-4B", "--enforce-eager", "true", command=MODULE),
        pod("--model=Qwen/Qwen3-4B", "--enforce-eager", "true", command=None, release="0.11.0"),
        pod("serve", "Qwen/Qwen3-4B", command=None, image="lmcache/vllm-openai:v0.3.9"),
        pod("serve", "Qwen/Qwen3-4B", command=("vllm",)),
        pod("serve", "--model=Qwen/Qwen3-4B", command=None, release="0.11.0"),
        pod("vllm", "serve", "Qwen/Qwen3-4B", command=("/usr/bin/env",)),
        pod("Qwen/Qwen3-4B", "--served-model-name", "a", "b"),
        pod("--served-model-name", "a", "--model", "Qwen/Qwen3-4B"),
        pod("--enable-chunked-prefill", "false", "Qwen/Qwen3-4B", release="0.7.3"),
        compose(vllm={"command": "Qwen/Qwen3-4B --max-model-len 8192 | tee /log"}),
        pod("vllm serve Qwen/Qwen3-4B \\\n  --max-model-len 8192 \\\n  --enforce-eager", command=("sh", "-c")),
        pod(*SMALL, "--chat-template", " --no-file"),
        compose(vllm={"entrypoint": [], "command": "vllm serve Qwen/Qwen3-4B"}),
        compose(vllm={"entrypoint": "vllm", "command": "serve Qwen/Qwen3-4B"}),
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "patch"}, "spec": {"template": {"spec": {"containers": [
            {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": ["serve", "Qwen/Qwen3-4B"]}]}}}},
    ],
    "LoraNotEnabled": [
        pod(*SMALL, "--enable-lora", "--lora-modules", "sql=org/sql"),
        pod(*SMALL, "$(MORE)", "--lora-modules", "sql=org/sql"),
        pod(*SMALL, "--lora-modules"),
    ],
    "ServiceLink": [
        beside(pod(*SMALL, enableServiceLinks=False)),
        beside(pod(*SMALL), name="vllm-server"),
        beside(pod(*SMALL), namespace="another"),
        beside(pod(*SMALL), clusterIP="None"),
        beside(pod(*SMALL), type="ExternalName", externalName="vllm.example.org"),
        beside(pod(*SMALL, container=env(VLLM_PORT="8000"))),
        beside(pod(*SMALL, container={"envFrom": [{"secretRef": {"name": "all-of-its-settings"}}]})),
        beside(script(f"unset VLLM_PORT; exec vllm serve {' '.join(SMALL)}")),
        beside(script(f"env -u VLLM_PORT vllm serve {' '.join(SMALL)}")),
        beside(pod(*SMALL), name="vllm-nixl-side-channel"),
        beside(pod(*SMALL, image="lmsysorg/sglang:v0.5.0", command=("python3", "-m", "sglang.launch_server"))),
        beside({**pod(*SMALL), "apiVersion": "serving.knative.dev/v1", "kind": "Service", "spec": {"template": pod(*SMALL)}}),
        beside(compose(vllm={"command": " ".join(SMALL)})),
    ],
    "ToolCallParserMissing": [
        pod(*SMALL, "--enable-auto-tool-choice", "--tool-call-parser=hermes"),
        pod(*SMALL, "--enable-auto-tool-choice", "--no-enable-auto-tool-choice"),
        pod(*SMALL, "--enable-auto-tool-choice", "$(MORE)"),
        pod(*SMALL, "--enable-auto-tool-choice", command=DYNAMO),
    ],
    "InvalidSetting": [
        pod(*SMALL, "--gpu-memory-utilization=1.5", "--gpu-memory-utilization=0.9"),
        pod(*SMALL, "--gpu-memory-utilization=.9"),
        pod(*SMALL, "--max-num-seqs=1"),
        pod(*SMALL, "--max-num-partial-prefills=1", release="0.26.0"),
        pod(*SMALL, "--max-num-partial-prefills=4", release="0.10.1"),
        pod(*SMALL, "--max-num-partial-prefills=4", "--max-num-partial-prefills=1", release="0.26.0"),
    ],
    "PodCannotServe": [
        pod(*SMALL, "--headless", "--data-parallel-size=2", "--data-parallel-start-rank=1"),
        ours(maxModelLen=8192, extraArgs=["--seed=1"]),
    ],
    "TooFewGpus": [
        f"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\nray start --head\nvllm serve {' '.join(BIG)} -tp 16\n",
        pod(*SMALL, "-tp=2", "-tp=1"),
        pod(*SMALL, "-tp=2", gpus=None),
        pod(*SMALL, "-tp=2", gpus=1, gpu=None, container={"resources": {"limits": {"huawei.com/Ascend910": 1}}}),
        pod(*SMALL, "-tp=8", gpus=1, gpu=None, container={"resources": {"limits": {"google.com/tpu": 4}}}),
        pod(*SMALL, "--data-parallel-size=16", "--data-parallel-size-local=1"),
        pod(*SMALL, "--data-parallel-size=2", "--data-parallel-rank=0"),
        pod(*SMALL, "--data-parallel-size=2", "--data-parallel-external-lb", "--data-parallel-rank=1"),
        pod(*SMALL, "-tp=2", "--distributed-executor-backend=ray"),
        pod(*SMALL, "-tp=2", "$(MORE)"),
        pod(*SMALL, "-tp=$(TP)"),
        pod(*SMALL, "-tp=2", "--nnodes=2", "--node-rank=0"),
        group(2, pod(*SMALL, "-tp=1", "-pp=2")),
        pod(*SMALL, "-tp=2", gpus=None, container={"resources": {"claims": [{"name": "gpus"}]}}, resourceClaims=[
            {"name": "gpus", "resourceClaimTemplateName": "elsewhere"}]),
        compose(vllm={"command": f"{' '.join(SMALL)} -tp 2", "gpus": "all"}),
        compose(vllm={"command": f"{' '.join(SMALL)} -tp 2", "gpus": [{"device_ids": ["0,1"]}]}),
    ],
    "InvalidField": [ours(maxModelLen=8192), {**ours(maxModelLen=8192), "status": {"anything": 1}}],
    "UnknownKind": [{**ours(maxModelLen=8192), "apiVersion": "kvgate.io.example.com/v1", "kind": "Other"}],
    "InvalidYaml": ["a: {b: [1, 2]}\n---\n# nothing\n---\nimage: '[vllm/vllm-openai:v0.32.0'\n", "%YAML 1.1\n---\na: !!str 1\n"],
    "Unreadable": ['kind: Pod\nnote: "\\u0000"\n', "\ufeffkind: Pod\n"],
    "InvalidConfig": [("config", "mappings:\n- paths: [clusters/eu/**]\n  accelerator: L4-24GB\n"), ("config", "# nothing\n")],
    "HeadroomBelowRequired": [("settings", "require: {headroom: 30%}\n", pod(*SMALL, "--max-num-seqs=1", gpu=H100)),
                              pod("Qwen/Qwen3-8B", "--max-model-len=8192")],
    "RequiredGuaranteeNotMet": [("settings", "require: {guarantee: FullContext}\n", pod(*SMALL, "--max-num-seqs=1", gpu=H100)),
                                ("settings", "require: {guarantee: Startup}\n", pod(*SMALL, "--max-num-seqs=64"))],
    "AcceleratorNotAllowed": [
        ("settings", "require: {accelerators: [L4-24GB]}\n", pod(*SMALL)),
        ("settings", "require: {accelerators: [L4-24GB]}\n", pod("-g", "daemon off;", gpu=H100, image="nginx:1", command=None)),
    ],
}  # fmt: skip
"""Rule → manifests that work: objects, texts, or (what else is given, its text, object)."""


def raised(text: str, *, settings: str = "", options: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Return the messages of severity error by rule."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / ".kvgate.yaml"
        config.write_text(settings, encoding="utf-8")
        answer = invoked("check", "-", "-o", "json", "--config", str(config), *options, stdin=text)
    if not answer.stdout:
        return {"InvalidConfig": [answer.stderr]}
    report = json.loads(answer.stdout)
    found: dict[str, list[str]] = {}
    for each in [*(f for d in report["documents"] for f in d["findings"]), *report["unreadable"]]:
        if each.get("severity", "error") == "error":
            found.setdefault(each["rule"], []).append(each["message"])
    return found


@lru_cache(maxsize=1)
def cases() -> list[Any]:
    return [
        pytest.param(rule, manifest, id=f"{rule}-{index}")
        for rule, manifests in LOOK_ALIKES.items()
        for index, manifest in enumerate(manifests)
    ]


@pytest.mark.parametrize(("rule", "manifest"), cases())
def test_a_manifest_that_works_is_not_refused(rule: str, manifest: Any) -> None:
    settings = ""
    if isinstance(manifest, tuple):
        _, settings, *rest = manifest
        manifest = rest[0] if rest else "kind: Service\n"
    text = manifest if isinstance(manifest, str) else yaml.safe_dump(manifest)
    assert rule not in raised(text, settings=settings)


BAD = "--dtype=fp8"
STILL_VLLM: list[Any] = [
    {**pod(*SMALL, BAD), "metadata": {"name": "sglang", "labels": {"engine": "sglang"}, "annotations": {"backend": "trtllm"}}},
    pod(*SMALL, BAD, initContainers=[{"name": "sidecar", "image": "ollama/ollama:0.9", "restartPolicy": "Always"}]),
    script(f"# instead of python3 -m sglang.launch_server\nexec vllm serve {' '.join(SMALL)} {BAD}"),
    pod(*SMALL, BAD, "--attention-backend=TRITON_ATTN", container=env(BACKEND="trtllm", VLLM_ATTENTION_BACKEND="FLASHINFER")),
    pod(*SMALL, BAD, image="nvcr.io/nvidia/tritonserver:25.09-vllm-python-py3"),
    pod(*SMALL, BAD, image="corp/sglang-and-more:1"),
    graph("sglang", command=["python3", "-m", "dynamo.vllm"], args=["--model", *SMALL, BAD]),
    graph("vllm", args=["--model=Qwen/Qwen3-4B", "--max-model-len=4096", "--max-num-seqs=4", BAD]),
    values("backend: {type: vllm}", trtllm={"tensor_parallel_size": 8}),
    values("inferenceEngine: vllm", attention={"backend": "TRTLLM"}),
    values("framework: ollama", llm={"model": "Qwen/Qwen3-4B", "image": IMAGE, "max_model_len": 4096, "dtype": "fp8"}),
    values("moe: {backend: trtllm}", gpu_memory_utilization=0.9, quantization={"backend": "trtllm", "dtype": "auto"}),
    values("speculator: {engine: sglang}", image=IMAGE),
    values("embeddings: {enabled: false, engine: ollama}", extraArgs=["--max-model-len=4096", "--max-num-seqs=8"]),
    compose(vllm={"command": f"{' '.join(SMALL)} {BAD}"}, ollama={"image": "ollama/ollama:0.9", "command": "serve"}),
    compose(vllm={"command": f"{' '.join(SMALL)} {BAD}", "image": "vllm/vllm-openai:${TAG:?no default}"}),
    compose(vllm={"command": f"{' '.join(SMALL)} {BAD}", "image": "${VLLM_IMAGE:?see the README}"}),
]  # fmt: skip
"""vLLM in spite of other names around it, and in an image that a person fills in: what every release refuses is refused."""


@pytest.mark.parametrize("manifest", STILL_VLLM)
def test_vllm_is_judged_whatever_stands_beside_it(manifest: Any) -> None:
    assert "OptionValue" in raised(manifest if isinstance(manifest, str) else yaml.safe_dump(manifest))


@pytest.mark.parametrize("rule", ERRORS.values(), ids=list(ERRORS))
def test_the_offence_itself_is_refused(rule: Rule) -> None:
    example = example_of(rule)
    assert example is not None
    if rule.id in OFFENCES:
        found = raised(yaml.safe_dump(OFFENCES[rule.id]), options=("--accelerator", "L4-24GB"))
    elif example.kind == "config":
        found = raised("kind: Service\n", settings=example.fires)
    else:
        found = raised(example.fires, settings=example.settings, options=example.options)
    assert rule.id in found


def test_every_rule_of_severity_error_has_look_alikes() -> None:
    assert set(LOOK_ALIKES) == set(ERRORS)
    assert all(LOOK_ALIKES.values())
