"""Lengths of requests as people know them (percentiles, a mean, a histogram, a trace) → the lengths of a workload.

What is not known counts against the promise: a request between two percentiles has the tokens of the upper one, unless a mean says that
most have fewer; long prompts have long answers, unless a trace says which have; a request counts as often as it generates tokens,
because it runs as long.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate
from math import ceil, exp, lgamma, log, sqrt

from msgspec.structs import replace

from kvgate.budget import Budget, Workload
from kvgate.budget.kv_cache.capacity import RARE, blocks_of_requests, blocks_of_workload, largest, shared_tokens
from kvgate.vllm.values import UnusableValue

Share = tuple[Fraction, int]
"""(Share of the requests, tokens that none of them passes)."""
MOST_LENGTHS = 128
"""Lengths of a workload; more of them are put together, each as long as the longest."""
_PARTS = 10**9


def shares_of(points: Sequence[Share], mean: Fraction | None = None) -> list[Share]:
    """Return the shares of the requests by tokens, ascending. `points` are (share of all up to here, tokens), the last one with share 1.

    With a mean it is the widest distribution that has the points and the mean: each part between two points has some requests at its
    lower end and the rest at its upper end, as many as the mean allows, the longest first. Raises UnusableValue.
    """
    low, parts = 1, list[tuple[Fraction, int, int]]()
    for (share, tokens), (before, _) in zip(points, [(Fraction(0), 0), *points], strict=False):
        if share < before or tokens < low:
            raise UnusableValue("percentiles grow: p50=800,p95=6000")
        parts.append((share - before, low, tokens))
        low = tokens
    least = sum((part * low for part, low, _ in parts), Fraction(0))
    most = sum((part * high for part, _, high in parts), Fraction(0))
    if mean is not None and not least <= mean <= most:
        raise UnusableValue(
            f"mean={float(mean):g} contradicts the percentiles: it is {float(least):g} to {float(most):g}"
        )
    left = (most if mean is None else mean) - least
    found = list[Share]()
    for part, low, high in reversed(parts):
        at_high = min(part, left / (high - low)) if high > low else part
        left -= at_high * (high - low)
        found += [(at_high, high), (part - at_high, low)]
    return [(share, tokens) for share, tokens in reversed(found) if share]


def together(prompts: Sequence[Share], outputs: Sequence[Share]) -> list[tuple[int, int, int]]:
    """Return (prompt, output, weight) where the longest prompts have the longest outputs, which needs the most memory."""
    ends = [list(accumulate(share for share, _ in shares)) for shares in (prompts, outputs)]
    found, before = [], Fraction(0)
    for end in sorted({*ends[0], *ends[1]}):
        prompt, output = prompts[bisect_left(ends[0], end)][1], outputs[bisect_left(ends[1], end)][1]
        found.append((prompt, output, int((end - before) * _PARTS)))
        before = end
    return found


def lengths_of(requests: Iterable[tuple[int, int, int]]) -> tuple[tuple[int, int], ...]:
    """Return (tokens of a request, weight), ascending, of (prompt, output, weight): each counts as often as it generates tokens."""
    weights = dict[int, int]()
    for prompt, output, weight in requests:
        weights[prompt + output] = weights.get(prompt + output, 0) + weight * max(1, output)
    whole = sum(weights.values())
    found, collected = list[tuple[int, int]](), 0
    for number, (tokens, weight) in enumerate(sorted(weights.items()), start=1):
        collected += weight
        if len(weights) <= MOST_LENGTHS or collected * MOST_LENGTHS >= whole or number == len(weights):
            found.append((tokens, collected))
            collected = 0
    return tuple(found)


def peak_of(average: float) -> int:
    """Return the requests at the same time that more than 99 moments of 100 do not pass, where arrivals are independent of each other.

    Arrivals at random times (Poisson) that each stay for a time of any distribution are Poisson distributed in number (M/G/∞).
    """
    at_most = ceil(average + 10 * sqrt(average) + 20)
    above = 0.0
    for number in range(at_most, 0, -1):
        above += exp(number * log(average) - average - lgamma(number + 1))
        if above * RARE > 1:
            return number
    return 1


def notes(workload: Workload) -> Iterator[tuple[str, str, str]]:
    """Yield (fact, value, rule) for a peak that was derived, and for requests of different lengths."""
    if workload.average_concurrency is not None:
        average = f"{workload.average_concurrency:g} requests at the same time on average (Little's law: rate × time)"
        rule = f"random arrivals pass the peak at 1 moment of {RARE} at most, bursts more often"
        yield "peak_concurrency", str(workload.peak_concurrency), f"{average}; {rule}"
    if workload.lengths:
        mean = f"{workload.mean_tokens} tokens on average of those that run"
        rule = f"the demand is a bound that independent requests pass at 1 moment of {RARE} at most"
        yield "request_lengths", mean, f"lengths differ, {mean}: {rule}"


def equal_requests(budget: Budget, workload: Workload) -> Workload:
    """Return the workload of equal requests that needs at least the blocks of one of different lengths, in a form that has no lengths."""
    kv_cache, requests = budget.kv_cache, workload.peak_concurrency
    if kv_cache is None:
        return replace(workload, lengths=())
    shared = shared_tokens(kv_cache, budget.resolved, workload)
    needed = blocks_of_workload(kv_cache, workload, requests, shared)
    fewer = largest(
        workload.request_tokens - 1, lambda tokens: blocks_of_requests(kv_cache, requests, tokens, shared) < needed
    )
    output = min(workload.output_tokens, fewer)
    prompt = max(fewer + 1 - output, workload.shared_prefix_tokens)
    return replace(workload, prompt_tokens=prompt, output_tokens=output, lengths=())
