"""`kvgate check`: the verdicts of files, with file, line and field; the same engine as the webhook."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from msgspec.structs import replace

from kvgate.cli.completion import a_file
from kvgate.cli.exits import FAIL_ON, BadInput, Exit
from kvgate.cli.help import Command
from kvgate.cli.shared_options import GIVEN_FILE, with_engine_facts
from kvgate.cli.terminal import for_file, show, show_error
from kvgate.cli.workload_options import KEEP_OPTION
from kvgate.documents.bounded_files import write_text
from kvgate.documents.origins import ChartOptions, PathMap, Render
from kvgate.findings.finding import Severity

if TYPE_CHECKING:
    from kvgate.cli.check.given_facts import CheckOptions
    from kvgate.cli.reports.report import Report

FORMATS = {
    "text": "kvgate.cli.reports.text:render",
    "json": "kvgate.cli.reports.json_report:render",
    "sarif": "kvgate.cli.reports.sarif:render",
    "junit": "kvgate.cli.reports.junit:render",
    "github": "kvgate.cli.reports.code_hosts:github",
    "gitlab": "kvgate.cli.reports.code_hosts:gitlab",
    "markdown": "kvgate.cli.reports.markdown:render",
}
"""Name of a format → the function that writes it; only the modules that are used are imported."""
_FILE = click.Path(dir_okay=False, allow_dash=False, path_type=Path)


class Output(Struct, frozen=True, kw_only=True):
    format: str
    file: Path | None
    """None: standard output."""


def _enter(context: click.Context, _: click.Parameter, root: Path | None) -> Path | None:
    """Change to the folder before the other options are read: their files are relative to it."""
    if root is None:
        return None
    context.with_resource(chdir(root))
    return Path.cwd()


def _outputs(_: click.Context, __: click.Parameter, given: Sequence[str]) -> Sequence[Output]:
    """Read FORMAT[=FILE]; at most one report can go to standard output."""
    outputs = []
    for text in given:
        name, to_file, file = text.partition("=")
        if name not in FORMATS or (to_file and not file):
            raise click.BadParameter(
                f"{text!r} is not a format. Use any one of: {', '.join(FORMATS)}; =FILE may follow."
            )
        outputs.append(Output(format=name, file=Path(file) if to_file else None))
    if sum(output.file is None for output in outputs) > 1:
        raise click.BadParameter(f"{' and '.join(given)}: only one can go to standard output. Add =FILE to the others.")
    return outputs


def _fail_on(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    if text is not None and re.fullmatch(FAIL_ON, text) is None:
        raise click.BadParameter(
            f"{text!r} is none of error, warning, unknown, skipped, nor several of them with commas between."
        )
    return text


def _path_map(_: click.Context, __: click.Parameter, given: Sequence[str]) -> PathMap:
    folders = dict(text.partition("=")[::2] for text in given)
    for name, folder in folders.items():
        if not name.strip("/") or not Path(folder).is_dir():
            raise click.BadParameter(f"{name}={folder}: write the name of the chart, `=`, and a folder that is there.")
    return PathMap(folders=folders)


def _helm_arguments(_: click.Context, __: click.Parameter, given: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return files of values and other arguments."""
    if not given:
        return [], []
    from kvgate.documents.helm import template_arguments

    try:
        return template_arguments(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", shell_complete=a_file)
@with_engine_facts(found_from="PATH")
@click.option(
    "--baseline",
    metavar="FILE",
    type=GIVEN_FILE,
    help="Known findings, which do not count: a file that --write-baseline wrote.",
)
@click.option(
    "--write-baseline", metavar="FILE", type=_FILE, help="Write the findings of this run to FILE, for --baseline."
)
@click.option(
    "--config-from",
    metavar="REV",
    help="Read .kvgate.yaml, .kvgateignore, .gitignore, the files that they name, and files of other options, as this revision of Git has "
    "them, such as origin/main, so that a pull request cannot loosen its own check.",
)
@click.option(
    "--fail-on",
    metavar="LIST",
    callback=_fail_on,
    help="What makes the exit code 1: error, warning, unknown (a verdict or a requirement that is not decided) or skipped (a budget "
    "that the annotation kvgate.io/skip-budget skips), or several with commas between them. Errors always do.",
)
@KEEP_OPTION
@click.option(
    "--show",
    type=click.Choice([severity.value for severity in Severity]),
    default=Severity.WARNING.value,
    show_default=True,
    help="Least severity that text and markdown show.",
)
@click.option(
    "-f",
    "--values",
    multiple=True,
    metavar="FILE",
    type=GIVEN_FILE,
    help="Values for the charts among PATH, as of `helm template`. May be repeated; later ones win.",
)
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="One value for the charts among PATH.")
@click.option(
    "--helm-argument",
    "helm_arguments",
    multiple=True,
    metavar="ARGUMENT",
    callback=_helm_arguments,
    help="One more argument of `helm template` for the charts among PATH, as in --helm-argument=--namespace=serving.",
)
@click.option(
    "--path-map",
    multiple=True,
    metavar="FROM=TO",
    callback=_path_map,
    help="Folder TO of the chart that `# Source:` comments of rendered manifests call FROM: findings are shown in its templates.",
)
@click.option(
    "--render",
    type=click.Choice([mode.value for mode in Render]),
    default=Render.SANDBOXED.value,
    show_default=True,
    help="Render charts and kustomizations with helm, and kustomize or kubectl, where these are installed: only in a sandbox of the "
    "kernel, also where the system has none, or never.",
)
@click.option(
    "--nothing-is-fine", is_flag=True, help="Exit with code 0 where no vLLM engine is found: for hooks and pipelines."
)
@click.option(
    "--root",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    is_eager=True,
    callback=_enter,
    help="Run in DIR, and let no link, .kvgate.yaml or manifest lead to a file outside it.",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    default=["text"],
    metavar="FORMAT[=FILE]",
    callback=_outputs,
    help=f"Format of the report, any one of: {', '.join(FORMATS)}. With =FILE it is written to FILE. May be repeated.",
)
def check(
    paths: tuple[str, ...],
    outputs: Sequence[Output],
    write_baseline: Path | None,
    *,
    nothing_is_fine: bool,
    config_from: str | None,
    **options: Any,
) -> None:
    """Judge every vLLM engine in PATH: files, folders, or - for standard input.

    An InferenceDeployment is judged by its admission policy. An engine in any other manifest, or in Helm values, is judged by
    whether vLLM would start. ConfigMaps in the same input are read where something refers to them.

    A folder with a Chart.yaml is a chart, and one with a kustomization.yaml an overlay: what they render to is judged.

    Where an InferenceDeployment does not fit, changes that would fit are proposed; --keep says what must stay.
    """
    given = options_of(paths, options)
    if config_from:
        context = click.get_current_context()
        given = context.with_resource(_from_revision(config_from, given))
    report = report_or_exit(paths, given)
    if write_baseline:
        report = _with_new_baseline(write_baseline, report, given)
    for output in outputs:
        _write(output, report, given)
    if not {output.format for output in outputs} & {"text", "github", "markdown", "json"}:
        from kvgate.cli.reports.wording import passed_over

        show_error(*passed_over(report))
    has_no_engine = not report.unreadable and not report.has_engine
    sys.exit(Exit.FITS if nothing_is_fine and has_no_engine else report.exit_code)


def options_of(paths: Sequence[str], parameters: dict[str, Any]) -> CheckOptions:
    """Return the options of the command, those for charts together. Raises click.UsageError where no path is a chart and they are given."""
    from kvgate.cli.check.given_facts import CheckOptions
    from kvgate.documents.discovery import CHART_FILE

    taken = {name: parameters.pop(name) for name in ("values", "sets", "helm_arguments", "path_map", "render")}
    values = (*taken["values"], *taken["helm_arguments"][0])
    arguments = (*(f"--set={each}" for each in taken["sets"]), *taken["helm_arguments"][1])
    if (values or arguments) and not any(Path(path, CHART_FILE).is_file() for path in paths):
        raise click.UsageError(
            "--values, --set and --helm-argument are for charts, and no PATH is a folder with a Chart.yaml."
        )
    if (values or arguments) and taken["render"] == Render.NEVER.value:
        raise click.UsageError(
            "--values, --set and --helm-argument change what a chart renders to, and --render=never renders none. Leave out either."
        )
    charts = ChartOptions(
        render=Render(taken["render"]), values=values, arguments=arguments, path_map=taken["path_map"]
    )
    return CheckOptions(charts=charts, **parameters)


@contextmanager
def _from_revision(name: str, options: CheckOptions) -> Iterator[CheckOptions]:
    """Yield the options with the settings of a revision, whose files lie in a folder for as long."""
    from kvgate.cli.diff.revisions import repository_of_folder
    from kvgate.documents.discovery import OtherRevision

    given = {field: path for field in _FILE_OPTIONS if (path := getattr(options, field))}
    with TemporaryDirectory(prefix="kvgate-") as folder:
        try:
            repository = repository_of_folder(Path.cwd())
            other = OtherRevision(name=name, top=repository.top, copy=Path(folder).resolve())
            named = {field: other.path(path) for field, path in given.items()}
            inside = [path.relative_to(other.copy) for path in named.values() if path.is_relative_to(other.copy)]
            repository.write_settings(name, inside, other.copy)
            if missing := [path for path in inside if not (other.copy / path).is_file()]:
                lacking = f"{name} has no file {missing[0]}; files of options are read from there"
                raise click.UsageError(f"--config-from: {lacking}")
        except BadInput as error:
            raise click.UsageError(f"--config-from: {error}") from None
        yield replace(options, other=other, **named)


_FILE_OPTIONS = ("config", "baseline", "calibration", "lock", "model_config")
"""Options that name a file which can make a check milder."""


def _write(output: Output, report: Report, options: CheckOptions) -> None:
    is_folded = output.file is None and output.format == "text"
    render: Callable[[Report], str] = resolve_name(f"{FORMATS[output.format]}{'_folded' if is_folded else ''}")
    if output.file is None:
        show(render(report))
        return
    try:
        write_text(output.file, f"{for_file(render(report))}\n", inside=options.guard(output.file))
    except OSError as error:
        raise click.UsageError(f"--output {output.file} cannot be written: {error.strerror or error}") from None


def report_or_exit(paths: Sequence[str], options: CheckOptions) -> Report:
    """Return the report. If a file beside the manifests cannot be used, print why and exit with the code for misuse."""
    from kvgate.cli.check.run import run

    try:
        return run(paths, options)
    except BadInput as error:
        from kvgate.cli.reports.text import lines_of_bad_input

        shown = options.other.shown_text(str(error)) if options.other else str(error)
        show_error(*lines_of_bad_input(shown, error))
    sys.exit(Exit.UNDECIDED)


def _with_new_baseline(path: Path, report: Report, options: CheckOptions) -> Report:
    """Write a baseline, and return the report as the next run with this baseline sees it."""
    from kvgate.cli.check.ignoring import by_baseline, read_baseline, write_baseline

    inside = options.guard(path)
    try:
        write_baseline(path, report, inside=inside)
    except OSError as error:
        raise click.UsageError(f"--write-baseline {path} cannot be written: {error.strerror or error}") from None
    return by_baseline(report, read_baseline(path, inside=inside), str(path))
