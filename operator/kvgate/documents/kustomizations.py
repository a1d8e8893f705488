"""Kustomizations as they are written: which files and folders each names, and which one is included by none of the others.

Fields: kubectl.docs.kubernetes.io, "The Kustomization File".
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from kvgate.documents.bounded_files import Refused
from kvgate.documents.discovery import KUSTOMIZATIONS
from kvgate.documents.nodes import value_of_file
from kvgate.text.patterns import pattern

MAX_BYTES = 1 << 20
"""Size of one kustomization, and of one file that it names."""
MAX_FILES = 2000
"""Files that one overlay names, its bases included."""
INCLUDED = ("resources", "bases", "components")
FILES = "configurations"
FILES_OR_TEXTS = "patchesStrategicMerge"
OBJECTS_WITH_PATH = ("patches", "patchesJson6902", "replacements")
GENERATOR = "configMapGenerator"
NOT_RENDERED = ("secretGenerator", "helmCharts", "helmChartInflationGenerator", "helmGlobals")
"""Fields that are left out: kvgate reads no secrets, and charts of kustomizations are fetched."""
_UNKNOWN_FIELD = pattern(r"Object contains unknown field `([^`]*)`(?: - at `\$\.?([^`]*)`)?")


_EXACT: dict[str, Any] = {"kw_only": True, "forbid_unknown_fields": True, "rename": "camel"}
"""Fields by their exact spelling: kustomize takes them in other letters too, and reads whatever files they name."""
_LIST = list[str] | None


def _optional(kind: Any, names: str) -> list[tuple[str, Any, Any]]:
    return [(name, kind, None) for name in names.split()]


_ConfigMap = msgspec.defstruct(
    "_ConfigMap",
    [
        *_optional(Any, "name namespace behavior literals options"),
        *_optional(_LIST, "files envs"),
        ("env", str | None, None),
    ],
    **_EXACT,
)
_WithPath = msgspec.defstruct(
    "_WithPath",
    [("path", str | None, None), *_optional(Any, "patch target options source source_value targets")],
    **_EXACT,
)
_Allowed = msgspec.defstruct(
    "_Allowed",
    [
        *_optional(str | None, "api_version kind"),
        *_optional(_LIST, "resources bases components configurations patches_strategic_merge build_metadata"),
        *_optional(list[_WithPath] | None, "patches patches_json6902 replacements"),  # type: ignore[valid-type]
        *_optional(list[_ConfigMap] | None, "config_map_generator"),  # type: ignore[valid-type]
        *_optional(
            Any,
            "metadata generator_options name_prefix name_suffix namespace common_labels common_annotations labels images",
        ),
        *_optional(
            Any,
            "image_tags replicas vars sort_options secret_generator helm_charts helm_chart_inflation_generator helm_globals",
        ),
    ],
    **_EXACT,
)
"""The fields that kustomize gets. The others lead it to files, programs or places that kvgate does not know."""


class Kustomization(Struct, kw_only=True, eq=False):
    """One kustomization without what is not there, and what it names."""

    path: Path
    inside: Path
    fields: Mapping[str, Any] = field(default_factory=dict)
    included: list[Path] = field(default_factory=list)
    """Folders with a kustomization of their own, without links."""
    files: list[Path] = field(default_factory=list)
    resources: list[Path] = field(default_factory=list)
    """Those of the files that hold whole objects."""
    patches: list[Path] = field(default_factory=list)
    """Those of the files that hold parts of objects, and no engine by themselves."""
    left_out: list[str] = field(default_factory=list)
    """Names of resources and files that are not in the checkout, and fields that are not rendered."""
    refusal: str = ""
    """Reason for which kustomize does not get it; empty where it does."""

    @property
    def folder(self) -> Path:
        return self.path.parent

    def cleaned(self, fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Sort the names in the fields; yield the fields without names that lead nowhere or out of the checkout."""
        for name, value in fields.items():
            if name in NOT_RENDERED:
                self.left_out += [] if name.startswith("secret") else [name]
            elif name in INCLUDED:
                yield name, [each for each in listed(value) if self._is_there(each, into=self.resources)]
            elif name == FILES_OR_TEXTS:
                yield name, [each for each in listed(value) if is_text(each) or self._is_there(each, into=self.patches)]
            elif name == FILES:
                yield name, [each for each in listed(value) if self._is_there(each)]
            elif name in OBJECTS_WITH_PATH:
                paths = ((each, each.get("path") if isinstance(each, Mapping) else None) for each in listed(value))
                yield name, [each for each, path in paths if path is None or self._is_there(path, into=self.patches)]
            elif name == GENERATOR:
                yield name, [self._config_map(each) for each in listed(value)]
            else:
                yield name, value

    def _is_there(self, name: Any, *, into: list[Path] | None = None) -> bool:
        """Sort a name, and add its file to another list too; False for one that is not in the checkout."""
        path = self._inside(str(name))
        if path is not None and path.is_dir() and kustomization_in(path):
            self.included.append(path.resolve())
        elif path is not None and path.is_file():
            for each in (self.files, into):
                if each is not None:
                    each.append(path)
        else:
            self.left_out.append(str(name))
            return False
        return True

    def _inside(self, name: str) -> Path | None:
        """Return the path of a name as it is written, without `..`; None for one that leads out of the checkout."""
        path, inside = Path(os.path.normpath(self.folder.resolve() / name)), self.inside.resolve()
        with suppress(OSError, RuntimeError, ValueError):
            return path if path.is_relative_to(inside) and path.resolve().is_relative_to(inside) else None
        return None

    def _config_map(self, field: Any) -> Any:
        """Return a generator without the files that are not there: `key=file`, or a file."""
        if not isinstance(field, Mapping):
            return field
        files = {
            name: [each for each in listed(field[name]) if self._is_there(str(each).rpartition("=")[2])]
            for name in ("files", "envs")
            if name in field
        }
        env = field.get("env")
        kept = {key: value for key, value in field.items() if key != "env" or env is None or self._is_there(env)}
        return {**kept, **files}


def kustomization_in(folder: Path) -> Path | None:
    return next((folder / name for name in KUSTOMIZATIONS if (folder / name).is_file()), None)


def read_kustomization(path: Path, inside: Path) -> Kustomization:
    """Read what a kustomization names. Raises OSError, ValueError with a sentence."""
    value = value_of_file(path, max_bytes=MAX_BYTES, inside=inside)
    if not isinstance(value, Mapping):
        raise ValueError(f"{path.name} is no object")  # noqa: TRY004 - of a file, not of an argument
    found = Kustomization(path=path, inside=inside, refusal=refusal_of(value))
    found.fields = dict(found.cleaned(value))
    return found


def refusal_of(fields: Mapping[str, Any]) -> str:
    """Return why kustomize does not get these fields; an empty text where it does."""
    try:
        msgspec.convert(fields, _Allowed)
    except msgspec.ValidationError as error:
        unknown = _UNKNOWN_FIELD.fullmatch(str(error))
        if unknown is None:
            return str(error)
        where = f" in {unknown[2]}" if unknown[2] else ""
        return f"kvgate does not hand the field {unknown[1]!r}{where} to kustomize"
    return ""


def is_text(name: Any) -> bool:
    """Return whether a name is no name but YAML itself: it has several lines."""
    return isinstance(name, str) and "\n" in name


def listed(value: Any) -> Sequence[Any]:
    """Return a list; an empty one for anything else."""
    return value if isinstance(value, list) else []


class Tree(Struct, frozen=True, kw_only=True):
    """A kustomization with everything that it includes, the outermost first."""

    kustomizations: tuple[Kustomization, ...]

    @property
    def root(self) -> Kustomization:
        return self.kustomizations[0]

    @property
    def files(self) -> tuple[Path, ...]:
        named = (file for each in self.kustomizations for file in (each.path, *each.files))
        return tuple(dict.fromkeys(named))

    @property
    def refusal(self) -> str:
        return next((f"{each.path.name}: {each.refusal}" for each in self.kustomizations if each.refusal), "")

    @property
    def left_out(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for each in self.kustomizations for name in each.left_out))


class Kustomizations:
    """The kustomizations of a checkout, each of which is read once."""

    def __init__(self, inside: Path) -> None:
        self.inside = inside
        self._read: dict[Path, Kustomization] = {}

    def read(self, path: Path) -> Kustomization:
        """Return what a kustomization names. Raises OSError, ValueError with a sentence."""
        if path not in self._read:
            self._read[path] = read_kustomization(path, self.inside)
        return self._read[path]

    def tree_of(self, path: Path) -> Tree:
        """Read a kustomization and all that it includes. Raises OSError, ValueError with a sentence."""
        found: dict[Path, Kustomization] = {}
        waiting = [path.parent.resolve() / path.name]
        num_files = 0
        while waiting:
            each = waiting.pop(0)
            if each in found:
                continue
            found[each] = self.read(each)
            num_files += 1 + len(found[each].files)
            if num_files > MAX_FILES:
                raise Refused(f"it names more than {MAX_FILES} files")
            waiting += filter(None, map(kustomization_in, found[each].included))
        return Tree(kustomizations=tuple(found.values()))

    def roots_of(self, paths: Iterable[Path]) -> list[Path]:
        """Return the kustomizations which no other one includes and which are no components."""
        paths = [path.parent.resolve() / path.name for path in paths]
        found = {path: self._found(path) for path in paths}
        included = {folder for path in paths for folder in self.included_by(path) if folder != path.parent}
        roots = (path for path in paths if path.parent not in included)
        return [path for path in roots if not (each := found[path]) or each.fields.get("kind") != "Component"]

    def included_by(self, path: Path) -> Sequence[Path]:
        """Return the folders that a kustomization includes; none where it cannot be read."""
        found = self._found(path)
        return found.included if found else ()

    def _found(self, path: Path) -> Kustomization | None:
        with suppress(OSError, ValueError):
            return self.read(path)
        return None  # the reason is reported where it is rendered
