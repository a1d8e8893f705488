"""The two axes of a sweep: a setting and its values, as written on the command line."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from kvgate.budget.request import AUTO_MAX_MODEL_LEN
from kvgate.record import record
from kvgate.vllm.settings import SWEPT, Setting
from kvgate.vllm.values import Unusable, ValueProblems

MAX_VALUES = 200
"""Values of one axis."""
_TRUTHS = {"true": True, "false": False}


@record
class Axis:
    """Numbers rise; names keep the order in which they are given."""

    name: str
    values: tuple[Any, ...]

    @property
    def is_numeric(self) -> bool:
        return all(map(_is_number, self.values))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(map(label, self.values))


def _is_number(value: Any) -> bool:
    """`auto` stands for a length that is searched, before or behind any other."""
    return isinstance(value, int | Fraction) and not isinstance(value, bool) and value != AUTO_MAX_MODEL_LEN


def label(value: Any) -> str:
    """Write a value as vLLM's flags take it."""
    if value == AUTO_MAX_MODEL_LEN:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{float(value):.15g}" if isinstance(value, Fraction) else str(value)


def parse_axis(text: str) -> Axis:
    """`KNOB=a,b,c`, `KNOB=a..b` by doubling, `KNOB=a..b+step`. Raises Unusable with everything that is wrong."""
    name, equals, written = text.partition("=")
    name = name.strip().lstrip("-").replace("-", "_")
    if name not in SWEPT:
        raise Unusable(f"{name!r} is not a setting that can be swept; {_instead_of(name)}")
    if not equals or not written.strip():
        raise Unusable(f"{name} has no values; write {name}=a,b,c, {name}=a..b for doubling, or {name}=a..b+step")
    problems = ValueProblems()
    parts = [problems.read_or([], _values, SWEPT[name], part.strip()) for part in written.split(",")]
    problems.check()
    return axis_of(name, [value for part in parts for value in part])


def _instead_of(name: str) -> str:
    import difflib

    nearest = difflib.get_close_matches(name, SWEPT, n=2)
    return f"write {' or '.join(nearest)}" if nearest else f"choose from {', '.join(SWEPT)}"


def axis_of(name: str, values: Sequence[Any]) -> Axis:
    """Each value once; numbers in order. Raises Unusable."""
    axis = Axis(name=name, values=tuple(dict.fromkeys(values)))
    if len(axis.values) > MAX_VALUES:
        raise Unusable(f"{name} has {len(axis.values)} values; {MAX_VALUES} are the most")
    return Axis(name=name, values=tuple(sorted(axis.values))) if axis.is_numeric else axis


def with_value(axis: Axis, text: str) -> tuple[Axis, int]:
    """The axis with one more value, unless it has it, and where that is. Raises Unusable."""
    value = read_value(SWEPT[axis.name], text)
    extended = axis_of(axis.name, [*axis.values, value])
    return extended, extended.values.index(value)


def read_value(setting: Setting, text: str) -> Any:
    """One value, with the setting's name where it cannot be used."""
    value = _TRUTHS.get(text.strip().lower(), text) if setting.is_switch else text.strip()
    try:
        return setting.read(value)
    except Unusable as error:
        raise Unusable(f"{setting.name} is {text!r}; {error}") from None


def _values(setting: Setting, part: str) -> list[Any]:
    first, dots, rest = part.partition("..")
    if not dots:
        return [read_value(setting, part)]
    last, plus, step = rest.partition("+")
    low, high = read_value(setting, first), read_value(setting, last)
    width = read_value(setting, step) if plus else low
    if not all(map(_is_number, (low, high, width))) or low > high:
        raise Unusable(f"{setting.name}={part}: a range needs two numbers, the smaller first, and its step another")
    return list(_steps(low, high, width) if plus else _doubled(low, high))


def _steps(low: Any, high: Any, step: Any) -> Iterator[Any]:
    """Up to the last that is within the range."""
    count = (high - low) // step + 1
    if count > MAX_VALUES:
        raise Unusable(f"a range of {count} values; {MAX_VALUES} are the most")
    yield from (low + number * step for number in range(int(count)))


def _doubled(low: Any, high: Any) -> Iterator[Any]:
    """Both ends are among them."""
    while low < high:
        yield low
        low *= 2
    yield high
