"""Findings for words that vLLM's parser refuses: how bad they are, where they stand, and which are only unknown to kvgate."""

import json
from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from kvgate.budget import parse_patch
from kvgate.findings.finding import Finding, Located, Place, SettingName, Severity, located, words
from kvgate.rules.command_line import (
    OPTION_NOT_YET,
    OPTION_REMOVED,
    OPTION_REPEATED,
    OPTION_UNKNOWN,
    OPTION_VALUE,
    PARSER_UNKNOWN,
    UNEXPECTED_WORD,
)
from kvgate.vllm.arguments import Argument, option_name, shown
from kvgate.vllm.option_values import takes_no_value
from kvgate.vllm.options import Option, Patch, newest_read, options, releases_read
from kvgate.vllm.parser import CommandLine, parse_arguments
from kvgate.vllm.parser_problems import ArgumentProblem

_NAMES = (OPTION_UNKNOWN, PARSER_UNKNOWN)
"""Problems of a name that vLLM does not know."""
_SECRETS = ("api_key", "hf_token")
"""Settings whose value no message repeats."""
_MAY_BE_NEW = (*_NAMES, OPTION_NOT_YET, OPTION_VALUE, UNEXPECTED_WORD)
"""Problems that a release which nobody has read may not have, nor an image of one's own."""


def problem_findings(
    line: CommandLine, *, is_beyond: bool, is_stated: bool, others: Collection[ArgumentProblem] = ()
) -> Iterator[Located]:
    """Return findings in the order of the line, without those of `others`. `is_beyond`: the release may take more than those that
    kvgate knows; `is_stated`: it is stated, and not guessed from the options.
    """
    uncertain = _uncertain(line, is_beyond=is_beyond, is_stated=is_stated)
    for index, problem in enumerate(line.problems, start=1):
        if problem in others:
            continue
        message = problem.message
        if line.num_more_problems and index == len(line.problems):
            message = f"{message}; the line has {line.num_more_problems} more problems"
        at = Place(name="arguments", path=problem.path, line=problem.at.line)
        found = located(problem.rule, at, message, problem.remedy, severity=problem.severity)
        if problem in uncertain and problem.severity is None:  # it holds as far as kvgate knows
            as_of = "as of vLLM {newest}, the newest that kvgate knows, {message}"
            softened = replace(found.finding, severity=Severity.WARNING).with_words(as_of, newest=releases_read()[-1])
            found = replace(found, finding=softened)
        yield found


_OF_VALUES = (OPTION_VALUE, OPTION_NOT_YET, OPTION_REMOVED)


def refused_values(values: Mapping[str, Any], version: str, *, is_stated: bool) -> dict[str, Finding]:
    """Return, by the setting, what vLLM's parser has against a value if the values stood on the command line of this release.

    Left out are settings that are no options of vLLM, the model, and values that change nothing: null, false, the option's default.
    """
    found = {}
    for name, value in values.items():
        judge = _refused_value if _is_short(value) else _refused_value.__wrapped__
        is_number = type(value) is int and value > 0  # the parser reads every number in the same way
        if is_number and _refused_value(name, _ANY_NUMBER, version, is_stated=is_stated) is None:
            continue
        if (refused := judge(name, value, version, is_stated=is_stated)) is not None:
            found[name] = refused
    return found


_ANY_NUMBER = 1_234_567
"""A number that is no option's default and among no option's choices."""


def _is_short(value: Any) -> bool:
    """Return True for a number of 64 bits, or a text of 64 characters: longer ones are rarely asked again, and are not kept."""
    kind = type(value)
    return kind in (float, bool) or (kind is int and value.bit_length() <= 64) or (kind is str and len(value) <= 64)


@lru_cache(maxsize=4096, typed=True)
def _refused_value(name: str, value: Any, version: str, *, is_stated: bool) -> Finding | None:
    """Return what vLLM's parser has against one value: many what-ifs repeat most of their settings."""
    release, option, found = parse_patch(version), options().get(option_name(name)), None
    if option is None or name == "model" or value in (None, False, *option.defaults_in(newest_read())):
        return None
    line = parse_arguments(_as_words(option, value, release), release, is_literal=True)
    for each in problem_findings(line, is_beyond=release > newest_read(), is_stated=is_stated):
        if each.finding.rule in _OF_VALUES:
            before, _, after = each.finding.message.partition(option.flag)
            message = words("{before}{setting}{after}", before=before, setting=SettingName(name), after=after)
            found = replace(each.finding, field=name, words=message)
    return found


def _as_words(option: Option, value: Any, release: Patch) -> list[Argument]:
    """Return the model, and the option as somebody would write it."""
    if value is True and any(takes_no_value(kind) for kind in option.types_in(release)):
        texts = []
    elif isinstance(value, list | tuple):
        texts = [str(each) for each in value]
    else:
        value = float(value) if isinstance(value, Fraction) else value
        texts = [json.dumps(value) if isinstance(value, Mapping) else str(value)]
    return [Argument(text=text, path="") for text in ("model", option.flag, *texts)]


def repetitions(line: CommandLine) -> Iterator[Located]:
    """Settings that are given more than once."""
    for setting in line.repeated.values():
        last = line.given.get(setting.name) or line.unknown.get(setting.name)
        is_same = last is not None and last.value == setting.value
        by_key = last is not None and last.is_part and not setting.is_part
        other = "key by key as well; only the keys count" if by_key else "again later; the later one counts"
        text = "a secret" if setting.name in _SECRETS else shown(setting.text)
        message = words(
            "{setting} is set to {text} here and {other}", setting=SettingName(setting.name), text=text, other=other
        )
        severity = Severity.INFO if is_same else Severity.WARNING
        yield located(OPTION_REPEATED, setting, message, "keep one of them", severity=severity)


def _uncertain(line: CommandLine, *, is_beyond: bool, is_stated: bool) -> list[ArgumentProblem]:
    """Return problems that a newer release may not have. Where none is stated, a name unlike vLLM's is rather new than misspelt."""
    if is_beyond or is_stated:
        return [problem for problem in line.problems if is_beyond and problem.rule in _MAY_BE_NEW]
    unlike = [problem for problem in line.problems if problem.rule in _NAMES and not problem.is_slip]
    may_take_words = any(problem.rule == OPTION_UNKNOWN for problem in unlike)
    others = [problem for problem in line.problems if may_take_words and problem.rule == UNEXPECTED_WORD]
    return [*unlike, *others]
