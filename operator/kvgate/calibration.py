"""Observed starts as text that can be kept, exported and committed: a header, then one JSON object per line.

The controller keeps it in a ConfigMap, `kvgate calibrate` writes the same into a file, and every door reads it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from kvgate.budget.calibration import Calibration, ObservedStart, StartKey, StartState
from kvgate.budget.interval import Interval
from kvgate.budget.ledger import observed_start
from kvgate.budget.plan import Budget
from kvgate.budget.units import format_gib, gib
from kvgate.record import record

FORMAT_VERSION = 1
HEADER = {"format": "kvgate-calibration", "version": FORMAT_VERSION}
MAX_STARTS = 1000
"""A ConfigMap holds 1 MiB, a start takes about 600 bytes; the oldest go first."""
MAX_STARTS_OF_A_SETTING = 8
MAX_PROBLEMS = 20
"""After so many broken lines a text is given up: it is something else."""
MAX_LINE_BYTES = 4096
MAX_TEXT_BYTES = (MAX_STARTS + 1) * MAX_LINE_BYTES
"""Of a file of starts, with its header."""
MAX_FIGURE = 1 << 50
"""A PiB; beyond the range of float nothing could even be told of it."""
LOG_ROUNDING_BYTES = gib(0.005)
"""Logs print GiB with two decimals."""

_KEY_TYPES = {field.name: field.type for field in fields(StartKey)}
_FIGURES = (
    "requested_bytes",
    "available_kv_cache_bytes",
    "resolution_bytes",
    "swing_bytes",
    "scatter_bytes",
    "revision",
)


@record
class Records:
    """What a text holds, and which of its lines could not be read."""

    starts: tuple[ObservedStart, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def calibration(self) -> Calibration:
        return Calibration(starts=self.starts)


def read_records(text: str) -> Records:
    """Every line that can be read; a line that cannot is named and costs no other."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        return Records()
    header = _header_problem(lines[0][1])
    if header:
        return Records(problems=(f"line {lines[0][0]}: {header}",))
    starts, problems = [], []
    for number, line in lines[1:]:
        try:
            starts.append(_start(line))
        except ValueError as error:
            problems.append(f"line {number}: {error}")
        if len(problems) == MAX_PROBLEMS:
            problems.append(f"line {number} is not the last of {len(lines)}: what follows was not read")
            break
    if len(starts) > MAX_STARTS:
        problems.append(f"{len(starts)} starts; the newest {MAX_STARTS} are used")
    return Records(starts=tuple(starts[-MAX_STARTS:]), problems=tuple(problems))


def write_records(starts: Iterable[ObservedStart]) -> str:
    """The text of them; reading it back gives the same starts."""
    lines = [json.dumps(HEADER), *(json.dumps(_object(start)) for start in starts)]
    return "\n".join(lines) + "\n"


def with_start(starts: tuple[ObservedStart, ...], start: ObservedStart) -> tuple[ObservedStart, ...]:
    """The starts and a new one under the next revision; the same object where it says nothing new, or no more than enough do."""
    alike = [known for known in starts if known.key == start.key]
    if any(abs(known.overhead_bytes - start.overhead_bytes) <= start.resolution_bytes for known in alike):
        return starts
    is_full = len(alike) >= MAX_STARTS_OF_A_SETTING
    if is_full and Calibration(starts=(*alike, start)).state(start) is not StartState.CONTRADICTORY:
        return starts  # it would only push out a start that a verdict stands on
    dropped = alike[0] if is_full else None
    kept = tuple(known for known in starts if known is not dropped)[-(MAX_STARTS - 1) :]
    newest = max((known.revision for known in starts), default=0)
    return (*kept, replace(start, revision=newest + 1))


def start_of_blocks(
    budget: Budget, num_gpu_blocks: int, *, block_size: int | None = None, source: str
) -> ObservedStart | None:
    """What an engine's blocks, of so many tokens, say of its tightest rank; None where the memory was given or has no formula."""
    stage = budget.tightest
    if stage is None or not stage.bytes_per_block:
        return None
    size = _block_bytes(budget, stage.bytes_per_block, block_size)
    return start_of_bytes(budget, num_gpu_blocks * size + size // 2, resolution_bytes=size // 2, source=source)


def _block_bytes(budget: Budget, expected_bytes: int, block_size: int | None) -> int:
    """Attention backends choose the block: the engine's may be another than the one that was expected."""
    groups = budget.kv_cache.groups if budget.kv_cache else ()
    expected = groups[0].spec.block_size if len(groups) == 1 else None
    return expected_bytes * block_size // expected if expected and block_size else expected_bytes


def start_of_bytes(
    budget: Budget, available_kv_cache_bytes: int, *, resolution_bytes: int = LOG_ROUNDING_BYTES, source: str
) -> ObservedStart | None:
    """The same of a figure in bytes, as a start-up log has it."""
    stage = budget.tightest
    if stage is None or stage.ledger is None or budget.request.settings.gives_cache_memory:
        return None
    return observed_start(
        budget.request, budget.settings, budget.accounting, (stage.first, stage.last),
        available_kv_cache_bytes=available_kv_cache_bytes, resolution_bytes=resolution_bytes, source=source,
    )  # fmt: skip


def unused_text(calibration: Calibration, start: ObservedStart) -> str | None:
    """Why a start corrects nothing, for people; None where it does."""
    state, key = calibration.state(start), start.key
    if state is StartState.USED:
        return None
    what = f"{start.source or 'a start'} of {key.architecture} on {key.accelerator}, vLLM {key.vllm_version}"
    seen = f"{format_gib(start.available_kv_cache_bytes)} of KV cache"
    if state is StartState.IMPLAUSIBLE:
        expected = format_gib(start.predicted.expected)
        return (
            f"{what} reported {seen} where {expected} was expected: not used; is it another setting, or a shared GPU?"
        )
    return (
        f"{what} reported {seen}, other starts of the setting something else: none is used; remove those that are wrong"
    )


def unused_texts(calibration: Calibration) -> Iterator[str]:
    """The same of all its starts."""
    return filter(None, (unused_text(calibration, start) for start in calibration.starts))


def _header_problem(line: str) -> str:
    try:
        header = json.loads(line[:MAX_LINE_BYTES])
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != HEADER["format"]:
        return f"this is no calibration: the first line must be {json.dumps(HEADER)}"
    if header.get("version") != FORMAT_VERSION:
        return f"version is {header.get('version')!r}; this release reads version {FORMAT_VERSION}"
    return ""


def _object(start: ObservedStart) -> dict[str, Any]:
    bounds = start.predicted
    return {
        **asdict(start.key),
        **{name: getattr(start, name) for name in _FIGURES},
        "predicted_bytes": [bounds.low, bounds.expected, bounds.high],
        "source": start.source,
    }


def _start(line: str) -> ObservedStart:
    """Raises ValueError that names the first thing that is wrong."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"{len(line)} characters; a start has at most {MAX_LINE_BYTES}")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON object: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - one kind of error for all that a line can have wrong
    low, expected, high = _predicted(found)
    return ObservedStart(
        key=StartKey(**{name: _typed(found, name, kind) for name, kind in _KEY_TYPES.items()}),
        predicted=Interval(low=low, expected=expected, high=high),
        source=str(found.get("source", ""))[:200],
        **{name: _figure(found, name) for name in _FIGURES},
    )


def _predicted(found: Mapping[str, Any]) -> list[int]:
    bounds = found.get("predicted_bytes")
    if not (isinstance(bounds, list) and len(bounds) == 3 and all(type(bound) is int for bound in bounds)):
        raise ValueError(f"predicted_bytes is {bounds!r}; it must be [low, expected, high] in bytes")
    if max(map(abs, bounds)) > MAX_FIGURE:
        raise ValueError(f"predicted_bytes holds a figure beyond {MAX_FIGURE}")
    if bounds != sorted(bounds):
        raise ValueError(f"predicted_bytes is {bounds}; low, expected and high must not fall")
    return bounds


def _figure(found: Mapping[str, Any], name: str) -> int:
    """Only what became of the budget may be below 0: it may have been overdrawn."""
    value: int = _typed(found, name, int)
    least = -MAX_FIGURE if name == "available_kv_cache_bytes" else 0
    if not least <= value <= MAX_FIGURE:
        raise ValueError(f"{name} is not within {least} and {MAX_FIGURE}")
    return value


def _typed(found: Mapping[str, Any], name: str, kind: Any) -> Any:
    value = found.get(name)
    if type(value) is not kind:
        raise ValueError(f"{name} is {value!r}; it must be of type {kind.__name__}")
    return value
