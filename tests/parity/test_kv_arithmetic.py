"""Blocks, bytes, lengths and verdicts for a given KV memory, all equal to what vLLM 0.32.0's own code computed on a CPU."""

import pytest

from parity.comparison import differences
from parity.tables import KINDS, Row, arithmetic_of, setting_of
from support.tables import table

ROWS_OF_MODEL = {(kind, model): rows for kind in KINDS for model, rows in arithmetic_of(kind).items()}


def wrong_rows(rows: list[Row]) -> list[str]:
    return [f"{setting_of(row)}: {found}" for row in rows if (found := differences(row))]


@pytest.mark.slow
@table(("kind", "model"), ROWS_OF_MODEL)
def test_the_cache_of_a_model_is_cut_as_vllm_cuts_it(kind: str, model: str) -> None:
    wrong = wrong_rows(ROWS_OF_MODEL[kind, model])
    assert not wrong, "\n".join([f"{len(wrong)} rows differ (ours, vLLM's):", *wrong[:5]])


@table(
    ("column", "values"),
    [
        ("gpu", {"NVIDIA H100 80GB HBM3", "NVIDIA B200", "NVIDIA L40S", "NVIDIA A100-SXM4-80GB"}),
        ("kv_cache_dtype", {"", "bfloat16", "fp8", "fp8_e5m2", "fp8_ds_mla", "int8_per_token_head", "nvfp4"}),
        ("block_size", {"", "16", "32", "64", "128"}),
        ("tensor_parallel_size", {"", "2", "4", "8"}),
        ("pipeline_parallel_size", {"", "2"}),
        ("decode_context_parallel_size", {"", "2", "4", "8"}),
        ("enable_prefix_caching", {"", "no"}),
        ("max_num_batched_tokens", {"", "2048", "32768"}),
        ("max_num_seqs", {"", "16"}),
        ("max_model_len", {"", "-1", "4096", "131072"}),
        ("further", {"", "disable_hybrid_kv_cache_manager=true", "mamba_ssm_cache_dtype=float32"}),
        ("starts", {"yes", "no"}),
    ],
)
def test_the_tables_cover(column: str, values: set[str]) -> None:
    assert {row[column] for rows in ROWS_OF_MODEL.values() for row in rows} >= values
