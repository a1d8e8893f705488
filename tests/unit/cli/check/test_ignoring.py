"""Findings that somebody answers for: comments at a line and at a head, reasons, and comments that match nothing."""

import json
import re
from typing import Any

import pytest

from support.command_line import invoked
from support.tables import table

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: engine}
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.32.0
    args:
    - --model=Qwen/Qwen3-8B
    - --max-model-len=40960
    resources: {limits: {nvidia.com/gpu: 2}}
"""
"""KVCacheTooSmall on line 11, IdleGpus on line 12."""
OURS = """\
apiVersion: kvgate.io/v1alpha1
kind: InferenceDeployment
metadata: {name: one}
spec:
  model: {name: Qwen/Qwen3-8B}
  accelerator: {type: L4-24GB}
  vllm:
    maxNumSeqs: 4
"""


def checked(text: str, code: int, *arguments: str) -> Any:
    result = invoked("check", "-", "-o", "json", *arguments, stdin=text)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def rules(document: Any, key: str = "findings") -> list[str]:
    return [finding["rule"] for finding in document[key]]


def with_comment(text: str, line: int, comment: str, *, after: bool = False) -> str:
    """The comment at the end of a line, or in a line of its own before it."""
    lines = text.splitlines()
    lines[line - 1] = f"{lines[line - 1]} # {comment}" if after else f"    # {comment}\n{lines[line - 1]}"
    return "\n".join(lines) + "\n"


def test_the_example_has_an_error_and_a_warning() -> None:
    assert rules(checked(POD, 1)["documents"][0]) == ["KVCacheTooSmall", "IdleGpus"]


@pytest.mark.parametrize(
    ("line", "after", "is_ignored"),
    [(11, True, True), (11, False, True), (12, True, False), (10, True, False), (10, False, False), (1, False, True)],
)
def test_a_comment_is_about_its_own_line_or_the_next_or_the_document_after_it(
    line: int, *, after: bool, is_ignored: bool
) -> None:
    text = with_comment(POD, line, "kvgate:ignore KVCacheTooSmall we know", after=after)
    (document,) = checked(text, 0 if is_ignored else 1)["documents"]
    assert ("KVCacheTooSmall" in rules(document, "ignored")) is is_ignored
    assert ("IgnoreUnused" in rules(document)) is not is_ignored
    assert document["verdict"] == "DoesNotFit"


def test_comments_above_a_line_may_be_several_and_have_others_between() -> None:
    text = POD.replace(
        "    - --max-model",
        "    # kvgate:ignore KVCacheTooSmall we know\n    # what follows is long\n\n    # kvgate:ignore OptionValue no\n    - --max-model",
    )
    (document,) = checked(text, 0)["documents"]
    assert rules(document, "ignored") == ["KVCacheTooSmall"]
    assert rules(document) == ["IgnoreUnused", "IdleGpus"]
    assert document["findings"][0]["line"] == 14


@pytest.mark.parametrize(
    "comment", ["KVCacheTooSmall,IdleGpus a test cluster", "KVCacheTooSmall, IdleGpus: a test cluster"]
)
def test_one_comment_ignores_several_rules(comment: str) -> None:
    (document,) = checked(f"# kvgate:ignore {comment}\n{POD}", 0)["documents"]
    assert rules(document) == []
    assert document["ignored"][0]["reason"] == "a test cluster"
    assert document["ignored"][0]["by"] == "comment"


def test_a_head_reaches_over_the_marker_and_not_into_the_next_document() -> None:
    text = f"# kvgate:ignore KVCacheTooSmall we know\n---\n# Source: x\n{POD}---\n{POD}"
    first, second = checked(text, 1)["documents"]
    assert rules(first, "ignored") == ["KVCacheTooSmall"]
    assert rules(second) == ["KVCacheTooSmall", "IdleGpus"]


def test_a_comment_before_a_list_is_about_all_its_items() -> None:
    items = POD.replace("\n", "\n  ").strip()
    text = f"# kvgate:ignore KVCacheTooSmall we know\nkind: List\nitems:\n- {items}\n- {items}\n"
    assert [rules(d) for d in checked(text, 0)["documents"]] == [["IdleGpus"], ["IdleGpus"]]


def test_without_a_reason_nothing_is_ignored() -> None:
    (document,) = checked(with_comment(POD, 11, "kvgate:ignore KVCacheTooSmall"), 1)["documents"]
    assert rules(document) == ["IgnoreWithoutReason", "KVCacheTooSmall", "IdleGpus"]
    assert (document["findings"][0]["line"], document["findings"][0]["severity"]) == (11, "warning")


@table(
    ("comment", "told"),
    [
        ("kvgate:ignore KVCacheToSmall we know", "did you mean KVCacheTooSmall?"),
        ("kvgate:ignore Xyzzy we know", "`kvgate rules` lists the rules"),
        ("kvgate:ignore TooFewGpus we know", "remove the comment"),
        ("kvgate:ignore", "not followed by the id of a rule"),
        ("kvgate:skip it", "kvgate:skip is neither kvgate:ignore nor kvgate:workload"),
        ("kvgate:workload peakConcurrency=0 prompt=1", "; promptTokens is missing; outputTokens is missing; "),
        ("kvgate:workload peakConcurrency=0 promptTokens=1 outputTokens=1", "is '0', which is not a whole number from 1 to 999999999"),
        ("kvgate:workload peakConcurrency=1 promptTokens=1 outputTokens=1 sharedPrefixTokens=2", "is 2, above promptTokens, which is 1"),
    ],
)  # fmt: skip
def test_a_comment_that_does_nothing_says_what_to_do(comment: str, told: str) -> None:
    (document,) = checked(f"# {comment}\n{POD}", 1)["documents"]
    finding = document["findings"][0]
    assert finding["line"] == 1
    assert told in f"{finding['message']}; {finding['remediation']}"


def test_an_object_of_ours_that_is_ignored_does_not_fail_the_run() -> None:
    assert checked(OURS, 1)["documents"][0]["admission"]["decision"] == "Refuse"
    (document,) = checked(with_comment(OURS, 6, "kvgate:ignore KVCacheTooSmall we know"), 1)["documents"]
    assert rules(document, "ignored") == []
    (document,) = checked(f"# kvgate:ignore KVCacheTooSmall we know\n{OURS}", 0)["documents"]
    assert document["admission"]["decision"] == "Refuse"
    assert rules(document, "ignored") == ["KVCacheTooSmall"]


def test_the_text_says_what_is_ignored_and_why() -> None:
    result = invoked("check", "-", stdin=f"# kvgate:ignore KVCacheTooSmall we know\n{POD}")
    assert "DoesNotFit, ignored" in result.stdout
    assert "ignored: KVCacheTooSmall (we know; <stdin>:1)" in result.stdout
    assert "1 engine: 1 ignored; 1 finding ignored" in result.stdout


WORKLOAD = "kvgate:workload peakConcurrency=64 promptTokens=6000 outputTokens=500"
FITS = POD.replace("40960", "8192").replace("gpu: 2", "gpu: 1")


def test_a_declared_workload_is_asked_instead_of_max_num_seqs() -> None:
    (plain,) = checked(FITS, 0)["documents"]
    assert "requests of 8192 tokens" in plain["findings"][0]["message"]
    for text in (
        f"# {WORKLOAD}\n{FITS}",
        with_comment(FITS, 7, WORKLOAD),
        with_comment(FITS, 11, WORKLOAD, after=True),
    ):
        (document,) = checked(text, 0)["documents"]
        (finding,) = document["findings"]
        assert (finding["rule"], finding["severity"]) == ("Oversubscribed", "warning")
        assert finding["message"].startswith("the workload (64 requests of 6500 tokens)")
    (document,) = checked(f"# {WORKLOAD.replace('=64', '=1')}\n{FITS}", 0)["documents"]
    assert document["findings"] == []


def test_replicas_of_another_platform_share_a_declared_workload() -> None:
    several = """\
# kvgate:workload peakConcurrency=65 promptTokens=6000 outputTokens=500
apiVersion: apps/v1
kind: Deployment
metadata: {name: x}
spec:
  replicas: %s
  selector: {matchLabels: {app: x}}
  template:
    metadata: {labels: {app: x}}
    spec:
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.33.0
        args: [--model=Qwen/Qwen3-8B, --max-model-len=8192, --data-parallel-size=2]
        resources: {limits: {nvidia.com/gpu: 2}}
"""
    for replicas, share in (
        ("1", "33 of 65 requests of 6500 tokens on each of 2"),
        ("3", "11 of 65 requests of 6500 tokens on each of 6"),
    ):
        (document,) = checked(several % replicas, 0)["documents"]
        assert f"the workload ({share} engines)" in document["findings"][0]["message"]


def test_a_request_of_the_workload_that_is_too_long_is_a_warning_after_the_start() -> None:
    (document,) = checked(f"# {WORKLOAD.replace('6000', '9000')}\n{FITS}", 0)["documents"]
    assert ("RequestAboveMaxModelLen", "warning") in [(f["rule"], f["severity"]) for f in document["findings"]]
    assert document["verdict"] == "Fits"


VALUES = """\
servingEngineSpec:
  modelSpec:
  # kvgate:workload peakConcurrency=1 promptTokens=1000 outputTokens=100
  - &one
    name: one
    tag: v0.32.0
    modelURL: Qwen/Qwen3-8B
    requestGPU: 1
    nodeSelectorTerms: [{matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-L4]}]}]
    vllmConfig: {maxModelLen: 8192}
  # kvgate:workload peakConcurrency=99 promptTokens=6000 outputTokens=500
  - name: two
    tag: v0.32.0
    modelURL: Qwen/Qwen3-8B
    requestGPU: 1
    nodeSelectorTerms: [{matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-L4]}]}]
    vllmConfig: {maxModelLen: 8192}
"""


def test_each_engine_of_a_values_file_has_the_workload_that_stands_at_it() -> None:
    first, second = checked(VALUES, 0)["documents"]
    assert first["findings"] == []
    assert "the workload (99 requests of 6500 tokens)" in second["findings"][0]["message"]


def test_each_object_of_a_list_has_the_workload_that_stands_in_it() -> None:
    item = "".join(f"  {line}\n" for line in FITS.splitlines()).replace("  a", "- a", 1)
    inside = with_comment(item, 7, WORKLOAD.replace("=64", "=65"))
    text = f"apiVersion: v1\nkind: List\nitems:\n{item}# {WORKLOAD}\n{item}{inside}{item}"
    told = [document["findings"][0]["message"] for document in checked(text, 0)["documents"]]
    assert [re.findall(r"workload \((\d+)", message) for message in told] == [[], ["64"], ["65"], []]


def test_an_object_of_ours_says_its_workload_itself() -> None:
    (document,) = checked(f"# {WORKLOAD}\n{OURS}", 1)["documents"]
    assert document["findings"][0]["rule"] == "CommentNotUnderstood"
    assert document["findings"][0]["remediation"] == "state the workload in spec.workload"
