"""A command line of `vllm serve` → options, as vLLM's own parser reads it: the last duplicate wins, `_` means `-`, unique
beginnings, `--flag=value`, `--flag.key value`, `12k`, `auto`, JSON.

Every option keeps the place that it was written at; what the parser would refuse is a problem there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from kvgate.manifests.option_values import BadValue, read_value, takes_no_value, takes_several
from kvgate.vllm_options import Option, Patch, options, spellings


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
    positionals: list[Argument] = field(default_factory=list)
    problems: list[ArgumentProblem] = field(default_factory=list)
    repeated: list[Setting] = field(default_factory=list)
    """Settings that a later one of the same name replaced."""

    def put(self, setting: Setting) -> None:
        """The last one wins; keys of one JSON option that are given apart are joined."""
        before = self.settings.get(setting.name)
        if before and isinstance(before.value, dict) and isinstance(setting.value, dict):
            setting = Setting(
                name=setting.name,
                value={**before.value, **setting.value},
                text=setting.text,
                path=setting.path,
                line=setting.line,
            )
        elif before:
            self.repeated.append(before)
        self.settings[setting.name] = setting


def parse_arguments(arguments: Sequence[Argument], release: Patch) -> CommandLine:
    """Read the words after `vllm serve`."""
    line, rest = CommandLine(), list(arguments)
    while rest:
        word = rest.pop(0)
        if word.text.startswith("-") and not _is_number(word.text):
            _read_option(word, rest, release, line)
        else:
            line.positionals.append(word)
    return line


def _read_option(word: Argument, rest: list[Argument], release: Patch, line: CommandLine) -> None:
    name, equals, attached = word.text.partition("=")
    name, _, key = name.partition(".") if name.startswith("-") else (name, "", "")
    found = _find(_canonical(name), release)
    if found is None and name.startswith("-O") and (level := options().get("--optimization-level")):
        found, attached, equals = level, attached or name[2:], "=" if name[2:] else equals
    if found is None and (short := _attached(name, release)):
        name, attached, equals, found = *short, "=", spellings(release)[short[0]]
    if not isinstance(found, Option):
        line.problems.append(_unknown(word, name, found, release))
        _skip_value(equals, rest)
        return
    if found.deprecated_since and found.deprecated_since <= release:
        line.problems.append(_deprecated(word, found))
    _read_value(word, found, key, attached if equals else None, rest, release, line)


def _canonical(name: str) -> str:
    return name.replace("_", "-") if name.startswith("--") else name


def _find(name: str, release: Patch) -> Option | tuple[str, ...] | None:
    """The option; several names where a beginning is ambiguous; None where there is none."""
    known = spellings(release)
    if name in known:
        return known[name]
    if not name.startswith("--") or len(name) < 4:
        return None
    matches = {option.flag: option for spelling, option in known.items() if spelling.startswith(name)}
    if len(matches) == 1:
        return next(iter(matches.values()))
    return tuple(sorted(matches)) or None


def _attached(name: str, release: Patch) -> tuple[str, str] | None:
    """`-O3`, `-qfp8`: a short option with its value in one word."""
    if name.startswith("--"):
        return None
    shorts = sorted((s for s in spellings(release) if not s.startswith("--") and name.startswith(s)), key=len)
    return (shorts[-1], name[len(shorts[-1]) :]) if shorts else None


def _read_value(
    word: Argument,
    option: Option,
    key: str,
    attached: str | None,
    rest: list[Argument],
    release: Patch,
    line: CommandLine,
) -> None:
    kind = option.type_in(release)
    negated = (
        _canonical(word.text).startswith("--no-")
        and option.is_negatable_in(release)
        and not option.flag.startswith("--no-")
    )
    if takes_no_value(kind):
        if attached is not None:
            line.problems.append(_surplus(word, option, attached))
        line.put(Setting(name=option.dest, value=not negated, text=word.text, path=word.path, line=word.line))
        return
    texts, at = _texts(word, kind, attached, rest)
    if not texts:
        if "bare" not in kind:
            line.problems.append(_missing(word, option, kind))
        return
    try:
        value = read_value(texts, kind, option.choices_in(release), key)
    except BadValue as error:
        line.problems.append(_invalid(word, option, " ".join(texts), str(error)))
        return
    line.put(Setting(name=option.dest, value=value, text=" ".join(texts), path=at.path, line=at.line))


def _texts(word: Argument, kind: str, attached: str | None, rest: list[Argument]) -> tuple[list[str], Argument]:
    """The words that belong to the option, and the one where its value stands."""
    if attached is not None:
        return [attached], word
    if not rest or _is_flag(rest[0].text):
        return [], word
    first = rest.pop(0)
    taken = [first.text]
    while takes_several(kind) and rest and not _is_flag(rest[0].text):
        taken.append(rest.pop(0).text)
    return taken, first


def _skip_value(equals: str, rest: list[Argument]) -> None:
    """The value of an option that nobody knows is not a model's name."""
    if not equals and rest and not _is_flag(rest[0].text):
        rest.pop(0)


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
    near = get_close_matches(_canonical(name), [s for s in spellings(release) if s.startswith("--")], n=1, cutoff=0.75)
    remedy = f"did you mean {near[0]}?" if near else "see `vllm serve --help=all` of your release"
    message = f"{name} is no option of vLLM; it does not start"
    return ArgumentProblem(rule="OptionUnknown", at=word, message=message, remediation=remedy)


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


def _surplus(word: Argument, option: Option, attached: str) -> ArgumentProblem:
    message = f"{option.flag} takes no value, and {attached!r} is one; vLLM does not start"
    return ArgumentProblem(rule="OptionValue", at=word, message=message, remediation=f"write {option.flag} alone")


def _missing(word: Argument, option: Option, kind: str) -> ArgumentProblem:
    message = f"{option.flag} has no value"
    return ArgumentProblem(rule="OptionValue", at=word, message=message, remediation=f"give one of type {kind}")


def _invalid(word: Argument, option: Option, text: str, reason: str) -> ArgumentProblem:
    shown = text if len(text) <= 60 else f"{text[:57]}…"
    message = f"{option.flag} is {shown!r}; vLLM does not start"
    return ArgumentProblem(rule="OptionValue", at=word, message=message, remediation=reason)
