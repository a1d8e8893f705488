"""The table of figures: every number of a judgement with its name, unit, meaning, and the places where it is shown.

The fields of the API's status, the records of the JSON reports, the metrics, the labels of the tables for people and the page of figures
in docs/reference take names and words from here, and values from `figures_of`.
"""

from collections.abc import Mapping

from msgspec import Meta

from kvgate.budget.answers.answer import Budget
from kvgate.budget.answers.figure_values import (
    Figure,
    FiguresOfBudget,
    available_kv_cache_bytes,
    capacity_bytes,
    demand_tokens,
    full_length_requests,
    headroom_ratio,
    max_model_len_that_fits,
    of_cache,
    of_ledger,
)

_PER_GPU = "on the GPU with the least room"
_TERMS = (
    ("weights", "weights", 'Bytes of the weights as loaded, which vLLM logs as "Model loading took"'),
    ("peak_activation", "peak activation", "Bytes of the activations at the peak of the profile run, above the weights"),
    ("non_torch", "non-torch", "Bytes that the driver and NCCL take outside of torch"),
    ("cuda_graph", "CUDA graphs", "Bytes that are reserved for CUDA graphs"),
    ("lora", "LoRA slots", "Bytes of the slots for LoRA adapters; absent or 0 where none are served"),
)  # fmt: skip
"""Name of a term in the ledger, label, meaning."""
LEDGER_TERMS = tuple(name for name, *_ in _TERMS)


def _term(name: str, label: str, meaning: str) -> Figure:
    parts = name.split("_")
    return Figure(
        name=f"{name}_bytes",
        unit="bytes",
        help=f"{meaning}.",
        value=of_ledger(lambda ledger: dict(ledger.terms).get(name)),
        json=(f"ledger.{name}_bytes", f"ledger.terms.{name}"),
        status=f"budget.ledger.{parts[0]}{''.join(map(str.title, parts[1:]))}Bytes",
        metric="kvgate_gpu_memory_bytes",
        label=label,
    )


_HOST_TERMS = (
    ("processes", "processes", "the processes themselves: API servers, engines and ranks"),
    ("token_ids", "request tokens", "the tokens of requests"),
    ("offloaded_weights", "offloaded weights", "weights and adapters that are kept there"),
    ("kv_offload", "offloaded KV cache", "blocks of the KV cache that are offloaded"),
    ("swap_space", "swap space", "blocks that V0 may swap out"),
    ("transfer_buffers", "transfer buffers", "copies of the KV cache that pass through the host"),
    ("loading", "loading", "files that are read before they go to the GPU"),
    ("mm_cache", "prepared images", "prepared images and other media that are kept"),
    ("sleep", "sleeping weights", "weights that wait there while the engine sleeps"),
    ("messages", "queues and NCCL", "queues between the ranks, and segments of NCCL"),
)
"""Name of a term in the ledger of a pod, label, the part of the memory that it is."""


def _host_term(name: str, label: str, part: str) -> Figure:
    return Figure(
        name=f"host_{name}_bytes",
        unit="bytes",
        help=f"Bytes of the host that one pod takes for {part}.",
        value=lambda of: next((line.amount for line in of.host.lines if line.name == name), None),
        json=(f"host.terms.{name}",),
        label=label,
    )


_PINNED = (
    ("pinned_blocks", "num_blocks", "numBlocks", "", "Number of KV cache blocks that admission.capacity Pinned gives to one engine"),
    ("pinned_tokens", "num_tokens", "capacityTokens", "kvgate_pinned_kv_cache_tokens",
     "KV cache that admission.capacity Pinned gives to one engine, in tokens, as vLLM prints it"),
    ("pinned_bytes", "kv_cache_bytes", "kvCacheBytes", "", f"Bytes of the pinned KV cache {_PER_GPU}"),
    ("profiled_kv_cache_bytes", "profiled_bytes", "profiledKvCacheBytes", "",
     "Bytes that vLLM would find itself with capacity Profiled, on the same GPU"),
    ("forgone_bytes", "forgone_bytes", "forgoneBytes", "kvgate_forgone_kv_cache_bytes",
     f"Bytes that are given away: what vLLM is expected to find itself, less what is pinned, {_PER_GPU}"),
    ("forgone_tokens", "forgone_tokens", "forgoneTokens", "", "Tokens that are given away for a pinned size"),
)  # fmt: skip
"""Name, field of PinnedCapacity, key in the status, metric, meaning; absent where vLLM measures."""


def _pinned(name: str, field: str, key: str, metric: str, meaning: str) -> Figure:
    return Figure(
        name=name,
        unit=name.rpartition("_")[2],
        help=f"{meaning}; absent where vLLM measures.",
        value=lambda of: getattr(of.budget.pinned, field) if of.budget.pinned else None,
        json=(f"kv_cache.pinned.{'profiled_kv_cache_bytes' if field == 'profiled_bytes' else field}",),
        size="pinned_blocks" if name == "pinned_blocks" else "",
        status=f"budget.pinned.{key}",
        metric=metric,
        label="pinned" if name == "pinned_bytes" else "",
    )


_ROWS = (
    Figure(
        name="capacity_tokens",
        unit="tokens",
        help="Predicted size of one engine's KV cache in tokens, as vLLM prints it.",
        value=lambda of: of.budget.num_tokens,
        json=("kv_cache.tokens", "kv_cache.num_tokens"),
        status="budget.capacityTokens",
        metric="kvgate_kv_cache_capacity_tokens",
        label="tokens",
    ),
    Figure(
        name="capacity_bytes",
        unit="bytes",
        help=f"Predicted bytes of the KV cache {_PER_GPU}; 0 where nothing is left for it.",
        value=capacity_bytes,
        json=("kv_cache.bytes",),
        metric="kvgate_kv_cache_capacity_bytes",
    ),
    Figure(
        name="available_kv_cache_bytes",
        unit="bytes",
        help=f"Predicted bytes that are left for the KV cache {_PER_GPU}; negative where the other terms take more than is requested.",
        value=available_kv_cache_bytes,
        json=("ledger.available_kv_cache_bytes",),
        size="available_kv_cache_bytes",
        status="budget.availableKvCacheBytes",
        label="= for the KV cache",
    ),
    Figure(
        name="num_blocks",
        unit="blocks",
        help="Predicted number of KV cache blocks of one engine, with the null block.",
        value=lambda of: of.budget.num_blocks,
        json=("kv_cache.blocks", "kv_cache.num_blocks"),
        label="blocks",
    ),
    Figure(
        name="full_length_requests",
        unit="requests",
        help="Predicted number of requests of max_model_len tokens that one engine's KV cache holds at once.",
        value=full_length_requests,
        json=("kv_cache.requests", "kv_cache.max_concurrency"),
        status="budget.maxConcurrency",
        metric="kvgate_full_length_requests",
        label="full requests",
    ),
    Figure(
        name="requests_held",
        unit="requests",
        help="Requests that the KV cache is expected to hold at once: of the declared workload, else of max_model_len.",
        value=lambda of: of.budget.requests_held,
        json=("starts.requests", "holds.requests"),
        label="requests",
    ),
    Figure(
        name="demand_bytes",
        unit="bytes",
        help=f"Bytes of KV cache that the guarantee needs {_PER_GPU}.",
        value=lambda of: of.budget.demand_bytes,
        json=("kv_cache.demand_bytes",),
        size="demand_bytes",
        sweep="demand_bytes",
        status="budget.demandBytes",
        metric="kvgate_kv_cache_demand_bytes",
    ),
    Figure(
        name="demand_tokens",
        unit="tokens",
        help="KV cache that the guarantee needs, in tokens of one engine, counted as the capacity is.",
        value=demand_tokens,
        json=("kv_cache.demand_tokens",),
        metric="kvgate_kv_cache_demand_tokens",
    ),
    Figure(
        name="headroom_bytes",
        unit="bytes",
        help=f"Predicted bytes of KV cache beyond the demand {_PER_GPU}; negative where the demand does not fit. "
        "No request that runs counts here.",
        value=lambda of: of.budget.headroom,
        json=("kv_cache.headroom_bytes",),
        size="headroom_bytes",
        status="budget.headroomBytes",
        metric="kvgate_kv_cache_headroom_bytes",
        label="headroom",
    ),
    Figure(
        name="headroom_ratio",
        unit="ratio",
        help="Predicted headroom as a share of the expected KV cache: (capacity − demand of the answer that decides) / expected capacity; "
        "absent or null where no KV cache is expected.",
        value=headroom_ratio,
        json=("kv_cache.headroom_ratio",),
        size="headroom_ratio",
        sweep="headroom_ratio",
        metric="kvgate_kv_cache_headroom_ratio",
    ),
    Figure(
        name="headroom_percent",
        unit="percent",
        help="Predicted headroom in percent of the expected KV cache, rounded down; absent where no KV cache is expected.",
        value=lambda of: of.budget.headroom_percent,
        status="budget.headroomPercent",
        label="headroom",
    ),
    Figure(
        name="request_blocks",
        unit="blocks",
        help="Blocks of one request of max_model_len tokens.",
        value=of_cache(lambda cache: cache.request_blocks),
        json=("kv_cache.request_blocks",),
    ),
    Figure(
        name="request_bytes",
        unit="bytes",
        help=f"Bytes of the KV cache of one request of max_model_len tokens {_PER_GPU}.",
        value=of_cache(lambda cache: cache.request_bytes),
        json=("kv_cache.request_bytes",),
        label="one request",
    ),
    Figure(
        name="bytes_per_block",
        unit="bytes",
        help="Bytes of one block of the KV cache, of all its groups.",
        value=of_cache(lambda cache: cache.bytes_per_block),
        json=("kv_cache.bytes_per_block",),
        label="bytes per block",
    ),
    Figure(
        name="max_model_len_that_fits",
        unit="tokens",
        help="Tokens of the longest request, up to max_model_len, that the expected KV cache holds.",
        value=max_model_len_that_fits,
        json=("kv_cache.max_model_len_that_fits",),
        label="longest",
    ),
    Figure(
        name="auto_max_model_len",
        unit="tokens",
        help="Predicted tokens of the longest request with which `--max-model-len auto` starts; absent where a length is given.",
        value=lambda of: of.budget.auto_lengths,
        json=("kv_cache.auto_max_model_len",),
        size="auto_max_model_len",
        status="budget.autoMaxModelLen",
        metric="kvgate_auto_max_model_len_tokens",
        label="auto starts with",
    ),
    Figure(
        name="total_bytes",
        unit="bytes",
        help="Bytes of memory of the GPU, as the catalogue has it.",
        value=of_ledger(lambda ledger: ledger.total_bytes),
        json=("ledger.total_bytes",),
        status="budget.ledger.totalBytes",
        metric="kvgate_gpu_memory_total_bytes",
        label="GPU memory",
    ),
    Figure(
        name="requested_bytes",
        unit="bytes",
        help="Bytes that vLLM may use of one GPU: the share gpu_memory_utilization of the memory.",
        value=of_ledger(lambda ledger: ledger.requested_bytes),
        json=("ledger.requested_bytes",),
        status="budget.ledger.requestedBytes",
        metric="kvgate_gpu_memory_requested_bytes",
        label="requested",
    ),
    Figure(
        name="parameter_bytes",
        unit="bytes",
        help="Sum of the parameters of the rank in bytes; null where the bytes of the weights are given.",
        value=of_ledger(lambda ledger: ledger.parameter_bytes),
        json=("ledger.parameter_bytes",),
    ),
    *(_term(*term) for term in _TERMS),
    Figure(
        name="host_bytes",
        unit="bytes",
        help="Bytes of the rank's weights and adapters that are kept in host memory.",
        value=of_ledger(lambda ledger: ledger.host_bytes),
        json=("ledger.host_bytes",),
    ),
    Figure(
        name="observed_starts",
        unit="starts",
        help="Number of observed starts that correct the prediction; absent where there were none. In the status, starts with the same "
        "settings alone count.",
        value=of_ledger(lambda ledger: ledger.correction.starts if ledger.correction else None),
        json=("ledger.calibration.starts",),
        status="budget.observedStarts",
    ),
    *(_pinned(*row) for row in _PINNED),
    Figure(
        name="host_memory_bytes",
        unit="bytes",
        help="Bytes of the host that one pod takes, with those in /dev/shm. The low end is what certainly counts against its limit.",
        value=lambda of: of.host.needs,
        json=("host.needs_bytes",),
        status="budget.hostMemory.needsBytes",
        metric="kvgate_host_memory_bytes",
        label="host memory of a pod",
    ),
    Figure(
        name="shared_memory_bytes",
        unit="bytes",
        help="Bytes that are expected in /dev/shm, which should have no less.",
        value=lambda of: of.host.shared_needs,
        json=("host.shared_memory_bytes",),
        status="budget.hostMemory.sharedMemoryBytes",
        label="of it in /dev/shm",
    ),
    *(_host_term(*term) for term in _HOST_TERMS),
    Figure(
        name="page_cache_bytes",
        unit="bytes",
        help="Bytes that make the start faster, and that the kernel takes back under pressure.",
        value=lambda of: sum(line.amount.expected for line in of.host.wanted),
        json=("host.page_cache_bytes",),
        label="page cache",
    ),
)
FIGURES: Mapping[str, Figure] = {row.name: row for row in _ROWS}
"""The rows by name."""


def figures_of(budget: Budget) -> FiguresOfBudget:
    """Return the figures of a judgement: the one computation that all doors show."""
    return FiguresOfBudget(budget, FIGURES)


def described(name: str) -> Meta:
    """Return the meaning of a figure as the description of a JSON record's key."""
    return Meta(description=FIGURES[name].help)


def label_of(name: str) -> str:
    return FIGURES[name].label


def head_of(name: str) -> str:
    """Return the head of a column that shows a figure."""
    return label_of(name).upper()


def host_label(term: str) -> str:
    """Return the name of a term of the ledger of a pod in tables and messages for people."""
    return label_of(f"{term}_bytes" if term == "page_cache" else f"host_{term}_bytes")
