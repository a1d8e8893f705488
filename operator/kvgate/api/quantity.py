"""Kubernetes quantities: reading, adding, comparing and writing them as the API server does (`resource.ParseQuantity`)."""

import re
from fractions import Fraction

from kvgate.budget.ground.units import GIB, KIB, MIB

QUANTITY_PATTERN = r"^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([numk]|[MGTPE]i?|Ki|[eE][-+]?[0-9]+)?$"
"""Quantities that the API server takes for cpu and memory: no minus sign, because no request is below 0."""
MAX_QUANTITY_LENGTH = 32
"""Characters of a quantity at most; the largest number that counts has 19 digits."""
MAX_VALUE = (1 << 63) - 1
"""The API server stores larger quantities as this one."""
_MAX_EXPONENT = 2 * MAX_QUANTITY_LENGTH
"""Largest power of ten that is computed. Beyond it, a text of that length is 0, the smallest or the largest quantity."""
_FACTORS = {
    "": Fraction(1), "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "k": Fraction(1000),
    **{unit: Fraction(1000) ** power for power, unit in enumerate("MGTPE", start=2)},
    **{f"{unit}i": Fraction(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}  # fmt: skip


def parse_quantity(text: object) -> Fraction | None:
    """Return 1610612736 for `1.5Gi`, rounded up to a billionth, as it is stored. None: it is no quantity, or it is below 0."""
    written = str(text)
    match = re.fullmatch(QUANTITY_PATTERN, written) if len(written) <= MAX_QUANTITY_LENGTH else None
    if match is None or isinstance(text, bool):
        return None
    number, suffix = match[1], match[2] or ""
    factor = _FACTORS.get(suffix)
    if factor is None:
        factor = Fraction(10) ** max(-_MAX_EXPONENT, min(int(suffix[1:]), _MAX_EXPONENT))
    value = Fraction(f"0{number}0" if "." in number else number) * factor
    return min(_rounded_up(value, 10**9), Fraction(MAX_VALUE))


def _rounded_up(value: Fraction, parts: int) -> Fraction:
    scaled = value * parts
    return Fraction(-(-scaled.numerator // scaled.denominator), parts)


def is_same_amount(one: object, other: object) -> bool:
    """Return whether two amounts of a resource are equal as the API server keeps them: in thousandths, rounded up (`0.0001` is `1m`)."""
    first, second = parse_quantity(one), parse_quantity(other)
    if first is None or second is None:
        return False
    return _rounded_up(first, 1000) == _rounded_up(second, 1000)


def format_bytes(value_bytes: int) -> str:
    """Write bytes in the largest binary unit that is exact: `65Gi`, `1536Mi`."""
    for unit, size in (("Gi", GIB), ("Mi", MIB), ("Ki", KIB)):
        if value_bytes % size == 0:
            return f"{value_bytes // size}{unit}"
    return str(value_bytes)


def plus_bytes(text: object, extra_bytes: int) -> str:
    """Add bytes to a memory quantity, rounded up to whole bytes."""
    value = parse_quantity(text)
    if value is None:
        raise ValueError(f"{text!r} is not a quantity")
    return format_bytes(min(-(-value.numerator // value.denominator) + extra_bytes, MAX_VALUE))
