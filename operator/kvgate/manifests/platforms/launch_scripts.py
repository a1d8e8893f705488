"""Shell scripts and Makefiles that start vLLM, units of systemd and quadlets of Podman.

Units: systemd.syntax(7), systemd.service(5) and systemd.exec(5); quadlets: podman-systemd.unit(5); `#SBATCH`: slurm.schedmd.com, "sbatch".
"""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from kvgate.documents.launch_files import Form
from kvgate.documents.written import Written
from kvgate.manifests.platforms.compose import text_beside, variables_of_service
from kvgate.manifests.platforms.launches import Launched, container_of, engines_of, launched
from kvgate.manifests.pods.containers import unwrapped
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, ReaderInput
from kvgate.shell.branches import Names
from kvgate.shell.words import commands_in, commands_of, split
from kvgate.text.patterns import pattern
from kvgate.vllm.arguments import Argument, is_open

_PLACE = "text"
_ASSIGNED = pattern(r"([\w.-]+)[ \t]*(?:::?|\?|!)?=[ \t]*(.*)")
_MAKE_VARIABLE = pattern(r"\$[({]([A-Za-z_][\w.-]*)[)}]")
_NO_NAME = pattern(r"\W")
_NAME_OF_SCRIPT = pattern(r"(?<![\w.$}-])[\w.-]{1,100}\.(?:sh|bash)\b")
_SHOWN = pattern(r"(?:cat|:)?[ \t]{0,20}<<-?[ \t]{0,20}['\"]?(\w{1,80})['\"]?[ \t]{0,20}(?:>&2)?")
_MAX_STARTS = 256
"""Starts of one file that are read; nobody writes more."""
_GPUS_OF_SLURM = pattern(
    r"(?m)^#SBATCH[ \t]+(?:--gres[= ]gpu|--gpus(?:-per-node)?|-G)[:= ](?:([A-Za-z][\w.-]*):)?(\d{1,3})\b"
)
_SEVERAL_NODES = pattern(r"(?m)^#SBATCH[ \t](?:.{0,200}[ \t])?(?:--nodes[ =]|-N)[ =]?(?!1(?![\d-]))")
"""Ray may join their GPUs, and each may run an engine of its own."""
_SET_FOR_CONTAINER = {
    "Environment": "env", "EnvironmentFile": "env-file", "AddDevice": "device", "ShmSize": "shm-size", "Volume": "volume",
    "Mount": "mount", "Tmpfs": "tmpfs", "Entrypoint": "entrypoint", "ContainerName": "name", "Memory": "memory",
}  # fmt: skip
"""Key of a quadlet → the option of `podman run` that it becomes."""
_BEFORE_EXEC = "-@:+!|"
_SPECIFIER = pattern(r"%([A-Za-z%])")
"""`%i` is known when a unit starts, as what a command prints; `%%` is a percent sign."""


def is_of(given: ReaderInput, *forms: Form) -> bool:
    return given.document.form in forms


def read_script(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines that the commands of a script or a Makefile start; one without parameters is called with none that are known."""
    text, name = given.root.text, Path(given.document.file).stem
    text = _recipes(text) if is_of(given, Form.MAKEFILE) else _without_texts(text)
    given.shared.take(text)
    names = Names(path=_PLACE, variables={}, arrays={})
    gpus = [] if _SEVERAL_NODES.search(text) else list(_GPUS_OF_SLURM.finditer(text))
    is_run_elsewhere = any(each.text == Path(given.document.file).name for each in given.collected(_scripts_that_run))
    for engine in engines_of(given, list(_starts(text, name, names)), "shell-script"):
        if is_run_elsewhere and any(is_open(word.text) for word in engine.arguments):
            continue  # it is judged where its variables have values
        if len(gpus) == 1 and not engine.num_gpus.is_set:
            count, kind = Written(value=gpus[0][2], path=engine.path), gpus[0][1]
            hints = (Hint(name="accelerator", value=kind.replace("_", "-"), path=engine.path),) if kind else ()
            engine = replace(engine, num_gpus=count, hints=(*engine.hints, *hints))  # noqa: PLW2901
        yield engine


def _scripts_that_run(root: Written) -> Iterator[Written]:
    """Yield the names of scripts in units and services, which start them with variables of their own."""
    if "ExecStart=" in root.text or root.get("services").is_set:
        yield from (Written(value=name) for name in set(_NAME_OF_SCRIPT.findall(str(root.value))))


def _starts(text: str, name: str, names: Names) -> Iterator[Launched]:
    found = dict[tuple[str, ...], Launched]()
    for command in commands_in(text, names):
        variables = dict(names.variables)
        start = launched(command, name, variables)
        inner = [start] if start else [launched(each, name, variables) for each in unwrapped(command, variables)]
        for each in inner:
            if each and len(found) < _MAX_STARTS:
                found.setdefault(tuple(word.text for word in command), each)
    yield from found.values()


def _without_texts(text: str) -> str:
    """Return a script with empty lines in the place of those that `cat <<END` only shows, or `: <<END` leaves out."""
    lines, end = list[str](), ""
    for line in text.split("\n"):
        shown = None if end else _SHOWN.fullmatch(line.strip())
        lines.append("" if end or shown else line)
        end = shown[1] if shown else "" if line.strip() == end else end
    return "\n".join(lines)


def _recipes(text: str) -> str:
    """Return the recipes and variables of a Makefile as the lines of a script; every other line is empty."""
    lines, kind, goes_on = list[str](), "", False
    for line in text.split("\n"):
        kept, ends = line, not line.endswith("\\")
        if not goes_on:
            assigned = None if line.startswith("\t") else _ASSIGNED.fullmatch(line.strip())
            kind = "value" if assigned else "recipe" if line.startswith("\t") else ""
            kept = f'{_NO_NAME.sub("_", assigned[1])}="{assigned[2]}' if assigned else line.lstrip("\t@-+ ")
        if kind == "value" and ends:
            kept += '"'
        kept = _MAKE_VARIABLE.sub(lambda found: f"${{{_NO_NAME.sub('_', found[1])}}}", kept if kind else "")
        lines.append(kept.replace("$$", "$"))
        goes_on = not ends
    return "\n".join(lines)


class _Entry(Struct, frozen=True, kw_only=True):
    """One line `Key=value` of a unit, with the lines that go on with it."""

    section: str
    key: str
    value: str
    line: int

    def words(self) -> list[Argument]:
        return [Argument(text=word, path=_PLACE, line=self.line) for word in split(self.value)]


def _entries(text: str) -> Iterator[_Entry]:
    """Yield the entries of a unit; a backslash at the end of a line goes on in the next one, and comments between are left out."""
    section, lines, first = "", list[str](), 0
    for number, line in enumerate([*text.split("\n"), ""]):  # a line that goes on may be the last one
        is_comment = line.lstrip().startswith(("#", ";"))
        if not lines:
            first = number
        if is_comment and not lines:
            continue
        lines.append("\\" if is_comment else line)
        if lines[-1].endswith("\\"):
            continue
        whole, lines = "\n".join(lines).strip(), []
        key, equals, value = whole.partition("=")
        if whole.startswith("["):
            section = whole.strip("[]")
        elif equals:
            value = _SPECIFIER.sub(lambda found: f"$(%{found[1]})" if found[1] != "%" else "%", value.strip())
            yield _Entry(section=section, key=key.strip(), value=value, line=first)


def read_unit(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of `ExecStart`, with the variables of the unit and of files beside it."""
    entries = [each for each in _entries(given.root.text) if each.section == "Service"]
    # files win over the variables of the unit, and are looked for beside it by their names
    pairs = [word.text for each in entries if each.key == "Environment" for word in each.words()]
    files = [Path(each.value.removeprefix("-")).name for each in entries if each.key == "EnvironmentFile"]
    of_unit = Written(value={"environment": [each for each in pairs if "=" in each]}, path="")
    of_files = Written(value={"env_file": files}, path="")
    taken = (variables_of_service(each, given.document.file, {}, given.shared) for each in (of_unit, of_files))
    variables = {name: replace(value, path=_PLACE) for found in taken for name, value in found.items()}
    name = Path(given.document.file).stem
    starts = list[Launched]()
    for entry in entries:
        if entry.key == "ExecStart":
            given.shared.take(entry.value)
            for command in commands_of(entry.value.lstrip(_BEFORE_EXEC), _PLACE, variables, first_line=entry.line):
                outer = launched(command, name, variables)
                run = unwrapped(command, variables, lambda path: text_beside(given.document.file, Path(path).name))
                inner = [outer] if outer else [launched(each, name, variables) for each in run]
                starts += [each for each in inner if each][:_MAX_STARTS]
    yield from engines_of(given, starts, "systemd")


def read_quadlet(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engine of a container that Podman makes a unit of: each key is an option of `podman run`."""
    words, image, command = list[Argument](), None, list[Argument]()
    for entry in _entries(given.root.text):
        if entry.section != "Container":
            continue
        given.shared.take(entry.value)
        option = _SET_FOR_CONTAINER.get(entry.key)
        if entry.key == "Image":
            image = next(iter(entry.words()), None)
        elif entry.key == "Exec":
            command = [each for line in commands_of(entry.value, _PLACE, {}, first_line=entry.line) for each in line]
        elif entry.key == "PodmanArgs":
            words += entry.words()
        elif option:
            values = entry.words() if option == "env" else [Argument(text=entry.value, path=_PLACE, line=entry.line)]
            values = [replace(each, text=Path(each.text).name) for each in values] if option == "env-file" else values
            words += [Argument(text=f"--{option}={each.text}", path=_PLACE, line=each.line) for each in values]
    service = container_of([*words, image, *command]) if image else None
    if service:
        start = Launched(name=Path(given.document.file).stem, service=service, variables={})
        yield from engines_of(given, [start], "quadlet")
