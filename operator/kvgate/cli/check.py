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
@click.option("--baseline", metavar="FILE", type=GIVEN_FILE, help="Known findings, which do not count.")
@click.option("--write-baseline", metavar="FILE", type=_FILE, help="Write all findings of this run to such a file.")
@click.option(
    "--fail-on", type=click.Choice(["error", "warning"]), help="The least severity for exit code 1; default: error."
)
@click.option(
    "--nothing-is-fine", is_flag=True, help="Exit code 0 where no vLLM engine is found: for hooks and pipelines."
)
@click.option("-o", "--output", type=click.Choice(list(OUTPUTS)), default="text", help="Format of the report.")
def check(
    paths: tuple[str, ...], output: str, write_baseline: Path | None, *, nothing_is_fine: bool, **options: Any
) -> None:
    """Judge every vLLM engine in PATH: files, folders, or - for standard input.

    An InferenceDeployment is judged by its policy, an engine in any other manifest or in Helm values by whether vLLM would start.
    ConfigMaps in the same input are read where something refers to them.

    Exit code: 0 no engine is refused, 1 one is, or a document beside the engines cannot be read, 2 no engine could be judged.
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
