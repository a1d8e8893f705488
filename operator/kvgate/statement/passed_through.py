"""The parts of a spec that vLLM gets as they are written, extraArgs and template.env: the settings in them, and the findings about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate.api.quantity import parse_quantity
from kvgate.budget import parse_patch
from kvgate.findings.finding import Finding, Remedy, Severity, Words, any_one, do, words
from kvgate.rules.command_line import (
    INVALID_SETTING,
    LOADS_UNJUDGED,
    OUTSIDE_CACHE_VOLUME,
    SECRET_IN_PLAIN_TEXT,
    SETTING_MOVES_MEMORY,
    VARIABLE_NOT_EXPANDED,
)
from kvgate.statement.engine import ACCELERATOR_RESOURCE
from kvgate.text.patterns import pattern
from kvgate.vllm.given_settings import Doubt, doubt_of, read_settings, with_whole_configs
from kvgate.vllm.settings import MENTIONED
from kvgate.vllm.values import UnusableValue, gibibytes
from kvgate.vllm.variables import (
    ALLOW_LONG,
    CACHE_MOUNT,
    FOLDERS,
    LMCACHE_SIZE,
    RESERVED,
    allows_any_length,
    circumstances_by,
    is_outside_cache,
    loading,
    looks_secret,
    moving,
)

if TYPE_CHECKING:
    from kvgate.api.template import EnvVar
    from kvgate.api.v1alpha1 import InferenceDeploymentSpec, Vllm


def moves_memory(name: str) -> tuple[Words, Remedy]:
    """Message and remedy of SettingMovesMemory for a variable or an option."""
    message = words("{name} changes how much GPU memory vLLM takes; the budget is computed without it", name=name)
    measured = do("set {kv_cache_memory_bytes} to what an engine with {name} has left", name=name)
    return message, any_one(do("leave {name} out", name=name), measured)


class ExtraArgs(Struct, frozen=True, kw_only=True):
    """extraArgs as vLLM's parser reads them."""

    values: Mapping[str, Any]
    """Values by vLLM's names, as its parser types them."""
    known: Mapping[str, Any]
    """Values of the settings that the budget reads."""
    doubt: Doubt = Doubt()
    given: frozenset[str] = frozenset()
    """Names of all options that are written."""
    findings: tuple[Finding, ...] = ()


NO_EXTRA_ARGS = ExtraArgs(values={}, known={})


def read_extra_args(vllm: Vllm) -> ExtraArgs:
    """Read extraArgs for the release of the spec. An image of the user's own may take more than vLLM's. Raise UnknownVersion."""
    if not vllm.extra_args:
        return NO_EXTRA_ARGS
    copies = vllm.data_parallel_size
    return _read(vllm.extra_args, vllm.version, is_own_image=vllm.image is not None, data_parallel_size=copies)


@lru_cache(maxsize=1024)
def _read(extra_args: tuple[str, ...], version: str, *, is_own_image: bool, data_parallel_size: int) -> ExtraArgs:
    from kvgate.findings.finding import Located, located
    from kvgate.vllm.arguments import Argument
    from kvgate.vllm.option_findings import contradictions, problem_findings, repetitions
    from kvgate.vllm.options import newest_read
    from kvgate.vllm.parser import parse_arguments
    from kvgate.vllm.pod_options import pod_problems

    release = parse_patch(version)
    model = Argument(text="model", path="")
    arguments = [Argument(text=text, path=f"spec.vllm.extraArgs[{index}]") for index, text in enumerate(extra_args)]
    line = parse_arguments([model, *arguments], release, is_literal=True)
    values = with_whole_configs({name: option.value for name, option in line.given.items()})
    known, problems = read_settings(values)
    is_beyond = is_own_image or release > newest_read()
    doubt = doubt_of(values, problems)
    about_doubt = {finding.field: finding for finding in doubt.findings(problems)}
    refused = Severity.WARNING if is_beyond else Severity.ERROR
    found = [
        *problem_findings(line, is_beyond=is_beyond, is_stated=True),
        *repetitions(line),
        *(
            located(INVALID_SETTING, line.given[name], problem, "give a value that vLLM takes", severity=refused)
            for name, problem in problems.items()
            if name in line.given and name not in doubt.words
        ),
        *(
            Located(finding=each, path=line.given[name].path)
            for name, each in about_doubt.items()
            if name in line.given
        ),
        *contradictions(line),
        *pod_problems(line, data_parallel_size=data_parallel_size),
    ]
    for setting in MENTIONED:
        option = line.given.get(setting.name)
        if option and option.value is not None and option.value not in setting.harmless:
            found.append(located(SETTING_MOVES_MEMORY, option, *moves_memory(setting.flag)))
    findings = [replace(each.finding, field=each.path or "extra_args") for each in found]
    findings += [finding for word in arguments for finding in not_expanded(word.text, word.path)]
    return ExtraArgs(values=values, known=known, doubt=doubt, given=line.names, findings=tuple(findings))


class PodEnvironment(Struct, frozen=True, kw_only=True):
    """Meaning of template.env for the verdict."""

    kinds: tuple[str, ...] = ()
    """Features without a formula that its variables switch on."""
    allows_any_length: bool = False
    """vLLM takes any max_model_len."""
    circumstances: Mapping[str, Any] = {}
    """Circumstances that its variables tell, by the names of `vllm/settings.py`."""
    findings: tuple[Finding, ...] = ()


_NO_ENVIRONMENT = PodEnvironment()


def read_environment(spec: InferenceDeploymentSpec) -> PodEnvironment:
    """Read template.env. A value in a Secret is not known, and counts as one that changes something."""
    variables, sources = spec.template.env or (), spec.template.env_from or ()
    if not variables and not sources:
        return _NO_ENVIRONMENT
    texts = {each.name: each.value or "" for each in variables if each.secret_key_ref is None}
    circumstances = dict(circumstances_by(texts))
    with suppress(UnusableValue):  # a text that is no number is left to LMCache
        circumstances["lmcache_max_local_cpu_size"] = gibibytes(texts.get(LMCACHE_SIZE))
    return PodEnvironment(
        kinds=tuple(row.unmodelled for each in variables if (row := moving(each.name, _text(each))) and row.unmodelled),
        circumstances=circumstances,
        allows_any_length=bool(sources)
        or any(each.name == ALLOW_LONG and allows_any_length(each.value or "") for each in variables),
        findings=(
            *(found for index, each in enumerate(variables) for found in _about_variable(each, index)),
            *(_about_source(each, index) for index, each in enumerate(sources)),
        ),
    )


def _text(variable: EnvVar) -> str | None:
    return None if variable.secret_key_ref is not None else variable.value or ""


def _about_variable(variable: EnvVar, index: int) -> Iterator[Finding]:
    path, text = f"spec.template.env[{index}]", _text(variable)
    if text and looks_secret(variable.name, text):
        yield SECRET_IN_PLAIN_TEXT.finding(
            f"{path}.value",
            f"{variable.name} is in plain text for all who may read this object; give it by secretKeyRef",
            f"keep it in a Secret: {{name: {variable.name}, secretKeyRef: {{name: SECRET, key: KEY}}}}",
        )
    elif text:
        yield from not_expanded(text, f"{path}.value")
    if text is not None and is_outside_cache(variable.name, text):
        yield OUTSIDE_CACHE_VOLUME.finding(
            f"{path}.value",
            f"{variable.name} is {text[:40]}, outside the volume at {CACHE_MOUNT}: it is lost with the container",
            any_one(
                f"choose a folder in {CACHE_MOUNT}",
                f"leave {variable.name} out, which then is {FOLDERS[variable.name]}",
            ),
        )
    if other := loading(variable.name, text):
        yield LOADS_UNJUDGED.finding(
            f"{path}.name",
            f"{variable.name}: {other.effect}",
            any_one(f"leave {variable.name} out", other.instead),
        )
    if (row := moving(variable.name, text)) and not row.unmodelled:
        yield SETTING_MOVES_MEMORY.finding(f"{path}.name", *moves_memory(variable.name))


def containers_with_gpus(spec: InferenceDeploymentSpec) -> tuple[str, ...]:
    """Return the containers beside vLLM that request a GPU, or that choose one by a variable, in words."""
    template = spec.template
    others = (*(template.init_containers or ()), *(template.containers or ()))
    return tuple(f"the container {each['name']}, which takes a GPU," for each in others if _takes_gpu(each))


def _takes_gpu(container: Mapping[str, Any]) -> bool:
    resources = container.get("resources", {})
    amounts = {**resources.get("requests", {}), **resources.get("limits", {})}
    requests = (name for name, amount in amounts.items() if parse_quantity(amount))
    chosen = (RESERVED[0].hold(each["name"]) for each in container.get("env", ()))
    is_claim = any(ACCELERATOR_RESOURCE.fullmatch(name) or name.startswith("nvidia.com/") for name in requests)
    return is_claim or any(chosen)


def _about_source(source: Mapping[str, Any], index: int) -> Finding:
    """Report a ConfigMap or a Secret with variables: nobody has read it."""
    kind, reference = (
        ("Secret", source["secretRef"]) if "secretRef" in source else ("ConfigMap", source.get("configMapRef", {}))
    )
    name = f"{kind} {reference.get('name', '')}"
    return LOADS_UNJUDGED.finding(
        f"spec.template.envFrom[{index}]",
        f"the variables in {name} are not read, and may load what was not judged or move GPU memory",
        "write those that vLLM reads into template.env, which wins",
    )


REFERENCE = pattern(r"\$\([A-Za-z_][-._A-Za-z0-9]*\)")
"""A reference to a variable, as Kubernetes would replace it in a pod that the user writes."""


def not_expanded(text: str, path: str) -> Iterator[Finding]:
    """Report a text that looks like a reference to a variable: rendering escapes it."""
    if reference := REFERENCE.search(text):
        yield VARIABLE_NOT_EXPANDED.finding(
            path,
            f"{reference[0][:60]} reaches vLLM as it is written: no variable is replaced in a text that was judged",
            any_one("write the value in its place", "put a secret into a variable of its own, by secretKeyRef"),
        )
