"""Blocks, bytes and lengths against vLLM's own code, all of them equal; kv_arithmetic.csv says where the figures come from."""

import pytest

from kvgate.budget.interval import Verdict
from kvgate.budget.plan import Budget, plan
from parity.tables import Row, rows_of
from support.builders import catalogue_accelerator, catalogue_shape, new_request

ROWS = rows_of("kv_arithmetic.csv")


def number(text: str) -> int | None:
    return int(text) if text else None


def planned(row: Row) -> Budget:
    return plan(
        new_request(
            shape=catalogue_shape(row["model"]),
            accelerator=catalogue_accelerator(row["gpu"]),
            vllm_version="0.32.0",
            max_model_len=number(row["max_model_len"]),
            kv_cache_dtype=row["kv_cache_dtype"],
            block_size=number(row["block_size"]),
            kv_cache_memory_bytes=int(row["memory_bytes"]),
            tensor=int(row["tensor"]),
            pipeline=int(row["pipeline"]),
            decode_context=int(row["decode_context"]),
        )
    )


def name_of(row: Row) -> str:
    sizes = (
        f"tp{row['tensor']}-pp{row['pipeline']}-dcp{row['decode_context']}-{row['kv_cache_dtype']}-{row['block_size']}"
    )
    return f"{row['model']}-{row['gpu']}-{sizes}-{row['memory_bytes']}-{row['max_model_len']}"


@pytest.mark.parametrize("row", [r for r in ROWS if r["max_model_len"] != "-1"], ids=name_of)
def test_the_cache_is_cut_into_the_blocks_that_vllm_cuts(row: Row) -> None:
    budget = planned(row)
    assert budget.kv_cache is not None
    assert budget.num_blocks is not None
    pool = budget.num_blocks.expected
    ours = {
        "bytes_per_block": budget.kv_cache.bytes_per_block,
        "request_blocks": budget.kv_cache.request_blocks,
        "num_blocks": pool if row["num_blocks"] else None,  # vLLM does not say it where it refuses
        "longest": budget.kv_cache.max_model_len_that_fits(pool, at_most=budget.settings.max_model_len),
        "fits": "yes" if budget.verdict is Verdict.FITS else "no",
    }
    theirs = {key: row["fits"] if key == "fits" else number(row[key]) for key in ours}
    assert ours == theirs


@pytest.mark.parametrize("row", [r for r in ROWS if r["max_model_len"] == "-1"], ids=name_of)
def test_the_automatic_length_is_the_longest_that_fits(row: Row) -> None:
    budget = planned(row)
    assert budget.settings.max_model_len == int(row["longest"])
    assert budget.verdict is Verdict.FITS


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("gpu", {"NVIDIA H100 80GB HBM3", "NVIDIA B200", "NVIDIA L40S", "NVIDIA A100-SXM4-80GB"}),
        ("kv_cache_dtype", {"auto", "bfloat16", "fp8", "fp8_e5m2", "int8_per_token_head", "nvfp4"}),
        ("block_size", {"", "16", "32", "64", "128"}),
        ("tensor", {"1", "2", "4", "8"}),
        ("pipeline", {"1", "2"}),
        ("decode_context", {"1", "2"}),
        ("fits", {"yes", "no"}),
    ],
)
def test_the_table_covers(column: str, values: set[str]) -> None:
    assert {row[column] for row in ROWS} >= values
