"""What is said of a command line by itself: what vLLM's parser refuses, what is written twice, what nobody knows here."""

from collections.abc import Iterator
from dataclasses import replace

from kvgate.budget.versions import DEFAULT_VERSION
from kvgate.manifests.argument_problems import ArgumentProblem
from kvgate.manifests.arguments import Setting, shown
from kvgate.manifests.engine_found import FoundEngine
from kvgate.manifests.located import Located, Place, located
from kvgate.manifests.vllm_args import CommandLine
from kvgate.rules.finding import Severity
from kvgate.vllm_flags import MEMORY_FLAGS
from kvgate.what_if_settings import SETTINGS

_DECIDING = frozenset(
    {setting.name for setting in SETTINGS} | {flag[2:].replace("-", "_") for flag in MEMORY_FLAGS} | {"model"}
)
"""Settings without whose value nothing can be decided."""
_PARSER_RULES = ("OptionUnknown", "OptionAmbiguous", "UnexpectedWord")
"""Problems that are none where another program takes the options first."""
_MAY_BE_NEW = ("OptionUnknown", "OptionValue", "UnexpectedWord")
"""Problems that a release which nobody has read may not have."""
_VARIABLE_HELP = "give the variable a value in the same input, or check what is rendered"
_TEMPLATE_HELP = "this is a template; render it first: helm template CHART | kvgate check -"
_NOT_OURS = ("--dyn-", "--kaito-")
"""Beginnings of options that wrappers keep for themselves."""


def line_findings(line: CommandLine, engine: FoundEngine, *, is_beyond: bool, is_stated: bool) -> Iterator[Located]:
    """Everything, in the order of the line. `is_beyond`: the release is newer than those that kvgate knows."""
    uncertain = _uncertain(line, is_beyond=is_beyond, is_stated=is_stated)
    wrapped = [problem for problem in line.problems if engine.is_wrapped and problem.rule in _PARSER_RULES]
    for index, problem in enumerate(line.problems, start=1):
        more = line.num_more_problems if index == len(line.problems) else 0
        if problem not in wrapped:
            yield _softened(problem, more) if problem in uncertain else _problem(problem, more)
    yield from _of_wrapper(wrapped)
    for setting in line.repeated.values():
        last = line.settings.get(setting.name) or line.unknown.get(setting.name)
        same = last is not None and last.value == setting.value
        message = f"{setting.name} is set to {shown(setting.text)} here and again later; the later one counts"
        severity = Severity.INFO if same else Severity.WARNING
        yield located("OptionRepeated", severity, setting, message, "keep one of them")
    for word in line.open_words:
        message = f"{shown(word.text)} is not known here: any options in it are not judged"
        yield located(
            "VariableUnknown", Severity.INFO, Place(name="arguments", path=word.path, line=word.line), message
        )
    for path, remark in engine.remarks:
        yield located("NotUnderstood", Severity.INFO, Place(name="", path=path), remark)
    yield from engine.findings


def undecided_settings(line: CommandLine, *, knows_model: bool) -> list[Located]:
    """Settings that would decide, and whose value nobody knows here; the model may be named elsewhere."""
    names = [name for name in line.unknown if name in _DECIDING and not (name == "model" and knows_model)]
    return [_undecided(line.unknown[name]) for name in names]


def _undecided(setting: Setting) -> Located:
    remedy = _TEMPLATE_HELP if "{{" in setting.text else _VARIABLE_HELP
    message = f"{setting.name} is {shown(setting.text)}, which has no value here"
    return located("VariableUnknown", Severity.WARNING, setting, message, remedy)


def _problem(problem: ArgumentProblem, num_more: int) -> Located:
    severity = Severity.WARNING if problem.rule == "OptionDeprecated" else Severity.ERROR
    at = Place(name="arguments", path=problem.path, line=problem.at.line)
    message = f"{problem.message}; the line has {num_more} more problems" if num_more else problem.message
    return located(problem.rule, severity, at, message, problem.remediation)


def _is_slip(problem: ArgumentProblem) -> bool:
    """Of the pen: it is like an option of vLLM's."""
    return problem.remediation.startswith("did you mean")


def _uncertain(line: CommandLine, *, is_beyond: bool, is_stated: bool) -> list[ArgumentProblem]:
    """What a newer release may take. Where none is stated, an option like none of vLLM's is rather a new one than a slip."""
    if is_beyond or is_stated:
        return [problem for problem in line.problems if is_beyond and problem.rule in _MAY_BE_NEW]
    unlike = [problem for problem in line.problems if problem.rule == "OptionUnknown" and not _is_slip(problem)]
    return [problem for problem in line.problems if unlike and (problem in unlike or problem.rule == "UnexpectedWord")]


def _softened(problem: ArgumentProblem, num_more: int) -> Located:
    """As far as kvgate knows."""
    told = _problem(problem, num_more)
    message = f"as of vLLM {DEFAULT_VERSION}, the newest that kvgate knows, {told.finding.message}"
    return replace(told, finding=replace(told.finding, severity=Severity.WARNING, message=message))


def _of_wrapper(problems: list[ArgumentProblem]) -> Iterator[Located]:
    """A slip of the pen is told; all others together are the wrapper's own."""
    own = []
    for problem in problems:
        at = Place(name="arguments", path=problem.path, line=problem.at.line)
        name = problem.at.text.partition("=")[0]
        if _is_slip(problem) and not name.startswith(_NOT_OURS):
            message = f"{shown(name)} is no option of vLLM; is it one of the program around it?"
            yield located(problem.rule, Severity.WARNING, at, message, problem.remediation)
        elif problem.rule != "UnexpectedWord":
            own.append(problem)
    if own:
        names = ", ".join(dict.fromkeys(shown(problem.at.text.partition("=")[0]) for problem in own))
        at = Place(name="arguments", path=own[0].path, line=own[0].at.line)
        yield located("WrapperOptions", Severity.INFO, at, f"taken for options of the program around vLLM: {names}")
