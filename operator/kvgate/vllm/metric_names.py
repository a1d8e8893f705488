"""Metrics of vLLM that kvgate reads, under every name that releases gave them. The scraper, the rules and the dashboards use this table.

Kinds and releases are in `data/metric_names.csv`, which `make vllm-release` writes from the releases that were read.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path

from msgspec import Struct

_TABLE = Path(__file__).parent / "data" / "metric_names.csv"


class ScrapedName(Struct, frozen=True, kw_only=True):
    """A name as it is in `/metrics`, and the releases that have it."""

    name: str
    since: str
    removed_in: str | None = None
    """The first release that no longer has it; None: the newest one has it."""


class EngineMetric(Struct, frozen=True, kw_only=True):
    """One quantity, under every name that it has had, the newest first."""

    key: str
    kind: str
    """`gauge`, `counter` or `histogram`; the names of a histogram are without `_bucket`, `_sum` and `_count`."""
    names: tuple[ScrapedName, ...]


class EngineReading(Struct, frozen=True, kw_only=True, eq=False):
    """KV cache that one vLLM server reports. Of several engines, the smallest cache and the largest usage count."""

    num_gpu_blocks: int
    """Blocks, the null block included."""
    block_size: int
    """Tokens of a block; with several KV cache groups, other layers may have other blocks."""
    kv_cache_size_tokens: int | None = None
    """Tokens as the start-up log has them, since 0.24. With several KV cache groups they are not blocks × size."""
    is_size_given: bool = False
    """True where vLLM was given the size, and did not measure it."""
    usage_ratio: float | None = None
    """Share from 0 to 1; None where it is not reported. It does not count when two readings are compared."""

    def _identity(self) -> object:
        """The fields that count when two are compared."""
        return (self.num_gpu_blocks, self.block_size, self.kv_cache_size_tokens)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EngineReading) and self._identity() == other._identity()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._identity())


@lru_cache(maxsize=1)
def _table() -> Mapping[str, tuple[str, ScrapedName]]:
    """Return (kind, name with its releases) by the name without `vllm:`."""
    lines = _TABLE.read_text(encoding="utf-8").splitlines()
    rows = (line.split(",") for line in lines if not line.startswith(("#", "name,")))
    return {
        name: (kind, ScrapedName(name=f"vllm:{name}", since=since, removed_in=removed_in or None))
        for name, kind, since, removed_in in rows
    }


def _named(key: str, *names: str) -> EngineMetric:
    """Return a quantity with the kind and the releases that the table has for its names."""
    kind = _table()[names[0]][0]
    return EngineMetric(key=key, kind=kind, names=tuple(_table()[name][1] for name in names))


CACHE_CONFIG_INFO = _named("cache_config_info", "cache_config_info")
"""Always 1; the capacity is in the labels `num_gpu_blocks` and `block_size`, and since 0.24 in `kv_cache_size_tokens`."""
KV_CACHE_USAGE = _named("kv_cache_usage", "kv_cache_usage_perc", "gpu_cache_usage_perc")
"""Share from 0 to 1, whatever the name says. Cached blocks that no request holds count as free."""
REQUESTS_RUNNING = _named("requests_running", "num_requests_running")
REQUESTS_WAITING = _named("requests_waiting", "num_requests_waiting")
PREEMPTIONS = _named("preemptions", "num_preemptions_total")
PREFIX_CACHE_QUERIES = _named(
    "prefix_cache_queries",
    "prefix_cache_queries_total",
    "gpu_prefix_cache_queries_total",
)
"""Tokens that were looked up."""
PREFIX_CACHE_HITS = _named(
    "prefix_cache_hits",
    "prefix_cache_hits_total",
    "gpu_prefix_cache_hits_total",
)
"""Tokens that were found."""
PROMPT_TOKENS = _named("prompt_tokens", "prompt_tokens_total")
GENERATION_TOKENS = _named("generation_tokens", "generation_tokens_total")
TIME_TO_FIRST_TOKEN = _named("time_to_first_token", "time_to_first_token_seconds")

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
