"""Options that extraArgs of an InferenceDeployment must not contain: those that a field owns, secrets, and those that its pod
cannot hold, which is one pod on one host, with every rank in it and HTTP on one port.

The last kind was read in vLLM 0.33.0: `ServeSubcommand.cmd`, `setup_server`, `EngineArgs.create_engine_config`, `ParallelConfig`,
`DPSupervisor`, `ExecutorWithExternalLauncher`. Options that are not here leave probes, port, hosts and GPUs as they are rendered:
--root-path (routes are found with and without it), --middleware, --allowed-*, --disable-uvicorn-access-log, --api-server-count above 0,
--grpc-port (beside HTTP), --master-addr and --data-parallel-address (of no use on one host), ray on the GPUs of the pod.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from kvgate.findings.finding import Located, Severity, located
from kvgate.rules.command_line import POD_CANNOT_SERVE
from kvgate.vllm.arguments import option_name, shown
from kvgate.vllm.settings import SETTINGS, Owner, Setting

if TYPE_CHECKING:  # the API types need the patterns below, and not the parser
    from kvgate.vllm.parser import CommandLine

OWNED_FLAGS: Mapping[str, Setting] = {
    flag: each for each in SETTINGS if each.owner is not Owner.USER for flag in each.flags
}
"""Every name of an option that a field or kvgate itself owns. vLLM also takes `_` for `-`, and unique abbreviations."""
SECRET_FLAGS = {
    "--api-key": "the variable VLLM_API_KEY in template.env with secretKeyRef",
    "--hf-token": "model.tokenSecretRef",
}
"""Options whose value is a secret → where a spec has it. Everybody who sees the pod sees extraArgs."""

_MIN_ABBREVIATION = 5
"""`--` and three letters: no shorter beginning is unique, and no option of vLLM's is the beginning of one of ours."""


def _spellings(flag: str) -> str:
    """Return the pattern of an option as vLLM's parser reads it: `_` for `-`, unique abbreviations, `=value`, `.key`."""
    if not flag.startswith("--"):
        return f"{flag}.*" if len(flag) == 2 else f"{flag}(=.*)?"  # -q takes its value attached: -qfp8
    letters = re.findall(r"\[-_\]|\w", flag[2:].replace("-", "[-_]"))
    stem, rest = letters[: _MIN_ABBREVIATION - 2], letters[_MIN_ABBREVIATION - 2 :]
    return f"--{''.join(stem)}{''.join(f'({letter}' for letter in rest)}{')?' * len(rest)}([=.].*)?"


OWNED_FLAG_PATTERN = "^(" + "|".join(map(_spellings, OWNED_FLAGS)) + ")$"
SECRET_FLAG_PATTERN = "^(" + "|".join(map(_spellings, SECRET_FLAGS)) + ")$"
"""RE2 syntax, so that CEL and Python agree."""


def owned_flag(argument: str) -> bool:
    """Return whether an argument sets an option of OWNED_FLAGS, in any spelling that vLLM's parser takes."""
    return re.fullmatch(OWNED_FLAG_PATTERN, argument) is not None


def secret_flag(argument: str) -> bool:
    """Return whether an argument is an option that takes a secret."""
    return re.fullmatch(SECRET_FLAG_PATTERN, argument) is not None


class PodOption(Struct, frozen=True, kw_only=True):
    """One option, the values with which the pod cannot serve, and the effect."""

    name: str
    """vLLM's name of the setting."""
    breaks: Callable[[Any, int], bool]
    """It returns whether the option breaks the pod, from its value and the data parallel size of the spec."""
    effect: str
    """Completes `--option value: vLLM …`."""
    instead: str
    when: str = ""
    """The values that break the pod, in words; empty: any value."""
    severity: Severity = Severity.ERROR


def _is_set(value: Any, _: int) -> bool:
    return bool(value)


def _is_set_for_several(value: Any, copies: int) -> bool:
    return bool(value) and copies > 1


def _is_above(bound: int) -> Callable[[Any, int], bool]:
    return lambda value, _: isinstance(value, int) and value > bound


_NO_TLS = (
    "speaks HTTPS, and the probes, the Service and the scrape of its metrics speak HTTP: the pod never becomes ready"
)
_END_TLS = "leave it out, and end TLS before the Service: at a Gateway, an Ingress or a mesh"
_HTTP = "leave it out: kvgate renders a server that speaks HTTP on port 8000"
_ONE_HOST = "leave it out, and choose parallel sizes for the GPUs of one host: an engine is one pod"
_ALL_RANKS = "leave it out: a pod holds all data parallel ranks, and one server deals the requests out to them"

POD_OPTIONS: tuple[PodOption, ...] = (
    PodOption(name="ssl_certfile", breaks=_is_set, effect=_NO_TLS, instead=_END_TLS),
    PodOption(name="ssl_keyfile", breaks=_is_set, effect=_NO_TLS, instead=_END_TLS),
    PodOption(name="uds", breaks=_is_set, effect="listens on a Unix socket and on no port", instead=_HTTP),
    PodOption(name="grpc", breaks=_is_set, effect="speaks gRPC and answers no HTTP", instead=_HTTP),
    PodOption(name="headless", breaks=_is_set, effect="starts no API server", instead=_HTTP),
    PodOption(
        name="api_server_count",
        breaks=lambda value, _: isinstance(value, int) and value < 1,
        effect="starts no API server",
        when="below 1",
        instead=_HTTP,
    ),
    PodOption(
        name="nnodes",
        breaks=_is_above(1),
        effect="waits for other hosts, and there are none",
        when="above 1",
        instead=_ONE_HOST,
    ),
    PodOption(
        name="node_rank",
        breaks=_is_above(0),
        effect="waits for its first host, and there is none",
        when="above 0",
        instead=_ONE_HOST,
    ),
    PodOption(
        name="distributed_executor_backend",
        breaks=lambda value, _: value == "external_launcher",
        effect="is started by torchrun, and not as a server",
        when="external_launcher",
        instead="leave it out",
    ),
    PodOption(
        name="data_parallel_size_local",
        breaks=lambda value, copies: isinstance(value, int) and value != copies,
        effect="runs another number of data parallel ranks here than spec.vllm.dataParallelSize, and waits for the others",
        when="other than `dataParallelSize`",
        instead=_ALL_RANKS,
    ),
    PodOption(
        name="data_parallel_rank",
        breaks=lambda value, copies: isinstance(value, int) and (value > 0 or copies > 1),
        effect="runs one data parallel rank and waits for the others in other pods",
        when="with `dataParallelSize` above 1",
        instead=_ALL_RANKS,
    ),
    PodOption(
        name="data_parallel_start_rank",
        breaks=_is_above(0),
        effect="runs the later data parallel ranks and waits for the first ones in other pods",
        when="above 0",
        instead=_ALL_RANKS,
    ),
    PodOption(
        name="data_parallel_external_lb",
        breaks=_is_set_for_several,
        effect="runs one data parallel rank and waits for the others in other pods",
        when="with `dataParallelSize` above 1",
        instead=_ALL_RANKS,
    ),
    PodOption(
        name="data_parallel_multi_port_external_lb",
        breaks=_is_set_for_several,
        effect="listens on a port for each data parallel rank, and the Service leads to the first one only",
        when="with `dataParallelSize` above 1",
        instead=_ALL_RANKS,
    ),
    PodOption(
        name="disable_log_stats",
        breaks=_is_set,
        effect="exports no metrics: the prediction cannot be held against what the engine has",
        instead="leave it out",
        severity=Severity.WARNING,
    ),
)


def pod_problems(line: CommandLine, *, data_parallel_size: int) -> Iterator[Located]:
    """Yield the options of the line with which the pod cannot serve, in the order of the table."""
    for option in POD_OPTIONS:
        given = line.given.get(option.name)
        if given is not None and option.breaks(given.value, data_parallel_size):
            text = "" if given.value is True else f" {shown(given.text)}"
            message = f"{option_name(option.name)}{text}: vLLM {option.effect}"
            yield located(POD_CANNOT_SERVE, given, message, option.instead, severity=option.severity)
