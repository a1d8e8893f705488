"""Places of rendered documents in the files that they were rendered from: a chart's template, or the resources of a kustomization.

`# Source: chart/templates/x.yaml` stands before each object that `helm template` writes.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

import yaml
from msgspec import Struct

from kvgate.documents.bounded_files import read_text
from kvgate.documents.nodes import YamlError, compose
from kvgate.documents.positions import Position, entry_of, locate, steps_of
from kvgate.documents.streams import Comment, comments_in
from kvgate.text.patterns import pattern

MAX_SOURCE_BYTES = 1 << 20
"""Size of a template, a patch or a kustomization; in a longer one no line is looked for."""
_SOURCE = pattern(r"(?:---)?[ \t]*\n?# Source: ([^\n\0]{1,1000})")
_KEY = pattern(r"(?:- *)?[\"']?(--[\w-]+|[\w.-]+:)")
_VALUE_NAMES = pattern(r"\.Values\.([\w.]+)")
_SEPARATOR = pattern(r"(?m)^---.*\n")
_INLINE_VALUES = ("spec.values", "spec.source.helm.valuesObject")
"""Paths of the values that a HelmRelease of Flux and an Application of Argo CD give inline."""
_MIN_FOUND = 2
"""Characters of a value that is looked for in the text of a file: a shorter one stands in many lines."""


class Place(Struct, frozen=True, kw_only=True):
    file: str
    position: Position
    rendered_line: int = 0
    """Line of the rendered stream, where the file is the template that it was rendered from."""


class Template(Struct, frozen=True, kw_only=True):
    """A template of a chart, whose lines are known only where they are those of the rendered text."""

    file: str
    chart: tuple[str, ...] = ()
    """The chart's own files that decide too."""
    first_line: int
    """Line of the stream where the rendered text begins."""
    rendered: str
    inside: Path | None

    @property
    def files(self) -> Sequence[str]:
        """The files that decide what the document says, the nearest first."""
        return self.file, *self.chart

    def place(self, rendered: yaml.Node, path: str, at: Position) -> Place:
        """Return the value that sets a scalar, in the last file of values that has it; else the place of its line."""
        place = self.place_of_line(at)
        if path and isinstance(locate(rendered, path)[1], yaml.ScalarNode):
            text = self._rendered(at.line)
            written = _line_at(_lines(self.file, self.inside), place.position.line)
            names = _VALUE_NAMES.findall(written) if _key_of(written) == _key_of(text) else []
            for file in reversed(self.chart[1:]):
                if found := _set_in(file, names, text):
                    return Place(file=file, position=found, rendered_line=at.line)
        return place

    def place_of_line(self, at: Position) -> Place:
        """Return the template's line with the same text, else the one that sets the same key, else that of the nearest line above."""
        lines = _lines(self.file, self.inside)
        above = (_only_line(lines, self._rendered(number)) for number in range(at.line, self.first_line - 1, -1))
        line = next((number for number in above if number is not None), 1)
        return Place(file=self.file, position=Position(line=line), rendered_line=at.line)

    def _rendered(self, line: int) -> str:
        """Return a line of the stream."""
        return _line_at(self.rendered.split("\n"), line - self.first_line + 1).strip()


def _line_at(lines: Sequence[str], number: int) -> str:
    return lines[number - 1] if 0 < number <= len(lines) else ""


def _key_of(line: str) -> str:
    """Return the key or the option that a line begins with; empty where it has none."""
    found = _KEY.match(line.strip())
    return found[1] if found else ""


def _set_in(file: str, names: Sequence[str], text: str) -> Position | None:
    """Return where a file sets the value of a rendered line: the last of the names whose value the line holds, else the same line."""
    for values, num_before in _values_in(Path(file).absolute()):
        for name in reversed(names):
            key, value = _entry_at(values, name) or (None, None)
            if key and isinstance(value, yaml.ScalarNode) and value.value and _holds(text, value.value):
                return Position(line=num_before + key.start_mark.line + 1, column=key.start_mark.column + 1)
    if names or len(text) <= _MIN_FOUND:
        return None
    same = [number for number, line in enumerate(_lines(file, None), 1) if line.strip() == text]
    return Position(line=same[0]) if len(same) == 1 else None


def comments_of_values(file: str) -> Sequence[Comment]:
    """Return kvgate's comments in a file of values, in which findings of a rendered chart may stand."""
    return tuple(comments_in("\n".join(_lines(file, None)), 0))


@lru_cache(maxsize=16)
def _values_in(file: Path) -> Sequence[tuple[yaml.Node, int]]:
    """Return the values in a file, each with the number of the lines before: those of a plain file, and inline ones of GitOps objects."""
    found = list[tuple[yaml.Node, int]]()
    num_before = 0
    for text in _SEPARATOR.split("\n".join(_lines_of(file, None))):
        try:
            node = compose(text)
        except YamlError:
            node = None
        if node is not None:
            inline = [entry[1] for path in _INLINE_VALUES if (entry := _entry_at(node, path))]
            found += [(each, num_before) for each in (inline if entry_of(node, "apiVersion") else [node])]
        num_before += text.count("\n") + 1
    return found


def _entry_at(node: yaml.Node, path: str) -> tuple[yaml.Node, yaml.Node] | None:
    """Return (key, value) of `a.b.c`; None where it is not written to its end."""
    entry = None
    for name in path.split("."):
        if (entry := entry_of(node, name)) is None:
            return None
        node = entry[1]
    return entry


def _only_line(lines: Sequence[str], text: str) -> int | None:
    """Return the number of the only line with a text or with its key; None where there is none, or several."""
    stripped = [line.strip() for line in lines]
    key = _KEY.match(text)
    same = [number for number, line in enumerate(stripped, 1) if line == text]
    if not same and key:
        same = [
            number
            for number, line in enumerate(stripped, 1)
            if "{{" in line and (found := _KEY.match(line)) and found[1] == key[1]
        ]
    return same[0] if text and len(same) == 1 else None


class Resource(Struct, frozen=True, kw_only=True):
    """An object in a resource of a kustomization, which patches and the fields of kustomizations change."""

    file: str
    node: yaml.Node
    line_offset: int
    first_line: int
    comments: tuple[Comment, ...]
    kustomization: str
    others: tuple[str, ...]
    """Kustomizations, patches and other files that may change the object, the outermost first."""
    inside: Path | None

    @property
    def files(self) -> Sequence[str]:
        return self.file, self.kustomization

    def place(self, rendered: yaml.Node, path: str, _: Position) -> Place:
        """Return the field in the resource if its value stands there, else the only line of another file that holds the value."""
        key, value, is_same = _same_field(rendered, path, self.node)
        if not is_same:
            for file in self.others:
                if line := _line_with(_lines(file, self.inside), value):
                    return Place(file=file, position=Position(line=line))
            if isinstance(value, yaml.ScalarNode):
                return Place(file=self.kustomization, position=Position(line=1))
        line = self.line_offset + key.start_mark.line + 1
        return Place(file=self.file, position=Position(line=line, column=key.start_mark.column + 1))

    def place_of_line(self, at: Position) -> Place:
        """Return the line itself: comments are those of the file."""
        return Place(file=self.file, position=at)


Origin = Template | Resource
"""The place that a rendered document comes from."""


def _same_field(rendered: yaml.Node, path: str, source: yaml.Node) -> tuple[yaml.Node, yaml.Node, bool]:
    """Return (the node to show, the rendered value, whether the source has the same value), as deep as the source goes."""
    shown = source
    goes_on = True
    for step in steps_of(path):
        if isinstance(step, int):
            if not isinstance(rendered, yaml.SequenceNode) or step >= len(rendered.value):
                break
            rendered = rendered.value[step]
            item = _same_item(source, rendered, step) if goes_on else None
            entry = (item, item) if item is not None else None
        else:
            found = entry_of(rendered, step)
            if not found:
                break
            rendered = found[1]
            entry = entry_of(source, step) if goes_on else None
        if entry is None:
            goes_on = False
        else:
            shown, source = entry
    is_scalar = isinstance(rendered, yaml.ScalarNode)
    is_same = goes_on and (not is_scalar or (isinstance(source, yaml.ScalarNode) and source.value == rendered.value))
    return shown, rendered, is_same


def _same_item(source: yaml.Node, rendered: yaml.Node, index: int) -> yaml.Node | None:
    """Return the item of the source with the same name or the same text, else the one at the same index."""
    items: list[yaml.Node] = source.value if isinstance(source, yaml.SequenceNode) else []
    at_index = items[index] if index < len(items) else None
    if isinstance(rendered, yaml.MappingNode) and (name := entry_of(rendered, "name")):
        named = (item for item in items if (own := entry_of(item, "name")) and own[1].value == name[1].value)
        return next(named, None)
    if isinstance(rendered, yaml.ScalarNode) and (at_index is None or at_index.value != rendered.value):
        return next((item for item in items if item.value == rendered.value), at_index)
    return at_index


def _line_with(lines: Sequence[str], value: yaml.Node) -> int | None:
    """Return the only line that holds the value of a scalar; of an image also the tag alone counts."""
    if not isinstance(value, yaml.ScalarNode):
        return None
    tag = value.value.rpartition(":")[2]
    for text in dict.fromkeys((value.value, tag, value.value.partition("=")[2])):
        if len(text) < _MIN_FOUND:
            continue
        found = [number for number, line in enumerate(lines, 1) if _holds(line, text)]
        if len(found) == 1:
            return found[0]
    return None


def _holds(line: str, text: str) -> bool:
    """Return whether a line holds a text that does not go on before or behind."""
    start = line.find(text)
    end = start + len(text)
    return start >= 0 and not line[start - 1 : start].isalnum() and not line[end : end + 1].isalnum()


def _lines(file: str, inside: Path | None) -> Sequence[str]:
    """Return the lines of a file; none where it cannot be read."""
    return _lines_of(Path(file).absolute(), inside)


@lru_cache(maxsize=64)
def _lines_of(file: Path, inside: Path | None) -> Sequence[str]:
    try:
        return read_text(file, max_bytes=MAX_SOURCE_BYTES, inside=inside).split("\n")
    except (OSError, UnicodeDecodeError):
        return ()


class PathMap(Struct, frozen=True, kw_only=True):
    """Folders of rendered charts by the names of the charts, as `# Source:` comments have them."""

    folders: Mapping[str, str] = {}
    """`chart` → `charts/serving`."""
    chart: tuple[str, ...] = ()
    """Files of the chart that decide what it renders to."""
    root: Path | None = None
    """The folder that no template lies outside of; None: each lies in its chart's folder, or in the current one."""

    def template(self, text: str, line_offset: int, *, is_stream: bool) -> Template | None:
        """Return the template that the text of a document was rendered from; None where it names none, or one that is not there.

        `is_stream`: the text has no place in a file, so that it may be shown in a template of the current folder.
        """
        found = _SOURCE.match(text) if self.folders or is_stream else None
        for folder, file in self._files(found[1].strip()) if found else ():
            inside = self.root or folder
            if _lines(file, inside):
                return Template(file=file, chart=self.chart, first_line=line_offset + 1, rendered=text, inside=inside)
        return None

    def _files(self, source: str) -> Iterator[tuple[Path, str]]:
        """Yield the files that a source may be, each with the folder that it must lie in."""
        for name, folder in sorted(self.folders.items(), reverse=True):
            rest = source.removeprefix(name.rstrip("/"))
            if rest != source and rest.startswith("/"):
                yield Path(folder), Path(folder, rest.lstrip("/")).as_posix()
        if not self.folders:
            yield Path(), source


NO_CHARTS = PathMap()


class Unrendered(Struct, frozen=True, kw_only=True):
    """A chart or a kustomization that is not rendered, or not all of it."""

    file: str
    line: int
    reason: str
    """Sentence about what was done instead."""
    detail: str = ""
    """The part that is special about this one."""


class Render(StrEnum):
    """When Helm and kustomize render charts and kustomizations."""

    SANDBOXED = "sandboxed"
    """They render only where the kernel keeps them from everything but their input."""
    ALLOW_LISTED = "allow-listed"
    """They render everywhere. Where the kernel has no sandbox, only the list of allowed features keeps them from other files."""
    NEVER = "never"


class ChartOptions(Struct, frozen=True, kw_only=True):
    """The names that the user gives to charts and kustomizations."""

    render: Render = Render.SANDBOXED
    values: tuple[Path, ...] = ()
    """Files of values for the charts that the user names; later ones win."""
    arguments: tuple[str, ...] = ()
    """Further arguments of `helm template` for them, such as `--set=a=1`."""
    path_map: PathMap = NO_CHARTS
