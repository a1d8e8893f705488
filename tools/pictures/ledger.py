"""docs/concepts/ledger.svg from a real answer of `kvgate explain`: `make generate`.

Rows from the whole GPU down to the requests that its KV cache holds, all on one scale; legible on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from kvgate.budget.interval import Interval
from kvgate.budget.plan import Budget
from kvgate.budget.units import GIB
from kvgate.judge.what_if import assess_request

TARGET = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "ledger.svg"
QUESTION = {
    "model": "Qwen/Qwen3-32B-FP8",
    "gpu": "H100-SXM-80GB",
    "vllm_version": "0.33.0",
    "max_num_seqs": 64,
}
"""The example of the README."""

WIDTH, LEFT, RIGHT = 820, 150, 200
TOP, ROW, BAR = 52, 40, 24
STYLE = """
  .page { fill: #ffffff; } text { font: 13px system-ui, sans-serif; fill: #1f2328; } .small { font-size: 11px; fill: #59636e; }
  .guide { stroke: #8c959f; stroke-width: 1; stroke-dasharray: 2 3; } .whole { fill: #d1d9e0; }
  .spread { stroke: #1f2328; stroke-width: 1.5; }
  .weights { fill: #4269d0; } .activation { fill: #d9920a; } .other { fill: #e0563f; } .graphs { fill: #9467bd; } .cache { fill: #2f9e44; }
  .request { fill: #2f9e44; opacity: .55; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; } text { fill: #e6edf3; } .small { fill: #9198a1; } .guide { stroke: #6e7681; } .whole { fill: #3d444d; }
    .spread { stroke: #e6edf3; }
  }
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One bar: from and to in bytes, what stands left and right of it."""

    name: str
    colour: str
    start: int
    end: int
    figure: str
    remark: str = ""
    spread: Interval | None = None


def picture() -> str:
    """The SVG's text; the same for the same answer."""
    budget = assess_request(QUESTION).budget
    if budget is None or budget.tightest is None or budget.tightest.ledger is None or budget.kv_cache is None:
        raise SystemExit("the example of the picture has no ledger")
    rows, total = list(_rows(budget)), budget.tightest.ledger.total_bytes
    height = TOP + len(rows) * ROW + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title">',
        f'<title id="title">{escape(_title(budget))}</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
        _text(16, 26, _title(budget)),
        *_guides(rows, total),
        *(line for index, row in enumerate(rows) for line in _bar(row, index, total)),
        *_requests(budget, len(rows), total),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _title(budget: Budget) -> str:
    return f"{budget.request.shape.name} on one {budget.request.accelerator.name}, vLLM {budget.request.vllm_version}"


def _rows(budget: Budget) -> Iterator[Row]:
    """Each term is taken from the right end of what is left."""
    ledger = budget.tightest.ledger if budget.tightest else None
    if ledger is None:
        return
    yield Row(name="GPU memory", colour="whole", start=0, end=ledger.total_bytes, figure=_gib(ledger.total_bytes))
    share = f"× {float(budget.resolved.gpu_memory_utilization):g}"
    left = ledger.requested_bytes
    yield Row(name="requested", colour="whole", start=0, end=left, figure=_gib(left), remark=share)
    names = ("− weights", "− peak activation", "− non-torch", "− CUDA graphs")
    for name, colour, line in zip(names, ("weights", "activation", "other", "graphs"), ledger.lines, strict=True):
        size = line.amount.expected
        yield Row(name=name, colour=colour, start=left - size, end=left, figure=_gib(size), remark=_range(line.amount))
        left -= size
    available = ledger.available
    yield Row(
        name="= KV cache",
        colour="cache",
        start=0,
        end=left,
        figure=_gib(left),
        remark=_range(available),
        spread=available,
    )


def _requests(budget: Budget, index: int, total: int) -> Iterator[str]:
    """Whole requests of max_model_len, side by side under the cache that holds them."""
    kv_cache = budget.kv_cache
    if kv_cache is None or budget.tightest is None:
        return
    size, top = kv_cache.request_bytes, _top(index)
    count = budget.tightest.available.expected // size
    yield _text(16, top + 17, "full requests")
    for number in range(count):
        start, end = _x(number * size, total) + 1, _x((number + 1) * size, total) - 1
        yield f'<rect class="request" x="{start:.1f}" y="{top}" width="{end - start:.1f}" height="{BAR}" rx="2"/>'
    printed = (
        f"{float(kv_cache.max_concurrency(budget.num_blocks.expected if budget.num_blocks else 0)):.2f} × {_gib(size)}"
    )
    yield _text(WIDTH - RIGHT + 16, top + 11, printed)
    yield _text(WIDTH - RIGHT + 16, top + 25, f"of {budget.resolved.max_model_len} tokens each", small=True)


def _bar(row: Row, index: int, total: int) -> Iterator[str]:
    top, start, end = _top(index), _x(row.start, total), _x(row.end, total)
    yield _text(16, top + 17, row.name)
    yield f'<rect class="{row.colour}" x="{start:.1f}" y="{top}" width="{max(end - start, 1.0):.1f}" height="{BAR}" rx="2"/>'
    if row.spread is not None:
        low, high = _x(row.spread.low, total), _x(row.spread.high, total)
        ends = "".join(f"M{end:.1f} {top + 5}v{BAR - 10}" for end in (low, high))
        yield f'<path class="spread" fill="none" d="{ends}M{low:.1f} {top + BAR // 2}H{high:.1f}"/>'
    yield _text(WIDTH - RIGHT + 16, top + (11 if row.remark else 17), row.figure)
    if row.remark:
        yield _text(WIDTH - RIGHT + 16, top + 25, row.remark, small=True)


def _guides(rows: list[Row], total: int) -> Iterator[str]:
    """From the end of each bar to the next one, so that the eye sees what is left."""
    for index, row in enumerate(rows[1:], start=1):
        left = _x(row.start if row.name.startswith("−") else row.end, total)
        if index + 1 < len(rows):
            yield f'<path class="guide" d="M{left:.1f} {_top(index) + BAR}V{_top(index + 1)}"/>'


def _text(x: float, y: float, text: str, *, small: bool = False) -> str:
    style = ' class="small"' if small else ""
    return f'<text{style} x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _top(index: int) -> int:
    return TOP + index * ROW


def _x(size: int, total: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * size / total


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def _range(amount: Interval) -> str:
    return f"{amount.low / GIB:.2f} to {amount.high / GIB:.2f}"


if __name__ == "__main__":
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(picture(), encoding="utf-8")
    print(TARGET)
