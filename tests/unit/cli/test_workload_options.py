"""--guarantee means the same at every command; the guarantee Workload says what it lacks."""

import json
from pathlib import Path

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
    assert "a workload also needs --peak-concurrency" in result.stderr
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


@pytest.mark.parametrize(
    ("prompt", "length", "output"),
    [("3000", None, 512), ("300", None, 300), ("8k", "8192", 192), ("8191", "8192", 1), ("3000", "auto", 512)],
)
@pytest.mark.parametrize("command", ["explain", "size"])
def test_an_output_that_nobody_states_is_assumed_and_said(
    command: str, prompt: str, length: str | None, output: int
) -> None:
    """512 tokens, no more than the prompt and than the length leaves."""
    gpu, limit = (
        ("--gpus" if command == "size" else "--gpu", "H100-SXM-80GB"),
        ("--max-model-len", length) if length else (),
    )
    asked = (command, "--model", "Qwen/Qwen3-8B", *gpu, "--users", "2", "--prompt-tokens", prompt, *limit)
    found = json.loads(invoked(*asked, "-o", "json").stdout)
    assert {a["fact"]: a["value"] for a in found["assumed"]}["output_tokens"] == str(output)
    assert (found.get("question") or found)["workload"]["output_tokens"] == output
    assert "assumed" in "".join(invoked(*asked).stdout.splitlines()[:2])
    stated = json.loads(invoked(*asked, "--output-tokens", "5", "-o", "json").stdout)
    assert "output_tokens" not in {a["fact"] for a in stated["assumed"]}


TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n1,1000,100\n2,2000,300\n3,500,20\n"
METRICS = """\
vllm:request_prompt_tokens_bucket{engine="0",le="1000.0",model_name="m"} 8.0
vllm:request_prompt_tokens_bucket{engine="0",le="2000.0",model_name="m"} 9.0
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf",model_name="m"} 10.0
vllm:request_prompt_tokens_count{engine="0",model_name="m"} 10.0
vllm:request_prompt_tokens_sum{engine="0",model_name="m"} 9000.0
vllm:request_generation_tokens_bucket{engine="0",le="200.0",model_name="m"} 10.0
vllm:request_generation_tokens_bucket{engine="0",le="+Inf",model_name="m"} 10.0
vllm:request_generation_tokens_sum{engine="0",model_name="m"} 1000.0
"""


@pytest.mark.parametrize(
    ("text", "more", "longest", "mean"),
    [
        (TRACE, (), (2000, 300), 1930),  # (1100 × 100 + 2300 × 300 + 520 × 20) ÷ 420, rounded up
        # prompts: above 2000 up to 5000; outputs: 1 or 200 so that they are 100 on average, the longest together
        (METRICS, (), (5000, 200), None),
        (METRICS, ("--max-model-len", "4096"), (4096, 200), None),
    ],
)
def test_the_lengths_of_requests_are_read_from_a_trace_and_from_metrics(
    tmp_path: Path, text: str, more: tuple[str, ...], longest: tuple[int, int], mean: int | None
) -> None:
    (tmp_path / "lengths").write_text(text)
    asked = ("size", "--model", "Qwen/Qwen3-8B", "--gpus", "H100-SXM-80GB", "--users", "64", "--request-lengths",
             str(tmp_path / "lengths"), *more)  # fmt: skip
    found = json.loads(invoked(*asked, "-o", "json").stdout)["question"]["workload"]
    assert (found["prompt_tokens"], found["output_tokens"]) == longest
    told = invoked(*asked).stdout
    assert f"64 requests of up to {longest[0]} + {longest[1]} tokens" in told
    assert f"lengths differ, {mean or ''}" in told
    assert invoked(*asked, "-o", "yaml").exit_code == 0 or more


def test_the_percentiles_of_a_length_take_less_than_its_longest() -> None:
    asked = ("explain", "--model", "Qwen/Qwen3-8B", "--gpu", "H100-SXM-80GB", "--users", "64", "--output-tokens", "100")

    def demand(prompt: str) -> int:
        return json.loads(invoked(*asked, "--prompt-tokens", prompt, "-o", "json").stdout)["kv_cache"]["demand_bytes"]

    assert demand("mean=800,p50=700,p95=6000") < demand("p50=800,p95=6000") < demand("6000")
    assert demand("p50=6000,p95=6000") == demand("6000")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--prompt-tokens", "mean=800"), "a mean alone does not say how long"),
        (("--prompt-tokens", "p50=800,median=3"), "write a number, or parts such as mean=1500,p50=800"),
        (("--prompt-tokens", "p50=x"), "--prompt-tokens is 'p50=x'"),
        (("--prompt-tokens", "p50=800,p95=700"), "percentiles grow"),
        (("--output-tokens", "p50=800"), "a workload also needs --prompt-tokens"),
        (("--request-lengths", "LENGTHS", "--prompt-tokens", "3"), "leave out --prompt-tokens"),
        (("--request-lengths", "LENGTHS"), "this one has a, b"),
    ],
)
def test_lengths_that_say_nothing_are_refused(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    (tmp_path / "lengths").write_text("a,b\n1,2\n")
    given = [str(tmp_path / "lengths") if word == "LENGTHS" else word for word in arguments]
    result = invoked("size", "--model", "Qwen/Qwen3-8B", "--users", "2", *given)
    assert words in result.output
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (METRICS.replace("} 10.0", "} NaN"), "no number of requests"),
        (METRICS.replace('le="1000.0"', 'le="NaN"'), "above 0 in `le`"),
        (METRICS.replace("} 9000.0", "} 90000000.0"), "contradicts"),
        (METRICS.replace("} 8.0", "} 9.5").replace("} 9.0", "} 2.0"), "percentiles grow"),
        ("\n".join(METRICS.splitlines()[:5]), "counts no request in vllm:request_generation_tokens"),
        ("prompt_tokens,output_tokens\n5,x\n", "line 2 has no whole numbers"),
        ("prompt_tokens,output_tokens\n0,1\n", "line 2 has 0 and 1 tokens"),
        ("prompt_tokens,output_tokens\n", "no request"),
        ("", "a trace is CSV with the columns prompt_tokens and output_tokens"),
    ],
)
def test_a_file_without_readable_lengths_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "lengths").write_text(text)
    result = invoked("size", "--model", "Qwen/Qwen3-8B", "--users", "2", "--request-lengths", str(tmp_path / "lengths"))
    assert words in " ".join(result.output.split())
    assert result.exit_code == 2


@pytest.mark.parametrize("command", ["explain", "size"])
def test_a_rate_and_a_time_state_the_peak(command: str) -> None:
    """20 per second × 2 seconds are 40 on average; Poisson(40) passes 55 at 1 moment of 100 at most."""
    gpu = "--gpus" if command == "size" else "--gpu"
    asked = (command, "--model", "Qwen/Qwen3-8B", gpu, "H100-SXM-80GB", "--prompt-tokens", "p50=800,p95=3k",
             "--requests-per-second", "20", "--seconds-per-request", "2")  # fmt: skip
    told = invoked(*asked).stdout
    assert "55 requests of up to 3000 + 512" in told or "55 requests of up to 3512" in told
    assert "40 requests at the same time on average" in told
    found = json.loads(invoked(*asked, "-o", "json").stdout)
    assert (found.get("question") or found)["workload"]["peak_concurrency"] == 55
    assert {"peak_concurrency", "request_lengths", "output_tokens"} <= {each["fact"] for each in found["assumed"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--requests-per-second", "2"), "state the peak together"),
        (("--requests-per-second", "2", "--seconds-per-request", "3", "--users", "4"), "instead of --peak-concurrency"),
        (("--requests-per-second", "x", "--seconds-per-request", "3"), "must be a number above 0"),
    ],
)
def test_a_rate_that_says_nothing_is_refused(arguments: tuple[str, ...], words: str) -> None:
    result = invoked("size", "--model", "Qwen/Qwen3-8B", "--prompt-tokens", "1k", *arguments)
    assert words in result.output
    assert result.exit_code == 2
