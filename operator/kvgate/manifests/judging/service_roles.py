"""Prefill and decode of one service: whether the KV cache can pass from one to the other, by what both state."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from kvgate.budget import parse_patch
from kvgate.findings.finding import Located, Place, located, words
from kvgate.manifests.judging.engine_budget import names_of
from kvgate.manifests.judging.judgement import JudgedEngine
from kvgate.rules.connectors import ROLES_DO_NOT_MATCH, Role, mismatches_of_roles
from kvgate.vllm.json_values import kv_connectors
from kvgate.vllm.parser import CommandLine, parse_arguments
from kvgate.vllm.values import UnusableValue

_ENDS = {" (prefill)": "prefill", " (decode)": "decode"}
_DEFAULT_OF_PLATFORM = {"dynamo": "NixlConnector", "kaito": "NixlConnector"}
"""Connector that a platform adds where none is stated: Dynamo (`components/src/dynamo/vllm/args.py`), KAITO's MultiRoleInference."""
_FROM_A_TEMPLATE = ("kserve",)
"""Platforms that may take one from a template of the cluster."""


def judge_roles(judged: Sequence[JudgedEngine]) -> list[JudgedEngine]:
    """Return the judgements, with what keeps prefill and decode of one service from passing the cache; it is said at decode."""
    answers = list(judged)
    for prefill, decode in _pairs(judged):
        findings = tuple(_findings(judged[prefill], judged[decode]))
        answers[decode] = replace(answers[decode], findings=(*answers[decode].findings, *findings))
    return answers


def _pairs(judged: Sequence[JudgedEngine]) -> Iterator[tuple[int, int]]:
    """Yield (prefill, decode) of each service: engines of one document whose names say so; a decode may have the service's own name."""
    found: dict[tuple[str, int, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, each in enumerate(judged):
        end = next((end for end in _ENDS if each.engine.name.endswith(end)), "")
        position = each.engine.document.position
        service = (each.engine.document.file, position.line, each.engine.name.removesuffix(end))
        if each.vllm_version:
            found[service][_ENDS.get(end, "decode")].append(index)
    for roles in found.values():
        if len(roles["prefill"]) == len(roles["decode"]) == 1:
            yield roles["prefill"][0], roles["decode"][0]


def _findings(prefill: JudgedEngine, decode: JudgedEngine) -> Iterator[Located]:
    lines = [
        parse_arguments(each.engine.arguments, parse_patch(each.vllm_version), program=each.engine.program)
        for each in (prefill, decode)
    ]
    roles = [_role(each, line) for each, line in zip((prefill, decode), lines, strict=True)]
    if roles[0] is None or roles[1] is None:
        return
    for setting, reason in mismatches_of_roles(roles[0], roles[1], decode.vllm_version):
        given = lines[1].given.get(setting)
        at = given or Place(name=setting, path=decode.engine.path)
        message = words("{reason}: the KV cache does not pass from prefill to decode", reason=reason)
        remedy = "give both roles the same connector and the same values, as the connector needs"
        yield located(ROLES_DO_NOT_MATCH, at, message, remedy).named(names_of(decode.engine, lines[1]))


def _role(judged: JudgedEngine, line: CommandLine) -> Role | None:
    """Return what one of both states; None where its connector or another option is not known."""
    platform, given = judged.engine.platform, line.given
    config = given.get("kv_transfer_config")
    is_open = judged.options_set is None or judged.engine.is_wrapped or platform in _FROM_A_TEMPLATE
    if config is None and platform not in _DEFAULT_OF_PLATFORM and is_open:
        return None
    try:
        connectors = kv_connectors(config.value) if config else ()
    except UnusableValue:
        return None
    default = _DEFAULT_OF_PLATFORM.get(platform)
    names = frozenset(each.name for each in connectors) or frozenset({default} if default else ())
    size = given.get("tensor_parallel_size")
    blocks, dtype = (given[name].value if name in given else None for name in ("block_size", "kv_cache_dtype"))
    return Role(
        connectors=names,
        kv_roles=frozenset(each.role for each in connectors if each.role),
        model=judged.model or "",
        kv_cache_dtype=str(dtype or "auto"),
        block_size=blocks if isinstance(blocks, int) else None,
        tensor_parallel_size=None if "tensor_parallel_size" in line.unknown else int(size.value) if size else 1,
    )
