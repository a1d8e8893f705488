"""Time and memory of immutable records: msgspec, attrs and the standard library, made and used in the same process.

    .venv/bin/python benchmarks/record_types.py

A command imports about 150 record classes before it does anything, and one verdict makes thousands of objects. Run it again
before the record type is changed (docs/design, 0003). attrs is measured when it is installed.
"""

import time
from collections.abc import Callable
from dataclasses import make_dataclass
from importlib import import_module
from importlib.util import find_spec
from statistics import median

import msgspec

CLASSES = 150
FIELDS = [f"field_{number}" for number in range(7)]
OBJECTS = 50_000


def main() -> None:
    """Print the milliseconds of all classes, and the microseconds of one object, for each type; the ratio is to msgspec."""
    types: dict[str, Callable[[str], type]] = {"msgspec": by_msgspec, "dataclasses": by_dataclasses}
    if find_spec("attrs"):
        types["attrs"] = by_attrs
    figures = {
        name: (milliseconds_of_classes(make), microseconds_of_an_object(make("Record"))) for name, make in types.items()
    }
    base = figures["msgspec"]
    for name, (classes, instance) in figures.items():
        print(
            f"{name:12} {CLASSES} classes {classes:7.1f} ms ({classes / base[0]:5.1f}×)   "
            f"an object {instance:6.2f} µs ({instance / base[1]:5.1f}×)"
        )


def by_msgspec(name: str) -> type:
    """A frozen Struct with fields by keyword."""
    return msgspec.defstruct(name, [(field, int) for field in FIELDS], frozen=True, kw_only=True)


def by_dataclasses(name: str) -> type:
    """A frozen dataclass with slots and fields by keyword."""
    return make_dataclass(name, [(field, int) for field in FIELDS], frozen=True, kw_only=True, slots=True)


def by_attrs(name: str) -> type:
    """A frozen attrs class with slots and fields by keyword."""
    attrs = import_module("attrs")
    return attrs.make_class(name, FIELDS, frozen=True, kw_only=True, slots=True)  # type: ignore[no-any-return]


def milliseconds_of_classes(make: Callable[[str], type], rounds: int = 5) -> float:
    """Median time to make all classes once."""
    return 1000 * median(timed(lambda: [make(f"Record{number}") for number in range(CLASSES)]) for _ in range(rounds))


def microseconds_of_an_object(cls: type, rounds: int = 5) -> float:
    """Median time to make one object with all its fields."""
    values = dict.fromkeys(FIELDS, 1)
    return 1e6 * median(timed(lambda: [cls(**values) for _ in range(OBJECTS)]) for _ in range(rounds)) / OBJECTS


def timed(work: Callable[[], object]) -> float:
    """Processor seconds of one call."""
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
