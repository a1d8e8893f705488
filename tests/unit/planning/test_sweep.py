"""Two settings against each other: how axes are read, what a cell holds, what must fit."""

from fractions import Fraction
from typing import Any

import pytest

from kvgate.budget.engine.request import Guarantee
from kvgate.budget.ground.interval import Interval, Verdict
from kvgate.judgement.what_if import UnknownFacts
from kvgate.planning.sweep import judge_pairs
from kvgate.planning.sweep_axes import MAX_VALUES, parse_axis, with_value
from kvgate.vllm.settings import SWEPT
from kvgate.vllm.values import UnusableValue
from support.tables import table

QWEN = {"model": "Qwen/Qwen3-32B-FP8", "gpu": "H100-SXM-80GB", "vllm_version": "0.33.0"}


@table(
    ("text", "name", "values"),
    [
        ("max_model_len=8192,4k,4K", "max_model_len", (4000, 4096, 8192)),
        ("max-model-len=4K..20K", "max_model_len", (4096, 8192, 16384, 20480)),
        ("--max-num-seqs=1..8", "max_num_seqs", (1, 2, 4, 8)),
        ("max_num_seqs=3", "max_num_seqs", (3,)),
        ("max_num_seqs=1,8..32+8", "max_num_seqs", (1, 8, 16, 24, 32)),
        (
            "gpu_memory_utilization=0.8..0.9+0.05",
            "gpu_memory_utilization",
            (Fraction(4, 5), Fraction(17, 20), Fraction(9, 10)),
        ),
        ("kv_cache_dtype=auto,fp8,auto", "kv_cache_dtype", ("auto", "fp8")),
        ("gpu=L40S,L4", "gpu", ("L40S", "L4")),
        ("enforce_eager=false,true", "enforce_eager", (False, True)),
        ("tensor_parallel_size=1..8", "tensor_parallel_size", (1, 2, 4, 8)),
    ],
)
def test_an_axis_is_read_as_it_is_written(text: str, name: str, values: tuple[Any, ...]) -> None:
    axis = parse_axis(text)
    assert (axis.name, axis.values) == (name, values)


@table(
    ("text", "words"),
    [
        ("zebra=1,2", "not a setting that can be swept; choose from model, gpu"),
        ("model_config=x", "not a setting"),
        ("max_model_len", "has no values"),
        ("max_model_len=", "has no values"),
        ("max_model_len=8..4", "the smaller first"),
        ("kv_cache_dtype=auto..fp8", "two numbers"),
        ("max_num_seqs=1..1000+1", f"at most {MAX_VALUES} are allowed"),
        ("max_num_seqs=1..8+0", "max_num_seqs is '0'"),
        ("max_model_len=auto..4K", "two numbers"),
        ("max_model_len=1K..4K+auto", "a number as its step"),
        ("gpu_memory_utilization=1e-999999999..0.9", "a number above 0 and up to 1"),
        ("max_model_length=1", "write max_model_len"),
        ("max_num_seqs=none", "max_num_seqs is 'none'; it must be a whole number"),
        ("enforce_eager=maybe", "true or false"),
    ],
)
def test_what_is_not_an_axis_is_named(text: str, words: str) -> None:
    with pytest.raises(UnusableValue, match=words):
        parse_axis(text)


def test_a_point_beside_the_axis_is_added_to_it() -> None:
    axis, number = with_value(parse_axis("max_num_seqs=1,8"), "4")
    assert (axis.values, number) == ((1, 4, 8), 1)
    same, number = with_value(axis, "8")
    assert (same, number) == (axis, 2)


def test_the_longest_context_that_fits_keeps_its_place_and_has_no_edge() -> None:
    lengths = parse_axis("max_model_len=4K,auto,2K")
    assert lengths.labels == ("4096", "auto", "2048")
    result = judge_pairs(QWEN, parse_axis("max_num_seqs=1,2"), lengths, guarantee=Guarantee.FULL_CONTEXT)
    assert result.edges is None


def test_a_share_is_swept_with_all_its_digits() -> None:
    shares = parse_axis("gpu_memory_utilization=0.8123456789,0.9")
    assert shares.labels == ("0.8123456789", "0.9")
    rows = judge_pairs(QWEN, shares, parse_axis("max_model_len=4K"), guarantee=Guarantee.STARTUP).rows
    assert [cell.verdict for cell in rows[0]] == [Verdict.FITS, Verdict.FITS]


def test_every_setting_but_objects_is_a_knob() -> None:
    assert {"max_model_len", "gpu", "model", "block_size", "mamba_ssm_cache_dtype"} <= SWEPT.keys()
    assert not {"model_config", "speculative_config"} & SWEPT.keys()


def test_the_numbers_of_a_cell_make_its_verdict() -> None:
    result = judge_pairs(
        QWEN,
        parse_axis("max_model_len=2k..40k+2k"),
        parse_axis("max_num_seqs=1..20+1"),
        guarantee=Guarantee.FULL_CONTEXT,
    )
    seen = set()
    for cell in (cell for row in result.rows for cell in row):
        assert cell.demand_bytes is not None
        assert cell.available is not None
        low, high = cell.demand_bytes <= cell.available.low, cell.demand_bytes <= cell.available.high
        assert cell.by_memory is (Verdict.FITS if low else Verdict.MAY_NOT_FIT if high else Verdict.DOES_NOT_FIT)
        seen.add(cell.by_memory)
    assert seen == {Verdict.FITS, Verdict.MAY_NOT_FIT, Verdict.DOES_NOT_FIT}


def test_a_refusal_is_told_apart_from_memory() -> None:
    result = judge_pairs(
        QWEN, parse_axis("max_model_len=4096,65536"), parse_axis("max_num_seqs=1"), guarantee=Guarantee.FULL_CONTEXT
    )
    fits, refused = result.rows[0]
    assert (fits.verdict, fits.refusal) == (Verdict.FITS, "")
    assert (refused.verdict, refused.by_memory) == (Verdict.DOES_NOT_FIT, Verdict.FITS)
    assert "above the 40960 tokens" in refused.refusal


def test_there_is_no_exact_edge_between_names() -> None:
    result = judge_pairs(
        QWEN, parse_axis("max_model_len=4096"), parse_axis("kv_cache_dtype=auto,fp8"), guarantee=Guarantee.STARTUP
    )
    assert result.edges is None


def test_nothing_is_drawn_of_a_model_that_is_not_known() -> None:
    axes = parse_axis("max_model_len=1"), parse_axis("max_num_seqs=1")
    with pytest.raises(UnknownFacts, match="UnknownModel: model nobody/nothing is not in the catalogue"):
        judge_pairs({**QWEN, "model": "nobody/nothing"}, *axes, guarantee=Guarantee.STARTUP)


def test_progress_is_told_column_by_column() -> None:
    told: list[tuple[int, int]] = []
    axes = parse_axis("max_model_len=1K,2K,4K"), parse_axis("max_num_seqs=1,2")
    judge_pairs(QWEN, *axes, guarantee=Guarantee.FULL_CONTEXT, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_where_the_weights_leave_nothing_nothing_is_available() -> None:
    axes = parse_axis("gpu=T4-16GB"), parse_axis("max_num_seqs=1")
    values = {key: value for key, value in QWEN.items() if key != "gpu"}
    ((cell,),) = judge_pairs(values, *axes, guarantee=Guarantee.FULL_CONTEXT).rows
    assert cell.available == Interval.exactly(0)
    assert cell.share is None
