"""`kvgate explain`: the ledger of one GPU for people, or many what-ifs for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from msgspec.structs import asdict

from kvgate.cli.completion import a_file
from kvgate.cli.exits import BadInput
from kvgate.cli.help import Command
from kvgate.cli.known_models import ModelOptions, locked_models, with_model_options
from kvgate.cli.shared_options import CALIBRATION_OPTION, GIVEN_FILE, read_calibration, with_settings
from kvgate.cli.terminal import show, show_answers
from kvgate.cli.workload_options import BY_LOAD, with_users, with_wishes, with_workload
from kvgate.vllm.values import UnusableValue, read_tokens

if TYPE_CHECKING:
    from kvgate.cli.check.given_facts import CheckOptions

_OWN_LENGTHS = "default"
"""Text that stands for --paging without lengths."""


def _read_lengths(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """`2048,8k,32K` → tokens, each length once; nothing for the lengths that kvgate chooses."""
    if text is None or text == _OWN_LENGTHS:
        return None if text is None else ()
    try:
        return tuple(dict.fromkeys(read_tokens(part.strip()) for part in text.split(",")))
    except UnusableValue as error:
        raise click.UsageError(f"--paging {text}: {error}, several of them with commas between") from None


_OF_ENGINES = ("gpu", "vllm_version", "model_config")
"""Settings that are facts where a manifest does not state them."""


@click.command(cls=Command)
@click.argument("engines", required=False, metavar="[FILE[#NAME]]", shell_complete=a_file)
@with_settings()
@click.option(
    "--requests",
    type=click.File("rb"),
    metavar="FILE",
    help="Answer every line of FILE (JSON Lines, one request each); - is standard input.",
)
@click.option("--why", metavar="TERM", help="Show one figure with its formula: weights, request, blocks …")
@click.option(
    "--paging",
    "lengths",
    is_flag=False,
    flag_value=_OWN_LENGTHS,
    callback=_read_lengths,
    metavar="[LENGTHS]",
    help="Compare static with paged allocation and block sizes, for requests of these lengths: 2048,8k.",
)
@click.option(
    "--config",
    metavar="FILE",
    type=GIVEN_FILE,
    help="With FILE[#NAME]: read this file instead of the nearest .kvgate.yaml.",
)
@with_workload(default=f"{BY_LOAD}; with FILE[#NAME] that of an InferenceDeployment, and Startup for others")
@with_wishes
@CALIBRATION_OPTION
@with_model_options
@click.option(
    "-o", "--output", type=click.Choice(["text", "json", "jsonl"]), help="Default: text; with --requests: jsonl."
)
def explain(
    engines: str | None,
    requests: BinaryIO | None,
    output: str | None,
    why: str | None,
    lengths: tuple[int, ...] | None,
    config: Path | None,
    guarantee: str | None,
    calibration: Path | None,
    keep: frozenset[str],
    maximize: str | None,
    **values: Any,
) -> None:
    """Show what one GPU's memory is spent on, what the KV cache gets, and whether the guarantee fits.

    With FILE[#NAME] it is about the engines in a manifest, or those with that name (NAMESPACE/NAME where several have it); --gpu,
    --vllm-version and --model-config are for what the manifest does not state.

    With --requests, every line of the file is a request, and one line of JSON answers it, in the same order. The answer to a line that
    is not a request says in `error` what is wrong; it has the id of the request where that can be read. A model_config may hold
    Infinity, -Infinity and NaN, as Python reads them. The answer writes them as texts, and also ids that few programs can read: a
    number of 5,000 digits, 1e999, half of a surrogate pair.

    The first line says which answer decides. A load that is typed decides whether the engine holds it: by --guarantee, by the options of
    a workload, or by --max-model-len and --max-num-seqs together. Where none is typed, the start alone decides, and so it does for
    --max-model-len auto, unless a workload is given. In a line of --requests only the keys guarantee and workload state a load.

    What does not fit is followed by the changes with which it would, alone or together, the ones that cost you least first; --keep says
    what must stay.
    """
    options = ModelOptions.taken_from(values)
    given = with_users({key: value for key, value in values.items() if value is not None})
    if engines is not None and requests is None:
        from kvgate.cli.explain.engines import explain_engines

        wishes = {name: value for name, value in (("keep", keep), ("maximize", maximize)) if value}
        about = _check_options(
            {**given, **wishes}, options, calibration=calibration, config=config, guarantee=guarantee
        )
        with _usage_errors():
            text, code = explain_engines(engines, about, output or "text", why=why, lengths=lengths)
        show(text)
        sys.exit(code)
    if config is not None:
        raise click.UsageError("--config is about the engines in a manifest; name it: kvgate explain FILE[#NAME]")
    with _usage_errors(BadInput):
        starts, locked = read_calibration(calibration), locked_models(options.lock, facts=options.facts)
    if requests is not None:
        from kvgate.cli.explain.requests import answers

        is_one_answer = why is not None or lengths is not None or keep or maximize or output in ("text", "json")
        if given or engines or guarantee or is_one_answer or options.fetch:
            raise click.UsageError(
                "--requests takes every setting from its lines and answers in jsonl; leave out the other options"
            )
        show_answers(answers(requests, starts, locked))
        return

    from kvgate.cli.explain.report import explain_flags

    views = {"why": why, "lengths": lengths, "keep": keep, "maximize": maximize}
    with _usage_errors():
        text, code = explain_flags(
            given, options, output or "text", guarantee=guarantee, starts=starts, place=str(calibration or ""), **views
        )
    show(text)
    sys.exit(code)


@contextmanager
def _usage_errors(kind: type[Exception] = UnusableValue) -> Iterator[None]:
    """Report what cannot be used as an error of the command line."""
    try:
        yield
    except kind as error:
        raise click.UsageError(str(error)) from None


def _check_options(
    given: dict[str, Any],
    options: ModelOptions,
    *,
    calibration: Path | None,
    config: Path | None,
    guarantee: str | None,
) -> CheckOptions:
    """Return the facts that engines of a manifest may lack. Raises click.UsageError for settings that the manifest states."""
    from kvgate.cli.check.given_facts import CheckOptions

    if others := [f"--{name.replace('_', '-')}" for name in given if name not in _OF_ENGINES]:
        raise click.UsageError(f"FILE states the settings of its engines; leave out {', '.join(others)}")
    return CheckOptions(
        accelerator=given.get("gpu"),
        vllm_version=given.get("vllm_version"),
        model_config=Path(given["model_config"].name) if "model_config" in given else None,
        calibration=calibration,
        config=config,
        guarantee=guarantee,
        **asdict(options),
    )
