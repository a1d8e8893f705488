"""Weight bytes of every rank against vLLM's own model classes; parameter_bytes.csv says where the figures come from."""

from itertools import accumulate, pairwise

import pytest

from kvgate.budget.parallelism import Parallelism, stage_sizes
from kvgate.budget.weights import rank_weights
from parity.tables import Row, rows_of
from support.builders import catalogue_shape

ROWS = rows_of("parameter_bytes.csv")

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
    # models with tied ends keep the final norm on every stage
    ("CohereForAI/c4ai-command-r-v01", 1, 2): [8192 * 2, 0],
    ("CohereForAI/c4ai-command-r-v01", 4, 2): [8192 * 2, 0],
    ("google/gemma-7b", 4, 2): [3072 * 2, 0],
}
"""What vLLM has on a stage beyond our figure, by model, tensor and pipeline size; everything else is equal to the byte."""


def key(row: Row) -> tuple[str, int, int]:
    return row["model"], int(row["tensor"]), int(row["pipeline"])


def predicted(name: str, tensor: int, pipeline: int) -> list[int]:
    shape = catalogue_shape(name)
    stages = pairwise(accumulate(stage_sizes(len(shape.layers), pipeline), initial=0))
    parallelism = Parallelism(tensor=tensor, pipeline=pipeline)
    return [rank_weights(shape, parallelism, stage, unsplit_large_blocks=False).parameter_bytes for stage in stages]


@pytest.mark.parametrize("row", ROWS, ids=[f"{r['model']}-tp{r['tensor']}-pp{r['pipeline']}" for r in ROWS])
def test_a_rank_holds_the_bytes_that_vllm_allocates(row: Row) -> None:
    expected = [int(size) for size in row["stage_bytes"].split()]
    figures = predicted(*key(row))
    missing = KNOWN_DIFFERENCES.get(key(row), [0] * len(expected))
    assert [ours + less for ours, less in zip(figures, missing, strict=True)] == expected
    assert all(abs(ours - theirs) <= theirs / 1000 for ours, theirs in zip(figures, expected, strict=True))


def test_the_known_differences_are_rows_of_the_table() -> None:
    assert {key(row) for row in ROWS} >= KNOWN_DIFFERENCES.keys()
