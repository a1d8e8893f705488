"""Bytes, exact fractions, and the one place where a size becomes text."""

from fractions import Fraction

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def cdiv(numerator: int, denominator: int) -> int:
    """Divide integers and round up; exact for any size."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    return cdiv(value, multiple) * multiple


def gib(value_gib: float) -> int:
    """Bytes of a figure that a source states in GiB."""
    return round(value_gib * GIB)


def format_gib(value_bytes: int) -> str:
    """Text for people, such as `12.55 GiB`; it is never parsed back."""
    return f"{value_bytes / GIB:.2f} GiB"


def share_of(total_bytes: int, share: Fraction) -> int:
    """`ceil(total × share)`, the memory that vLLM requests (0.11+, `request_memory`)."""
    return cdiv(total_bytes * share.numerator, share.denominator)
