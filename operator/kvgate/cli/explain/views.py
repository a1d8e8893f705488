"""The views of `kvgate explain`: one figure with its formula (`--why`), and static against paged allocation (`--paging`)."""

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any

from kvgate.budget import Budget
from kvgate.budget.ground.units import MIB, format_gib
from kvgate.explained.explanations import TERMS, Explanation, explain_term, format_bytes, term_named
from kvgate.explained.paging import Paged, default_lengths, paging_of
from kvgate.vllm.values import UnusableValue

# ── --why ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def why_lines(budget: Budget | None, term: str) -> Iterator[str]:
    """Return the figure, its formula, the numbers in it, its source and doubt, its inputs and parts. Raises UnusableValue."""
    figure = _explained(budget, term)
    if figure is None:
        yield f"{term}: not known; kvgate explain without --why says what is missing"
        return

    def in_unit(value: int) -> str:
        return format_bytes(value) if figure.unit == "bytes" else f"{value} {figure.unit}"

    low, expected, high = figure.amount.low, figure.amount.expected, figure.amount.high
    whole = f" ({expected} bytes)" if figure.unit == "bytes" else ""
    between = "exactly" if low == high else f"{in_unit(low)} to {in_unit(high)}"
    yield f"{figure.name}: {in_unit(expected)}{whole}, {between}"
    remarks = (
        ("formula", figure.formula),
        ("numbers", figure.numbers),
        ("source", figure.source),
        ("may be off", figure.doubt),
        *zip(chain(["notes"], repeat("")), figure.notes, strict=False),
    )
    yield from (f"  {label:<12}{text}" for label, text in remarks if text)
    if figure.inputs:
        yield "  inputs"
    for name, value in figure.inputs:
        text = format_bytes(value) if name.endswith("_bytes") and isinstance(value, int) else str(value)
        yield f"    {name:<26}{text:>16}"
    if figure.parts:
        yield "  parts"
        yield from (f"    {part.name:<26}{format_bytes(part.size_bytes):>16}" for part in figure.parts)
        yield f"    {'sum':<26}{format_bytes(sum(part.size_bytes for part in figure.parts)):>16}"


def why_json(budget: Budget | None, term: str) -> dict[str, Any] | None:
    """Return the same for programs; null where it is not known. Raises UnusableValue."""
    figure = _explained(budget, term)
    if figure is None:
        return None
    return {
        "term": figure.name,
        "unit": figure.unit,
        "low": figure.amount.low,
        "expected": figure.amount.expected,
        "high": figure.amount.high,
        "formula": figure.formula,
        "numbers": figure.numbers or None,
        "source": figure.source,
        "may_be_off": figure.doubt,
        "inputs": dict(figure.inputs),
        "parts": [{"name": part.name, "bytes": part.size_bytes} for part in figure.parts],
        "notes": list(figure.notes),
    }


def _explained(budget: Budget | None, term: str) -> Explanation | None:
    name = term_named(term)
    if name is None:
        raise UnusableValue(f"--why {term}: there is no such figure; name one of {', '.join(TERMS)}")
    return explain_term(budget, name) if budget else None


# ── --paging ──────────────────────────────────────────────────────────────────────────────────────────────────────


def paging_lines(budget: Budget | None, lengths: tuple[int, ...]) -> Iterator[str]:
    """Return the bytes that a static slot reserves, one table for every length, and the averages. Raises UnusableValue."""
    sizes = _paged(budget, lengths)
    if budget is None or not sizes:
        yield "Paging: there is no KV cache to divide, or no formula for it"
        return
    longest, current = budget.resolved.max_model_len, next(size for size in sizes if size.in_use)
    pool = "" if current.num_blocks is None else f"{current.num_blocks} blocks of {current.block_size} tokens; "
    yield f"Paging: {pool}a static slot reserves max_model_len {longest} tokens, {format_gib(current.slot_bytes)}"
    if current.static_concurrency is not None:
        null = " beside the null block" if budget.kv_cache and budget.kv_cache.null_blocks else ""
        yield f"  static slots: {current.static_slots}{null} (vLLM prints {float(current.static_concurrency):.2f}x)"
    for index, request in enumerate(current.requests):
        share = (current.slot_bytes - request.held_bytes) / current.slot_bytes
        yield ""
        yield (
            f"  requests of {request.tokens} tokens: {longest - request.tokens} tokens of a static slot stay empty, "
            f"{share * 100:.1f} % of its bytes"
        )
        yield from _table(sizes, index)
    yield ""
    for size in sizes:
        mean = f"{float(size.mean_wasted_tokens):.1f} tokens, {float(size.mean_wasted_bytes) / MIB:.2f} MiB"
        has_mix = size.of_each is not None and len(size.requests) > 1
        mix = f"; {size.of_each} of each length fit together" if has_mix else ""
        yield f"  block {size.block_size}: {mean} wasted per request on average over all lengths{mix}"
    seqs = budget.resolved.max_num_seqs
    limited = [str(r.tokens) for r in current.requests if r.requests is not None and r.requests > seqs]
    reach = f", fewer than the blocks hold of {', '.join(limited)} tokens" if limited else ""
    yield f"  * in use. max_num_seqs lets {seqs} requests run at the same time{reach}"


def _table(sizes: Sequence[Paged], index: int) -> Iterator[str]:
    """The length of this index with every block size."""
    rows = [("block", "blocks", "wasted tokens", "wasted MiB", "share", "fit at once")]
    for size in sizes:
        request = size.requests[index]
        rows.append((
            f"{size.block_size}{'*' if size.in_use else ' '}",
            str(request.blocks),
            str(request.wasted_tokens),
            f"{request.wasted_bytes / MIB:.2f}",
            f"{float(request.wasted_share) * 100:.1f} %",
            "-" if request.requests is None else str(request.requests),
        ))  # fmt: skip
    for row in rows:
        yield "  " + "".join(cell.rjust(width) for cell, width in zip(row, (9, 8, 15, 12, 9, 13), strict=True)).rstrip()


def paging_json(budget: Budget | None, lengths: tuple[int, ...]) -> dict[str, Any] | None:
    """Return the same for programs; null where there is no cache to divide. Raises UnusableValue."""
    sizes = _paged(budget, lengths)
    if budget is None or not sizes:
        return None
    return {
        "max_model_len": budget.resolved.max_model_len,
        "max_num_seqs": budget.resolved.max_num_seqs,
        "block_sizes": [
            {
                "block_size": size.block_size,
                "in_use": size.in_use,
                "bytes_per_block": size.bytes_per_block,
                "num_blocks": size.num_blocks,
                "static_slot_bytes": size.slot_bytes,
                "static_slots": size.static_slots,
                "static_concurrency": None if size.static_concurrency is None else float(size.static_concurrency),
                "mean_wasted_tokens": float(size.mean_wasted_tokens),
                "mean_wasted_bytes": float(size.mean_wasted_bytes),
                "requests_of_each": size.of_each,
                "requests": [
                    {
                        "tokens": request.tokens,
                        "blocks": request.blocks,
                        "wasted_tokens": request.wasted_tokens,
                        "wasted_bytes": request.wasted_bytes,
                        "wasted_share": float(request.wasted_share),
                        "static_wasted_bytes": size.slot_bytes - request.held_bytes,
                        "paged_requests": request.requests,
                    }
                    for request in size.requests
                ],
            }
            for size in sizes
        ],
    }


def _paged(budget: Budget | None, lengths: tuple[int, ...]) -> tuple[Paged, ...]:
    """Return the cache with every block size that makes a difference; an empty tuple of lengths stands for kvgate's own."""
    if budget is None:
        return ()
    longest = budget.resolved.max_model_len
    if too_long := [length for length in lengths if length > longest]:
        raise UnusableValue(
            f"--paging: a request of {too_long[0]} tokens is longer than max_model_len {longest}; vLLM refuses it"
        )
    return paging_of(budget, lengths or default_lengths(longest))
