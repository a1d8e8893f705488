"""A baseline: findings that were there when somebody began to check, so that only new ones count."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvgate.cli.check.ignoring import with_findings
from kvgate.cli.check.report import Ignored, Placed, Report
from kvgate.cli.check.results import Result, all_results, shown_file
from kvgate.cli.exits import BadInput
from kvgate.documents.bounded_files import read_text, write_text
from kvgate.text.inert import inert_values

VERSION = 1
MAX_BYTES = 16 << 20
"""Size of a file: 80,000 findings."""
_REASON = "in the baseline"


def write_baseline(path: Path, report: Report, *, inside: Path | None) -> None:
    """One line per finding that counts, in a stable order. `inside`: the folder that the path must not lead out of."""
    rows = sorted(
        (_row(result) for result in all_results(report) if _belongs(result)), key=lambda row: list(row.values())
    )
    lines = ",\n".join(f"  {json.dumps(inert_values(row), ensure_ascii=False)}" for row in rows)
    write_text(path, f'{{"version": {VERSION}, "findings": [\n{lines}\n]}}\n', inside=inside)


def _belongs(result: Result) -> bool:
    """It counts, or would without the baseline that is replaced."""
    return result.placed.ignored is None or result.placed.ignored.by == "baseline"


def _row(result: Result) -> dict[str, str]:
    """Return the columns that people need to review a finding, and the fingerprint that decides."""
    placed = result.placed
    name = result.item.subject if result.item else ""
    return {"file": shown_file(placed.file), "engine": name, "rule": placed.rule, "fingerprint": result.fingerprint}


def read_baseline(path: Path, *, inside: Path | None) -> frozenset[str]:
    """The fingerprints. `inside`: the folder that the path must not lead out of. Raises BadInput."""
    try:
        value = json.loads(read_text(path, max_bytes=MAX_BYTES, inside=inside))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is no JSON: {error}") from None
    rows: Any = value.get("findings") if isinstance(value, dict) and value.get("version") == VERSION else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "fingerprint" in row for row in rows):
        raise BadInput(f"{path} is no baseline of version {VERSION}; write it again with --write-baseline")
    return frozenset(str(row["fingerprint"]) for row in rows)


def without_known(report: Report, known: frozenset[str]) -> Report:
    """The report with the findings of the baseline ignored."""
    found = {id(result.placed): result.fingerprint for result in all_results(report)}

    def marked(placed: Placed) -> Placed:
        is_known = placed.ignored is None and found[id(placed)] in known
        return replace(placed, ignored=Ignored(reason=_REASON, by="baseline")) if is_known else placed

    return replace(with_findings(report, marked), num_unneeded=len(known - set(found.values())))
