"""`kvgate diff`: what a change does to KV cache capacity, for pull requests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import chdir
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from kvgate.cli.check.command import FORMATS, report_or_exit
from kvgate.cli.completion import a_file
from kvgate.cli.exits import BadInput, Exit
from kvgate.cli.help import Command
from kvgate.cli.shared_options import with_engine_facts
from kvgate.cli.terminal import show, show_error
from kvgate.documents.reading import STDIN

if TYPE_CHECKING:
    from kvgate.cli.check.given_facts import CheckOptions
    from kvgate.cli.reports.difference import Difference

DIFFERENCE_FORMATS = ("text", "markdown", "json")
_FILES = ("model_config", "calibration", "config", "lock")
"""Options that name a file, relative to the folder that the command was started in."""

_PATH_STARTS = ("../", "/", "./")


@click.command(cls=Command)
@click.argument("sides", metavar="OLD NEW | REVISIONS [PATH...]", nargs=-1, required=True, shell_complete=a_file)
@with_engine_facts(found_from="each of both sides")
@click.option("-o", "--output", type=click.Choice(DIFFERENCE_FORMATS), default="text", help="Format of the report.")
def diff(sides: tuple[str, ...], output: str, **options: Any) -> None:
    """Judge both sides of a change, and show what changes for every engine: verdict, KV cache, concurrency, headroom.

    The sides are two files or folders, OLD and NEW, or revisions of the repository: main...HEAD compares with the commit where the
    branch began, v1..v2 compares two revisions, and main compares with the files on disk. PATH limits revisions to files and folders.

    The report says which settings changed, and what each alone does to the KV cache. Where an engine moves to another release of
    vLLM, it lists the options that the engine does not set and whose default changes. An engine of one side and one of the other are
    the same if file, path and name say so; renamed files are followed.
    """
    from kvgate.cli.check.given_facts import CheckOptions
    from kvgate.cli.reports.difference import compare

    given = CheckOptions(**options)
    if _are_paths(sides):
        old, new = sides
        if old == new == STDIN:
            raise click.UsageError("only one of OLD and NEW can be standard input")
        difference = compare(report_or_exit((old,), given), report_or_exit((new,), given), (old, new))
    else:
        try:
            difference = _between_revisions(sides[0], sides[1:], given)
        except BadInput as error:
            show_error(str(error))
            sys.exit(Exit.UNDECIDED)
    render: Callable[[Difference], str] = resolve_name(f"{FORMATS[output]}_difference")
    show(render(difference))
    sys.exit(difference.exit_code)


def _are_paths(sides: Sequence[str]) -> bool:
    """Return whether two paths are compared. A first one that is missing counts as a revision, unless it can only be a path."""
    if len(sides) != 2:
        return False
    first = sides[0]
    if first == STDIN or Path(first).exists():
        return True
    from kvgate.cli.diff.revisions import repository_of_folder

    try:
        repository_of_folder(Path.cwd())
    except BadInput:
        return ".." not in first or first.startswith(_PATH_STARTS)
    return first.startswith(_PATH_STARTS)


def _between_revisions(text: str, paths: Sequence[str], given: CheckOptions) -> Difference:
    """Judge two revisions, or one and the files on disk. Raises BadInput."""
    from kvgate.cli.diff.revisions import repository_of_folder
    from kvgate.cli.reports.difference import compare

    repository = repository_of_folder(Path.cwd())
    commits = repository.resolved(text)
    below = [repository.below_top(path) for path in paths] or ["."]
    files = {name: path.absolute() for name in _FILES if (path := getattr(given, name))}
    given = replace(given, **files)
    with TemporaryDirectory(prefix="kvgate-") as folder:
        sides = []
        for name, commit in zip(("old", "new"), commits, strict=True):
            sides.append(Path(folder, name) if commit else repository.top)
            if commit:
                sides[-1].mkdir()
                repository.write(commit, below, sides[-1])
        for path in below:
            if not any((side / path).exists() for side in sides):
                raise BadInput(f"{path} is on neither side of {text}")
        reports = []
        for side in sides:  # files have the names that they have in the repository
            with chdir(side):
                found = tuple(path for path in below if Path(path).exists())
                reports.append(report_or_exit(found, given if side == repository.top else replace(given, root=Path())))
    renamed = repository.renamed(commits[0], commits[1]) if commits[1] else {}
    return compare(reports[0], reports[1], (".", "."), renamed)
