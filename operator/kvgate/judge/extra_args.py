"""extraArgs of an InferenceDeployment as vLLM's parser reads them: what they set, and what it would refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kvgate.budget.versions import parse_patch
from kvgate.judge.pod_environment import MEASURE_WITH_IT, not_expanded
from kvgate.record import record
from kvgate.rules.finding import Finding, Severity
from kvgate.vllm.cache_flags import with_speculation
from kvgate.vllm.memory_settings import MENTIONED
from kvgate.vllm.what_if_settings import read_settings

if TYPE_CHECKING:  # a short run needs neither pydantic (other platforms' manifests) nor the parser (no extraArgs)
    from kvgate.api.v1alpha1 import Vllm
    from kvgate.vllm.arguments import Located
    from kvgate.vllm.parser import CommandLine


@record
class ExtraArgs:
    """Values by vLLM's names, as its parser types them; the settings among them that the budget reads; what is wrong."""

    values: Mapping[str, Any]
    known: Mapping[str, Any]
    given: frozenset[str] = frozenset()
    """Names of all settings that are written."""
    findings: tuple[Finding, ...] = ()


NO_EXTRA_ARGS = ExtraArgs(values={}, known={})


def read_extra_args(vllm: Vllm) -> ExtraArgs:
    """An image of one's own may take what vLLM's image of the release does not. Raises UnknownVersion."""
    if not vllm.extra_args:
        return NO_EXTRA_ARGS
    copies = vllm.data_parallel_size
    return _read(vllm.extra_args, vllm.version, is_own_image=vllm.image is not None, data_parallel_size=copies)


@lru_cache(maxsize=1024)
def _read(extra_args: tuple[str, ...], version: str, *, is_own_image: bool, data_parallel_size: int) -> ExtraArgs:
    from kvgate.vllm.arguments import Argument
    from kvgate.vllm.contradictions import contradictions
    from kvgate.vllm.option_findings import problem_findings, repetitions
    from kvgate.vllm.options import newest_read
    from kvgate.vllm.parser import parse_arguments
    from kvgate.vllm.pod_options import pod_problems

    release = parse_patch(version)
    model = Argument(text="model", path="")
    words = [Argument(text=text, path=f"spec.vllm.extraArgs[{index}]") for index, text in enumerate(extra_args)]
    line = parse_arguments([model, *words], release, is_literal=True)
    values = with_speculation({name: setting.value for name, setting in line.given.items()})
    known, problems = read_settings(values)
    is_beyond = is_own_image or release > newest_read()
    told = [
        *problem_findings(line, is_beyond=is_beyond, is_stated=True),
        *repetitions(line),
        *_unusable(line, problems, Severity.WARNING if is_beyond else Severity.ERROR),
        *contradictions(line),
        *pod_problems(line, data_parallel_size=data_parallel_size),
    ]
    told += _moving(line)
    findings = (*map(_finding, told), *(found for word in words for found in not_expanded(word.text, word.path)))
    return ExtraArgs(values=values, known=known, given=line.names, findings=findings)


def _unusable(line: CommandLine, problems: Mapping[str, str], severity: Severity) -> Iterator[Located]:
    """Values that vLLM's parser takes, and what comes after it does not."""
    from kvgate.vllm.arguments import located

    for name, problem in problems.items():
        if setting := line.given.get(name):
            yield located("InvalidSetting", severity, setting, problem, "give a value that vLLM takes")


def _moving(line: CommandLine) -> Iterator[Located]:
    """Settings that move GPU memory by an amount that no formula here knows."""
    from kvgate.vllm.arguments import located

    for name, harmless in MENTIONED.items():
        setting = line.given.get(name)
        if setting and setting.value is not None and setting.value not in harmless:
            message = f"{name} changes how much GPU memory vLLM takes; the budget is that without it"
            yield located("SettingMovesMemory", Severity.WARNING, setting, message, MEASURE_WITH_IT)


def _finding(each: Located) -> Finding:
    return replace(each.finding, field=each.path or "extra_args")
