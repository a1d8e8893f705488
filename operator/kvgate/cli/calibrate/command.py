"""`kvgate calibrate`: write the starts in logs and `/metrics` files for `--calibration`, `.kvgate.yaml` and the cluster's ConfigMap."""

import sys
from pathlib import Path
from typing import Any

import click

from kvgate.budget import Calibration, ObservedStart
from kvgate.budget.units import format_gib
from kvgate.calibration.keeping import with_start
from kvgate.calibration.observed import unused_texts
from kvgate.calibration.records import MAX_TEXT_BYTES, Records, read_records, write_records
from kvgate.cli.calibrate.observed_files import UnusableFile, observed_in
from kvgate.cli.exits import Exit
from kvgate.cli.help import Command
from kvgate.cli.shared_options import given_settings, with_settings
from kvgate.cli.terminal import show, show_error
from kvgate.documents.bounded_files import read_text

_FILE = click.Path(dir_okay=False, allow_dash=False, path_type=Path)


@click.command(cls=Command)
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", type=_FILE)
@click.option(
    "--into", metavar="FILE", type=_FILE, help="Add the starts to FILE, and create it if it is missing; else print."
)
@with_settings()
def calibrate(logs: tuple[Path, ...], into: Path | None, **settings: Any) -> None:
    """Remember what vLLM's starts really left for the KV cache, so that the next verdict for the same setting is exact.

    LOG is a start-up log, or the text of an engine's /metrics. A log holds the arguments of vLLM; options add what it does not hold:
    --gpu always, and for /metrics everything that vLLM was started with.

    Exit code: 0 all starts are remembered, 2 some could not be read.
    """
    records = _known(into)
    given = given_settings(settings)
    starts, failed = records.starts, False
    for path in logs:
        try:
            start, remark = observed_in(path, given)
        except UnusableFile as error:
            show_error(f"{path}: {error}")
            failed = True
            continue
        kept = with_start(starts, start)
        key, predicted = start.key, start.predicted
        observed = (
            f"{key.architecture} on {key.accelerator}, vLLM {key.vllm_version}: {format_gib(start.available_kv_cache_bytes)} for the "
            f"KV cache, {format_gib(predicted.expected)} predicted ({format_gib(predicted.low)} to {format_gib(predicted.high)})"
        )
        known = "" if kept is not starts else "known already"
        show_error(f"{path}: {'; '.join(filter(None, (observed, remark, known)))}")
        starts = kept
    for text in unused_texts(Calibration(starts=starts)):
        show_error(text)
    if into is None:
        show(write_records(starts).rstrip("\n"))
    elif starts is not records.starts:
        _write(into, starts)
    sys.exit(Exit.UNDECIDED if failed else Exit.FITS)


def _known(into: Path | None) -> Records:
    """Read the starts that the file holds already; a file that cannot be read completely is never replaced."""
    if into is None or not into.exists():
        return Records()
    try:
        records = read_records(read_text(into, max_bytes=MAX_TEXT_BYTES, inside=None))
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--into {into} cannot be read: {error}") from None
    if records.problems:
        raise click.UsageError(f"--into {into}: {'; '.join(records.problems)}; correct these lines or remove them")
    return records


def _write(into: Path, starts: tuple[ObservedStart, ...]) -> None:
    """Write a new file beside the old one, then rename it: no reader meets half a file."""
    fresh = into.with_name(f".{into.name}.new")
    try:
        fresh.unlink(missing_ok=True)  # left by a run that was killed; it may be a link, so it is never written to
        with fresh.open("x", encoding="utf-8") as file:
            file.write(write_records(starts))
        fresh.replace(into)
    except OSError as error:
        raise click.UsageError(f"--into {into} cannot be written: {error.strerror or error}") from None
