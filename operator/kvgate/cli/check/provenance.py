"""The sources of the facts behind a verdict: files of the checkout that may change it are named in every report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvgate.budget import ModelShape
from kvgate.checkpoint.published import content_of, name_key
from kvgate.cli.check.given_facts import CheckOptions, GivenFacts
from kvgate.cli.reports.report import Item, Provenance
from kvgate.documents.written import Written
from kvgate.judge.adapters import MOST_ADAPTERS, named_adapters
from kvgate.judge.facts import look_up_version
from kvgate.manifests import InputDocuments
from kvgate.manifests.judging.gpus import pools_named
from kvgate.statement.passed_through import read_extra_args

if TYPE_CHECKING:
    from kvgate.cli.check.repository_config import ConfigFile


def sources_of(item: Item, given: GivenFacts, documents: InputDocuments) -> Iterator[Provenance]:
    """Yield the sources of one engine's facts: its model and draft, observed starts, and fields of the configuration."""
    budget = item.assessment.effective if item.assessment else None
    if budget is not None:
        request = budget.request
        yield from _of_model("model", request.shape, item, given, documents)
        if request.draft is not None:
            yield from _of_model("draft", request.draft.shape, item, given, documents)
        ledger = budget.tightest.ledger if budget.tightest else None
        if ledger is not None and (correction := ledger.correction):
            detail = f"{correction.starts} observed start{'s' * (correction.starts != 1)}"
            place, digest = given.calibration_place, repr(correction)
            yield Provenance(fact="calibration", source="observed starts", place=place, detail=detail, digest=digest)
    for name, path in _adapters(item):
        if entry_place := given.models.places.get(name_key(path)):
            digest = content_of(given.models.locked[name_key(path)]).digest.hex()[:12]
            yield Provenance(fact=f"adapter {name}", source="lock file", place=entry_place, digest=digest)
    if given.file is not None and not item.is_not_understood:
        yield from _of_configuration(item, given, given.file, documents)


_WORDS = {
    "accelerator": "accelerator",
    "vllm_version": "vLLM's release",
    "workload": "workload",
    "config_json": "choice of config.json",
    "fields_at": "places of facts",
}


def _of_configuration(
    item: Item, given: GivenFacts, file: ConfigFile, documents: InputDocuments
) -> Iterator[Provenance]:
    """Yield the facts and requirements of the configuration that count for an engine; the command line and the manifest win over it."""
    used = {each.fact for each in item.assumed} | {"workload", "fields_at"} if item.engine else set[str]()
    shape = item.assessment.budget.request.shape if item.assessment and item.assessment.budget else None
    if shape and shape.origin and shape.origin.kind == "given" and not _of_config_map(item, documents):
        used.add("config_json")
    typed = {"accelerator": given.accelerator, "vllm_version": given.vllm_version, "config_json": given.model_config}
    used -= {fact for fact, value in typed.items() if value}
    pools, named = file.config.pools, list[str]()
    if item.engine and "accelerator" in used and (named := [e.value for e in pools_named(item.engine.engine, pools)]):
        used.remove("accelerator")
    for fact, value, place in given.stated(*_identity(item)):
        named += [value] if fact == "accelerator" and fact in used and value in pools else []
        if fact in used:
            told = value if isinstance(value, str) else ""
            yield Provenance(fact=_WORDS[fact], source="configuration", place=place, detail=told, digest=repr(value))
    for name in dict.fromkeys(named):
        place, gpus = file.place_of(f'pools["{name}"]'), " or ".join(pools[name])
        yield Provenance(fact=f"pool {name}", source="configuration", place=place, detail=gpus, digest=gpus)
    for name, path, required in given.required(item):
        text = required if isinstance(required, str) else " or ".join(required)
        yield Provenance(fact=f"requirement of {name}", source="configuration", place=file.place_of(path), detail=text)


def _adapters(item: Item) -> list[tuple[str, str]]:
    """Return (name, path) of the adapters that an engine is started with."""
    if item.engine:
        return list(named_adapters(item.engine.settings.get("lora_modules") or ()))[:MOST_ADAPTERS]
    deployment = item.deployment.subject.deployment if item.deployment else None
    if deployment is None or look_up_version(deployment.spec.vllm.version):
        return []
    modules = read_extra_args(deployment.spec.vllm).values.get("lora_modules")
    return list(named_adapters(modules or ()))[:MOST_ADAPTERS]


def _identity(item: Item) -> tuple[tuple[str, ...], str, Written]:
    """Return the files, the name and the object by which mappings find an engine."""
    root = item.engine.engine.root if item.engine else Written(value=item.document.load())
    return tuple(item.document.files), item.name, root


def _of_model(
    fact: str, shape: ModelShape, item: Item, given: GivenFacts, documents: InputDocuments
) -> Iterator[Provenance]:
    """Yield the source of a model's facts, with its differences from the catalogue."""
    origin = shape.origin
    if origin is None or (origin.kind == "given" and origin.place == "hf_overrides"):
        return
    place, is_file = origin.place, origin.kind in ("lock file", "given")
    told = ", ".join(each.difference for each in origin.differences)
    details = [f"differs from the catalogue: {told}"] if told else []
    if origin.kind == "given":
        config = None if (place := _of_config_map(item, documents)) else given.model_config_of(*_identity(item))
        if config:
            place = given.model_config_place or (given.file.shown(config.path) if given.file else "")
            details[:0] = [f"with {name}" for name in config.beside]
    yield Provenance(
        fact=fact,
        source=origin.kind,
        place=place,
        is_file=is_file,
        detail=", ".join(details),
        digest=origin.digest,
    )


def _of_config_map(item: Item, documents: InputDocuments) -> str:
    """Return file and line of the ConfigMap that an InferenceDeployment takes its model from."""
    deployment = item.deployment.subject.deployment if item.deployment else None
    source = deployment.spec.model.config_from if deployment else None
    reference = source.config_map_key_ref if source else None
    if reference is None:
        return ""
    document = documents.config_document(item.namespace, item.document.file, reference.name)
    if document is None:
        return ""
    at = document.place_of(f'data["{reference.key}"]')
    return f"{at.file}:{at.position.line}"


def sources_of_report(options: CheckOptions, given: GivenFacts) -> Iterator[Provenance]:
    """Yield the settings of the configuration that concern the whole report."""
    if given.file and given.file.config.fail_on and options.fail_on is None:
        place = given.file.place_of("failOn")
        yield Provenance(fact="failOn", source="configuration", place=place, detail=given.file.config.fail_on)
