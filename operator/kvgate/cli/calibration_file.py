"""The starts of `--calibration`: what is wrong with the file is an error, what is in it and not used is told."""

from pathlib import Path

import click

from kvgate.budget.calibration import NOTHING_OBSERVED, Calibration
from kvgate.cli.bad_input import BadInput


def read_calibration(path: Path | None) -> Calibration:
    """Raises BadInput with every line that cannot be read."""
    if path is None:
        return NOTHING_OBSERVED
    from kvgate.calibration import read_records, unused_texts

    try:
        records = read_records(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is no text: {error}; `kvgate calibrate` writes such files") from None
    if records.problems:
        told = "; ".join(records.problems)
        raise BadInput(f"{path}: {told}; write it anew with `kvgate calibrate`, or take the lines out")
    calibration = records.calibration
    for text in unused_texts(calibration):
        click.echo(f"{path}: {text}", err=True)
    return calibration
