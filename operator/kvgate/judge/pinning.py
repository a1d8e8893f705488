"""A pinned capacity: the option of vLLM that pins it, and the options that would take from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvgate.budget import Budget, Capacity, parse_patch
from kvgate.findings.finding import (
    Change,
    Finding,
    SettingName,
    any_one,
    change,
    leave_out,
    words,
)
from kvgate.rules.pinned import CAPACITY_CONFLICT
from kvgate.statement.what_if import SIZES

_TAKEN_BY = {
    "enable_sleep_mode": "an engine that sleeps gives its KV cache back, and nothing promises that it gets the memory again",
    "mm_ipc_gpu_memory_gb": "vLLM takes this memory out of the KV cache that it is given",
}
"""Options after which vLLM has less than it is given: `sleep` (0.7+), and `reserve_mm_ipc_gpu_memory` (0.25+)."""
_PROFILED = change(Change.SET, "capacity", Capacity.PROFILED.value)


def conflicts(capacity: Capacity, values: Mapping[str, Any]) -> Iterator[Finding]:
    """Find the options, by vLLM's names, that exclude a pinned capacity."""
    for name, why in _TAKEN_BY.items() if capacity is Capacity.PINNED else ():
        if values.get(name):
            setting = SettingName(name)
            message = words("{capacity} Pinned and {setting} exclude each other: {why}", setting=setting, why=why)
            yield CAPACITY_CONFLICT.finding("capacity", message, any_one(leave_out(name), _PROFILED))


def pinned_option(budget: Budget) -> dict[str, int]:
    """Return the option that pins the size, under vLLM's name with its value; empty where nothing is pinned.

    A release without `--kv-cache-memory-bytes` (before 0.10.2) takes blocks, and so do Intel's workers, which do not read the bytes.
    """
    if budget.pin is None or not budget.pin.num_blocks:
        return {}
    from kvgate.vllm.options import options

    in_release = options()["--kv-cache-memory-bytes"].is_in(parse_patch(budget.request.vllm_version))
    if in_release and budget.request.accelerator.vendor != "intel":
        return {SIZES[0]: budget.pin.cache_memory_bytes}
    return {SIZES[1]: budget.pin.num_blocks}
