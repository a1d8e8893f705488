"""Known defects of vLLM in answers: a note where the release, the model, the GPU and the settings meet one, and no figure moves."""

from typing import Any

from kvgate.findings.finding import Finding, Severity
from kvgate.judgement.facts import gather
from kvgate.judgement.summary import warnings
from kvgate.statement.what_if import statement_of_values
from unit.judgement.test_assess import assessed


def defects(**values: Any) -> dict[str, Finding]:
    statement = statement_of_values({"gpu": "H100-SXM-80GB", "model": "Qwen/Qwen3-4B", **values})
    return {each.topic: each for each in gather(statement).findings if each.rule.id == "KnownDefect"}


def test_a_defect_is_a_note_in_the_releases_that_have_it() -> None:
    found = defects(vllm_version="0.25.1")["graphs-without-reserve-v2"]
    assert found.severity is Severity.INFO
    assert "#49224" in found.message
    assert "0.29" in found.remediation
    assert "graphs-without-reserve-v2" not in defects(vllm_version="0.29.0")
    assert "graphs-without-reserve-v2" not in defects(vllm_version="0.25.1", enforce_eager=True)


def test_the_runner_decides_where_a_defect_is_the_runners() -> None:
    assert "graphs-without-reserve-v2" not in defects(vllm_version="0.25.1", model="Qwen/Qwen3.6-27B")
    assert "graphs-with-a-prompt-of-states" in defects(vllm_version="0.27.0", model="Qwen/Qwen3.6-27B")


def test_nothing_is_said_where_the_model_the_gpu_or_the_release_is_not_known() -> None:
    assert defects(vllm_version="0.25.1", model="nobody/knows") == {}
    assert defects(vllm_version="0.25.1", gpu="nobody's") == {}
    assert defects(vllm_version="0.1.0") == {}


def test_a_defect_that_decides_the_start_is_a_warning() -> None:
    values = {"model": "nvidia/Qwen3.6-35B-A3B-NVFP4", "gpu": "RTX-5090", "moe_backend": "flashinfer_b12x"}
    assert defects(vllm_version="0.26.0", **values)["b12x-buffer-in-the-profile"].severity is Severity.WARNING
    assert "b12x-buffer-in-the-profile" not in defects(vllm_version="0.24.0", **values)


def test_the_owner_of_an_admitted_object_is_told_last() -> None:
    told = warnings(assessed({"version": "0.25.1", "maxModelLen": 8192, "maxNumSeqs": 8}, policy="Warn"))
    assert any("#44490" in line for line in told)
    assert "#44490" in told[-1] or "#49224" in told[-1] or "#52089" in told[-1]
    newer = warnings(assessed({"version": "0.29.0", "maxModelLen": 8192, "maxNumSeqs": 8}, policy="Warn"))
    assert not any("#44490" in line for line in newer)


def test_two_defects_of_one_setting_stand_side_by_side() -> None:
    given = {"enable_expert_parallel": True, "data_parallel_size": 2, "model": "Qwen/Qwen3-30B-A3B"}
    found = defects(vllm_version="0.21.0", **given)
    assert (
        found["graphs-counted-for-each-size"].field == found["experts-of-all-ranks"].field == "enable_expert_parallel"
    )
