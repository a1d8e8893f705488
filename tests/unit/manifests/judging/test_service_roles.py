"""Prefill and decode of one service: what keeps the KV cache from passing, and pairs that are right."""

from pathlib import Path

import pytest
import yaml

from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.check.run import run
from kvgate.findings.finding import Severity
from support.tables import table

NIXL = '--kv-transfer-config={"kv_connector":"NixlConnector","kv_role":"kv_both"}'
PUSHED = NIXL.replace("kv_both", "kv_producer")
PULLED = NIXL.replace("kv_both", "kv_consumer")
LMCACHE = NIXL.replace("NixlConnector", "LMCacheConnectorV1")


def said(tmp_path: Path, prefill: list[str], decode: list[str], release: str = "0.32.0") -> list[str]:
    """Return the sentences of RolesDoNotMatch, of which all are warnings at decode."""

    def side(words: list[str]) -> dict[str, object]:
        container = {
            "name": "main",
            "image": f"vllm/vllm-openai:v{release}",
            "command": ["vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len=8192", *words],
            "resources": {"limits": {"nvidia.com/gpu": 8}},
        }
        return {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L40S"}, "containers": [container]}

    service = {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "LLMInferenceService",
        "metadata": {"name": "svc"},
        "spec": {
            "model": {"uri": "hf://Qwen/Qwen3-8B", "name": "Qwen/Qwen3-8B"},
            "template": side(decode),
            "prefill": {"template": side(prefill)},
        },
    }
    (tmp_path / "svc.yaml").write_text(yaml.safe_dump(service), encoding="utf-8")
    report = run((str(tmp_path / "svc.yaml"),), CheckOptions())
    found = [(item.name, each) for item in report.items for each in item.findings if each.rule == "RolesDoNotMatch"]
    assert {(name, each.finding.severity) for name, each in found} <= {("svc", Severity.WARNING)}
    return [each.finding.message.partition(":")[0] for _, each in found]


@table(
    ("prefill", "decode", "expected"),
    [
        ([NIXL], [NIXL], []),
        ([PUSHED], [PULLED], []),
        ([], [], []),
        ([NIXL, "--tensor-parallel-size=2"], [NIXL, "--tensor-parallel-size=4"], []),
        ([NIXL, "--block-size=16"], [NIXL, "--block-size=64"], []),
        ([NIXL, "--block-size=16"], [NIXL], []),
        ([NIXL, "--kv-cache-dtype=fp8"], [NIXL, "--kv-cache-dtype=fp8"], []),
        ([LMCACHE, "--kv-cache-dtype=fp8"], [LMCACHE], []),
        ([PULLED], [PUSHED], ["kv_role of prefill is kv_consumer", "kv_role of decode is kv_producer"]),
        ([NIXL, "--kv-cache-dtype=fp8"], [NIXL], ["the KV cache of prefill is fp8, and that of decode auto"]),
        ([NIXL, "--block-size=64"], [NIXL, "--block-size=32"],
         ["blocks of decode (32 tokens) are no multiple of those of prefill (64)"]),
        ([NIXL, "--tensor-parallel-size=2"], [NIXL, "--tensor-parallel-size=3"],
         ["tensor parallel sizes 2 and 3 do not divide one another"]),
    ],
)  # fmt: skip
def test_roles_match_where_the_cache_passes(
    tmp_path: Path, prefill: list[str], decode: list[str], expected: list[str]
) -> None:
    assert said(tmp_path, prefill, decode) == expected


@pytest.mark.parametrize(("release", "expected"), [("0.11.0", 1), ("0.32.0", 0)])
def test_blocks_that_divide_one_another_pass_from_0_14_on(tmp_path: Path, release: str, expected: int) -> None:
    found = said(tmp_path, [NIXL, "--block-size=16"], [NIXL, "--block-size=64"], release)
    assert len(found) == expected


@table(
    ("image", "prefill", "decode", "expected"),
    [
        ("vllm/vllm-openai:v0.32.0", ["--model=Qwen/Qwen3-8B"], ["--model=Qwen/Qwen3-8B"], 1),
        ("vllm/vllm-openai:v0.32.0", ["--model=Qwen/Qwen3-8B"], ["--model=Qwen/Qwen3-8B", NIXL], 1),
        ("vllm/vllm-openai:v0.32.0", [], [], 0),
        (
            "vllm/vllm-openai:v0.32.0",
            ["--model=Qwen/Qwen3-8B", "--kv-transfer-config=$(TRANSFER)"],
            ["--model=Qwen/Qwen3-8B", NIXL],
            0,
        ),
        (
            "public.ecr.aws/neuron/pytorch-inference-vllm-neuronx:0.13.0",
            ["--model=Qwen/Qwen3-8B"],
            ["--model=Qwen/Qwen3-8B"],
            0,
        ),
    ],
)
def test_a_role_that_is_not_written_yet_says_nothing(
    tmp_path: Path, image: str, prefill: list[str], decode: list[str], expected: int
) -> None:
    sides = (("prefill", prefill), ("decode", decode))
    roles = [
        {"name": name, "template": {"spec": {"containers": [{"name": "vllm", "image": image, "args": args}]}}}
        for name, args in sides
    ]
    service = {
        "apiVersion": "orchestration.aibrix.ai/v1alpha1",
        "kind": "StormService",
        "metadata": {"name": "svc"},
        "spec": {"template": {"spec": {"roles": roles}}},
    }
    (tmp_path / "svc.yaml").write_text(yaml.safe_dump(service), encoding="utf-8")
    report = run((str(tmp_path / "svc.yaml"),), CheckOptions())
    rules = [each.rule for item in report.items for each in item.findings]
    assert (len(report.items), rules.count("RolesDoNotMatch")) == (2, expected)


def replicas(
    tmp_path: Path, *, selector: dict[str, str], gpus: tuple[str, ...], model: str = "Qwen/Qwen3-4B"
) -> list[str]:
    """Return the engines at which ReplicasDiffer is said, of pods with these GPUs behind one Service."""
    documents: list[dict[str, object]] = [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "vllm-chat"}, "spec": {"selector": selector}}
    ]
    for number, gpu in enumerate(gpus):
        container = {
            "name": "vllm",
            "image": "vllm/vllm-openai:v0.32.0",
            "args": [f"--model={model if number else 'Qwen/Qwen3-4B'}", "--max-model-len=8192"],
            "resources": {"limits": {"nvidia.com/gpu": 1}},
        }
        documents.append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"pod-{number}", "labels": {"app": "chat", "number": str(number)}},
                "spec": {"nodeSelector": {"nvidia.com/gpu.product": gpu}, "containers": [container]},
            }
        )
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    report = run((str(tmp_path / "all.yaml"),), CheckOptions())
    found = [(item.name, each) for item in report.items for each in item.findings if each.rule == "ReplicasDiffer"]
    assert all(each.finding.severity is Severity.INFO for _, each in found)
    return [str(name) for name, _ in found]


L40S, L4, A10G = "NVIDIA-L40S", "NVIDIA-L4", "NVIDIA-A10G"


@table(
    ("selector", "gpus", "model", "expected"),
    [
        ({"app": "chat"}, (L40S, L4), "Qwen/Qwen3-4B", ["pod-1"]),
        ({"app": "chat"}, (L4, L40S), "Qwen/Qwen3-4B", ["pod-0"]),
        ({"app": "chat"}, (L4, A10G), "Qwen/Qwen3-4B", []),
        ({"app": "chat"}, (L40S, L4), "Qwen/Qwen3-8B", []),
        ({"app": "chat", "number": "1"}, (L40S, L4), "Qwen/Qwen3-4B", []),
        ({}, (L40S, L4), "Qwen/Qwen3-4B", []),
    ],
)
def test_engines_that_a_service_takes_in_turns_hold_about_as_much(
    tmp_path: Path, selector: dict[str, str], gpus: tuple[str, ...], model: str, expected: list[str]
) -> None:
    assert replicas(tmp_path, selector=selector, gpus=gpus, model=model) == expected
