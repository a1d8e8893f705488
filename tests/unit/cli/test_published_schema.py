"""Every door that writes JSON writes what the published schema says, with the same parts under the same keys."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvgate.cli.reports.records import DocumentRecord
from support.command_line import invoked
from support.json_schemas import checked_report

QWEN, L4 = "Qwen/Qwen3-8B", "L4-24GB"
FLAGS = ("--model", QWEN, "--gpu", L4, "--vllm-version", "0.19.1")
LOAD = ("--max-model-len", "40960", "--max-num-seqs", "64")
RAG = ("--peak-concurrency", "8", "--prompt-tokens", "2000", "--output-tokens", "500")


def deployment(**vllm: Any) -> str:
    spec = {"model": {"name": QWEN}, "accelerator": {"type": L4}, "vllm": {"version": "0.19.1", **vllm}}
    head = {"apiVersion": "kvgate.io/v1alpha1", "kind": "InferenceDeployment", "metadata": {"name": "a"}}
    return json.dumps({**head, "spec": spec})


def written(*arguments: str) -> Any:
    """Run the real command in a process of its own."""
    command = (sys.executable, "-m", "kvgate", *arguments)
    return checked_report(subprocess.run(command, capture_output=True, check=False, text=True).stdout)


def test_every_command_follows_the_published_schema(tmp_path: Path) -> None:
    fits, refused = tmp_path / "fits.yaml", tmp_path / "refused.yaml"
    fits.write_text(deployment(maxModelLen=4096, maxNumSeqs=2))
    refused.write_text(deployment(maxModelLen=40960, maxNumSeqs=64))
    requests = tmp_path / "requests.jsonl"
    requests.write_text(json.dumps({"id": "x", "model": QWEN, "gpu": L4}) + "\nno json\n")
    answers = {
        "check": written("check", str(fits), str(refused), "-o", "json"),
        "diff": written("diff", str(fits), str(refused), "-o", "json"),
        "explain, a file": written("explain", str(refused), "-o", "json"),
        "explain": written("explain", *FLAGS, *LOAD, "-o", "json"),
        "size": written("size", "--model", QWEN, "--gpus", "L4", *RAG, "-o", "json"),
        "sweep": written("sweep", "--x", "max_model_len=4096,40960", "--y", "max_num_seqs=1,64", *FLAGS, "-o", "json"),
    }
    lines = invoked("explain", "--requests", str(requests)).stdout.splitlines()
    assert [checked_report(line)["error"] is None for line in lines] == [True, False]
    assert len(answers["check"]["documents"]) == 2
    versions = {answers[name]["schemaVersion"] for name in ("check", "diff", "size", "sweep")}
    assert len(versions) == 1
    assert answers["explain, a file"][0]["decision"] == answers["explain"]["decision"] == "Refuse"


@pytest.mark.parametrize(
    "more",
    [
        ("--why", "weights"),
        ("--paging",),
        ("--capacity", "Pinned"),
        ("--kv-cache-memory-bytes", "4G"),
        ("--enable-lora",),
        ("--cpu-offload-gb", "4"),
        ("--max-model-len", "auto"),
        RAG,
    ],
    ids=" ".join,
)
def test_the_answers_about_other_settings_follow_it_too(more: tuple[str, ...]) -> None:
    checked_report(invoked("explain", *FLAGS, *more, "-o", "json").stdout)


def test_what_is_not_known_is_null_and_follows_it(tmp_path: Path) -> None:
    unknown = checked_report(invoked("explain", "--model", "nobody/knows", "--gpu", L4, "-o", "json").stdout)
    assert unknown["engine"] is None
    assert unknown["ledger"] is None
    assert unknown["kv_cache"]["headroom_ratio"] is None
    broken = tmp_path / "broken.yaml"
    broken.write_text(deployment(maxModelLen=-1))
    (document,) = checked_report(invoked("check", str(broken), "-o", "json").stdout)["documents"]
    assert document["decision"] == "Refuse"
    assert document["workload"] is None


def test_the_answer_for_flags_has_every_key_of_a_document_of_check() -> None:
    explained = checked_report(invoked("explain", *FLAGS, *LOAD, "-o", "json").stdout)
    assert set(DocumentRecord.__struct_fields__) <= set(explained)
    assert explained["platform"] == "command line"
    assert explained["alternatives"][0].keys() == {"field", "path", "value", "changes", "points"}
    assert (checked_report(invoked("explain", *FLAGS, *RAG, "-o", "json").stdout)["workload"]) == {
        "peak_concurrency": 8,
        "prompt_tokens": 2000,
        "output_tokens": 500,
        "shared_prefix_tokens": 0,
    }


def test_a_release_that_is_assumed_is_a_source_at_each_door(tmp_path: Path) -> None:
    explained = checked_report(invoked("explain", "--model", QWEN, "--gpu", L4, "-o", "json").stdout)
    assert [(each["fact"], each["source"]) for each in explained["provenance"]] == [
        ("model", "catalogue"),
        ("vllm_version", "assumed"),
    ]
    pod = tmp_path / "pod.yaml"
    container = {"name": "x", "image": "vllm/vllm-openai:latest", "args": [f"--model={QWEN}"]}
    head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
    pod.write_text(json.dumps({**head, "spec": {"containers": [container]}}))
    (document,) = checked_report(invoked("check", str(pod), "--accelerator", L4, "-o", "json").stdout)["documents"]
    assert [each["fact"] for each in document["provenance"]] == ["model", "vllm_version"]
    assert document["provenance"][1]["detail"].startswith("0.33.0: ")
    stated = checked_report(invoked("explain", *FLAGS, "-o", "json").stdout)
    assert [each["fact"] for each in stated["provenance"]] == ["model"]
    told = invoked("check", str(pod), "--accelerator", L4, "--vllm-version", "0.19.1", "-o", "json").stdout
    assert [each["fact"] for each in checked_report(told)["documents"][0]["provenance"]] == ["model"]


def test_the_decision_is_that_of_the_exit_code() -> None:
    for more, decision in ((("--max-model-len", "4096"), "Admit"), (LOAD, "Refuse")):
        result = invoked("explain", *FLAGS, *more, "-o", "json")
        assert checked_report(result.stdout)["decision"] == decision
        assert (result.exit_code == 1) == (decision == "Refuse")
