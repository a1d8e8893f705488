"""benchmarks/accuracy: the rule by which constants follow from logs, and starts predicted without their own source."""

import pytest
from msgspec.structs import replace

from accuracy import derivation
from accuracy.derivation import derive
from accuracy.predictions import predict
from accuracy.readings import Reading, constants, figures_of, readings, replaced, used_constants
from accuracy.starts import GIB, Start, read_starts
from accuracy.unseen import left_out
from kvgate.budget import Interval
from kvgate.budget.ground import fitted
from kvgate.judgement.what_if import read_request


def new_reading(
    source: str,
    value_gib: float,
    *,
    constant: str = "KERNELS",
    is_sum: bool = False,
    is_error: bool = False,
    **others: float,
) -> Reading:
    now = 0 if is_error else constants()[constant].interval.expected
    start = Start(
        row={"id": f"{source} {value_gib}", "source": source}, requested_gib=80.0, weights_gib=None, available_gib=None
    )
    return Reading(
        constant=constant,
        start=start,
        is_sum=is_sum,
        is_error=is_error,
        residual=value_gib * GIB - now,
        others=others,
    )


def in_gib(interval: Interval) -> list[float]:
    return [round(end / GIB, 3) for end in (interval.low, interval.expected, interval.high)]


def test_a_source_counts_once_however_many_starts_it_has() -> None:
    many = [new_reading("a", 0.1)] * 9
    found = derive([*many, new_reading("b", 0.3), new_reading("c", 0.3)])["KERNELS"]
    assert found.interval.expected == pytest.approx(0.3 * GIB, abs=2)
    assert found.sources == 3


@pytest.mark.parametrize(
    ("values", "interval"),
    [
        ([0.2], [0.0, 0.2, 0.4]),  # half of the value on each side, and half of 0.2 GiB
        ([0.2, 0.4], [0.1, 0.3, 0.5]),  # extremes, twice as far away
        ([0.1 * count for count in range(1, 11)], [0.01, 0.55, 1.09]),
        ([0.1, 0.9], [0.0, 0.5, 1.3]),  # a use of memory is never below zero
        ([0.5 + 0.01 * count for count in range(40)], [0.522, 0.695, 0.868]),  # three of 40 are left out on each side
    ],
)
def test_fewer_sources_make_a_wider_interval(values: list[float], interval: list[float]) -> None:
    found = derive([new_reading(str(index), value) for index, value in enumerate(values)])["KERNELS"]
    assert in_gib(found.interval) == pytest.approx(interval, abs=0.002)


def test_what_is_left_of_the_sum_counts_only_where_few_logs_state_the_line() -> None:
    sums = [new_reading("s", 0.9, is_sum=True)]
    few = [new_reading(str(index), 0.1) for index in range(derivation.MIN_SOURCES - 1)]
    assert derive([*few, *sums])["KERNELS"].sources == derivation.MIN_SOURCES
    assert derive([*few, new_reading("x", 0.1), *sums])["KERNELS"].sources == derivation.MIN_SOURCES


def test_a_constant_is_read_from_figures_in_which_only_earlier_ones_stand_beside_it() -> None:
    first, second = [name for name, constant in constants().items() if not constant.is_guess][:2]
    beside_second, beside_first = (
        new_reading("a", 1.0, **{second: 1.0}),
        new_reading("b", 1.0, constant=second, **{first: 1.0}),
    )
    assert first not in derive([replace_constant(beside_second, first)])
    alone = replace_constant(new_reading("c", 0.0), first)
    raised = derive([alone, beside_first])[second].interval.expected
    # the first constant is found to be zero, so all that it was thought to take belongs to the second
    assert raised == pytest.approx(GIB + constants()[first].interval.expected, abs=2)


def replace_constant(reading: Reading, name: str) -> Reading:
    now = constants()[name].interval.expected - constants()[reading.constant].interval.expected
    return Reading(
        constant=name,
        start=reading.start,
        is_sum=reading.is_sum,
        is_error=reading.is_error,
        residual=reading.residual - now,
        others=reading.others,
    )


def test_the_error_of_a_formula_is_the_same_on_both_sides_and_never_below_the_scatter_of_starts() -> None:
    def errors(*values: float) -> Interval:
        found = [
            new_reading(str(index), value, constant="WEIGHTS_ERROR", is_error=True)
            for index, value in enumerate(values)
        ]
        return derive(found)["WEIGHTS_ERROR"].interval

    assert in_gib(errors(*[-0.5] * 5)) == [-0.06, 0.0, 0.06]
    assert in_gib(errors(*[0.2] * 5)) == [-0.28, 0.0, 0.28]


def test_few_sources_cannot_say_how_wrong_a_formula_may_be() -> None:
    found = [new_reading(name, 0.2, constant="WEIGHTS_ERROR", is_error=True) for name in "abc"]
    assert "WEIGHTS_ERROR" not in derive(found)


def test_no_end_is_below_that_of_the_memory_which_a_constant_includes() -> None:
    """Three logs may show less of the whole by chance than many show of its part."""
    part = [new_reading(str(index), value) for index, value in enumerate((0.1, 0.4))]
    whole = [new_reading(source, 0.2, constant="KERNELS_AND_GRAPHS_SMALL") for source in "abc"]
    alone, found = derive(whole)["KERNELS_AND_GRAPHS_SMALL"].interval, derive([*part, *whole])
    assert in_gib(alone) == [0.1, 0.2, 0.3]
    assert found["KERNELS"].interval.high > alone.high
    assert in_gib(found["KERNELS_AND_GRAPHS_SMALL"].interval) == [0.1, 0.25, in_gib(found["KERNELS"].interval)[2]]


def test_a_guess_stays_as_it_is() -> None:
    guess = next(name for name, constant in constants().items() if constant.is_guess)
    assert guess not in derive([new_reading("a", 1.0, constant=guess)])


@pytest.fixture(scope="module")
def start() -> Start:
    return next(
        start for start in read_starts() if start.row["non_torch_gib"] and start.row["tensor_parallel_size"] == "1"
    )


def test_a_replaced_constant_reaches_the_answer_and_is_put_back(start: Start) -> None:
    before = predict(start).expected
    with replaced({"KERNELS": Interval.exactly(3 * GIB), "KERNELS_AND_GRAPHS": Interval.exactly(3 * GIB)}):
        inside = predict(start).expected
    assert before is not None
    assert inside is not None
    assert before - inside > 2
    assert predict(start).expected == before


def test_the_constants_of_a_start_are_watched(start: Start) -> None:
    request, _ = read_request(start.request())
    assert request is not None
    used = used_constants(request)
    assert {"WEIGHTS_ERROR", "ACTIVATION_ERROR"} <= used < constants().keys()
    assert figures_of(request) is not None
    assert all(getattr(fitted, name) is constant for name, constant in constants().items())


def test_a_log_that_states_a_line_is_read_for_its_constant(start: Start) -> None:
    found = [reading for reading in readings([start]) if reading.constant.startswith("KERNELS") and not reading.is_sum]
    assert len(found) == 1
    value = constants()[found[0].constant].interval.expected + found[0].residual
    if not found[0].others:
        assert value == pytest.approx(float(start.row["non_torch_gib"]) * GIB, abs=2)


def test_a_source_is_predicted_without_its_own_logs() -> None:
    """Two sources of one setting: each gets the other's constant."""
    starts = [start for start in read_starts() if start.is_scored_for("kv")]
    first = starts[0]
    second = next(each for each in starts if each.source != first.source)
    name = next(iter(used_by(first)))
    told = [
        replace_start(new_reading("x", 5.0, constant=name), first),
        replace_start(new_reading("y", 1.0, constant=name), second),
    ]
    own, others = left_out([first], told)[0].expected, predict(first).expected
    with replaced({name: derive(told[1:])[name].interval}):
        assert own == predict(first).expected
    assert own != others


def used_by(start: Start) -> set[str]:
    request, _ = read_request(start.request())
    assert request is not None
    return {name for name in used_constants(request) if name.startswith("KERNELS")}


def replace_start(reading: Reading, start: Start) -> Reading:
    return Reading(
        constant=reading.constant,
        start=start,
        is_sum=reading.is_sum,
        is_error=reading.is_error,
        residual=reading.residual,
        others=reading.others,
    )


def test_a_share_has_its_own_least_error() -> None:
    name = next(
        name
        for name, constant in constants().items()
        if constant.unit.startswith("thousandths") and not constant.is_guess
    )
    found = derive([new_reading(source, -1.0, constant=name, is_error=True) for source in "abcde"])[name]
    assert found.interval.high == derivation.MIN_SHARE
    assert replace(constants()[name], interval=found.interval).of(1000).high == derivation.MIN_SHARE
