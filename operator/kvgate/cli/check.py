"""`kvgate check`: the verdicts of files, with file, line and field; the same engine as the webhook."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import click

from kvgate.cli.check_report import Report, in_order, of_broken, of_document, of_engine, of_ours
from kvgate.cli.checked import check_subject
from kvgate.manifests import read_manifests
from kvgate.manifests.engines import find_engines
from kvgate.manifests.judged import Defaults, judge_engine
from kvgate.rules.finding import Severity

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


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--model-config", metavar="FILE", help="The config.json for models that neither the catalogue nor configFrom knows.",
    type=click.Path(dir_okay=False, exists=True, allow_dash=False, path_type=Path),
)  # fmt: skip
@click.option("--accelerator", metavar="NAME", help="For manifests that do not say what they run on.")
@click.option("--vllm-version", metavar="VERSION", help="For manifests whose image does not say it.")
@click.option("--fail-on", type=click.Choice(["error", "warning"]), default="error", help="What makes the exit code 1.")
@click.option("-o", "--output", type=click.Choice(list(OUTPUTS)), default="text", help="For people or programs.")
def check(
    paths: tuple[str, ...],
    model_config: Path | None,
    accelerator: str | None,
    vllm_version: str | None,
    fail_on: str,
    output: str,
) -> None:
    """Judge every vLLM engine in PATH: files, folders, or - for standard input.

    InferenceDeployments by their policy, other platforms' manifests and Helm values by vLLM's own start condition. ConfigMaps
    in the same input are read where they are referred to. Exit code: 0 everything starts, 1 something does not, 2 nothing
    could be decided.
    """
    text = model_config.read_text(encoding="utf-8", errors="replace") if model_config else None
    defaults = Defaults(accelerator=accelerator, vllm_version=vllm_version, model_config=text)
    report = run(paths, model_config, defaults)
    render: Callable[[Report], str] = import_module(OUTPUTS[output]).render
    click.echo(render(report))
    sys.exit(report.exit_code(Severity(fail_on)))


def run(paths: tuple[str, ...], model_config: Path | None, defaults: Defaults) -> Report:
    """Read, judge, and put in order."""
    manifests = read_manifests(paths)
    found = find_engines(manifests)
    items = [
        *(
            of_ours(check_subject(subject, manifests, defaults.model_config, str(model_config)))
            for subject in manifests.subjects
        ),
        *(of_engine(judge_engine(engine, defaults)) for engine in found.engines),
        *map(of_document, found.not_understood),
    ]
    return Report(
        items=in_order(items),
        unreadable=tuple(map(of_broken, (*manifests.broken, *found.broken))),
        num_others=manifests.num_others + found.num_others,
        paths=paths,
    )
