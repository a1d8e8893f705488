"""docs/concepts/ledger.svg from a real answer of `kvgate explain`: `make generate`.

Rows from the whole GPU down to the requests that its KV cache holds, all on one scale; legible on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvgate.budget.gpu.ledger import Ledger
from kvgate.budget.ground.interval import Interval
from kvgate.budget.ground.units import GIB, format_gib
from kvgate.cli.sweep.heatmap import drawing, svg_of
from kvgate.judgement.what_if import assess_request

TARGET = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "ledger.svg"
QUESTION = {
    "model": "Qwen/Qwen3-32B-FP8",
    "gpu": "H100-SXM-80GB",
    "vllm_version": "0.33.0",
    "max_num_seqs": 64,
}
"""The example of the README."""
COLOURS = {
    "whole": "#d1d9e0", "weights": "#4269d0", "activation": "#d9920a", "other": "#e0563f", "graphs": "#9467bd", "cache": "#2f9e44",
    "request": "#8fcb99", "spread": "#1f2328", "guide": "#8c959f",
}  # fmt: skip
BAR = 0.6
"""Height of a bar; two rows are 1 apart."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One bar: its name, its ends in bytes, and the text to the right of it."""

    name: str
    look: str
    start: int
    end: int
    remark: str = ""


def picture() -> str:
    """Return the text of the SVG; the same for the same answer."""
    budget = assess_request(QUESTION).budget
    if budget is None or budget.tightest is None or budget.tightest.ledger is None or budget.kv_cache is None:
        raise SystemExit("the example of the picture has no ledger")
    title = f"{budget.request.shape.name} on one {budget.request.accelerator.name}, vLLM {budget.request.vllm_version}"
    ledger, size, available = budget.tightest.ledger, budget.kv_cache.request_bytes, budget.tightest.ledger.available
    rows = list(_rows(ledger, f"× {float(budget.resolved.gpu_memory_utilization):g}"))
    with drawing():
        drawn = Figure(figsize=(5, 0.42 * (len(rows) + 1)))
        axes = drawn.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, ledger.total_bytes), ylim=(len(rows) + 0.6, -0.6))
        axes.set_axis_off()
        axes.set_title(title, loc="left", x=-0.28)
        for y, row in enumerate(rows):
            axes.barh(y, row.end - row.start, BAR, row.start, color=COLOURS[row.look], gid=row.look)
            _write(axes, y, row.name, format_gib(row.end - row.start), row.remark)
        # Guides lead from the end of a bar to the next one, so that the eye sees what is left.
        for y, row in enumerate(rows[1:-1], start=1):
            end = row.start if row.name.startswith("−") else row.end
            axes.plot((end, end), (y + BAR / 2, y + 1 - BAR / 2), color=COLOURS["guide"], linewidth=0.8, linestyle=":")
        middle = (available.low + available.high) / 2
        axes.errorbar(
            middle, len(rows) - 1, xerr=(available.high - available.low) / 2, color=COLOURS["spread"], capsize=4
        )
        # Whole requests of max_model_len lie side by side under the cache that holds them.
        for number in range(budget.tightest.available.expected // size):
            axes.barh(len(rows), size, BAR, number * size, color=COLOURS["request"], edgecolor="#ffffff", gid="request")
        blocks = budget.num_blocks.expected if budget.num_blocks else 0
        requests = f"{float(budget.kv_cache.max_concurrency(blocks)):.2f} × {format_gib(size)}"
        _write(axes, len(rows), "full requests", requests, f"of {budget.resolved.max_model_len} tokens each")
        return svg_of(drawn, title)


def _write(axes: Axes, y: float, name: str, figure: str, remark: str) -> None:
    """Write the name of a row to the left of it, and to the right the figure, with the remark below it."""
    axes.text(-0.28, y, name, transform=axes.get_yaxis_transform(), va="center")
    axes.text(1.03, y - (0.16 if remark else 0), figure, transform=axes.get_yaxis_transform(), va="center")
    axes.text(1.03, y + 0.2, remark, transform=axes.get_yaxis_transform(), va="center", size=7.5, color="#59636e")


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
    yield Row(name="= KV cache", look="cache", start=0, end=left, remark=_range(ledger.available))


def _range(amount: Interval) -> str:
    return f"{amount.low / GIB:.2f} to {amount.high / GIB:.2f}"


if __name__ == "__main__":
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(picture(), encoding="utf-8")
    print(TARGET)
