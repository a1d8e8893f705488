"""Models that are known beside the catalogue: from a lock file, and from a hub where the user asks for that."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import click
from msgspec import Struct
from msgspec.structs import replace

from kvgate.checkpoint.not_fetched import NotFetched
from kvgate.checkpoint.published import ModelKey, Published, PublishedModels, by_name, name_key
from kvgate.cli.exits import BadInput, read_given
from kvgate.cli.terminal import show_error
from kvgate.cli.workload_options import all_of
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.fields import MAX_CHARACTERS, parse_config_text


class ModelConfig(Struct, frozen=True):
    """The text of a config.json, its path, and the files beside it that count."""

    text: str
    path: Path
    beside: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """Return the name that findings give it."""
        return " with ".join((str(self.path), *filter(None, [" and ".join(self.beside)])))


def read_model_config(path: Path, *, inside: Path | None) -> ModelConfig:
    """Read a config.json with the quantisation file beside it, as vLLM does; `inside`: the folder that the path must not leave.

    Raises BadInput for a file that cannot be read.
    """
    from kvgate.hf_config.formats.quantization import with_quantization_beside

    text, stated = _read(path, inside)
    files = files_beside(path, stated, inside=inside) if stated else {}
    text = json.dumps(with_quantization_beside(stated, files)) if files else text
    return ModelConfig(text=text, path=path, beside=tuple(files))


def files_beside(path: Path, config: Mapping[str, Any], *, inside: Path | None) -> dict[str, Mapping[str, Any]]:
    """Return the one file beside a config.json that states its quantisation, parsed, by its name; empty where there is none.

    Raises BadInput for a file that cannot be read.
    """
    from kvgate.hf_config.formats.quantization import quantization_files

    beside = next((name for name in quantization_files(config) if path.with_name(name).is_file()), None)
    return {beside: _read(path.with_name(beside), inside)[1]} if beside else {}


def _read(path: Path, inside: Path | None) -> tuple[str, Mapping[str, Any]]:
    text = read_given(path, max_bytes=MAX_CHARACTERS, inside=inside, kind="JSON")
    try:
        return text, _content(text)
    except ModelConfigError as error:
        raise BadInput(f"{path}: {error}") from None


_content = lru_cache(maxsize=64)(parse_config_text)
"""Each text is parsed once, however many engines and mappings name its file; a file that changed is another text."""


DEFAULT_SECONDS = 60
CATALOGUE_FIRST = "catalogue-first"
FACTS = ("lock-first", CATALOGUE_FIRST)
"""Values of --facts; the first one is the default."""
MOST_ROUNDS = 3
"""A model may name a draft or an adapter, which is asked for once the model is known."""
_Judged = TypeVar("_Judged")


class ModelOptions(Struct, frozen=True, kw_only=True):
    """Options about models that the catalogue does not know."""

    fetch: bool | None = None
    """None: as the configuration says."""
    fetch_seconds: int = DEFAULT_SECONDS
    lock: Path | None = None
    facts: str | None = None

    @classmethod
    def taken_from(cls, values: dict[str, Any]) -> "ModelOptions":
        """Remove the options from the values of a command, and return them."""
        return cls(**{name: values.pop(name) for name in cls.__struct_fields__})


with_model_options = all_of((
    click.option("--lock", metavar="FILE", type=click.Path(dir_okay=False, exists=True, allow_dash=False, path_type=Path),
                 help="Published models, a file that `kvgate models lock` wrote. They win over the catalogue."),
    click.option("--facts", type=click.Choice(FACTS), default=None,
                 help="What wins where both know a model: the lock file and other files of the checkout, or the catalogue "
                      "(catalogue-first), so that a pull request cannot describe a known model otherwise. Default: lock-first."),
    click.option("--fetch/--no-fetch", default=None,
                 help="Fetch models that the catalogue does not know from huggingface.co, or from HF_ENDPOINT. "
                      "HF_TOKEN, HF_HUB_OFFLINE and proxies count as for huggingface_hub."),
    click.option("--fetch-seconds", metavar="N", type=click.IntRange(1, 3600), default=DEFAULT_SECONDS, show_default=True,
                 help="Seconds for all of --fetch."),
))  # fmt: skip


def read_lock_file(path: Path, *, inside: Path | None = None) -> tuple[Published, ...]:
    """Read a lock file; `inside` is a folder that the path must not lead out of. Raises BadInput."""
    return tuple(each for each, _ in _placed_entries(path, inside))


def _placed_entries(path: Path, inside: Path | None) -> Sequence[tuple[Published, int]]:
    """Return the entries of a lock file, each with its line; 0 where that is not known. Raises BadInput."""
    from kvgate.checkpoint.published import MAX_LOCK_BYTES, LockFileError, entry_lines, read_lock

    remedy = "; `kvgate models lock` writes such files"
    text = read_given(path, max_bytes=MAX_LOCK_BYTES, inside=inside, remedy=remedy)
    try:
        entries, lines = read_lock(text), list(entry_lines(text))
        return list(zip(entries, lines if len(lines) == len(entries) else [0] * len(entries), strict=True))
    except LockFileError as error:
        raise BadInput(f"{path}: {error}") from None


def locked_models(
    path: Path | None, *, inside: Path | None = None, shown: str = "", facts: str | None = None
) -> PublishedModels:
    """Return the models of a lock file, which reports call `shown`. `facts`: a value of --facts. Raises BadInput."""
    entries = _placed_entries(path, inside) if path else ()
    name = shown or str(path)
    return PublishedModels(
        locked=by_name(each for each, _ in entries),
        places={name_key(each.name, each.revision): f"{name}:{line}" if line else name for each, line in entries},
        catalogue_first=facts == CATALOGUE_FIRST,
        fetch_option="add --fetch",
    )


class Recorded(Mapping[str, Published]):
    """Entries that remember which names were looked up."""

    def __init__(self, entries: Mapping[str, Published]) -> None:
        self._entries = entries
        self.wanted: dict[str, ModelKey] = {}

    def __getitem__(self, key: str) -> Published:
        if isinstance(key, ModelKey):
            self.wanted[key] = key
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def judged_with_fetched(
    judge: Callable[[PublishedModels], _Judged], models: PublishedModels, *, fetches: bool, max_seconds: float
) -> _Judged:
    """Judge; where the user asks for it, fetch the models that nobody knew, and judge again."""
    if not fetches:
        return judge(models)
    from time import monotonic

    from kvgate.fetching.checkpoint_names import is_hub_name

    end, models = monotonic() + max_seconds, replace(models, fetch_option="")
    for _ in range(MOST_ROUNDS):
        fetched = Recorded(models.fetched)
        judged = judge(replace(models, fetched=fetched))
        known = models.fetched.keys() | models.missing.keys()
        unknown = [key for key in fetched.wanted.values() if key not in known and is_hub_name(key.name)]
        if not unknown:
            return judged
        found, missing = fetched_models(unknown, max_seconds=max(end - monotonic(), 0))
        models = replace(models, fetched={**models.fetched, **found}, missing={**models.missing, **missing})
    return judge(models)


def fetched_models(
    keys: list[ModelKey], *, max_seconds: float, is_quiet: bool = False
) -> tuple[Mapping[str, Published], Mapping[str, NotFetched]]:
    """Fetch models, and report on standard error what was found, and where, if the caller does not."""
    from kvgate.fetching.fetch import fetch_all
    from kvgate.fetching.limits import Limits

    answers = fetch_all([(key.name, key.revision) for key in keys], limits=Limits(max_seconds=max_seconds))
    found = [each for each in answers if isinstance(each, Published)]
    for each in () if is_quiet else found:
        commit = f", commit {each.commit[:12]}" if each.commit else ""
        show_error(f"{each.name}: fetched from {each.source}{commit}")
    return by_name(found), by_name([each for each in answers if isinstance(each, NotFetched)])
