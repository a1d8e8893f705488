"""The starts of `--calibration`: what is wrong with the file is an error, what is in it and not used is told."""

from pathlib import Path

from kvgate.budget.calibration import NOTHING_OBSERVED, Calibration
from kvgate.cli.exits import BadInput
from kvgate.cli.terminal import show_error
from kvgate.documents.bounded_files import read_text


def read_calibration(path: Path | None, *, inside: Path | None = None) -> Calibration:
    """`inside`: the folder that the path must not lead out of. Raises BadInput with every line that cannot be read."""
    if path is None:
        return NOTHING_OBSERVED
    from kvgate.calibration.records import MAX_TEXT_BYTES, read_records, unused_texts

    try:
        records = read_records(read_text(path, max_bytes=MAX_TEXT_BYTES, inside=inside))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is no text: {error}; `kvgate calibrate` writes such files") from None
    if records.problems:
        told = "; ".join(records.problems)
        raise BadInput(f"{path}: {told}; write it anew with `kvgate calibrate`, or take the lines out")
    calibration = records.calibration
    for text in unused_texts(calibration):
        show_error(f"{path}: {text}")
    return calibration
