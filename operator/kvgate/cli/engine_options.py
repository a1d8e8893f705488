"""What the commands that judge manifests have in common: what is taken where these do not say."""

from collections.abc import Callable
from pathlib import Path

import click

from kvgate.cli.setting_options import CALIBRATION_OPTION, Decorator

GIVEN_FILE = click.Path(dir_okay=False, exists=True, allow_dash=False, path_type=Path)


def with_engine_options(*, found_from: str) -> Decorator:
    """The fields of check_run.Options that are not about findings; `found_from` is where .kvgate.yaml is looked for."""
    options = (
        click.option("--model-config", metavar="FILE", type=GIVEN_FILE,
                     help="The config.json for models that neither the catalogue nor configFrom knows."),
        click.option("--accelerator", metavar="NAME", help="For manifests that do not say what they run on."),
        click.option("--vllm-version", metavar="VERSION", help="For manifests whose image does not say it."),
        CALIBRATION_OPTION,
        click.option("--config", metavar="FILE", type=GIVEN_FILE,
                     help=f"Instead of the .kvgate.yaml that is found upward from {found_from}."),
    )  # fmt: skip

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
