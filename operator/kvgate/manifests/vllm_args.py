"""A command line of `vllm serve` → options, as vLLM's own parser reads it: the last duplicate wins, `_` means `-`, unique
beginnings, `--flag=value`, `--flag.key value`, `12k`, `auto`, JSON.

Every option keeps the place that it was written at; what the parser would refuse is a problem there.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from kvgate.manifests.option_values import BadValue, read_value, takes_no_value, takes_several
from kvgate.vllm_options import Option, Patch, options, spellings

MAX_PROBLEMS = 50
"""Of one command line that are told."""
_OPEN = re.compile(
    r"\$\([^()]{0,500}(?:\([^()]{0,200}\)[^()]{0,200}){0,5}\)|\$\{[^{}]{0,200}\}|\$\w+|\{\{[^{}]{0,500}\}\}|`[^`]{0,500}`"
)
"""`$(NAME)`, `$NAME`, `${NAME}`, `$(command)`, and a template's `{{ .Field }}`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Argument:
    """One word of a command line, and the path of the field that it stands in."""

    text: str
    path: str
    line: int = 0
    """Lines below the first one, where the field is a text of several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """An option with its value as vLLM reads it."""

    name: str
    """vLLM's name: `max_model_len`."""
    value: Any
    text: str
    """As it is written."""
    path: str
    line: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ArgumentProblem:
    """What the parser says of a word; `rule` is a finding's."""

    rule: str
    at: Argument
    message: str
    remediation: str

    @property
    def path(self) -> str:
        return self.at.path


@dataclass(slots=True)
class CommandLine:
    """What was read so far."""

    settings: dict[str, Setting] = field(default_factory=dict)
    """By vLLM's name; the last one wins."""
    unknown: dict[str, Setting] = field(default_factory=dict)
    """Settings whose value holds a variable that nobody knows here."""
    positionals: list[Argument] = field(default_factory=list)
    open_words: list[Argument] = field(default_factory=list)
    """Variables that stand alone: they may be any options, or none."""
    problems: list[ArgumentProblem] = field(default_factory=list)
    num_more_problems: int = 0
    """Beyond those that are told."""
    repeated: dict[str, Setting] = field(default_factory=dict)
    """Settings that a later one of the same name replaced; the first of each."""

    def put(self, setting: Setting) -> None:
        """The last one wins; keys of one JSON option that are given apart are joined."""
        before = self.settings.get(setting.name)
        if before and isinstance(before.value, dict) and isinstance(setting.value, dict):
            setting = replace(setting, value=_joined(before.value, setting.value))
        elif before:
            self.repeated.setdefault(setting.name, before)
        self.unknown.pop(setting.name, None)
        self.settings[setting.name] = setting

    def put_unknown(self, setting: Setting) -> None:
        """It replaces what was known before."""
        self.settings.pop(setting.name, None)
        self.unknown[setting.name] = setting

    def complain(self, problem: Callable[..., ArgumentProblem], *about: Any) -> None:
        """A line of a hundred thousand words has as many problems; a few tell as much, and the rest is not worded."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem(*about))
        else:
            self.num_more_problems += 1


def _joined(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """`a.b` and `a.c` of two words are one object."""
    joined = dict(before)
    for key, value in after.items():
        both = isinstance(joined.get(key), dict) and isinstance(value, dict)
        joined[key] = _joined(joined[key], value) if both else value
    return joined


@dataclass(slots=True)
class _Words:
    """The words that are left."""

    words: Sequence[Argument]
    next: int = 0

    def take(self) -> Argument | None:
        """The next one; None at the end."""
        if self.next >= len(self.words):
            return None
        self.next += 1
        return self.words[self.next - 1]

    def take_value(self) -> Argument | None:
        """The next one unless it is an option."""
        at_end = self.next >= len(self.words)
        return None if at_end or _is_flag(self.words[self.next].text) else self.take()


def parse_arguments(arguments: Sequence[Argument], release: Patch) -> CommandLine:
    """Read the words after `vllm serve`."""
    line, words = CommandLine(), _Words(words=arguments)
    while (word := words.take()) is not None:
        if _is_flag(word.text):
            _read_option(word, words, release, line)
        elif _OPEN.fullmatch(word.text):
            line.open_words.append(word)
        else:
            line.positionals.append(word)
    for surplus in line.positionals[0 if "model" in line.settings else 1 :]:
        line.complain(_unexpected, surplus)
    return line


def _read_option(word: Argument, words: _Words, release: Patch, line: CommandLine) -> None:
    name, equals, attached = word.text.partition("=")
    name, _, key = name.partition(".")
    found = find_option(name, release)
    if found is None and name.startswith("-O") and (level := options().get("--optimization-level")):
        found, attached, equals = level, attached or name[2:], "=" if name[2:] else equals
    if found is None and (short := _attached(name, release)):
        name, attached, equals, found = *short, "=", spellings(release)[short[0]]
    if not isinstance(found, Option):
        line.complain(_unknown, word, name, found, release)
        if not equals:
            words.take_value()
        return
    if found.deprecated_since and found.deprecated_since <= release:
        line.complain(_deprecated, word, found)
    _read_value(_Given(word=word, option=found, key=key, attached=attached if equals else None), words, release, line)


def _canonical(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name


def find_option(name: str, release: Patch) -> Option | tuple[str, ...] | None:
    """The option; several names where a beginning is ambiguous; None where there is none."""
    known, name = spellings(release), _canonical(name)
    if name in known:
        return known[name]
    if not name.startswith("--") or len(name) < 4:
        return None
    matches = {known[spelling].flag for spelling in _beginning(name, release)}
    if len(matches) == 1:
        return options()[matches.pop()]
    return tuple(sorted(matches)) or None


def _beginning(name: str, release: Patch) -> Iterator[str]:
    """Spellings that begin so."""
    spelled = _sorted_spellings(release)
    for spelling in spelled[bisect_left(spelled, name) :]:
        if not spelling.startswith(name):
            return
        yield spelling


@lru_cache(maxsize=64)
def _sorted_spellings(release: Patch) -> tuple[str, ...]:
    return tuple(sorted(spellings(release)))


def _attached(name: str, release: Patch) -> tuple[str, str] | None:
    """`-O3`, `-qfp8`: a short option with its value in one word."""
    if name.startswith("--"):
        return None
    shorts = sorted((s for s in spellings(release) if not s.startswith("--") and name.startswith(s)), key=len)
    return (shorts[-1], name[len(shorts[-1]) :]) if shorts else None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Given:
    """An option as it is written."""

    word: Argument
    option: Option
    key: str
    attached: str | None

    @property
    def is_negative(self) -> bool:
        return _canonical(self.word.text).startswith("--no-") and not self.option.flag.startswith("--no-")

    def setting(self, *, value: Any, text: str, at: Argument) -> Setting:
        return Setting(name=self.option.dest, value=value, text=text, path=at.path, line=at.line)


def _read_value(given: _Given, words: _Words, release: Patch, line: CommandLine) -> None:
    kind, word = given.option.type_in(release), given.word
    if takes_no_value(kind):
        if given.attached is not None:
            line.complain(_surplus, word, given.option, given.attached)
        line.put(given.setting(value=not given.is_negative, text=word.text, at=word))
        return
    taken = _taken(given, kind, words)
    if not taken:
        if "bare" in kind:
            line.put(given.setting(value=True, text=word.text, at=word))
        else:
            line.complain(_missing, word, given.option, kind)
        return
    texts = [part.text for part in taken]
    if any(is_open(text) for text in texts):
        line.put_unknown(given.setting(value=None, text=" ".join(texts), at=taken[0]))
        return
    try:
        value = read_value(texts, kind, given.option.choices_in(release), given.key)
    except BadValue as error:
        line.complain(_invalid, word, given.option, " ".join(texts), str(error))
        return
    line.put(given.setting(value=value, text=" ".join(texts), at=taken[0]))


def _taken(given: _Given, kind: str, words: _Words) -> list[Argument]:
    """The words that are the option's value, each with its place."""
    if given.attached is not None:
        return [replace(given.word, text=given.attached)]
    taken = []
    while (word := words.take_value()) is not None:
        taken.append(word)
        if not takes_several(kind):
            break
    return taken


def is_open(text: str) -> bool:
    """It holds a variable or a template's field that nobody has filled in."""
    return ("$" in text or "{{" in text) and _OPEN.search(text) is not None


def _is_flag(text: str) -> bool:
    return text.startswith("-") and len(text) > 1 and not _is_number(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _unknown(word: Argument, name: str, several: Option | tuple[str, ...] | None, release: Patch) -> ArgumentProblem:
    known = options().get(_canonical(name))
    if isinstance(several, tuple):
        remedy = f"write it out: {', '.join(several)}"
        return ArgumentProblem(
            rule="OptionAmbiguous", at=word, message=f"{name} begins several options", remediation=remedy
        )
    if known is not None:
        return _not_in_release(word, known, release)
    message = f"{shown(name)} is no option of vLLM; it does not start"
    near = _nearest(_canonical(name), release)
    remedy = f"did you mean {near}?" if near else "see `vllm serve --help=all` of your release"
    return ArgumentProblem(rule="OptionUnknown", at=word, message=message, remediation=remedy)


@lru_cache(maxsize=256)
def _nearest(name: str, release: Patch) -> str | None:
    """The option that was probably meant."""
    if len(name) > 60:
        return None
    return next(
        iter(get_close_matches(name, [s for s in spellings(release) if s.startswith("--")], n=1, cutoff=0.75)), None
    )


def _not_in_release(word: Argument, option: Option, release: Patch) -> ArgumentProblem:
    """Removed, or not there yet."""
    shown = ".".join(map(str, release))
    if option.removed_in and release >= option.removed_in:
        last = ".".join(map(str, option.until or option.since))
        remedy = f"use {option.replacement}" if option.replacement.startswith("-") else "leave it out"
        message = f"{option.flag} is gone since {'.'.join(map(str, option.removed_in))} (last in {last}); vLLM {shown} does not start"
        return ArgumentProblem(rule="OptionRemoved", at=word, message=message, remediation=remedy)
    since = ".".join(map(str, option.since))
    message = f"{option.flag} came with {since}; vLLM {shown} does not start with it"
    return ArgumentProblem(
        rule="OptionNotYet", at=word, message=message, remediation=f"use vLLM {since} or newer, or leave it out"
    )


def _deprecated(word: Argument, option: Option) -> ArgumentProblem:
    remedy = f"use {option.replacement}" if option.replacement.startswith("-") else "leave it out"
    message = f"{option.flag} is deprecated and will be removed"
    return ArgumentProblem(rule="OptionDeprecated", at=word, message=message, remediation=remedy)


def _unexpected(word: Argument) -> ArgumentProblem:
    """vLLM takes one word without an option, its model."""
    message = f"{shown(word.text)} belongs to no option; vLLM does not start"
    return ArgumentProblem(
        rule="UnexpectedWord", at=word, message=message, remediation="switches take no value; leave it out"
    )


def _surplus(word: Argument, option: Option, attached: str) -> ArgumentProblem:
    message = f"{option.flag} takes no value, and {attached!r} is one; vLLM does not start"
    return ArgumentProblem(rule="OptionValue", at=word, message=message, remediation=f"write {option.flag} alone")


def _missing(word: Argument, option: Option, kind: str) -> ArgumentProblem:
    message = f"{option.flag} has no value; vLLM does not start"
    return ArgumentProblem(rule="OptionValue", at=word, message=message, remediation=f"give one of type {kind}")


def _invalid(word: Argument, option: Option, text: str, reason: str) -> ArgumentProblem:
    message = f"{option.flag} is {shown(text)!r}; vLLM does not start"
    return ArgumentProblem(rule="OptionValue", at=word, message=message, remediation=reason)


def shown(text: str) -> str:
    """As much of it as a message can hold."""
    return text if len(text) <= 60 else f"{text[:57]}…"
