"""Commands and descriptions as people paste them, and the manifests that say the same."""

from typing import Any

import pytest

from kvgate.manifests.pasted import commands_in, described_in, is_description


def only(text: str) -> dict[str, Any]:
    (found,) = commands_in(list(enumerate(text.split("\n"), 1)))
    container: dict[str, Any] = found.manifest["spec"]["containers"][0]
    return container


@pytest.mark.parametrize(
    "text",
    [
        "docker run --gpus all vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B --max-model-len 8192",
        "$ sudo docker run --rm -it --gpus=all -p 8:8 \\\n  vllm/vllm-openai:v0.11.0 \\\n  --model Qwen/Qwen3-8B --max-model-len 8192",
        "podman run -d --name vllm --device nvidia.com/gpu=all vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B --max-model-len 8192",
        "root@host:~# docker run -dit --restart unless-stopped -e A=b vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B --max-model-len 8192",
    ],
)
def test_the_arguments_behind_the_image_are_those_of_the_container(text: str) -> None:
    container = only(text)
    assert container["image"] == "vllm/vllm-openai:v0.11.0"
    assert container["args"] == ["--model", "Qwen/Qwen3-8B", "--max-model-len", "8192"]


def test_memory_gpus_and_shared_memory_of_a_container_are_read() -> None:
    text = "docker run --gpus '\"device=0,1\"' -m 32g --shm-size 2g -e VLLM_X=1 --entrypoint python3 img -m vllm.entrypoints.api_server"
    (found,) = commands_in([(1, text)])
    spec = found.manifest["spec"]
    container = spec["containers"][0]
    assert container["resources"]["limits"] == {"memory": "32Gi", "nvidia.com/gpu": "2"}
    assert container["command"] == ["python3"]
    assert container["env"] == [{"name": "VLLM_X", "value": "1"}]
    assert spec["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}]


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve Qwen/Qwen3-8B --max-model-len 8192",
        "CUDA_VISIBLE_DEVICES=0 nohup vllm serve Qwen/Qwen3-8B --max-model-len 8192",
        "python3 -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-8B",
        "I run `vllm serve Qwen/Qwen3-8B` on one GPU",
    ],
)
def test_a_command_of_the_host_is_a_script_that_nobody_runs(line: str) -> None:
    command = only(line)["command"]
    assert command[:2] == ["sh", "-c"]
    assert command[2] in line


def test_quotes_and_backslashes_carry_a_command_over_lines_and_exports_belong_to_it() -> None:
    text = 'export VLLM_USE_V1=1\nvllm serve m --speculative-config \'{"method":\n "mtp"}\' \\\n --max-num-seqs 4\nnot of it'
    (found,) = commands_in(list(enumerate(text.split("\n"), 1)))
    assert (found.line, sorted(found.numbers)) == (2, [1, 2, 3, 4])
    assert "export VLLM_USE_V1=1" in found.manifest["spec"]["containers"][0]["command"][2]
    assert found.text.endswith("--max-num-seqs 4")


@pytest.mark.parametrize(
    "line",
    [
        "docker ps",
        "docker run",
        "the vllm server is slow",
        "INFO 11-02 03:04:05 [x.py:1] vllm serve was called",
        '  File "/usr/bin/vllm", line 8, in <module>',
    ],
)
def test_other_lines_are_no_commands(line: str) -> None:
    assert not list(commands_in([(1, line)]))


@pytest.mark.parametrize("piece", ["'", "A=b ", "sudo ", "docker run -e ", "`vllm serve ", "\\\n"])
def test_long_texts_are_read_in_time(piece: str) -> None:
    text = "vllm serve m " + piece * (200_000 // len(piece))
    list(commands_in(list(enumerate(text.split("\n"), 1))))


DESCRIBED = """\
Name:             vllm-0
Namespace:        serving
Node:             gpu-1/10.0.0.4
Labels:           app=vllm
                  tier=gpu
Containers:
  vllm:
    Image:         vllm/vllm-openai:v0.10.2
    Command:
      sh
      -c
      vllm serve Qwen/Qwen3-8B \\
        --max-model-len 8192

    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
    Limits:
      memory:          16Gi
      nvidia.com/gpu:  2
    Environment:
      HF_TOKEN:  <set to the key 'token' in secret 'hf'>  Optional: false
      VLLM_X:    1
    Mounts:
      /dev/shm from dshm (rw)
Volumes:
  dshm:
    Type:       EmptyDir (a temporary directory that shares a pod's lifetime)
    Medium:     Memory
    SizeLimit:  8Gi
Node-Selectors:              nvidia.com/gpu.product=NVIDIA-L4
Events:
  Warning  BackOff  2m  kubelet  Back-off restarting failed container
"""


def test_a_described_pod_is_the_pod() -> None:
    assert is_description(DESCRIBED)
    (found,) = described_in(list(enumerate(DESCRIBED.split("\n"), 1)))
    assert found.manifest == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "vllm-0", "namespace": "serving", "labels": {"app": "vllm", "tier": "gpu"}},
        "spec": {
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
            "nodeName": "gpu-1",
            "containers": [
                {
                    "name": "vllm",
                    "image": "vllm/vllm-openai:v0.10.2",
                    "command": ["sh", "-c", "vllm serve Qwen/Qwen3-8B \\\n--max-model-len 8192"],
                    "resources": {"limits": {"memory": "16Gi", "nvidia.com/gpu": "2"}},
                    "env": [{"name": "VLLM_X", "value": "1"}],
                    "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}],
                }
            ],
            "volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}],
        },
    }


def test_a_described_node_has_its_labels() -> None:
    text = "Name:     gpu-1\nLabels:   nvidia.com/gpu.product=NVIDIA-L4\n          a=b\nCapacity:\n  cpu: 4\n"
    (found,) = described_in(list(enumerate(text.split("\n"), 1)))
    assert (found.manifest["kind"], found.manifest["metadata"]["labels"]) == (
        "Node",
        {"nvidia.com/gpu.product": "NVIDIA-L4", "a": "b"},
    )
