"""Compare `kvgate check` with the answers of platforms.csv on six platforms' own repositories: `python -m corpus.platforms CHECKOUTS`.

CHECKOUTS is a folder with a checkout of each repository at its commit, under the name OWNER+NAME; those that are missing are left out.
Charts and overlays are rendered where `helm`, and `kubectl` or `kustomize`, are on PATH. A difference that no row says beforehand
(`known`) fails.
"""

import csv
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.check.run import run
from kvgate.cli.reports.report import Item
from kvgate.findings.finding import Severity

TABLE = Path(__file__).with_name("platforms.csv")


class Row(Struct, frozen=True):
    """The answer of a careful reader about one engine of a sample."""

    repository: str
    commit: str
    file: str
    """The sample; the kustomization or the values where it is rendered."""
    name: str
    model: str
    """Empty where nobody can know it."""
    accelerator: str
    """Empty where the sample names none."""
    tensor_parallel_size: str
    data_parallel_size: str
    verdict: str
    errors: str
    """Rules of the errors that are true."""
    known: str
    """Why kvgate does not say so yet."""
    note: str


def main() -> None:
    checkouts = Path(sys.argv[1]).resolve()
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [Row(**row) for row in csv.DictReader(file)]
    unlike = 0
    for repository in dict.fromkeys(row.repository for row in rows):
        folder = checkouts / repository.replace("/", "+")
        if folder.is_dir():
            unlike += _compare(repository, folder, [row for row in rows if row.repository == repository])
    if unlike:
        sys.exit(f"{unlike} differences that platforms.csv does not name")


def _compare(repository: str, folder: Path, rows: Sequence[Row]) -> int:
    """Print how many engines agree, and each that does not; return how many differ unsaid."""
    os.chdir(folder)
    found = Counter(_told(item) for item in run((".",), CheckOptions()).items if item.engine)
    right = Counter(_wanted(row) for row in rows)
    known = Counter(_wanted(row) for row in rows if row.known)
    missed, more = right - found, found - right
    errors = sum(count for told, count in found.items() if told[-1])
    print(
        f"{repository}: {(right & found).total()} of {right.total()} engines agree, {errors} with errors, {known.total()} known to differ"
    )
    for sign, each in (("-", missed), ("+", more)):
        for line in each:
            print(f"  {sign} {' | '.join(line)}")
    places = {told[:2] for told in known}
    return sum(count for told, count in (*(missed - known).items(), *more.items()) if told[:2] not in places)


def _wanted(row: Row) -> tuple[str, ...]:
    return (
        row.file,
        row.name,
        row.model,
        row.accelerator,
        row.tensor_parallel_size,
        row.data_parallel_size,
        row.verdict,
        row.errors,
    )


def _told(item: Item) -> tuple[str, ...]:
    """Return what is said of an engine, in the words of the table."""
    engine = item.engine
    assert engine is not None
    sizes = (engine.settings.get(f"{name}_parallel_size", 1) for name in ("tensor", "data"))
    is_open = item.verdict in ("Unknown", "NotJudged")
    errors = {placed.rule for placed in item.findings if placed.finding.severity is Severity.ERROR}
    return (
        os.path.relpath(item.source or item.file),
        item.name,
        "" if item.verdict == "NotJudged" else engine.model or "",
        item.accelerator or "",
        *("" if is_open else str(size) for size in sizes),
        str(item.verdict),
        " ".join(sorted(errors)),
    )


if __name__ == "__main__":
    main()
