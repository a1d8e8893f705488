"""Options that several commands have: vLLM's settings for `explain`, `size`, `sweep`, `calibrate`; facts for `check` and `diff`."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from kvgate.budget import NOTHING_OBSERVED, Calibration
from kvgate.cli.completion import a_model, gpus
from kvgate.cli.exits import BadInput, read_given
from kvgate.cli.known_models import with_model_options
from kvgate.cli.terminal import show_error
from kvgate.cli.workload_options import Decorator, all_of, guarantee_option
from kvgate.vllm.settings import WHAT_IFS

GIVEN_FILE = click.Path(dir_okay=False, exists=True, allow_dash=False, path_type=Path)
"""A file to read, which must be there."""
CALIBRATION_OPTION: Decorator = click.option(
    "--calibration",
    metavar="FILE",
    type=GIVEN_FILE,
    help="Observed starts, a file that `kvgate calibrate` wrote.",
)


def read_calibration(path: Path | None, *, inside: Path | None = None) -> Calibration:
    """Return the starts in the file of --calibration, and report on standard error which of them are not used.

    `inside` is a folder that the path must not lead out of. Raises BadInput with every line that cannot be read.
    """
    if path is None:
        return NOTHING_OBSERVED
    from kvgate.calibration.observed import unused_texts
    from kvgate.calibration.records import MAX_TEXT_BYTES, read_records

    remedy = "; `kvgate calibrate` writes such files"
    records = read_records(read_given(path, max_bytes=MAX_TEXT_BYTES, inside=inside, remedy=remedy))
    if records.problems:
        raise BadInput(
            f"{path}: {'; '.join(records.problems)}; write it again with `kvgate calibrate`, or remove these lines"
        )
    for text in unused_texts(records.calibration):
        show_error(f"{path}: {text}")
    return records.calibration


def with_settings(*, without: Collection[str] = ()) -> Decorator:
    """Add a flag for every what-if setting, except for those that the command finds out itself."""
    options = list[Decorator]()
    for setting in (each for each in WHAT_IFS if each.name not in without):
        names = (*ALSO.get(setting.name, ()), setting.flag, setting.name)
        if setting.name in _FILES:
            option = click.option(setting.flag, type=click.File("rb"), metavar="FILE", help=setting.help)
        elif setting.is_switch:
            spelling = f"{setting.flag}/--no-{setting.flag[2:]}"
            option = click.option(spelling, setting.name, default=None, help=setting.help)
        else:
            short = (spelling for spelling in setting.spellings if not spelling.startswith("--"))
            complete = {"gpu": gpus, "model": a_model}.get(setting.name)
            option = click.option(*short, *names, metavar="VALUE", help=setting.help, shell_complete=complete)
        options.append(option)
    return all_of(options)


GPU_NAMES = ("--gpu", "--gpus", "--accelerator")
"""Names of the option that every command has for its GPUs."""
ALSO: Mapping[str, Sequence[str]] = {
    "gpu": GPU_NAMES[1:],
    "max_model_len": ("--context",),
    "tensor_parallel_size": ("--tp",),
    "pipeline_parallel_size": ("--pp",),
    "data_parallel_size": ("--dp",),
}
"""Setting → further names of its option."""
_FILES = {"model_config": "model", "draft_config": "draft"}
"""Settings whose value is a file with a config.json, and the word for what it describes."""


def given_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that are given; the file of --model-config becomes the mapping that is in it, and that of --draft-config."""
    given = {key: value for key, value in values.items() if value is not None}
    return {**given, **{name: _content(name, given[name]) for name in _FILES if name in given}}


def _content(name: str, file: Any) -> Mapping[str, Any]:
    from kvgate.cli.known_models import files_beside
    from kvgate.documents.bounded_files import Refused, read_all
    from kvgate.hf_config import ModelConfigError
    from kvgate.hf_config.fields import MAX_CHARACTERS, parse_config_text
    from kvgate.hf_config.formats.quantization import with_quantization_beside

    path, flag = Path(file.name), f"--{name.replace('_', '-')}"
    try:
        config = parse_config_text(read_all(file, max_bytes=MAX_CHARACTERS).decode("utf-8", errors="replace"))
        beside = files_beside(path, config, inside=None) if path.is_file() else {}
    except (BadInput, ModelConfigError, Refused) as error:
        raise click.UsageError(f"{flag} {path.name}: {error}; give the config.json of the {_FILES[name]}") from None
    return with_quantization_beside(config, beside)


def with_engine_facts(*, found_from: str) -> Decorator:
    """Add the options for facts that manifests do not state; `found_from` says where the search for .kvgate.yaml begins."""
    options = (
        click.option("--model-config", metavar="FILE", type=GIVEN_FILE,
                     help="The config.json of models that are not in the catalogue and have no configFrom."),
        click.option(*GPU_NAMES, "accelerator", metavar="NAME,…", shell_complete=gpus,
                     help="The GPU of manifests that do not state it, or several on each of which they must start, or a pool of "
                          ".kvgate.yaml, or auto for that of this machine; `kvgate gpus` lists the names."),
        click.option("--vllm-version", metavar="VERSION", callback=_release,
                     help="The release of vLLM, for manifests whose image does not state it."),
        CALIBRATION_OPTION,
        with_model_options,
        guarantee_option("that of an InferenceDeployment, and Startup for all other manifests"),
        click.option("--config", metavar="FILE", type=GIVEN_FILE,
                     help=f"Read this file instead of the .kvgate.yaml nearest to {found_from}, in its folder or above."),
    )  # fmt: skip

    return all_of(options)


def _release(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """Refuse a text that is not a release before any manifest is judged with it."""
    if text is not None:
        from kvgate.budget import UnknownVersion, parse_release

        try:
            parse_release(text)
        except UnknownVersion as error:
            raise click.BadParameter(f"{error}.") from error
    return text
