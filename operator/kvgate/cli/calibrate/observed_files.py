"""A start-up log or a `/metrics` file and the settings that it does not tell → an observed start."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvgate.budget.calibration import ObservedStart
from kvgate.budget.plan import Budget, plan
from kvgate.calibration.records import start_of_blocks, start_of_bytes
from kvgate.documents.bounded_files import Refused, read_file
from kvgate.judge.what_if import BadRequest, read_request
from kvgate.rules.finding import Severity
from kvgate.sources.engine_metrics import NotAnEngine, UnreadableMetrics, read_engine
from kvgate.sources.startup_log import StartupLog, UnusableLog, read_startup_log
from kvgate.vllm.metric_names import CACHE_CONFIG_INFO

MAX_FILE_BYTES = 32 << 20
"""Size of a log or a `/metrics` file; a start prints less than one MiB."""
_METRICS = tuple(name.name.replace(":", sign) for name in CACHE_CONFIG_INFO.names for sign in ":_")
"""Names by which a `/metrics` file differs from a log."""


class Unusable(ValueError):
    """Nothing can be remembered of it; the message says why and what to do."""


def observed_in(path: Path, given: Mapping[str, Any]) -> tuple[ObservedStart, str]:
    """The start, and what to know of it; raises Unusable. What is given wins over what the file says."""
    text = _read(path)
    if any(name in text for name in _METRICS):
        return _of_metrics(text, given, path.name), ""
    return _of_log(text, given, path.name)


def _of_metrics(text: str, given: Mapping[str, Any], source: str) -> ObservedStart:
    """Metrics tell the cache and not the setting."""
    try:
        reading = read_engine(text.encode())
    except (NotAnEngine, UnreadableMetrics) as error:
        raise Unusable(f"it {error}; give all of what /metrics answers") from None
    budget = _budget(dict(given))
    blocks, size = reading.num_gpu_blocks, reading.block_size
    return _kept(start_of_blocks(budget, blocks, block_size=size, source=source), budget)


def _of_log(text: str, given: Mapping[str, Any], source: str) -> tuple[ObservedStart, str]:
    try:
        log = read_startup_log(text)
    except UnusableLog as error:
        raise Unusable(str(error)) from None
    budget = _budget({**_asked(log), **given})
    available_bytes = _available_bytes(log)
    if available_bytes is not None:
        start = start_of_bytes(budget, available_bytes, source=source)
    elif log.num_gpu_blocks is not None:
        start = start_of_blocks(budget, log.num_gpu_blocks, source=source)
    else:
        raise Unusable("it says neither the memory nor the blocks of the KV cache; give a log at level INFO")
    return _kept(start, budget), f"the last of {log.starts} starts in it counts" if log.starts > 1 else ""


def _read(path: Path) -> str:
    try:
        data = read_file(path, max_bytes=MAX_FILE_BYTES, inside=None)
    except Refused as error:
        raise Unusable(f"{error}; give the start of the server, `head -n 5000`") from None
    except OSError as error:
        raise Unusable(f"it cannot be read: {error.strerror or error}") from None
    return data.decode(errors="replace")


def _asked(log: StartupLog) -> dict[str, Any]:
    """The request keys that the log tells."""
    rank = log.tightest
    told = {
        "model": log.model,
        "vllm_version": log.vllm_version,
        "gpu_memory_bytes": rank.total_bytes if rank else None,
    }
    return {**log.arguments, **{key: value for key, value in told.items() if value is not None}}


def _available_bytes(log: StartupLog) -> int | None:
    rank = log.tightest
    if rank is not None and rank.available_kv_cache_bytes is not None:
        return rank.available_kv_cache_bytes
    return log.refusal.available_bytes if log.refusal else None


def _budget(values: dict[str, Any]) -> Budget:
    try:
        request, findings = read_request(values, is_whole=True)
    except BadRequest as error:
        raise Unusable(f"{error}; options of the same name win over what the file says") from None
    missing = [f"{f.message}; {f.remediation}" for f in findings if f.severity is not Severity.INFO]
    if request is None:
        raise Unusable("; ".join(missing))
    if not values.get("gpu"):  # its memory, which a log may tell, is no name by which the next start is found
        raise Unusable("it does not tell which GPU; give --gpu and a name that `kvgate gpus` lists")
    return plan(request)


def _kept(start: ObservedStart | None, budget: Budget) -> ObservedStart:
    if start is not None:
        return start
    if budget.request.settings.gives_cache_memory:
        raise Unusable(
            "the KV cache was given by hand (kv_cache_memory_bytes or num_gpu_blocks_override): nothing was predicted"
        )
    raise Unusable(f"no formula for {', '.join(budget.unmodelled) or 'this model'}: there is no prediction to correct")
