"""Helm charts, rendered by `helm template` from a copy of the chart: nothing is fetched, and nothing of the chart is run."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from msgspec import Struct

from kvgate.documents.bounded_files import Refused, open_file, read_all, read_file
from kvgate.documents.discovery import CHART_FILE
from kvgate.documents.nodes import YamlError, value_of
from kvgate.documents.programs import Failed, run_program
from kvgate.text.patterns import pattern

PROGRAMS = ("helm",)
VALUES_FILE, TEMPLATES, CHARTS = "values.yaml", "templates", "charts"
RELEASE = "kvgate-check"
"""Name of the release that is rendered and never installed."""
MAX_FILES = 5000
"""Files of one chart, its dependencies included."""
MAX_CHART_BYTES = 64 << 20
MAX_VALUES_FILES = 20
"""Further files of values of one chart with which it is rendered as well."""
_MAX_FILE_BYTES = 8 << 20
_LOCAL = "file://"
_VALUES_NAMES = pattern(r"(?:.*[-.])?values(?:[-.].*)?\.ya?ml")
_WORD_ENDS = re.compile(r"[\s()<>\"',]")
_PLACE = pattern(r"([\w.-]+(?:/[\w.-]+)+\.(?:ya?ml|tpl|txt))(?::(\d+))?(?::\d+)?:?")
"""A word that names a template, and perhaps a line and a column of it."""
_MISSING = pattern(r"missing in charts/? directory: ([^\n]+)")


class Chart(Struct, frozen=True, kw_only=True):
    """A chart in the checkout."""

    folder: Path
    name: str
    is_library: bool
    dependencies: tuple[tuple[str, str], ...]
    """(name, repository) of each."""


class ChartFailed(Struct, frozen=True, kw_only=True):
    """Helm's reason not to render a chart."""

    message: str
    remedy: str
    file: Path | None = None
    line: int = 1


def read_chart(folder: Path, inside: Path) -> Chart:
    """Read `Chart.yaml`. Raises OSError, ValueError with a sentence."""
    try:
        value = value_of(read_file(folder / CHART_FILE, max_bytes=_MAX_FILE_BYTES, inside=inside).decode())
    except (YamlError, UnicodeDecodeError) as error:
        raise ValueError(f"{CHART_FILE} is not YAML: {getattr(error, 'message', error)}") from None
    fields: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    listed = fields.get("dependencies")
    dependencies = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    return Chart(
        folder=folder,
        name=str(fields.get("name") or folder.name),
        is_library=fields.get("type") == "library",
        dependencies=tuple((str(each.get("name") or ""), str(each.get("repository") or "")) for each in dependencies),
    )


def values_files(chart: Chart) -> list[Path]:
    """Return further files of values beside those of the chart: `values-prod.yaml`, and `ci/gpu-values.yaml` of chart-testing."""
    folders = (chart.folder, chart.folder / "ci")
    found = (path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir()))
    names = (path for path in found if _VALUES_NAMES.fullmatch(path.name) and path.name != VALUES_FILE)
    return [path for path in names if path.is_file()]


def chart_files(folder: Path, inside: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield every file of a chart as (path below it, content). Raises OSError for a link that leads out of the checkout."""
    num_files = num_bytes = 0
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and not Path(top, name).is_symlink())
        for name in sorted(names):
            path = Path(top, name)
            with open_file(path, inside) as file:
                data = read_all(file, max_bytes=_MAX_FILE_BYTES)
            num_files, num_bytes = num_files + 1, num_bytes + len(data)
            if num_files > MAX_FILES or num_bytes > MAX_CHART_BYTES:
                raise Refused(f"the chart has more than {MAX_FILES} files or {MAX_CHART_BYTES >> 20} MiB")
            yield path.relative_to(folder), data


class Copy:
    """A copy of a chart, which Helm may follow every link of; a context manager."""

    def __init__(self, chart: Chart, inside: Path) -> None:
        self.chart, self.inside = chart, inside
        self._temporary = TemporaryDirectory(prefix="kvgate-")
        self.home, self.folder = Path(self._temporary.name, "home"), Path(self._temporary.name, "chart")

    def __enter__(self) -> Self:
        self.home.mkdir()
        self._write(self.chart.folder, self.folder)
        for name, repository in self.chart.dependencies:
            place = self.folder / CHARTS / name
            local = Path(os.path.normpath(self.chart.folder.resolve() / repository.removeprefix(_LOCAL)))
            is_missing = repository.startswith(_LOCAL) and name and "/" not in name and not place.exists()
            if is_missing and local.is_relative_to(self.inside.resolve()) and (local / CHART_FILE).is_file():
                self._write(local, place)
        return self

    def __exit__(self, *_: object) -> None:
        self._temporary.cleanup()

    def _write(self, source: Path, target: Path) -> None:
        for path, data in chart_files(source, self.inside):
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(data)

    def render(self, program: Path, values: Sequence[Path], sets: Sequence[str]) -> bytes | ChartFailed:
        """Render the chart with files of values, of which later ones win, and with single values, which win over files."""
        given = list[str]()
        for index, path in enumerate(values):
            copied = self.home / f"values-{index}.yaml"
            copied.write_bytes(read_file(path, max_bytes=_MAX_FILE_BYTES, inside=self.inside))
            given.append(f"--values={copied}")
        given += [f"--set={each}" for each in sets]
        command = [str(program), "template", "--skip-tests", *given, "--", RELEASE, str(self.folder)]
        done = run_program(command, self.home)
        return self._failed(done.message) if isinstance(done, Failed) else done

    def _failed(self, message: str) -> ChartFailed:
        """Return Helm's words with the place in the chart that they name."""
        lines = (
            line for line in message.splitlines() if line.strip() and not line.startswith(("Use --debug", "level="))
        )
        words = " ".join(lines).removeprefix("Error: ").replace(f"{self.folder}", str(self.chart.folder))
        if missing := _MISSING.search(words):
            remedy = f"helm dependency build {self.chart.folder}"
            return ChartFailed(message=f"dependencies are missing: {missing[1]}", remedy=remedy)
        places = [place for word in _WORD_ENDS.split(words) if (place := _PLACE.fullmatch(word))]
        place = next((each for each in reversed(places) if each[2]), next(iter(places), None))
        found, line = (place[1], int(place[2] or 1)) if place else ("", 1)
        is_of_chart = found.startswith(f"{self.chart.name}/")
        file = self.chart.folder / found.partition("/")[2] if is_of_chart else None
        is_there = file is not None and file.is_file()
        return ChartFailed(
            message=words, remedy="correct the template, or give the values that it needs",
            file=file if is_there else None, line=line if is_there else 1,
        )  # fmt: skip
