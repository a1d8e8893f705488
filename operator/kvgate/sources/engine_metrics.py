"""The text of a vLLM server's `/metrics` → EngineReading, for every release that `vllm/metric_names.py` knows; pure.

Names have a colon or, by a fault of prometheus-client 0.23 and later when OpenMetrics is requested, an underscore.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from kvgate.vllm.metric_names import CACHE_CONFIG_INFO, KV_CACHE_USAGE, EngineMetric, EngineReading

MAX_QUOTED = 60
"""Characters of a server's text that an error repeats."""

MAX_LINES_BYTES = 1 << 16
"""Bytes of one metric's lines; an engine's capacity takes 2 KB. These lines are kept in memory, and parsing them blocks the event loop."""


class NotAnEngine(ValueError):
    """Metrics that are not vLLM's, or of a vLLM that is set to report none."""


class UnreadableMetrics(ValueError):
    """vLLM's metrics without a readable capacity; the message names what is wrong."""


_SIZE = "kv_cache_size_tokens"
_GIVEN = ("kv_cache_memory_bytes", "num_gpu_blocks_override")
"""Labels that have a value where the size was given."""
_Sample = tuple[Mapping[str, str], float]
"""Labels and value."""
_ANY_OF_VLLM = re.compile(rb"^vllm[:_]", re.MULTILINE)


def read_engine(exposition: bytes) -> EngineReading:
    """Return what an engine reports. Raises NotAnEngine, UnreadableMetrics. Only the few lines that matter are parsed."""
    info = _bounded(exposition, CACHE_CONFIG_INFO)
    if not info and _ANY_OF_VLLM.search(exposition):
        raise UnreadableMetrics(f"has metrics of vLLM, and no {CACHE_CONFIG_INFO.names[0].name} among them")
    if not info:
        lines = exposition[:4096].decode(errors="replace").splitlines()
        names = (re.split(r"[ {]", line, maxsplit=1)[0] for line in lines if line.strip() and not line.startswith("#"))
        raise NotAnEngine(f"has no metrics of vLLM; the first one is {_quoted(next(names, 'none at all'))}")
    usages = [value for _, value in _samples(_bounded(exposition, KV_CACHE_USAGE), KV_CACHE_USAGE)]
    if not all(
        0 <= value <= 1 for value in usages
    ):  # the message has no value, so that it is not logged anew for each; NaN fails too
        raise UnreadableMetrics(f"{KV_CACHE_USAGE.names[0].name} is not between 0 and 1")
    return replace(_capacity(info), usage_ratio=max(usages, default=None))


@lru_cache(maxsize=512)
def _capacity(info: bytes) -> EngineReading:
    """Return the capacity; it is cached, because it never changes while an engine lives and its forty labels are most of the work."""
    infos = [labels for labels, _ in _samples(info, CACHE_CONFIG_INFO)]
    sizes = [_count(labels, _SIZE) for labels in infos if labels.get(_SIZE, "None") != "None"]
    engines = {labels.get("engine", "0") for labels in infos}
    blocks = min(_count(labels, "num_gpu_blocks") for labels in infos) // len(engines)
    if not blocks:
        raise UnreadableMetrics("reports fewer blocks than engines")
    return EngineReading(
        num_gpu_blocks=blocks,  # vLLM gives the sum over the engines of a front end, beside each of them
        block_size=_count(infos[0], "block_size"),
        kv_cache_size_tokens=min(sizes, default=None),
        is_size_given=any(labels.get(name, "None") != "None" for labels in infos for name in _GIVEN),
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
    """Yield the lines of a metric, found by their beginnings: a pattern would look at every line, which takes thirty times as long."""
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


def _count(labels: Mapping[str, str], name: str) -> int:
    """Return a label that is a whole number above 0; twelve digits are more than any memory holds."""
    text = labels.get(name)
    if text is None:
        raise UnreadableMetrics(
            f"{CACHE_CONFIG_INFO.names[0].name} has no label {name}: a release that kvgate cannot read"
        )
    if not re.fullmatch(r"[0-9]{1,12}", text) or not int(text):
        raise UnreadableMetrics(f"{name} is {_quoted(text)} and not a number above 0")
    return int(text)


def _quoted(text: str) -> str:
    return repr(text[:MAX_QUOTED])
