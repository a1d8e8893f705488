"""Check public charts rendered by Helm and as they are written, and compare both: `python -m corpus.charts CHECKOUTS [--write]`.

CHECKOUTS is a folder with a checkout of each repository of charts.csv, at its commit, under the name OWNER+NAME. Without `--write` the
command fails where charts.csv says something else. It needs `helm` on PATH, and no network: dependencies of a chart that are not
packed with it are left out.
"""

import csv
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct, structs

from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.check.run import run
from kvgate.cli.reports.report import Item
from kvgate.documents.origins import ChartOptions, Render
from kvgate.findings.finding import Severity

TABLE = Path(__file__).with_name("charts.csv")
AS_WRITTEN = CheckOptions(charts=ChartOptions(render=Render.NEVER))
EQUAL, TOLD = "equal", "told"


class Row(Struct, frozen=True):
    """An engine of a chart with one file of values."""

    repository: str
    commit: str
    chart: str
    """Folder of the chart."""
    values: str
    """File of values in it."""
    model: str = ""
    accelerator: str = ""
    tensor_parallel_size: str = ""
    max_model_len: str = ""
    verdict: str = ""
    """Verdict on the rendered engine; empty where nothing that is rendered holds one."""
    findings: str = ""
    """Rules of its errors and warnings."""
    unrendered: str = ""
    """`equal`; `told`: no verdict, and the answer names the command that renders the chart; or what is said otherwise."""


def main() -> None:
    checkouts, is_written = Path(sys.argv[1]), "--write" in sys.argv
    with TABLE.open(encoding="utf-8", newline="") as file:
        known = [Row(**row) for row in csv.DictReader(file)]
    places = dict.fromkeys((row.repository, row.commit, row.chart, row.values) for row in known)
    there = [place for place in places if (checkouts / place[0].replace("/", "+")).is_dir()]
    found = [row for place in there for row in _rows(checkouts, Row(*place))]
    for row in found:
        if row.unrendered not in (EQUAL, TOLD):
            print(f"{row.repository} {row.chart} {row.values}: {row.unrendered}")
    counts = Counter(row.unrendered.partition(":")[0] for row in found)
    print(
        f"{len({place[0] for place in there})} repositories, {len({place[:3] for place in there})} charts, {len(there)} files of values"
    )
    print(f"{len(found)} engines: {', '.join(f'{count} {name}' for name, count in counts.most_common())}")
    if is_written:
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([Row.__struct_fields__, *map(structs.astuple, found)])
    elif differing := set(map(structs.astuple, found)) ^ {
        structs.astuple(row) for row in known if row in found or _is_of(row, there)
    }:
        sys.exit("\n".join(["charts.csv says something else:", *map(str, sorted(differing))]))


def _is_of(row: Row, places: Sequence[tuple[str, ...]]) -> bool:
    return (row.repository, row.commit, row.chart, row.values) in places


def _rows(checkouts: Path, place: Row) -> Iterator[Row]:
    """Yield a row for each engine that one of both ways finds."""
    folder = checkouts / place.repository.replace("/", "+") / place.chart
    report = run((str(folder),), AS_WRITTEN)
    written = [item for item in report.items if item.engine and Path(item.file) == folder / place.values]
    with tempfile.TemporaryDirectory() as scratch:
        stream = Path(scratch, "rendered.yaml")
        stream.write_text(rendered(folder, place.values, Path(scratch)), encoding="utf-8")
        engines = [item for item in run((str(stream),), CheckOptions()).items if item.engine]
    is_whole = not _missing(folder)
    for pair in _pairs(engines, written):
        if pair[0] is None and not is_whole:  # an engine of a dependency
            continue
        yield structs.replace(place, **_facts(pair[0]), unrendered=_compared(*pair, is_told=bool(report.passed_over)))


def rendered(folder: Path, values: str, scratch: Path) -> str:
    """Render a copy of a chart without the dependencies that are not there. Raises CalledProcessError."""
    copy, missing = Path(shutil.copytree(folder, scratch / "chart")), _missing(folder)
    chart = _chart(folder)
    for each in chart.get("dependencies", []):
        if (local := _local(folder, each)) and not (copy / "charts" / local.name).exists():
            shutil.copytree(local, copy / "charts" / local.name)
    kept = [each for each in chart.pop("dependencies", []) if each["name"] not in missing]
    (copy / "Chart.yaml").write_text(yaml.safe_dump({**chart, "dependencies": kept}), encoding="utf-8")
    (copy / "Chart.lock").unlink(missing_ok=True)
    command = ["helm", "template", "release", str(copy), "--values", str(copy / values)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _chart(folder: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8")))


def _missing(folder: Path) -> set[str]:
    """Return the names of dependencies that are neither packed with a chart nor a folder of the checkout."""
    packed = [path.name for path in (folder / "charts").glob("*")]
    names = {each["name"]: each for each in _chart(folder).get("dependencies", [])}
    return {
        name for name, each in names.items() if not _local(folder, each) and not any(f.startswith(name) for f in packed)
    }


def _local(folder: Path, dependency: dict[str, str]) -> Path | None:
    """Return the folder of a dependency from `file://`."""
    start, is_file, path = dependency.get("repository", "").partition("file://")
    place = (folder / path).resolve() if is_file and not start else None
    return place if place and place.is_dir() else None


def _pairs(rendered: Sequence[Item], written: Sequence[Item]) -> Iterator[tuple[Item | None, Item | None]]:
    """Pair by model, then in the order of the files."""
    rest = list(written)
    for item in rendered:
        same = next((each for each in rest if _model(each) == _model(item)), rest[0] if rest else None)
        if same is not None:
            rest.remove(same)
        yield item, same
    yield from ((None, item) for item in rest)


def _model(item: Item) -> str:
    return (item.engine and item.engine.model) or ""


def _facts(item: Item | None) -> dict[str, str]:
    if item is None or item.engine is None:
        return {}
    settings = item.engine.settings
    return {
        "model": _model(item),
        "accelerator": item.accelerator or "",
        "tensor_parallel_size": str(settings.get("tensor_parallel_size", 1)),
        "max_model_len": str(settings.get("max_model_len") or ""),
        "verdict": str(item.verdict),
        "findings": " ".join(sorted(_rules(item))),
    }


def _rules(item: Item) -> set[str]:
    return {placed.rule for placed in item.findings if placed.finding.severity is not Severity.INFO}


def _compared(rendered: Item | None, written: Item | None, *, is_told: bool) -> str:
    """Return whether the values say the same of an engine; a warning that only the rendered chart gives is not missed."""
    is_open = written is None or str(written.verdict) == "Unknown"
    if rendered is None and written is not None:
        return TOLD if is_open or written.verdict == "NotJudged" else f"not rendered: {written.verdict}"
    assert rendered is not None
    if written is None or (is_open and str(rendered.verdict) != "Unknown"):
        return TOLD if is_told else "not found"
    right, given = _facts(rendered), _facts(written)
    named = ("model", "accelerator", "tensor_parallel_size", "max_model_len", "verdict")
    other = [
        f"{name} {given[name] or 'none'}, not {right[name] or 'none'}" for name in named if given[name] != right[name]
    ]
    noise = sorted(_rules(written) - _rules(rendered))
    return "; ".join([*other, *noise]) or EQUAL


if __name__ == "__main__":
    main()
