"""Numbers with units, as a panel shows them: one scale for a whole axis, enough digits and no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Steps = Sequence[tuple[float, str]]
"""(size, suffix), the largest first."""
_BINARY: Steps = ((2**40, " TiB"), (2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"), (1, " B"))
_SHORT: Steps = ((1e9, " B"), (1e6, " M"), (1e3, " K"), (1, ""))
_SECONDS: Steps = ((60, " min"), (1, " s"), (1e-3, " ms"), (1e-6, " µs"))
_SCALES: dict[str, Steps] = {
    "bytes": _BINARY,
    "short": _SHORT,
    "s": _SECONDS,
    "percentunit": ((0.01, " %"),),
    "reqps": ((1, " /s"),),
    "ops": ((1, " /s"),),
    "binBps": tuple((size, f"{suffix}/s") for size, suffix in _BINARY),
}
_SUFFIX = "suffix:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Divisor of the numbers of one axis, and the unit behind them."""

    divisor: float
    suffix: str

    def text(self, value: float, decimals: int | None = None) -> str:
        """Three digits that matter, or as many decimals as the panel asks for."""
        scaled = value / self.divisor
        if decimals is None:
            decimals = 0 if abs(scaled) >= 100 or scaled == round(scaled) else 1 if abs(scaled) >= 10 else 2
        text = f"{scaled:,.{decimals}f}"
        return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−") + self.suffix


def scale(unit: str, largest: float) -> Scale:
    """Return the scale for numbers up to this one; a unit without steps has one scale."""
    if unit.startswith(_SUFFIX):
        return Scale(divisor=1, suffix=f" {unit.removeprefix(_SUFFIX)}")
    steps = _SCALES.get(unit, ((1, ""),))
    divisor, suffix = next((step for step in steps if abs(largest) >= step[0]), steps[-1])
    return Scale(divisor=divisor, suffix=suffix)


def text_of(unit: str, value: float, decimals: int | None = None) -> str:
    """One number alone."""
    if unit == "locale":
        return f"{value:,.0f}"
    return scale(unit, value).text(value, decimals)
