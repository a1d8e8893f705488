"""A command line of `vllm serve` → its options, as vLLM's own parser reads them.

The last of several equal options wins, `_` means `-`, unique beginnings of names are taken, and so are `--flag=value`,
`--flag.key value`, `12k`, `auto` and JSON. Every option keeps the place that it was written at; a word that the parser would refuse
is a problem there.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from kvgate.findings.finding import Severity
from kvgate.vllm.arguments import OPEN, Argument, GivenOption, is_open
from kvgate.vllm.options import UNKNOWN_PROGRAM, Option, Patch, Program, options, spellings
from kvgate.vllm.parser_problems import (
    ArgumentProblem,
    canonical,
    deprecated,
    ignored,
    invalid,
    maybe_invalid,
    missing,
    model_option,
    refused_parsers,
    refused_prefills,
    repeated_program,
    space_before,
    surplus,
    unexpected,
    unknown,
)
from kvgate.vllm.values import BadValue, described, read_value, takes_no_value, takes_several

_GATHERED = ("middleware",)
"""Options that may be given several times, each time for one more."""
MAX_PROBLEMS = 50
"""Problems that are reported for one command line."""


class CommandLine(Struct):
    """The options and words that were read so far."""

    is_literal: bool = False
    """True: nobody fills in variables, so that `$(NAME)` and `{{ .Field }}` are texts like any others."""
    program: Program = UNKNOWN_PROGRAM
    """The program that gets the words; options of its own are left out."""
    given: dict[str, GivenOption] = field(default_factory=dict)
    """Options by vLLM's name; the last one wins."""
    unknown: dict[str, GivenOption] = field(default_factory=dict)
    """Options whose value contains a variable that is not known here."""
    positionals: list[Argument] = field(default_factory=list)
    open_words: list[Argument] = field(default_factory=list)
    """Variables that are words of their own, and files of options: they may be any options, or none."""
    problems: list[ArgumentProblem] = field(default_factory=list)
    num_more_problems: int = 0
    """Number of problems beyond MAX_PROBLEMS."""
    repeated: dict[str, GivenOption] = field(default_factory=dict)
    """The first of several options of the same name, which a later one replaced."""

    @property
    def names(self) -> frozenset[str]:
        """Names of all options that are given, whether their value is known or not."""
        return frozenset({*self.given, *self.unknown})

    def put(self, setting: GivenOption) -> None:
        """Add an option: the last one wins. Keys of a JSON option that are given one by one are joined, and win over the whole object."""
        before = self.given.get(setting.name)
        if before and before.is_part and not setting.is_part:
            self.repeated.setdefault(setting.name, setting)
            return
        if before and before.is_part:
            setting = replace(setting, value=_joined(before.value, setting.value))
        elif before and setting.name in _GATHERED:
            setting = replace(setting, value=[*(before.value or ()), *(setting.value or ())], is_part=False)
        elif before:
            self.repeated.setdefault(setting.name, before)
        self.unknown.pop(setting.name, None)
        self.given[setting.name] = setting

    def put_unknown(self, setting: GivenOption) -> None:
        """Add an option without a known value; it replaces an earlier one."""
        self.given.pop(setting.name, None)
        self.unknown[setting.name] = setting

    def complain(self, problem: Callable[..., ArgumentProblem], *about: Any) -> None:
        """Add a problem. Beyond MAX_PROBLEMS they are only counted, because a line of a hundred thousand words has as many."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem(*about))
        else:
            self.num_more_problems += 1


def _joined(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Join the values of two words: `a.b` and `a.c` make one object, two `a.b+` make one list."""
    joined = dict(before)
    for key, value in after.items():
        old = joined.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            joined[key] = _joined(old, value)
        else:
            joined[key] = old + value if isinstance(old, list) and isinstance(value, list) else value
    return joined


class _Words(Struct):
    words: Sequence[Argument]
    next: int = 0

    def take(self) -> Argument | None:
        """Return the next word; None at the end."""
        if self.next >= len(self.words):
            return None
        self.next += 1
        return self.words[self.next - 1]

    def take_value(self) -> Argument | None:
        """Return the next word unless it is an option; no option has a space in its name."""
        if self.next >= len(self.words):
            return None
        text = self.words[self.next].text
        return None if _is_flag(text) and " " not in text.partition("=")[0] else self.take()


def parse_arguments(
    arguments: Sequence[Argument], release: Patch, *, is_literal: bool = False, program: Program = UNKNOWN_PROGRAM
) -> CommandLine:
    """Read the words after `vllm serve`, or after another program. `is_literal`: nobody fills in variables."""
    line, words = CommandLine(is_literal=is_literal, program=program.as_of(release)), _Words(words=arguments)
    while (word := words.take()) is not None:
        if word.text[:1].isspace() and _is_flag(word.text.lstrip()):
            if not any(problem.at.text[:1].isspace() for problem in line.problems):  # all come from one mistake
                line.complain(space_before, word)
            word = replace(word, text=word.text.lstrip())
        if _is_flag(word.text):
            _read_option(word, words, release, line)
        elif not is_literal and OPEN.fullmatch(word.text):
            line.open_words.append(word)
        else:
            line.positionals.append(word)
    if file := line.given.get("config"):
        line.open_words.append(Argument(text=f"--config {file.text}", path=file.path, line=file.line))
    _complain_of_words(line, arguments, release)
    for problem in refused_prefills(line.given, release):
        line.complain(*problem)
    if not line.open_words:  # they may bring a plug-in along
        for problem in refused_parsers(line.given, line.names, release):
            line.complain(*problem)
    return line


def _complain_of_words(line: CommandLine, arguments: Sequence[Argument], release: Patch) -> None:
    """Complain of the words beside options that the program refuses, or takes and ignores, and of `--model` where it refuses that."""
    program, model = line.program, line.given.get("model")
    surely, at_most = program.num_words(release, has_model=model is not None)
    if program.repeated and len(program.repeated) + len(line.positionals) > at_most:
        line.complain(repeated_program, program.repeated)
    else:
        for index, word in enumerate(line.positionals[surely:], start=surely):
            line.complain(unexpected, word, None if index >= at_most else Severity.WARNING)
        if program.ignores_words(release) and len(line.positionals) == 1:
            line.complain(ignored, line.positionals[0], model)
    written = next((word for word in arguments if word.text == "--model"), None)
    if written is not None and program.refuses_model_option(release):
        line.complain(model_option, written, model, None if program.is_unchanged else Severity.WARNING)


def _read_option(word: Argument, words: _Words, release: Patch, line: CommandLine) -> None:
    name, equals, attached = word.text.partition("=")
    own = line.program.words_of(canonical(name))
    if own is not None and canonical(name) not in spellings(release):
        while not equals and own != "0" and words.take_value() is not None and own == "*":
            pass
        return
    name, _, key = name.partition(".")
    found = find_option(name, release)
    if found is None and name.startswith("-O"):
        found = spellings(release).get("-O", options()["--optimization-level"])
        attached, equals = attached or name[2:], "=" if name[2:] else equals
    short = name[:2]  # an option of one letter with its value: `-O3`, `-qfp8`; `-tp2` is no such word
    if found is None and short != "--" and short in spellings(release):
        name, attached, equals, found = short, name[2:], "=", spellings(release)[short]
    if not isinstance(found, Option):
        written = word.text.partition("=")[0]
        if " " in written and "." not in written and line.program.ignores_words(release):
            line.positionals.append(word)  # argparse takes it for no option
            return
        line.complain(unknown, word, name, found, release)
        if not equals:
            words.take_value()
        return
    if found.deprecated_since and found.deprecated_since <= release:
        line.complain(deprecated, word, found)
    _read_value(_Given(word=word, option=found, key=key, attached=attached if equals else None), words, release, line)


def find_option(name: str, release: Patch) -> Option | tuple[str, ...] | None:
    """Return the option of a name, the names of several where a beginning is ambiguous, or None."""
    known, name = spellings(release), canonical(name)
    if name in known:
        return known[name]
    if name.startswith("--") and len(name) < 4:
        return None
    spelled = _sorted_spellings(release)
    beginning = takewhile(lambda spelling: spelling.startswith(name), spelled[bisect_left(spelled, name) :])
    matches = {known[spelling].flag for spelling in beginning}
    if len(matches) == 1:
        return options()[matches.pop()]
    return tuple(sorted(matches)) or None


@lru_cache(maxsize=64)
def _sorted_spellings(release: Patch) -> tuple[str, ...]:
    return tuple(sorted(spellings(release)))


class _Given(Struct, frozen=True, kw_only=True):
    word: Argument
    option: Option
    key: str
    attached: str | None

    @property
    def is_negative(self) -> bool:
        return canonical(self.word.text).startswith("--no-") and not self.option.flag.startswith("--no-")

    def setting(self, *, value: Any, text: str, at: Argument) -> GivenOption:
        return GivenOption(
            name=self.option.dest,
            value=value,
            text=text,
            path=at.path,
            line=at.line,
            is_part=bool(self.key) and isinstance(value, dict),
            is_field=at.is_field,
        )


def _read_value(given: _Given, words: _Words, release: Patch, line: CommandLine) -> None:
    """Read the value by the first of the option's types that takes the words; else report the problem of the last type."""
    start, refusal = words.next, None
    for kind in given.option.types_in(release):
        words.next = start
        refusal = _read_as(kind, given, words, release, line)
        if refusal is None:
            return
    if refusal:
        line.complain(*refusal)


def _read_as(kind: str, given: _Given, words: _Words, release: Patch, line: CommandLine) -> tuple[Any, ...] | None:
    """Add the option to the line. Return the problem where the type does not take the words."""
    word, option = given.word, given.option
    if takes_no_value(kind) or given.is_negative:
        line.put(given.setting(value=not given.is_negative, text=word.text, at=word))
        return None if given.attached is None else (surplus, word, option, given.attached)
    taken = _taken(given, kind, words)
    if not taken:
        if "bare" not in kind:
            return missing, word, option, described(kind, option.choices_in(release))
        line.put(given.setting(value=True, text=word.text, at=word))
        return None
    texts = [part.text for part in taken]
    if not line.is_literal and any(is_open(text) for text in texts):
        line.put_unknown(given.setting(value=None, text=" ".join(texts), at=taken[0]))
        return None
    try:
        value = read_value(texts, kind, option.choices_in(release), given.key)
    except BadValue as error:
        return invalid, word, option, " ".join(texts), str(error)
    if value is not None and (without := option.read_without(value, release)):
        line.complain(maybe_invalid, word, option, " ".join(texts), without, release)
    line.put(given.setting(value=value, text=" ".join(texts), at=taken[0]))
    return None


def _taken(given: _Given, kind: str, words: _Words) -> list[Argument]:
    """Return the words that are the option's value, each with its place. The value of a key may look like an option."""
    if given.attached is not None:
        return [replace(given.word, text=given.attached)]
    if given.key:
        value = words.take()
        return [value] if value else []
    taken = []
    while (word := words.take_value()) is not None:
        taken.append(word)
        if not takes_several(kind):
            break
    return taken


def _is_flag(text: str) -> bool:
    """Return whether a word begins as an option does, and is no negative number."""
    if not text.startswith("-") or len(text) == 1:
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False
