"""Options that the commands for manifests share: facts that manifests do not state."""

from collections.abc import Callable
from pathlib import Path

import click

from kvgate.cli.setting_options import CALIBRATION_OPTION, Decorator

GIVEN_FILE = click.Path(dir_okay=False, exists=True, allow_dash=False, path_type=Path)


def with_engine_options(*, found_from: str) -> Decorator:
    """The fields of check_run.Options that are not about findings; `found_from` is where .kvgate.yaml is looked for."""
    options = (
        click.option("--model-config", metavar="FILE", type=GIVEN_FILE,
                     help="The config.json for models that are not in the catalogue and have no configFrom."),
        click.option("--accelerator", metavar="NAME", help="The GPU, for manifests that do not say it; see kvgate gpus."),
        click.option("--vllm-version", metavar="VERSION", help="The release of vLLM, for manifests whose image does not say it."),
        CALIBRATION_OPTION,
        click.option("--config", metavar="FILE", type=GIVEN_FILE,
                     help=f"Instead of the .kvgate.yaml nearest to {found_from}, in its folder or above."),
    )  # fmt: skip

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
