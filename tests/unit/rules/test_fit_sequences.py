"""The second start condition of hybrids, where max_num_seqs is a default that nobody told us."""

import pytest

from kvgate.budget.ground.interval import Verdict
from kvgate.judgement.assessment import Assessment
from kvgate.judgement.what_if import assess_statement
from kvgate.statement.what_if import statement_of_values

HYBRID = {
    "model": "Qwen/Qwen3.5-27B", "gpu": "H100-SXM-80GB", "vllm_version": "0.32.0", "max_model_len": 4096, "language_model_only": True,
}  # fmt: skip
"""About 300 blocks beside 1,024 sequences by default."""


def severities(assessment: Assessment) -> list[str]:
    return [f.severity.value for f in assessment.findings if f.rule.id == "MambaCacheBlocksExceeded"]


@pytest.mark.parametrize(
    ("more", "how", "verdict", "severity"),
    [
        ({}, {}, Verdict.MAY_NOT_FIT, ["warning"]),
        ({}, {"is_whole": True}, Verdict.DOES_NOT_FIT, ["error"]),
        ({"max_num_seqs": 1024}, {}, Verdict.DOES_NOT_FIT, ["error"]),
        ({"kv_cache_memory_bytes": 10 << 30}, {}, Verdict.DOES_NOT_FIT, ["error"]),
        ({"max_num_seqs": 8}, {}, Verdict.FITS, []),
    ],
)
def test_a_default_that_may_not_be_the_server_s_is_a_doubt(
    more: dict[str, int], how: dict[str, bool], verdict: Verdict, severity: list[str]
) -> None:
    assessment = assess_statement(statement_of_values({**HYBRID, **more}, **how))
    assert assessment.verdict is verdict
    assert severities(assessment) == severity


def test_a_model_without_states_wants_no_blocks_for_them() -> None:
    full = {
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "gpu": "L4-24GB",
        "vllm_version": "0.30.0",
        "gpu_memory_utilization": 0.75,
    }
    assert severities(assess_statement(statement_of_values({**full, "max_model_len": 1024}, is_whole=True))) == []
