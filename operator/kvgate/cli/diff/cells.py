"""Cells of a table of changes: before → after, in words for people."""

import json
from collections.abc import Sequence
from typing import Any

from kvgate.budget.units import format_gib
from kvgate.cli.check.report import Item
from kvgate.cli.check.text import outcome
from kvgate.cli.diff.report import Capacity, Change, Diff, capacity_of
from kvgate.vllm.options import ChangedDefault

HEAD = ("engine", "verdict", "KV cache tokens", "blocks", "max concurrency", "headroom per GPU")


def cells(change: Change) -> Sequence[str]:
    """Return as many cells as HEAD has."""
    before, after = change.before, change.after
    old, new = capacity_of(before) if before else None, capacity_of(after) if after else None
    return (
        change.item.subject + (f" ({change.kind})" if change.kind in ("new", "removed") else ""),
        _arrow(_verdict(before), _verdict(after)),
        *(_arrow(*pair) + share for pair, share in zip(_texts(old, new), _shares(old, new), strict=True)),
    )


def _verdict(item: Item | None) -> str | None:
    return f"{item.verdict}, {outcome(item)}" if item and item.verdict else outcome(item) if item else None


def assumptions(change: Change) -> str:
    """Return the assumptions about facts that the manifest does not state, before → after; empty where there are none."""
    old, new = ("; ".join(item.assumed) if item else None for item in (change.before, change.after))
    return _arrow(*(None if side is None else side or "nothing" for side in (old, new))) if old or new else ""


def release_change(change: Change) -> str:
    """`vLLM 0.19.1 → 0.20.0`."""
    old, new = (item.vllm_version if item else None for item in (change.before, change.after))
    return f"vLLM {_arrow(old, new)}"


def default_texts(changed: ChangedDefault) -> tuple[str, str]:
    """The option, and its default before → after."""
    return changed.flag, _arrow(*(_default_text(value) for value in (changed.before, changed.after)))


def _default_text(value: Any) -> str:
    """Write a default as on a command line; without one vLLM decides."""
    if value is None or value == "":
        return "unset"
    return value if isinstance(value, str) else json.dumps(value)


def _arrow(before: str | None, after: str | None) -> str:
    if before is None or after is None or before == after:
        return after or before or ""
    return f"{before} → {after}"


def _texts(old: Capacity | None, new: Capacity | None) -> Sequence[tuple[str | None, str | None]]:
    return list(zip(_written(old), _written(new), strict=True))


def _written(capacity: Capacity | None) -> tuple[str | None, ...]:
    if capacity is None:
        return (None,) * 4
    tokens, blocks = (
        f"{value:,}" if value is not None else "?" for value in (capacity.num_tokens, capacity.num_blocks)
    )
    times = f"{capacity.max_concurrency:.2f}" if capacity.max_concurrency is not None else "?"
    headroom = format_gib(capacity.headroom_bytes) if capacity.headroom_bytes is not None else "?"
    return tokens, blocks, times, headroom


def _shares(old: Capacity | None, new: Capacity | None) -> tuple[str, str, str, str]:
    """Return the change of the tokens in percent; the other figures follow from them."""
    before, after = (capacity.num_tokens if capacity else None for capacity in (old, new))
    if not before or after is None or before == after:
        return "", "", "", ""
    return f" ({round(100 * (after - before) / before):+d} %)", "", "", ""


def summary(diff: Diff) -> str:
    """Count the changes, and say whether they are for the worse."""
    kinds = [change.kind for change in diff.changes]
    counts = [f"{kinds.count(kind)} {kind}" for kind in ("changed", "new", "removed", "unchanged") if kind in kinds]
    noun = "engine" if len(kinds) == 1 else "engines"
    parts = [f"{len(kinds)} {noun}: {', '.join(counts)}" if kinds else "no vLLM engine in either"]
    worse = sum(change.is_worse for change in diff.changes)
    if worse:
        parts.append(
            f"{worse} that would not start, or would be refused, and {'was' if worse == 1 else 'were'} not before"
        )
    if diff.unreadable:
        parts.append(f"{len(diff.unreadable)} could not be read")
    return "; ".join(parts)
