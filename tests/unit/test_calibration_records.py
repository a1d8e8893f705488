"""The text of observed starts: it reads back as it was written, and what is broken in it costs nothing else."""

import json
from dataclasses import replace

import pytest

from kvgate.budget.calibration import Calibration, ObservedStart, StartState
from kvgate.calibration import (
    HEADER,
    MAX_PROBLEMS,
    MAX_STARTS,
    MAX_STARTS_OF_A_SETTING,
    read_records,
    unused_text,
    with_start,
    write_records,
)
from support.starts import a_start


def test_what_was_written_reads_back() -> None:
    starts = with_start(with_start((), a_start()), a_start(max_num_seqs=128, enable_expert_parallel=True))
    records = read_records(write_records(starts))
    assert (records.starts, records.problems) == (starts, ())


def test_nothing_is_a_calibration_without_starts() -> None:
    assert read_records("") == read_records("\n \n") == read_records(write_records(()))


BROKEN = [
    ("no json", "no JSON object"),
    ("[1]", "no JSON object"),
    ('{"architecture": 3}', "predicted_bytes is None"),
    ('{"predicted_bytes": [3, 2, 1]}', "must not fall"),
    ('{"predicted_bytes": [1, 2, 3], "architecture": 3}', "architecture is 3; it must be of type str"),
    ("x" * 5000, "5000 characters"),
    ("[" * 4000, "no JSON object"),
]


@pytest.mark.parametrize(("line", "told"), BROKEN, ids=[told for _, told in BROKEN])
def test_a_broken_line_is_named_and_the_others_are_read(line: str, told: str) -> None:
    starts = with_start((), a_start())
    header, good = write_records(starts).splitlines()
    records = read_records(f"{header}\n{line}\n{good}")
    assert records.starts == starts
    assert len(records.problems) == 1
    assert records.problems[0].startswith("line 2: ")
    assert told in records.problems[0]


def test_a_text_of_broken_lines_is_given_up_after_a_few() -> None:
    header = write_records(()).rstrip()
    records = read_records(header + "\nbroken" * 100_000)
    assert len(records.problems) == MAX_PROBLEMS + 1
    assert records.problems[-1] == f"line {MAX_PROBLEMS + 1} is not the last of 100001: what follows was not read"


@pytest.mark.parametrize("name", ["requested_bytes", "tensor_parallel_size", "vllm_version", "enforce_eager"])
@pytest.mark.parametrize("value", [None, 1.5, "x", [], {}])
def test_every_figure_has_its_type(name: str, value: object) -> None:
    if name == "vllm_version" and value == "x":
        return
    header, line = write_records(with_start((), a_start())).splitlines()
    broken = json.dumps({**json.loads(line), name: value})
    assert f"{name} is" in read_records(f"{header}\n{broken}").problems[0]


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ("{}", "this is no calibration"), ("kvgate", "this is no calibration"), ("[]", "this is no calibration"),
        (json.dumps({**HEADER, "version": 2}), "version is 2; this release reads version 1"),
    ],
)  # fmt: skip
def test_another_format_is_not_guessed_at(header: str, told: str) -> None:
    line = write_records(with_start((), a_start())).splitlines()[1]
    records = read_records(f"{header}\n{line}")
    assert records.starts == ()
    assert told in records.problems[0]


def test_what_is_known_already_is_not_kept_twice() -> None:
    starts = with_start((), a_start())
    assert with_start(starts, a_start()) is starts
    assert (
        with_start(starts, replace(a_start(), available_kv_cache_bytes=a_start().available_kv_cache_bytes + 1))
        is starts
    )


def test_revisions_grow_and_the_oldest_go_first() -> None:
    starts: tuple[ObservedStart, ...] = ()
    for number in range(MAX_STARTS_OF_A_SETTING + 2):
        starts = with_start(starts, a_start(-0.5 - number / 10))
    assert [start.revision for start in starts] == list(range(3, MAX_STARTS_OF_A_SETTING + 3))
    others = tuple(
        replace(starts[0], key=replace(starts[0].key, max_num_seqs=n), revision=n) for n in range(1, MAX_STARTS + 1)
    )
    more = with_start(others, a_start())
    assert len(more) == MAX_STARTS
    assert more[0].revision == 2
    assert more[-1].revision == MAX_STARTS + 1


def test_a_full_calibration_fits_a_config_map() -> None:
    start = a_start()
    starts = tuple(
        replace(start, key=replace(start.key, max_num_seqs=n), revision=n, source="n" * 200) for n in range(MAX_STARTS)
    )
    text = write_records(starts)
    assert len(text.encode()) < 1 << 20
    assert len(read_records(text).starts) == MAX_STARTS


def test_more_lines_than_are_used_are_told() -> None:
    start = a_start()
    records = read_records(write_records(replace(start, revision=n) for n in range(MAX_STARTS + 5)))
    assert len(records.starts) == MAX_STARTS
    assert records.problems == (f"{MAX_STARTS + 5} starts; the newest {MAX_STARTS} are used",)


def test_why_a_start_is_not_used_is_told_in_words() -> None:
    fine, other, odd = a_start(), a_start(-2.0), a_start(-20.0)
    assert unused_text(Calibration(starts=(fine,)), fine) is None
    contradictory = unused_text(Calibration(starts=(fine, other)), fine) or ""
    assert "serving/a of Qwen3ForCausalLM on H100-SXM-80GB, vLLM 0.33.0 reported" in contradictory
    assert "other starts of the setting something else: none is used" in contradictory
    assert "is it another setting, or a shared GPU?" in (unused_text(Calibration(starts=(odd,)), odd) or "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("available_kv_cache_bytes", 10**400), ("available_kv_cache_bytes", -(10**400)), ("requested_bytes", -1),
        ("resolution_bytes", -1), ("swing_bytes", -1), ("scatter_bytes", -1), ("scatter_bytes", 10**400), ("revision", -1),
        ("predicted_bytes", [0, 1, 10**400]), ("predicted_bytes", [-(10**400), 1, 2]),
    ],
)  # fmt: skip
def test_a_figure_that_no_machine_has_is_named_and_nothing_of_it_is_used(name: str, value: object) -> None:
    header, line = write_records(with_start((), a_start())).splitlines()
    records = read_records(f"{header}\n{json.dumps({**json.loads(line), name: value})}\n{line}")
    assert len(records.starts) == 1
    assert name in records.problems[0]
    assert [unused_text(records.calibration, start) for start in records.starts] == [None]


def test_a_long_list_of_cuda_graphs_reads_back() -> None:
    sizes = [1_000_000 + number for number in range(2000)]
    starts = with_start((), a_start(compilation_config={"cudagraph_capture_sizes": sizes}))
    records = read_records(write_records(starts))
    assert (records.starts, records.problems) == (starts, ())
    assert starts[0].key.cudagraphs == "None 2000 sizes, 1000000 to 1001999 None"


@pytest.mark.parametrize("config", [{}, {"mode": 3}, {"cudagraph_mode": None}, 3])
def test_a_compilation_config_that_leaves_cuda_graphs_to_vllm_is_the_same_setting(config: object) -> None:
    assert a_start(compilation_config=config).key == a_start().key


def test_starts_that_agree_never_push_out_those_that_a_verdict_stands_on() -> None:
    starts: tuple[ObservedStart, ...] = ()
    for number in range(MAX_STARTS_OF_A_SETTING):
        starts = with_start(starts, a_start(-0.5 - number / 80))
    assert len(starts) == MAX_STARTS_OF_A_SETTING
    assert with_start(starts, a_start(-0.48)) is starts
    assert with_start(starts, a_start(-60.0)) is starts
    told = with_start(starts, a_start(-1.5))
    assert Calibration(starts=told).state(told[-1]) is StartState.CONTRADICTORY
