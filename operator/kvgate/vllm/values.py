"""Values of vLLM's arguments, from JSON or as text from a command line."""

import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, ParamSpec, TypeVar


class Unusable(ValueError):
    """A value of the wrong type or range; the message says what it must be."""


Reader = Callable[[Any], Any]
_SIZE = re.compile(r"(\d+)([kKmMgGtT]?)|(\d+\.\d+)([kmgt])")
_DECIMAL = re.compile(r"[+-]?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def text(value: Any) -> str:
    """A name."""
    if not isinstance(value, str) or not value.strip() or len(value) > 512:
        raise Unusable("it must be text")
    return value.strip()


def truth(value: Any) -> bool:
    """A JSON truth value."""
    if not isinstance(value, bool):
        raise Unusable("it must be true or false")
    return value


def mapping(value: Any) -> Mapping[str, Any]:
    """A JSON object."""
    if not isinstance(value, Mapping):
        raise Unusable("it must be an object: the content of the model's config.json")
    return value


def whole(at_most: int, *, units: bool = False) -> Reader:
    """A whole number from 1; with `units` also vLLM's 32k (decimal) and 32K (binary)."""
    hint = "a whole number" + (" such as 32768, 32k (32000) or 32K (32768)" if units else "")

    def read(value: Any) -> int:
        number = _sized(value, units=units) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= at_most:
            raise Unusable(f"it must be {hint} from 1 to {at_most}")
        return number

    return read


def read_size(value: str) -> int:
    """`32768`, `32k` (decimal), `32K` (binary), `1.5k`. Raises Unusable."""
    number = _sized(value, units=True)
    if number is None:
        raise Unusable("it must be a whole number such as 32768, 32k (32000) or 32K (32768)")
    return number


def _sized(value: str, *, units: bool) -> int | None:
    match = _SIZE.fullmatch(value.strip()) if len(value) < 30 else None
    if match is None:
        return None
    digits, unit = (match[1], match[2]) if match[1] else (match[3], match[4])
    return int(Fraction(digits) * _UNITS[unit]) if units or not unit else None


def exact_decimal(value: Any) -> Fraction | None:
    """0.9 is 9/10; None for what is no number, or one whose digits would fill the memory: 1e999999999."""
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)) > 20:
        return None
    match = _DECIMAL.fullmatch(str(value).strip())
    return Fraction(match[0]) if match else None


def one_of(*names: str) -> Reader:
    """One of the words that vLLM knows."""

    def read(value: Any) -> str:
        if value not in names:
            raise Unusable(f"it must be one of {', '.join(names)}")
        return str(value)

    return read


P = ParamSpec("P")
T = TypeVar("T")


class ValueProblems:
    """Problems of several readings, each of which may raise Unusable."""

    def __init__(self, found: Iterable[str] = ()) -> None:
        self._found = list(found)

    def read_or(self, otherwise: T, read: Callable[P, T], *given: P.args, **options: P.kwargs) -> T:
        """Return what is read, or `otherwise`, which nobody will use, where there is a problem."""
        try:
            return read(*given, **options)
        except Unusable as error:
            self._found.append(str(error))
            return otherwise

    def check(self) -> None:
        """Raises Unusable with all of them, each once."""
        if self._found:
            raise Unusable("; ".join(dict.fromkeys(self._found)))
