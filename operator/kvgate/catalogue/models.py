"""Look up models and model classes in data files of our own; never the network.

People edit one YAML file for each model and each draft. kvgate reads their twins, `models.jsonl` and `drafts.jsonl`, with one entry a
line: any look-up costs a few milliseconds.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.json import decode

from kvgate import bundle
from kvgate.catalogue.lookup import DATA, close_matches, read_yaml
from kvgate.text.json_values import merged_fields
from kvgate.text.patterns import pattern

_QUANTIZATION = ("quantization_config", "compression_config")
_SERVED = ("confidence", "source", "parameters", "safetensors_bytes", "holds", "base", "quantization_config", "config")
"""Keys of an entry that are read at run time; the others state its provenance."""
_HEAD = pattern(rb'\{"name":"([^"]+)","aliases":(\[[^\]]*\])')


class ModelEntry(Struct, frozen=True, kw_only=True):
    """One model: its config.json facts, and where they come from."""

    name: str
    aliases: tuple[str, ...]
    config: Mapping[str, Any]
    source: str
    confidence: str
    parameters: int | None
    safetensors_bytes: int | None
    """Bytes of the checkpoint's weight files together, where they are published."""
    holds: tuple[str, ...] | None = None
    """Those of `embed_tokens` and `lm_head` that the checkpoint of a draft holds; None: not known."""


def entries_jsonl(folder: str) -> str:
    """Return the entries of a folder's YAML files as JSON, one a line, sorted by name; derived ones keep the name of their base."""
    entries = (read_yaml(path) for path in (DATA / folder).iterdir() if path.name.endswith(".yaml"))
    lines = []
    for entry in sorted(entries, key=lambda entry: entry["name"].lower()):
        served = {key: entry[key] for key in _SERVED if key in entry}
        row = {"name": entry["name"], "aliases": entry.get("aliases") or [], **served}
        lines.append(json.dumps(row, default=str, ensure_ascii=True, separators=(",", ":")) + "\n")
    return "".join(lines)


class _Lines(Struct, frozen=True, kw_only=True):
    """The lines of all entries; one is parsed when somebody asks for it."""

    by_name: Mapping[str, bytes]
    """Line by name, sorted ignoring case."""
    names: Mapping[str, str]
    """Names and aliases in lower case → name."""

    def entry(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = decode(self.by_name[name])
        return found


@lru_cache(maxsize=2)
def _lines(folder: str) -> _Lines:
    by_name: dict[str, bytes] = {}
    names: dict[str, str] = {}
    for line in bundle.read(f"{folder}.jsonl").splitlines():
        if head := _HEAD.match(line):
            name = head[1].decode()
            by_name[name] = line
            names.update((other.lower(), name) for other in (name, *decode(head[2])))
    return _Lines(by_name=by_name, names=names)


def model_names() -> tuple[str, ...]:
    """Return the names of all models, sorted ignoring case."""
    return tuple(_lines("models").by_name)


def names_and_aliases() -> Mapping[str, str]:
    """Return every name and alias in lower case, and the name of its entry."""
    return _lines("models").names


@lru_cache(maxsize=1)
def fine_tunes() -> Mapping[str, str]:
    """Return the names of fine-tunes that do not say from which model they were made → that model."""
    rows = (line.split(",", 2) for line in bundle.lines("fine_tunes.csv")[1:])
    return {name: model for name, model, _ in rows}


@lru_cache(maxsize=512)
def load_model(name: str, *, folder: str = "models") -> ModelEntry:
    """Return the entry of a name that `model_names` lists, or, of the folder `drafts`, of one that `draft_names` lists."""
    entry = _lines(folder).entry(name)
    config = dict(entry.get("config", {}))
    if "base" in entry:
        config = merged_fields(_lines("models").entry(entry["base"])["config"], config)
        if "quantization_config" in entry:
            config = with_quantization(config, entry["quantization_config"])
    return ModelEntry(
        name=entry["name"],
        aliases=tuple(entry["aliases"]),
        config=config,
        source=entry["source"],
        confidence=entry["confidence"],
        parameters=entry.get("parameters"),
        safetensors_bytes=entry.get("safetensors_bytes"),
        holds=tuple(entry["holds"]) if "holds" in entry else None,
    )


def with_quantization(config: Mapping[str, Any], quantization: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a config whose quantisation, wherever it stands, is replaced; None stands for plain weights.

    DeepSeek-V4's `expert_dtype` states the experts' own format, which the new quantisation replaces too.
    """
    plain = {
        key: ""
        if key == "expert_dtype"
        else with_quantization(value, None)
        if key.endswith("_config") and isinstance(value, Mapping)
        else value
        for key, value in config.items()
        if key not in _QUANTIZATION
    }
    return {**plain, "quantization_config": quantization} if quantization else plain


def is_quantised(config: Mapping[str, Any]) -> bool:
    """Return whether a config, or a part of it, states a quantisation."""
    parts = (value for key, value in config.items() if key.endswith("_config") and isinstance(value, Mapping))
    return any(config.get(key) for key in _QUANTIZATION) or any(map(is_quantised, parts))


def find_model(name: str) -> ModelEntry | None:
    """Find a model by its Hugging Face id in any case, or by another name of the same checkpoint."""
    canonical = names_and_aliases().get(name.strip().lower())
    return load_model(canonical) if canonical else None


@lru_cache(maxsize=256)
def nearest_models(name: str) -> tuple[str, ...]:
    """Return the models that the user may have meant; the part after the slash counts for more than the organisation."""
    names, wanted = names_and_aliases(), name.strip().lower()
    by_base = {key.rpartition("/")[2]: canonical for key, canonical in names.items()}
    matches = [by_base[match] for match in close_matches(wanted.rpartition("/")[2], by_base, n=3, cutoff=0.6)]
    matches += [names[match] for match in close_matches(wanted, names, n=3, cutoff=0.6)]
    return tuple(dict.fromkeys(matches))[:3]


def draft_names() -> tuple[str, ...]:
    """Return the names of all drafts for speculative decoding, sorted ignoring case; a complete model is listed as a model only."""
    return tuple(_lines("drafts").by_name)


def find_draft(name: str) -> ModelEntry | None:
    """Find a draft by its Hugging Face id in any case."""
    canonical = _lines("drafts").names.get(name.strip().lower())
    return load_model(canonical, folder="drafts") if canonical else None


def nearest_drafts(name: str) -> tuple[str, ...]:
    """Return the drafts that the user may have meant."""
    by_base = {known.lower().rpartition("/")[2]: known for known in draft_names()}
    wanted = name.strip().lower().rpartition("/")[2]
    return tuple(by_base[match] for match in close_matches(wanted, by_base, n=3, cutoff=0.75))


class ModelClass(Struct, frozen=True, kw_only=True):
    """The releases in which vLLM's registry had a class; each is a release that was read, empty where there is none."""

    absent_in: str
    """The last release before the class came."""
    since: str
    until: str
    removed_in: str
    """The first release without it again."""


@lru_cache(maxsize=1)
def _model_classes() -> dict[str, ModelClass]:
    rows = (line.split(",") for line in bundle.lines("model_classes.csv")[1:])
    return {
        name: ModelClass(absent_in=absent_in, since=since, until=until, removed_in=removed_in)
        for name, absent_in, since, until, removed_in in rows
    }


def newest_model_classes() -> tuple[str, ...]:
    """Return the classes of the newest release that was read, by name."""
    return tuple(sorted(name for name, releases in _model_classes().items() if not releases.removed_in))


def find_model_class(architecture: str) -> ModelClass | None:
    """Return the releases of a class; None where every release has it, or none is known to have it."""
    return _model_classes().get(architecture)
