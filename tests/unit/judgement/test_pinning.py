"""A pinned capacity through `assess`: what is rendered, what is refused, and what excludes it."""

from typing import Any

import pytest

from kvgate.api.v1alpha1 import InferenceDeploymentSpec
from kvgate.api.validation import InvalidDocument, parse_document
from kvgate.budget import Capacity, Verdict
from kvgate.findings.finding import Severity
from kvgate.judgement.assess import assess, effective_values, pinned_option
from kvgate.judgement.assessment import Assessment, Decision
from kvgate.judgement.facts import ConfigMissing, gather
from kvgate.judgement.skipping import Skip
from kvgate.judgement.summary import accepted, refusal
from kvgate.judgement.what_if import assess_request
from kvgate.statement.deployment import statement_of
from kvgate.statement.what_if import BadRequest
from support.builders import new_document

PINNED = {"capacity": "Pinned"}
FITS = {"maxModelLen": 8192, "maxNumSeqs": 1}
WHAT_IF = {"model": "Qwen/Qwen3-8B", "gpu": "L4-24GB", "vllm_version": "0.33.0", "max_model_len": 8192}


def between() -> dict[str, int]:
    """A request that the L4 may hold: half way from the low end of the prediction to what is expected."""
    budget = assess_request({**WHAT_IF, "max_num_seqs": 1}).budget
    assert budget is not None
    assert budget.num_blocks is not None
    return {"maxModelLen": (budget.num_blocks.low + budget.num_blocks.expected) // 2 * 16, "maxNumSeqs": 1}


def spec_of(vllm: dict[str, Any], **more: Any) -> InferenceDeploymentSpec:
    return parse_document(new_document(accelerator=more.pop("gpu", "L4-24GB"), vllm=vllm, **more)).spec


def assessed(vllm: dict[str, Any], **admission: Any) -> tuple[InferenceDeploymentSpec, Assessment]:
    skip = admission.pop("skip", None)
    spec = spec_of(vllm, admission=PINNED | admission)
    nowhere = ConfigMissing(message="there is none", remediation="make one")
    return spec, assess(spec, gather(statement_of(spec), lambda _: nowhere), skip=Skip(reason=skip) if skip else None)


def rules(assessment: Assessment) -> dict[str, Severity]:
    return {finding.rule.id: finding.severity for finding in assessment.findings}


@pytest.mark.parametrize(
    ("version", "option"),
    [("0.33.0", "kv_cache_memory_bytes"), ("0.10.2", "kv_cache_memory_bytes"), ("0.10.1", "num_gpu_blocks_override"),
     ("0.8.5", "num_gpu_blocks_override"), ("0.6.6", "num_gpu_blocks_override")],
)  # fmt: skip
def test_the_option_of_the_release_is_rendered(version: str, option: str) -> None:
    spec, result = assessed(FITS | {"version": version})
    assert (result.verdict, result.decision) == (Verdict.FITS, Decision.ADMIT)
    budget = result.effective
    assert budget is not None
    assert budget.pin is not None
    effective = effective_values(spec, result).model_dump(exclude_none=True)
    pinned = {name: value for name, value in effective.items() if name.startswith(("kv_cache_memory", "num_gpu"))}
    value = budget.pin.num_blocks if option == "num_gpu_blocks_override" else budget.pin.cache_memory_bytes
    assert pinned == {option: value}


def test_the_condition_says_what_is_pinned() -> None:
    _, result = assessed(FITS)
    assert result.effective is not None
    assert result.effective.num_tokens is not None
    _, _, message = accepted(result)
    assert message.endswith(f"GiB of KV cache per GPU ({result.effective.num_tokens.expected} tokens)")
    assert rules(result) == {"CapacityPinned": Severity.INFO}


def test_what_lies_inside_the_interval_is_refused_with_numbers_and_measuring_is_proposed() -> None:
    _, result = assessed(between())
    assert (result.verdict, result.decision) == (Verdict.DOES_NOT_FIT, Decision.REFUSE)
    assert rules(result)["KVCacheTooSmall"] is Severity.ERROR
    text = refusal(result)
    assert "spec.admission.capacity Pinned gives it" in text
    assert "less 0.15 GiB that stay free" in text
    assert "Would fit: any one of: " in text
    assert text.endswith("it then may fit, and each start has another size")
    assert assessed(between(), capacity="Profiled")[1].decision is Decision.ADMIT_WITH_WARNING


def test_adjusting_renders_less_with_the_pinned_size_of_it() -> None:
    spec, result = assessed(between(), policy="Adjust")
    assert result.decision is Decision.ADMIT_ADJUSTED
    effective = effective_values(spec, result)
    assert effective.max_model_len is not None
    assert effective.max_model_len < between()["maxModelLen"]
    assert effective.kv_cache_memory_bytes is not None
    assert "; pinned at" in accepted(result)[2]


@pytest.mark.parametrize(
    ("admission", "decision"),
    [({"policy": "Warn"}, Decision.ADMIT_WITH_WARNING), ({"skip": "we know better"}, Decision.SKIPPED)],
)
def test_what_is_admitted_although_its_pinned_size_is_hopeless_is_measured(
    admission: dict[str, Any], decision: Decision
) -> None:
    spec, result = assessed(between(), **admission)
    assert (result.verdict, result.decision) == (Verdict.DOES_NOT_FIT, decision)
    assert rules(result)["CapacityNotPinned"] is Severity.WARNING
    assert "CapacityPinned" not in rules(result)
    effective = effective_values(spec, result)
    assert (effective.kv_cache_memory_bytes, effective.num_gpu_blocks_override) == (None, None)
    assert result.effective is not None
    assert result.effective.request.capacity is Capacity.PROFILED


def test_a_warned_guarantee_keeps_a_pinned_size_that_starts() -> None:
    spec, result = assessed({"maxModelLen": 8192, "maxNumSeqs": 32}, policy="Warn")
    assert result.verdict is Verdict.DOES_NOT_FIT
    assert effective_values(spec, result).kv_cache_memory_bytes is not None
    assert "CapacityNotPinned" not in rules(result)


@pytest.mark.parametrize("vllm", [{"extraArgs": ["--worker-cls=corp.Worker"]}, {"version": "0.5.0"}])
def test_what_cannot_be_predicted_is_not_pinned_and_not_refused(vllm: dict[str, Any]) -> None:
    spec, result = assessed(FITS | vllm)
    assert (result.verdict, result.decision) == (Verdict.UNKNOWN, Decision.ADMIT_WITH_WARNING)
    effective = effective_values(spec, result)
    assert (effective.kv_cache_memory_bytes, effective.num_gpu_blocks_override) == (None, None)


@pytest.mark.parametrize("argument", ["--enable-sleep-mode", "--mm-ipc-gpu-memory-gb=2"])
def test_an_option_that_takes_from_the_cache_excludes_pinning(argument: str) -> None:
    _, result = assessed(FITS | {"extraArgs": [argument]})
    assert (result.verdict, result.decision) == (Verdict.DOES_NOT_FIT, Decision.REFUSE)
    (conflict,) = [finding for finding in result.findings if finding.rule.id == "CapacityConflict"]
    assert "spec.admission.capacity Pinned" in conflict.message
    assert argument.partition("=")[0] in conflict.message
    _, profiled = assessed(FITS | {"extraArgs": [argument]}, capacity="Profiled")
    assert "CapacityConflict" not in rules(profiled)


def test_an_option_that_is_off_excludes_nothing() -> None:
    _, result = assessed(FITS | {"extraArgs": ["--no-enable-sleep-mode", "--mm-ipc-gpu-memory-gb=0"]})
    assert result.decision is Decision.ADMIT


@pytest.mark.parametrize(
    "vllm", [{"kvCacheMemoryBytes": 1 << 30}, {"extraArgs": ["--num-gpu-blocks-override=100"]}, {"extraArgs": ["--kv-cache-memory=1G"]}]
)  # fmt: skip
def test_two_sizes_are_an_error_of_the_schema(vllm: dict[str, Any]) -> None:
    with pytest.raises(InvalidDocument) as refused:
        spec_of(FITS | vllm, admission=PINNED)
    (finding,) = refused.value.findings
    if "kvCacheMemoryBytes" in vllm:
        assert "admission.capacity Pinned" in finding.message
        assert "vllm.kvCacheMemoryBytes" in finding.message
    else:
        assert "extraArgs sets an option that a field of the spec owns" in finding.message


@pytest.mark.parametrize("size", [{"kv_cache_memory_bytes": "10G"}, {"num_gpu_blocks_override": 100}])
def test_two_sizes_of_a_what_if_are_named(size: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as refused:
        assess_request({**WHAT_IF, **size, "capacity": "pinned"})
    (name,) = size
    assert str(refused.value).startswith(f"--capacity Pinned and --{name.replace('_', '-')} both set the size")


def test_a_what_if_is_pinned_in_any_case_and_takes_no_other_word() -> None:
    assert assess_request({**WHAT_IF, "capacity": "pinned"}).findings[-1].rule.id == "CapacityPinned"
    assert "CapacityPinned" not in rules(assess_request({**WHAT_IF, "capacity": "Profiled"}))
    with pytest.raises(BadRequest, match="it must be one of Profiled, Pinned"):
        assess_request({**WHAT_IF, "capacity": "Measured"})


def test_a_gpu_without_room_for_the_weights_is_refused_for_them() -> None:
    _, result = assessed({"maxModelLen": 1024, "maxNumSeqs": 1, "gpuMemoryUtilization": "0.5"})
    assert result.decision is Decision.REFUSE
    assert "WeightsTooLarge" in rules(result)
    assert "Pinned" not in refusal(result)


def test_a_negative_low_end_pins_nothing_and_says_so_with_both_ends() -> None:
    """A GPU with so much less memory that nothing is expected to be left, and the high end still holds a request."""
    asked = {**WHAT_IF, "max_model_len": 64, "max_num_seqs": 1, "gpu_memory_utilization": "1.0"}
    budget = assess_request(asked).budget
    assert budget is not None
    assert budget.tightest is not None
    left = budget.request.accelerator.memory_bytes - budget.tightest.available.expected
    pinned = assess_request({**asked, "gpu_memory_bytes": left, "capacity": "Pinned"})
    assert pinned.verdict is Verdict.DOES_NOT_FIT
    assert pinned.budget is not None
    assert pinned.budget.pin is not None
    assert pinned.budget.pin.available.low < 0 < pinned.budget.pin.available.high
    assert (pinned.budget.pin.num_blocks, pinned_option(pinned.budget)) == (0, {})
    (finding,) = [each for each in pinned.findings if each.rule.id == "KVCacheTooSmall"]
    assert "--capacity Pinned gives it 0.00 GiB: the low end of -" in finding.message
    assert "change --capacity from Pinned to Profiled" in finding.remediation


def test_holds_is_judged_with_the_pinned_size_which_is_below_the_low_end() -> None:
    measured = assess_request({**WHAT_IF, "max_num_seqs": 1}).budget
    assert measured is not None
    assert measured.num_blocks is not None
    at_low_end = {"maxModelLen": (measured.num_blocks.low - 1) * 16, "maxNumSeqs": 1}
    assert assessed(at_low_end, capacity="Profiled")[1].verdict is Verdict.FITS
    _, pinned = assessed(at_low_end)
    assert (pinned.starts.verdict, pinned.holds.verdict) == (Verdict.DOES_NOT_FIT, Verdict.DOES_NOT_FIT)
    budget = assessed(FITS)[1].budget
    assert budget is not None
    assert budget.pin is not None
    assert budget.pin.cache_memory_bytes <= budget.pin.available.low


def test_two_requests_are_held_by_what_is_measured_and_not_by_what_is_pinned() -> None:
    measured = assess_request({**WHAT_IF, "max_num_seqs": 2}).budget
    assert measured is not None
    assert measured.num_blocks is not None
    half = {"maxModelLen": (measured.num_blocks.low - 1) // 2 * 16, "maxNumSeqs": 2}
    assert assessed(half, capacity="Profiled")[1].verdict is Verdict.FITS
    _, pinned = assessed(half)
    assert (pinned.starts.verdict, pinned.holds.verdict) == (Verdict.FITS, Verdict.DOES_NOT_FIT)
