"""`kvgate explain --paging`: static against paged allocation and block sizes, for people and for programs."""

from collections.abc import Iterator, Sequence
from typing import Any

from kvgate.budget.paging import Paged, PagedRequest, default_lengths, paging_of
from kvgate.budget.plan import Budget
from kvgate.budget.units import MIB, format_gib
from kvgate.cli.explain.command import DEFAULT_LENGTHS
from kvgate.vllm.values import Unusable
from kvgate.vllm.what_if_settings import read_tokens


def _lengths(text: str, longest: int) -> tuple[int, ...]:
    """`2048,8k,32K`, none of them longer than max_model_len. Raises Unusable."""
    if text == DEFAULT_LENGTHS:
        return default_lengths(longest)
    try:
        lengths = tuple(read_tokens(part.strip()) for part in text.split(","))
    except Unusable as error:
        raise Unusable(f"--paging {text}: {error}, several of them with commas between") from None
    if too_long := [length for length in lengths if length > longest]:
        raise Unusable(
            f"--paging {text}: a request of {too_long[0]} tokens is longer than max_model_len {longest}; vLLM refuses it"
        )
    return tuple(dict.fromkeys(lengths))


def paging_lines(budget: Budget | None, lengths: str) -> Iterator[str]:
    """Return the bytes that a slot reserves, then a table for every length. Raises Unusable for a text that is no length."""
    sizes = _sizes(budget, lengths)
    if budget is None or not sizes:
        yield "Paging: there is no KV cache to divide, or no formula for it"
    else:
        yield from _lines(budget, sizes)


def _sizes(budget: Budget | None, lengths: str) -> tuple[Paged, ...]:
    if budget is None:
        return ()
    return paging_of(budget, _lengths(lengths, budget.resolved.max_model_len))


def _lines(budget: Budget, sizes: Sequence[Paged]) -> Iterator[str]:
    longest, current = budget.resolved.max_model_len, next(size for size in sizes if size.in_use)
    pool = "" if current.num_blocks is None else f"{current.num_blocks} blocks of {current.block_size} tokens; "
    slot = format_gib(current.slot_bytes)
    yield f"Paging: {pool}a static slot reserves max_model_len {longest} tokens, {slot}"
    if current.static_concurrency is not None:
        yield f"  static slots: {current.static_slots}{_beside_the_null_block(budget, current)}"
    for index, request in enumerate(current.requests):
        empty = longest - request.tokens
        share = (current.slot_bytes - request.held_bytes) / current.slot_bytes
        yield ""
        yield f"  requests of {request.tokens} tokens: {empty} tokens of a static slot stay empty, {share * 100:.1f} % of its bytes"
        yield _columns(("block", "blocks", "wasted tokens", "wasted MiB", "share", "fit at once"))
        yield from (_columns(_cells(size, size.requests[index])) for size in sizes)
    yield ""
    yield from _mean(sizes)
    yield from _limit(budget, current)


def _beside_the_null_block(budget: Budget, current: Paged) -> str:
    """Return the remark that vLLM's figure counts the null block."""
    printed = float(current.static_concurrency or 0)
    null = " beside the null block" if budget.kv_cache and budget.kv_cache.null_blocks else ""
    return f"{null} (vLLM prints {printed:.2f}x)"


def _cells(size: Paged, request: PagedRequest) -> tuple[str, ...]:
    return (
        f"{size.block_size}{'*' if size.in_use else ' '}",
        str(request.blocks),
        str(request.wasted_tokens),
        f"{request.wasted_bytes / MIB:.2f}",
        f"{float(request.wasted_share) * 100:.1f} %",
        "-" if request.requests is None else str(request.requests),
    )


def _columns(cells: Sequence[str]) -> str:
    return "  " + "".join(cell.rjust(width) for cell, width in zip(cells, (9, 8, 15, 12, 9, 13), strict=True)).rstrip()


def _mean(sizes: Sequence[Paged]) -> Iterator[str]:
    """Return the waste of a block size on average lengths, and the result for a mix of the lengths."""
    for size in sizes:
        mix = (
            f"; {size.of_each} of each length fit together"
            if size.of_each is not None and len(size.requests) > 1
            else ""
        )
        mean = f"{float(size.mean_wasted_tokens):.1f} tokens, {float(size.mean_wasted_bytes) / MIB:.2f} MiB"
        yield f"  block {size.block_size}: {mean} wasted per request on average over all lengths{mix}"


def _limit(budget: Budget, current: Paged) -> Iterator[str]:
    seqs = budget.resolved.max_num_seqs
    limited = [str(r.tokens) for r in current.requests if r.requests is not None and r.requests > seqs]
    reach = f", fewer than the blocks hold of {', '.join(limited)} tokens" if limited else ""
    yield f"  * in use. max_num_seqs lets {seqs} requests run at the same time{reach}"


def paging_json(budget: Budget | None, lengths: str) -> dict[str, Any] | None:
    """The same; null where there is nothing to divide. Raises Unusable."""
    sizes = _sizes(budget, lengths)
    if budget is None or not sizes:
        return None
    return {
        "max_model_len": budget.resolved.max_model_len,
        "max_num_seqs": budget.resolved.max_num_seqs,
        "block_sizes": [_size_json(size) for size in sizes],
    }


def _size_json(size: Paged) -> dict[str, Any]:
    return {
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
