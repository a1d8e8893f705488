"""Today's prediction beside the admitted one: when it differs, what it says, and when it takes its place."""

from typing import Any

import pytest
from msgspec.structs import replace

from kvgate.api.conditions import ConditionType, Reason
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget import Calibration, CalibrationScope, Interval
from kvgate.controller.decision import assess_owner
from kvgate.judgement.assessment import Assessment
from kvgate.rendering.admission import Admitted, RecordedFigures, admitted_now
from kvgate.rendering.recalibration import MAX_RECALIBRATIONS, outdated, recalibrated, recalibrated_from, taking_over
from kvgate.rendering.workload import PodFigures, figures_of_verdict
from support.manifests import a_document, an_owner
from support.starts import a_start

ADJUST = {"policy": "Adjust", "adjust": {"knobs": ["MaxModelLen"]}, "recalibrate": True}
TWELVE: dict[str, Any] = {"vllm": {"maxNumSeqs": 12}, "admission": ADJUST}


def judged(error_gib: float | None, **spec: Any) -> tuple[InferenceDeployment, Assessment, PodFigures, int]:
    """A judgement after a start that left so much more than the formulas say."""
    owner = an_owner(**spec)
    starts = (
        ()
        if error_gib is None
        else (replace(a_start(error_gib, max_num_seqs=owner.spec.vllm.max_num_seqs), revision=7),)
    )
    found = assess_owner(owner, "", Calibration(starts=starts, scope=CalibrationScope.NAMESPACE))
    figures = figures_of_verdict(owner, found.assessment, found.accelerator)
    assert isinstance(figures, PodFigures)
    return owner, found.assessment, figures, found.calibration_revision


def admitted(error_gib: float | None, **spec: Any) -> Admitted:
    owner, assessment, figures, revision = judged(error_gib, **spec)
    return admitted_now(a_document(**spec), owner, assessment, figures, calibration_revision=revision, config=None)


def shown(was: float | None, now: float | None, previous: object = None) -> dict[str, Any] | None:
    then, today = judged(None, **TWELVE), judged(now, **TWELVE)
    return recalibrated(today[0], admitted(was, **TWELVE), then[1], today[1], previous)


@pytest.mark.parametrize(
    ("was", "now", "is_shown"),
    [(None, None, False), (-1, -1.3, False), (-1, -1.6, True), (-1, -2, True), (-1, None, True), (None, -1, True)],
)
def test_it_is_shown_where_it_differs_by_more_than_a_hundredth(was: float, now: float, *, is_shown: bool) -> None:
    assert (shown(was, now) is not None) == is_shown


def test_what_is_shown_stays_until_it_is_wrong_by_as_much_again() -> None:
    first = shown(None, -2)
    assert first is not None
    assert shown(None, -2.3, first) == first
    later = shown(None, -3, first)
    assert later is not None
    assert later["capacityTokens"] < first["capacityTokens"]
    assert shown(None, None, later) is None, "and goes when nothing differs"


@pytest.mark.parametrize(("error_gib", "is_shown"), [(-0.4, False), (0.4, False), (-0.8, True), (0.8, True)])
def test_a_size_alone_is_shown_from_one_percent_on(error_gib: float, *, is_shown: bool) -> None:
    """Of some 56 GiB."""
    spec = {"vllm": {"maxNumSeqs": 4, "maxModelLen": 32768}}
    owner, today, *_ = judged(error_gib, **spec)
    found = recalibrated(owner, admitted(None, **spec), judged(None, **spec)[1], today, None)
    assert (found is not None) == is_shown
    assert found is None or "effective" not in found


@pytest.mark.parametrize(
    ("values", "is_shown"),
    [
        ({}, False), ({"max_num_seqs": 11}, True), ({"max_num_seqs": None}, True), ({"max_model_len": None}, True),
        ({"kv_cache_dtype": "fp8"}, True), ({"gpu_memory_utilization": "0.5"}, True),
    ],
    ids=str,
)  # fmt: skip
def test_other_values_than_those_that_run_are_shown_however_near_they_are(
    values: dict[str, Any], *, is_shown: bool
) -> None:
    stands, (owner, today, *_) = admitted(None, **TWELVE), judged(None, **TWELVE)
    runs = stands.record.effective.model_copy(update=values)
    stands = replace(stands, record=stands.record.model_copy(update={"effective": runs}))
    found = recalibrated(owner, stands, today, today, None)
    assert (found is not None) == is_shown
    if found is not None:
        assert found["effective"]["maxNumSeqs"] == 12
        assert recalibrated(owner, stands, today, today, found) == found, "and stay as they are shown"


def test_what_is_shown_goes_later_than_it_comes() -> None:
    first = shown(-1, -1.6)
    assert first is not None
    assert shown(-1, -1.4) is None, "it would not come"
    assert shown(-1, -1.4, first) == first, "but it does not go either"
    assert shown(-1, -1.1, first) is None


@pytest.mark.parametrize("previous", [None, [], "x", {"verdict": "Fits"}, {"capacityTokens": "many"}])
def test_what_somebody_wrote_instead_is_nothing(previous: object) -> None:
    assert shown(None, -2, previous) == shown(None, -2)


def test_the_condition_exists_from_the_first_time_on() -> None:
    owner, stands = an_owner(**TWELVE), admitted(None, **TWELVE)
    assert outdated(None, owner, stands, existed=False) == []
    ((kind, status, reason, _),) = outdated(None, owner, stands, existed=True)
    assert (kind, status, reason) == (ConditionType.PREDICTION_OUTDATED, False, Reason.AS_ADMITTED)


def taken(was: float | None, now: float | None, *, times: int = 0, **spec: Any) -> PodFigures | None:
    stands = admitted(was, **spec)
    stands = replace(stands, record=stands.record.model_copy(update={"recalibrations": times}))
    owner, today, figures, revision = judged(now, **spec)
    return taking_over(owner, stands, today, figures, revision=revision)


def test_a_better_prediction_takes_over_and_a_lost_or_equal_one_does_not() -> None:
    figures = taken(None, -2, **TWELVE)
    assert figures is not None
    assert figures.effective.max_model_len == 32848
    assert taken(-2, None, **TWELVE) is None, "starts are lost"
    assert taken(-2, -2.1, **TWELVE) is None, "nothing differs"


def test_pods_are_replaced_a_few_times_and_figures_as_often_as_they_move() -> None:
    assert taken(None, -2, times=MAX_RECALIBRATIONS - 1, **TWELVE) is not None
    assert taken(None, -2, times=MAX_RECALIBRATIONS, **TWELVE) is None
    assert taken(None, -2, times=MAX_RECALIBRATIONS, admission={"recalibrate": True}) is not None, "no pod is replaced"


def test_where_no_pod_is_replaced_neither_its_gpu_nor_its_time_moves() -> None:
    spec: dict[str, Any] = {"admission": {"recalibrate": True}}
    stands = admitted(None, **spec)
    owner, today, figures, revision = judged(-2, **spec)
    other = replace(figures, load_seconds=1234, placement=figures.placement.model_copy(update={"gpu_labels": ("X",)}))
    found = taking_over(owner, stands, today, other, revision=revision)
    assert found is not None
    assert (found.load_seconds, found.placement) == (stands.record.load_seconds, stands.record.placement)
    kept = replace(stands, template_digest="d")
    after = recalibrated_from(admitted(-2, **spec), kept)
    assert (after.template_digest, after.record.recalibrations) == ("d", None)
    moved = recalibrated_from(admitted(-2, **TWELVE), admitted(None, **TWELVE))
    assert (moved.template_digest, moved.record.recalibrations) == (None, 1)


def test_figures_alone_are_told_apart_from_a_verdict_that_moved() -> None:
    owner = an_owner(**TWELVE)
    capacity = {"admission": {"recalibrate": True}}
    stands, then, today = admitted(None, **capacity), judged(None, **capacity), judged(-2, **capacity)
    document = recalibrated(today[0], stands, then[1], today[1], None)
    assert document is not None
    ((_, status, reason, message),) = outdated(document, owner, stands, existed=False)
    assert (document["verdict"], status, reason) == ("Fits", True, Reason.FIGURES_MOVED)
    assert "would be rendered" not in message
    for change in ({"verdict": "MayNotFit"}, {"accepted": "Unknown"}):
        ((_, _, moved, _),) = outdated({**document, **change}, owner, stands, existed=False)
        assert moved is Reason.VERDICT_MOVED


@pytest.mark.parametrize(
    ("revision", "recorded", "is_taken"), [(0, None, True), (7, 7, True), (8, 7, True), (6, 7, False)]
)
def test_a_prediction_that_knows_fewer_starts_does_not_take_over(
    revision: int, recorded: int | None, *, is_taken: bool
) -> None:
    stands = admitted(None, **TWELVE)
    assert stands.prediction is not None
    record = stands.record.model_copy(update={"calibration_revision": recorded})
    figures_then = RecordedFigures({**stands.prediction.figures, "capacity_tokens": Interval.exactly(1000)})
    stands = replace(stands, record=record, prediction=replace(stands.prediction, figures=figures_then))
    owner, today, figures, _ = judged(None, **TWELVE)
    assert (taking_over(owner, stands, today, figures, revision=revision) is not None) is is_taken
