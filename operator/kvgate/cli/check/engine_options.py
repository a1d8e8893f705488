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
        click.option("--vllm-version", metavar="VERSION", callback=_release,
                     help="The release of vLLM, for manifests whose image does not say it."),
        CALIBRATION_OPTION,
        click.option("--config", metavar="FILE", type=GIVEN_FILE,
                     help=f"Instead of the .kvgate.yaml nearest to {found_from}, in its folder or above."),
    )  # fmt: skip

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _release(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """Refuse a text that is not a release before any manifest is judged with it."""
    if text is not None:
        from kvgate.budget.errors import UnknownVersion
        from kvgate.budget.versions import parse_release

        try:
            parse_release(text)
        except UnknownVersion as error:
            raise click.BadParameter(f"{error}.") from error
    return text
