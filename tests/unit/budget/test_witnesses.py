"""Which starts are believed: environments, neighbours on the GPU, newer starts that replace older ones, and what somebody decided."""

import pytest
from msgspec.structs import replace

from kvgate.budget.answers.answer import plan
from kvgate.budget.ground.interval import Interval
from kvgate.budget.observed.calibration import NOTHING_OBSERVED, Calibration, CalibrationScope, StartState
from kvgate.budget.observed.starts import GpuAtStart, ObservedStart
from kvgate.budget.observed.witnesses import HEALING_STARTS, outdated
from kvgate.judgement.what_if import read_request
from support.starts import ASKED, a_pods_start, a_start

HERE = ("serving", "mine")
NEW_IMAGE = "docker.io/vllm/vllm-openai@sha256:" + "2" * 64


def available(*starts: ObservedStart, image_digest: str = "", **changes: object) -> Interval:
    request, _ = read_request({**ASKED, **changes})
    assert request is not None
    known = Calibration(starts=starts, scope=CalibrationScope.NAMESPACE) if starts else NOTHING_OBSERVED
    stage = plan(replace(request, calibration=known.seen_from(*HERE), image_digest=image_digest)).tightest
    assert stage is not None
    return stage.available


def numbered(*starts: ObservedStart) -> tuple[ObservedStart, ...]:
    return tuple(replace(start, revision=number) for number, start in enumerate(starts, start=1))


def pods(error_gib: float, *names: str, **more: object) -> list[ObservedStart]:
    return [replace(a_pods_start(error_gib, name), **more) for name in names]


def is_only_wider(interval: Interval, than: Interval | None = None) -> bool:
    than = than or available()
    return interval.expected == than.expected and interval.low <= than.low and interval.high >= than.high


# ── the same engine with another max_num_seqs ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", ["0.11.0", "0.19.0", "0.28.0", "0.33.0"])
@pytest.mark.parametrize("observed", [4, 64, 300])
def test_policy_adjust_is_not_wrong_a_second_time_with_another_max_num_seqs(version: str, observed: int) -> None:
    """A real engine takes 3 GiB more than the formulas state, whatever its max_num_seqs: this was 14 % of the L40S' KV cache."""
    engine: dict[str, object] = {"gpu": "L40S-48GB", "vllm_version": version, "max_model_len": 8192}
    starts = pods_of_setting(-3.0, **engine, max_num_seqs=observed)
    for asked in (4, 23, 64, 256, 512):
        alone = available(**engine, max_num_seqs=asked)
        corrected = available(*starts, **engine, max_num_seqs=asked)
        truth = alone.expected - 3 * 2**30
        assert abs(corrected.expected - truth) <= 2**20
        assert corrected.low <= truth <= corrected.high


def pods_of_setting(error_gib: float, **changes: object) -> list[ObservedStart]:
    return [a_pods_start(error_gib, name, **changes) for name in ("a", "b")]


def test_the_difference_that_the_formulas_carry_has_its_doubt() -> None:
    starts = pods_of_setting(-1.0, max_num_seqs=64, enforce_eager=True)
    same, other = (available(*starts, max_num_seqs=seqs, enforce_eager=True) for seqs in (64, 512))
    assert other.high - other.low > same.high - same.low


def test_starts_with_several_max_num_seqs_agree_if_they_lack_the_same() -> None:
    starts = numbered(a_pods_start(-3.0, "a", max_num_seqs=64), a_pods_start(-3.0, "b", max_num_seqs=512))
    assert not outdated(starts)
    assert available(*starts, max_num_seqs=128).expected == available(max_num_seqs=128).expected - 3 * 2**30


# ── GPUs that others used ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("occupied", [GpuAtStart.SHARED, GpuAtStart.UNKNOWN])
def test_less_than_the_formulas_explain_on_a_gpu_that_may_have_a_neighbour_only_widens(occupied: GpuAtStart) -> None:
    starts = pods(-3.0, "a", "b", "c", gpu_at_start=occupied)
    interval = available(*starts)
    assert is_only_wider(interval)
    assert interval.low <= starts[0].available_kv_cache_bytes
    calibration = Calibration(starts=tuple(starts), scope=CalibrationScope.NAMESPACE)
    assert {calibration.state(start) for start in starts} == {StartState.SHARED}


@pytest.mark.parametrize("error_gib", [-0.05, 0.0, 1.2], ids=["as expected", "exact", "more"])
def test_what_no_neighbour_can_cause_counts_although_no_log_was_read(error_gib: float) -> None:
    starts = pods(error_gib, "a", "b", gpu_at_start=GpuAtStart.UNKNOWN)
    assert available(*starts).expected == starts[0].available_kv_cache_bytes


def test_an_objects_own_start_beside_a_neighbour_widens_its_next_verdict_alone() -> None:
    assert is_only_wider(available(*pods(-3.0, "a", owner="mine", gpu_at_start=GpuAtStart.SHARED)))


# ── images, drivers, products ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "change",
    [{"image": NEW_IMAGE}, {"driver": "580.95"}, {"product": "NVIDIA-H100-PCIe"}],
    ids=["image", "driver", "product"],
)
def test_one_pod_of_another_environment_unsettles_nothing_and_two_are_followed(change: dict[str, str]) -> None:
    old, fresh = pods(-3.0, "a", "b"), pods(1.2, "c", "d", **change)
    before = available(*numbered(*old))
    assert is_only_wider(available(*numbered(*old, fresh[0])), before)
    after = available(*numbered(*old, *fresh))
    assert after.expected == fresh[0].available_kv_cache_bytes
    assert after.low <= old[0].available_kv_cache_bytes, "the other environment is a neighbour that widens"


def test_one_pod_of_each_of_two_environments_are_no_two_witnesses() -> None:
    assert is_only_wider(available(*numbered(*pods(-3.0, "a"), *pods(-3.0, "b", image=NEW_IMAGE))))


def test_an_image_that_is_named_by_its_digest_follows_its_own_starts() -> None:
    starts = numbered(*pods(-3.0, "a", "b"), *pods(1.2, "c", "d", image=NEW_IMAGE))
    old, new = starts[0], starts[2]
    assert available(*starts, image_digest=old.image_digest).expected == old.available_kv_cache_bytes
    assert available(*starts, image_digest=new.image_digest).expected == new.available_kv_cache_bytes
    assert is_only_wider(available(*starts, image_digest="sha256:" + "3" * 64))


# ── newer starts ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_disagreement_heals_after_some_newer_starts_that_agree() -> None:
    wrong, right = pods(-5.0, "a", "b"), pods(1.0, *"cdefg")
    for count in range(HEALING_STARTS):
        starts = numbered(*wrong, *right[:count])
        assert available(*starts).low <= wrong[0].available_kv_cache_bytes
    healed = numbered(*wrong, *right[:HEALING_STARTS])
    assert available(*healed) == available(*right[:HEALING_STARTS])
    calibration = Calibration(starts=healed, scope=CalibrationScope.NAMESPACE)
    assert [calibration.state(start) for start in healed] == ["outdated"] * 2 + ["used"] * HEALING_STARTS


def test_the_restarts_of_one_pod_replace_nothing() -> None:
    storm = [a_pods_start(1.2, "storm")] * 20
    starts = numbered(*pods(-3.0, "a", "b"), *storm)
    assert available(*starts).expected == starts[0].available_kv_cache_bytes


def test_newer_starts_weigh_more() -> None:
    starts = numbered(*(a_pods_start(error, name) for error, name in ((0.02, "a"), (0.0, "b"), (0.04, "c"))))
    assert available(*starts).expected == starts[2].available_kv_cache_bytes
    assert available(*(replace(start, revision=0) for start in starts)).expected == starts[0].available_kv_cache_bytes


def test_in_a_file_too_newer_starts_replace_older_ones() -> None:
    starts = numbered(a_start(-5.0), a_start(1.0), a_start(1.01), a_start(1.02))
    calibration = Calibration(starts=starts)
    assert [calibration.state(start) for start in starts] == ["outdated", "used", "used", "used"]


# ── decisions of people ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_pinned_start_is_followed_whatever_others_report() -> None:
    pinned = replace(a_pods_start(-3.0, "a"), is_pinned=True, gpu_at_start=GpuAtStart.SHARED)
    starts = numbered(pinned, *pods(1.2, *"bcdef"))
    assert available(*starts).expected == pinned.available_kv_cache_bytes


def test_a_dropped_start_counts_for_nothing() -> None:
    dropped = replace(a_pods_start(-3.0, "a"), is_dropped=True)
    assert available(dropped) == available()
    assert Calibration(starts=(dropped,)).state(dropped) is StartState.DROPPED
