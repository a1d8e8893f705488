"""The model that drafts for another → Draft: from the user's own text, a lock file, the catalogue, or a fetch that somebody asked for."""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import Draft, Speculation
from kvgate.budget.answers.contradictions import between
from kvgate.budget.model.origin import ModelOrigin
from kvgate.checkpoint.published import NO_MODELS, ModelName, Published, PublishedModels, content_of, name_key
from kvgate.findings.finding import Finding, Severity, any_one, do, words
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.drafts.reader import read_draft
from kvgate.judgement.models import look_up_model_class, ways_to_fetch, with_reason
from kvgate.rules.facts import INVALID_MODEL_CONFIG, UNKNOWN_DRAFT


def look_up_draft(
    speculation: Speculation,
    version: str,
    *,
    config: Mapping[str, Any] | None = None,
    models: PublishedModels = NO_MODELS,
) -> tuple[Draft | None, tuple[Finding, ...]]:
    """Return the model that drafts, with the findings about it; both are empty where no other model drafts.

    `config` is its config.json where the user gives one; it wins over a lock file, and that over the catalogue.
    """
    if not speculation.uses_another_model or speculation.method in _WITHOUT_CONFIG:
        return None, ()
    try:
        draft = _found(speculation, config, models)
    except ModelConfigError as error:
        remedy = "give the config.json of the draft as it is published"
        return None, tuple(
            INVALID_MODEL_CONFIG.finding("speculative_config", f"draft {speculation.model}: {problem}", remedy)
            for problem in error.problems
        )
    if draft is None and not speculation.model:  # reading the settings says that a name is missing
        return None, ()
    if draft is None:
        name = speculation.model
        nearest = catalogue.nearest_drafts(name)
        write = (f"write one of these names, if you mean it: {', '.join(nearest)}",) if nearest else ()
        ways = any_one(*write, *ways_to_fetch(name, models), do("give its config.json by {draft_config}"))
        message = words("draft {name} is not in the catalogue, so it is not known what it adds", name=name)
        unknown = UNKNOWN_DRAFT.finding("speculative_config", message, ways)
        return None, (with_reason(unknown, models.missing.get(name_key(name, speculation.revision))),)
    # vLLM has no other class that could serve a draft
    found = look_up_model_class(draft.shape, version)
    return draft, tuple(replace(each, field="speculative_config", severity=Severity.ERROR) for each in found)


_WITHOUT_CONFIG = frozenset({"custom_class", "extract_hidden_states"})
"""Methods by a class of the user's own, or without any draft; they end as not modelled."""


def unlisted_draft(speculation: Speculation) -> Iterator[ModelName]:
    """Yield the name of a draft that the catalogue lacks; nothing where no other model drafts."""
    name, is_own = speculation.model, speculation.method in _WITHOUT_CONFIG or not speculation.uses_another_model
    if not is_own and catalogue.find_draft(name) is None and catalogue.find_model(name) is None:
        yield ModelName(name, speculation.revision)


def _found(speculation: Speculation, config: Mapping[str, Any] | None, models: PublishedModels) -> Draft | None:
    name, method, quantization = speculation.model, speculation.method, speculation.quantization
    if config is not None:
        return _given(json.dumps(config), name, method, quantization)
    key, known = name_key(name, speculation.revision), _listed(name, method, quantization)
    if (locked := models.locked.get(key)) and (known is None or not models.catalogue_first):
        origin = ModelOrigin(
            kind="lock file", place=models.places.get(key, "the lock file"), digest=content_of(locked).digest.hex()[:12]
        )
        return _beside(known, _published(locked, method, quantization), origin)
    if known:
        return known
    fetched = models.fetched.get(key)
    return _published(fetched, method, quantization) if fetched else None


@lru_cache(maxsize=256)
def _beside(known: Draft | None, draft: Draft, origin: ModelOrigin) -> Draft:
    """Return the draft of a lock file with its source, and with what it contradicts the catalogue in."""
    sources = origin.place, "the catalogue"
    differences = between(draft.shape, known.shape, sources=sources, length=False) if known else ()
    described = replace(draft.shape, origin=replace(origin, differences=differences), contradictions=differences)
    return replace(draft, shape=described)


@lru_cache(maxsize=16)
def _given(text: str, name: str, method: str, quantization: str | None) -> Draft:
    return read_draft(json.loads(text), name=name, method=method, quantization=quantization)


@lru_cache(maxsize=256)
def _listed(name: str, method: str, quantization: str | None) -> Draft | None:
    entry = catalogue.find_draft(name) or catalogue.find_model(name)
    if entry is None:
        return None
    size = entry.safetensors_bytes or 0
    draft = read_draft(entry.config, name=entry.name, method=method, quantization=quantization, stored_bytes=size)
    return draft if entry.holds is None else replace(draft, stored_ends=frozenset(entry.holds))


@lru_cache(maxsize=256)
def _published(published: Published, method: str, quantization: str | None) -> Draft:
    size = published.checkpoint_bytes
    draft = read_draft(
        published.config, name=published.name, method=method, quantization=quantization, stored_bytes=size
    )
    if not published.tensors:
        return draft
    names = [group.name for group in published.tensors]
    return replace(draft, stored_ends=frozenset(end for end in ENDS if any(end in name for name in names)))


ENDS = ("embed_tokens", "lm_head")
"""Names of the tensors that a draft may share with its target."""
