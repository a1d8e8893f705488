"""`kvgate diff`: what a change does to KV cache capacity, for pull requests."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from kvgate.cli.check.command import report_or_exit
from kvgate.cli.check.run import Options
from kvgate.cli.diff.report import Diff, compare
from kvgate.cli.shared_options import with_engine_facts
from kvgate.cli.terminal import show
from kvgate.documents.reading import STDIN

OUTPUTS = {
    "text": "kvgate.cli.diff.text",
    "markdown": "kvgate.cli.diff.markdown_report",
    "json": "kvgate.cli.diff.json_report",
}


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@with_engine_facts(found_from="each of OLD and NEW")
@click.option("-o", "--output", type=click.Choice(list(OUTPUTS)), default="text", help="Format of the report.")
def diff(old: str, new: str, output: str, **options: Any) -> None:
    """Judge two files or folders, OLD and NEW, and show what changes for every engine: verdict, KV cache, concurrency, headroom.

    Where an engine moves to another release of vLLM, it also lists options that the engine does not set and whose default changes.

    Engines of both sides are matched by file, path and name. Exit code: 0 nothing got worse, 1 an engine that is new or did start
    would not start now, 2 no engine could be judged.
    """
    if old == new == STDIN:
        raise click.UsageError("only one of OLD and NEW can be standard input")
    asked = Options(**options)
    told = compare(report_or_exit((old,), asked), report_or_exit((new,), asked), (old, new))
    render: Callable[[Diff], str] = import_module(OUTPUTS[output]).render
    show(render(told))
    sys.exit(told.exit_code)
