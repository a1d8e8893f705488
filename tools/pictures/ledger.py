"""docs/concepts/ledger.svg from a real answer of `kvgate explain`: `make generate`.

Rows from the whole GPU down to the requests that its KV cache holds, all on one scale; legible on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvgate.budget.gpu.ledger import Ledger
from kvgate.budget.ground.interval import Interval
from kvgate.budget.ground.units import GIB, format_gib
from kvgate.cli.sweep.drawing import Box, Caption, Line, Picture, Shape, svg_text
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
  .spread { stroke: #1f2328; stroke-width: 1.5; fill: none; }
  .weights { fill: #4269d0; } .activation { fill: #d9920a; } .other { fill: #e0563f; } .graphs { fill: #9467bd; } .cache { fill: #2f9e44; }
  .request { fill: #2f9e44; opacity: .55; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; } text { fill: #e6edf3; } .small { fill: #9198a1; } .guide { stroke: #6e7681; } .whole { fill: #3d444d; }
    .spread { stroke: #e6edf3; }
  }
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One bar: its name, its ends in bytes, and the text to the right of it."""

    name: str
    look: str
    start: int
    end: int
    remark: str = ""
    spread: Interval | None = None
    """Range in which the end of the bar may lie, in bytes."""


def picture() -> str:
    """Return the text of the SVG; the same for the same answer."""
    budget = assess_request(QUESTION).budget
    if budget is None or budget.tightest is None or budget.tightest.ledger is None or budget.kv_cache is None:
        raise SystemExit("the example of the picture has no ledger")
    title = f"{budget.request.shape.name} on one {budget.request.accelerator.name}, vLLM {budget.request.vllm_version}"
    ledger, kv_cache = budget.tightest.ledger, budget.kv_cache
    share = f"× {float(budget.resolved.gpu_memory_utilization):g}"
    rows = list(_rows(ledger, share))
    shapes: list[Shape] = [Caption(x=16, y=26, text=title)]
    # Guides lead from the end of a bar to the next one, so that the eye sees what is left.
    for index, row in enumerate(rows[1:-1], start=1):
        x = _x(row.start if row.name.startswith("−") else row.end, ledger)
        shapes.append(Line(strokes=((x, _top(index) + BAR, 0, ROW - BAR),), look="guide"))
    for index, row in enumerate(rows):
        shapes += _bar(row, _top(index), ledger)
    # Whole requests of max_model_len lie side by side under the cache that holds them.
    top, size, blocks = _top(len(rows)), kv_cache.request_bytes, budget.num_blocks.expected if budget.num_blocks else 0
    shapes.append(Caption(x=16, y=top + 17, text="full requests"))
    for number in range(budget.tightest.available.expected // size):
        start, end = _x(number * size, ledger) + 1, _x((number + 1) * size, ledger) - 1
        shapes.append(Box(x=start, y=top, width=_tenth(end - start), height=BAR, look="request", radius=2))
    requests = f"{float(kv_cache.max_concurrency(blocks)):.2f} × {format_gib(size)}"
    shapes += _remarks(top, requests, f"of {budget.resolved.max_model_len} tokens each")
    drawn = Picture(
        name="ledger",
        title=title,
        width=WIDTH,
        height=_top(len(rows)) + 40,
        shapes=tuple((shape,) for shape in shapes),
        style=STYLE,
        hatches={},
    )
    return svg_text(drawn) + "\n"


def _rows(ledger: Ledger, share: str) -> Iterator[Row]:
    """Return the whole GPU, and then each term, which is taken from the right end of what is left."""
    left = ledger.requested_bytes
    yield Row(name="GPU memory", look="whole", start=0, end=ledger.total_bytes)
    yield Row(name="requested", look="whole", start=0, end=left, remark=share)
    names = ("− weights", "− peak activation", "− non-torch", "− CUDA graphs")
    for name, look, line in zip(names, ("weights", "activation", "other", "graphs"), ledger.lines, strict=True):
        size = line.amount.expected
        yield Row(name=name, look=look, start=left - size, end=left, remark=_range(line.amount))
        left -= size
    yield Row(
        name="= KV cache", look="cache", start=0, end=left, remark=_range(ledger.available), spread=ledger.available
    )


def _bar(row: Row, top: int, ledger: Ledger) -> Iterator[Shape]:
    start, end = _x(row.start, ledger), _x(row.end, ledger)
    yield Caption(x=16, y=top + 17, text=row.name)
    yield Box(x=start, y=top, width=max(_tenth(end - start), 1), height=BAR, look=row.look, radius=2)
    if row.spread is not None:
        low, high = _x(row.spread.low, ledger), _x(row.spread.high, ledger)
        ends = tuple((x, top + 5, 0.0, BAR - 10.0) for x in (low, high))
        yield Line(strokes=(*ends, (low, top + BAR // 2, _tenth(high - low), 0)), look="spread")
    yield from _remarks(top, format_gib(row.end - row.start), row.remark)


def _remarks(top: int, figure: str, remark: str) -> Iterator[Caption]:
    """Return the figure to the right of a bar, and the remark below it."""
    x = WIDTH - RIGHT + 16
    yield Caption(x=x, y=top + (11 if remark else 17), text=figure)
    if remark:
        yield Caption(x=x, y=top + 25, text=remark, look="small")


def _top(index: int) -> int:
    return TOP + index * ROW


def _x(size: int, ledger: Ledger) -> float:
    return _tenth(LEFT + (WIDTH - LEFT - RIGHT) * size / ledger.total_bytes)


def _tenth(pixels: float) -> float:
    return round(pixels, 1)


def _range(amount: Interval) -> str:
    return f"{amount.low / GIB:.2f} to {amount.high / GIB:.2f}"


if __name__ == "__main__":
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(picture(), encoding="utf-8")
    print(TARGET)
