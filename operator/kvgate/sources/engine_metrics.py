"""The text of a vLLM server's `/metrics` → EngineReading, for every release that `vllm/metric_names.py` knows, and of its `/v1/models` →
the longest request; pure.

A name has a colon, or an underscore by a fault of prometheus-client 0.23 and later when OpenMetrics is requested, or it stands in quotes
inside the braces, as Prometheus 3 allows. Timestamps, exemplars and clocks of the server count for nothing.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import islice
from math import inf

from msgspec import DecodeError, Struct
from msgspec.json import decode
from msgspec.structs import replace

from kvgate.text.patterns import pattern
from kvgate.vllm.metric_names import CACHE_CONFIG_INFO, KV_CACHE_USAGE, NEEDED, EngineMetric, EngineReading, is_known

MAX_QUOTED = 60
"""Characters of a server's text that an error repeats."""
MAX_LINES_BYTES = 1 << 16
"""Bytes of one metric's lines; an engine's capacity takes 2 KB. Parsing them blocks the event loop."""
MAX_LINES = 4096
"""Lines that begin like a name that is looked for, and names that are looked at."""
MAX_TOKENS = 10**12
"""More than any memory holds, and far less than the API server's integers."""
SHOWN_NAMES = 3


class NotAnEngine(ValueError):
    """Metrics that are not vLLM's, or of a vLLM that is set to report none."""


class UnreadableMetrics(ValueError):
    """vLLM's metrics without a readable capacity, or models without a length; the message names what is wrong."""


class UnknownNames(UnreadableMetrics):
    """Metrics of vLLM under names or labels that kvgate does not know, as a release may have that is newer than kvgate."""


class CutMetrics(UnreadableMetrics):
    """Only the first part of an answer."""


_SIZE = "kv_cache_size_tokens"
_GIVEN = ("kv_cache_memory_bytes", "num_gpu_blocks_override")
"""Labels that have a value where the size was given."""
_Sample = tuple[Mapping[str, str], float]
"""Labels and value."""
_LINE = pattern(
    r'[^\s{]*+\s*+(?:\{((?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+)\})?\s*+([^\s{}"#]++)(?:\s++[^\s{}"#]++)?\s*+(?:#.*)?'
)
"""The labels and the value of a sample."""
_PART = pattern(r'\s*(?:([A-Za-z_]\w*)|"((?:[^"\\]++|\\.)*+)")\s*(?:=\s*"((?:[^"\\]++|\\.)*+)"\s*)?(?:,|\Z)', re.ASCII)
"""A label, or the name of the metric in quotes."""
_ESCAPED = pattern(r"\\(.)")
_SHARE = pattern(r"[01]\.[0-9]{1,20}")
_NAME = pattern(r"[A-Za-z0-9_:]{1,60}")


def read_engine(exposition: bytes, *, is_open_metrics: bool = False) -> EngineReading:
    """Return what an engine reports. Raises NotAnEngine, UnreadableMetrics. Only the few lines that matter are parsed."""
    text = b"\n" + exposition + b"\n"
    if is_open_metrics and not exposition.rstrip().endswith(b"\n# EOF"):
        raise CutMetrics("sends OpenMetrics without # EOF at the end: the answer was cut")
    info = _samples(text, CACHE_CONFIG_INFO)
    if not info:
        raise _without_capacity(exposition, text)
    by_engine = _unique(
        info, CACHE_CONFIG_INFO, lambda sample: sample[0].get("engine", "0"),
        lambda sample: [sample[0].get(name) for name in ("num_gpu_blocks", "block_size", _SIZE)],
    )  # fmt: skip
    usages = _unique(
        _samples(text, KV_CACHE_USAGE), KV_CACHE_USAGE, lambda sample: frozenset(sample[0].items()), _value
    )
    if not all(0 <= value <= 1 for _, value in usages):  # NaN fails too
        raise UnreadableMetrics(f"{KV_CACHE_USAGE.names[0].name} is not between 0 and 1")  # no value: it is logged once
    # The blocks are the sum over all engines, so each must have a capacity. Before 0.9 engines had no label.
    of_infos, of_usages = ({labels.get("engine") for labels, _ in samples} for samples in (by_engine, usages))
    without = sorted(filter(None, of_usages - of_infos))
    if without and None not in of_infos:
        raise CutMetrics(f"reports the usage of engine {_quoted(without[0])} and not its capacity")
    reading = _capacity([labels for labels, _ in by_engine])
    return replace(reading, usage_ratio=max(map(_value, usages), default=None), missing=_missing(text))


def read_histogram(exposition: bytes, metric: EngineMetric) -> tuple[list[tuple[float, int]], Fraction]:
    """Return (upper end, requests up to there) of a histogram, and its mean; the series of several engines are added.

    Raises UnreadableMetrics, also where no request was counted.
    """
    text = b"\n" + exposition.rstrip() + b"\n\n"
    buckets = Counter[float]()
    for labels, value in _samples(text, _part_of(metric, "_bucket")):
        try:
            end = float(labels["le"])
        except (KeyError, ValueError):
            end = 0.0
        if not end > 0:  # NaN fails too
            raise UnreadableMetrics("has a bucket without a number above 0 in `le`")
        buckets[end] += int(_counted(value))
    total = buckets.get(inf, 0)
    sums = [_counted(value) for _, value in _samples(text, _part_of(metric, "_sum"))]
    if not total or not sums:
        raise UnreadableMetrics(f"counts no request in {metric.names[0].name}")
    return sorted(buckets.items()), Fraction(sum(sums)) / total


def _part_of(metric: EngineMetric, suffix: str) -> EngineMetric:
    return replace(metric, names=tuple(replace(each, name=f"{each.name}{suffix}") for each in metric.names))


def _counted(value: float) -> float:
    if not 0 <= value < MAX_TOKENS:
        raise UnreadableMetrics("has a count in a histogram that is no number of requests or tokens")
    return value


def _value(sample: _Sample) -> float:
    return sample[1]


def _without_capacity(exposition: bytes, text: bytes) -> ValueError:
    names = {name for start in (b"\nvllm:", b"\nvllm_", b'\n{"vllm:') for name in _names_after(text, start)}
    unknown = sorted(name for name in names if not is_known(name))
    without = f"has metrics of vLLM, and no {CACHE_CONFIG_INFO.names[0].name} among them"
    if names and not exposition.endswith(b"\n"):
        return CutMetrics(f"{without}; the answer ends in the middle of a line")
    if names:
        shown = ", ".join(unknown[:SHOWN_NAMES])
        return UnknownNames(f"{without}; kvgate does not know {shown}") if unknown else UnreadableMetrics(without)
    lines = exposition[:4096].decode(errors="replace").splitlines()
    first = (re.split(r"[ {]", line, maxsplit=1)[0] for line in lines if line.strip() and not line.startswith("#"))
    return NotAnEngine(f"has no metrics of vLLM; the first one is {_quoted(next(first, 'none at all'))}")


class _Model(Struct):
    max_model_len: int | None = None
    """Of the base models alone: an adapter has none (0.6.6 to 0.33, `show_available_models`)."""


class _Models(Struct):
    data: list[_Model]


def read_max_model_len(models: bytes) -> int:
    """Return the longest request, in tokens, that `/v1/models` tells. Raises UnreadableMetrics."""
    try:
        found = [each.max_model_len for each in decode(models, type=_Models).data]
    except (DecodeError, RecursionError, ValueError):
        raise UnreadableMetrics("answers /v1/models with something that is no list of models") from None
    lengths = [each for each in found if each is not None and 0 < each <= MAX_TOKENS]
    if not lengths:
        raise UnreadableMetrics("tells no max_model_len at /v1/models")
    return min(lengths)


def _capacity(infos: list[Mapping[str, str]]) -> EngineReading:
    sizes = [_count(labels, _SIZE) for labels in infos if labels.get(_SIZE, "None") != "None"]
    # vLLM gives the sum over the engines of a front end, beside each of them
    blocks = min(_count(labels, "num_gpu_blocks") for labels in infos) // len(infos)
    if not blocks:
        raise UnreadableMetrics("reports fewer blocks than engines")
    size, share = _count(infos[0], "block_size"), infos[0].get("gpu_memory_utilization", "")
    if blocks * size > MAX_TOKENS:
        raise UnreadableMetrics(f"reports {blocks:,} blocks of {size:,} tokens, which no memory holds")
    return EngineReading(
        num_gpu_blocks=blocks,
        block_size=size,
        kv_cache_size_tokens=min(sizes, default=None),
        is_size_given=any(labels.get(name, "None") != "None" for labels in infos for name in _GIVEN),
        gpu_memory_utilization=float(share) if _SHARE.fullmatch(share) else None,
    )


def _unique(
    samples: list[_Sample],
    metric: EngineMetric,
    series: Callable[[_Sample], object],
    value_of: Callable[[_Sample], object],
) -> list[_Sample]:
    """Return one sample of each series. The same series twice is harmless where both say the same; otherwise nobody knows which is true."""
    found: dict[object, _Sample] = {}
    for sample in samples:
        first = found.setdefault(series(sample), sample)
        if first is not sample and value_of(first) != value_of(sample):
            engine = _quoted(sample[0].get("engine", "0"))
            raise UnreadableMetrics(f"{metric.names[0].name} of engine {engine} is there twice, with different values")
    return list(found.values())


def _missing(text: bytes) -> tuple[str, ...]:
    """Return the quantities without a name that is known, where unknown names stand beside them; else a release has none yet."""
    typed = {name for start in (b"\n# TYPE vllm:", b"\n# TYPE vllm_") for name in _names_after(text, start)}
    if all(map(is_known, typed)):
        return ()
    return tuple(
        metric.key
        for metric in NEEDED
        if not any({each.name, each.name.removesuffix("_total")} & typed for each in metric.names)
    )


def _names_after(text: bytes, beginning: bytes) -> Iterator[str]:
    """Yield the names after this beginning of a line, with `vllm:` in front of them."""
    for start in islice(_found(text, beginning), MAX_LINES):
        begin = start + len(beginning)
        name = _NAME.match(text[begin : begin + MAX_QUOTED].decode(errors="replace"))
        if name:
            yield f"vllm:{name[0]}"


def _samples(text: bytes, metric: EngineMetric) -> list[_Sample]:
    lines, size = [], 0
    for line in _lines_of(text, metric):
        lines.append(line)
        size += len(line)
        if size > MAX_LINES_BYTES:
            raise UnreadableMetrics(f"{metric.names[0].name} takes more than {MAX_LINES_BYTES >> 10} KiB")
    return [_sample(line, metric) for line in lines]


def _sample(line: bytes, metric: EngineMetric) -> _Sample:
    try:
        found = _LINE.fullmatch(line.decode())
    except UnicodeDecodeError:
        raise UnreadableMetrics(f"{metric.names[0].name} is not UTF-8") from None
    if not found:
        raise CutMetrics(f"{metric.names[0].name} cannot be parsed: {_quoted(line.decode())}")
    labels: dict[str, str] = {}
    inside, at = (found[1] or "").strip(), 0
    while at < len(inside):
        part = _PART.match(inside, at)
        if not part or (part[3] is None and (part[1] or at)) or (part[1] or part[2]) in labels:
            raise UnreadableMetrics(f"{metric.names[0].name} has labels that cannot be parsed: {_quoted(inside[at:])}")
        if part[3] is not None:
            labels[part[1] or part[2]] = _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], part[3])
        at = part.end()
    try:
        return labels, float(found[2])
    except ValueError:
        raise UnreadableMetrics(f"{metric.names[0].name} has the value {_quoted(found[2])}") from None


def _lines_of(text: bytes, metric: EngineMetric) -> Iterator[bytes]:
    """Yield the lines of a metric, found by their beginnings: a pattern would look at every line, which takes thirty times as long."""
    for each in metric.names:
        name = each.name.encode()
        for beginning, ends in ((name, b" {\t"), (name.replace(b":", b"_"), b" {\t"), (b'{"' + name + b'"', b" ,}")):
            for count, start in enumerate(_found(text, b"\n" + beginning)):
                if count == MAX_LINES:
                    raise UnreadableMetrics(f"has more than {MAX_LINES} lines that begin with {each.name}")
                after = start + 1 + len(beginning)
                if text[after : after + 1] in ends:
                    end = text.find(b"\n", start + 1)
                    if end == len(text) - 1:
                        raise CutMetrics(f"ends in the middle of {each.name}: the answer was cut")
                    yield text[start + 1 : end]


def _found(text: bytes, beginning: bytes) -> Iterator[int]:
    start = text.find(beginning)
    while start >= 0:
        yield start
        start = text.find(beginning, start + 1)


def _count(labels: Mapping[str, str], name: str) -> int:
    """Return a label that is a whole number above 0; twelve digits are more than any memory holds."""
    text = labels.get(name)
    if text is None:
        others = ", ".join(sorted(other for other in labels if _NAME.fullmatch(other))[:SHOWN_NAMES])
        raise UnknownNames(f"{CACHE_CONFIG_INFO.names[0].name} has no label {name}; the first ones are {others}")
    if not re.fullmatch(r"[0-9]{1,12}", text) or not int(text):
        raise UnreadableMetrics(f"{name} is {_quoted(text)} and not a number above 0")
    return int(text)


def _quoted(text: str) -> str:
    return repr(text[:MAX_QUOTED])
