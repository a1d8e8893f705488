"""Requests of different lengths, as they are stated on a command line → the workload whose demand is a bound."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import inf
from typing import Any, BinaryIO

from msgspec.structs import replace

from kvgate.budget import Workload
from kvgate.cli.workload_options import ASSUMED_OUTPUT_TOKENS, read_workload
from kvgate.documents.bounded_files import Refused, read_all
from kvgate.planning.request_lengths import Share, lengths_of, peak_of, shares_of, together
from kvgate.sources.engine_metrics import UnreadableMetrics, read_histogram
from kvgate.vllm.arguments import option_name
from kvgate.vllm.metric_names import REQUEST_GENERATION_TOKENS, REQUEST_PROMPT_TOKENS, EngineMetric
from kvgate.vllm.values import UnusableValue, read_tokens

MAX_BYTES = 1 << 26
_COLUMNS = {
    "prompt_tokens": ("prompttokens", "inputtokens", "contexttokens", "requesttokens", "promptlen", "inputlength", "inputlen"),
    "output_tokens": ("outputtokens", "generatedtokens", "completiontokens", "responsetokens", "outputlen", "outputlength"),
}  # fmt: skip
"""Columns of public traces (Azure's, BurstGPT) and of clients, in small letters without other signs."""
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,4})?)")
_DECIMAL = re.compile(r"\d{1,9}(?:\.\d{1,9})?")
_MOST_CONCURRENT = 500_000
Requests = list[tuple[int, int, int]]
"""(Prompt, output, weight) of each length."""


def read_mixed(
    given: Mapping[str, Any], file: BinaryIO | None, *, needed: Sequence[str], limit: str | None
) -> Workload | None:
    """Read a workload of requests of different lengths. `limit` is the text of --max-model-len. Raises UnusableValue."""
    try:
        most = int(read_tokens(limit))
    except UnusableValue:  # none, auto, or one that is reported where it is read
        most = None
    requests, is_assumed = _of_file(given, file, most) if file else _of_options(given)
    prompt, output, _ = max(requests, key=lambda each: each[0] + each[1])
    whole = read_workload({**given, "prompt_tokens": prompt, "output_tokens": output}, needed=needed)
    return whole and replace(whole, lengths=lengths_of(requests), is_output_assumed=is_assumed)


def average_of(per_second: str | None, seconds: str | None, *, others: Mapping[str, Any]) -> tuple[float, int]:
    """Return the requests at the same time on average, and at the peak. Raises UnusableValue."""
    if per_second is None or seconds is None or "peak_concurrency" in others:
        raise UnusableValue(
            "--requests-per-second and --seconds-per-request state the peak together, instead of --peak-concurrency and --users"
        )
    rate, time = (float(text) if _DECIMAL.fullmatch(text) else 0.0 for text in (per_second, seconds))
    if not 0 < rate * time <= _MOST_CONCURRENT:
        raise UnusableValue(
            f"--requests-per-second {per_second} × --seconds-per-request {seconds} must be a number above 0, up to {_MOST_CONCURRENT}"
        )
    return rate * time, peak_of(rate * time)


def _of_options(given: Mapping[str, Any]) -> tuple[Requests, bool]:
    if "prompt_tokens" not in given:
        raise UnusableValue("a workload also needs --prompt-tokens")
    prompts = _read_shares("prompt_tokens", given["prompt_tokens"])
    is_assumed = "output_tokens" not in given
    longest = min(ASSUMED_OUTPUT_TOKENS, prompts[-1][1])
    outputs = [(Fraction(1), longest)] if is_assumed else _read_shares("output_tokens", given["output_tokens"])
    return together(prompts, outputs), is_assumed


def _read_shares(name: str, text: object) -> list[Share]:
    try:
        return [(Fraction(1), int(read_tokens(text)))] if "=" not in str(text) else _shares(str(text))
    except UnusableValue as error:
        raise UnusableValue(f"{option_name(name)} is {text!r}; {error}") from None


def _shares(text: str) -> list[Share]:
    """`mean=1500,p50=800,p95=6000,max=8000`; without `max` nothing is longer than the last percentile."""
    points, stated = list[Share](), dict[str, int]()
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        if found := _PERCENTILE.fullmatch(key):
            points.append((Fraction(found[1]) / 100, int(read_tokens(value))))
        elif key in ("mean", "max"):
            stated[key] = int(read_tokens(value))
        else:
            raise UnusableValue("write a number, or parts such as mean=1500,p50=800,p95=6000,max=8000")
    points.sort()
    if "max" not in stated and not points:
        raise UnusableValue("add a percentile or max=: a mean alone does not say how long requests get")
    points.append((Fraction(1), stated["max"] if "max" in stated else points[-1][1]))
    return shares_of(points, Fraction(stated["mean"]) if "mean" in stated else None)


def _of_file(given: Mapping[str, Any], file: BinaryIO, most: int | None) -> tuple[Requests, bool]:
    if stated := [option_name(name) for name in _COLUMNS if name in given]:
        raise UnusableValue(f"--request-lengths has the lengths; leave out {', '.join(stated)}")
    try:
        data = read_all(file, max_bytes=MAX_BYTES)
        if b"request_prompt_tokens_bucket" in data:
            metrics = (REQUEST_PROMPT_TOKENS, REQUEST_GENERATION_TOKENS)
            return together(*(_of_histogram(data, metric, most) for metric in metrics)), False
        return _of_trace(csv.reader(io.StringIO(data.decode("utf-8-sig")))), False
    except (Refused, UnicodeDecodeError, csv.Error, UnreadableMetrics, UnusableValue) as error:
        raise UnusableValue(f"--request-lengths: {error}") from None


def _of_histogram(data: bytes, metric: EngineMetric, most: int | None) -> list[Share]:
    """Return the widest distribution with the buckets and the mean of a histogram.

    vLLM's buckets are 1, 2, 5, 10, 20, 50 … up to max_model_len (0.33, `build_1_2_5_buckets`): above the last one, a request has fewer
    tokens than the next would have.
    """
    buckets, mean = read_histogram(data, metric)
    total, last, points = buckets[-1][1], 1, list[Share]()
    for end, count in buckets:
        next_step = last * 5 // 2 if str(last).startswith("2") else last * 2
        last = min(next_step if end == inf else int(end), most or int(1e9))
        points.append((Fraction(count, total), last))
    return shares_of(points, max(mean, Fraction(1)))  # an aborted request may have generated nothing


def _of_trace(rows: Iterator[list[str]]) -> Requests:
    header = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in next(rows, [])]
    places = [next((header.index(each) for each in names if each in header), None) for names in _COLUMNS.values()]
    if None in places:
        raise UnusableValue(
            f"a trace is CSV with the columns {' and '.join(_COLUMNS)}; this one has {', '.join(header)[:200]}"
        )
    found = Counter[tuple[int, int]]()
    for number, row in enumerate(rows, start=2):
        try:
            prompt, output = (int(row[place]) for place in places if place is not None)
        except (IndexError, ValueError):
            if not row:
                continue
            raise UnusableValue(f"line {number} has no whole numbers of tokens: {','.join(row)[:60]!r}") from None
        if not (0 < prompt < 10**9 and 0 <= output < 10**9):
            raise UnusableValue(f"line {number} has {prompt} and {output} tokens")
        found[prompt, output] += 1
    if not found:
        raise UnusableValue("the trace has no request")
    return [(prompt, output, count) for (prompt, output), count in found.items()]
