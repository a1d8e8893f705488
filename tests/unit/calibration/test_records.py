"""The text of observed starts: it reads back as it was written, and what is broken in it costs nothing else."""

import json

import pytest
from msgspec.structs import replace

from kvgate.budget.observed.calibration import Calibration, StartState
from kvgate.budget.observed.starts import ObservedStart
from kvgate.budget.observed.witnesses import num_witnesses
from kvgate.calibration.keeping import MAX_STARTS_OF_A_SETTING, with_start
from kvgate.calibration.observed import unused_text
from kvgate.calibration.records import HEADER, MAX_PROBLEMS, MAX_STARTS, read_records, write_records
from support.starts import a_pods_start, a_start
from support.tables import table


def test_what_was_written_reads_back() -> None:
    starts = with_start(with_start((), a_start()), a_start(max_num_seqs=128, enable_expert_parallel=True))
    records = read_records(write_records(starts))
    assert (records.starts, records.problems) == (starts, ())


def test_nothing_is_a_calibration_without_starts() -> None:
    assert read_records("") == read_records("\n \n") == read_records(write_records(()))


BROKEN = [
    ("no json", "it is not a JSON object"),
    ("[1]", "it is not a JSON object"),
    ('{"architecture": 3}', "predicted_bytes is None"),
    ('{"predicted_bytes": [3, 2, 1]}', "must not fall"),
    ('{"predicted_bytes": [1, 2, 3], "architecture": 3}', "architecture is 3; it must be of type str"),
    ("x" * 5000, "5000 characters"),
    ("[" * 4000, "it is not a JSON object"),
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
    assert (
        records.problems[-1] == f"line {MAX_PROBLEMS + 1} is not the last of 100001: the lines after it were not read"
    )


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
        ("{}", "this is not a calibration file"), ("kvgate", "this is not a calibration file"), ("[]", "this is not a calibration file"),
        (json.dumps({**HEADER, "version": 5}), "version is 5; this release reads versions 3 and 4"),
        (json.dumps({**HEADER, "version": 2}), "version is 2; this release reads versions 3 and 4"),
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
        replace(starts[0], key=replace(starts[0].key, max_num_batched_tokens=n), revision=n)
        for n in range(1, MAX_STARTS + 1)
    )
    more = with_start(others, a_start())
    assert len(more) == MAX_STARTS
    assert more[0].revision == 2
    assert more[-1].revision == MAX_STARTS + 1


def test_a_full_calibration_fits_a_config_map() -> None:
    start = a_start()
    starts = tuple(
        replace(start, key=replace(start.key, max_num_batched_tokens=n), revision=n, source="n" * 200)
        for n in range(MAX_STARTS)
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
    assert "other starts of the same setting reported something else: none is used" in contradictory
    assert "is it another setting, or a shared GPU?" in (unused_text(Calibration(starts=(odd,)), odd) or "")


@table(
    ("name", "value"),
    [
        ("available_kv_cache_bytes", 10**400), ("available_kv_cache_bytes", -(10**400)), ("requested_bytes", -1),
        ("circumstances", {"sampler": "other"}), ("circumstances", ["sampler"]), ("residue_bytes", 1.5), ("residue_bytes", 10**400),
        ("resolution_bytes", -1), ("swing_bytes", -1), ("scatter_bytes", -1), ("scatter_bytes", 10**400), ("revision", -1),
        ("predicted_bytes", [0, 1, 10**400]), ("predicted_bytes", [-(10**400), 1, 2]), ("possible_bytes", [2, 1]), ("possible_bytes", [1]),
        ("possible_bytes", None), ("possible_bytes", [1, 10**400]),
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


# ── whose a start was ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pods_start_reads_back_with_all_that_says_whose_it_was() -> None:
    starts = with_start((), a_pods_start(-0.5, "qwen-1"))
    records = read_records(write_records(starts))
    assert (records.starts, records.problems) == (starts, ())


def test_pods_of_an_older_record_are_one_witness_because_nobody_knows_their_nodes() -> None:
    starts = tuple(replace(a_pods_start(-0.5, pod), revision=number) for number, pod in enumerate("abc", start=1))
    lines = write_records(starts).splitlines()[1:]
    old = [
        {key: value for key, value in json.loads(line).items() if key not in ("node", "possible_bytes")}
        for line in lines
    ]
    records = read_records("\n".join(map(json.dumps, [{**HEADER, "version": 3}, *old])))
    assert records == read_records(write_records(records.starts))
    assert [start.owner for start in records.starts] == ["owner-of-a", "owner-of-b", "owner-of-c"]
    assert (num_witnesses(records.starts), num_witnesses(starts)) == (1, 3)
    assert all(start.is_possible for start in records.starts)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"origin": None}, "origin is None; it must be one of Stated, Pod"),
        ({"origin": ["Pod"]}, "origin is ['Pod']"),
        ({"namespace": ""}, "namespace must be given where origin is Pod"),
        ({"image": "", "pod": ""}, "pod and image must be given where origin is Pod"),
        ({"owner": 3}, "owner is 3; it must be of type str"),
        ({"pod": "p" * 254}, "pod has 254 characters; it may have 253"),
    ],
    ids=str,
)
def test_a_pods_start_that_does_not_say_whose_it_is_is_not_used(changes: dict[str, object], told: str) -> None:
    header, line = write_records((a_pods_start(-0.5, "a"),)).splitlines()
    records = read_records(f"{header}\n{json.dumps(json.loads(line) | changes)}")
    assert records.starts == ()
    assert told in records.problems[0]


def test_the_same_figure_of_a_second_owner_is_news_and_of_a_fourth_pod_is_not() -> None:
    starts: tuple[ObservedStart, ...] = ()
    for pod in "aabcd":
        starts = with_start(starts, a_pods_start(-0.5, pod, owner="one"))
    assert [start.pod for start in starts] == ["a", "b", "c"]
    more = with_start(starts, a_pods_start(-0.5, "e", owner="another"))
    assert [start.pod for start in more] == ["a", "b", "c", "e"]
    there = with_start(more, a_pods_start(-0.5, "f", owner="one", namespace="elsewhere"))
    assert [start.pod for start in there] == ["a", "b", "c", "e", "f"], "other namespaces need witnesses of their own"


def test_one_pod_cannot_keep_the_witnesses_of_a_setting_out() -> None:
    starts: tuple[ObservedStart, ...] = ()
    for number in range(MAX_STARTS_OF_A_SETTING):
        starts = with_start(starts, a_pods_start(-0.5 - number / 80, "a"))
    assert len(starts) == MAX_STARTS_OF_A_SETTING
    told = with_start(starts, a_pods_start(-0.48, "b"))
    assert (len(told), told[-1].pod) == (MAX_STARTS_OF_A_SETTING, "b")


def test_a_namespace_that_records_much_pushes_out_its_own() -> None:
    mine, flood = a_pods_start(-0.5, "a"), a_pods_start(-0.5, "a", namespace="flood")
    starts: tuple[ObservedStart, ...] = (replace(mine, revision=1),)
    starts += tuple(
        replace(flood, key=replace(flood.key, max_num_batched_tokens=number), revision=number)
        for number in range(2, MAX_STARTS + 1)
    )
    more = with_start(starts, replace(flood, key=replace(flood.key, max_num_batched_tokens=9999)))
    assert len(more) == MAX_STARTS
    assert more[0] == replace(mine, revision=1)
    assert {start.revision for start in starts} - {start.revision for start in more} == {2}


def test_revisions_follow_the_clock_and_never_repeat() -> None:
    first = with_start((), a_start(), revision=1_700_000_000_000)
    second = with_start(first, a_start(max_num_seqs=128), revision=1_600_000_000_000)
    assert [start.revision for start in second] == [1_700_000_000_000, 1_700_000_000_001]
    assert read_records(write_records(second)).starts == second


def test_the_largest_starts_of_pods_fit_a_config_map() -> None:
    start = a_pods_start(
        -0.5, "p" * 63, node="n" * 63, owner="o" * 45, namespace="n" * 63, image=f"r{'/' + 'i' * 254}@sha256:{'0' * 64}"
    )
    text = write_records(replace(start, revision=1 << 41, source="s" * 200) for _ in range(MAX_STARTS))
    assert len(text.encode()) < 1 << 20


# ── versions and bounds ───────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_known_of_the_environment_and_what_was_decided_reads_back() -> None:
    start = replace(
        a_pods_start(-0.5, "a"),
        driver="580.95.05",
        product="NVIDIA-H100-80GB-HBM3",
        is_pinned=True,
        is_dropped=True,
        is_expired=True,
    )
    records = read_records(write_records((start,), frozen=["serving", "*"], highest=7))
    assert (records.starts, records.frozen, records.highest) == ((start,), ("*", "serving"), 7)


def test_the_highest_revision_outlives_the_start_that_had_it() -> None:
    starts = (replace(a_start(), revision=5),)
    assert read_records(write_records(starts)).highest == 5
    assert read_records(write_records(starts, highest=9)).highest == 9


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({"revision": -1}, "revision must be"), ({"revision": "1"}, "revision must be"), ({"revision": 1 << 60}, "revision must be"),
        ({"frozen": "a"}, "frozen must be"), ({"frozen": [1]}, "frozen must be"), ({"frozen": ["a"] * 33}, "frozen must be"),
    ],
    ids=str,
)  # fmt: skip
def test_a_header_with_wrong_values_is_named(header: dict[str, object], told: str) -> None:
    assert told in read_records(json.dumps({**HEADER, **header})).problems[0]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("gpu_at_start", "Full", "gpu_at_start is 'Full'"), ("is_pinned", 1, "is_pinned is 1"), ("driver", "d" * 64, "driver has 64"),
        ("max_num_seqs", None, "max_num_seqs is None"), ("revision", (1 << 53) + 1, "revision is not within"),
    ],
)  # fmt: skip
def test_new_keys_are_checked_as_the_old_ones(name: str, value: object, told: str) -> None:
    header, line = write_records((a_pods_start(-0.5, "a"),)).splitlines()
    assert told in read_records(f"{header}\n{json.dumps(json.loads(line) | {name: value})}").problems[0]
