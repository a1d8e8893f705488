"""`maxModelLen: auto`: which answer decides, at which length, and what is rendered."""

from typing import Any

import pytest

from kvgate.api.v1alpha1 import InferenceDeploymentSpec
from kvgate.api.validation import InvalidDocument, parse_document
from kvgate.budget import Guarantee, Verdict
from kvgate.judgement.assess import assess, effective_values
from kvgate.judgement.assessment import Assessment, Decision
from kvgate.judgement.facts import ConfigMissing, gather
from kvgate.judgement.summary import accepted
from kvgate.judgement.what_if import assess_request
from kvgate.rendering.workload import arguments
from kvgate.statement.deployment import statement_of
from support.builders import new_document
from support.command_line import invoked

AUTO = {"maxModelLen": "auto", "maxNumSeqs": 4}


def assessed(vllm: dict[str, Any], gpu: str = "L4-24GB", **spec: Any) -> tuple[InferenceDeploymentSpec, Assessment]:
    parsed = parse_document(new_document(accelerator=gpu, vllm=vllm, **spec)).spec
    nowhere = ConfigMissing(message="there is none", remediation="make one")
    return parsed, assess(parsed, gather(statement_of(parsed), lambda _: nowhere))


def floor(tokens: int, **admission: Any) -> dict[str, Any]:
    return {"admission": {"adjust": {"minMaxModelLen": tokens, **admission.pop("adjust", {})}, **admission}}


def test_pods_are_rendered_with_auto_and_the_status_has_the_length_of_the_low_end() -> None:
    spec, result = assessed(AUTO)
    assert result.budget is not None
    assert result.budget.auto_from == 40960
    values = effective_values(spec, result)
    assert values.max_model_len == result.budget.resolved.max_model_len < 40960
    assert "--max-model-len=auto" in arguments(spec, values)
    assert not any(
        each.startswith("--max-model-len=") and each != "--max-model-len=auto" for each in arguments(spec, values)
    )


@pytest.mark.parametrize(
    ("spec", "guarantee", "verdict"),
    [
        ({}, Guarantee.STARTUP, Verdict.FITS),
        (floor(1), Guarantee.STARTUP, Verdict.FITS),  # the default of the API server is no floor
        ({"admission": {"guarantee": "FullContext"}}, Guarantee.STARTUP, Verdict.FITS),
        (floor(4096), Guarantee.FULL_CONTEXT, Verdict.FITS),
        (floor(32768), Guarantee.FULL_CONTEXT, Verdict.DOES_NOT_FIT),
        (floor(32768, guarantee="Startup"), Guarantee.STARTUP, Verdict.FITS),
    ],
)
def test_full_context_is_judged_at_the_floor(spec: dict[str, Any], guarantee: Guarantee, verdict: Verdict) -> None:
    _, result = assessed(AUTO, **spec)
    assert (result.guarantee, result.verdict) == (guarantee, verdict)


def test_a_floor_above_the_model_is_its_own_length() -> None:
    _, result = assessed({"maxModelLen": "auto", "maxNumSeqs": 1}, "H100-SXM-80GB", **floor(1_000_000))
    assert result.verdict is Verdict.FITS
    assert "(1 requests of 40960 tokens); max_model_len auto is 40960 tokens, all of the model's" in accepted(result)[2]


@pytest.mark.parametrize(
    ("tokens", "verdict"), [(20_000, Verdict.FITS), (39_000, Verdict.DOES_NOT_FIT), (50_000, Verdict.DOES_NOT_FIT)]
)
def test_the_bytes_decide_about_a_workload_below_the_length_of_the_model(tokens: int, verdict: Verdict) -> None:
    workload = {"peakConcurrency": 1, "promptTokens": tokens - 100, "outputTokens": 100}
    _, result = assessed(AUTO, workload=workload)
    assert (result.guarantee, result.verdict) == (Guarantee.WORKLOAD, verdict)
    is_too_long = any(each.rule.id == "RequestAboveMaxModelLen" for each in result.findings)
    assert is_too_long == (tokens > 40960)


@pytest.mark.parametrize(
    ("least", "verdict"), [(16_384, Verdict.FITS), (26_000, Verdict.MAY_NOT_FIT), (39_000, Verdict.DOES_NOT_FIT)]
)
def test_a_workload_is_judged_with_one_request_of_the_floor_beside(least: int, verdict: Verdict) -> None:
    """The cache holds 25,360 to 34,320 tokens, and the workload takes 8,000 of them."""
    workload = {"peakConcurrency": 4, "promptTokens": 1900, "outputTokens": 100}
    _, result = assessed(AUTO, workload=workload, **floor(least))
    assert result.budget is not None
    assert (result.guarantee, result.verdict, result.starts.verdict) == (Guarantee.WORKLOAD, verdict, Verdict.FITS)
    lengths = result.budget.auto_lengths
    assert lengths is not None
    assert (least <= lengths.low, least > lengths.high) == (verdict is Verdict.FITS, verdict is Verdict.DOES_NOT_FIT)
    assert f"and one request of {least} tokens" in accepted(result)[2]


def test_adjust_turns_the_sequences_and_leaves_the_length_to_vllm() -> None:
    spec, result = assessed({"maxModelLen": "auto", "maxNumSeqs": 64}, **floor(4096, policy="Adjust"))
    assert result.decision is Decision.ADMIT_ADJUSTED
    assert result.adjustment is not None
    assert [change.field for change in result.adjustment.changes] == ["max_num_seqs"]
    assert "--max-model-len=auto" in arguments(spec, effective_values(spec, result))


def test_an_fp8_cache_is_reported_with_the_longer_length_that_it_gives() -> None:
    adjust = {"knobs": ["KvCacheDtype"]}
    spec, result = assessed({"maxModelLen": "auto", "maxNumSeqs": 8}, **floor(4096, policy="Adjust", adjust=adjust))
    assert result.decision is Decision.ADMIT_ADJUSTED
    assert result.budget is not None
    longer = effective_values(spec, result).max_model_len
    assert longer is not None
    assert longer > result.budget.resolved.max_model_len


def test_sequences_are_chosen_at_the_floor() -> None:
    spec, result = assessed({"maxModelLen": "auto"}, **floor(4096))
    assert (result.verdict, result.chosen) == (Verdict.FITS, ("max_num_seqs",))
    chosen = effective_values(spec, result).max_num_seqs
    assert f"full context ({chosen} requests of 4096 tokens)" in accepted(result)[2]
    assert f"maxNumSeqs {chosen} (chosen)" in accepted(result)[2]


@pytest.mark.parametrize(
    ("vllm", "decision"),
    [
        ({"version": "0.14.0"}, Decision.ADMIT),
        ({"version": "0.13.0"}, Decision.REFUSE),
        ({"version": "0.13.0", "image": "example.com/vllm:1"}, Decision.ADMIT),
    ],
)
def test_releases_before_0_14_refuse_the_word(vllm: dict[str, str], decision: Decision) -> None:
    _, result = assessed(AUTO | vllm)
    assert result.decision is decision
    assert any(each.rule.id == "OptionValue" for each in result.findings) == (vllm["version"] == "0.13.0")


@pytest.mark.parametrize("value", ["Auto", "", "32768", 0, True, 1.5])
def test_the_field_takes_a_number_or_the_word(value: object) -> None:
    with pytest.raises(InvalidDocument, match="number of tokens from 1 to 100000000, or auto"):
        assessed({"maxModelLen": value})


def test_auto_may_start_where_only_the_low_end_holds_no_token() -> None:
    values = {"model": "Qwen/Qwen3-8B", "gpu": "L4-24GB", "vllm_version": "0.33.0", "max_model_len": "auto"}
    for share in (f"0.{each}" for each in range(700, 900, 5)):
        budget = assess_request({**values, "gpu_memory_utilization": share}).budget
        assert budget is not None
        assert budget.num_blocks is not None
        if budget.num_blocks.low < 2 and budget.num_blocks.high > 200:
            assert budget.starts is Verdict.MAY_NOT_FIT
            return
    pytest.fail("no share of the memory lies between the ends")


def test_a_promise_that_auto_would_drop_in_silence_is_a_finding_with_the_length() -> None:
    workload = {"peakConcurrency": 1, "promptTokens": 38_900, "outputTokens": 100}
    _, result = assessed(AUTO, workload=workload)
    (finding,) = [each for each in result.findings if each.rule.id == "GuaranteeNotMet"]
    assert result.budget is not None
    length = result.budget.resolved.max_model_len
    assert finding.message.endswith(
        f"max_model_len auto starts all the same, with {length} tokens of the model's 40960"
    )
    _, stated = assessed({**AUTO, "maxModelLen": 40960}, workload=workload)
    assert not any("all the same" in each.message for each in stated.findings)


def test_explain_shows_the_length_of_auto_with_both_ends_beside_the_promise() -> None:
    """A token takes 144 KiB; the longest length is that of the usable blocks of 16 tokens."""
    asked = (
        "explain",
        "--model",
        "Qwen/Qwen3-8B",
        "--gpu",
        "L4-24GB",
        "--max-model-len",
        "auto",
        "--vllm-version",
        "0.33.0",
    )
    lines = [" ".join(line.split()) for line in invoked(*asked).stdout.splitlines()]
    (blocks,) = [line.split() for line in lines if line.startswith("blocks ")]
    low, expected, high = ((int(blocks[place]) - 1) * 16 for place in (2, 1, 4))
    assert f"auto starts with {expected} {low} to {high} tokens, of the model's 40960" in lines
    told = invoked(*asked, "--users", "1", "--prompt-tokens", "20k").stdout
    assert "of the model's 40960; 20512 are promised" in told
    whole = invoked(*asked[:4], "H100-SXM-80GB", *asked[5:]).stdout
    assert "40960 to 40960 tokens" in " ".join(whole.split())
