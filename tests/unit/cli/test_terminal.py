"""What a terminal gets: colours where they are wanted, tables that keep its width; and what a pipe gets."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from functools import cache

import pytest

from kvgate.cli.terminal import Styled, colour_of, folded, folded_command, table

pytestmark = pytest.mark.slow

SIZE = ("size", "--model", "Qwen/Qwen3-8B", "--gpus", "L4,H100-SXM-80GB", "--vllm-version", "0.33.0")
WITHOUT = ("NO_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES", "TERM")


def on_a_terminal(*arguments: str, columns: int = 120, **variables: str) -> str:
    """What a terminal of so many columns shows."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in WITHOUT}
    environment |= {"TERM": "xterm", **variables}
    command = [sys.executable, "-m", "kvgate", *arguments]
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # Linux reports the end of the other side as an error
                break
            if not part:
                break
            shown += part
        process.wait()
    os.close(leader)
    return shown.decode().replace("\r\n", "\n")


@cache
def piped(*arguments: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in WITHOUT} | variables
    return subprocess.run(
        [sys.executable, "-m", "kvgate", *arguments], env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize(
    ("environment", "answer"),
    [
        ({}, None),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, None),
        ({"CLICOLOR_FORCE": "1"}, True),
        ({"CLICOLOR_FORCE": "0"}, None),
        ({"NO_COLOR": "1", "CLICOLOR_FORCE": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"TERM": "dumb", "CLICOLOR_FORCE": "1"}, True),
        ({"TERM": "xterm-256color"}, None),
    ],
)
def test_the_environment_decides_about_colours(environment: dict[str, str], answer: bool | None) -> None:  # noqa: FBT001
    assert colour_of(environment) is answer


@pytest.mark.parametrize(
    ("variables", "is_coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"CLICOLOR_FORCE": "1"}, True)],
)
def test_a_terminal_has_colours_unless_somebody_does_not_want_them(
    variables: dict[str, str], *, is_coloured: bool
) -> None:
    shown = on_a_terminal(*SIZE, **variables)
    assert "Fits" in shown
    assert ("\x1b[32m" in shown) is is_coloured


def test_a_dumb_terminal_gets_no_signs_for_the_cursor() -> None:
    shown = on_a_terminal(*SIZE, TERM="dumb")
    assert "\x1b" not in shown
    assert "accelerators" not in shown.partition("Qwen")[0]


@pytest.mark.parametrize(("variables", "is_coloured"), [({}, False), ({"CLICOLOR_FORCE": "1"}, True)])
def test_a_pipe_has_colours_only_where_they_are_forced(variables: dict[str, str], *, is_coloured: bool) -> None:
    assert ("\x1b[" in piped(*SIZE, **variables)) is is_coloured


def test_programs_get_no_colours_even_so() -> None:
    assert "\x1b" not in piped(*SIZE, "-o", "json", CLICOLOR_FORCE="1")


@pytest.mark.parametrize("columns", [60, 200])
@pytest.mark.parametrize("arguments", [("gpus", "l4"), ("models", "qwen3-8b"), ("rules", "pinned")])
def test_tables_keep_the_width_of_the_terminal(arguments: tuple[str, ...], columns: int) -> None:
    shown = on_a_terminal(*arguments, columns=columns)
    assert [line for line in shown.splitlines() if len(line) > columns] == []
    assert sorted(shown.split()) == sorted(piped(*arguments).split()), "nothing is cut"


@pytest.mark.parametrize("command", ["sweep", "explain"])
def test_every_line_of_a_sweep_and_of_a_ledger_keeps_it(command: str) -> None:
    asked = (command, "--model", "Qwen/Qwen3-8B", "--gpu", "H100-SXM-80GB", "--vllm-version", "0.33.0")
    shown = on_a_terminal(*asked, columns=60, NO_COLOR="1").rpartition("\x1b[K")[2]
    words = set(piped(*asked).split())
    assert set(shown.split()) == words
    table = shown.partition("\n\n")[2]
    assert [line for line in table.splitlines() if len(line) > 60] == []


def test_the_table_of_size_keeps_it_too() -> None:
    rows = on_a_terminal(*SIZE, columns=60, NO_COLOR="1").partition("LONGEST\n")[2].partition("\n\n")[0].splitlines()
    assert rows
    assert max(map(len, rows)) <= 60
    assert [row.split()[0] for row in rows[::2]] == [str(number) for number in range(1, len(rows) // 2 + 1)]


def test_a_pipe_gets_one_line_a_row_whatever_its_width() -> None:
    lines = piped("rules", "oversub", COLUMNS="60").splitlines()
    assert lines[1].startswith("Oversubscribed  ")
    assert len(lines[1]) > 200


def test_a_finding_is_not_cut(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "pod.yaml")  # noqa: PTH118 - a text for the command line
    from support.command_line import MISTAKEN_POD

    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(MISTAKEN_POD)
    wide, narrow = (on_a_terminal("check", path, columns=columns, NO_COLOR="1") for columns in (200, 60))
    assert wide.split() == narrow.split()


def test_a_coloured_line_goes_on_below_and_a_report_in_a_file_does_not(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "report.txt")  # noqa: PTH118 - a text for the command line
    sample = ("check", "deploy/samples/too-long.yaml")
    on_a_terminal(*sample, "-o", f"text={path}", columns=60)
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        written = file.read()
    shown = on_a_terminal(*sample, columns=60, NO_COLOR="1").rpartition("\x1b[K")[2]
    assert max(map(len, written.splitlines())) > 200
    assert max(map(len, shown.splitlines())) <= 60
    assert shown.split() == written.split()


def test_colours_stay_with_their_words_where_a_line_is_folded() -> None:
    line = ("file.yaml:1: ", Styled(text="does not fit", colour="red"), ": too long")
    red = {"colour": "red"}
    assert list(folded([line, "  a text of one part"], 18)) == [
        ["file.yaml:1: ", Styled(text="does", **red), ""],
        ["      ", "", Styled(text="not fit", **red), ": too"],
        ["      ", "", Styled(text="", **red), "long"],
        "  a text of one",
        "        part",
    ]


@pytest.mark.parametrize(
    ("width", "line", "rows"),
    [
        (None, "  serve a --b 1 --c 2", ["  serve a --b 1 --c 2"]),
        (21, "  serve a --b 1 --c 2", ["  serve a --b 1 --c \\", "        2"]),
        (16, "  serve a --b 1 --c 2", ["  serve a --b \\", "        1 --c \\", "        2"]),
        (16, "  serve 'a b' -b 1", ["  serve 'a b' \\", "        -b 1"]),
        (16, "  serve 'a b -b 1 --c", ["  serve 'a b -b 1 --c"]),
        (16, "  serve 'a b c d e f' 1", ["  serve \\", "        'a b c d e f' \\", "        1"]),
    ],
)
def test_a_command_that_is_folded_can_be_pasted(width: int | None, line: str, rows: list[str]) -> None:
    assert list(folded_command(line, width)) == rows


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (None, ["NAME  MEMORY  SAYS", "one       10  a b c d", "two      200  e"]),
        (20, ["NAME  MEMORY", "      SAYS", "one       10", "      a b c d", "two      200", "      e"]),
        (12, ["NAME  MEMORY", "      SAYS", "one       10", "      a b c", "      d", "two      200", "      e"]),
    ],
)  # fmt: skip
def test_a_row_goes_on_below_where_the_width_ends(width: int | None, lines: list[str]) -> None:
    rows = [("NAME", "MEMORY", "SAYS"), ("one", "10", "a b c d"), ("two", "200", "e")]
    assert list(table(rows, right=(1,), width=width)) == lines
