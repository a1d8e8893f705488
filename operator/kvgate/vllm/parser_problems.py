"""Problems that vLLM's parser has with a word, as sentences: which option, which release, what to write instead; and the names of
reasoning and tool-call parsers by release, which vLLM looks up when its API server starts.

vLLM 0.6 to 0.33: `validate_api_server_args` and, for the tool-call parser that is missing, `validate_parsed_serve_args`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from kvgate import bundle
from kvgate.budget import parse_patch
from kvgate.findings.finding import Remedy, Rule, Severity, any_one, remedy_of
from kvgate.rules.command_line import (
    INVALID_SETTING,
    OPTION_AMBIGUOUS,
    OPTION_DEPRECATED,
    OPTION_NOT_YET,
    OPTION_REMOVED,
    OPTION_UNKNOWN,
    OPTION_VALUE,
    PARSER_UNKNOWN,
    UNEXPECTED_WORD,
)
from kvgate.vllm.arguments import Argument, GivenOption, shown
from kvgate.vllm.options import Option, Patch, options, read_around, releases_read, spellings


class ArgumentProblem(Struct, frozen=True, kw_only=True):
    rule: Rule
    at: Argument
    message: str
    remedy: Remedy = Remedy()
    meant: str = ""
    """The name of vLLM's that the word probably misspells; empty where none is like it."""
    severity: Severity | None = None
    """None: the rule's usual one."""

    @property
    def path(self) -> str:
        return self.at.path

    @property
    def is_sure(self) -> bool:
        """It holds in every release, and whatever program takes the words."""
        return self.severity is Severity.ERROR

    @property
    def is_slip(self) -> bool:
        """A misspelling: vLLM has a name much like it."""
        return bool(self.meant)


def canonical(name: str) -> str:
    """vLLM's parser takes `_` for `-` in names of options."""
    return name.replace("_", "-") if name.startswith("--") else name


_OF_DOCKER = ("--shm-size",)
"""Options of `docker run` that people write among those of vLLM; no release has them, and no wrapper."""


def unknown(word: Argument, name: str, several: Option | tuple[str, ...] | None, release: Patch) -> ArgumentProblem:
    """No option, a beginning of several, or one of another release."""
    known = options().get(canonical(name))
    is_gone = known is not None and known.removed_in and release >= known.removed_in
    if isinstance(several, tuple) and not is_gone:
        remedy = remedy_of(f"write it out: {', '.join(several)}")
        return ArgumentProblem(rule=OPTION_AMBIGUOUS, at=word, message=f"{name} begins several options", remedy=remedy)
    if known is not None:
        # the release no longer has the option, or does not have it yet
        version = ".".join(map(str, release))
        if known.removed_in and is_gone:
            last = ".".join(map(str, known.until or known.since))
            message = f"{known.flag} is gone since {'.'.join(map(str, known.removed_in))} (last in {last}); vLLM {version} does not start"
            return ArgumentProblem(rule=OPTION_REMOVED, at=word, message=message, remedy=_replacement(known))
        since = ".".join(map(str, known.since))
        message = f"{known.flag} came with {since}; vLLM {version} does not start with it"
        remedy = any_one(f"use vLLM {since} or newer", f"leave {known.flag} out")
        return ArgumentProblem(rule=OPTION_NOT_YET, at=word, message=message, remedy=remedy)
    if canonical(name) in _OF_DOCKER:
        message = f"{name} is an option of docker, and no program in the container takes it; it does not start"
        remedy = any_one("mount an emptyDir with medium: Memory at /dev/shm", "give it to docker, before the image")
        return ArgumentProblem(rule=OPTION_UNKNOWN, at=word, message=message, remedy=remedy, severity=Severity.ERROR)
    message = f"{shown(name)} is no option of vLLM; it does not start"
    option, space, _ = canonical(name).partition(" ")
    if space and option in spellings(release):
        remedy = remedy_of(f"did you mean {option}, and the rest as words of their own?")
        return ArgumentProblem(rule=OPTION_UNKNOWN, at=word, message=message, remedy=remedy, meant=option)
    near = _nearest(canonical(name), release)
    remedy = remedy_of(f"did you mean {near}?" if near else "see `vllm serve --help=all` of your release")
    return ArgumentProblem(rule=OPTION_UNKNOWN, at=word, message=message, remedy=remedy, meant=near or "")


@lru_cache(maxsize=256)
def _nearest(name: str, release: Patch) -> str | None:
    from difflib import get_close_matches

    if len(name) > 60:
        return None
    if not name.startswith("--"):
        short = max((s for s in spellings(release) if name.startswith(s)), key=len, default="")
        return f"{short} {name[len(short) :]}" if short else None
    names = [s for s in spellings(release) if s.startswith("--")]
    return next(iter(get_close_matches(name, names, n=1, cutoff=0.75)), None)


def _replacement(option: Option) -> Remedy:
    return remedy_of(f"use {option.replacement}" if option.replacement.startswith("-") else f"leave {option.flag} out")


def deprecated(word: Argument, option: Option) -> ArgumentProblem:
    """An option that still works, and that a later release will not have."""
    message = f"{option.flag} is deprecated and will be removed"
    return ArgumentProblem(rule=OPTION_DEPRECATED, at=word, message=message, remedy=_replacement(option))


def unexpected(word: Argument, severity: Severity | None = None) -> ArgumentProblem:
    """vLLM takes one word without an option, its model. Some programs take one and ignore it; then it is no more than a warning."""
    what = shown(word.text) or "an empty word"
    remedy = remedy_of("leave it out: switches take no value")
    if word.text.lower() == "false":
        remedy = any_one("leave it out, and its switch with it", "write --no-… for the switch")
    message = f"{what} belongs to no option; vLLM does not start"
    if severity is not None:
        message = f"{message}, unless the image starts its API server's module, which ignores it"
    return ArgumentProblem(rule=UNEXPECTED_WORD, at=word, message=message, remedy=remedy, severity=severity)


def space_before(word: Argument) -> ArgumentProblem:
    """A backslash at the end of a line joins lines in a shell; in a text that YAML folds a space follows it, and begins the next word."""
    message = f"{shown(word.text)!r} begins with a space, so that it is a word and no option; vLLM does not start"
    remedy = any_one("leave the backslash before it out: YAML's `>` joins the lines already", "write `|` for `>`")
    return ArgumentProblem(rule=UNEXPECTED_WORD, at=word, message=message, remedy=remedy, severity=Severity.ERROR)


def ignored(word: Argument, model: GivenOption | None) -> ArgumentProblem:
    """The API server's module takes one word and never reads it. Without `--model` it serves its default model."""
    what = shown(word.text) or "an empty word"
    message = f"{what} belongs to no option; the API server's module ignores it"
    remedy = remedy_of("leave it out: switches take no value")
    if word.text.startswith("-"):
        remedy = remedy_of("write the option and its value as words of their own")
    elif model is None:
        message, remedy = f"{message}, and serves its default model", remedy_of(f"write --model {what}")
    return ArgumentProblem(rule=UNEXPECTED_WORD, at=word, message=message, remedy=remedy, severity=Severity.WARNING)


def repeated_program(words: Sequence[Argument]) -> ArgumentProblem:
    """`args: [serve, MODEL]` on an image whose entrypoint is `vllm serve` already."""
    what = shown(" ".join(word.text for word in words))
    message = (
        f"the image's entrypoint starts the server already, and {what!r} becomes an argument of it; vLLM does not start"
    )
    remedy = any_one(f"leave {what!r} out", "give the program as the container's command")
    return ArgumentProblem(rule=UNEXPECTED_WORD, at=words[0], message=message, remedy=remedy)


def model_option(word: Argument, model: GivenOption | None, severity: Severity | None) -> ArgumentProblem:
    """`vllm serve --model X`, which some releases end with an error."""
    message = "`vllm serve` of this release refuses --model; it does not start"
    name = shown(model.text) if model else "the model"
    remedy = remedy_of(f"write {name} as the first word, without --model")
    return ArgumentProblem(
        rule=OPTION_UNKNOWN, at=word, message=message, remedy=remedy, meant="--model", severity=severity
    )


def surplus(word: Argument, option: Option, attached: str) -> ArgumentProblem:
    """`--enforce-eager=true`, `--no-enable-prefix-caching=true`."""
    message = f"{option.flag} takes no value, and {attached!r} is one; vLLM does not start"
    remedy = any_one(f"write {shown(word.text.partition('=')[0])} alone", "leave it out")
    return ArgumentProblem(rule=OPTION_VALUE, at=word, message=message, remedy=remedy)


def missing(word: Argument, option: Option, needed: str) -> ArgumentProblem:
    """`--max-model-len` at the end; `needed` is what it takes, in words."""
    message = f"{option.flag} has no value; vLLM does not start"
    return ArgumentProblem(rule=OPTION_VALUE, at=word, message=message, remedy=remedy_of(f"give it {needed}"))


def invalid(word: Argument, option: Option, text: str, reason: str) -> ArgumentProblem:
    """A text that is none of the option's type."""
    message = f"{option.flag} is {shown(text)!r}; vLLM does not start"
    return ArgumentProblem(rule=OPTION_VALUE, at=word, message=message, remedy=remedy_of(reason))


def maybe_invalid(word: Argument, option: Option, text: str, without: Patch, release: Patch) -> ArgumentProblem:
    """A value that only one of the releases has which were read on both sides of this one."""
    one, other = (".".join(map(str, each)) for each in (without, release))
    message = f"{option.flag} is {shown(text)!r}, which vLLM {one} does not take, and {other} may not; it may not start"
    remedy = remedy_of(f"check that {other} takes it, or use a {'newer' if without < release else 'older'} release")
    return ArgumentProblem(rule=OPTION_VALUE, at=word, message=message, remedy=remedy, severity=Severity.WARNING)


_PLUGINS = ("tool_parser_plugin", "reasoning_parser_plugin")
"""Options that name a file with further parsers, of either kind."""
_SERVERLESS = ("headless", "grpc")
"""Switches with which no API server starts, which would look the names up."""


class ParserName(Struct, frozen=True, kw_only=True):
    since: str
    removed_in: str
    """The first release that was read after the parser went; empty where the newest one has it."""

    def may_be_in(self, release: Patch) -> bool:
        """Return whether a release may have the parser. Between two releases that were read, it may if either of them has it, and an older
        one may have what the oldest has."""
        if self.since == releases_read()[0] and release < parse_patch(self.since):
            return True
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
    rows = (line.split(",") for line in bundle.lines("tool_parsers.csv")[1:])
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


_PARTIAL_PREFILLS = ("max_num_partial_prefills", "max_long_partial_prefills")
_WITHOUT_V0: Patch = (0, 11, 0)
"""The first release whose older engine is gone, which older ones fall back to (`EngineArgs._is_v1_supported_oracle`, 0.8 to 0.10)."""


def refused_prefills(given: Mapping[str, GivenOption], release: Patch) -> Iterator[tuple[Any, ...]]:
    """Yield (problem, its arguments) for options of concurrent partial prefills, which vLLM's engine does not have."""
    for option in (given[name] for name in _PARTIAL_PREFILLS if name in given):
        if release >= _WITHOUT_V0 and isinstance(option.value, int) and option.value != 1:
            yield _prefills, option


def _prefills(option: GivenOption) -> ArgumentProblem:
    flag = f"--{option.name.replace('_', '-')}"
    message = f"{flag} is {shown(option.text)}, and vLLM has no concurrent partial prefills; it does not start"
    at = Argument(text=option.text, path=option.path, line=option.line)
    return ArgumentProblem(rule=INVALID_SETTING, at=at, message=message, remedy=remedy_of(f"leave {flag} out"))


def _is_on(option: GivenOption | None) -> bool:
    return option is not None and option.value is True


def _refused(option: GivenOption, flag: str, name: ParserName | None, release: Patch) -> ArgumentProblem:
    """Return the problem of a name that is misspelt, gone, or not there yet."""
    text, version = f"{flag} {shown(str(option.value))}", ".".join(map(str, release))
    near = ""
    if name is None:
        message = f"{text} is none of vLLM's parsers; it does not start"
        near, remedy = _nearest_parser(str(option.value), flag, release)
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
def _nearest_parser(text: str, flag: str, release: Patch) -> tuple[str, Remedy]:
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
