"""Findings about a command line by itself: refused, repeated and unknown options."""

from collections.abc import Collection, Iterator

from kvgate.findings.finding import SettingName, Severity, any_one, words
from kvgate.findings.located import Located, Place, located
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.rules.command_line import (
    OPTION_AMBIGUOUS,
    OPTION_UNKNOWN,
    PARSER_UNKNOWN,
    UNEXPECTED_WORD,
    VARIABLE_UNKNOWN,
)
from kvgate.rules.manifests import NOT_UNDERSTOOD, WRAPPER_OPTIONS
from kvgate.vllm.arguments import Argument, GivenOption, is_placeholder, shown
from kvgate.vllm.option_findings import problem_findings, repetitions
from kvgate.vllm.parser import CommandLine
from kvgate.vllm.parser_problems import ArgumentProblem
from kvgate.vllm.settings import DECIDING

_PARSER_RULES = (OPTION_UNKNOWN, OPTION_AMBIGUOUS, UNEXPECTED_WORD)
"""Problems that are none where another program takes the options first."""
_NOT_OURS = ("--dyn-", "--kaito-")
"""Beginnings of options that wrappers keep for themselves."""


def line_findings(
    line: CommandLine,
    engine: FoundEngine,
    *,
    is_beyond: bool,
    is_stated: bool,
    elsewhere: Collection[ArgumentProblem] = (),
) -> Iterator[Located]:
    """Everything, in the order of the line. `is_beyond`: the release is newer than those that kvgate knows; `elsewhere`: problems with
    words that another release takes, where nobody knows that it is this one.
    """
    may_bring_parsers = engine.is_wrapped or engine.is_partial  # beside vLLM's and those of the options that are seen
    wrapped = [problem for problem in line.problems if engine.is_wrapped and problem.rule in _PARSER_RULES]
    doubtful = [problem for problem in line.problems if may_bring_parsers and problem.rule == PARSER_UNKNOWN]
    others = [*wrapped, *doubtful, *elsewhere]
    yield from problem_findings(line, is_beyond=is_beyond, is_stated=is_stated, others=others)
    yield from _of_wrapper(wrapped)
    for problem in (each for each in elsewhere if each not in wrapped and each not in doubtful):
        message = f"{problem.message}; other releases take it, and nothing here says surely which one runs"
        yield located(problem.rule, _place(problem.at), message, problem.remedy, severity=Severity.WARNING)
    for problem in doubtful:
        message = f"{problem.message}, unless something that is not seen here brings it along"
        yield located(problem.rule, _place(problem.at), message, problem.remedy, severity=Severity.WARNING)
    yield from repetitions(line)
    for word in line.open_words:
        message = f"{shown(word.text)} is not known here: any options in it are not judged"
        yield located(VARIABLE_UNKNOWN, _place(word), message)
    for path, remark in engine.remarks:
        yield located(NOT_UNDERSTOOD, Place(name="", path=path), remark)
    yield from engine.findings


def _place(word: Argument) -> Place:
    return Place(name="arguments", path=word.path, line=word.line)


def undecided_settings(line: CommandLine, *, knows_model: bool) -> list[Located]:
    """Settings that would decide, and whose value nobody knows here; the model may be named elsewhere."""
    names = [name for name in line.unknown if name in DECIDING and not (name == "model" and knows_model)]
    return [undecided(line.unknown[name]) for name in names]


def undecided(setting: GivenOption) -> Located:
    """The finding about a setting whose value is a variable that nobody has filled in."""
    name, text = SettingName(setting.name), shown(setting.text)
    remedy = any_one("give the variable a value in the same input", "check what is rendered")
    if "{{" in setting.text:
        remedy = any_one("render this template first: helm template CHART | kvgate check -")
    message = "{name} is {text}, which has no value here"
    if is_placeholder(setting.text):
        message, remedy = "{name} is {text}, which is a placeholder", any_one("put a value in its place")
    return located(VARIABLE_UNKNOWN, setting, words(message, name=name, text=text), remedy)


def _of_wrapper(problems: list[ArgumentProblem]) -> Iterator[Located]:
    """A misspelling is reported; all others together are the wrapper's own."""
    own = []
    for problem in problems:
        name = problem.at.text.partition("=")[0]
        if problem.is_slip and not name.startswith(_NOT_OURS):
            message = f"{shown(name)} is no option of vLLM; is it one of the program around it?"
            yield located(problem.rule, _place(problem.at), message, problem.remedy, severity=Severity.WARNING)
        elif problem.rule != UNEXPECTED_WORD:
            own.append(problem)
    if own:
        names = ", ".join(dict.fromkeys(shown(problem.at.text.partition("=")[0]) for problem in own))
        yield located(WRAPPER_OPTIONS, _place(own[0].at), f"taken for options of the program around vLLM: {names}")
