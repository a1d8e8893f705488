"""A prediction in bytes with its error, the verdict that follows from it, one line of the ledger, and what cannot be predicted."""

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct


class Verdict(StrEnum):
    """Answer of the engine about a demand."""

    FITS = "Fits"
    """The demand fits even at the low end of what may be available."""
    MAY_NOT_FIT = "MayNotFit"
    """The demand lies inside the interval."""
    DOES_NOT_FIT = "DoesNotFit"
    """The demand does not fit even at the high end, or vLLM refuses the setting."""
    UNKNOWN = "Unknown"
    """A fact or a formula is missing; this is not a no."""


class Interval(Struct, frozen=True, kw_only=True):
    """A prediction in bytes, low ≤ expected ≤ high; a negative end means an overdrawn budget."""

    low: int
    expected: int
    high: int

    def __post_init__(self) -> None:
        if not self.low <= self.expected <= self.high:
            raise ValueError(f"not an interval: {self.low}, {self.expected}, {self.high}")

    @classmethod
    def exactly(cls, value: int) -> "Interval":
        """Return the interval of a figure that is known and not predicted."""
        return cls(low=value, expected=value, high=value)

    @classmethod
    def around(cls, expected: int, *, below: int, above: int) -> "Interval":
        """Return the interval from `expected - below` to `expected + above`; a use of memory is never below zero."""
        return cls(low=max(min(expected, 0), expected - below), expected=expected, high=expected + above)

    def __add__(self, other: "Interval") -> "Interval":
        """Add both ends, because at worst both predictions err to the same side."""
        return Interval(low=self.low + other.low, expected=self.expected + other.expected, high=self.high + other.high)

    def __sub__(self, other: "Interval") -> "Interval":
        """Return what is left: at worst more is taken of less."""
        return Interval(low=self.low - other.high, expected=self.expected - other.expected, high=self.high - other.low)

    def less(self, exactly: int) -> "Interval":
        """Return what is left when a known amount is taken away."""
        return Interval(low=self.low - exactly, expected=self.expected - exactly, high=self.high - exactly)

    def times(self, count: int) -> "Interval":
        return Interval(low=self.low * count, expected=self.expected * count, high=self.high * count)

    def each(self, change: Callable[[int], int]) -> "Interval":
        """Return the interval of a figure that grows with this one."""
        return Interval(low=change(self.low), expected=change(self.expected), high=change(self.high))

    def spanning(self, *others: "Interval") -> "Interval":
        """Return the same expectation, between the least and the most of all."""
        low, high = self.low, self.high
        for other in others:
            low, high = min(low, other.low), max(high, other.high)
        return Interval(low=low, expected=self.expected, high=high)


def verdict_of(demand: int, available: Interval) -> Verdict:
    """Compare a demand with what may be available, both in bytes or both in blocks."""
    if demand <= available.low:
        return Verdict.FITS
    if demand > available.high:
        return Verdict.DOES_NOT_FIT
    return Verdict.MAY_NOT_FIT


class Fact(Struct, frozen=True, kw_only=True):
    """A circumstance as a term of the ledger takes it."""

    name: str
    value: str
    """The value that the expected figure goes by."""
    other: str = ""
    """The value that may hold instead, which the interval covers; empty where the value is known."""
    why: str

    @property
    def is_known(self) -> bool:
        return not self.other

    @property
    def text(self) -> str:
        """One sentence for people."""
        if self.is_known:
            return f"{self.name} is {self.value}: {self.why}"
        return f"{self.name} is not known: {self.value} is expected, the range covers {self.other} too; {self.why}"


class Term(Struct, frozen=True, kw_only=True):
    """A use of GPU memory that vLLM takes out of the budget before the KV cache gets the rest."""

    name: str
    """`weights`, `peak_activation`, `non_torch` or `cuda_graph`: the words of vLLM's log."""
    amount: Interval
    formula: str
    """The formula in the symbols of `inputs`, on one line."""
    source: str
    """Source of the formula, or the starts behind its constants."""
    facts: tuple[Fact, ...] = ()
    """Circumstances that the term goes by."""
    inputs: tuple[tuple[str, int | str], ...] = ()
    """Numbers that the formula uses, and the parts that it puts together; bytes where the name ends in `_bytes`."""


class BudgetError(Exception):
    """Base of every exception that the engine raises."""


class UnknownVersion(BudgetError):
    """The text is no vLLM version, or the release is older than the oldest one that is known."""


class UnmodelledKind(BudgetError):
    """`kind` has no formula here: the answer is Unknown and never a guess."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class UnmodelledValue(UnmodelledKind):
    """The value of a setting has no formula here."""

    def __init__(self, setting: str, value: object) -> None:
        super().__init__(f"{setting} {value}")
        self.setting = setting
        self.value = str(value)
