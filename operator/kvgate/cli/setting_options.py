"""vLLM's settings as options of a command, in vLLM's spelling; what `explain`, `size` and `sweep` have in common."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, BinaryIO

import click

from kvgate.documents.bounded_files import Refused, read_all
from kvgate.vllm.what_if_settings import SETTINGS, Setting

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

CALIBRATION_OPTION: Decorator = click.option(
    "--calibration",
    metavar="FILE",
    type=click.Path(dir_okay=False, exists=True, allow_dash=False, path_type=Path),
    help="Observed starts that `kvgate calibrate` wrote.",
)
"""Option of the commands that judge."""


def with_settings(*, without: Collection[str] = ()) -> Decorator:
    """Every setting of the contract as a flag, but for those that the command finds out itself."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for setting in reversed(SETTINGS):
            if setting.name not in without:
                command = _option(setting)(command)
        return command

    return decorate


def _option(setting: Setting) -> Decorator:
    flag = f"--{setting.name.replace('_', '-')}"
    if setting.name == "model_config":
        return click.option(flag, type=click.File("rb"), metavar="FILE", help=setting.help)
    if setting.is_flag:
        spelling = f"{flag}/--no-{flag[2:]}"
        return click.option(spelling, setting.name, default=None, help=setting.help)
    spellings = (setting.short, flag) if setting.short else (flag,)
    return click.option(*spellings, setting.name, metavar="VALUE", help=setting.help)


def given_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that are given, --model-config as the mapping in its text."""
    given = {key: value for key, value in values.items() if value is not None}
    return {**given, **_config(given.get("model_config"))}


def _config(file: BinaryIO | None) -> dict[str, Any]:
    from kvgate.cli.bad_input import BadInput
    from kvgate.cli.model_config import quantization_beside
    from kvgate.hf_config import ModelConfigError
    from kvgate.hf_config.text import MAX_CHARACTERS, parse_config_text

    if file is None:
        return {}
    try:
        config = parse_config_text(read_all(file, max_bytes=MAX_CHARACTERS).decode("utf-8", errors="replace"))
        path = Path(file.name)
        beside = quantization_beside(path, config, inside=None) if path.is_file() else {}
        return {"model_config": config | beside}
    except (BadInput, ModelConfigError, Refused) as error:
        raise click.UsageError(
            f"--model-config {Path(file.name).name}: {error}; give the config.json of the model"
        ) from None
