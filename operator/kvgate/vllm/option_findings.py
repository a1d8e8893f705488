"""Findings for words that vLLM's parser refuses, and for options that vLLM refuses together or of which one takes the other's effect away:
how bad they are, where they stand, and which are only unknown to kvgate."""

import json
from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from kvgate.budget import parse_patch
from kvgate.findings.finding import (
    Finding,
    Located,
    Place,
    SettingName,
    Severity,
    any_one,
    do,
    leave_out,
    located,
    words,
)
from kvgate.rules.command_line import (
    LORA_NOT_ENABLED,
    NO_EFFECT,
    OPTION_NOT_YET,
    OPTION_REMOVED,
    OPTION_REPEATED,
    OPTION_UNKNOWN,
    OPTION_VALUE,
    PARSER_UNKNOWN,
    TOOL_CALL_PARSER_MISSING,
    UNEXPECTED_WORD,
)
from kvgate.rules.settings import batch_below_max_model_len
from kvgate.vllm.arguments import Argument, GivenOption, option_name, shown
from kvgate.vllm.options import Option, Patch, newest_read, options, releases_read
from kvgate.vllm.parser import CommandLine, parse_arguments
from kvgate.vllm.parser_problems import ArgumentProblem
from kvgate.vllm.values import takes_no_value

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
    return [*unlike, *[problem for problem in line.problems if may_take_words and problem.rule == UNEXPECTED_WORD]]


_GRAPHS = ("cudagraph_capture_sizes", "max_cudagraph_capture_size", "cuda_graph_sizes", "compilation_config")
"""Settings of CUDA graphs; in the last one only some keys are."""


def contradictions(line: CommandLine) -> Iterator[Located]:
    """Find contradictions among the options that are written; defaults are not held against them."""
    settings = line.given
    yield from _batch_below_length(settings)
    yield from _options_without_effect(settings)
    enabled, modules = settings.get("enable_lora"), settings.get("lora_modules")
    if modules and modules.value and not (enabled and enabled.value is True):
        # vLLM loads the adapters that it is started with, and refuses to without LoRA
        message = words("{lora_modules} is given, and LoRA is not enabled; vLLM does not start")
        yield located(LORA_NOT_ENABLED, modules, message, do("add {enable_lora}"))
    # tools are chosen automatically only with a parser of their calls (0.6 to 0.33, `validate_parsed_serve_args`)
    enabled, parser = settings.get("enable_auto_tool_choice"), settings.get("tool_call_parser")
    is_unseen = "tool_call_parser" in line.unknown or line.open_words
    if enabled and enabled.value is True and not is_unseen and not (parser and parser.value):
        message = words("{enable_auto_tool_choice} is on, and there is no {tool_call_parser}; vLLM does not start")
        remedy = any_one(do("add {tool_call_parser} with the one for the model"), leave_out("enable_auto_tool_choice"))
        yield located(TOOL_CALL_PARSER_MISSING, enabled, message, remedy)


def _batch_below_length(settings: Mapping[str, GivenOption]) -> Iterator[Located]:
    """vLLM 0.33, `SchedulerConfig`: a prompt that is not chunked must fit one batch."""
    chunked, tokens, length = (
        settings.get(name) for name in ("enable_chunked_prefill", "max_num_batched_tokens", "max_model_len")
    )
    if chunked is None or tokens is None or length is None:
        return
    is_chunked = chunked.value is True or str(chunked.value).lower() in ("true", "1")
    if not is_chunked and isinstance(tokens.value, int) and isinstance(length.value, int):
        for finding in batch_below_max_model_len(tokens.value, length.value):
            yield Located(finding=finding, path=tokens.path, line=tokens.line)


def _options_without_effect(settings: Mapping[str, GivenOption]) -> Iterator[Located]:
    """CUDA graphs beside eager mode; the share of the memory beside the bytes of the KV cache."""
    eager = settings.get("enforce_eager")
    written = [settings[name] for name in _GRAPHS if name in settings] if eager and eager.value is True else []
    for graphs in written:
        config = graphs.value if isinstance(graphs.value, dict) else {}
        is_about_graphs = any(
            "cudagraph" in str(key) and value not in (None, "NONE", 0, []) for key, value in config.items()
        )
        if graphs.name == "compilation_config" and not is_about_graphs:
            continue
        name = SettingName(graphs.name)
        message = words("{name} configures CUDA graphs, and {enforce_eager} switches them off", name=name)
        yield located(NO_EFFECT, graphs, message, any_one(leave_out(name), leave_out("enforce_eager")))
    share, given = settings.get("gpu_memory_utilization"), settings.get("kv_cache_memory_bytes")
    if share and given and given.value:
        message = words(
            "{gpu_memory_utilization} does not size the KV cache beside {kv_cache_memory_bytes}: it only decides whether vLLM starts, "
            "because that share of the GPU must be free"
        )
        alone = do(
            "leave {gpu_memory_utilization} out where nothing else uses the GPU: vLLM's default must then be free"
        )
        remedy = any_one(alone, leave_out("kv_cache_memory_bytes"))
        yield located(NO_EFFECT, share, message, remedy, severity=Severity.INFO)
