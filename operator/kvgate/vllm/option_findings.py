"""Findings for words that vLLM's parser refuses: how bad they are, where they stand, and which are only unknown to kvgate."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from kvgate.rules.finding import Severity
from kvgate.vllm.arguments import Located, Place, located, shown
from kvgate.vllm.options import releases_read
from kvgate.vllm.parser import CommandLine
from kvgate.vllm.parser_problems import ArgumentProblem

_NAMES = ("OptionUnknown", "ParserUnknown")
"""Problems of a name that vLLM does not know."""
_SECRETS = ("api_key", "hf_token")
"""Settings whose value no message repeats."""
_MAY_BE_NEW = (*_NAMES, "OptionNotYet", "OptionValue", "UnexpectedWord")
"""Problems that a release which nobody has read may not have, nor an image of one's own."""


def problem_findings(
    line: CommandLine, *, is_beyond: bool, is_stated: bool, others: Collection[ArgumentProblem] = ()
) -> Iterator[Located]:
    """Return findings in the order of the line, without those of `others`. `is_beyond`: the release may take more than those that
    kvgate knows; `is_stated`: it is stated, and not guessed from the options.
    """
    uncertain = _uncertain(line, is_beyond=is_beyond, is_stated=is_stated)
    for index, problem in enumerate(line.problems, start=1):
        more = line.num_more_problems if index == len(line.problems) else 0
        if problem not in others:
            yield _softened(problem, more) if problem in uncertain else _problem(problem, more)


def repetitions(line: CommandLine) -> Iterator[Located]:
    """Settings that are given more than once."""
    for setting in line.repeated.values():
        last = line.given.get(setting.name) or line.unknown.get(setting.name)
        same = last is not None and last.value == setting.value
        by_key = last is not None and last.is_part and not setting.is_part
        other = "key by key as well; only the keys count" if by_key else "again later; the later one counts"
        text = "a secret" if setting.name in _SECRETS else shown(setting.text)
        message = f"{setting.name} is set to {text} here and {other}"
        severity = Severity.INFO if same else Severity.WARNING
        yield located("OptionRepeated", severity, setting, message, "keep one of them")


def is_slip(problem: ArgumentProblem) -> bool:
    """A misspelling: vLLM has an option much like it."""
    return problem.remediation.startswith("did you mean")


def _problem(problem: ArgumentProblem, num_more: int) -> Located:
    severity = Severity.WARNING if problem.rule == "OptionDeprecated" else Severity.ERROR
    at = Place(name="arguments", path=problem.path, line=problem.at.line)
    message = f"{problem.message}; the line has {num_more} more problems" if num_more else problem.message
    return located(problem.rule, severity, at, message, problem.remediation)


def _uncertain(line: CommandLine, *, is_beyond: bool, is_stated: bool) -> list[ArgumentProblem]:
    """Return problems that a newer release may not have. Where none is stated, a name unlike vLLM's is rather new than misspelt."""
    if is_beyond or is_stated:
        return [problem for problem in line.problems if is_beyond and problem.rule in _MAY_BE_NEW]
    unlike = [problem for problem in line.problems if problem.rule in _NAMES and not is_slip(problem)]
    may_take_words = any(problem.rule == "OptionUnknown" for problem in unlike)
    words = [problem for problem in line.problems if may_take_words and problem.rule == "UnexpectedWord"]
    return [*unlike, *words]


def _softened(problem: ArgumentProblem, num_more: int) -> Located:
    """Soften a problem: it holds as far as kvgate knows."""
    told = _problem(problem, num_more)
    message = f"as of vLLM {releases_read()[-1]}, the newest that kvgate knows, {told.finding.message}"
    return replace(told, finding=replace(told.finding, severity=Severity.WARNING, message=message))
