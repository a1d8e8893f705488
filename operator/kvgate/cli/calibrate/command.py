"""`kvgate calibrate`: write the starts in logs and `/metrics` files for `--calibration`, `.kvgate.yaml` and the cluster's ConfigMap."""

import re
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from kvgate.budget import Calibration, CalibrationScope
from kvgate.budget.ground.units import format_gib
from kvgate.calibration.keeping import is_frozen, with_start
from kvgate.calibration.observed import unused_texts
from kvgate.calibration.records import EVERYTHING, Records, write_records
from kvgate.cli.calibrate.learnt import learnt, lines_of
from kvgate.cli.calibrate.observed_files import UnusableFile, observed_in
from kvgate.cli.calibrate.places import (
    DEFAULT_PLACE,
    MAX_LIST_BYTES,
    Starts,
    in_cluster,
    in_file,
    of_text,
    records_in,
)
from kvgate.cli.exits import Exit, replace_file
from kvgate.cli.help import Group
from kvgate.cli.shared_options import given_settings, with_settings
from kvgate.cli.terminal import show, show_error, show_lines
from kvgate.documents.bounded_files import read_text
from kvgate.text.inert import inert_json

_FILE = click.Path(dir_okay=False, allow_dash=False, path_type=Path)


@click.group(cls=Group)
def calibrate() -> None:
    """Remember what vLLM's starts really left for the KV cache, show what was learnt, and decide about it.

    `kvgate calibrate LOG...` is `kvgate calibrate logs LOG...`. The other commands work on a file, or on the cluster through kubectl.
    """


calibrate.default = "logs"


@calibrate.command("logs", short_help="Read starts from logs; the word may be left out.")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", type=_FILE)
@click.option(
    "--into", metavar="FILE", type=_FILE, help="Add the starts to FILE, and create it if it is missing; else print."
)
@with_settings()
def of_logs(logs: tuple[Path, ...], into: Path | None, **settings: Any) -> None:
    """Remember what vLLM's starts really left for the KV cache, so that the next verdict for the same setting is exact.

    LOG is a start-up log, or the text of an engine's /metrics. A log holds the arguments of vLLM; options add what it does not hold:
    --gpu always, and for /metrics everything that vLLM was started with.
    """
    records = records_in(into, "--into") if into else Records()
    given = _named(given_settings(settings))
    starts, failed = records.starts, False
    for path in logs:
        try:
            start, remark = observed_in(path, given)
        except UnusableFile as error:
            show_error(f"{path}: {error}")
            failed = True
            continue
        kept = starts if is_frozen(start, records.frozen) else with_start(starts, start)
        key, predicted = start.key, start.predicted
        observed = (
            f"{key.architecture} on {key.accelerator}, vLLM {key.vllm_version}: {format_gib(start.available_kv_cache_bytes)} for the "
            f"KV cache, {format_gib(predicted.expected)} predicted ({format_gib(predicted.low)} to {format_gib(predicted.high)})"
        )
        explains = ", ".join(f"{name} {value}" for name, value in start.circumstances)
        why = f"explained by {explains}" if explains else ""
        known = "" if kept is not starts else "frozen" if is_frozen(start, records.frozen) else "known already"
        show_error(f"{path}: {'; '.join(filter(None, (observed, why, remark, known)))}")
        starts = kept
    for text in unused_texts(Calibration(starts=starts)):
        show_error(text)
    if into is None:
        show(write_records(starts).rstrip("\n"))
    elif starts is not records.starts:
        text = write_records(starts, frozen=records.frozen, highest=records.highest if records.frozen else 0)
        replace_file(into, text, "--into")
    sys.exit(Exit.UNDECIDED if failed else Exit.FITS)


def _named(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with the catalogue's names for the model, and for the GPU where it is one: those of the next start."""
    from kvgate.checkpoint.published import NO_MODELS
    from kvgate.cli.exits import BadInput
    from kvgate.cli.gpu_names import read_gpus
    from kvgate.cli.model_names import with_named_model
    from kvgate.vllm.values import UnusableValue

    try:
        named = [name for choice in read_gpus(given.get("gpu") or "") for name in choice.names]
        gpu = {"gpu": named[0]} if len(named) == 1 else {}
        return with_named_model({**given, **gpu}, NO_MODELS)[0]
    except (BadInput, UnusableValue) as error:
        raise click.UsageError(str(error)) from None


_PLACE = click.option(
    "--place",
    metavar="NAMESPACE/NAME",
    default=DEFAULT_PLACE,
    show_default=True,
    help="ConfigMaps of the installation, as the controller names them.",
)
_CONTEXT = click.option("--context", metavar="NAME", default="", help="Context of kubectl; else the current one.")
_RECORDS = click.option(
    "--file", "path", metavar="FILE", type=_FILE, help="Work on this file instead of on the cluster."
)


@calibrate.command("show", short_help="Show what was learnt, from which starts, and why.")
@click.argument("source", required=False, metavar="[FILE|-]", type=click.Path(dir_okay=False, allow_dash=True))
@_PLACE
@_CONTEXT
@click.option("--namespace", metavar="NAME", help="Show the starts of this namespace alone.")
@click.option("--setting", metavar="ID", help="Show this setting alone.")
@click.option(
    "--scope",
    type=click.Choice([scope.value for scope in CalibrationScope]),
    default=CalibrationScope.NAMESPACE.value,
    show_default=True,
    help="The scope that the controller has; in a file every start counts for every object.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format.")
def show_learnt(
    source: str | None, place: str, context: str, namespace: str | None, setting: str | None, scope: str, output: str
) -> None:  # fmt: skip
    """Show what was learnt: for each setting its starts, whether each is used and why, and what they do to a prediction.

    Without FILE the ConfigMaps of the cluster are read through kubectl. `-` reads standard input: a file of starts, or what `kubectl get
    configmap -o json` lists.
    """
    try:
        if source == "-":
            text = sys.stdin.buffer.read(MAX_LIST_BYTES).decode(errors="replace")
        else:
            text = read_text(Path(source), max_bytes=MAX_LIST_BYTES, inside=None) if source is not None else ""
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{source} cannot be read: {error}") from None
    places = in_cluster(place, context, scope) if source is None else of_text(text, scope)
    settings = learnt(places, namespace=namespace, setting=setting)
    if output == "json":
        show(inert_json({"frozen": sorted(places.store.frozen), "settings": settings}, indent=2))
    else:
        show_lines(*lines_of(settings, places.store.frozen))
    for problem in places.problems:
        show_error(problem)
    sys.exit(Exit.UNDECIDED if places.problems else Exit.FITS)


def _on_starts(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say whose starts are meant, and call the command with these starts."""

    @wraps(command)
    def called(path: Path | None, place: str, context: str, **arguments: Any) -> None:
        command(in_file(path) if path else in_cluster(place, context, CalibrationScope.NAMESPACE), **arguments)

    return _RECORDS(_PLACE(_CONTEXT(called)))


@calibrate.command("pin", short_help="Let predictions follow a start, whatever others report.")
@click.argument("numbers", nargs=-1, required=True, metavar="START...", type=click.IntRange(0))
@click.option("--undo", is_flag=True, help="Let the start count like any other again.")
@_on_starts
def pin(starts: Starts, numbers: tuple[int, ...], *, undo: bool) -> None:
    """Pin starts: predictions of the same setting follow them, and they are never removed to make room.

    START is the number that `kvgate calibrate show` lists.
    """
    starts.mark(numbers, is_pinned=not undo, **({} if undo else {"is_dropped": False}))


@calibrate.command("drop", short_help="Let a start count for nothing, and do not learn it again.")
@click.argument("numbers", nargs=-1, required=True, metavar="START...", type=click.IntRange(0))
@click.option("--undo", is_flag=True, help="Let the start count again.")
@_on_starts
def drop(starts: Starts, numbers: tuple[int, ...], *, undo: bool) -> None:
    """Drop starts: they count for nothing, and nothing like them is learnt again in their namespace.

    START is the number that `kvgate calibrate show` lists.
    """
    starts.mark(numbers, is_dropped=not undo, **({} if undo else {"is_pinned": False}))


def _frozen_name(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    if name != EVERYTHING and not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}(/[0-9a-f]{10})?", name):
        raise click.BadParameter(
            f"{name!r} is not a namespace, NAMESPACE/SETTING or '*'; `kvgate calibrate show` lists the settings"
        )
    return name


_FROZEN_NAME = click.argument("name", metavar="NAMESPACE[/SETTING]|'*'", callback=_frozen_name)


@calibrate.command("freeze", short_help="Learn nothing new: of a namespace, of a setting, or at all.")
@_FROZEN_NAME
@_on_starts
def freeze(starts: Starts, name: str) -> None:
    """Freeze what was learnt: the controller stores nothing new of this namespace, of this setting in it, or with '*' of anything."""
    starts.freeze(name, is_thawed=False)


@calibrate.command("thaw", short_help="End a freeze.")
@_FROZEN_NAME
@_on_starts
def thaw(starts: Starts, name: str) -> None:
    """End a freeze: give the same name as to `kvgate calibrate freeze`."""
    starts.freeze(name, is_thawed=True)
