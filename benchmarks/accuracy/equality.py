"""Number of figures that are equal to those of vLLM's own code, from the tables of tests/parity."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parity.comparison import differences, stage_bytes
from parity.tables import KINDS, Row, arithmetic_of, rows_of


@dataclass(frozen=True, kw_only=True)
class Equality:
    """Result for the arithmetic, or for the weights, of one kind of attention."""

    name: str
    models: int
    rows: int
    equal: int
    near: int
    """Rows within 0.1 %. It differs from `equal` only for weights."""

    @property
    def percent(self) -> float:
        return 100 * self.equal / self.rows


def arithmetic_equality() -> list[Equality]:
    """Return for each kind of attention the number of rows whose figures are all equal."""
    return [_arithmetic(kind) for kind in KINDS]


def _arithmetic(kind: str) -> Equality:
    rows = [row for rows in arithmetic_of(kind).values() for row in rows]
    equal = sum(not differences(row) for row in rows)
    return Equality(name=kind, models=_models(rows), rows=len(rows), equal=equal, near=equal)


def weights_equality() -> list[Equality]:
    """Return for each kind the number of ranks (a model, its parallel sizes, a GPU) whose stages are all equal to the byte."""
    kind_of = {model: kind for kind in KINDS for model in arithmetic_of(kind)}
    groups: dict[str, list[Row]] = {kind: [] for kind in KINDS}
    for row in rows_of("parameter_bytes.csv"):
        if row["model"] in kind_of:  # models without a cache have no arithmetic
            groups[kind_of[row["model"]]].append(row)
    return [_weights(kind, rows) for kind, rows in groups.items()]


def _weights(kind: str, rows: Sequence[Row]) -> Equality:
    errors = [_largest_error(row) for row in rows]
    return Equality(
        name=kind,
        models=_models(rows),
        rows=len(rows),
        equal=sum(error == 0 for error in errors),
        near=sum(error <= 0.001 for error in errors),
    )


def _largest_error(row: Row) -> float:
    """Return the largest error of all stages, as a share; 1 if kvgate has no answer."""
    theirs, ours = [int(size) for size in row["stage_bytes"].split()], stage_bytes(row)
    if len(ours) != len(theirs):
        return 1.0
    return max(1.0 if size is None else abs(size / exact - 1) for size, exact in zip(ours, theirs, strict=True))


def _models(rows: Iterable[Row]) -> int:
    return len({row["model"] for row in rows})


def total(groups: Sequence[Equality]) -> Equality:
    return Equality(
        name="all",
        models=sum(group.models for group in groups),
        rows=sum(group.rows for group in groups),
        equal=sum(group.equal for group in groups),
        near=sum(group.near for group in groups),
    )
