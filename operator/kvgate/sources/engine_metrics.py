"""The text of a vLLM server's `/metrics` → EngineReading, for every release that `vllm/metric_names.py` knows; pure.

Names come with a colon or, by a fault of prometheus-client 0.23 and later when OpenMetrics is asked for, with an underscore.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NoReturn

from prometheus_client.parser import text_string_to_metric_families

from kvgate.vllm.metric_names import CACHE_CONFIG_INFO, KV_CACHE_USAGE, EngineMetric, EngineReading

MAX_QUOTED = 60
"""Characters of what a server says that are repeated in an error."""

MAX_LINES_BYTES = 1 << 16
"""Bytes of one metric's lines; an engine's capacity takes 2 KB. What is read here is kept, and parsed while everybody waits."""


class NotAnEngine(ValueError):
    """These are not vLLM's metrics, or vLLM was told to keep them to itself."""


class UnreadableMetrics(ValueError):
    """vLLM's metrics, of which the capacity cannot be told; the message names what is wrong."""


_SIZE = "kv_cache_size_tokens"
_Sample = tuple[Mapping[str, str], float]
"""Labels and value."""


def read_engine(exposition: bytes) -> EngineReading:
    """Raises NotAnEngine, UnreadableMetrics. A megabyte costs no more than its few lines that matter."""
    info = _bounded(exposition, CACHE_CONFIG_INFO)
    if not info:
        _complain_of_no_info(exposition)
    usages = _samples(_bounded(exposition, KV_CACHE_USAGE), KV_CACHE_USAGE)
    return replace(_capacity(info), usage_ratio=max((_ratio(value) for _, value in usages), default=None))


@lru_cache(maxsize=512)
def _capacity(info: bytes) -> EngineReading:
    """Remembered: it never changes while an engine lives, and its forty labels are most of the work."""
    told = [labels for labels, _ in _samples(info, CACHE_CONFIG_INFO)]
    sizes = [_count(labels, _SIZE) for labels in told if labels.get(_SIZE, "None") != "None"]
    engines = {labels.get("engine", "0") for labels in told}
    blocks = min(_count(labels, "num_gpu_blocks") for labels in told) // len(engines)
    if not blocks:
        raise UnreadableMetrics("reports fewer blocks than engines")
    return EngineReading(
        num_gpu_blocks=blocks,  # vLLM gives the sum over the engines of a front end, beside each of them
        block_size=_count(told[0], "block_size"),
        kv_cache_size_tokens=min(sizes, default=None),
    )


def _samples(lines: bytes, metric: EngineMetric) -> list[_Sample]:
    try:
        families = list(text_string_to_metric_families(lines.decode()))
    except (ValueError, IndexError, KeyError) as error:
        raise UnreadableMetrics(f"{metric.names[0].name} cannot be parsed: {_quoted(str(error))}") from error
    return [(sample.labels, float(sample.value)) for family in families for sample in family.samples]


def _bounded(exposition: bytes, metric: EngineMetric) -> bytes:
    lines, size = [], 0
    for line in _lines_of(exposition, metric):
        lines.append(line)
        size += len(line)
        if size > MAX_LINES_BYTES:
            raise UnreadableMetrics(f"{metric.names[0].name} takes more than {MAX_LINES_BYTES >> 10} KiB")
    return b"\n".join(lines)


def _lines_of(exposition: bytes, metric: EngineMetric) -> Iterator[bytes]:
    """Searched for by their beginnings: a pattern would look at every line, which takes thirty times as long."""
    text = b"\n" + exposition + b"\n"
    for name in metric.names:
        for written in (name.name, name.name.replace(":", "_")):
            beginning = b"\n" + written.encode()
            start = text.find(beginning)
            while start >= 0:
                line = text[start + 1 : text.find(b"\n", start + 1)]
                if line[len(written) : len(written) + 1] in (b" ", b"{"):
                    yield line
                start = text.find(beginning, start + 1)


_ANY_OF_VLLM = re.compile(rb"^vllm[:_]", re.MULTILINE)


def _complain_of_no_info(exposition: bytes) -> NoReturn:
    if _ANY_OF_VLLM.search(exposition):
        raise UnreadableMetrics(f"has metrics of vLLM, and no {CACHE_CONFIG_INFO.names[0].name} among them")
    first = next(iter(_names(exposition)), "none at all")
    raise NotAnEngine(f"has no metrics of vLLM; the first one is {_quoted(first)}")


def _names(exposition: bytes) -> Iterable[str]:
    for line in exposition[:4096].decode(errors="replace").splitlines():
        if line.strip() and not line.startswith("#"):
            yield re.split(r"[ {]", line, maxsplit=1)[0]


def _count(labels: Mapping[str, str], name: str) -> int:
    """A label that is a whole number above 0; twelve digits are more than any memory holds."""
    text = labels.get(name)
    if text is None:
        raise UnreadableMetrics(
            f"{CACHE_CONFIG_INFO.names[0].name} has no label {name}: a release that kvgate cannot read"
        )
    if not re.fullmatch(r"[0-9]{1,12}", text) or not int(text):
        raise UnreadableMetrics(f"{name} is {_quoted(text)} and not a number above 0")
    return int(text)


def _ratio(value: float) -> float:
    if not 0 <= value <= 1:  # NaN is not, either; without the value, so that nothing is written for each new one
        raise UnreadableMetrics(f"{KV_CACHE_USAGE.names[0].name} is not between 0 and 1")
    return value


def _quoted(text: str) -> str:
    return repr(text[:MAX_QUOTED])
