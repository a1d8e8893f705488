"""The sources of the facts behind a verdict: files of the checkout that may change it are named in every report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvgate.cli.check.given_facts import FACTS, CheckOptions, GivenFacts
from kvgate.cli.provenance import Provenance, sources_of_facts
from kvgate.cli.reports.report import Item
from kvgate.judgement.adapters import MOST_ADAPTERS, named_adapters
from kvgate.judgement.facts import look_up_version
from kvgate.manifests import InputDocuments
from kvgate.manifests.judging.gpus import pools_named
from kvgate.statement.passed_through import read_extra_args

if TYPE_CHECKING:
    from kvgate.cli.check.repository_config import ConfigFile


def sources_of(item: Item, given: GivenFacts, documents: InputDocuments) -> Iterator[Provenance]:
    """Yield the sources of one engine's facts: its model and draft, observed starts, and fields of the configuration."""
    budget = item.effective
    shapes = [each.shape for each in (budget.request, budget.request.draft) if each] if budget else []
    origins = {shape.origin.kind for shape in shapes if shape.origin}
    used = [] if given.vllm_version else [each for each in item.assumed if each.fact == "vllm_version"]
    stated = {fact for fact, _, _ in given.stated(*item.identity)} if used and given.file else set()
    yield from sources_of_facts(
        budget,
        given=_given_config(item, given, documents) if "given" in origins else ("", ()),
        starts=given.calibration_place,
        adapters=_adapters(item),
        models=given.models,
        released="".join(f"{each.value}: {each.why}" for each in used if each.fact not in stated),
    )
    if given.file is not None and not item.is_not_understood:
        yield from _of_configuration(item, given, given.file, documents)


def _of_configuration(
    item: Item, given: GivenFacts, file: ConfigFile, documents: InputDocuments
) -> Iterator[Provenance]:
    """Yield the facts and requirements of the configuration that count for an engine; the command line and the manifest win over it."""
    used = {each.fact for each in item.assumed} | {"workload", "fields_at", "variables"} if item.engine else set[str]()
    shape = item.assessment.budget.request.shape if item.assessment and item.assessment.budget else None
    if shape and shape.origin and shape.origin.kind == "given" and not _of_config_map(item, documents):
        used.add("config_json")
    typed = {"accelerator": given.accelerator, "vllm_version": given.vllm_version, "config_json": given.model_config}
    used -= {fact for fact, value in typed.items() if value}
    pools, named = file.config.pools, list[str]()
    if item.engine and "accelerator" in used and (named := [e.value for e in pools_named(item.engine.engine, pools)]):
        used.remove("accelerator")
    for fact, value, place in given.stated(*item.identity):
        named += [value] if fact == "accelerator" and fact in used and value in pools else []
        if fact in used:
            detail = value if isinstance(value, str) else ""
            yield Provenance(
                fact=FACTS[fact][1], source="configuration", place=place, detail=detail, digest=repr(value)
            )
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
    if item.spec is None or look_up_version(item.spec.vllm.version):
        return []
    modules = read_extra_args(item.spec.vllm).values.get("lora_modules")
    return list(named_adapters(modules or ()))[:MOST_ADAPTERS]


def _given_config(item: Item, given: GivenFacts, documents: InputDocuments) -> tuple[str, Sequence[str]]:
    """Return the place of the config.json that is given for an engine, and the files beside it."""
    place = _of_config_map(item, documents)
    config = None if place else given.model_config_of(*item.identity)
    if config is None:
        return place, ()
    return given.model_config_place or (given.file.shown(config.path) if given.file else ""), config.beside


def _of_config_map(item: Item, documents: InputDocuments) -> str:
    """Return file and line of the ConfigMap that an InferenceDeployment takes its model from."""
    source = item.spec.model.config_from if item.spec else None
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
