"""Weight bytes of every rank against vLLM's own model classes; parameter_bytes.csv says where the figures come from."""

from itertools import groupby

import pytest

from parity import not_yet
from parity.comparison import stage_bytes
from parity.tables import Row, rows_of

ROWS_OF_MODEL = {model: list(rows) for model, rows in groupby(rows_of("parameter_bytes.csv"), lambda row: row["model"])}

SCALES_PER_LAYER = 8
"""Bytes of the scales for an fp8 KV cache, which vLLM allocates beside FP8 weights; we leave them out."""
KNOWN_DIFFERENCES = {
    ("Qwen/Qwen3-235B-A22B-FP8", 1, 1): [94 * SCALES_PER_LAYER],
    ("Qwen/Qwen3-235B-A22B-FP8", 1, 2): [47 * SCALES_PER_LAYER] * 2,
    ("Qwen/Qwen3-235B-A22B-FP8", 2, 1): [94 * SCALES_PER_LAYER],
    ("Qwen/Qwen3-235B-A22B-FP8", 4, 1): [94 * SCALES_PER_LAYER],
    ("Qwen/Qwen3-235B-A22B-FP8", 4, 2): [47 * SCALES_PER_LAYER] * 2,
    # 192 rows per rank cut blocks of 128, so that vLLM makes them 64 × 64: 416 scales more per expert
    ("Qwen/Qwen3-235B-A22B-FP8", 8, 1): [94 * (SCALES_PER_LAYER + 128 * 416 * 4)],
    ("mistralai/Devstral-2-123B-Instruct-2512", 1, 1): [88 * SCALES_PER_LAYER],
    ("mistralai/Devstral-2-123B-Instruct-2512", 1, 2): [44 * SCALES_PER_LAYER] * 2,
    ("mistralai/Devstral-2-123B-Instruct-2512", 2, 1): [88 * SCALES_PER_LAYER],
    ("mistralai/Devstral-2-123B-Instruct-2512", 4, 1): [88 * SCALES_PER_LAYER],
    ("mistralai/Devstral-2-123B-Instruct-2512", 4, 2): [44 * SCALES_PER_LAYER] * 2,
    ("mistralai/Devstral-2-123B-Instruct-2512", 8, 1): [88 * SCALES_PER_LAYER],
}
"""What vLLM has on a stage beyond our figure, by model, tensor and pipeline size; everything else is equal to the byte."""


def key(row: Row) -> tuple[str, int, int]:
    return row["model"], int(row["tensor"]), int(row["pipeline"])


def wrong_rows(model: str) -> list[str]:
    wrong = []
    for row in ROWS_OF_MODEL[model]:
        theirs = [int(size) for size in row["stage_bytes"].split()]
        missing = KNOWN_DIFFERENCES.get(key(row), [0] * len(theirs))
        if (ours := stage_bytes(row)) != [size - less for size, less in zip(theirs, missing, strict=True)]:
            wrong.append(f"tp{row['tensor']} pp{row['pipeline']} {row['gpu']}: {ours} for {theirs}")
    return wrong


@pytest.mark.parametrize("model", [model for model in ROWS_OF_MODEL if model not in not_yet.WEIGHTS])
def test_a_rank_holds_the_bytes_that_vllm_allocates(model: str) -> None:
    assert wrong_rows(model) == []


@pytest.mark.parametrize("model", sorted(not_yet.WEIGHTS))
def test_a_model_that_is_right_leaves_the_list(model: str) -> None:
    assert wrong_rows(model), "strike it from not_yet.WEIGHTS"


def test_the_known_differences_are_rows_of_the_table_and_small() -> None:
    sizes = {
        key(row): [int(size) for size in row["stage_bytes"].split()] for rows in ROWS_OF_MODEL.values() for row in rows
    }
    assert sizes.keys() >= KNOWN_DIFFERENCES.keys()
    for row, missing in KNOWN_DIFFERENCES.items():
        assert all(less <= size / 1000 for size, less in zip(sizes[row], missing, strict=True)), row
