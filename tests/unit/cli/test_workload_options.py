"""--guarantee means the same at every command; the guarantee Workload says what it lacks."""

import json

import pytest

from support.command_line import MISTAKEN_POD, invoked
from support.tables import table

POD = MISTAKEN_POD.replace("    - --no-such-option\n", "").replace("40960", "8192")
WORKLOAD = "kvgate:workload peakConcurrency=4 promptTokens=2000 outputTokens=500"
OURS = """\
apiVersion: kvgate.io/v1alpha1
kind: InferenceDeployment
metadata: {name: one}
spec:
  model: {name: Qwen/Qwen3-8B}
  accelerator: {type: L4-24GB}
  vllm: {maxModelLen: 8192, maxNumSeqs: 64}
"""
ASKED = ("--model", "Qwen/Qwen3-8B", "--gpu", "L4-24GB", "--vllm-version", "0.32.0", "--max-model-len", "8192")
OF_A_WORKLOAD = ("--peak-concurrency", "4", "--prompt-tokens", "2k", "--output-tokens", "500")


def judged(text: str, *arguments: str) -> tuple[str, list[tuple[str, str]], int]:
    """(verdict, (rule, severity) of all findings that are no infos, exit code)."""
    result = invoked("check", "-", "-o", "json", *arguments, stdin=text)
    (document,) = json.loads(result.stdout)["documents"]
    found = [(f["rule"], f["severity"]) for f in document["findings"] if f["severity"] != "info"]
    return document["verdict"], found, result.exit_code


@table(
    ("text", "guarantee", "verdict", "found", "code"),
    [
        (POD, "Startup", "Fits", [], 0),
        (POD, "FullContext", "DoesNotFit", [("GuaranteeNotMet", "error")], 1),
        (POD, "Workload", "Fits", [("WorkloadMissing", "warning")], 0),
        (f"# {WORKLOAD}\n{POD}", "Workload", "Fits", [], 0),
        (f"# {WORKLOAD.replace('=4', '=40')}\n{POD}", "Workload", "DoesNotFit", [("GuaranteeNotMet", "error")], 1),
        (f"# {WORKLOAD.replace('=4', '=40')}\n{POD}", "Startup", "Fits", [("Oversubscribed", "warning")], 0),
        (OURS, "FullContext", "DoesNotFit", [("GuaranteeNotMet", "error")], 1),
        (OURS, "Startup", "Fits", [], 0),
        (OURS, "Workload", "Fits", [("WorkloadMissing", "warning")], 0),
    ],
)
def test_check_judges_by_the_guarantee_that_is_requested(
    text: str, guarantee: str, verdict: str, found: list[tuple[str, str]], code: int
) -> None:
    assert judged(text, "--guarantee", guarantee) == (verdict, found, code)


def test_without_the_option_an_object_of_ours_is_judged_by_its_own_guarantee_and_others_by_the_start() -> None:
    assert judged(POD)[0] == "Fits"
    assert judged(OURS)[0] == "DoesNotFit"
    told = invoked("check", "-", stdin=POD).stdout
    assert ": Fits: starts; " in told
    told = invoked("check", "-", "--guarantee", "fullcontext", stdin=POD).stdout
    assert ": DoesNotFit: does not hold full context (256 requests of 8192 tokens); " in told
    assert "1 engine: 1 does not hold full context" in told


@pytest.mark.parametrize(
    ("more", "words", "code"),
    [
        ((), "Fits: starts; ", 0),
        (("--guarantee", "FullContext", "--max-num-seqs", "64"), "DoesNotFit: does not hold full context (64 requests", 1),
        (OF_A_WORKLOAD, "Fits: holds the workload (4 requests of 2500 tokens); ", 0),
        ((*OF_A_WORKLOAD, "--guarantee", "Startup"), "Fits: starts; ", 0),
    ],
    ids=["startup", "full context", "workload", "startup beside a workload"],
)  # fmt: skip
def test_explain_says_what_it_judged(more: tuple[str, ...], words: str, code: int) -> None:
    result = invoked("explain", *ASKED, *more)
    assert words in result.stdout
    assert result.exit_code == code


@pytest.mark.parametrize("command", [("explain", *ASKED), ("sweep", *ASKED[:6], "--x", "max_model_len=4096,8192")])
def test_the_guarantee_workload_names_the_options_that_are_missing(command: tuple[str, ...]) -> None:
    result = invoked(*command, "--guarantee", "Workload")
    assert result.exit_code == 2
    assert "guarantee Workload needs --peak-concurrency, --prompt-tokens, --output-tokens" in result.stderr
    result = invoked(*command, "--prompt-tokens", "many", "--shared-prefix-tokens", "1")
    assert "--prompt-tokens is 'many'" in result.stderr
    assert "a workload also needs --peak-concurrency, --output-tokens" in result.stderr
    result = invoked(*command, *OF_A_WORKLOAD, "--shared-prefix-tokens", "3k")
    assert "--shared-prefix-tokens is 3000, above --prompt-tokens 2000" in result.stderr


def test_a_sweep_over_a_workload_says_so_and_counts_its_blocks() -> None:
    command = (
        "sweep",
        *ASKED[:6],
        "--x",
        "max_model_len=4096,8192",
        "--y",
        "gpu_memory_utilization=0.8,0.9",
        "-o",
        "json",
    )
    answer = json.loads(invoked(*command, *OF_A_WORKLOAD).stdout)
    assert answer["guarantee"] == "Workload"
    # 157 blocks of 16 tokens hold a request, and 36 layers × 2 × 8 heads × 128 × 2 bytes a token
    assert {cell["demand_bytes"] for row in answer["cells"] for cell in row} == {4 * 157 * 16 * 147_456}
    assert (
        "holds decides (guarantee Workload): 4 requests of 2500 tokens" in invoked(*command[:-2], *OF_A_WORKLOAD).stdout
    )
