"""vLLM's own metrics that kvgate reads, under every name that releases gave them: scraper, rules and dashboards use this table.

Names and releases: the metric definitions in vLLM's source, 0.6.6 to 0.33.0. `since` and `until` are releases that were read.
"""

from dataclasses import dataclass, field
from itertools import chain


@dataclass(frozen=True, kw_only=True, slots=True)
class ScrapedName:
    """A name as it stands in `/metrics`, and the releases that have it."""

    name: str
    since: str
    until: str | None = None
    """Last release; None: still there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineMetric:
    """One quantity, under every name that it has had; the newest first."""

    key: str
    kind: str
    """`gauge`, `counter` or `histogram` (whose names are without `_bucket`, `_sum` and `_count`)."""
    names: tuple[ScrapedName, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineReading:
    """Report of one vLLM server about its KV cache; of several engines the smallest cache and the largest usage count."""

    num_gpu_blocks: int
    """The null block included."""
    block_size: int
    """Tokens of a block; with several KV cache groups not the block of every layer."""
    kv_cache_size_tokens: int | None = None
    """Tokens as the start-up log has them; since 0.24, and never blocks × size where there are several KV cache groups."""
    usage_ratio: float | None = field(default=None, compare=False)
    """0 to 1; None where it is not told. Two readings are equal where they are of the same cache."""


def _named(key: str, kind: str, *names: tuple[str, str] | tuple[str, str, str]) -> EngineMetric:
    return EngineMetric(
        key=key, kind=kind,
        names=tuple(ScrapedName(name=f"vllm:{n[0]}", since=n[1], until=n[2] if len(n) == 3 else None) for n in names),
    )  # fmt: skip


CACHE_CONFIG_INFO = _named("cache_config_info", "gauge", ("cache_config_info", "0.6.6"))
"""1; the capacity stands in labels: `num_gpu_blocks` and `block_size`, since 0.24 also `kv_cache_size_tokens`."""
KV_CACHE_USAGE = _named(
    "kv_cache_usage", "gauge", ("kv_cache_usage_perc", "0.9.2"), ("gpu_cache_usage_perc", "0.6.6", "0.11.0")
)
"""0 to 1, whatever the name says; cached blocks that nobody holds count as free."""
REQUESTS_RUNNING = _named("requests_running", "gauge", ("num_requests_running", "0.6.6"))
REQUESTS_WAITING = _named("requests_waiting", "gauge", ("num_requests_waiting", "0.6.6"))
PREEMPTIONS = _named("preemptions", "counter", ("num_preemptions_total", "0.6.6"))
PREFIX_CACHE_QUERIES = _named(
    "prefix_cache_queries", "counter",
    ("prefix_cache_queries_total", "0.9.2"), ("gpu_prefix_cache_queries_total", "0.8.5", "0.11.0"),
)  # fmt: skip
"""Tokens that were looked for."""
PREFIX_CACHE_HITS = _named(
    "prefix_cache_hits", "counter",
    ("prefix_cache_hits_total", "0.9.2"), ("gpu_prefix_cache_hits_total", "0.8.5", "0.11.0"),
)  # fmt: skip
"""Tokens that were found."""
PROMPT_TOKENS = _named("prompt_tokens", "counter", ("prompt_tokens_total", "0.6.6"))
GENERATION_TOKENS = _named("generation_tokens", "counter", ("generation_tokens_total", "0.6.6"))
TIME_TO_FIRST_TOKEN = _named("time_to_first_token", "histogram", ("time_to_first_token_seconds", "0.6.6"))

ENGINE_METRICS = (
    CACHE_CONFIG_INFO,
    KV_CACHE_USAGE,
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
    PREEMPTIONS,
    PREFIX_CACHE_QUERIES,
    PREFIX_CACHE_HITS,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    TIME_TO_FIRST_TOKEN,
)

SCRAPED_NAMES = frozenset(chain.from_iterable((name.name for name in metric.names) for metric in ENGINE_METRICS))
