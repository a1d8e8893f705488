"""Helm charts, rendered by `helm template` from a copy of the chart: nothing is fetched, and nothing of the chart is run."""

import gzip
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from msgspec import Struct

from kvgate.documents.bounded_files import Refused, open_file, read_all, read_file
from kvgate.documents.discovery import CHART_FILE
from kvgate.documents.nodes import value_of_file
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
_SCHEMA, _PACKED = "values.schema.json", ".tgz"
_MAX_HEADER_BYTES = 2 << 10
"""Size of a header with a long name in a packed chart; Python takes quadratic time for some."""
_NAME = pattern(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "id", "$id"})
"""Words of JSON Schema by which Helm reads another file or address; it follows those that begin with `#` inside of the schema."""
_KNOWN_SCHEMAS = pattern(r"https?://json-schema\.org/(?:draft-0[467]/|draft/20(?:19-09|20-12)/)?schema#?")
_FILE_FLAGS, _SHORT = frozenset({"--values"}), {"-f": "--values", "-n": "--namespace", "-a": "--api-versions"}
_TEXT_FLAGS = frozenset(
    {"--set", "--set-string", "--set-json", "--set-literal", "--namespace", "--kube-version", "--api-versions"}
)
_SWITCHES = frozenset({"--include-crds", "--skip-crds", "--skip-tests", "--no-hooks", "--is-upgrade"})


class Chart(Struct, frozen=True, kw_only=True):
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
    value = value_of_file(folder / CHART_FILE, max_bytes=_MAX_FILE_BYTES, inside=inside)
    fields: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    listed = fields.get("dependencies")
    dependencies = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    return Chart(
        folder=folder,
        name=str(fields.get("name") or folder.name),
        is_library=fields.get("type") == "library",
        dependencies=tuple((str(each.get("name") or ""), str(each.get("repository") or "")) for each in dependencies),
    )


def values_files(own: Iterable[Path]) -> list[Path]:
    """Return further files of values among those of the chart: `values-prod.yaml`, and `ci/gpu-values.yaml` of chart-testing."""
    beside = (path for path in own if path.parent in (Path(), Path("ci")))
    return [path for path in beside if _VALUES_NAMES.fullmatch(path.name) and path.name != VALUES_FILE]


class _Room:
    """Files and bytes that a chart may still have, with its dependencies and with what it unpacks to."""

    def __init__(self) -> None:
        self.num_files, self.num_bytes = MAX_FILES, MAX_CHART_BYTES

    def take(self, num_bytes: int = 0) -> None:
        """Count one file. Raises Refused."""
        self.num_files, self.num_bytes = self.num_files - 1, self.num_bytes - num_bytes
        if self.num_files < 0 or self.num_bytes < 0:
            raise Refused(f"the chart has more than {MAX_FILES} files or {MAX_CHART_BYTES >> 20} MiB")


def chart_files(folder: Path, inside: Path, room: _Room | None = None) -> Iterator[tuple[Path, bytes]]:
    """Yield every file of a chart as (path below it, content). Raises OSError for a link that leads out of the checkout."""
    room = room or _Room()
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and not Path(top, name).is_symlink())
        for name in sorted(names):
            path = Path(top, name)
            with open_file(path, inside) as file:
                data = read_all(file, max_bytes=_MAX_FILE_BYTES)
            room.take(len(data))
            yield path.relative_to(folder), data


def files_to_render(chart: Chart, own: Mapping[Path, bytes], inside: Path) -> dict[Path, bytes]:
    """Return the files of a chart, path in the chart → content, with its dependencies from `file://` and without packed ones.

    A packed chart becomes a folder: Helm gets what was read here, for it reads some archives otherwise than Python. Raises OSError,
    and ValueError with a sentence.
    """
    files, room = dict(own), _Room()
    for data in own.values():
        room.take(len(data))
    there = {Path(*path.parts[:2]) for path in own}
    for name, repository in chart.dependencies:
        place = Path(CHARTS, name)
        local = Path(os.path.normpath(chart.folder.resolve() / repository.removeprefix(_LOCAL)))
        is_missing = repository.startswith(_LOCAL) and _NAME.fullmatch(name) and there.isdisjoint({Path(CHARTS), place})
        if is_missing and local.is_relative_to(inside.resolve()) and (local / CHART_FILE).is_file():
            files |= {place / path: data for path, data in chart_files(local, inside, room)}
    waiting = [path for path in files if _is_packed(path)]
    while waiting:
        path = waiting.pop()
        members = {path.with_suffix("") / below: data for below, data in _members(path, files.pop(path), room)}
        if not members.keys().isdisjoint(files):
            raise ValueError(f"{path} and {path.with_suffix('')} are two charts in one place")
        files |= members
        waiting += filter(_is_packed, members)
    return files


def _is_packed(path: Path) -> bool:
    return path.parent.name == CHARTS and path.suffix == _PACKED


class _Member(tarfile.TarInfo):
    """A member of an archive; headers that would take Python long to read are refused."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or (not member.isreg() and member.size > _MAX_HEADER_BYTES):
            raise tarfile.ReadError(f"a header of {member.size} bytes")
        return member


def _members(name: Path, data: bytes, room: _Room) -> Iterator[tuple[Path, bytes]]:
    """Yield the files of a packed chart as (path below its folder, content). Raises OSError, ValueError with a sentence."""
    try:
        with gzip.open(BytesIO(data)) as stream:
            unpacked = stream.read(room.num_bytes + 1)
        room.take(len(unpacked))
        with tarfile.open(fileobj=BytesIO(unpacked), mode="r:", tarinfo=_Member) as archive:
            for member in archive:
                room.take()
                steps = os.path.normpath(member.name.replace("\\", "/")).split("/")[1:]
                file = archive.extractfile(member) if member.isreg() and not member.issparse() else None
                if file and steps and not {"..", ""} & set(steps):
                    yield Path(*steps), file.read()
    except (tarfile.TarError, zlib.error, EOFError, RecursionError) as error:
        raise ValueError(f"{name} cannot be unpacked: {error}") from None


def refusal_of(files: Mapping[Path, bytes]) -> str:
    """Return why Helm does not get a chart; an empty text where it does. Of all its files only schemas lead Helm to others."""
    try:
        for path, data in files.items():
            if path.name == _SCHEMA:
                _check_schema(str(path), json.loads(data, object_pairs_hook=_once), is_root=True)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        return f"{path} is no JSON: {error}"
    except (ValueError, RecursionError) as error:
        return str(error)
    return ""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object whose keys each stand once: of two, Helm and kvgate might take different ones."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key stands twice in one object of {_SCHEMA}")
    return found


def _check_schema(name: str, node: Any, *, is_root: bool = False) -> None:
    """Check that nothing in a schema leads out of it. Raises ValueError."""
    if isinstance(node, list):
        for each in node:
            _check_schema(name, each)
    elif isinstance(node, dict):
        for key, value in node.items():
            is_reference = key in _REFERENCES and isinstance(value, str) and not (is_root and key in ("id", "$id"))
            if is_reference and not value.startswith("#"):
                raise ValueError(f"{name} has the {key} {value!r}, which leads out of it")
            if key == "$schema" and not (isinstance(value, str) and _KNOWN_SCHEMAS.fullmatch(value)):
                raise ValueError(f"{name} has the $schema {value!r}, which kvgate does not know")
            _check_schema(name, value)


def template_arguments(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return (files of values, other arguments) of a command line of `helm template`.

    Raises ValueError for an argument that kvgate does not pass on.
    """
    values, others, waiting = list[Path](), list[str](), list(words)
    while waiting:
        flag, has_value, value = waiting.pop(0).strip().partition("=")
        flag = _SHORT.get(flag, flag)
        if flag in _SWITCHES and not has_value:
            others.append(flag)
            continue
        if flag not in _TEXT_FLAGS | _FILE_FLAGS:
            known = ", ".join(sorted(_FILE_FLAGS | _TEXT_FLAGS | _SWITCHES))
            raise ValueError(
                f"{flag} is not passed on to Helm, which renders in a sandbox; any of these is: {known}. With other arguments, "
                "render the chart yourself: helm template … | kvgate check -"
            )
        if not has_value and not waiting:
            raise ValueError(f"{flag} needs a value")
        value = value if has_value else waiting.pop(0)
        if flag in _FILE_FLAGS:
            values += map(Path, value.split(","))
        else:
            others.append(f"{flag}={value}")
    return values, others


class Copy:
    """A copy of a chart in a folder that has nothing else; a context manager."""

    def __init__(self, chart: Chart, files: Mapping[Path, bytes], inside: Path) -> None:
        self.chart, self.files, self.inside = chart, files, inside
        self._temporary = TemporaryDirectory(prefix="kvgate-")
        self.top = Path(self._temporary.name).resolve()
        self.folder = self.top / "chart"

    def __enter__(self) -> Self:
        for path, data in self.files.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_bytes(data)
        return self

    def __exit__(self, *_: object) -> None:
        self._temporary.cleanup()

    def render(
        self, program: Path, values: Sequence[Path | str], arguments: Sequence[str], release: str = RELEASE
    ) -> bytes | ChartFailed:
        """Render the chart with files and texts of values, of which later ones win, and with further arguments, which win over them."""
        given = list[str]()
        for index, each in enumerate(values):
            copied = self.top / f"values-{index}.yaml"
            try:
                data = (
                    read_file(each, max_bytes=_MAX_FILE_BYTES, inside=self.inside)
                    if isinstance(each, Path)
                    else each.encode()
                )
                copied.write_bytes(data)
            except OSError as error:
                return ChartFailed(message=f"{each} cannot be read: {error}", remedy="give another file of values")
            given.append(f"--values={copied}")
        done = run_program(
            program, ["template", "--skip-tests", *given, *arguments, "--", release, str(self.folder)], self.top
        )
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
