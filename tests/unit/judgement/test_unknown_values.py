"""One value that kvgate does not know costs its own term, and a value that vLLM refuses is refused at every door."""

from typing import Any

import pytest

from kvgate.budget import Verdict
from kvgate.findings.finding import Severity
from kvgate.judgement.assessment import Assessment
from kvgate.judgement.what_if import assess_request
from kvgate.statement.what_if import BadRequest
from kvgate.vllm.settings import WHAT_IFS, Setting
from kvgate.vllm.values import UnknownWord
from support.tables import table

QWEN = {"model": "Qwen/Qwen3-8B", "gpu": "H100-SXM-80GB", "vllm_version": "0.33.0", "tensor_parallel_size": 2}
BEYOND = "0.99.0"
"""A release that nobody has read, which may take words that kvgate does not know."""


def judged(**values: Any) -> Assessment:
    return assess_request({**QWEN, **values})


def found(assessment: Assessment) -> dict[str, Severity]:
    return {each.rule.id: each.severity for each in assessment.findings}


def pool(assessment: Assessment) -> tuple[int, int]:
    assert assessment.budget is not None
    assert assessment.budget.num_blocks is not None
    return assessment.budget.num_blocks.low, assessment.budget.num_blocks.high


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("links", ("nvlink", "pcie")),
        ("sampler", ("flashinfer", "pytorch")),
        ("compile_cache", ("warm", "cold")),
        ("installed_by", ("image", "pip")),
        ("use_v1", (True, False)),
        ("use_flashinfer_sampler", (True, False)),
    ],
)
def test_an_unknown_circumstance_is_as_if_nobody_had_told_it(name: str, words: tuple[object, ...]) -> None:
    values = {"vllm_version": "0.10.0", name: "ribbon"}
    answer = judged(**values)
    assert found(answer)["ValueNotKnown"] is Severity.WARNING
    assert pool(answer) == pool(judged(vllm_version="0.10.0"))
    assert answer.verdict is not Verdict.UNKNOWN
    assert all("ValueNotKnown" not in found(judged(**{**values, name: word})) for word in words)


def test_the_interval_holds_every_known_value_of_a_setting() -> None:
    nemotron = {"model": "nvidia/Nemotron-3-Nano", "vllm_version": BEYOND}
    answer = judged(**nemotron, performance_mode="brisk")
    assert found(answer)["ValueNotKnown"] is Severity.WARNING
    assert "balanced, interactivity, throughput" in next(
        each.message for each in answer.findings if each.rule.id == "ValueNotKnown"
    )
    low, high = pool(answer)
    known = [pool(judged(**nemotron, performance_mode=word)) for word in ("balanced", "interactivity", "throughput")]
    assert low <= min(each[0] for each in known)
    assert high >= max(each[1] for each in known)


@pytest.mark.parametrize(
    ("max_num_seqs", "verdict"),
    [(500, Verdict.FITS), (1100, Verdict.MAY_NOT_FIT), (1700, Verdict.DOES_NOT_FIT)],
)
def test_a_verdict_that_depends_on_an_unknown_value_is_not_certain(max_num_seqs: int, verdict: Verdict) -> None:
    """Recurrent states of 1100 sequences fit in 16 bits, and not in 32; of 1700 they fit in neither, and vLLM refuses them."""
    asked = {
        "model": "nvidia/Nemotron-3-Nano",
        "vllm_version": BEYOND,
        "tensor_parallel_size": 1,
        "max_model_len": 8192,
    }
    verdicts = {
        judged(**asked, max_num_seqs=max_num_seqs, mamba_ssm_cache_dtype=word).verdict
        for word in ("float32", "float16")
    }
    assert len(verdicts) == (2 if verdict is Verdict.MAY_NOT_FIT else 1)
    answer = judged(**asked, max_num_seqs=max_num_seqs, mamba_ssm_cache_dtype="float12")
    assert answer.verdict is verdict
    if verdict is Verdict.MAY_NOT_FIT:  # what holds for one of the values alone is no error
        assert found(answer)["MambaCacheBlocksExceeded"] is Severity.WARNING
        assert Severity.ERROR not in found(answer).values()


def takes_words(setting: Setting) -> bool:
    try:
        setting.read("ribbon")
    except UnknownWord:
        return True
    except ValueError:
        return setting.budget.startswith("circumstances.")
    return False


WORDS = [each.name for each in WHAT_IFS if each.budget and takes_words(each)]


@table("name", WORDS)
def test_no_unknown_word_takes_the_answer(name: str) -> None:
    answer = judged(**{"vllm_version": BEYOND, name: "ribbon"})
    assert answer.budget is not None
    assert found(answer)["ValueNotKnown"] is Severity.WARNING
    assert answer.verdict in (Verdict.FITS, Verdict.MAY_NOT_FIT)  # not every word goes with every other setting


def test_a_number_that_is_none_is_a_bad_request() -> None:
    with pytest.raises(BadRequest, match="it must be a whole number"):
        judged(max_num_seqs=0)


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"kv_cache_dtype": "int8", "vllm_version": "0.32.0"}, "OptionValue"),
        ({"dtype": "int8"}, "OptionValue"),
        ({"performance_mode": "brisk"}, "OptionValue"),
        ({"mamba_ssm_cache_dtype": "int8"}, "OptionValue"),
        ({"moe_backend": "abacus"}, "OptionValue"),
        ({"safetensors_load_strategy": "slowly"}, "OptionValue"),
        ({"swap_space": 4.5}, "OptionRemoved"),
        ({"performance_mode": "throughput", "vllm_version": "0.16.0"}, "OptionNotYet"),
    ],
    ids=str,
)
def test_a_what_if_is_refused_what_a_command_line_is_refused(values: dict[str, Any], rule: str) -> None:
    answer = judged(**values)
    assert found(answer)[rule] is Severity.ERROR
    assert answer.verdict is Verdict.DOES_NOT_FIT
    assert next(each for each in answer.findings if each.rule.id == rule).field in values


@pytest.mark.parametrize(
    "values",
    [
        {"kv_cache_dtype": "fp8_e4m3"},
        {"dtype": "half"},
        {"kv_cache_dtype": "int8", "vllm_version": "0.33.0"},  # a plug-in may bring it
        {"max_model_len": "32K", "vllm_version": "0.10.0"},
        {"decode_context_parallel_size": 1, "vllm_version": "0.8.5"},  # its default, which changes nothing
        {"enforce_eager": False, "enable_expert_parallel": True},
        {"limit_mm_per_prompt": {"image": 0}, "vllm_version": "0.20.0"},
        {"lora_target_modules": ["q_proj", "v_proj"], "enable_lora": True},
        {"gpu_memory_utilization": 0.9, "block_size": 16},
        {"moe_backend": "FlashInfer-CUTLASS"},
        {"capacity": "Pinned"},
    ],
    ids=str,
)
def test_what_vllm_takes_is_not_refused(values: dict[str, Any]) -> None:
    assert not {"OptionValue", "OptionRemoved", "OptionNotYet"} & found(judged(**values)).keys()


def test_a_release_that_nobody_has_read_may_take_the_value() -> None:
    answer = judged(moe_backend="abacus", vllm_version=BEYOND)
    assert found(answer)["OptionValue"] is Severity.WARNING
    assert answer.verdict is Verdict.FITS


def test_gpus_of_several_nodes_are_no_matter_of_a_pod_on_a_command_line() -> None:
    answer = judged(model="meta-llama/Llama-3.1-70B-Instruct", tensor_parallel_size=8, pipeline_parallel_size=2)
    assert "MoreGpusThanANode" not in found(answer)
