"""Checks of many rows in one test, where a row by itself says nothing: a test costs milliseconds to collect, a row does not."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import pytest

Check = Callable[..., None]
EMPTY = "a table without a row holds nothing"
MOST_SHOWN = 10
"""Rows that a failure shows; it counts the others."""


def table(
    names: str | Sequence[str], rows: Iterable[Any] | Callable[[], Iterable[Any]], ids: object = None
) -> Callable[[Check], Check]:
    """Run a test with every row, as `pytest.mark.parametrize` in one test; a failure names all rows that do not hold.

    `names` and `rows` are those of `parametrize`. Fixtures are made once for all rows. `ids` is a list of texts or a function.
    A function that returns the rows is called when the test runs: rows that have to be computed cost nothing to collect.
    """
    parameters = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    given = list(rows) if isinstance(rows, Iterable) else rows
    assert given, EMPTY

    def wrapped(check: Check) -> Check:
        @wraps(check)
        def checked(**fixtures: Any) -> None:
            failed, known = [], given if isinstance(given, list) else list(given())
            assert known, EMPTY
            for number, row in enumerate(known):
                values = (row,) if len(parameters) == 1 and isinstance(names, str) else row
                try:
                    check(**fixtures, **dict(zip(parameters, values, strict=True)))
                except Exception as error:  # noqa: BLE001 - the others are checked too
                    failed.append(f"{_name(ids, number, row)}: {type(error).__name__}: {error}")
            if failed:
                more = f"\nand {len(failed) - MOST_SHOWN} more" if len(failed) > MOST_SHOWN else ""
                pytest.fail(
                    f"{len(failed)} of {len(known)} rows:\n" + "\n".join(failed[:MOST_SHOWN]) + more, pytrace=False
                )

        signature = inspect.signature(check)
        kept = [each for name, each in signature.parameters.items() if name not in parameters]
        checked.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return checked

    return wrapped


def _name(ids: object, number: int, row: Any) -> str:
    if callable(ids):
        return str(ids(row))
    return str(ids[number]) if isinstance(ids, list | tuple | range) else repr(row)[:200]
