"""Engines of one service: whether prefill can pass its KV cache to decode, and whether equal ones hold as much."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget import Verdict, parse_patch
from kvgate.documents.reading import Document
from kvgate.documents.written import Written
from kvgate.findings.finding import Place, located, words
from kvgate.judgement.assessment import NOT_JUDGED
from kvgate.manifests.judging.engine_budget import names_of
from kvgate.manifests.judging.judgement import JudgedEngine
from kvgate.rules.connectors import ROLES_DO_NOT_MATCH, Role, mismatches_of_roles
from kvgate.rules.manifests import REPLICAS_DIFFER
from kvgate.text.patterns import pattern
from kvgate.vllm.json_values import kv_connectors
from kvgate.vllm.parser import CommandLine, parse_arguments
from kvgate.vllm.values import UnusableValue

_NAME = pattern(r"(.{1,300}) \([^()]{0,100}?(prefill|decode)[^()]{0,100}\)", re.IGNORECASE)
"""Name of an engine that plays a role of a service: `chat (prefill)`, `chat (VllmDecodeWorker)`."""
_DEFAULT_OF_PLATFORM = {"dynamo": "NixlConnector", "kaito": "NixlConnector"}
"""Connector that a platform adds where none is stated: Dynamo (`components/src/dynamo/vllm/args.py`), KAITO's MultiRoleInference."""
_FROM_A_TEMPLATE = ("kserve", "llm-d-benchmark")
"""Platforms that may take one from a template which is not in the input."""


def judge_roles(judged: Sequence[JudgedEngine]) -> list[JudgedEngine]:
    """Return the judgements, with what keeps prefill and decode of one service from passing the cache; it is said at decode."""
    answers = list(judged)
    for indexes in _pairs(judged):
        both, at_decode = [judged[index] for index in indexes], indexes[1]
        lines = [
            parse_arguments(each.engine.arguments, parse_patch(each.vllm_version), program=each.engine.program)
            for each in both
        ]
        prefill, decode = (_role(each, line) for each, line in zip(both, lines, strict=True))
        if prefill is None or decode is None:
            continue
        engine, findings = both[1].engine, list(answers[at_decode].findings)
        for setting, reason in mismatches_of_roles(prefill, decode, both[1].vllm_version):
            at = lines[1].given.get(setting) or Place(name=setting, path=engine.path)
            message = words("{reason}: the KV cache does not pass from prefill to decode", reason=reason)
            remedy = "give both roles the same connector and the same values, as the connector needs"
            findings.append(located(ROLES_DO_NOT_MATCH, at, message, remedy).named(names_of(engine, lines[1])))
        answers[at_decode] = replace(answers[at_decode], findings=tuple(findings))
    return answers


def _pairs(judged: Sequence[JudgedEngine]) -> Iterator[tuple[int, int]]:
    """Yield (prefill, decode) of each service: engines of one document whose names say so; a decode may have the service's own name."""
    found: dict[tuple[str, int, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, each in enumerate(judged):
        named, document = _NAME.fullmatch(each.engine.name), each.engine.document
        name, role = (named[1], named[2].lower()) if named else (each.engine.name, "decode")
        if each.vllm_version:
            found[document.file, document.position.line, name][role].append(index)
    for roles in found.values():
        if len(roles["prefill"]) == len(roles["decode"]) == 1:
            yield roles["prefill"][0], roles["decode"][0]


class _Served(Struct, frozen=True, kw_only=True):
    """An engine that starts, as a Service sees it."""

    index: int
    tokens: int
    name: str
    model: str
    namespace: str
    labels: Mapping[str, str]


def judge_replicas(judged: Sequence[JudgedEngine], documents: Iterable[Document]) -> list[JudgedEngine]:
    """Return the judgements, with a note at the smallest of the engines that a Service takes for equal ones.

    Services that do not mention vLLM are not read: most of those of an input have nothing to do with it.
    """
    answers, served = list(judged), [each for index, one in enumerate(judged) if (each := _served(index, one))]
    for document in documents if len(served) > 1 else ():
        if document.group_kind != "Service" or not isinstance(value := document.load(), dict):
            continue
        root = Written(value=value)
        selector = {name: field.text for name, field in root.get("spec", "selector").fields()}
        namespace = root.get("metadata", "namespace").text or "default"
        seen = [each for each in served if each.namespace == namespace and selector.items() <= each.labels.items()]
        least, most = (pick(seen, key=lambda each: each.tokens, default=None) for pick in (min, max))
        if (
            selector
            and least
            and most
            and 4 * most.tokens > 5 * least.tokens
            and len({each.model for each in seen}) == 1
        ):
            at = Place(name="service", path=judged[least.index].engine.path)
            message = (
                f"Service {root.get('metadata', 'name').text} takes {least.name} ({least.tokens} tokens of KV cache) and {most.name} "
                f"({most.tokens} tokens) in turns"
            )
            found = located(
                REPLICAS_DIFFER, at, message, "give them the same GPU and settings, or Services of their own"
            )
            answers[least.index] = replace(answers[least.index], findings=(*answers[least.index].findings, found))
    return answers


def _served(index: int, judged: JudgedEngine) -> _Served | None:
    """Return an engine that surely starts on the GPU that it names; None for any other."""
    tokens = judged.assessment.figures.num_tokens if judged.assessment else None
    root = judged.engine.root
    pod = root if judged.engine.document.kind == "Pod" else root.get("spec", "template")
    labels = {name: field.text for name, field in pod.get("metadata", "labels").fields()}
    if not tokens or not labels or judged.verdict is not Verdict.FITS or judged.accelerator is None:
        return None
    name, namespace = judged.engine.name, judged.engine.namespace
    return _Served(index=index, tokens=tokens, name=name, model=judged.model or "", namespace=namespace, labels=labels)


def _role(judged: JudgedEngine, line: CommandLine) -> Role | None:
    """Return what one of both states; None where its connector or another option is not known, or nothing is stated yet."""
    platform, given = judged.engine.platform, line.given
    config = given.get("kv_transfer_config")
    is_open = judged.options_set is None or judged.engine.is_wrapped or platform in _FROM_A_TEMPLATE
    if "kv_transfer_config" in line.unknown or not judged.engine.arguments or judged.verdict is NOT_JUDGED:
        return None
    if config is None and platform not in _DEFAULT_OF_PLATFORM and is_open:
        return None
    try:
        connectors = kv_connectors(config.value) if config else ()
    except UnusableValue:
        return None
    default = _DEFAULT_OF_PLATFORM.get(platform)
    names = frozenset(each.name for each in connectors) or frozenset({default} if default else ())
    names_of_sizes = ("block_size", "kv_cache_dtype", "tensor_parallel_size")
    blocks, dtype, ranks = (given[name].value if name in given else None for name in names_of_sizes)
    return Role(
        connectors=names,
        kv_roles=frozenset(each.role for each in connectors if each.role),
        model=judged.model or "",
        kv_cache_dtype=str(dtype or "auto"),
        block_size=blocks if isinstance(blocks, int) else None,
        tensor_parallel_size=(None if "tensor_parallel_size" in line.unknown else 1) if ranks is None else ranks,
    )
