"""`kvgate why`: paste whatever there is, and get the cause with what would change it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kvgate.cli.completion import a_file, gpus
from kvgate.cli.exits import BadInput, Exit
from kvgate.cli.help import Command
from kvgate.cli.known_models import with_model_options
from kvgate.cli.shared_options import CALIBRATION_OPTION, GIVEN_FILE, GPU_NAMES
from kvgate.cli.terminal import show

_FILE = click.Path(dir_okay=False, allow_dash=False, path_type=Path)


@click.command(cls=Command)
@click.argument("what", nargs=-1, metavar="[WHAT]...", shell_complete=a_file)
@click.option(
    *GPU_NAMES,
    "accelerator",
    metavar="NAME",
    shell_complete=gpus,
    help="The GPU, where nothing that is given names it.",
)
@click.option("--vllm-version", metavar="VERSION", help="The release of vLLM, where nothing that is given states it.")
@click.option(
    "--model-config", metavar="FILE", type=GIVEN_FILE, help="The config.json of a model that is not in the catalogue."
)
@CALIBRATION_OPTION
@with_model_options
@click.option("--config", metavar="FILE", type=GIVEN_FILE, help="Read this file instead of the nearest .kvgate.yaml.")
@click.option(
    "--bundle",
    metavar="FILE",
    type=_FILE,
    help="Also write FILE, what a report of a wrong answer needs: without secrets.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def why(what: tuple[str, ...], output: str, bundle: Path | None, **options: Any) -> None:
    """Say why vLLM does not start, and what would change that.

    WHAT is a file, a folder, - for standard input (also where nothing is given and something is piped in), or a text in quotes: a command
    (`vllm serve`, `docker run`), manifests, `kubectl get pod -o yaml`, `kubectl describe`, a log, or several of them. A file that --bundle
    wrote gives the same answer again. Nothing that is pasted is run.
    """
    if not what:
        if sys.stdin.isatty():
            raise click.UsageError("paste something: a file, a text in quotes, or - for standard input.")
        what = ("-",)
    from kvgate.cli.why.run import run

    try:
        answer = run(what, sys.stdin.buffer, options, bundle=bundle)
    except (BadInput, OSError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    show(answer.text if output == "text" else answer.json)
    sys.exit(Exit(answer.exit_code))
