"""All that the command line prints: nothing else in `cli` writes to standard output or standard error.

Text for people is made of lines, and each line is made inert: a name cannot colour a terminal, begin a line of its own, or be
a command that a log of CI obeys. Only a `Styled` part brings colours.
"""

import re
import sys
from collections.abc import Iterable, Sequence

import click

from kvgate.record import record
from kvgate.text.inert import inert, inert_line

_COLOURS = re.compile(r"\x1b\[[0-9;]{1,20}m")


@record
class Styled:
    """A part of a line in a colour, or bold; click takes both away where the output is no terminal."""

    text: str
    colour: str | None = None
    is_bold: bool = False

    def shown(self, text: str) -> str:
        """The text, which is its own made inert, with the signs that a terminal takes for the colour."""
        return click.style(text, fg=self.colour, bold=self.is_bold or None)


Line = str | Sequence[str | Styled]
"""Text of one line, or its parts."""


def text_of(lines: Iterable[Line]) -> str:
    """The lines, each of them inert whatever its parts hold."""
    return "\n".join(map(_inert, lines))


def _inert(line: Line) -> str:
    """Make a line inert; as long as nothing stands before it, each part may be the beginning of a command."""
    if isinstance(line, str):
        return inert_line(line)
    shown, is_begun = list[str](), False
    for part in line:
        written = part if isinstance(part, str) else part.text
        text = inert(written) if is_begun else inert_line(written)
        is_begun = is_begun or bool(text.strip())
        shown.append(text if isinstance(part, str) else part.shown(text))
    return "".join(shown)


def show(text: str, *, is_error: bool = False) -> None:
    """Print a report, whose writer made the texts of others inert; what it overlooked is made so here."""
    text = _checked(text)
    try:
        click.echo(text, err=is_error)
    except UnicodeEncodeError:  # the terminal's encoding lacks a sign
        encoding = sys.stdout.encoding
        click.echo(text.encode(encoding, errors="backslashreplace").decode(encoding), err=is_error)


def for_file(text: str) -> str:
    """The same, for a file: without colours."""
    return _COLOURS.sub("", _checked(text))


def _checked(text: str) -> str:
    return "\n".join(line if _is_printable(line) else inert(line) for line in text.split("\n"))


def _is_printable(line: str) -> bool:
    return (_COLOURS.sub("", line) if "\x1b" in line else line).isprintable()


def show_lines(*lines: Line, is_error: bool = False) -> None:
    """Print lines for people."""
    show(text_of(lines), is_error=is_error)


def show_error(*lines: Line) -> None:
    """Say on standard error what is wrong or worth knowing beside the report; nothing where there is nothing."""
    if lines:
        show_lines(*lines, is_error=True)


def show_answers(answers: Iterable[str]) -> None:
    """Print JSON Lines as they come; their writer made them inert."""
    for answer in answers:
        sys.stdout.write(answer + "\n")


def is_terminal() -> bool:
    """Somebody looks at standard output."""
    return sys.stdout.isatty()


def show_bytes(content: bytes) -> None:
    """Hand a picture over."""
    sys.stdout.buffer.write(content)
