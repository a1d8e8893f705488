"""Explanation of a figure of a budget: its formula, the numbers in it, its source, and why it may be off."""

import re
from collections.abc import Mapping

from kvgate.budget.interval import Interval, Term
from kvgate.budget.units import GIB, MIB, format_gib
from kvgate.budget.weights import WeightPart
from kvgate.record import record

Inputs = tuple[tuple[str, int | str], ...]
_NAME = re.compile(r"[a-z_]{2,}")


@record
class Explanation:
    """One figure; `formula` is in the names of `inputs`, where a name that ends in `_bytes` may stand without its end."""

    name: str
    amount: Interval
    formula: str
    source: str
    doubt: str
    """Reason why the figure may be off."""
    unit: str = "bytes"
    inputs: Inputs = ()
    parts: tuple[WeightPart, ...] = ()
    """Parts of the figure where they are a table; they sum to the expected value."""
    notes: tuple[str, ...] = ()

    @property
    def numbers(self) -> str:
        """The formula with the numbers put in; empty where it has no names of inputs."""
        known = dict(self.inputs)
        numbers = _NAME.sub(lambda match: _number(known, match[0]), self.formula)
        return "" if numbers == self.formula else numbers


def _number(inputs: Mapping[str, int | str], name: str) -> str:
    """Return an input by its name or by the beginning of it."""
    key = next((key for key in (f"{name}_bytes", name, f"{name}_graphs") if key in inputs), None)
    if key is None:
        return name
    value = inputs[key]
    return format_bytes(value) if key.endswith("_bytes") and isinstance(value, int) else str(value)


def format_bytes(size: int) -> str:
    """Write a size in the unit in which it has digits."""
    if abs(size) >= GIB // 10:
        return format_gib(size)
    return f"{size / MIB:.2f} MiB" if abs(size) >= MIB // 10 else f"{size} bytes"


DOUBTS = {
    "weights": "tensors in 16 bits are known to 0.05 GiB; kernels that repack quantised or expert weights move about 1 %",
    "peak_activation": (
        "which kernels are fused and whether the compile cache is warm; a cold one puts a floor under the peak from 0.20 on"
    ),
    "non_torch": "driver, links between GPUs and settings of NCCL, none of which a configuration names",
    "cuda_graph": "what a captured piece takes depends on kernels; the constants are fitted on few starts",
}
"""Doubts about the terms of the ledger, by name."""


def of_term(term: Term, parts: tuple[WeightPart, ...] = ()) -> Explanation:
    """A line of the ledger in the same words as every other figure."""
    return Explanation(
        name=term.name,
        amount=term.amount,
        formula=term.formula,
        source=term.source,
        doubt=DOUBTS[term.name],
        inputs=term.inputs,
        parts=parts,
    )
