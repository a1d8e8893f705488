"""The end of a command: its exit code, input that makes the run impossible, and failures that are no findings."""

from collections.abc import Iterator, Sequence
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
    """Exit codes for pipelines, the same for every command."""

    FITS = 0
    FINDINGS = 1
    UNDECIDED = 2

    @property
    def meaning(self) -> str:
        """Meaning of the code, for the reference."""
        return _MEANINGS[self]


_MEANINGS = {
    Exit.FITS: "what could be judged starts, or is admitted; warnings do not change this unless --fail-on says so. "
    "`why`: a cause was found, or nothing is wrong",
    Exit.FINDINGS: "at least one object would be refused, one engine does not start, or a file that may hold one cannot be read. "
    "`why`: it failed, and the cause is not in what was given",
    Exit.UNDECIDED: "there are engines to judge and none could be (unknown model …), there is no engine, or the command was misused",
}


FAIL_ON = r"^(error|warning|unknown|skipped)( ?, ?(error|warning|unknown|skipped)){0,5}$"


def exit_of(verdict: Verdict, *, is_refusal: bool) -> Exit:
    """Return the exit code for the verdict of the answer that decides. Facts that are assumed or contradictory refuse nothing."""
    if is_refusal:
        return Exit.FINDINGS
    return Exit.UNDECIDED if verdict is Verdict.UNKNOWN else Exit.FITS


class BadInput(ValueError):
    """A configuration, baseline or config.json that cannot be used: one sentence, or findings in their places."""

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
