"""The fitted constants beside what the logs give: `make constants` says which of them have moved, and writes them."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from textwrap import wrap

from accuracy.derivation import Derived, derive, value_of
from accuracy.readings import Reading, constants, readings
from accuracy.starts import GIB, read_starts
from kvgate.budget.ground import fitted
from kvgate.budget.ground.fitted import Fitted
from kvgate.budget.ground.units import MIB

PATH = Path(fitted.__file__)
DIGITS = 3
ID_DIGITS = 5
"""Digits by which kvgate.budget.ground.fitted names a start."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """How well other sources tell what a source shows."""

    inside: float
    """Share of the left-out readings that are in the interval; each source counts once."""
    error: float
    """Median distance from the expected value, in the constant's unit."""


def scale_of(constant: Fitted) -> tuple[float, str]:
    """Return (bytes, or thousandths, of the unit in which people read the constant, its name)."""
    if constant.unit.startswith("thousandths"):
        return 10.0, "%" + constant.unit.removeprefix("thousandths")
    return (MIB, "MiB" + constant.unit.removeprefix("bytes")) if "per" in constant.unit else (GIB, "GiB")


def moved(found: Mapping[str, Derived]) -> list[str]:
    """Return the names of the constants that are not what the logs give, to the last digit that is written."""
    return [
        name
        for name, constant in constants().items()
        if name in found and _text(constant) != _text(found[name], constant)
    ]


def undeclared(found: Mapping[str, Derived]) -> list[str]:
    """Return the names of the constants that no log gives and that do not say so."""
    return [name for name, constant in constants().items() if name not in found and not constant.is_guess]


def left_out_errors(known: Iterable[Reading]) -> dict[str, LeftOut]:
    """Derive every constant without each of its sources in turn."""
    every = list(known)
    inside: dict[str, list[float]] = {}
    errors: dict[str, list[float]] = {}
    whole = derive(every)
    for source in sorted({reading.start.source for reading in every}):
        others = derive(reading for reading in every if reading.start.source != source)
        own = [reading for reading in every if reading.start.source == source]
        for name, derived in whole.items():
            values = [
                value_of(each, whole) for each in own if each.constant == name and each.start.id in derived.starts
            ]
            if values and name in others:
                interval = others[name].interval
                inside.setdefault(name, []).append(
                    sum(interval.low <= each <= interval.high for each in values) / len(values)
                )
                errors.setdefault(name, []).append(abs(median(values) - interval.expected))
    return {
        name: LeftOut(inside=sum(shares) / len(shares), error=median(errors[name])) for name, shares in inside.items()
    }


def _text(given: Fitted | Derived, constant: Fitted | None = None) -> str:
    """Return the lines of the source from `interval` to `starts`."""
    scale, name = scale_of(constant or given)  # type: ignore[arg-type]
    ends = (given.interval.low, given.interval.expected, given.interval.high)
    if name.startswith("%"):
        value = f"_error({given.interval.high})" if given.interval.low == -given.interval.high else str(ends)
    else:
        value = (
            f"{'_pieces' if name.startswith('MiB') else '_between'}({', '.join(_number(end / scale) for end in ends)})"
        )
    ids = " ".join(name[: ID_DIGITS + 2].removeprefix("s-") for name in sorted(given.starts))
    lines = wrap(ids, 126)
    starts = f'"{lines[0]}"' if len(lines) == 1 else "\n" + "".join(f'        "{line} "\n' for line in lines) + "    "
    return f"    interval={value},\n    sources={given.sources},\n    starts=_starts({starts}),\n"


def _number(value: float) -> str:
    return f"{round(value, DIGITS) + 0:g}"


def written(text: str, found: Mapping[str, Derived]) -> str:
    """Return the source of kvgate.budget.ground.fitted with the derived values."""
    for name, derived in found.items():
        body = re.compile(
            rf"(?m)^({name} = Fitted\(\n)    interval=.*\n(?:    sources=.*\n)?(?:    starts=_starts\([^)]*\),\n)?"
        )
        text, count = body.subn(lambda match: match[1] + _text(derived, constants()[name]), text)  # noqa: B023
        if count != 1:
            raise ValueError(f"{name} is not written as other constants are")
    return text


def _differences(found: Mapping[str, Derived]) -> Iterator[str]:
    for name in moved(found):
        constant, derived = constants()[name], found[name]
        scale, unit = scale_of(constant)
        before, after = (
            ", ".join(_number(end / scale) for end in (each.low, each.expected, each.high))
            for each in (constant.interval, derived.interval)
        )
        yield f"{name}: {before} {unit}; the logs give {after} ({len(derived.starts)} starts, {derived.sources} sources)"
    for name in undeclared(found):
        yield f"{name}: no log gives it, and it does not say that it is a guess"


def main() -> None:
    found = derive(readings(read_starts()))
    print("\n".join(_differences(found)) or "every constant is what the logs give")
    if "--write" in sys.argv[1:]:
        PATH.write_text(written(PATH.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
