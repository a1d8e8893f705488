"""The end of a command: its exit code, input that makes the run impossible, and failures that are no findings."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from errno import ENOSPC
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING

import click

from kvgate.budget import Verdict
from kvgate.cli.terminal import show_error
from kvgate.text.inert import inert_line

if TYPE_CHECKING:
    from kvgate.cli.reports.placed import Placed


class Exit(IntEnum):
    """Exit codes for pipelines; EXITS says what each means for a command."""

    FITS = 0
    FINDINGS = 1
    UNDECIDED = 2


_BY_DOUBT = "or does not by facts about the model that are assumed or contradict each other"
_LISTED = {Exit.FITS: "something is listed", Exit.UNDECIDED: "nothing matches FILTER"}
_KEPT = {Exit.FITS: "it is kept", Exit.UNDECIDED: "there is nothing of this name, or it cannot be written"}
EXITS: Mapping[str, Mapping[Exit, str]] = {
    "check": {
        Exit.FITS: "no engine that was judged is refused; warnings and Unknown count only with --fail-on",
        Exit.FINDINGS: "an engine is refused, a file that may hold one cannot be read, or --fail-on makes it so",
        Exit.UNDECIDED: "none of the engines could be judged, or there is none (0 with --nothing-is-fine)",
    },
    "why": {
        Exit.FITS: "a cause was found, or nothing is wrong",
        Exit.FINDINGS: "it failed, and the cause is not in what was given",
        Exit.UNDECIDED: "nothing can be judged, or not without a GPU that nobody names",
    },
    "diff": {
        Exit.FITS: "nothing got worse",
        Exit.FINDINGS: "an engine that started before, or is new, would not start",
        Exit.UNDECIDED: "no engine could be judged",
    },
    "explain": {
        Exit.FITS: f"fits or may not fit, {_BY_DOUBT}; with --requests: every line is answered",
        Exit.FINDINGS: "does not fit",
        Exit.UNDECIDED: "it could not be decided (Unknown)",
    },
    "size": {
        Exit.FITS: f"something fits or may not fit, {_BY_DOUBT}",
        Exit.FINDINGS: "nothing fits",
        Exit.UNDECIDED: "it could not be decided (Unknown)",
    },
    "sweep": {
        Exit.FITS: f"drawn; with --at: that point fits or may not fit, {_BY_DOUBT}",
        Exit.FINDINGS: "the point of --at does not fit",
        Exit.UNDECIDED: "it could not be decided (Unknown)",
    },
    "calibrate": {Exit.FITS: "all starts are remembered", Exit.UNDECIDED: "some could not be read"},
    "calibrate logs": {Exit.FITS: "all starts are remembered", Exit.UNDECIDED: "some could not be read"},
    "calibrate show": {Exit.FITS: "all was read", Exit.UNDECIDED: "some lines could not be read"},
    "calibrate pin": _KEPT,
    "calibrate drop": _KEPT,
    "calibrate freeze": _KEPT,
    "calibrate thaw": _KEPT,
    "gpus": _LISTED,
    "models": _LISTED,
    "models list": _LISTED,
    "models fetch": {Exit.FITS: "all were fetched", Exit.UNDECIDED: "one could not be"},
    "models lock": {
        Exit.FITS: "the file is complete",
        Exit.FINDINGS: "with --check: it is not",
        Exit.UNDECIDED: "a model could not be fetched",
    },
    "rules": _LISTED,
}
"""Path of a command → its exit codes; 2 is also that of a command that was misused."""
_STOPPED = "SIGTERM or SIGINT stopped it, and what was under way is done"
_NO_PACKAGE = "a package of the extra `operator` is missing"
PROCESS_EXITS: Mapping[str, Mapping[Exit, str]] = {
    "controller": {
        Exit.FITS: _STOPPED,
        Exit.FINDINGS: "there is no kubeconfig, the CRDs are not there, the Lease is lost, the address of the metrics cannot be listened "
        f"on, the thread of the watches ended by itself, or {_NO_PACKAGE}",
    },
    "webhook": {
        Exit.FITS: _STOPPED,
        Exit.FINDINGS: _NO_PACKAGE,
        Exit.UNDECIDED: "the certificate cannot be used, or an address cannot be listened on",
    },
}
"""The same of the operator's processes, which their kubelet starts again whatever the code is."""


FAIL_ON = r"^(error|warning|unknown|skipped)( ?, ?(error|warning|unknown|skipped)){0,5}$"


def exit_of(verdict: Verdict, *, is_refusal: bool) -> Exit:
    """Return the exit code for the verdict of the answer that decides. Facts that are assumed or contradictory refuse nothing."""
    if is_refusal:
        return Exit.FINDINGS
    return Exit.UNDECIDED if verdict is Verdict.UNKNOWN else Exit.FITS


class BadInput(ValueError):
    """An input that cannot be used: the message names everything that is wrong; `problems` has findings in files, with their places."""

    def __init__(self, message: str = "", problems: Sequence["Placed"] = ()) -> None:
        super().__init__(message)
        self.problems = problems


def read_given(path: Path, *, max_bytes: int, inside: Path | None, kind: str = "a text file", remedy: str = "") -> str:
    """Return the text of a file that the user names; `inside` is a folder that the path must not lead out of. Raises BadInput."""
    from kvgate.documents.bounded_files import read_text

    try:
        return read_text(path, max_bytes=max_bytes, inside=inside)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not {kind}: {error}{remedy}") from None


def replace_file(path: Path, text: str, option: str = "") -> None:
    """Write a new file beside the old one, then rename it: no reader meets half a file. Raises click.UsageError."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)  # left by a run that was killed; it may be a link, so it is never written to
        with fresh.open("x", encoding="utf-8") as file:
            file.write(text)
        fresh.replace(path)
    except OSError as error:
        raise click.UsageError(f"{option} {path} cannot be written: {error.strerror or error}".lstrip()) from None


@contextmanager
def inert_usage_errors() -> Iterator[None]:
    """Make click's own messages inert: a file or a pull request may have written a part of them."""
    try:
        yield
    except click.ClickException as error:
        shown = "\n".join(map(inert_line, (error.message or "").split("\n")))
        error.message = shown  # type: ignore[misc]  # it is what click prints
        raise


@contextmanager
def failures_as_exits(context: click.Context) -> Iterator[None]:
    """End with a code of its own after Ctrl-C and on a full disk: neither is a finding, whose exit code is 1."""
    try:
        yield
    except KeyboardInterrupt:
        show_error("interrupted")
        context.exit(128 + SIGINT)
    except OSError as error:
        if error.errno != ENOSPC:
            raise
        show_error(f"the output cannot be written: {error.strerror}")
        context.exit(Exit.UNDECIDED)
