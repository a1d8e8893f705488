"""Names of reasoning and tool-call parsers by release: vLLM looks them up when its API server starts, and refuses others.

vLLM 0.6 to 0.33: `validate_api_server_args` and, for the tool-call parser that is missing, `validate_parsed_serve_args`.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from kvgate.budget import parse_patch
from kvgate.findings.finding import Remedy, any_one, remedy_of
from kvgate.rules.command_line import PARSER_UNKNOWN
from kvgate.vllm.arguments import Argument, GivenOption, shown
from kvgate.vllm.options import Patch, read_around, releases_read
from kvgate.vllm.parser_problems import ArgumentProblem

_TABLE = Path(__file__).parent / "data" / "tool_parsers.csv"
_PLUGINS = ("tool_parser_plugin", "reasoning_parser_plugin")
"""Options that name a file with further parsers, of either kind."""
_SERVERLESS = ("headless", "grpc")
"""Switches with which no API server starts, which would look the names up."""


class ParserName(Struct, frozen=True, kw_only=True):
    """One name of a parser, over all releases."""

    since: str
    removed_in: str
    """The first release that was read after the parser went; empty where the newest one has it."""

    def may_be_in(self, release: Patch) -> bool:
        """Return whether a release may have the parser. Between two releases that were read, it may if either of them has it."""
        return any(parse_patch(self.since) <= read and not self.is_gone_in(read) for read in read_around(release))

    def is_gone_in(self, release: Patch) -> bool:
        return bool(self.removed_in) and release >= parse_patch(self.removed_in)

    @property
    def until(self) -> str:
        """The last release that was read with the parser."""
        releases = releases_read()
        return releases[releases.index(self.removed_in) - 1] if self.removed_in else releases[-1]


@lru_cache(maxsize=1)
def parser_names() -> Mapping[str, Mapping[str, ParserName]]:
    """Return the names by the option that takes them."""
    lines = _TABLE.read_text(encoding="utf-8").splitlines()
    rows = (line.split(",") for line in lines if not line.startswith(("#", "option,")))
    names: dict[str, dict[str, ParserName]] = {}
    for option, name, since, removed_in in rows:
        names.setdefault(option, {})[name] = ParserName(since=since, removed_in=removed_in)
    return names


def refused_parsers(
    given: Mapping[str, GivenOption], names: frozenset[str], release: Patch
) -> Iterator[tuple[Any, ...]]:
    """Yield (problem, its arguments) for every name that the release does not have; `names` are those of all options, also of
    options whose value is not known.

    vLLM looks a tool-call parser up only where tools are chosen automatically. A plug-in may bring any parser along.
    """
    if not names.isdisjoint(_PLUGINS) or any(_is_on(given.get(name)) for name in _SERVERLESS):
        return
    looked_up = ["reasoning_parser"]
    if _is_on(given.get("enable_auto_tool_choice")):
        looked_up.append("tool_call_parser")
    for option in (given[name] for name in looked_up if name in given):
        flag = f"--{option.name.replace('_', '-')}"
        parser = parser_names()[flag].get(str(option.value))
        if option.value and (parser is None or not parser.may_be_in(release)):
            yield _refused, option, flag, parser, release


def _is_on(option: GivenOption | None) -> bool:
    return option is not None and option.value is True


def _refused(option: GivenOption, flag: str, name: ParserName | None, release: Patch) -> ArgumentProblem:
    """Return the problem of a name that is misspelt, gone, or not there yet."""
    text, version = f"{flag} {shown(str(option.value))}", ".".join(map(str, release))
    near = ""
    if name is None:
        message = f"{text} is none of vLLM's parsers; it does not start"
        near, remedy = _nearest(str(option.value), flag, release)
    elif name.is_gone_in(release):
        message = (
            f"{text} is gone since {name.removed_in} (last in {name.until}); vLLM {version} does not start with it"
        )
        remedy = any_one("use another parser", f"use vLLM {name.until}")
    else:
        message = f"{text} came with {name.since}; vLLM {version} does not start with it"
        remedy = remedy_of(f"use vLLM {name.since} or newer")
    at = Argument(text=option.text, path=option.path, line=option.line)
    return ArgumentProblem(rule=PARSER_UNKNOWN, at=at, message=message, remedy=remedy, meant=near)


@lru_cache(maxsize=256)
def _nearest(text: str, flag: str, release: Patch) -> tuple[str, Remedy]:
    """Return (the nearest name, the remedy). Without such a name, the remedy lists longer names, or says how to add a parser."""
    from difflib import get_close_matches

    names = [name for name, life in parser_names()[flag].items() if life.may_be_in(release)]
    near = get_close_matches(text.lower(), names, n=1, cutoff=0.75) if len(text) <= 60 else []
    if near:
        return near[0], remedy_of(f"did you mean {near[0]}?")
    longer = [name for name in names if name.startswith(text.lower())]
    if longer:
        return "", remedy_of(f"use {' or '.join(longer)}")
    plugin = "give the file that has it by --tool-parser-plugin or --reasoning-parser-plugin"
    return "", any_one("use one that `vllm serve --help=all` lists", plugin)
