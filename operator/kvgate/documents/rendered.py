"""The charts and overlays of an input: what Helm and kustomize render, and what is read as it is written instead."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from time import monotonic

from msgspec import Struct, field
from msgspec.structs import replace

from kvgate.documents import helm, kustomizations, kustomize, pairings
from kvgate.documents.confined import NO_WALL
from kvgate.documents.discovery import CHART_FILE, KUSTOMIZATIONS
from kvgate.documents.origins import NO_CHARTS, ChartOptions, PathMap, Render, Unrendered
from kvgate.documents.positions import Broken, Position, broken
from kvgate.documents.programs import Failed, find_program, wall
from kvgate.documents.reading import Document, Item, Reading
from kvgate.text.patterns import pattern

MAX_SECONDS = 60
"""Time for all charts and overlays of an input that nobody named: what is left then is read as it is written."""
_NO_WALL = (
    "no chart and no kustomization is rendered, because this system offers neither user namespaces nor Landlock, and their files are "
    "read as they are written; --render=allow-listed renders without a sandbox"
)
_BETWEEN = b"---\n"
"""Text between two objects of `helm template`."""
_REFERRED = pattern(rb"(?m)^kind: *[\"']?(?:ConfigMap|\w*Claim)")
"""Pattern of an object that others refer to, which is kept beside those that refer to it."""


class Stream(Struct, frozen=True, kw_only=True):
    name: Path
    """File by which people know it: `Chart.yaml`, other values than the chart's own, or the kustomization."""
    data: bytes
    path_map: PathMap = NO_CHARTS
    overlay: kustomize.Overlay | None = None

    def documents(self, reading: Reading) -> Iterator[Item]:
        """Read the documents, each with the place that it comes from."""
        for item in replace(reading, path_map=self.path_map).of_stream(str(self.name), BytesIO(self.data)):
            if not isinstance(item, Document):
                yield item
                continue
            origin = self.overlay.origin(item) if self.overlay else None
            yield (
                replace(item, origin=origin, comments=origin.comments, first_line=origin.first_line) if origin else item
            )


class Renderings(Struct, kw_only=True):
    """The rendering of one input, and everything that is rendered in it."""

    named: Collection[str]
    options: ChartOptions
    marks: Collection[bytes]
    until: float = field(default_factory=lambda: monotonic() + MAX_SECONDS)
    may_run: bool | None = None
    """Whether programs may run; None until somebody needs to know whether this system has a sandbox."""
    streams: dict[Path, list[Stream]] = field(default_factory=dict)
    """`Chart.yaml` or kustomization → what it renders to."""
    covered: set[Path] = field(default_factory=set)
    """Files, without links, that are judged through what they are rendered to."""
    templates: set[Path] = field(default_factory=set)
    """Folders of templates that are rendered."""
    notes: list[Broken | Unrendered] = field(default_factory=list)
    variables: Mapping[Path, Mapping[str, str]] = {}
    """Folder of an overlay, without links → what Flux puts into it after the build."""
    paired: set[tuple[str, int]] = field(default_factory=set)
    """File, without links, and first line of each object that is judged through the chart that it pairs with values."""

    def judges(self, item: object) -> bool:
        """Return whether a document is an object that is judged through the chart that it pairs with values."""
        if not self.paired or not isinstance(item, Document):
            return False
        file = item.origin.files[0] if item.origin else item.file
        return (os.path.realpath(file), item.first_line) in self.paired

    def _is_of_interest(self, text: bytes) -> bool:
        """Return whether a text may belong to an engine, or to an InferenceDeployment."""
        in_small_letters = text.lower()
        return any(mark in in_small_letters for mark in self.marks)

    def is_named(self, path: Path) -> bool:
        return bool({os.path.realpath(path), os.path.realpath(path.parent)}.intersection(self.named))

    def _fails(self, at: Path, message: str, remedy: str, *, file: Path | None = None, line: int = 1) -> None:
        """Report what is not rendered: an error where the user named it, else one line."""
        if self.is_named(at):
            place = Position(line=line)
            self.notes.append(broken(str(file or at), place, f"cannot be rendered: {message}", remedy))
        else:
            self.notes.append(Unrendered(file=str(file or at), line=line, reason=f"not rendered: {message}; {remedy}"))

    def has_room(self, at: Path) -> bool:
        if monotonic() < self.until or self.is_named(at):
            return True
        self._fails(at, f"rendering took more than {MAX_SECONDS} seconds", "check this folder alone")
        return False

    def _program(self, names: Sequence[str], at: Path, inside: Path) -> Path | None:
        """Return the program; without one the files are read as they are written, also where the user named the folder."""
        program = find_program(names, inside)
        if program is None:
            missing = f"{' and '.join(names)} {'are' if names[1:] else 'is'} not on PATH"
            reason = f"not rendered: {missing}, so its files are read as they are written"
            self.notes.append(Unrendered(file=str(at), line=1, reason=reason))
        return program

    def _may_run(self, at: Path) -> bool:
        """Return whether a program may run. Where none may, one line says it for the whole input."""
        if self.may_run is None:
            self.may_run = wall() != NO_WALL
            if not self.may_run:
                self.notes.append(Unrendered(file=str(at), line=1, reason=_NO_WALL))
        return self.may_run

    @contextmanager
    def failing(self, at: Path, what: str) -> Iterator[None]:
        """Report what raises OSError, or ValueError with a sentence."""
        try:
            yield
        except (OSError, ValueError) as error:
            self._fails(at, str(error), f"correct the {what}")

    def chart(self, at: Path, inside: Path) -> None:
        """Render a chart with its own values, or with those that are given; then with other files of values beside them."""
        folder = at.parent
        found = self._chart_to_render(at, inside)
        if found is None:
            return
        chart, texts, files, program = found
        own = self.options if self.is_named(at) else ChartOptions()
        with helm.Copy(chart, files, inside) as copy:
            done = copy.render(program, own.values, own.arguments)
            if isinstance(done, helm.ChartFailed):
                self._fails(at, done.message, done.remedy, file=done.file, line=done.line)
                return
            self._add(chart, at, at, done, (folder / helm.VALUES_FILE, *own.values))
            if not own.values and not own.arguments:
                self._with_other_values(copy, program, texts, set(done.split(_BETWEEN)))
        self.templates.add(folder / helm.TEMPLATES)
        dependencies = (path for path in texts if path.name == helm.VALUES_FILE)
        self.covered |= {(folder / path).resolve() for path in dependencies}

    def paired_chart(self, at: Path, inside: Path, pairs: Sequence[pairings.Pairing]) -> None:
        """Render a chart once for each object that pairs it with values, under the name of its release."""
        given = (text for each in pairs for text in each.values if isinstance(text, str))
        found = self._chart_to_render(at, inside, given)
        if found is None:
            return
        chart, _, files, program = found
        with helm.Copy(chart, files, inside) as copy:
            for each in pairs:
                if not self.has_room(each.file):
                    return
                done = copy.render(program, each.values, each.arguments, each.release or helm.RELEASE)
                if isinstance(done, helm.ChartFailed):
                    self._fails(each.file, f"{each.owner}: {done.message}", done.remedy, line=each.line)
                    continue
                if each.unread:
                    reason = f"{each.owner}: rendered without what is not read here"
                    note = Unrendered(file=str(each.file), line=each.line, reason=reason, detail=", ".join(each.unread))
                    self.notes.append(note)
                files_of_values = (
                    at.parent / helm.VALUES_FILE,
                    *(path for path in each.values if isinstance(path, Path)),
                )
                self._add(chart, at, each.file, done, (*files_of_values, each.file), key=each.file)
                self.covered |= {path.resolve() for path in files_of_values}
                self.paired.add((os.path.realpath(each.file), each.line))
        self.templates.add(at.parent / helm.TEMPLATES)

    def _chart_to_render(
        self, at: Path, inside: Path, more: Iterable[str] = ()
    ) -> tuple[helm.Chart, Mapping[Path, bytes], Mapping[Path, bytes], Path] | None:
        """Return (chart, its own files, the files to render, Helm); None where it has no engine, or is not rendered.

        `more`: values from elsewhere. Raises OSError, ValueError with a sentence.
        """
        texts = dict(helm.chart_files(at.parent, inside))
        chart = helm.read_chart(at.parent, inside)
        of_interest = any(self._is_of_interest(text) for text in (*texts.values(), *(text.encode() for text in more)))
        if chart.is_library or not (of_interest or self.is_named(at)):
            return None
        files = helm.files_to_render(chart, texts, inside)
        if refusal := helm.refusal_of(files):
            self._fails(at, refusal, f"if you trust it, render it yourself: helm template {at.parent} | kvgate check -")
            return None
        program = self._program(helm.PROGRAMS, at, inside)
        return (chart, texts, files, program) if program and self._may_run(at) else None

    def _with_other_values(
        self, copy: helm.Copy, program: Path, texts: Mapping[Path, bytes], known: set[bytes]
    ) -> None:
        """Render the chart with each file of values beside it that names an engine; one that does not fit the chart is read alone.

        `texts`: files of the chart; `known`: objects that are judged already; one that a file of values does not change is not judged
        again.
        """
        for path in helm.values_files(texts)[: helm.MAX_VALUES_FILES]:
            if self._is_of_interest(texts[path]) and monotonic() < self.until:
                values = copy.chart.folder / path
                done = copy.render(program, (values,), ())
                if isinstance(done, bytes):
                    new = (each for each in done.split(_BETWEEN) if each not in known or _REFERRED.search(each))
                    at = copy.chart.folder / CHART_FILE
                    self._add(copy.chart, at, values, _BETWEEN.join([b"", *new]), (values,))

    def _add(
        self, chart: helm.Chart, at: Path, name: Path, data: bytes, values: Sequence[Path], key: Path | None = None
    ) -> None:
        """Add a rendered chart. `key`: the file in whose place it is read, where that is not `Chart.yaml`."""
        shown = _shown_like(name)
        path_map = PathMap(
            folders={chart.name: shown(chart.folder)}, chart=tuple(map(shown, (at, *values))), root=chart.folder
        )
        self.streams.setdefault(key or at, []).append(Stream(name=name, data=data, path_map=path_map))
        if key is None:
            self.covered |= {path.resolve() for path in values}

    def overlays(self, paths: Sequence[Path], inside: Path) -> None:
        """Render every overlay that no other one includes; what one includes that cannot be rendered is rendered alone."""
        known = kustomizations.Kustomizations(inside)
        names = {path.parent.resolve(): path for path in paths}
        waiting, seen = [names[path.parent] for path in known.roots_of(paths)], set[Path]()
        while waiting:
            at = waiting.pop(0)
            if at in seen:
                continue
            seen.add(at)
            is_done = False
            with self.failing(at, "kustomization"):
                is_done = self.has_room(at) and self._overlay(at, known)
            if not is_done:
                folders = known.included_by(at.parent.resolve() / at.name)
                waiting += [names[folder] for folder in folders if folder in names]

    def _overlay(self, at: Path, known: kustomizations.Kustomizations) -> bool:
        """Render one overlay; return False if it is of interest and not rendered. Raises OSError, ValueError with a sentence."""
        tree, inside = known.tree_of(at), known.inside
        texts = kustomize.read_files(tree, inside)
        if not any(self._is_of_interest(text) for text in texts.values()):
            return True
        self.covered |= {file.resolve() for each in tree.kustomizations for file in each.patches}
        if tree.refusal:
            self._fails(
                at, tree.refusal, f"if you trust it, render it yourself: kustomize build {at.parent} | kvgate check -"
            )
            return False
        program = self._program(kustomize.PROGRAMS, at, inside)
        if program is None or not self._may_run(at):
            return False
        layout = kustomize.lay_out(tree, texts)
        done = kustomize.build(program, layout)
        if isinstance(done, Failed):
            left_out = f" (without {', '.join(tree.left_out)})" if tree.left_out else ""
            self._fails(at, f"{done.message}{left_out}", "run kustomize build on its folder")
            return False
        if variables := self.variables.get(at.parent.resolve()):
            done = pairings.substituted(done, variables)
        if tree.left_out:
            reason, detail = "rendered without what is not in the checkout", ", ".join(tree.left_out)
            self.notes.append(Unrendered(file=str(at), line=1, reason=reason, detail=detail))
        overlay = kustomize.Overlay(tree=tree, names=layout.names, inside=inside, shown=_shown_like(at))
        self.streams.setdefault(at, []).append(Stream(name=at, data=done, overlay=overlay))
        self.covered |= {file.resolve() for file in tree.files}
        return True


def render(
    files: Sequence[tuple[Path, Path]],
    named: Sequence[Path],
    options: ChartOptions,
    marks: Collection[str],
) -> Renderings:
    """Render charts and overlays among the files of an input, each with the folder that bounds it.

    `named`: paths that the user gives; `marks`: texts, one of which a chart or an overlay with an engine has.
    """
    said = pairings.paired_in(files)
    found = Renderings(
        notes=list(said.notes),
        variables=said.variables,
        named={os.path.realpath(path) for path in named},
        options=options,
        marks=[mark.encode() for mark in marks],
        may_run=True if options.render is Render.ALLOW_LISTED else None,
    )
    charts = dict[Path, Path]()
    by_bound = dict[Path, list[Path]]()
    for path, inside in files:
        if path.name == CHART_FILE:
            charts[path.parent] = inside
        elif path.name in KUSTOMIZATIONS:
            by_bound.setdefault(inside, []).append(path)
    pairs, bounds, own = pairings.owners(said.pairings), dict(files), options.values or options.arguments
    for folder in [each for each in pairs if own and found.is_named(each / CHART_FILE)]:
        del pairs[folder]  # values of the command line go before those of objects
    for each in pairs.values():
        at, inside = each[0].chart / CHART_FILE, bounds[each[0].file]
        if found.has_room(at):
            with found.failing(at, "chart"):
                found.paired_chart(at, inside, each)
    for folder, inside in charts.items():
        at = folder / CHART_FILE
        is_alone = folder.resolve() not in pairs and not any(up in charts for up in folder.parents)
        if is_alone and found.has_room(at):
            with found.failing(at, "chart"):
                found.chart(at, inside)
    for inside, paths in by_bound.items():
        found.overlays(paths, inside)
    return found


def _shown_like(at: Path) -> Callable[[Path], str]:
    """Return the function that names a file as the paths of the command line do: relative where they are."""
    current = Path.cwd()

    def shown(file: Path) -> str:
        return str(file if at.is_absolute() or not file.is_relative_to(current) else file.relative_to(current))

    return shown
