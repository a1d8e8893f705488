"""benchmarks/accuracy: what counts as an error, and a page that is not written while a worst start lacks its explanation."""

import pytest

from accuracy import explanations
from accuracy.explanations import Unexplained, explained, worst_of
from accuracy.groups import by_source
from accuracy.markdown import fixed, signed
from accuracy.planners import compare
from accuracy.predictions import Prediction, grouped, percentile, summarize
from accuracy.starts import Start, band_of

ROW = {
    "kind": "dense",
    "gpu_class": "80",
    "vllm_version": "0.19.0",
    "tensor_parallel_size": "1",
    "pipeline_parallel_size": "",
    "model": "test/model",
    "source": "a page",
}


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


def reason(**fields: object) -> list[dict[str, object]]:
    return [{"why": "a workspace that is not counted", "predicted": "too much", "starts": ["a"], **fields}]


@pytest.mark.parametrize(
    ("reasons", "problem"),
    [
        ([], r"a \(test/model, \+2.00 GiB, predicted too much\) has no reason"),
        (reason(predicted="too little", not_understood=True), "explains why it is predicted too little"),
        (reason(), "nothing that can be checked"),
        (reason(line="non_torch"), "the line non_torch explains 0.5 GiB of it"),
        (reason(told={"sampler": "flashinfer"}, within_gib=0.5), "the error is still 2.00 GiB"),
    ],
)
def test_a_worst_start_without_a_reason_that_holds_stops_the_page(
    reasons: list[dict[str, object]], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanations, "read_explanations", lambda: reasons)
    monkeypatch.setattr(explanations, "_error_of_line", lambda prediction, line: 0.5)
    monkeypatch.setattr(explanations, "predict", lambda start, told: new_prediction(52.0))
    with pytest.raises(Unexplained, match=problem):
        explained([new_prediction(52.0)])


def test_a_reason_is_numbered_where_it_is_first_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = {"why": "unknown", "predicted": "too much", "not_understood": True}
    told = {"why": "sampler", "predicted": "too little", "told": {"sampler": "flashinfer"}, "within_gib": 0.5}
    monkeypatch.setattr(
        explanations, "read_explanations", lambda: [{**unknown, "starts": ["a", "c"]}, {**told, "starts": ["b", "d"]}]
    )
    monkeypatch.setattr(explanations, "predict", lambda start, told: new_prediction(50.1))
    found, reasons = explained(
        [new_prediction(47.0, name="b"), new_prediction(52.0, name="a"), new_prediction(51.0, name="c")]
    )
    assert [(each.prediction.start.id, each.number) for each in found] == [("b", 1), ("a", 2), ("c", 2)]
    assert [each["why"] for each in reasons] == ["sampler", "unknown"]


def test_the_worst_are_shares_of_the_requested_memory() -> None:
    group = [new_prediction(50.0 + error, name=str(error)) for error in range(explanations.HOW_MANY + 2)]
    assert [each.start.id for each in worst_of(group)][:2] == ["41", "40"]
    assert len(worst_of(group)) == explanations.HOW_MANY


def test_a_planner_is_compared_on_the_starts_that_both_answer() -> None:
    group = [new_prediction(51.0, name="a"), new_prediction(51.0, name="b"), new_prediction(51.0, name="c")]
    both = compare("peer 1", {"a": 54.0, "b": 46.0, "c": 54.0}, [*group, new_prediction(None, name="d")])
    assert both is not None
    assert (both.starts, both.answered, both.ratio) == (4, 3, 0.25)
    assert compare("peer 1", {"a": 54.0, "b": 46.0}, group) is None


def test_a_source_counts_once_and_with_the_median_of_its_starts() -> None:
    many = [new_prediction(51.0, source="a")] * 4 + [new_prediction(60.0, source="a")]
    found = by_source([*many, new_prediction(53.0, source="b"), new_prediction(55.0, source="c")])
    assert (found.sources, found.starts, found.median_percent) == (3, 7, 3.0)
    assert found.inside == pytest.approx(0.8 / 3)
    assert found.p90_percent == pytest.approx(4.6)
    assert found.width_percent == 2.0


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("https://github.com/a/b/blob/HEAD/log.txt", "https://github.com/a/b"),
        ("https://github.com/a/b/issues/12#issuecomment-3", "https://github.com/a/b/issues/12"),
        ("https://example.org/post?page=2", "https://example.org/post"),
        ("public log, index id 1", "public log, index id 1"),
    ],
)
def test_a_source_is_a_repository_a_thread_or_a_page(address: str, source: str) -> None:
    assert new_prediction(50.0, source=address).start.source == source


def test_classes_stand_in_the_order_of_their_numbers() -> None:
    classes = ("160+", "80", "140", "16-32")
    groups = grouped([new_prediction(50.0, gpu_class=name) for name in classes], heading="GPU memory")
    assert list(groups) == ["16-32 GiB", "80 GiB", "140 and more GiB"]


@pytest.mark.parametrize(
    ("version", "band"),
    [("0.8.5", "up to 0.10"), ("0.19.1", "0.11 to 0.19"), ("0.27.1", "0.27 and later"), ("", "not stated")],
)
def test_a_release_belongs_to_a_band(version: str, band: str) -> None:
    assert band_of(version) == band


def test_figures_are_rounded_without_a_negative_zero() -> None:
    assert [fixed(-0.001), signed(0.004), signed(1.006), signed(-1.0)] == ["0.00", "0.00", "+1.01", "-1.00"]
    assert percentile([1.0, 2.0, 3.0], 0.75) == 2.5
