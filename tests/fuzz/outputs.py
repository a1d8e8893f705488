"""Every form of a report, read as the program reads it that it is written for."""

import json
import re
from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from xml.etree import ElementTree as ET

from kvgate.cli.check.command import FORMATS
from kvgate.cli.reports.report import Report, counting_results
from kvgate.cli.reports.wording import notes

ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
"""Characters that steer a terminal, turn the order of letters around, end a line, or are no text."""
OWN_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""What the text has itself; whoever prints it takes them out where nobody sees colours. `mutation.HOSTILE` has another."""
FORGED_COLOUR = "\x1b[31mred"
COMMAND = re.compile(r"\s*::|##\[")
"""What GitHub's runner takes for a command at the beginning of a line."""


def _json_text(text: str) -> None:
    json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


PARSERS: dict[str, Callable[[str], object]] = {
    "json": _json_text,
    "sarif": _json_text,
    "gitlab": _json_text,
    "junit": ET.fromstring,
}


def unreadable_outputs(report: Report) -> Iterator[str]:
    for name, writer in FORMATS.items():
        text = resolve_name(writer)(report)
        if FORGED_COLOUR in text:
            yield f"{name} holds somebody else's colour"
        text = OWN_COLOURS.sub("", text) if name == "text" else text
        if active := ACTIVE.search(text):
            yield f"{name} holds {active[0]!r}"
        try:
            PARSERS.get(name, str)(text)
        except (ValueError, ET.ParseError) as error:
            yield f"{name} cannot be parsed: {error}"
        yield from _commands(name, text, report)


def _commands(name: str, text: str, report: Report) -> Iterator[str]:
    """A job prints any of them: only ours may be commands."""
    given = sum(bool(COMMAND.match(line)) for line in text.splitlines())
    expected = len([*counting_results(report), *notes(report)]) if name == "github" else 0
    if given > expected:
        yield f"{name} holds {given} commands for GitHub, {expected} of them its own"
