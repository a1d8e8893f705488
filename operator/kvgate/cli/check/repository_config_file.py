"""Reads `.kvgate.yaml`; everything that is wrong with it is told at once, with field, value and what to do."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from io import BytesIO
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from kvgate.api.validation import schema_findings
from kvgate.cli.check.report import Placed
from kvgate.cli.check.repository_config import MAX_ENTRIES, Config, is_release
from kvgate.cli.exits import BadInput
from kvgate.cli.model_config import read_model_config
from kvgate.cli.rule_texts import rule_texts
from kvgate.documents.bounded_files import read_file, repository_of
from kvgate.documents.reading import STDIN_NAME, parsed
from kvgate.documents.written import Written
from kvgate.judge import facts
from kvgate.manifests import Broken, Document
from kvgate.rules.finding import Finding, Severity

MAX_BYTES = 256 << 10
"""Size of a `.kvgate.yaml`."""
MAX_PROBLEMS = 100
"""Mistakes that are shown at once; the nearest name is looked for with each, which takes a millisecond."""


@dataclass(frozen=True)
class ConfigFile:
    """A file that was read, and where it lies."""

    path: Path
    config: Config
    root: Path
    """The files that it names lie below this folder."""

    def path_below(self, file: str) -> str:
        """Return a file's path as the globs name it; empty where the file lies elsewhere, or is standard input."""
        return _path_below(self.folder, file)

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def calibration(self) -> Path | None:
        """The file of observed starts."""
        return self.folder / self.config.calibration if self.config.calibration else None


@lru_cache(maxsize=1024)
def _path_below(folder: Path, file: str) -> str:
    """Remembered, because every engine and every finding of a file asks."""
    full, folder = Path(file).resolve(), folder.resolve()
    is_below = file != STDIN_NAME and full.is_relative_to(folder)
    return full.relative_to(folder).as_posix() if is_below else ""


def read_config(path: Path, *, inside: Path | None = None, root: Path | None = None) -> ConfigFile:
    """`inside`: the folder that the path must not lead out of. `root`: that of the files which it names, else its repository.

    Raises BadInput with everything that is wrong.
    """
    root = root or repository_of(path.parent) or path.parent.resolve()
    documents = list(_documents(path, inside))
    if not documents:
        return ConfigFile(path, Config(), root)
    document, *others = documents
    if isinstance(document, Broken):
        raise BadInput(problems=[_placed_broken(document)])
    value = document.load()
    if isinstance(value, Broken):
        raise BadInput(problems=[_placed_broken(value)])
    if others:
        raise BadInput(f"{path} holds {len(documents)} documents; write one, without a line ---")
    problems: list[Finding] = []
    try:
        config = Config.from_document(value)
    except ValidationError as error:
        problems += schema_findings(error, Config, "see docs/reference/config.md")
    problems += islice(_problems(Written(value=value), ConfigFile(path, Config(), root)), MAX_PROBLEMS + 1)
    if problems:
        cut = f"more than {MAX_PROBLEMS} mistakes: the first are shown" if len(problems) > MAX_PROBLEMS else ""
        raise BadInput(cut, problems=_placed(document, problems[:MAX_PROBLEMS]))
    return ConfigFile(path, config, root)


def _documents(path: Path, inside: Path | None) -> Iterator[Document | Broken]:
    try:
        data = read_file(path, max_bytes=MAX_BYTES, inside=inside)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from None
    return parsed(str(path), BytesIO(data))


def _placed_broken(broken: Broken) -> Placed:
    position = broken.position
    return Placed(finding=broken.finding, file=broken.file, line=position.line, column=position.column, path="")


def _placed(document: Document, findings: Iterable[Finding]) -> list[Placed]:
    placed = []
    for finding in findings:
        position = document.position_of(finding.field)
        told = replace(finding, rule="InvalidConfig")
        placed.append(
            Placed(finding=told, file=document.file, line=position.line, column=position.column, path=finding.field)
        )
    return placed


def _problems(root: Written, file: ConfigFile) -> Iterator[Finding]:
    """Return the problems that a schema cannot express, also beside those that it can."""
    yield from _value_problems(root, file)
    for entry in root.get("ignore").items()[:MAX_ENTRIES]:
        rule = entry.get("rule")
        if rule.text and rule.text not in rule_texts():
            yield _problem(rule.path, f"{rule.path} is {rule.text}, which is no rule", _nearest_rule(rule.text))
    for mapping in root.get("mappings").items()[:MAX_ENTRIES]:
        yield from _value_problems(mapping, file)
        if not mapping.get("paths").is_set and not mapping.get("selector").is_set:
            yield _problem(mapping.path, f"{mapping.path} is for no engine", "add paths, a selector, or both")
        if isinstance(mapping.value, dict) and not mapping.value.keys() - {"paths", "selector"}:
            remedy = "add accelerator, vllmVersion, workload or modelConfig"
            yield _problem(mapping.path, f"{mapping.path} says nothing", remedy)


def _value_problems(node: Written, file: ConfigFile) -> Iterator[Finding]:
    """Names that no catalogue has, releases that nobody knows, files that are not there."""
    accelerator, version, config = node.get("accelerator"), node.get("vllmVersion"), node.get("modelConfig")
    if isinstance(accelerator.value, str) and accelerator.value:
        yield from _found(accelerator, facts.look_up_accelerator(accelerator.value)[1])
    if isinstance(version.value, str) and is_release(version.value):
        yield from _found(version, facts.look_up_version(version.value.removeprefix("v")))
    if isinstance(config.value, str) and config.value:
        try:
            read_model_config(file.folder / config.value, inside=file.root)
        except BadInput as error:
            yield _problem(
                config.path, f"{config.path}: {error}", "give the path of a config.json, from the folder of this file"
            )


def _found(field: Written, findings: tuple[Finding, ...]) -> Iterator[Finding]:
    return (_problem(field.path, f"{field.path}: {f.message}", f.remediation) for f in findings)


def _problem(field: str, message: str, remediation: str) -> Finding:
    return Finding(rule="InvalidConfig", severity=Severity.ERROR, field=field, message=message, remediation=remediation)


def _nearest_rule(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, rule_texts(), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else "`kvgate rules` lists them"
