"""Lengths of requests as people know them; every figure is counted by hand."""

from fractions import Fraction
from math import comb

import pytest

from kvgate.budget import Guarantee, plan
from kvgate.budget.kv_cache.capacity import sum_of_independent
from kvgate.planning.request_lengths import MOST_LENGTHS, equal_requests, lengths_of, peak_of, shares_of, together
from kvgate.vllm.values import UnusableValue
from support.builders import catalogue_shape, new_request, new_workload


@pytest.mark.parametrize(
    ("points", "mean", "shares"),
    [
        (
            [(Fraction(1, 2), 800), (Fraction(1), 6000)],
            None,
            [(Fraction(1, 2), 800), (Fraction(1, 2), 6000)],
        ),  # the upper end of each part
        ([(Fraction(1), 101)], Fraction(21), [(Fraction(4, 5), 1), (Fraction(1, 5), 101)]),  # 1 × 4/5 + 101 × 1/5 = 21
        # 1/2 at 1 and 1/2 at 101 are 51 on average; 2.5 more lift 1/20 of the longer half by 50 to 151
        (
            [(Fraction(1, 2), 101), (Fraction(1), 151)],
            Fraction(107, 2),
            [(Fraction(1, 2), 1), (Fraction(9, 20), 101), (Fraction(1, 20), 151)],
        ),
        ([(Fraction(1, 2), 101), (Fraction(1), 151)], Fraction(126), [(Fraction(1, 2), 101), (Fraction(1, 2), 151)]),
    ],
)
def test_what_is_not_known_counts_against_the_promise_as_far_as_the_mean_allows(
    points: list[tuple[Fraction, int]], mean: Fraction | None, shares: list[tuple[Fraction, int]]
) -> None:
    assert shares_of(points, mean) == shares


@pytest.mark.parametrize(
    ("points", "mean", "words"),
    [
        ([(Fraction(1, 2), 800), (Fraction(1), 700)], None, "percentiles grow"),
        (
            [(Fraction(1, 2), 801), (Fraction(1), 801)],
            Fraction(400),
            "mean=400 contradicts the percentiles: it is 401 to 801",
        ),
    ],
)
def test_statements_that_contradict_each_other_are_refused(
    points: list[tuple[Fraction, int]], mean: Fraction | None, words: str
) -> None:
    with pytest.raises(UnusableValue, match=words):
        shares_of(points, mean)


def test_the_longest_prompts_have_the_longest_answers_and_long_answers_run_longer() -> None:
    requests = together([(Fraction(1, 2), 100), (Fraction(1, 2), 1000)], [(Fraction(3, 4), 10), (Fraction(1, 4), 40)])
    assert requests == [(100, 10, 500_000_000), (1000, 10, 250_000_000), (1000, 40, 250_000_000)]
    # a quarter generates 40 of the 17.5 tokens of a request on average, and is 10/17.5 of those that run
    assert lengths_of(requests) == ((110, 5_000_000_000), (1010, 2_500_000_000), (1040, 10_000_000_000))


def test_many_lengths_are_put_together_each_as_long_as_the_longest() -> None:
    found = lengths_of((tokens, 1, 1) for tokens in range(1, 10 * MOST_LENGTHS + 1))
    assert len(found) == MOST_LENGTHS
    assert found[0] == (11, 10)  # prompts of 1 to 10 tokens and one token of an answer
    assert found[-1] == (10 * MOST_LENGTHS + 1, 10)


def test_the_bound_of_a_sum_is_chernoffs() -> None:
    """A tenth of 100 requests with 11 blocks and the rest with 1: KL(q ‖ 0.1) = ln(100) / 100 at q = 0.2038, so 100 + 10 × 20.38."""
    assert sum_of_independent(((1, 9), (11, 1)), 100) == pytest.approx(304, abs=1)
    assert sum_of_independent(((0, 1),), 5) == 0


@pytest.mark.parametrize(("requests", "part"), [(4, 50), (64, 20), (200, 5), (1000, 1)])
def test_no_more_than_one_moment_of_100_passes_the_bound(requests: int, part: int) -> None:
    """Against the binomial distribution itself, for requests of 1 or 101 blocks."""
    long, bound = Fraction(part, 100), sum_of_independent(((1, 100 - part), (101, part)), requests)
    most = min((bound - requests) // 100, requests)
    passed = 1 - sum(comb(requests, k) * long**k * (1 - long) ** (requests - k) for k in range(most + 1))
    assert passed <= Fraction(1, 100)
    assert bound <= requests * 101 + 101 * 5 / 1000 + 1


def test_the_demand_is_exact_in_blocks_and_never_above_that_of_the_longest() -> None:
    """Qwen3-8B has blocks of 16 tokens: requests of 17 and 33 tokens take 2 and 3."""
    mixed = new_workload(peak_concurrency=100, prompt_tokens=32, output_tokens=1, lengths=((17, 9), (33, 1)))
    asked = new_request(
        shape=catalogue_shape("Qwen/Qwen3-8B"), max_model_len=33, guarantee=Guarantee.WORKLOAD, workload=mixed
    )
    budget = plan(asked)
    assert budget.demand is not None
    assert budget.demand.blocks == sum_of_independent(((2, 9), (3, 1)), 100)
    assert budget.demand.blocks == 221  # 200 + 100 × 0.2038
    equal = equal_requests(budget, mixed)
    assert equal.request_tokens == 33  # 100 equal requests of 2 blocks are too few
    assert not equal.lengths
    assert (budget.requests_held or 0) > 100
    alone = plan(new_request(shape=asked.shape, max_model_len=33, guarantee=Guarantee.WORKLOAD,
                             workload=new_workload(peak_concurrency=1, prompt_tokens=32, output_tokens=1,
                                                   lengths=((17, 9), (33, 1)))))  # fmt: skip
    assert alone.demand is not None
    assert alone.demand.blocks == 3


@pytest.mark.parametrize(("average", "peak"), [(0.005, 1), (1, 4), (4, 9), (10, 18), (40, 55), (1000, 1074)])
def test_the_peak_of_random_arrivals_is_the_99th_percentile_of_poisson(average: float, peak: int) -> None:
    """Poisson(4): P(≤ 8) = 0.979 and P(≤ 9) = 0.992; the other rows from tables of the distribution."""
    assert peak_of(average) == peak


def test_more_requests_never_need_less() -> None:
    bounds = [sum_of_independent(((3, 50), (40, 7), (400, 1)), requests) for requests in range(1, 2000, 7)]
    assert bounds == sorted(bounds)
