"""All that the command line prints: nothing else in `cli` writes to standard output or standard error.

Text for people is made of lines, and each line is made inert: a name cannot colour a terminal, begin a line of its own, or be
a command that a log of CI obeys. Only a `Styled` part brings colours.
"""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic

import click
from msgspec import Struct
from msgspec.structs import replace

from kvgate.text.inert import inert, inert_line
from kvgate.text.patterns import pattern

_QUIET_SECONDS, _PROGRESS_SECONDS = 1.0, 0.2
"""Time before the first line of progress, and between two."""
_SHELL_WORDS = pattern(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")
_COLOURS = pattern(r"\x1b\[[0-9;]{1,20}m")


class Styled(Struct, frozen=True, kw_only=True):
    """A part of a line in a colour, or bold; click removes both where the output is no terminal."""

    text: str
    colour: str | None = None
    is_bold: bool = False


Line = str | Sequence[str | Styled]
"""Text of one line, or its parts."""
COLOUR_OF = {
    "Fits": "green", "MayNotFit": "yellow", "DoesNotFit": "red", "Unknown": "yellow",
    "error": "red", "warning": "yellow", "info": "cyan",
}  # fmt: skip


def text_of(lines: Iterable[Line]) -> str:
    """Join the lines; each of them is inert, whatever its parts hold."""
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
        shown.append(text if isinstance(part, str) else click.style(text, fg=part.colour, bold=part.is_bold or None))
    return "".join(shown)


def table(rows: Sequence[Sequence[str]], *, right: Collection[int] = (), width: int | None = None) -> Iterator[str]:
    """Yield one line per row, two spaces between columns; the columns of `right` end where their widest cell ends.

    Where a width is given that the table does not keep, each row goes on below, under the header that goes on in the same way.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # as many columns on each line as fit beside each other
    lines: list[list[int]] = [[]]
    used = 0
    for column, size in enumerate(widths):
        if width is not None and lines[-1] and used + size > width:
            lines.append([])
            used = len(FOLD)
        lines[-1].append(column)
        used += size + 2
    for row in rows:
        for number, columns in enumerate(lines):
            cells = (row[i].rjust(widths[i]) if i in right else row[i].ljust(widths[i]) for i in columns)
            indent = FOLD if number else ""
            yield from _folded(f"{indent}{'  '.join(cells)}".rstrip(), width, FOLD if number else FOLD * 2)


FOLD = "      "
"""Beginning of the further lines of a row."""


def _folded(line: str, width: int | None, indent: str) -> Iterator[str]:
    """Yield the line, broken between words where it is longer than the width."""
    if width is None or len(line) <= width:
        yield line
        return
    from textwrap import wrap

    yield from wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True,
        replace_whitespace=False,
    )  # fmt: skip


def folded(lines: Iterable[Line], width: int | None) -> Iterator[Line]:
    """Yield the lines; those that are longer than the width go on below, a little to the right, with their colours."""
    for line in lines:
        text = line if isinstance(line, str) else "".join(map(_plain, line))
        indent = " " * (len(text) - len(text.lstrip())) + FOLD
        rows = _folded(text, width, indent)
        yield from rows if isinstance(line, str) else _coloured_again(line, text, rows, indent)


def _plain(part: str | Styled) -> str:
    return part if isinstance(part, str) else part.text


def _coloured_again(line: Sequence[str | Styled], text: str, rows: Iterable[str], indent: str) -> Iterator[Line]:
    """Yield the parts of the line that stand in each of its rows."""
    end = 0
    for number, row in enumerate(rows):
        shown = row.removeprefix(indent) if number else row
        start = text.index(shown, end)
        end = start + len(shown)
        parts: list[str | Styled] = [indent] if number else []
        offset = 0
        for part in line:
            cut = _plain(part)[max(start - offset, 0) : max(end - offset, 0)]
            offset += len(_plain(part))
            parts.append(cut if isinstance(part, str) else replace(part, text=cut))
        yield parts


def folded_command(line: str, width: int | None) -> Iterator[str]:
    """Yield a command that a reader copies: the shell reads its rows as one line. They break between words, never inside a quoted one."""
    indent = " " * (len(line) - len(line.lstrip()))
    words = _SHELL_WORDS.findall(line)
    if indent + " ".join(words) != line:  # quotes that do not end: nobody knows where a word does
        yield line
        return
    row = indent + words[0]
    for word in words[1:]:
        if width is not None and len(row) + len(word) + 3 > width:
            yield f"{row} \\"
            row = indent + FOLD + word
        else:
            row = f"{row} {word}"
    yield row


def some_of(names: Iterable[str], *, most: int = 6, count: int | None = None) -> str:
    """Return `a, b and 3 more`: the first of the names, and how many are left of all, or of a count of which these are the beginning."""
    listed = list(names)
    left = (len(listed) if count is None else count) - most
    return ", ".join(listed[:most]) + (f" and {left} more" if left > 0 else "")


def width_of_terminal() -> int | None:
    """Return the columns of the terminal; None where a pipe or a file gets the output, whose lines nothing folds."""
    if not is_terminal():
        return None
    from shutil import get_terminal_size

    return max(get_terminal_size().columns, 40)


def show(text: str, *, is_error: bool = False) -> None:
    """Print a report. Its writer made the texts of others inert; what the writer overlooked is made inert here."""
    text = _checked(text)
    try:
        click.echo(text, err=is_error)
    except UnicodeEncodeError:  # the terminal's encoding lacks a sign
        encoding = sys.stdout.encoding
        click.echo(text.encode(encoding, errors="backslashreplace").decode(encoding), err=is_error)


def for_file(text: str) -> str:
    """Return the report as a file gets it: checked like one that is printed, and without colours."""
    return _COLOURS.sub("", _checked(text))


def _checked(text: str) -> str:
    lines = text.split("\n")
    plain = ((_COLOURS.sub("", line) if "\x1b" in line else line).isprintable() for line in lines)
    return "\n".join(line if is_plain else inert(line) for line, is_plain in zip(lines, plain, strict=True))


def show_lines(*lines: Line, is_error: bool = False) -> None:
    show(text_of(lines), is_error=is_error)


def show_error(*lines: Line) -> None:
    """Print to standard error what is wrong, or worth knowing beside the report; nothing if there are no lines."""
    if lines:
        show_lines(*lines, is_error=True)


def show_answers(answers: Iterable[str]) -> None:
    """Print JSON Lines as they come; their writer made them inert."""
    for answer in answers:
        sys.stdout.write(answer + "\n")


def show_bytes(content: bytes) -> None:
    sys.stdout.buffer.write(content)


def colour_of(environment: Mapping[str, str]) -> bool | None:
    """Return True or False where the environment wants colours or none; None: a terminal gets them, and a pipe or a file does not.

    NO_COLOR (no-color.org) wins over CLICOLOR_FORCE (bixense.com/clicolors); a dumb terminal has no colours.
    """
    if environment.get("NO_COLOR"):
        return False
    if environment.get("CLICOLOR_FORCE", "0") != "0":
        return True
    return False if environment.get("TERM") == "dumb" else None


def is_terminal() -> bool:
    """Return True if standard output is a terminal, where somebody reads it."""
    return sys.stdout.isatty()


def progress_of(what: str) -> Callable[[int, int], None]:
    """Return a function that shows (done, total) of a long search as one line on standard error.

    The line is only on a terminal that can erase it, which happens at the end.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return lambda _done, _total: None

    def show_progress(done: int, total: int) -> None:
        end = "\r\033[K" if done == total else ""
        sys.stderr.write(f"\r{done} of {total} {what}{end}")
        sys.stderr.flush()

    return show_progress


@contextmanager
def progress_of_reading() -> Iterator[Callable[[int], None]]:
    """Give a function that is called with the bytes of each document that was read, and shows their sum on standard error.

    The line is only on a terminal that can erase it, begins after a second, and is erased at the end.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda _: None
        return
    num_bytes, next_time = 0, monotonic() + _QUIET_SECONDS

    def seen(more: int) -> None:
        nonlocal num_bytes, next_time
        num_bytes += more
        if (now := monotonic()) >= next_time:
            next_time = now + _PROGRESS_SECONDS
            sys.stderr.write(f"\rread {num_bytes / 1e6:,.0f} MB\033[K")
            sys.stderr.flush()

    started = next_time
    try:
        yield seen
    finally:
        if next_time != started:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
