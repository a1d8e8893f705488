"""`kvgate explain`: the ledger of one GPU for people, or many what-ifs for programs."""

import sys
from pathlib import Path
from typing import Any, BinaryIO

import click

from kvgate.budget.calibration import Calibration
from kvgate.budget.interval import Verdict
from kvgate.cli.exits import BadInput, Exit
from kvgate.cli.shared_options import CALIBRATION_OPTION, given_settings, with_settings
from kvgate.cli.terminal import show, show_answers
from kvgate.vllm.values import Unusable

DEFAULT_LENGTHS = "default"
"""Word that stands for --paging without lengths."""

_EXITS = {
    Verdict.FITS: Exit.FITS,
    Verdict.MAY_NOT_FIT: Exit.FITS,
    Verdict.DOES_NOT_FIT: Exit.FINDINGS,
    Verdict.UNKNOWN: Exit.UNDECIDED,
}


@click.command()
@with_settings()
@click.option(
    "--requests", type=click.File("rb"), metavar="FILE", help="JSON Lines, one request each; - for standard input."
)
@click.option("--why", metavar="TERM", help="One figure alone, with its formula: weights, request, blocks …")
@click.option(
    "--paging",
    is_flag=False,
    flag_value=DEFAULT_LENGTHS,
    metavar="[LENGTHS]",
    help="Compare static with paged allocation and block sizes, for requests of these lengths: 2048,8k.",
)
@CALIBRATION_OPTION
@click.option(
    "-o", "--output", type=click.Choice(["text", "json", "jsonl"]), help="Default: text, jsonl for --requests."
)
def explain(
    requests: BinaryIO | None,
    output: str | None,
    why: str | None,
    paging: str | None,
    calibration: Path | None,
    **values: Any,
) -> None:
    """Show what one GPU's memory is spent on, what the KV cache gets, and whether one request of max_model_len fits.

    With --requests every line is answered in its place, in JSON that every reader takes: one that is no request with what is wrong as
    error, and with its id where that can be read. A config may hold Infinity, -Infinity and NaN, as Python reads them. These, and ids
    that few readers can hold (5,000 digits, 1e999, half of a surrogate pair), are texts in the answer.

    Exit code: 0 fits or may not fit, 1 does not fit, 2 could not be decided. With --requests: 0 once every line is answered.
    """
    given = {key: value for key, value in values.items() if value is not None}
    starts = _calibration(calibration)
    if requests is not None:
        _answer_all(requests, output, {**given, **_asked(why=why, paging=paging)}, starts)
    else:
        _answer_one(given, output or "text", _asked(why=why, paging=paging), starts)


def _asked(**views: str | None) -> dict[str, str]:
    return {name: text for name, text in views.items() if text is not None}


def _calibration(path: Path | None) -> Calibration:
    from kvgate.cli.calibrate.calibration_file import read_calibration

    try:
        return read_calibration(path)
    except BadInput as error:
        raise click.UsageError(str(error)) from None


def _answer_all(requests: BinaryIO, output: str | None, given: dict[str, Any], starts: Calibration) -> None:
    from kvgate.cli.explain.requests import answers

    if given or output in ("text", "json"):
        raise click.UsageError(
            "--requests takes every setting from its lines and answers in jsonl; leave out the other options"
        )
    show_answers(answers(requests, starts))


def _answer_one(given: dict[str, Any], output: str, asked: dict[str, str], starts: Calibration) -> None:
    from kvgate.cli.explain.answer import answer
    from kvgate.judge.what_if import assess_request

    try:
        assessment = assess_request(given_settings(given), calibration=starts)
        text = answer(assessment, asked, output)
    except Unusable as error:
        raise click.UsageError(str(error)) from None
    show(text)
    sys.exit(_EXITS[assessment.verdict])
