"""Metrics of vLLM that kvgate reads, under every name that releases gave them. The scraper, the rules and the dashboards use this table.

Kinds and releases are in `data/metric_names.csv`, which `make vllm-release` writes from the releases that were read.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import chain

from msgspec import Struct

from kvgate import bundle


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
    gpu_memory_utilization: float | None = None
    """Share of the GPU's memory that vLLM may take, as it runs; None where it is not reported."""
    usage_ratio: float | None = None
    """Share from 0 to 1; None where it is not reported. It does not count when two readings are compared."""
    missing: tuple[str, ...] = ()
    """Keys of NEEDED that the engine has under no name that is known, beside names that are not known either."""

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
    rows = (line.split(",") for line in bundle.lines("metric_names.csv")[1:])
    return {
        name: (kind, ScrapedName(name=f"vllm:{name}", since=since, removed_in=removed_in or None))
        for name, kind, since, removed_in in rows
    }


_SUFFIXES = ("", "_created", "_bucket", "_sum", "_count")


def is_known(name: str) -> bool:
    """Return True for the name of a series, or of a family, that some release has."""
    stems = [name.removeprefix("vllm:").removesuffix(suffix) for suffix in _SUFFIXES]
    return any(stem in _table() or f"{stem}_total" in _table() for stem in stems)


def _named(key: str, *names: str) -> EngineMetric:
    """Return a quantity with the kind and the releases that the table has for its names."""
    return EngineMetric(key=key, kind=_table()[names[0]][0], names=tuple(_table()[name][1] for name in names))


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
REQUEST_PROMPT_TOKENS = _named("request_prompt_tokens", "request_prompt_tokens")
REQUEST_GENERATION_TOKENS = _named("request_generation_tokens", "request_generation_tokens")
PROMPT_TOKENS = _named("prompt_tokens", "prompt_tokens_total")
GENERATION_TOKENS = _named("generation_tokens", "generation_tokens_total")
TIME_TO_FIRST_TOKEN = _named("time_to_first_token", "time_to_first_token_seconds")
INTER_TOKEN_LATENCY = _named("inter_token_latency", "inter_token_latency_seconds", "time_per_output_token_seconds")
"""Time between two tokens of a request; the older name counts the same thing."""
E2E_LATENCY = _named("e2e_latency", "e2e_request_latency_seconds")
"""Time from the arrival of a request to its last token."""
QUEUE_TIME = _named("queue_time", "request_queue_time_seconds")
REQUEST_SUCCESS = _named("request_success", "request_success_total")
"""Finished requests, with the label `finished_reason`: an abort and an error count too, whatever the name says."""

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
    INTER_TOKEN_LATENCY,
    E2E_LATENCY,
    QUEUE_TIME,
    REQUEST_SUCCESS,
)
"""Metrics that an engine exports whatever its settings are."""
NEEDED = (KV_CACHE_USAGE, REQUESTS_RUNNING, REQUESTS_WAITING, PREEMPTIONS, GENERATION_TOKENS)
"""Metrics without which the alerts see nothing."""

EXTERNAL_PREFIX_CACHE_QUERIES = _named("external_prefix_cache_queries", "external_prefix_cache_queries_total")
"""Tokens that were looked up in the KV connector, because the engine's own prefix cache did not have them."""
EXTERNAL_PREFIX_CACHE_HITS = _named("external_prefix_cache_hits", "external_prefix_cache_hits_total")
KV_OFFLOAD_LOADED = _named("kv_offload_loaded", "kv_offload_load_bytes_total")
KV_OFFLOAD_STORED = _named("kv_offload_stored", "kv_offload_store_bytes_total")
KV_OFFLOAD_HOST_USAGE = _named("kv_offload_host_usage", "kv_offload_cpu_cache_usage_perc")
"""Share from 0 to 1 of the host's part of the KV cache."""
KV_OFFLOAD_FAILURES = _named("kv_offload_failures", "kv_offload_allocation_failure_total")
KV_OFFLOAD_TIER_QUERIES = _named("kv_offload_tier_queries", "kv_offload_tiering_chunk_queries_total")
"""Chunks that were looked up in a tier behind the host's memory, with the label `tier`."""
KV_OFFLOAD_TIER_HITS = _named("kv_offload_tier_hits", "kv_offload_tiering_chunk_hits_total")
KV_TRANSFER_SECONDS = _named("kv_transfer_seconds", "nixl_xfer_time_seconds")
"""Time of one transfer of KV cache from a prefill pod."""
KV_TRANSFER_BYTES = _named("kv_transfer_bytes", "nixl_bytes_transferred")
KV_TRANSFER_FAILURES = _named("kv_transfer_failures", "nixl_num_failed_transfers_total")
KV_TRANSFER_EXPIRED = _named("kv_transfer_expired", "nixl_num_kv_expired_reqs_total")
"""Requests whose KV cache a prefill pod dropped because no decode pod fetched it in time."""
LORA_INFO = _named("lora_info", "lora_requests_info")
"""Time of the last change in seconds since 1970; the adapters are in the labels, so each change is a new series."""

OPTIONAL_METRICS = (
    EXTERNAL_PREFIX_CACHE_QUERIES,
    EXTERNAL_PREFIX_CACHE_HITS,
    KV_OFFLOAD_LOADED,
    KV_OFFLOAD_STORED,
    KV_OFFLOAD_HOST_USAGE,
    KV_OFFLOAD_FAILURES,
    KV_OFFLOAD_TIER_QUERIES,
    KV_OFFLOAD_TIER_HITS,
    KV_TRANSFER_SECONDS,
    KV_TRANSFER_BYTES,
    KV_TRANSFER_FAILURES,
    KV_TRANSFER_EXPIRED,
    LORA_INFO,
)
"""Metrics of newer releases, or of engines with a KV connector or adapters."""

SCRAPED_NAMES = frozenset(
    chain.from_iterable((name.name for name in metric.names) for metric in (*ENGINE_METRICS, *OPTIONAL_METRICS))
)
