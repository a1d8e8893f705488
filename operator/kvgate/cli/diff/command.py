"""`kvgate diff`: what a change does to KV cache capacity, for pull requests."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from kvgate.cli.check.command import FORMATS, report_or_exit
from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.completion import a_file
from kvgate.cli.help import Command
from kvgate.cli.reports.difference import Difference, compare
from kvgate.cli.shared_options import with_engine_facts
from kvgate.cli.terminal import show
from kvgate.documents.reading import STDIN

DIFFERENCE_FORMATS = ("text", "markdown", "json")


@click.command(cls=Command)
@click.argument("old", metavar="OLD", shell_complete=a_file)
@click.argument("new", metavar="NEW", shell_complete=a_file)
@with_engine_facts(found_from="each of OLD and NEW")
@click.option("-o", "--output", type=click.Choice(DIFFERENCE_FORMATS), default="text", help="Format of the report.")
def diff(old: str, new: str, output: str, **options: Any) -> None:
    """Judge two files or folders, OLD and NEW, and show what changes for every engine: verdict, KV cache, concurrency, headroom.

    Where an engine moves to another release of vLLM, the report lists the options that the engine does not set and whose default
    changes. An engine of OLD and one of NEW are the same if file, path and name say so.

    Exit code: 0 nothing got worse, 1 an engine that started before, or is new, would not start, 2 no engine could be judged.
    """
    if old == new == STDIN:
        raise click.UsageError("only one of OLD and NEW can be standard input")
    given = CheckOptions(**options)
    difference = compare(report_or_exit((old,), given), report_or_exit((new,), given), (old, new))
    render: Callable[[Difference], str] = import_module(FORMATS[output]).render_difference
    show(render(difference))
    sys.exit(difference.exit_code)
