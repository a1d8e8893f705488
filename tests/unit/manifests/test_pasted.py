"""Commands and descriptions as people paste them, and the manifests that say the same."""

import json

import pytest

from kvgate.manifests.pasted import commands_in, described_in, is_description


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("vllm serve m --max-model-len 8192", "vllm serve m --max-model-len 8192"),
        ("$ sudo docker run --rm \\\n  img \\\n  --model m", "sudo docker run --rm img --model m"),
        ("root@host:~# podman run -d img --model m", "podman run -d img --model m"),
        ("CUDA_VISIBLE_DEVICES=0 nohup vllm serve m", "CUDA_VISIBLE_DEVICES=0 nohup vllm serve m"),
        (
            "python3 -m vllm.entrypoints.openai.api_server --model m",
            "python3 -m vllm.entrypoints.openai.api_server --model m",
        ),
        ("I run `vllm serve m` on one GPU", "vllm serve m"),
        ("> vllm serve m", "vllm serve m"),
        ("python -m sglang.launch_server --model-path m", "python -m sglang.launch_server --model-path m"),
    ],
)
def test_a_command_becomes_a_script_that_nobody_runs(text: str, command: str) -> None:
    (found,) = commands_in(list(enumerate(text.split("\n"), 1)))
    assert (found.kind, found.text, found.document.decode()) == ("script", command, command)


def test_quotes_and_backslashes_carry_a_command_over_lines_and_exports_belong_to_it() -> None:
    text = 'export VLLM_USE_V1=1\nvllm serve m --speculative-config \'{"method":\n "mtp"}\' \\\n --max-num-seqs 4\nnot of it'
    (found,) = commands_in(list(enumerate(text.split("\n"), 1)))
    assert (found.line, sorted(found.numbers)) == (2, [1, 2, 3, 4])
    assert found.document.startswith(b"export VLLM_USE_V1=1\nvllm serve m")
    assert found.text.endswith("--max-num-seqs 4")


@pytest.mark.parametrize(
    "line",
    [
        "docker ps",
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
    assert json.loads(found.document) == {
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
    assert (found.kind, found.labels) == ("Node", {"nvidia.com/gpu.product": "NVIDIA-L4", "a": "b"})
