"""The two axes of a sweep: a setting and its values, as written on the command line."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from kvgate.record import record
from kvgate.vllm_values import Unusable
from kvgate.what_if_settings import SETTINGS, Setting

MAX_VALUES = 200
"""Of one axis."""
_NOT_SWEPT = frozenset(
    {"model_config", "speculative_config", "compilation_config", "limit_mm_per_prompt", "kv_cache_dtype_skip_layers"}
)
"""Settings that are objects or lists."""
KNOBS: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS if setting.name not in _NOT_SWEPT}
_TRUTHS = {"true": True, "false": False}


@record
class Axis:
    """Numbers rise; names keep the order in which they are given."""

    name: str
    values: tuple[Any, ...]

    @property
    def is_numeric(self) -> bool:
        return all(isinstance(value, int | Fraction) and not isinstance(value, bool) for value in self.values)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(map(label, self.values))


def label(value: Any) -> str:
    """As vLLM's flags take it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{float(value):g}" if isinstance(value, Fraction) else str(value)


def parse_axis(text: str) -> Axis:
    """`KNOB=a,b,c`, `KNOB=a..b` by doubling, `KNOB=a..b+step`. Raises Unusable."""
    name, equals, written = text.partition("=")
    name = name.strip().lstrip("-").replace("-", "_")
    if name not in KNOBS:
        raise Unusable(f"{name!r} is not a setting that can be swept; choose from {', '.join(KNOBS)}")
    if not equals or not written.strip():
        raise Unusable(f"{name} has no values; write {name}=a,b,c, {name}=a..b for doubling, or {name}=a..b+step")
    return axis_of(name, [value for part in written.split(",") for value in _values(KNOBS[name], part.strip())])


def axis_of(name: str, values: Sequence[Any]) -> Axis:
    """Each value once; numbers in order. Raises Unusable."""
    axis = Axis(name=name, values=tuple(dict.fromkeys(values)))
    if len(axis.values) > MAX_VALUES:
        raise Unusable(f"{name} has {len(axis.values)} values; {MAX_VALUES} are the most")
    return Axis(name=name, values=tuple(sorted(axis.values))) if axis.is_numeric else axis


def with_value(axis: Axis, text: str) -> tuple[Axis, int]:
    """The axis with one more value, unless it has it, and where that is. Raises Unusable."""
    value = read_value(KNOBS[axis.name], text)
    extended = axis_of(axis.name, [*axis.values, value])
    return extended, extended.values.index(value)


def read_value(setting: Setting, text: str) -> Any:
    """One value, with the setting's name where it cannot be used."""
    value = _TRUTHS.get(text.strip().lower(), text) if setting.is_flag else text.strip()
    try:
        return setting.read(value)
    except Unusable as error:
        raise Unusable(f"{setting.name} is {text!r}; {error}") from None


def _values(setting: Setting, part: str) -> Iterator[Any]:
    first, dots, rest = part.partition("..")
    if not dots:
        yield read_value(setting, part)
        return
    last, plus, step = rest.partition("+")
    low, high = read_value(setting, first), read_value(setting, last)
    if not isinstance(low, int | Fraction) or isinstance(low, bool) or low > high:
        raise Unusable(f"{setting.name}={part}: a range needs two numbers, the smaller first")
    yield from _steps(low, high, read_value(setting, step)) if plus else _doubled(low, high)


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
