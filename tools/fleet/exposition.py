"""All that one vLLM exports, as a recorded run of 0.32.0 had it: 430 series, of which kvgate's rules and dashboards read a part.

    body = exposition(seconds=60.0, seed=7)

fake_vllm.py serves the metrics that kvgate reads, with figures that belong together. This has every name and label, with figures that
only grow as they would; it is for what many series cost.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

RECORDED = Path(__file__).resolve().parent / "data" / "exposition_0_32.csv"
MODEL = "tiny-llama"
BORN_SECONDS = 1.795e9


class Family(Struct, frozen=True, kw_only=True):
    """A metric with all its label sets."""

    name: str
    kind: str
    has_engine: bool
    is_created: bool
    """True where a series with the time of birth is beside it."""
    labels: tuple[str, ...]
    """Each set as text, without braces."""
    bounds: tuple[str, ...]


@lru_cache(maxsize=1)
def families() -> tuple[Family, ...]:
    """Return the recorded families in their order."""
    with RECORDED.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    return tuple(
        Family(
            name=row["name"], kind=row["kind"], has_engine=row["has_engine"] == "1", is_created=row["created"] == "1",
            labels=tuple(_labels(each, has_engine=row["has_engine"] == "1") for each in row["labels"].split("|")),
            bounds=tuple(row["bounds"].split()),
        )
        for row in rows
    )  # fmt: skip


def _labels(text: str, *, has_engine: bool) -> str:
    pairs = [pair.split("=", 1) for pair in text.split(";") if pair]
    own = [("engine", "0"), ("model_name", MODEL)] if has_engine else []
    return ",".join(f'{name}="{value}"' for name, value in [*own, *pairs])


def exposition(*, seconds: float, seed: int = 0) -> bytes:
    """Return the plain text after so many seconds of load; the seed tells pods apart."""
    lines: list[str] = []
    for number, family in enumerate(families()):
        total = family.name + "_total" if family.kind == "counter" else family.name
        lines += [f"# HELP {total} As vLLM exports it.", f"# TYPE {total} {family.kind}"]
        pace = 1 + (seed * 31 + number * 7) % 97
        for labels in family.labels:
            lines += _series(family, total, labels, int(seconds * pace), seconds + seed)
        if family.is_created:
            lines += [f"{_named(family.name + '_created', labels)} {BORN_SECONDS + seed}" for labels in family.labels]
    return ("\n".join(lines) + "\n").encode()


def _series(family: Family, total: str, labels: str, count: int, phase: float) -> Iterator[str]:
    if family.kind == "counter":
        yield f"{_named(total, labels)} {float(count)}"
    elif family.kind == "gauge":
        yield f"{_named(total, labels)} {phase % 60 / 60 if family.name.endswith('_perc') else phase % 17 // 1}"
    else:
        for number, bound in enumerate(family.bounds, start=1):
            below = float(count * number // len(family.bounds))
            with_bound = ",".join(filter(None, (labels, f'le="{bound}"')))
            yield f"{_named(family.name + '_bucket', with_bound)} {below}"
        yield f"{_named(family.name + '_count', labels)} {float(count)}"
        yield f"{_named(family.name + '_sum', labels)} {count * 0.37}"


def _named(name: str, labels: str) -> str:
    return f"{name}{{{labels}}}" if labels else name
