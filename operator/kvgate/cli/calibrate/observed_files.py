"""A start-up log or a `/metrics` file, and the settings that it does not hold → an observed start."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import Budget, ObservedStart, is_unreleased, plan
from kvgate.budget.gpu.non_torch import startup_slack
from kvgate.budget.ground.units import format_gib, gib
from kvgate.calibration.observed import (
    NEIGHBOUR_BYTES,
    SAME_GPU_PERCENT,
    gpu_at_start,
    impossible_text,
    start_of_blocks,
    start_of_bytes,
)
from kvgate.documents.bounded_files import Refused, read_file
from kvgate.findings.finding import Severity
from kvgate.judgement.what_if import read_request
from kvgate.sources.engine_metrics import NotAnEngine, UnreadableMetrics, read_engine
from kvgate.sources.startup_log import RankMemory, StartupLog, UnusableLog, read_startup_log
from kvgate.statement.what_if import BadRequest
from kvgate.vllm.metric_names import CACHE_CONFIG_INFO

MAX_FILE_BYTES = 32 << 20
"""Largest log or `/metrics` file; a start prints less than one MiB."""
_METRICS = tuple(name.name.replace(":", sign) for name in CACHE_CONFIG_INFO.names for sign in ":_")
"""Names of metrics that are in every `/metrics` file, and in no log."""


_SIZE_GIVEN = (
    "the size of the KV cache was set (kv_cache_memory_bytes or num_gpu_blocks_override): nothing was predicted"
)


class UnusableFile(ValueError):
    """The file holds no start that can be remembered; the message says why and what to do."""


def observed_in(path: Path, given: Mapping[str, Any]) -> tuple[ObservedStart, str]:
    """Return the start and a remark about it. Settings that are given win over those in the file. Raises UnusableFile."""
    try:
        text = read_file(path, max_bytes=MAX_FILE_BYTES, inside=None).decode(errors="replace")
    except Refused as error:
        raise UnusableFile(f"{error}; give the start of the server, `head -n 5000`") from None
    except OSError as error:
        raise UnusableFile(f"it cannot be read: {error.strerror or error}") from None
    if not any(name in text for name in _METRICS):
        return _of_log(text, given, path.name)
    try:
        reading = read_engine(text.encode())
    except (NotAnEngine, UnreadableMetrics) as error:
        raise UnusableFile(f"it {error}; give all of what /metrics answers") from None
    if reading.is_size_given:
        raise UnusableFile(_SIZE_GIVEN)
    budget = _budget(dict(given))  # metrics do not hold the settings that led to the size
    blocks, size = reading.num_gpu_blocks, reading.block_size
    return _kept(start_of_blocks(budget, blocks, block_size=size, source=path.name), budget), ""


def _of_log(text: str, given: Mapping[str, Any], source: str) -> tuple[ObservedStart, str]:
    """Read the settings, and the memory or the blocks of the cache."""
    try:
        log = read_startup_log(text)
    except UnusableLog as error:
        raise UnusableFile(str(error)) from None
    if log.is_crash:
        cause = f": {log.refusal.sentence}" if log.refusal else ""
        raise UnusableFile(f"the start failed{cause}; a crash teaches no capacity, give the log of a start that worked")
    if is_unreleased(log.vllm_version or ""):
        raise UnusableFile(
            f"vLLM {log.vllm_version} is a development build or a fork, and may account for memory as no release does: it teaches nothing"
        )
    rank = log.tightest
    facts = {
        "model": log.model,
        "vllm_version": log.vllm_version,
        "gpu_memory_bytes": rank.total_bytes if rank else None,
    }
    known = {key: value for key, value in facts.items() if value is not None}
    values = {**log.arguments, **log.circumstances, **known, **given}
    budget = _budget(values)
    stored = log.quantization or log.arguments.get("quantization")
    if stored and rank and rank.weights_bytes and not _same_weights(rank.weights_bytes, budget):
        # a checkpoint of its own, whose format the catalogue does not have: what was loaded is in the log
        budget = _budget({**values, "weights_bytes": rank.weights_bytes})
    wrong = tuple(_contradictions(rank, budget)) if rank else ()
    shared = _neighbour(rank, budget) if rank else ""
    if shared and budget.accounting.whole_card_non_torch:
        wrong = (*wrong, f"{shared}, and vLLM {budget.request.vllm_version} counts its memory; leave this log out")
    if wrong:
        raise UnusableFile("; ".join(wrong))
    start = _logged_start(log, budget, source)
    if start is not None:
        start = replace(
            start, gpu_at_start=gpu_at_start(budget, ((rank.total_bytes, rank.free_bytes) for rank in log.ranks))
        )
    last = f"the last of {log.starts} starts in it counts" if log.starts > 1 else ""
    return _kept(start, budget), "; ".join(filter(None, (last, shared)))


def _logged_start(log: StartupLog, budget: Budget, source: str) -> ObservedStart | None:
    """Return the start by the memory of the cache, else by its blocks. Raises UnusableFile."""
    available_bytes = log.tightest.available_kv_cache_bytes if log.tightest else None
    if available_bytes is None and log.refusal:
        available_bytes = log.refusal.available_kv_cache_bytes
    if available_bytes is not None:
        cache = log.circumstances.get("compile_cache", "")
        is_refused = log.refusal is not None
        return start_of_bytes(budget, available_bytes, source=source, compile_cache=cache, is_refused=is_refused)
    if log.is_size_given:
        raise UnusableFile(_SIZE_GIVEN)
    if log.num_gpu_blocks is None:
        raise UnusableFile("it says neither the memory nor the blocks of the KV cache; give a log at level INFO")
    return start_of_blocks(budget, log.num_gpu_blocks, source=source)


def _budget(values: dict[str, Any]) -> Budget:
    try:
        request, findings = read_request(values, is_whole=True, is_parsed=True)
    except BadRequest as error:
        raise UnusableFile(f"{error}; options of the same name win over what the file says") from None
    missing = [f"{f.message}; {f.remediation}" for f in findings if f.severity is not Severity.INFO]
    if request is None:
        raise UnusableFile("; ".join(missing))
    if not values.get(
        "gpu"
    ):  # the memory of the GPU, which a log may hold, does not identify the GPU of the next start
        raise UnusableFile("it does not name the GPU; give --gpu and a name that `kvgate gpus` lists")
    return plan(request)


def _kept(start: ObservedStart | None, budget: Budget) -> ObservedStart:
    if start is not None:
        if impossible := impossible_text(start):
            raise UnusableFile(impossible)
        return start
    if budget.request.settings.gives_cache_memory or budget.pin:
        raise UnusableFile(_SIZE_GIVEN)
    raise UnusableFile(
        f"no formula for {', '.join(budget.unmodelled) or 'this model'}: there is no prediction to correct"
    )


# ── figures that cannot all be true, or that do not belong to the GPU and the model that were given ──

_ROUNDING_BYTES = gib(0.05)
"""A log rounds each of up to five figures to 0.01 GiB, and the memory of the GPU, of which a share is requested."""
_SAME_WEIGHTS_PERCENT = 25
"""Repacked and padded weights differ by less from the computed ones: at most 10 % in the logged starts of known checkpoints."""
_GIB_IN_GB, _SAME_UNIT = 2**30 / 10**9, 0.01
"""GiB → GB, and how near to it a ratio means that a log was written in GB."""


def _contradictions(rank: RankMemory, budget: Budget) -> Iterator[str]:
    """Yield every contradiction in a rank's figures, with the figures and what to do."""
    request, ledger = budget.request, budget.tightest.ledger if budget.tightest else None
    if ledger is None:
        return
    known = catalogue.find_accelerator(request.accelerator.name)
    total, weights, available = rank.total_bytes, rank.weights_bytes, rank.available_kv_cache_bytes
    if known and total is not None and abs(total - known.memory_bytes) * 100 > known.memory_bytes * SAME_GPU_PERCENT:
        in_gb = abs(total / known.memory_bytes - _GIB_IN_GB) < _SAME_UNIT
        yield (
            f"it shows a GPU of {format_gib(total)}, and {known.name} has {format_gib(known.memory_bytes)}; "
            + (
                "these are GB of 10^9 bytes, so give the log as vLLM printed it"
                if in_gb
                else "give the GPU of the log with --gpu"
            )
        )
    else:  # vLLM takes the KV cache from what the other parts leave of the requested memory
        parts = {
            "weights": None if rank.consumed_bytes is not None else weights,
            "weights and memory outside torch": rank.consumed_bytes,
            "peak activation": rank.peak_activation_bytes,
            "KV cache": available,
        }
        stated = {name: size for name, size in parts.items() if size is not None}
        if available is not None and sum(stated.values()) > ledger.requested_bytes + _ROUNDING_BYTES:
            sizes = " + ".join(f"{format_gib(size)} {name}" for name, size in stated.items())
            yield (
                f"its figures are more than the {format_gib(ledger.requested_bytes)} that vLLM requested: {sizes}; give the GPU "
                "and the gpu_memory_utilization of the start, or leave this log out"
            )
    if total is not None and available is not None and available > total:
        yield f"it shows {format_gib(available)} for the KV cache on a GPU of {format_gib(total)}; leave this log out"
    if weights is not None and not _same_weights(weights, budget):
        yield (
            f"it shows {format_gib(weights)} of weights, and {format_gib(ledger.loaded_bytes)} are computed; give the model and the "
            "quantization that the server had"
        )


def _same_weights(logged_bytes: int, budget: Budget) -> bool:
    computed = budget.tightest.ledger.loaded_bytes if budget.tightest and budget.tightest.ledger else 0
    return abs(logged_bytes - computed) * 100 <= max(logged_bytes, computed) * _SAME_WEIGHTS_PERCENT


def _neighbour(rank: RankMemory, budget: Budget) -> str:
    """Return a remark if another process used the GPU when the engine started; empty if the log shows none."""
    request = budget.request
    if rank.total_bytes is None or rank.free_bytes is None:
        return ""
    own = startup_slack(request.accelerator, budget.accounting, request.settings.parallelism)
    held = rank.total_bytes - rank.free_bytes - own.expected
    if rank.total_bytes - rank.free_bytes <= own.high + NEIGHBOUR_BYTES:
        return ""
    return f"another process held about {format_gib(held)} of this GPU when the engine started"
