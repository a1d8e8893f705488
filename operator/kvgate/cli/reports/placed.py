"""Findings with their place in a file, and whether somebody ignores them."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

from kvgate.documents.reading import STDIN_NAME
from kvgate.findings.finding import Finding, Located
from kvgate.manifests import Broken, Document
from kvgate.manifests.pods.engine_found import MountedText


class Ignored(Struct, frozen=True, kw_only=True):
    """Reason why a finding does not count."""

    reason: str
    by: Literal["comment", "configuration", "baseline"]
    place: str
    """File and line of the comment, or of the entry; the file of a baseline."""


NO_FILES: Mapping[str, MountedText] = MappingProxyType({})


class Placed(Struct, frozen=True, kw_only=True):
    finding: Finding
    file: str
    line: int
    column: int
    path: str
    ignored: Ignored | None = None
    rendered_line: int = 0
    """Line of the rendered stream, where the file is a template that has no such line; 0 where it is as it is written."""

    @property
    def rule(self) -> str:
        return self.finding.rule.id


def placed_in(document: Document, located: Located, files: Mapping[str, MountedText] = NO_FILES) -> Placed:
    """Place a finding of one document: file, line and column of the field that it is about. `files`: texts of other documents."""
    if text := files.get(located.path):
        at = text.document.position_in(text.path, located.line)
        file = text.document.place_of(text.path).file
        return Placed(finding=located.finding, file=file, line=at.line, column=at.column, path=text.path)
    place = document.place_of(located.path, located.line)
    return Placed(
        finding=located.finding,
        file=place.file,
        line=place.position.line,
        column=place.position.column,
        path=located.path,
        rendered_line=place.rendered_line,
    )


def placed_broken(broken: Broken) -> Placed:
    at, finding = broken.position, broken.finding
    return Placed(finding=finding, file=broken.file, line=at.line, column=at.column, path=finding.field)


def shown_file(file: str) -> str:
    """Return the file's name for other programs: relative to the current folder where it lies in it, with slashes."""
    if file == STDIN_NAME:
        return "stdin"
    path = Path(file)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return path.as_posix()
