"""Kubernetes quantities: read, added to, compared, and written as the API server would."""

import re
from fractions import Fraction

from kvgate.budget.units import GIB, KIB, MIB

QUANTITY_PATTERN = r"^([0-9]+(\.[0-9]+)?)(m|k|[MGTPE]|[KMGTPE]i)?$"
_FACTORS = {
    "": Fraction(1), "m": Fraction(1, 1000), "k": Fraction(1000),
    **{unit: Fraction(1000) ** power for power, unit in enumerate("MGTPE", start=2)},
    **{f"{unit}i": Fraction(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}  # fmt: skip


def parse_quantity(text: object) -> Fraction | None:
    """`1.5Gi` → 1610612736; None for what is not a quantity."""
    match = re.fullmatch(QUANTITY_PATTERN, str(text))
    return Fraction(match[1]) * _FACTORS[match[3] or ""] if match else None


def format_bytes(value_bytes: int) -> str:
    """In the largest binary unit that is exact: `65Gi`, `1536Mi`."""
    for unit, size in (("Gi", GIB), ("Mi", MIB), ("Ki", KIB)):
        if value_bytes % size == 0:
            return f"{value_bytes // size}{unit}"
    return str(value_bytes)


def plus_bytes(text: object, extra_bytes: int) -> str:
    """A memory quantity with more on top, rounded up to whole bytes."""
    value = parse_quantity(text)
    if value is None:
        raise ValueError(f"{text!r} is not a quantity")
    return format_bytes(-(-value.numerator // value.denominator) + extra_bytes)
