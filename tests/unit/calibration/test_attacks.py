"""Attacks on what others learn, replayed: whoever controls one object, its pods, its log or its metrics moves nobody else's prediction."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import Result
from msgspec.structs import replace

from kvgate.budget.answers.answer import plan
from kvgate.budget.gpu.ledger import Ledger
from kvgate.budget.ground.interval import Interval
from kvgate.budget.ground.units import GIB
from kvgate.budget.observed.calibration import NOTHING_OBSERVED, Calibration, CalibrationScope
from kvgate.budget.observed.starts import GpuAtStart, ObservedStart
from kvgate.budget.observed.witnesses import num_witnesses
from kvgate.calibration.keeping import MAX_STARTS_OF_A_SETTING, with_start
from kvgate.calibration.observed import start_of_blocks, unused_texts
from kvgate.controller.crashes import cause_in
from kvgate.judgement.what_if import read_request
from support.command_line import invoked
from support.starts import ASKED, a_pods_start

HERE = ("serving", "mine")
SCOPES = tuple(CalibrationScope)
TIGHT = {"gpu": "L4-24GB", "max_model_len": 4096}
"""A setting in which less than a fifth of the requested memory is left for the KV cache."""


def predicted(
    *starts: ObservedStart, scope: CalibrationScope = CalibrationScope.CLUSTER, reader: tuple[str, str] = HERE,
    **changes: object,
) -> Interval:  # fmt: skip
    return ledger(*starts, scope=scope, reader=reader, **changes).available


def ledger(
    *starts: ObservedStart, scope: CalibrationScope = CalibrationScope.CLUSTER, reader: tuple[str, str] = HERE,
    **changes: object,
) -> Ledger:  # fmt: skip
    request, _ = read_request({**ASKED, **changes})
    assert request is not None
    known = Calibration(starts=starts, scope=scope).seen_from(*reader) if starts else NOTHING_OBSERVED
    stage = plan(replace(request, calibration=known)).tightest
    assert stage is not None
    assert stage.ledger is not None
    return stage.ledger


def numbered(starts: Iterable[ObservedStart]) -> tuple[ObservedStart, ...]:
    return tuple(replace(start, revision=number) for number, start in enumerate(starts, start=1))


def witnesses(error_gib: float, count: int = 2, **changes: object) -> list[ObservedStart]:
    """Starts of as many objects, each on a node of its own."""
    return [a_pods_start(error_gib, f"pod-{n}", owner=f"owner-{n}", **changes) for n in range(count)]


def flood(error_gib: float, count: int = MAX_STARTS_OF_A_SETTING, step: float = 0.0) -> list[ObservedStart]:
    """Starts of one object, which deletes its pod again and again, each time on another node."""
    return [a_pods_start(error_gib + step * n, f"flood-{n}", owner="flood") for n in range(count)]


def is_only_wider(interval: Interval, than: Interval) -> bool:
    return interval.expected == than.expected and interval.low <= than.low and interval.high >= than.high


# ── one owner with many names ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("error_gib", [-3.0, 1.2])
@pytest.mark.parametrize("namespace", ["serving", "elsewhere"])
def test_the_many_pods_of_one_object_move_nobody_else(error_gib: float, namespace: str) -> None:
    starts = numbered(replace(start, namespace=namespace) for start in flood(error_gib))
    assert is_only_wider(predicted(*starts), predicted())


def test_many_objects_on_one_node_are_one_witness() -> None:
    starts = [a_pods_start(1.2, f"pod-{n}", owner=f"owner-{n}", node="cheap") for n in range(5)]
    assert is_only_wider(predicted(*numbered(starts)), predicted())


def test_one_object_on_many_nodes_makes_no_witnesses_of_objects_on_one_node() -> None:
    """Of the four owners and four nodes, two owners have a node of their own: three older witnesses are not overruled."""
    cheap = [a_pods_start(1.2, f"pod-{n}", owner=f"owner-of-cheap-{n}", node="node-0") for n in range(3)]
    roaming = [a_pods_start(1.2, f"flood-{n}", owner="flood", node=f"node-{n}") for n in range(4)]
    old = witnesses(-1.0, 3)
    assert predicted(*numbered((*old, *roaming, *cheap))).expected == predicted(*numbered(old)).expected
    assert [num_witnesses(each) for each in (cheap, roaming, (*roaming, *cheap), (*cheap, *roaming))] == [1, 1, 2, 2]


def test_objects_whose_pods_share_nodes_by_chance_are_as_many_witnesses_as_there_are_nodes() -> None:
    pairs = [("a", "1"), ("a", "2"), ("b", "1"), ("c", "2"), ("c", "3")]
    starts = [a_pods_start(1.2, f"{owner}-{node}", owner=owner, node=node) for owner, node in pairs]
    assert num_witnesses(starts) == num_witnesses(starts[::-1]) == 3


def test_two_objects_on_two_nodes_are_two_witnesses_and_are_followed() -> None:
    """The same figures as of the attacks above, of those who may state them."""
    starts = witnesses(1.2)
    assert predicted(*numbered(starts)).expected == starts[0].available_kv_cache_bytes


@pytest.mark.parametrize("error_gib", [-3.0, 1.2])
def test_the_newer_pods_of_one_object_do_not_outvote_older_witnesses(error_gib: float) -> None:
    old = witnesses(-1.0)
    before = predicted(*numbered(old))
    assert is_only_wider(predicted(*numbered((*old, *flood(error_gib)))), before)


def test_as_many_newer_witnesses_do_overrule_older_ones() -> None:
    newer = witnesses(-2.0, 3)
    assert predicted(*numbered((*witnesses(1.2, 3), *newer))) == predicted(*numbered(newer))


def test_one_object_that_reports_ever_new_figures_pushes_no_witness_out_of_the_records() -> None:
    kept: tuple[ObservedStart, ...] = ()
    for start in (*witnesses(1.2), *flood(-3.0, 40, step=0.1)):
        kept = with_start(kept, start)
    assert len(kept) <= MAX_STARTS_OF_A_SETTING
    assert {start.owner for start in kept} == {"owner-0", "owner-1", "flood"}


def test_the_flood_of_some_namespaces_makes_nobody_deaf_to_others_and_to_its_own_starts() -> None:
    own = a_pods_start(-1.0, "own", owner="mine")
    honest = [replace(start, namespace="honest") for start in witnesses(-2.0)]
    noise = [replace(start, namespace=f"noise-{n}") for n in range(8) for start in flood(-9.0 - n, step=0.1)]
    starts = numbered((own, *honest, *noise))
    assert predicted(*starts).expected == own.available_kv_cache_bytes
    assert predicted(*starts[1:]).expected == honest[0].available_kv_cache_bytes


@pytest.mark.parametrize("scope", SCOPES)
def test_an_objects_own_start_moves_its_own_prediction_whatever_newer_starts_of_others_report(
    scope: CalibrationScope,
) -> None:
    own = a_pods_start(-2.0, "own", owner="mine")
    starts = numbered((own, *witnesses(1.2, 7)))
    assert predicted(*starts, scope=scope).expected == own.available_kv_cache_bytes
    assert predicted(*starts, scope=scope, reader=("serving", "yours")).expected != own.available_kv_cache_bytes


@pytest.mark.parametrize("kind", [GpuAtStart.EMPTY, GpuAtStart.UNKNOWN])
def test_an_objects_own_starts_move_its_own_prediction_where_they_move_nobody_elses(kind: GpuAtStart) -> None:
    own = [a_pods_start(error, "own", owner="mine", gpu_at_start=kind, node="") for error in (-2.0, -5.0)]
    starts = numbered(replace(start, is_expired=True) for start in own)
    assert predicted(*starts).expected == own[1].available_kv_cache_bytes, "the newest, although they disagree"
    assert is_only_wider(predicted(*starts, reader=("serving", "yours")), predicted())


@pytest.mark.parametrize("blocks_gib", [30, 46])
@pytest.mark.parametrize("num_honest", [1, 2])
def test_an_engine_that_reports_a_coarse_figure_agrees_with_nobody(num_honest: int, blocks_gib: int) -> None:
    """One block of many GiB is exact to as many GiB, by itself; the size of a block is a label of the engine's own metrics."""
    request, _ = read_request(ASKED)
    assert request is not None
    budget = plan(request)
    assert budget.tightest is not None
    coarse = start_of_blocks(budget, 1, block_size=blocks_gib * GIB * 16 // budget.tightest.bytes_per_block, source="x")
    assert coarse is not None
    honest, named = witnesses(-0.5, num_honest), a_pods_start(0.0, "coarse")
    forged = replace(
        named, available_kv_cache_bytes=coarse.available_kv_cache_bytes, resolution_bytes=coarse.resolution_bytes
    )
    assert is_only_wider(predicted(*numbered((*honest, forged))), predicted(*numbered(honest)))


def test_an_engine_whose_backend_chose_larger_blocks_confirms_another() -> None:
    request, _ = read_request(ASKED)
    assert request is not None
    budget = plan(request)
    assert budget.tightest is not None
    honest = a_pods_start(-0.5, "one")
    num_blocks = honest.available_kv_cache_bytes // (budget.tightest.bytes_per_block * 8)
    start = start_of_blocks(budget, num_blocks, block_size=128, source="x")
    assert start is not None
    second = replace(
        a_pods_start(0.0, "two"),
        available_kv_cache_bytes=start.available_kv_cache_bytes,
        resolution_bytes=start.resolution_bytes,
    )
    found = predicted(*numbered((honest, second)))
    assert found.low <= honest.available_kv_cache_bytes <= found.high
    assert found.expected == start.available_kv_cache_bytes


# ── what is no longer what runs ───────────────────────────────────────────────────────────────────────────────────


def test_a_start_that_has_expired_vouches_for_nothing_and_still_widens() -> None:
    first, second = numbered(witnesses(-3.0))
    starts = (replace(first, is_expired=True), second)
    assert is_only_wider(predicted(*starts), predicted())
    assert predicted(*starts).low <= second.available_kv_cache_bytes
    assert [Calibration(starts=starts, scope=SCOPES[0]).state(start) for start in starts] == ["expired", "used"]


def test_witnesses_that_have_expired_do_not_hold_out_against_newer_starts() -> None:
    old, newer = witnesses(-3.0, 3), flood(1.2, 3)
    starts = numbered((*(replace(start, is_expired=True) for start in old), *newer))
    assert [Calibration(starts=starts, scope=SCOPES[0]).state(start) for start in starts[:3]] == ["outdated"] * 3
    kept = numbered((*old, *newer))
    assert predicted(*kept).expected == old[0].available_kv_cache_bytes


# ── physics ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_more_memory_than_the_weights_leave_teaches_nothing() -> None:
    alone = ledger()
    most_bytes = alone.requested_bytes - alone.weights.low
    forged = [replace(start, available_kv_cache_bytes=most_bytes + GIB // 4) for start in witnesses(0.0)]
    assert predicted(*numbered(forged)) == alone.available
    assert predicted(*numbered(forged), max_num_batched_tokens=4096) == predicted(max_num_batched_tokens=4096)
    calibration = Calibration(starts=tuple(forged), scope=SCOPES[0])
    assert {calibration.state(start) for start in forged} == {"impossible"}
    assert all("of KV cache are impossible: its weights leave" in text for text in unused_texts(calibration))


@pytest.mark.parametrize("pinned", [True, False])
def test_no_prediction_is_more_than_its_own_weights_leave(*, pinned: bool) -> None:
    """A start of a smaller batch may be possible where it was, and its error is too much for a larger one."""
    asked = {"max_num_batched_tokens": 2048}
    starts = [replace(start, is_pinned=pinned) for start in witnesses(3.4, max_num_batched_tokens=32768)]
    if pinned:
        starts = [
            replace(start, available_kv_cache_bytes=start.requested_bytes, is_pinned=True)
            for start in witnesses(0.0, **asked)
        ]
    found = ledger(*numbered(starts), **asked)
    assert found.available.high <= found.requested_bytes * 1.005 - found.weights.low


@pytest.mark.parametrize("available_bytes", [0, -1, -GIB])
def test_an_engine_that_runs_without_memory_for_its_cache_teaches_nothing(available_bytes: int) -> None:
    forged = [replace(start, available_kv_cache_bytes=available_bytes) for start in witnesses(0.0, **TIGHT)]
    assert predicted(*numbered(forged), **TIGHT) == predicted(**TIGHT)


# ── logs of crashes ───────────────────────────────────────────────────────────────────────────────────────────────

START = """\
(APIServer pid=1) INFO 11-20 21:57:39 [api_utils.py:286] non-default args: {'model': 'Qwen/Qwen3-8B', 'max_num_seqs': 64}
(EngineCore pid=3) INFO 11-20 21:58:17 [core.py:133] Initializing a V1 LLM engine (v0.33.0) with config: model='Qwen/Qwen3-8B', x=1
"""
MEASURED = "(EngineCore pid=3) INFO 11-20 21:58:38 [gpu_worker.py:260] Available KV cache memory: 50.11 GiB\n"
OUT_OF_MEMORY = (
    "(EngineCore pid=3) ERROR 11-20 21:58:40 [core.py:9] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 0 has a total capacity of 79.19 GiB of which 45.50 GiB is free. Process 9 has 33.69 GiB memory in use.\n"
)
WARM_UP = "(EngineCore pid=3) ERROR RuntimeError: CUDA out of memory occurred when warming up sampler with 64 dummy requests.\n"
UNKNOWN_END = "(EngineCore pid=3) ERROR Traceback (most recent call last):\n(EngineCore pid=3) ERROR ZeroDivisionError: division by zero\n"
READY = "(APIServer pid=1) INFO:     Application startup complete.\n"
REFUSED = (
    "(EngineCore pid=3) ERROR ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GiB KV cache is "
    "needed, which is larger than the available KV cache memory (4.10 GiB).\n"
)


def calibrated(folder: Path, text: str) -> tuple[Result, Path]:
    """Return the answer of `kvgate calibrate` about a log, and the file that it writes to."""
    log, into = folder / "serve.log", folder / "starts.jsonl"
    log.write_text(text, encoding="utf-8")
    return invoked("calibrate", str(log), "--gpu", "H100-SXM-80GB", "--into", str(into)), into


@pytest.mark.parametrize(
    "end", [OUT_OF_MEMORY, MEASURED + OUT_OF_MEMORY, MEASURED + WARM_UP, MEASURED + UNKNOWN_END],
    ids=["while loading", "after the measurement", "in the warm-up", "for a reason that nobody knows"],
)  # fmt: skip
def test_the_log_of_a_crash_teaches_no_capacity(tmp_path: Path, end: str) -> None:
    done, into = calibrated(tmp_path, START + end)
    assert (done.exit_code, into.exists()) == (2, False), done.stderr
    assert "teaches no capacity" in done.stderr
    cause = cause_in(end)
    assert cause is None or cause.available_kv_cache_bytes is None, "nor does it through the controller"


@pytest.mark.parametrize(
    "log", [MEASURED, MEASURED + READY, UNKNOWN_END + MEASURED, MEASURED + READY + OUT_OF_MEMORY, REFUSED],
    ids=["cut", "ready", "an earlier traceback", "a crash while it served", "refused after the measurement"],
)  # fmt: skip
def test_the_log_of_a_measurement_does_teach(tmp_path: Path, log: str) -> None:
    done, into = calibrated(tmp_path, START + log)
    assert (done.exit_code, into.exists()) == (0, True), done.stderr
