"""Findings about a command line by itself: refused, repeated and unknown options."""

from collections.abc import Iterator

from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.rules.finding import Severity
from kvgate.vllm.arguments import GivenOption, Located, Place, located, shown
from kvgate.vllm.option_findings import is_slip, problem_findings, repetitions
from kvgate.vllm.parser import CommandLine
from kvgate.vllm.parser_problems import ArgumentProblem
from kvgate.vllm.settings import DECIDING

_PARSER_RULES = ("OptionUnknown", "OptionAmbiguous", "UnexpectedWord")
"""Problems that are none where another program takes the options first."""
_VARIABLE_HELP = "give the variable a value in the same input, or check what is rendered"
_TEMPLATE_HELP = "this is a template; render it first: helm template CHART | kvgate check -"
_NOT_OURS = ("--dyn-", "--kaito-")
"""Beginnings of options that wrappers keep for themselves."""


def line_findings(line: CommandLine, engine: FoundEngine, *, is_beyond: bool, is_stated: bool) -> Iterator[Located]:
    """Everything, in the order of the line. `is_beyond`: the release is newer than those that kvgate knows."""
    wrapped = [problem for problem in line.problems if engine.is_wrapped and problem.rule in _PARSER_RULES]
    doubtful = [problem for problem in line.problems if problem.rule == "ParserUnknown" and _has_more(engine)]
    yield from problem_findings(line, is_beyond=is_beyond, is_stated=is_stated, others=[*wrapped, *doubtful])
    yield from _of_wrapper(wrapped)
    yield from (_doubtful(problem) for problem in doubtful)
    yield from repetitions(line)
    for word in line.open_words:
        message = f"{shown(word.text)} is not known here: any options in it are not judged"
        yield located(
            "VariableUnknown", Severity.INFO, Place(name="arguments", path=word.path, line=word.line), message
        )
    for path, remark in engine.remarks:
        yield located("NotUnderstood", Severity.INFO, Place(name="", path=path), remark)
    yield from engine.findings


def _has_more(engine: FoundEngine) -> bool:
    """Than vLLM and the options that are seen: it may bring parsers along."""
    return engine.is_wrapped or engine.is_partial


def _doubtful(problem: ArgumentProblem) -> Located:
    at = Place(name="arguments", path=problem.path, line=problem.at.line)
    message = f"{problem.message}, unless something that is not seen here brings it along"
    return located(problem.rule, Severity.WARNING, at, message, problem.remediation)


def undecided_settings(line: CommandLine, *, knows_model: bool) -> list[Located]:
    """Settings that would decide, and whose value nobody knows here; the model may be named elsewhere."""
    names = [name for name in line.unknown if name in DECIDING and not (name == "model" and knows_model)]
    return [undecided(line.unknown[name]) for name in names]


def undecided(setting: GivenOption) -> Located:
    """Its value is a variable that nobody has filled in."""
    remedy = _TEMPLATE_HELP if "{{" in setting.text else _VARIABLE_HELP
    message = f"{setting.name} is {shown(setting.text)}, which has no value here"
    return located("VariableUnknown", Severity.WARNING, setting, message, remedy)


def _of_wrapper(problems: list[ArgumentProblem]) -> Iterator[Located]:
    """A slip of the pen is told; all others together are the wrapper's own."""
    own = []
    for problem in problems:
        at = Place(name="arguments", path=problem.path, line=problem.at.line)
        name = problem.at.text.partition("=")[0]
        if is_slip(problem) and not name.startswith(_NOT_OURS):
            message = f"{shown(name)} is no option of vLLM; is it one of the program around it?"
            yield located(problem.rule, Severity.WARNING, at, message, problem.remediation)
        elif problem.rule != "UnexpectedWord":
            own.append(problem)
    if own:
        names = ", ".join(dict.fromkeys(shown(problem.at.text.partition("=")[0]) for problem in own))
        at = Place(name="arguments", path=own[0].path, line=own[0].at.line)
        yield located("WrapperOptions", Severity.INFO, at, f"taken for options of the program around vLLM: {names}")
