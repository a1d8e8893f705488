"""The two axes of a sweep: a setting and its values, as written on the command line."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from msgspec import Struct

from kvgate.budget import AUTO_MAX_MODEL_LEN
from kvgate.vllm.settings import SWEPT, Setting
from kvgate.vllm.values import UnusableValue, ValueProblems

MAX_VALUES = 200
"""Values of one axis."""
_TRUTHS = {"true": True, "false": False}


class Axis(Struct, frozen=True, kw_only=True):
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
    """Read `KNOB=a,b,c`, `KNOB=a..b` by doubling, `KNOB=a..b+step`. Raises UnusableValue with everything that is wrong."""
    name, equals, written = text.partition("=")
    name = name.strip().lstrip("-").replace("-", "_")
    if name not in SWEPT:
        import difflib

        nearest = difflib.get_close_matches(name, SWEPT, n=2)
        instead = f"write {' or '.join(nearest)}" if nearest else f"choose from {', '.join(SWEPT)}"
        raise UnusableValue(f"{name!r} is not a setting that can be swept; {instead}")
    if not equals or not written.strip():
        raise UnusableValue(f"{name} has no values; write {name}=a,b,c, {name}=a..b for doubling, or {name}=a..b+step")
    problems = ValueProblems()
    parts = [problems.read_or([], _values, SWEPT[name], part.strip()) for part in written.split(",")]
    problems.check()
    return axis_of(name, [value for part in parts for value in part])


def axis_of(name: str, values: Sequence[Any]) -> Axis:
    """Return the axis with each value once, numbers in order. Raises UnusableValue."""
    axis = Axis(name=name, values=tuple(dict.fromkeys(values)))
    if len(axis.values) > MAX_VALUES:
        raise UnusableValue(f"{name} has {len(axis.values)} values; at most {MAX_VALUES} are allowed")
    return Axis(name=name, values=tuple(sorted(axis.values))) if axis.is_numeric else axis


def with_value(axis: Axis, text: str) -> tuple[Axis, int]:
    """Return the axis with one more value, unless it has it, and the index of that value. Raises UnusableValue."""
    value = read_swept_value(SWEPT[axis.name], text)
    extended = axis_of(axis.name, [*axis.values, value])
    return extended, extended.values.index(value)


def read_swept_value(setting: Setting, text: str) -> Any:
    """Return one value. Raises UnusableValue, which names the setting."""
    value = _TRUTHS.get(text.strip().lower(), text) if setting.is_switch else text.strip()
    try:
        return setting.read(value)
    except UnusableValue as error:
        raise UnusableValue(f"{setting.name} is {text!r}; {error}") from None


def _values(setting: Setting, part: str) -> list[Any]:
    first, dots, rest = part.partition("..")
    if not dots:
        return [read_swept_value(setting, part)]
    last, plus, step = rest.partition("+")
    low, high = read_swept_value(setting, first), read_swept_value(setting, last)
    width = read_swept_value(setting, step) if plus else low
    if not all(map(_is_number, (low, high, width))) or low > high:
        raise UnusableValue(
            f"{setting.name}={part}: a range needs two numbers, the smaller first, and a number as its step"
        )
    if plus:
        count = (high - low) // width + 1
        if count > MAX_VALUES:
            raise UnusableValue(
                f"{setting.name}={part}: the range has {count} values; at most {MAX_VALUES} are allowed"
            )
        return [low + number * width for number in range(int(count))]
    doubled = []
    while low < high:
        doubled.append(low)
        low *= 2
    return [*doubled, high]
