"""`kvgate check`: the verdicts of files, with file, line and field; the same engine as the webhook."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from kvgate.cli.bad_input import BadInput
from kvgate.cli.check_report import Report
from kvgate.cli.check_run import Options, run
from kvgate.cli.engine_options import GIVEN_FILE, with_engine_options
from kvgate.cli.exits import Exit

OUTPUTS = {
    "text": "kvgate.cli.check_text",
    "json": "kvgate.cli.check_json",
    "sarif": "kvgate.cli.check_sarif",
    "junit": "kvgate.cli.check_junit",
    "github": "kvgate.cli.check_github",
    "gitlab": "kvgate.cli.check_gitlab",
    "markdown": "kvgate.cli.check_markdown",
}
"""Name → the module whose `render` makes it; only one of them is imported."""
_FILE = click.Path(dir_okay=False, allow_dash=False, path_type=Path)


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@with_engine_options(found_from="PATH")
@click.option("--baseline", metavar="FILE", type=GIVEN_FILE, help="Findings that are known and do not count.")
@click.option("--write-baseline", metavar="FILE", type=_FILE, help="Write all findings of today to a baseline.")
@click.option("--fail-on", type=click.Choice(["error", "warning"]), help="What makes the exit code 1; default: error.")
@click.option(
    "--nothing-is-fine", is_flag=True, help="No vLLM engine that is understood is no failure: for hooks and pipelines."
)
@click.option("-o", "--output", type=click.Choice(list(OUTPUTS)), default="text", help="For people or programs.")
def check(
    paths: tuple[str, ...], output: str, write_baseline: Path | None, *, nothing_is_fine: bool, **options: Any
) -> None:
    """Judge every vLLM engine in PATH: files, folders, or - for standard input.

    InferenceDeployments by their policy, other platforms' manifests and Helm values by vLLM's own start condition. ConfigMaps
    in the same input are read where they are referred to. Exit code: 0 everything starts, 1 something does not, 2 nothing
    could be decided.
    """
    report = report_or_exit(paths, Options(**options))
    if write_baseline:
        report = _kept(write_baseline, report)
    render: Callable[[Report], str] = import_module(OUTPUTS[output]).render
    click.echo(render(report))
    has_no_engine = not report.unreadable and all(item.platform == "unknown" for item in report.items)
    sys.exit(Exit.FITS if nothing_is_fine and has_no_engine else report.exit_code)


def report_or_exit(paths: Sequence[str], options: Options) -> Report:
    """The report; for files beside the manifests that are wrong, what is wrong with them, and the exit code of misuse."""
    try:
        return run(paths, options)
    except BadInput as error:
        from kvgate.cli.check_text import broken_lines

        click.echo("\n".join([*filter(None, [str(error)]), *map(broken_lines, error.problems)]), err=True)
    sys.exit(Exit.UNDECIDED)


def _kept(path: Path, report: Report) -> Report:
    """The report as the next run with this baseline sees it."""
    from kvgate.cli import baseline

    try:
        baseline.write_baseline(path, report)
    except OSError as error:
        raise click.UsageError(f"--write-baseline {path} cannot be written: {error.strerror or error}") from None
    return baseline.without_known(report, baseline.read_baseline(path))
