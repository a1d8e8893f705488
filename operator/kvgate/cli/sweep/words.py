"""Words of every drawing of a sweep: its title, the state of a cell, and the numbers of a cell."""

from collections.abc import Iterator

from kvgate.budget.interval import Interval, Verdict
from kvgate.budget.request import Guarantee
from kvgate.budget.units import GIB, format_gib
from kvgate.planning.sweep import Cell, Sweep

FITS, MAY, NO, REFUSED, UNKNOWN = "fits", "may", "no", "refused", "unknown"
MEANINGS = {
    FITS: "Fits: even at the low end of the prediction",
    MAY: "MayNotFit: inside the interval",
    NO: "DoesNotFit: not even at the high end",
    REFUSED: "vLLM refuses the setting",
    UNKNOWN: "Unknown: a part has no formula",
}
"""The states of a cell, in the order of the legend."""
_STATES = {Verdict.FITS: FITS, Verdict.MAY_NOT_FIT: MAY, Verdict.DOES_NOT_FIT: NO, Verdict.UNKNOWN: UNKNOWN}
MOST_SHOWN = 999
"""Per cent; beyond that the number says no more."""


def state(cell: Cell) -> str:
    """One of the five."""
    return REFUSED if cell.refusal else _STATES[cell.verdict]


def share_text(cell: Cell) -> str:
    """`37%` of the KV cache that is expected; `-` where nothing can be compared."""
    share = cell.share
    if share is None or cell.refusal:
        return "-"
    percent = round(share * 100)
    return f">{MOST_SHOWN}%" if percent > MOST_SHOWN else f"{percent}%"


def title(swept: Sweep) -> str:
    """Return the subject of the sweep without its axes."""
    request, names = swept.request, (swept.x.name, swept.y.name)
    count = request.settings.parallelism.num_gpus
    gpus = f"{count} × " if count > 1 and not any(name.endswith("parallel_size") for name in names) else ""
    asked = [] if "model" in names else [request.shape.name]
    asked += [] if "gpu" in names else [f"on {gpus}{request.accelerator.name}"]
    released = [] if "vllm_version" in names else [f"vLLM {request.vllm_version}"]
    return ", ".join([" ".join(asked), *released] if asked else released)


def subtitle(swept: Sweep) -> str:
    """Return the guarantee, and the settings that stay."""
    settings, names = swept.request.settings, (swept.x.name, swept.y.name)
    parts = [
        "one request of max_model_len"
        if swept.guarantee is Guarantee.STARTUP
        else "max_num_seqs requests of max_model_len"
    ]
    fixed = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_dtype")
    for name in fixed:
        value = getattr(settings, name)
        if name not in names and value is not None:
            parts.append(f"{name} {float(value):g}" if name == "gpu_memory_utilization" else f"{name} {value}")
    return ", ".join(parts)


def legend(swept: Sweep) -> Iterator[tuple[str, str]]:
    """Return the signs of the picture with their meanings: states, `edge low` and `edge high`, `ring`."""
    present = {state(cell) for row in swept.rows for cell in row}
    yield from ((name, meaning) for name, meaning in MEANINGS.items() if name in present)
    if FITS in present and len(present) > 1:
        yield "edge low", "out-of-memory boundary: on the side of Fits nothing runs out, even at the low end"
    if MAY in present:
        yield "edge high", "beyond it memory runs out"
    if swept.at is not None:
        yield "ring", f"chosen: {next(cell_lines(swept, *swept.at))}"


def cell_lines(swept: Sweep, column: int, row: int) -> Iterator[str]:
    """The numbers of one cell, per GPU."""
    cell = swept.rows[row][column]
    yield f"{swept.x.name} {swept.x.labels[column]}, {swept.y.name} {swept.y.labels[row]}"
    told = cell.refusal or ("" if cell.demand_bytes is not None and cell.available is not None else cell.message)
    yield f"{cell.verdict.value}: {told}" if told else cell.verdict.value
    if cell.refusal:
        return
    if cell.demand_bytes is not None and cell.available is not None:
        yield f"demand {format_gib(cell.demand_bytes)} of KV cache per GPU"
        yield f"available {_interval(cell.available)}"
        yield f"{share_text(cell)} of what is expected" if cell.share is not None else "nothing is expected to be left"
    if swept.edges is not None:
        yield "{} fits up to {}, may fit up to {}".format(swept.y.name, *edge_of(swept, column))


def edge_of(swept: Sweep, column: int) -> tuple[str, str]:
    """The largest values of y that fit and that may fit, `≥` where the axis ends first; none where vLLM refuses the column."""
    edge = (swept.edges or ())[column]
    if all(row[column].refusal for row in swept.rows):
        return "-", "-"
    top = swept.y.values[-1]
    fits, may_fit = (f"≥{end}" if end == top else str(end) for end in (edge.fits, edge.may_fit))
    return fits, may_fit


def _interval(interval: Interval) -> str:
    low, expected, high = (end / GIB for end in (interval.low, interval.expected, interval.high))
    return f"{low:.2f} GiB low, {expected:.2f} GiB expected, {high:.2f} GiB high"
