"""One checkpoint as its publisher published it, in one JSON object: the entry of a lock file, of a ConfigMap, and the answer of a fetch;
and the lock file, which a repository commits, so that a verdict rests on the same facts tomorrow."""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from kvgate.budget.answers.contradictions import ANY_COUNT, compare
from kvgate.budget.model.matrix import GGUF_METHOD, WeightFormat
from kvgate.budget.model.shape import ModelShape
from kvgate.checkpoint.not_fetched import NotFetched
from kvgate.checkpoint.tensors import CheckpointError, TensorGroup, check_summary
from kvgate.hf_config import ModelConfigError, read_config
from kvgate.hf_config.fields import parse_config_text
from kvgate.text.inert import inert, json_text
from kvgate.text.json_values import MAX_DEPTH, NOT_UNICODE, is_nested_beyond, parsed_has_lone_surrogate


class Published(
    Struct, frozen=True, kw_only=True, eq=False, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """The published facts of one checkpoint that decide memory; equal means the same object."""

    name: str
    """Name under which it is asked for: `org/name`, of a GGUF file `org/name:Q4_K_M`."""
    revision: str = ""
    """Branch, tag or commit that was asked for; empty: the default branch."""
    commit: str = ""
    """Commit that answered."""
    source: str = ""
    """Words for the place of the files: `huggingface.co`, `folder models/qwen`."""
    config: Mapping[str, Any]
    """config.json with the quantisation that stands in files beside it, under `quantization_config`."""
    tensors: tuple[TensorGroup, ...] = ()
    """Empty where only the index, or nothing, states sizes."""
    checkpoint_bytes: int = 0
    """Bytes of all tensors; 0: not known."""
    index_bytes: int = 0
    """Bytes that the index states, where the headers have others; 0: the same, or not stated."""
    adapter: Mapping[str, Any] = field(default_factory=dict)
    """adapter_config.json, where the repository holds a LoRA adapter instead of a model."""


class PublishedError(ValueError):
    """An entry that cannot be read; the message names the field, and says what to do."""


def to_json(published: Published) -> dict[str, Any]:
    """Return the entry as JSON values, in which defaults are left out."""
    built: dict[str, Any] = msgspec.to_builtins(published)
    return built


def from_json(value: object) -> Published:
    """Read an entry. Raises PublishedError."""
    try:
        published = msgspec.convert(value, Published, strict=True)
        check_summary(published.tensors)
    except (msgspec.ValidationError, CheckpointError) as error:
        raise PublishedError(f"{error}; write the entry anew with `kvgate models fetch`") from None
    return published


def from_text(text: str) -> Published:
    """Read the JSON text of an entry. Raises PublishedError."""
    try:
        return from_json(parse_config_text(text))
    except ModelConfigError as error:
        raise PublishedError(f"{error}; write the entry anew with `kvgate models fetch`") from None


class PublishedModels(Struct, frozen=True, kw_only=True, eq=False):
    """Checkpoints that are known beside the catalogue, by the name that `name_key` gives them."""

    locked: Mapping[str, Published] = field(default_factory=dict)
    """Entries of a lock file: they win over the catalogue."""
    fetched: Mapping[str, Published] = field(default_factory=dict)
    """Entries that somebody asked to fetch: they are used where the catalogue does not have the model."""
    missing: Mapping[str, NotFetched] = field(default_factory=dict)
    """Reasons for those that somebody asked to fetch in vain."""
    places: Mapping[str, str] = field(default_factory=dict)
    """File and line of the entries of a lock file."""
    catalogue_first: bool = False
    """True where the catalogue wins over the lock file."""
    fetch_option: str = ""
    """Words by which the reader can ask for a fetch; empty where there are none, or a fetch was asked for."""

    def without_fetched(self, name: str) -> "PublishedModels":
        """Return the same, in which nothing that was fetched has this name, and nobody is told to fetch it."""
        return replace(self, fetched=_Without(self.fetched, name_key(name)), fetch_option="")


NO_MODELS = PublishedModels()


class _Without(Mapping[str, Published]):
    """All entries but one, looked up in the mapping that has them."""

    def __init__(self, entries: Mapping[str, Published], key: str) -> None:
        self._entries, self._key = entries, key

    def __getitem__(self, key: str) -> Published:
        if key == self._key:
            raise KeyError(key)
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._entries if key != self._key)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class ModelKey(str):
    """A key that remembers the name and the revision as they were written."""

    __slots__ = ("name", "revision")
    name: str
    revision: str


def name_key(name: str, revision: str = "") -> ModelKey:
    """Return the key of a name and revision: the hub ignores the case of names, and `main` is the default branch."""
    suffix = "" if revision in ("", "main") else f"@{revision}"
    key = ModelKey(f"{name.strip().lower()}{suffix}")
    key.name, key.revision = name.strip(), revision
    return key


class ModelName(Struct, frozen=True, order=True):
    """A checkpoint as somebody asks the hub for it."""

    name: str
    revision: str = ""

    @property
    def key(self) -> str:
        return name_key(self.name, self.revision)

    def __str__(self) -> str:
        return self.name + (f"@{self.revision}" if self.revision else "")


_Entry = TypeVar("_Entry", Published, NotFetched)


def by_name(entries: Iterable[_Entry]) -> dict[str, _Entry]:
    """Return the entries by their keys; the last of two with one key counts."""
    return {name_key(each.name, each.revision): each for each in entries}


class Content(Struct, frozen=True, kw_only=True):
    """The identity of a checkpoint's facts: processes get copies of one entry with each task."""

    digest: bytes
    num_characters: int


@lru_cache(maxsize=16)
def content_of(published: Published) -> Content:
    """Return the digest of the facts, and how long they are as text."""
    from hashlib import sha256  # as late as the imports of shape_of: models of the catalogue need none of them

    text = json_text(to_json(published), is_compact=True)
    return Content(digest=sha256(text.encode()).digest(), num_characters=len(text))


def shape_of(published: Published, *, quantization: str | None = None, dtype: str | None = None) -> ModelShape:
    """Return the shape of a checkpoint; `quantization` and `dtype` are vLLM's arguments. Raises ModelConfigError."""
    from kvgate.checkpoint.stored_formats import look_alike, with_stored_formats

    if published.adapter and not published.config:
        base = str(published.adapter.get("base_model_name_or_path") or "its base model")[:200]
        message = f"it is a LoRA adapter of {base} and no model; serve that with --enable-lora --lora-modules NAME={published.name}"
        raise ModelConfigError((message,))
    declared = published.config.get("quantization_config")
    method = str(declared.get("quant_method", ""))[:40] if isinstance(declared, Mapping) else ""
    is_gguf = method == GGUF_METHOD
    config = {**published.config, "quantization_config": {}} if is_gguf else published.config
    shape = read_config(config, name=published.name, quantization=None if is_gguf else quantization, dtype=dtype)
    if published.tensors and any(kind.startswith("architecture ") for kind in shape.unmodelled_kinds):
        alike = look_alike(config, published.tensors, name=published.name, quantization=quantization, dtype=dtype)
        shape = alike or shape
    is_changed = not is_gguf and (quantization is not None or dtype not in (None, "auto"))
    if published.tensors:
        shape = with_stored_formats(shape, published.tensors, method=method)
        # kvgate writes the sum of the tensors into an entry, and the total that an index states beside it
        stored = _HEADERS, sum(group.size_bytes for group in published.tensors)
        contradictions = (
            *compare("weights", stored, ("checkpointBytes of the entry", published.checkpoint_bytes)),
            *compare("weights", stored, ("the checkpoint's index", published.index_bytes), within=ANY_COUNT),
        )
        shape = replace(shape, checkpoint_source=_HEADERS, contradictions=contradictions)
    else:
        shape = replace(shape, checkpoint_bytes=published.checkpoint_bytes, checkpoint_source="the checkpoint's index")
    if is_gguf:
        plain = WeightFormat(method=GGUF_METHOD, format="as-stored")
        # towers stand in a file of their own, which nothing here has read
        stored_bytes = 0 if shape.encoders else shape.checkpoint_bytes
        shape = replace(shape, quantization=shape.quantization or plain, checkpoint_bytes=stored_bytes)
    return replace(shape, checkpoint_bytes=0) if is_changed else shape


_HEADERS = "the headers of the checkpoint"


SCHEMA = "kvgate-models/1"
"""Form of the file; a later kvgate that needs another one writes another number."""
MAX_LOCK_BYTES = 64 << 20
"""Bytes of a file; an entry has 5 to 100 KB."""
MAX_LOCK_ENTRIES = 2000
_MAX_PROBLEMS = 10
_WIDTH = 140
"""Characters of a value that stays on one line."""
_ANEW = "write it anew with `kvgate models lock`"


class LockFileError(ValueError):
    """A file that cannot be used; the message has every problem, and says what to do."""


def lock_text(entries: Iterable[Published]) -> str:
    """Return the text of a file: the same entries give the same text, in the order of their names."""
    values = []
    for each in sorted(entries, key=lambda each: name_key(each.name, each.revision)):
        entry = to_json(each)  # its fields keep their order, and what its publisher wrote is sorted
        theirs = {name: json.loads(json.dumps(entry[name], sort_keys=True)) for name in _THEIRS if name in entry}
        values.append(entry | theirs)
    return _written({"schema": SCHEMA, "models": values}, 0) + "\n"


_THEIRS = ("config", "adapter")


def _written(value: Any, indent: int) -> str:
    """Return JSON in which a value that is short stands on one line."""
    text = json.dumps(value)
    if not isinstance(value, dict | list) or not value or (len(text) + indent <= _WIDTH and indent):
        return text
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(key)}: {_written(child, indent + 2)}" for key, child in value.items()]
        return "{\n" + ",\n".join(parts) + "\n" + " " * indent + "}"
    parts = [f"{inner}{_written(child, indent + 2)}" for child in value]
    return "[\n" + ",\n".join(parts) + "\n" + " " * indent + "]"


def read_lock(text: str) -> tuple[Published, ...]:
    """Read the text of a file. Raises LockFileError with everything that is wrong."""
    entries, problems = [], []
    for place, value in enumerate(_values(text)):
        try:
            entries.append(from_json(value))
        except PublishedError as error:
            name = value.get("name") if isinstance(value, dict) else None
            called = f" ({inert(name[:100])})" if isinstance(name, str) else ""
            problems.append(f"models[{place}]{called}: {error}".partition("; write the entry")[0])
    seen = set()
    for each in entries:
        if (key := name_key(each.name, each.revision)) in seen:
            problems.append(f"{inert(key[:100])} stands twice")
        seen.add(key)
    if problems:
        more = f"; and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
        raise LockFileError(f"{'; '.join(problems[:_MAX_PROBLEMS])}{more}; {_ANEW}")
    return tuple(entries)


def entry_lines(text: str) -> Iterator[int]:
    """Yield the line on which each entry of a file that `read_lock` took begins, from 1; nothing where the entries are not found."""
    text = text.removeprefix("\ufeff")
    line, end = 1, 0
    for entry in (bytes(each).decode() for each in msgspec.json.decode(text, type=_Entries).models):
        begin = text.find(entry, end)
        if begin < 0:
            return
        line += text.count("\n", end, begin)
        yield line
        line += entry.count("\n")
        end = begin + len(entry)


class _Entries(Struct):
    models: list[Raw]


def _values(text: str) -> list[Any]:
    """Return the entries as JSON values. Raises LockFileError."""
    try:
        value = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise LockFileError(f"it is not JSON ({error}); {_ANEW}") from None
    schema = value.get("schema") if isinstance(value, Mapping) else None
    if schema != SCHEMA:
        stated = f"its schema is {inert(str(schema)[:40])}" if schema else "it has no schema"
        raise LockFileError(f"{stated}, and this kvgate reads {SCHEMA}; {_ANEW}, or use the kvgate that wrote it")
    if is_nested_beyond(value, MAX_DEPTH + 4):
        raise LockFileError(f"it is nested deeper than {MAX_DEPTH} levels; {_ANEW}")
    if parsed_has_lone_surrogate(text, value):
        raise LockFileError(f"{NOT_UNICODE}; {_ANEW}")
    models = value.get("models")
    if not isinstance(models, list) or len(models) > MAX_LOCK_ENTRIES:
        raise LockFileError(f"models is not a list of at most {MAX_LOCK_ENTRIES} entries; {_ANEW}")
    return models
