"""The statement of a what-if: values by vLLM's names, from flags, a line of JSON, or a command line of another platform."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from kvgate.budget import DEFAULT_VERSION, Capacity, Guarantee, Workload
from kvgate.budget.host.settings import UNKNOWN_POD, PodMemory
from kvgate.findings.finding import Finding, Naming, SettingName, Severity, Words, do, words
from kvgate.rules.facts import SETTING_NOT_UNDERSTOOD, VERSION_ASSUMED
from kvgate.statement.engine import ANY_GPU, NO_GPU, EngineStatement, is_known_release
from kvgate.vllm.arguments import option_name
from kvgate.vllm.given_settings import Doubt, doubt_of, read_settings, with_whole_configs
from kvgate.vllm.settings import DECIDING, WHAT_IFS
from kvgate.vllm.values import UnusableValue
from kvgate.vllm.variables import ALLOW_LONG

_KEYS = DECIDING | {setting.name for setting in WHAT_IFS} | {"id", "revision", ALLOW_LONG}
SIZES = ("kv_cache_memory_bytes", "num_gpu_blocks_override")
"""Options that set the size of the KV cache. A user sets one of them, or lets kvgate pin the size."""


class BadRequest(UnusableValue):
    """A question that has no answer because of the values in it; the message names every problem."""

    def __init__(self, message: str, problems: Mapping[str, Words] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.problems = problems
        """Each problem by the name of its setting."""


def statement_of_values(
    given: Mapping[str, Any],
    *,
    guarantee: Guarantee = Guarantee.STARTUP,
    workload: Workload | None = None,
    is_whole: bool = False,
    naming: Naming = option_name,
    pod: PodMemory | None = None,
    is_parsed: bool = False,
) -> EngineStatement:
    """Return what the values say. Raise BadRequest with all problems at once.

    `is_whole`: vLLM is started with these values alone, so that the rest is its defaults. `naming` names the settings in findings.
    `pod`: memory of the host, where the values do not state it. `is_parsed`: the values were read from a command line, so that
    vLLM's parser takes them.
    """
    values = with_whole_configs(given)
    known, doubt, about_values = _understood(values, naming, is_parsed=is_parsed)
    limit, shm, node = (known.get(name) for name in ("host_memory_limit_bytes", "shm_bytes", "node_memory_bytes"))
    stated_pod = PodMemory(limit_bytes=limit, shm_bytes=shm, node_bytes=node) if limit or shm or node else UNKNOWN_POD
    return EngineStatement(
        values=values,
        known=known,
        doubt=doubt,
        findings=(*about_values, *_remarks(values, known)),
        guarantee=guarantee,
        workload=workload,
        gpus=NO_GPU if known.get("gpu") or "gpu_memory_bytes" in known else ANY_GPU,
        pod=pod or stated_pod,
        is_whole=is_whole,
    )


def _understood(
    values: Mapping[str, Any], naming: Naming, *, is_parsed: bool
) -> tuple[dict[str, Any], Doubt, tuple[Finding, ...]]:
    """Return the settings, those whose words nobody knows, and the findings about them. Raises BadRequest with every problem."""
    known, found = read_settings(values)
    doubt = doubt_of(values, found)
    problems = {name: problem for name, problem in found.items() if name not in doubt.words}
    refused = {} if is_parsed or problems else _refused(values)
    certain = {name for name, finding in refused.items() if finding.severity is Severity.ERROR}
    known = {name: value for name, value in known.items() if name not in certain}
    doubt = doubt.without(certain)
    if not problems and "model" not in known and "model_config" not in known:
        missing = "{model} and {model_config} are missing; give a Hugging Face id, or the model's config.json"
        problems["model"] = words(missing)
    if known.get("capacity") is Capacity.PINNED:
        message = "{capacity} Pinned and {size} both set the size of the KV cache; leave one of them out"
        problems |= {name: words(message, size=SettingName(name)) for name in SIZES if name in known}
    if problems:
        raise BadRequest("; ".join(problem.worded(naming) for problem in problems.values()), problems)
    refusals = (finding for name, finding in refused.items() if name not in doubt.words)
    return known, doubt, (*refusals, *doubt.findings(found))


def _refused(values: Mapping[str, Any]) -> dict[str, Finding]:
    """Return what vLLM's parser refuses of values that nobody has read from a command line; nothing where the release is not known."""
    version = values.get("vllm_version") or DEFAULT_VERSION
    if not isinstance(version, str) or not is_known_release(version):
        return {}
    from kvgate.vllm.option_findings import refused_values

    return refused_values(values, version, is_stated=bool(values.get("vllm_version")))


def _remarks(values: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[Finding]:
    """Report the assumptions, and the settings that kvgate does not know."""
    if "vllm_version" not in known:
        message = words("no {vllm_version} is given: {release} is assumed", release=DEFAULT_VERSION)
        yield VERSION_ASSUMED.finding("vllm_version", message, do("give {vllm_version}"))
    for key, value in values.items():
        if key not in _KEYS and value is not None:
            yield SETTING_NOT_UNDERSTOOD.finding(key, f"{key} is not understood here and changes no number")
