"""The paths of a command line: files, folders and standard input, with what Helm and kustomize make of them."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kvgate.documents.bounded_files import Refused, guard_of
from kvgate.documents.discovery import OtherRevision, PassedOver, files_below, is_rendered_by, only_pairs, root_of
from kvgate.documents.interest import WordsOfInterest
from kvgate.documents.origins import ChartOptions, Render, Unrendered
from kvgate.documents.positions import Broken
from kvgate.documents.reading import STDIN, STDIN_NAME, Document, Item, Reading, unreadable

AS_WRITTEN = ChartOptions(render=Render.NEVER)


_Source = tuple[Path, Path | None] | Broken | PassedOver | None
"""A file with the folder that it must not lie outside of, something that is not read, or None for standard input."""


def read_documents(paths: Iterable[str]) -> Iterator[Document | Broken]:
    """Yield the documents of every path in order as they are written, and Broken for each part that cannot be read."""
    reading = Reading()
    items = (item for path in paths for source in _sources(path, None) for item in _read(source, reading))
    return (item for item in items if isinstance(item, Document | Broken))


def read_relevant(
    paths: Iterable[str],
    words: WordsOfInterest,
    root: Path | None = None,
    options: ChartOptions = AS_WRITTEN,
    seen: Callable[[int], None] | None = None,
    other: OtherRevision | None = None,
) -> Iterator[Item | Unrendered]:
    """Read the documents of every path, with None for each that is YAML and has none of these words.

    Charts and overlays stand for their files, where they can be rendered. `root`: a path that is written below this folder must
    not lead out of it. `seen` is called with the bytes of each document. `other`: the revision whose `.kvgateignore` counts.
    """
    reading, paths = Reading(words=words, seen=seen, path_map=options.path_map), list(paths)
    sources = [source for path in paths for source in _sources(path, root, other)]
    files = [each for each in sources if isinstance(each, tuple)] if options.render is not Render.NEVER else []
    if not any(is_rendered_by(path.name) for path, _ in files):
        for source in sources:
            yield from _read(source, reading)
        return
    from kvgate.documents.rendered import render  # Helm and kustomize: most inputs have neither

    bounded = [(path, inside or root_of(path.parent)) for path, inside in files]
    named = [Path(path) for path in paths if path != STDIN]
    found = render(bounded, named, options, words.marks)
    yield from found.notes
    for source in sources:
        if isinstance(source, PassedOver) and source.path in found.templates:
            continue
        if isinstance(source, tuple):
            for stream in found.streams.get(source[0], ()):
                yield from (None if found.judges(item) else item for item in stream.documents(reading))
            if Path(os.path.realpath(source[0])) in found.covered:
                continue
        yield from (None if found.judges(item) else item for item in _read(source, reading))


def _sources(path: str, root: Path | None, other: OtherRevision | None = None) -> Iterator[_Source]:
    given = Path(path)
    guard = guard_of(given, root)
    if path == STDIN:
        yield None
    elif not given.is_dir():
        yield given, guard
    elif guard and not given.resolve().is_relative_to(guard.resolve()):
        yield unreadable(path, Refused(f"it leads out of {guard.resolve()}"))
    else:  # files that are not named are read only where they lie in the repository
        inside = guard or root_of(given)
        for found in files_below(given, inside, other):
            if isinstance(found, PassedOver):
                yield found
            elif isinstance(found, OSError):
                yield unreadable(str(found.filename), found)
            else:
                yield found, inside


def _read(source: _Source, reading: Reading) -> Iterator[Item]:
    if source is None:
        yield from reading.of_stream(STDIN_NAME, sys.stdin.buffer)
    elif isinstance(source, tuple):
        yield from () if only_pairs(source[0]) else reading.of_file(*source)
    else:
        yield source
