"""Values of charts that nobody knows, with a map: the user states in `.kvgate.yaml` where the facts of an engine stand.

What the map does not name is found by the names that charts commonly have, as without one.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from kvgate.documents.positions import steps_of
from kvgate.documents.written import NOTHING, Written
from kvgate.findings.finding import Located, Place, Severity, located
from kvgate.manifests.fields import any_options
from kvgate.manifests.platforms.custom_values import MAX_ENGINES, Facts, engine_of, gather, image_of, model_of
from kvgate.manifests.pods.engine_found import FoundEngine, MappedFields, ReaderInput
from kvgate.manifests.pods.gpu_requests import gpus_of
from kvgate.rules.manifests import PATH_LEADS_NOWHERE

ANY = "*"
"""Step of a path: every entry of a list or of an object."""
_MAX_NAMES = 8
"""Names of fields in a remedy."""


def read_mapped_values(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines that the map leads to; none where neither a model nor arguments that name one stand there."""
    mapped = given.mapped
    if mapped is None:
        return
    at = _nodes_at(given.values, mapped.facts.get("engines", ""))
    nodes = [node for node in at or [given.values] if isinstance(node.value, dict)]
    places = {node.path for node in nodes}
    for node in (each for each in nodes if each.get("enabled").value is not False):
        facts, findings = Facts(), tuple(_lost(given.values, node, nodes, mapped))
        for name, path in mapped.facts.items():
            _take(name, _led_to(given.values, node, path), facts)
        for name, path in mapped.options.items():
            if (field := _led_to(given.values, node, path)).is_set:
                facts.settings[name] = field
        mistyped = {each.finding.field for each in findings if each.finding.severity is Severity.WARNING}
        is_stated = (bool(at) and facts.model.is_set) or not mistyped.isdisjoint(("engines", "model"))
        gather(node, facts, (places - {node.path}).__contains__)
        engine = engine_of(given, node, facts)
        if is_stated or (at and facts.words and any(word.text.startswith("--model") for word in engine.arguments)):
            assumption = f"the chart passes these values to vLLM as {mapped.origin} of .kvgate.yaml states"
            yield replace(engine, assumed=(assumption,), findings=(*engine.findings, *findings))


def _nodes_at(node: Written, path: str) -> list[Written]:
    """Return what a path leads to, at most so many values as there may be engines; a missing value is none."""
    nodes = [node]
    for step in steps_of(path):
        if step == ANY:
            nodes = [child for each in nodes for child in (each.items() or [child for _, child in each.fields()])]
        elif isinstance(step, int):
            nodes = [child for each in nodes for child in each.items()[step : step + 1]]
        else:
            nodes = [each.get(step) for each in nodes if isinstance(each.value, dict) and step in each.value]
        nodes = nodes[:MAX_ENGINES]
    return nodes


def _led_to(values: Written, node: Written, path: str) -> Written:
    """Return what a path leads to from the object of an engine, else from the top of the values."""
    return next(iter(_nodes_at(node, path) or _nodes_at(values, path)), NOTHING)


def _take(name: str, field: Written, facts: Facts) -> bool:
    """Add a stated fact; return False for a value of another kind than the fact has."""
    text = field if field.text else NOTHING
    if not field.is_set or name == "engines":
        return True
    if name == "model":
        facts.model = text if field.text else model_of(field)
        return facts.model.is_set
    if name == "image":
        image = field.text or image_of(field)
        facts.image = Written(value=image, path=field.path) if image else NOTHING
        return bool(image)
    if name == "gpus":
        is_number = field.count is not None
        facts.num_gpus, facts.resources = (field, NOTHING) if is_number else (gpus_of(field)[0], field)
        return facts.num_gpus.is_set
    if name == "arguments":
        is_object = isinstance(field.value, dict)
        facts.options, facts.words = (tuple(any_options(field)), []) if is_object else ((), [field])
        return True
    if name == "accelerator":
        facts.product = text
    else:
        facts.version = text
    return text.is_set


def _lost(values: Written, node: Written, nodes: Sequence[Written], mapped: MappedFields) -> Iterator[Located]:
    """Yield a finding for each path that leads nowhere, and for each that leads to a value of another kind.

    What one of several engines (`nodes`) states may be left out by the others.
    """
    from difflib import get_close_matches

    for name, path in (*mapped.facts.items(), *((f"options.{each}", path) for each, path in mapped.options.items())):
        stated = f"{mapped.origin}.{name} of .kvgate.yaml is {path}"
        if _nodes_at(node, path) or _nodes_at(values, path):
            field = _led_to(values, node, path)
            if not name.startswith("options.") and not _take(name, field, Facts()):
                at, message = Place(name=name, path=field.path), f"{stated}, and no such value stands there"
                yield located(PATH_LEADS_NOWHERE, at, message, f"write the path of the field that holds {_KINDS[name]}")
            continue
        here = node
        for step in steps_of(path):
            below = _nodes_at(here, step) if isinstance(step, str) else here.items()[step : step + 1]
            if not below:
                break
            here = below[0]
        names = [each for each, _ in here.fields()]
        near = get_close_matches(str(step), names, n=1, cutoff=0.75)
        if not near and any(_nodes_at(each, path) for each in nodes):
            continue
        at = Place(name=name, path=here.get(near[0]).path if near else here.path)
        known = ", ".join(names[:_MAX_NAMES])
        remedy = f"did you mean {at.path}?" if near else f"write a path that exists; the fields there are {known}"
        severity = Severity.WARNING if near else Severity.INFO
        yield located(
            PATH_LEADS_NOWHERE, at, f"{stated}, which leads nowhere in these values", remedy, severity=severity
        )


_KINDS = {
    "model": "the model's name",
    "image": "the image, or its repository and tag",
    "gpus": "the number of GPUs, or the resources of the container",
    "accelerator": "the name of the GPU",
    "vllmVersion": "the release of vLLM",
}
