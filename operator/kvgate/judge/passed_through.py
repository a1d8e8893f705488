"""What a spec passes on to vLLM as it is written: extraArgs and template.env. Their settings, and the findings about them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kvgate.budget.versions import parse_patch
from kvgate.record import record
from kvgate.rules.finding import Finding, Severity
from kvgate.vllm.settings import MENTIONED, read_settings, with_speculation
from kvgate.vllm.variables import (
    ALLOW_LONG,
    CACHE_MOUNT,
    FOLDERS,
    allows_any_length,
    is_outside_cache,
    looks_secret,
    moving,
)

if TYPE_CHECKING:
    from kvgate.api.template import EnvVar
    from kvgate.api.v1alpha1 import InferenceDeploymentSpec, Vllm
    from kvgate.vllm.arguments import Located
    from kvgate.vllm.parser import CommandLine


REFERENCE = re.compile(r"\$\([A-Za-z_][-._A-Za-z0-9]*\)")
"""Text that Kubernetes would replace in a pod of the user's own."""

MEASURE_WITH_IT = "leave it out, or set spec.vllm.kvCacheMemoryBytes to what an engine with it has left"


@record
class PodEnvironment:
    """Meaning of a pod's variables for its verdict."""

    kinds: tuple[str, ...] = ()
    """Features without a formula that they switch on."""
    allows_any_length: bool = False
    findings: tuple[Finding, ...] = ()


def read_environment(spec: InferenceDeploymentSpec) -> PodEnvironment:
    """A value in a Secret is not known, and counts as one that changes something."""
    variables = spec.template.env or ()
    return PodEnvironment(
        kinds=tuple(row.kind for each in variables if (row := moving(each.name, _text(each))) and row.kind),
        allows_any_length=any(each.name == ALLOW_LONG and allows_any_length(each.value or "") for each in variables),
        findings=tuple(found for index, each in enumerate(variables) for found in _findings(each, index)),
    )


def not_expanded(text: str, path: str) -> Iterator[Finding]:
    """Say that rendering escapes what looks like a reference to a variable."""
    if reference := REFERENCE.search(text):
        yield Finding(
            rule="VariableNotExpanded",
            severity=Severity.WARNING,
            field=path,
            message=f"{reference[0][:60]} reaches vLLM as it is written: nothing is replaced in what was judged",
            remediation="write the value in its place; a secret goes into a variable of its own, by secretKeyRef",
        )


def _text(variable: EnvVar) -> str | None:
    return None if variable.secret_key_ref is not None else variable.value or ""


def _findings(variable: EnvVar, index: int) -> Iterator[Finding]:
    path, text = f"spec.template.env[{index}]", _text(variable)
    if text and looks_secret(variable.name, text):
        yield Finding(
            rule="SecretInPlainText",
            severity=Severity.WARNING,
            field=f"{path}.value",
            message=f"{variable.name} is in plain text for all who may read this object; give it by secretKeyRef",
            remediation=f"keep it in a Secret: {{name: {variable.name}, secretKeyRef: {{name: SECRET, key: KEY}}}}",
        )
    elif text:
        yield from not_expanded(text, f"{path}.value")
    if text is not None and is_outside_cache(variable.name, text):
        yield Finding(
            rule="OutsideCacheVolume",
            severity=Severity.WARNING,
            field=f"{path}.value",
            message=f"{variable.name} is {text[:40]}, outside the volume at {CACHE_MOUNT}: it is lost with the container",
            remediation=f"choose a folder in {CACHE_MOUNT}, or leave it out: {variable.name} is {FOLDERS[variable.name]}",
        )
    if (row := moving(variable.name, text)) and not row.kind:
        yield Finding(
            rule="SettingMovesMemory",
            severity=Severity.WARNING,
            field=f"{path}.name",
            message=f"{variable.name} changes how much GPU memory vLLM takes; the budget is that without it",
            remediation=MEASURE_WITH_IT,
        )


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

    for setting in MENTIONED:
        option = line.given.get(setting.name)
        if option and option.value is not None and option.value not in setting.harmless:
            message = f"{setting.name} changes how much GPU memory vLLM takes; the budget is that without it"
            yield located("SettingMovesMemory", Severity.WARNING, option, message, MEASURE_WITH_IT)


def _finding(each: Located) -> Finding:
    return replace(each.finding, field=each.path or "extra_args")
