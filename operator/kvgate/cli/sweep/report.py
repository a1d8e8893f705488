"""A sweep in words, the same in every output, and its table for people, CSV and JSON."""

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import to_builtins

from kvgate.budget import Capacity, Guarantee, Verdict, plan
from kvgate.budget.ground.units import GIB, format_gib
from kvgate.cli import assessment_json as made
from kvgate.cli.reports.answer_records import AxisRecord, CellRecord, PointRecord, SweepRecord
from kvgate.cli.reports.engine_records import SCHEMA_VERSION
from kvgate.cli.terminal import Line, Styled, text_of, width_of_terminal
from kvgate.planning.sweep import Cell, Sweep
from kvgate.planning.sweep_axes import Axis, label
from kvgate.text.inert import inert_json, inert_values

FITS, MAY, NO, REFUSED, UNKNOWN = "fits", "may", "no", "refused", "unknown"
MEANINGS = {
    FITS: "Fits: even at the low end of the prediction",
    MAY: "MayNotFit: inside the interval",
    NO: "DoesNotFit: not even at the high end",
    REFUSED: "vLLM refuses the setting",
    UNKNOWN: "Unknown: a part has no formula",
}
"""State of a cell → its meaning, in the order of the legend."""
_STATES = {Verdict.FITS: FITS, Verdict.MAY_NOT_FIT: MAY, Verdict.DOES_NOT_FIT: NO, Verdict.UNKNOWN: UNKNOWN}
_ENDS = ("low", "expected", "high")
MOST_SHOWN = 999
"""Largest share in per cent that is shown as a number."""


def state(cell: Cell) -> str:
    """Return the state: vLLM's refusal, or else the verdict."""
    return REFUSED if cell.refusal else _STATES[cell.verdict]


def share_text(cell: Cell) -> str:
    """Return the demand as a share of the KV cache that is expected, such as `37%`; `-` where there is nothing to compare."""
    share = cell.share
    if share is None or cell.refusal:
        return "-"
    percent = round(share * 100)
    return f">{MOST_SHOWN}%" if percent > MOST_SHOWN else f"{percent}%"


def title(swept: Sweep) -> str:
    """Return the model, the GPUs and the release, except for those that are swept."""
    request, names = swept.request, (swept.x.name, swept.y.name)
    count = request.settings.parallelism.num_gpus
    gpus = f"{count} × " if count > 1 and not any(name.endswith("parallel_size") for name in names) else ""
    subject = [] if "model" in names else [request.shape.name]
    subject += [] if "gpu" in names else [f"on {gpus}{request.accelerator.name}"]
    released = [] if "vllm_version" in names else [f"vLLM {request.vllm_version}"]
    return ", ".join([" ".join(subject), *released] if subject else released)


def subtitle(swept: Sweep) -> str:
    """Return the guarantee, the settings that are the same in all cells, and the sibling by which the model is judged."""
    settings, names = swept.request.settings, (swept.x.name, swept.y.name)
    workload = swept.request.workload
    parts = [
        "starts decides (guarantee Startup): one request of max_model_len, no load is promised"
        if swept.guarantee is Guarantee.STARTUP
        else f"holds decides (guarantee Workload): {workload.peak_concurrency} requests of {workload.request_tokens} tokens"
        if swept.guarantee is Guarantee.WORKLOAD and workload
        else "holds decides (guarantee FullContext): max_num_seqs requests of max_model_len"
    ]
    fixed = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_dtype")
    for name in fixed:
        value = getattr(settings, name)
        if name not in names and value is not None:
            parts.append(f"{name} {float(value):g}" if name == "gpu_memory_utilization" else f"{name} {value}")
    if swept.request.capacity is Capacity.PINNED and "capacity" not in names:
        parts.append("capacity Pinned")
    if (assumed := swept.request.shape.assumed) and "model" not in names:
        parts.append(f"assumed from {assumed.words}")
    return ", ".join(parts)


def legend(swept: Sweep) -> Iterator[tuple[str, str]]:
    """Return the signs of a picture with their meanings: states, `edge low` and `edge high`, `ring`."""
    present = {state(cell) for row in swept.rows for cell in row}
    yield from ((name, meaning) for name, meaning in MEANINGS.items() if name in present)
    if FITS in present and len(present) > 1:
        yield "edge low", "out-of-memory boundary: on the side of Fits nothing runs out, even at the low end"
    if MAY in present:
        yield "edge high", "beyond it memory runs out"
    if swept.at is not None:
        yield "ring", f"chosen: {next(cell_lines(swept, *swept.at))}"


def cell_lines(swept: Sweep, column: int, row: int) -> Iterator[str]:
    """Return the numbers of one cell, per GPU."""
    cell = swept.rows[row][column]
    yield f"{swept.x.name} {swept.x.labels[column]}, {swept.y.name} {swept.y.labels[row]}"
    is_known = cell.demand_bytes is not None and cell.available is not None
    yield f"{cell.verdict.value}: {cell.refusal or (cell.text if is_known else cell.message or cell.text)}"
    if cell.refusal:
        return
    if cell.demand_bytes is not None and cell.available is not None:
        yield f"demand {format_gib(cell.demand_bytes)} of KV cache per GPU"
        low, expected, high = (getattr(cell.available, end) / GIB for end in _ENDS)
        yield f"available {low:.2f} GiB low, {expected:.2f} GiB expected, {high:.2f} GiB high"
        yield f"{share_text(cell)} of what is expected" if cell.share is not None else "nothing is expected to be left"
    if swept.edges is not None:
        yield "{} fits up to {}, may fit up to {}".format(swept.y.name, *edge_of(swept, column))


def edge_of(swept: Sweep, column: int) -> tuple[str, str]:
    """Return the largest y that fits and the largest that may fit: `≥` where the axis ends first, `-` where vLLM refuses all."""
    edge = (swept.edges or ())[column]
    if all(row[column].refusal for row in swept.rows):
        return "-", "-"
    top = swept.y.values[-1]
    fits, may_fit = (f"≥{end}" if end == top else str(end) for end in (edge.fits, edge.may_fit))
    return fits, may_fit


def edge_rows(swept: Sweep) -> Iterator[list[str]]:
    """Yield the exact edges of all columns, each row behind its name; none where the setting of y has no largest value that fits."""
    if swept.edges is not None:
        edges = [edge_of(swept, column) for column in range(len(swept.edges))]
        yield ["fits up to", *(fits for fits, _ in edges)]
        if any(fits != may_fit for fits, may_fit in edges):
            yield ["may fit up to", *(may_fit for _, may_fit in edges)]


BOUNDARIES = {"low": (Verdict.FITS,), "high": (Verdict.FITS, Verdict.MAY_NOT_FIT)}
"""Certain and possible boundary → the verdicts on its side of memory that is enough."""


def boundary(swept: Sweep, sign: str) -> Iterator[tuple[int, int, bool]]:
    """Return the sides at which memory runs out: (column, row, vertical), the left side of a cell or its lower side.

    Such a side is between a cell whose memory verdict is one of the sign's and a neighbour whose is another. There are none where a
    verdict is unknown, and none between settings that vLLM refuses anyway.
    """
    verdicts = BOUNDARIES[sign]
    for row, cells in enumerate(swept.rows):
        for column, cell in enumerate(cells):
            left = swept.rows[row][column - 1] if column else cell
            below = swept.rows[row - 1][column] if row else cell
            for neighbour, is_vertical in ((left, True), (below, False)):
                is_known = Verdict.UNKNOWN not in (cell.by_memory, neighbour.by_memory)
                counts = is_known and not (cell.refusal and neighbour.refusal)
                if counts and (cell.by_memory in verdicts) != (neighbour.by_memory in verdicts):
                    yield column, row, is_vertical


# ── for people ────────────────────────────────────────────────────────────────────────────────────────────────────

_MARKS = {FITS: "", MAY: "~", NO: "!", REFUSED: "x", UNKNOWN: "?"}
_MARKED = {MAY: "~ may not fit", NO: "! does not fit", REFUSED: "x refused by vLLM", UNKNOWN: "? unknown"}
_COLOURS = {FITS: "green", MAY: "yellow", NO: "red", REFUSED: "magenta", UNKNOWN: "cyan"}
_REASONS = 3
"""Refusals that are shown at most."""


def text_report(swept: Sweep) -> str:
    """Write the table, with the large values of y on top as in a picture, and below each column its exact edge."""
    present = {state(cell) for row in swept.rows for cell in row}
    marks = "".join(f"; {meaning}" for name, meaning in _MARKED.items() if name in present)
    share = f"demand as a share of the KV cache that is expected{marks}"
    lines: list[Line] = [title(swept), subtitle(swept), share, "", *_table(swept)]
    # vLLM's reasons for refusing, in the order of the columns.
    cells = (cell for column in zip(*swept.rows, strict=True) for cell in column)
    reasons = list(dict.fromkeys(cell.refusal for cell in cells if cell.refusal))
    if reasons:
        lines += ["", *(f"  {_MARKS[REFUSED]} {reason}" for reason in reasons[:_REASONS])]
    if len(reasons) > _REASONS:
        point = f"--at {swept.x.name},{swept.y.name}"
        lines.append(
            f"  {_MARKS[REFUSED]} {len(reasons) - _REASONS} more reasons; {point} shows the reason at one point"
        )
    if swept.at:
        lines += ["", *cell_lines(swept, *swept.at)]
    return text_of(lines)


def _table(swept: Sweep) -> Iterator[Line]:
    rows = [[(text, "") for text in (f"{swept.y.name} ↓  {swept.x.name} →", *swept.x.labels)]]
    for number in reversed(range(len(swept.rows))):
        cells = [(swept.y.labels[number], "")]
        for column, cell in enumerate(swept.rows[number]):
            name, share = state(cell), share_text(cell)
            text = _MARKS[name] + ("" if share == "-" and name in (REFUSED, UNKNOWN) else share)
            cells.append((f"[{text}]" if swept.at == (column, number) else text, _COLOURS[name]))
        rows.append(cells)
    rows += ([(text, "") for text in row] for row in edge_rows(swept))
    widths = [max(len(text) for text, _ in column) for column in zip(*rows, strict=True)]
    for part in _columns_beside(widths):
        if part.start:
            yield ""
        for row in rows:
            head, *rest = ((text.rjust(width), colour) for (text, colour), width in zip(row, widths, strict=True))
            yield [
                piece
                for text, colour in (head, *rest[part])
                for piece in ("  ", Styled(text=text, colour=colour) if colour else text)
            ]


def _columns_beside(widths: Sequence[int]) -> list[slice]:
    """Divide the columns after the first into tables that a terminal has room for, one below the other."""
    room = width_of_terminal()
    starts, used = [0], widths[0] + 2
    for column, size in enumerate(widths[1:]):
        if room is not None and used + size + 2 > room and column > starts[-1]:
            starts.append(column)
            used = widths[0] + 2
        used += size + 2
    return [slice(*ends) for ends in pairwise((*starts, None))]


# ── for programs ──────────────────────────────────────────────────────────────────────────────────────────────────


def csv_report(swept: Sweep) -> str:
    """Write the two values, the verdict, the refusal, and the bytes of one GPU, one row per pair."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [swept.x.name, swept.y.name, "verdict", "refusal", "demand_bytes", *(f"available_{end}_bytes" for end in _ENDS)]
    )
    for y, row in zip(swept.y.labels, swept.rows, strict=True):
        for x, cell in zip(swept.x.labels, row, strict=True):
            demand = "" if cell.demand_bytes is None else cell.demand_bytes
            available = [getattr(cell.available, end) if cell.available else "" for end in _ENDS]
            writer.writerow(inert_values([x, y, cell.verdict.value, cell.refusal, demand, *available]))
    return text.getvalue()


def json_report(swept: Sweep) -> str:
    """Write the axes, the cells row by row, the exact edge of each column, and the chosen point."""
    request = swept.request
    record = SweepRecord(
        schemaVersion=SCHEMA_VERSION,
        model=request.shape.name,
        gpu=request.accelerator.name,
        vllm_version=request.vllm_version,
        guarantee=swept.guarantee.value,
        workload=made.workload_record(request),
        x=_axis(swept.x),
        y=_axis(swept.y),
        cells=tuple(
            tuple(
                CellRecord(
                    **made.answers_of(cell),
                    headroom_ratio=cell.headroom_ratio,
                    refusal=cell.refusal or None,
                    demand_bytes=cell.demand_bytes,
                    available_kv_cache_bytes=cell.available,
                )
                for cell in row
            )
            for row in swept.rows
        ),
        edges=swept.edges,
        at=PointRecord(x=swept.at[0], y=swept.at[1], verdict=swept.chosen.verdict.value)
        if swept.at and swept.chosen
        else None,
        findings=tuple(map(made.finding_record, swept.findings)),
        assumed=made.assumed_records(request, swept.findings),
        provenance=made.provenance_records(plan(request), swept.findings),
    )
    return inert_json(to_builtins(record), indent=1)


def _axis(axis: Axis) -> AxisRecord:
    """Write fractions as decimal numbers."""
    plain = (value if isinstance(value, int | str) else float(label(value)) for value in axis.values)
    return AxisRecord(name=axis.name, values=tuple(plain))
