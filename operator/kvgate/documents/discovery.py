"""Choice of the files of a folder; those that Git ignores, other programs keep, or only Helm can read are skipped and counted."""

import os
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from kvgate.documents.bounded_files import open_file, read_text, repository_of
from kvgate.documents.globs import ANY_FOLDERS, literal, steps_match
from kvgate.documents.launch_files import form_of

SUFFIXES = (".yaml", ".yml", ".json")
"""Endings that are read in a folder; a file that the user names is read whatever its ending."""
MAX_IGNORE_RULES = 1000
"""Lines of all `.gitignore` files that count for one folder; what further ones name is read."""
_MAX_IGNORE_BYTES = 64 << 10
"""Size of one `.gitignore`; a longer one is not used."""
CHART_FILE = "Chart.yaml"
KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")
"""Names of the file that makes a folder one for kustomize."""
TERRAFORM = ".tf"
"""Ending of Terraform's files, in which only releases of charts are of interest."""
_TEMPLATES, _ENVIRONMENT_FILE = "templates", "pyvenv.cfg"
_IGNORE_FILES = (".gitignore", ".kvgateignore")
"""Files with the same syntax; what the later one says counts."""
_MAX_PROGRAM_BYTES = 64 << 10
_OF_RAY_SERVE = (
    b"build_openai_app",
    b"build_llm_deployment",
    b"build_pd_openai_app",
    b"build_vllm_deployment",
    b"LLMConfig(",
)
"""Words of programs that make an application of Ray Serve LLM."""


class Why(StrEnum):
    """Reasons for skipping: the words for one, then `|`, then the words for several."""

    CHART_TEMPLATE = "chart template|chart templates"
    TEMPLATE = "other template, which is no YAML before it is rendered|other templates, which are no YAML before they are rendered"
    IGNORED = "path that .gitignore or .kvgateignore names|paths that .gitignore or .kvgateignore name"
    PACKAGES = "folder of installed packages|folders of installed packages"
    PYTHON = "Python file that starts Ray Serve LLM|Python files that start Ray Serve LLM"
    NIM = "NVIDIA NIM, whose image has the server and its options|NVIDIA NIMs, whose images have the server and its options"
    JSON = "JSON file with comments|JSON files with comments"
    NO_YAML = "file that is no YAML and says nothing of an engine|files that are no YAML and say nothing of an engine"
    LARGE_SCRIPT = "script of more than 256 KiB|scripts of more than 256 KiB"
    LARGE_DATA = "document of more than 4 MiB without a kind|documents of more than 4 MiB without a kind"


class PassedOver(Struct, frozen=True, kw_only=True):
    """Something in a folder that is not read."""

    why: Why
    count: int = 1
    path: Path | None = None
    """The one file or folder that it is about; None where several are counted."""
    by: str = ""
    """File and line of the rule that names it: `.kvgateignore:3`."""


class OtherRevision(Struct, frozen=True, kw_only=True):
    """Settings of a repository as another revision has them, in a folder of their own."""

    name: str
    """The revision as the user names it."""
    top: Path
    copy: Path
    """The folder with the files of the revision."""

    def path(self, path: Path) -> Path:
        """Return the revision's own file for one of the checkout; a path outside of the checkout stays what it is."""
        full, top = Path(os.path.abspath(path)), self.top  # noqa: PTH100 - as it is written
        return self.copy / full.relative_to(top) if full.is_relative_to(top) else path

    def shown(self, path: Path) -> str:
        """Return the name of a file of the revision for people, as Git writes it: `main:.kvgate.yaml`."""
        return self.shown_text(str(path))

    def shown_text(self, text: str) -> str:
        return text.replace(f"{self.copy}{os.sep}", f"{self.name}:")


class _IgnoreRule(Struct, frozen=True, kw_only=True):
    depth: int
    """Depth of its folder below the root."""
    globs: Sequence[str]
    """Globs, one for each step below that folder; a single glob is for a name at any depth."""
    is_name: bool
    only_folders: bool
    is_exception: bool
    place: str


class _Folder(Struct, frozen=True, kw_only=True):
    steps: tuple[str, ...]
    rules: tuple[_IgnoreRule, ...]


def files_below(folder: Path, root: Path, other: OtherRevision | None = None) -> Iterator[Path | OSError | PassedOver]:
    """Yield the files of a folder in order, and what was skipped; hidden ones are left out, linked folders are not followed.

    There is an OSError for every folder that cannot be listed. `root`: the repository, whose `.gitignore` files count from there down;
    those of the other revision count instead where one is given.
    """
    errors: list[OSError] = []
    places = {str(folder): _first_place(folder, root, other)}
    for top, folders, names in os.walk(folder, onerror=errors.append):
        has_rules = other is not None or not set(names).isdisjoint(_IGNORE_FILES)
        place = _entered(places.pop(top), Path(top), root, other, has_rules=has_rules)
        entered = []
        for name in sorted(name for name in folders if not name.startswith(".")):
            passed = _passed_folder(Path(top, name), place, is_of_chart=CHART_FILE in names)
            if passed is None:
                entered.append(name)
                places[os.path.join(top, name)] = _Folder(steps=(*place.steps, name), rules=place.rules)  # noqa: PTH118
            elif passed.count:
                yield passed
        folders[:] = entered
        for name in sorted(name for name in names if _is_read(name)):
            path = Path(top, name)
            yield _ignored(place, path, is_folder=False) or path
        programs = (name for name in names if name.endswith(".py") and not _rule_for(place, name, is_folder=False))
        if count := sum(_starts_ray_serve(Path(top, name), root) for name in programs):
            yield PassedOver(why=Why.PYTHON, count=count)
    yield from errors


def _is_read(name: str) -> bool:
    """Return whether a file of a folder is read by its name; helmfiles are templates with an ending of their own."""
    is_release = name.endswith(TERRAFORM) or (name.startswith("helmfile") and name.endswith(".yaml.gotmpl"))
    is_visible = not name.startswith(".") and (name.lower().endswith(SUFFIXES) or form_of(name) is not None)
    return is_visible or name == KUSTOMIZATIONS[-1] or is_release


def only_pairs(path: Path) -> bool:
    """Return whether a file says at most which values a chart gets, and is no manifest itself."""
    return path.name.endswith((TERRAFORM, ".gotmpl"))


def is_rendered_by(name: str) -> bool:
    """Return whether the file of this name says what Helm or kustomize render."""
    return name == CHART_FILE or name in KUSTOMIZATIONS


def _starts_ray_serve(path: Path, root: Path) -> bool:
    """Return True for a program of Ray Serve LLM, by the beginning of its text; its engines are not read."""
    try:
        with open_file(path, root) as file:
            text = file.read(_MAX_PROGRAM_BYTES)
    except OSError:
        return False
    return b"ray.serve.llm" in text and any(word in text for word in _OF_RAY_SERVE)


def _passed_folder(path: Path, place: _Folder, *, is_of_chart: bool) -> PassedOver | None:
    """Return the reason to skip a folder; None for one that is read. Templates of a chart are no YAML before Helm renders them."""
    if ignored := _ignored(place, path, is_folder=True):
        return ignored
    if path.name == "node_modules" or _is_environment(path):
        return PassedOver(why=Why.PACKAGES, path=path)
    if is_of_chart and path.name == _TEMPLATES:
        count = sum(_is_read(name) for _, _, names in os.walk(path) for name in names)
        return PassedOver(why=Why.CHART_TEMPLATE, count=count, path=path)
    return None


def _is_environment(folder: Path) -> bool:
    """Return True for a virtual environment of Python: its file names the home of the interpreter (PEP 405). An empty file says nothing."""
    try:
        text = read_text(folder / _ENVIRONMENT_FILE, max_bytes=_MAX_IGNORE_BYTES, inside=folder)
    except (OSError, UnicodeDecodeError):
        return False
    return any(
        key.strip() == "home" and value.strip() for key, _, value in (s.partition("=") for s in text.split("\n"))
    )


def _first_place(folder: Path, root: Path, other: OtherRevision | None) -> _Folder:
    """Collect the rules of the folders above. They do not count where they name the folder itself, because the user asks for it."""
    resolved, root = folder.resolve(), root.resolve()
    steps = resolved.relative_to(root).parts if resolved.is_relative_to(root) else ()
    place = _Folder(steps=(), rules=())
    for depth, name in enumerate(steps):
        place = _entered(place, root.joinpath(*steps[:depth]), root, other, has_rules=True)
        if _rule_for(place, name, is_folder=True):
            return _Folder(steps=steps, rules=())
        place = _Folder(steps=(*place.steps, name), rules=place.rules)
    return place


def _entered(place: _Folder, folder: Path, root: Path, other: OtherRevision | None, *, has_rules: bool) -> _Folder:
    files = [folder / name for name in _IGNORE_FILES] if has_rules else []
    if other:
        files, root = [other.path(file) for file in files], other.copy
    named = ((file, other.shown(file) if other else str(file)) for file in files)
    rules = (rule for file, name in named for rule in _rules(file, name, root, len(place.steps)))
    return _Folder(steps=place.steps, rules=(*place.rules, *rules)[:MAX_IGNORE_RULES])


def _rules(path: Path, shown: str, root: Path, depth: int) -> Iterator[_IgnoreRule]:
    try:
        text = read_text(path, max_bytes=_MAX_IGNORE_BYTES, inside=root)
    except (OSError, UnicodeDecodeError):
        return
    for number, each in enumerate(text.split("\n"), start=1):
        line = each.removesuffix("\r")
        written = line.rstrip(" ")
        if (
            written.endswith("\\") and written != line
        ):  # blanks at the end mean nothing, but one behind a backslash counts
            written = f"{written} "
        is_exception = written.startswith("!")
        glob = written.removeprefix("!")
        steps = glob.removesuffix("/").split("/")
        if glob.strip("/") and not written.startswith("#"):
            yield _IgnoreRule(
                depth=depth,
                globs=[_standard(step) for step in (steps if steps[0] else steps[1:])],
                is_name=len(steps) == 1,
                only_folders=glob.endswith("/"),
                is_exception=is_exception,
                place=f"{shown}:{number}",
            )


def _standard(step: str) -> str:
    """Rewrite a step for the standard library's globs, in which a backslash and `^` in brackets mean nothing."""
    if step == ANY_FOLDERS:
        return step
    head, *escaped = step.split("\\")
    parts = [head, *(literal(part[:1]) + part[1:] for part in escaped)]
    return "".join(parts).replace("[^", "[!")


def _ignored(place: _Folder, path: Path, *, is_folder: bool) -> PassedOver | None:
    rule = _rule_for(place, path.name, is_folder=is_folder)
    return PassedOver(why=Why.IGNORED, path=path, by=rule.place) if rule else None


def _rule_for(place: _Folder, name: str, *, is_folder: bool) -> _IgnoreRule | None:
    """Return the rule by which a name is ignored; None where it is not. The last rule that matches decides."""
    names = (*place.steps, name)
    for rule in reversed(place.rules):
        is_about = is_folder or not rule.only_folders
        if is_about and steps_match(names[-1:] if rule.is_name else names[rule.depth :], rule.globs):
            return None if rule.is_exception else rule
    return None


def root_of(folder: Path) -> Path:
    """Return the repository that a folder lies in, else the folder itself."""
    return repository_of(folder) or folder
