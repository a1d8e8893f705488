"""benchmarks/accuracy: what counts as an error, and a page that is not written while a worst start lacks its explanation."""

import pytest

from accuracy import explanations, refit
from accuracy.explanations import Unexplained, worst_of
from accuracy.groups import spread_of
from accuracy.markdown import fixed, signed
from accuracy.planners import compare
from accuracy.predictions import Prediction, grouped, percentile, summarize
from accuracy.starts import GIB, Start, band_of, read_starts
from kvgate.budget import fitted

ROW = {"kind": "dense", "gpu_class": "80", "vllm_version": "0.19.0", "tensor_parallel_size": "1", "model": "test/model"}


def new_prediction(expected: float | None, *, logged: float = 50.0, name: str = "a", **row: str) -> Prediction:
    start = Start(row={**ROW, "id": name, **row}, requested_gib=100.0, weights_gib=None, available_gib=logged)
    low, high = (None, None) if expected is None else (expected - 1, expected + 1)
    why_not = "no formula" if expected is None else ""
    return Prediction(start=start, verdict="Fits", low=low, expected=expected, high=high, why_not=why_not)


def test_an_error_is_a_share_of_the_requested_memory_and_no_answer_is_all_of_it() -> None:
    assert new_prediction(52.0).error_percent == 2.0
    assert new_prediction(None).error_percent == 100.0
    assert summarize([new_prediction(52.0), new_prediction(None)]).bias_gib == 2.0


def test_an_overdrawn_budget_counts_as_no_memory_on_both_sides() -> None:
    assert new_prediction(-3.0, logged=-1.0).error_gib == 0.0
    assert new_prediction(-3.0, logged=-1.0).is_inside


@pytest.mark.parametrize(("logged", "inside"), [(51.0, True), (51.005, True), (51.02, False), (48.99, False)])
def test_the_interval_holds_a_figure_that_the_log_rounded(logged: float, *, inside: bool) -> None:
    assert new_prediction(50.0, logged=logged).is_inside is inside


def test_a_worst_start_without_an_explanation_stops_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanations, "read_explanations", dict)
    with pytest.raises(Unexplained, match=r"a \(test/model, \+2.00 GiB, predicted too much\) has no entry"):
        worst_of([new_prediction(52.0)])


def test_an_explanation_of_the_other_direction_stops_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"a": {"predicted": "too little", "why": "a workspace that is not counted"}}
    monkeypatch.setattr(explanations, "read_explanations", lambda: texts)
    with pytest.raises(Unexplained, match="explains why it is predicted too little"):
        worst_of([new_prediction(52.0)])
    assert worst_of([new_prediction(48.0)])[0].why == "a workspace that is not counted"


def test_a_start_without_an_answer_explains_itself() -> None:
    assert worst_of([new_prediction(None)])[0].why == "no answer: no formula"


def test_a_planner_is_compared_on_the_starts_that_both_answer() -> None:
    group = [new_prediction(51.0, name="a"), new_prediction(51.0, name="b"), new_prediction(51.0, name="c")]
    both = compare("peer 1", {"a": 54.0, "b": 46.0, "c": 54.0}, [*group, new_prediction(None, name="d")])
    assert both is not None
    assert (both.starts, both.answered, both.ratio) == (4, 3, 0.25)
    assert compare("peer 1", {"a": 54.0, "b": 46.0}, group) is None


def test_one_source_left_out_shows_how_much_it_carries() -> None:
    groups = {"many": [new_prediction(51.0)] * 5, "one": [new_prediction(60.0)], "two": [new_prediction(52.0)] * 2}
    spread = spread_of(groups)
    assert (spread.median_of_medians, spread.lowest, spread.highest) == (2.0, 1.0, 2.0)


def test_classes_stand_in_the_order_of_their_numbers() -> None:
    classes = ("160+", "80", "16-32")
    groups = grouped([new_prediction(50.0, gpu_class=name) for name in classes], heading="GPU memory")
    assert list(groups) == ["16-32 GiB", "80 GiB", "160+ GiB"]


@pytest.mark.parametrize(
    ("version", "band"),
    [("0.8.5", "up to 0.10"), ("0.19.1", "0.11 to 0.19"), ("0.27.1", "0.27 and later"), ("", "not stated")],
)
def test_a_release_belongs_to_a_band(version: str, band: str) -> None:
    assert band_of(version) == band


def test_figures_are_rounded_without_a_negative_zero() -> None:
    assert [fixed(-0.001), signed(0.004), signed(1.006), signed(-1.0)] == ["0.00", "0.00", "+1.01", "-1.00"]
    assert percentile([1.0, 2.0, 3.0], 0.75) == 2.5


def test_constants_of_other_sources_move_a_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two logs of one source say 0.25 GiB for kernels and graphs, a third of another source says 0.45."""
    ours = fitted.KERNELS_AND_GRAPHS.interval.expected / GIB
    group = [new_prediction(50.0, name=name, source=name[0]) for name in ("a1", "a2", "b1")]
    logged = {"a1": 0.25, "a2": 0.25, "b1": 0.45}
    monkeypatch.setattr(
        refit,
        "reading_of",
        lambda start: refit.Reading(start=start, kernels="KERNELS_AND_GRAPHS", links="", logged_gib=logged[start.id]),
    )
    moved = refit.refitted(group, [p.start for p in group], lambda start: start.source)
    assert [p.expected for p in moved] == pytest.approx([50 + ours - 0.45, 50 + ours - 0.45, 50 + ours - 0.25])


def test_every_constant_is_found_in_the_ledger_it_went_into() -> None:
    names = {part for start in read_starts() if (reading := refit.reading_of(start)) for part in reading.parts}
    assert {"KERNELS", "KERNELS_AND_GRAPHS", "NCCL_PCIE", "NCCL_PCIE_FIRST_USE"} <= names
