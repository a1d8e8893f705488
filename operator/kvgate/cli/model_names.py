"""`--model`: the ways in which people name a model → a name that is looked up, or what files of this machine say, for all commands."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from re import IGNORECASE
from typing import Any

import click
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.checkpoint.not_fetched import NotFetched
from kvgate.checkpoint.published import PublishedModels, name_key
from kvgate.cli.exits import BadInput
from kvgate.cli.known_models import ModelOptions, judged_with_fetched, locked_models, read_lock_file, read_model_config
from kvgate.cli.terminal import show_error, some_of
from kvgate.text.patterns import pattern
from kvgate.vllm.values import UnusableValue

_ADDRESS = pattern(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?!datasets/|spaces/)([^/?#]+/[^/?#]+)"
    r"(?:/(?:tree|blob|resolve|commit)/([^/?#]+)(?:/([^?#]*))?)?/?(?:[?#].*)?|hf://([^/?#@]+/[^/?#@]+)/?",
    IGNORECASE,
)
"""A page of the hub: a repository, a revision and a file of it."""


def hub_name(text: str) -> tuple[str, str]:
    """Return name and revision of `NAME[@REVISION]` or of an address on the hub; a GGUF file stays in the name."""
    if found := _ADDRESS.fullmatch(text.strip()):
        name, revision, file = found[1] or found[4], found[2] or "", found[3] or ""
        return (f"{name}/{file}" if file.endswith(".gguf") else name), "" if revision == "main" else revision
    from kvgate.fetching.checkpoint_names import name_and_revision

    return name_and_revision(text) if "@" in text else (text.strip(), "")


def resolved(given: Mapping[str, Any], options: ModelOptions) -> tuple[dict[str, Any], PublishedModels]:
    """Return the settings of one question with the model under a name that is looked up, and the models for it.

    Raises click.UsageError for a file that cannot be used.
    """
    from kvgate.judgement.what_if import read_request

    def look_up(models: PublishedModels) -> PublishedModels:
        with suppress(UnusableValue):  # the question itself reports what is wrong with it
            read_request(settings, models=models)
        return models

    try:
        models = locked_models(options.lock, facts=options.facts)
    except BadInput as error:
        raise click.UsageError(f"--lock {error}") from None
    try:
        settings, models = with_named_model(given, models)
    except (BadInput, UnusableValue) as error:
        raise click.UsageError(str(error)) from None
    fetches, seconds = bool(options.fetch), options.fetch_seconds
    return settings, judged_with_fetched(look_up, models, fetches=fetches, max_seconds=seconds)


def with_named_model(given: Mapping[str, Any], models: PublishedModels) -> tuple[dict[str, Any], PublishedModels]:
    """Return the settings with the model under a name that is looked up, and the models with what was read of this machine.

    Raises UnusableValue for a name that means several models, and BadInput for a file that cannot be read.
    """
    settings, text = dict(given), str(given.get("model") or "").strip()
    if not text or "model_config" in given:
        return settings, models
    if path := _path(text):
        return _of_files(settings, models, text, path)
    name, revision = hub_name(text)
    known = _of_short_name(name, models)
    if known.lower() != name.lower():
        show_error(f"--model {text}: {known}")
    return {**settings, "model": known, **({"revision": revision} if revision else {})}, models


def _path(text: str) -> Path | None:
    """Return the file or folder that a text names: one that is there, unless the catalogue has a model of this name."""
    path = Path(text.partition("#")[0]).expanduser()
    is_written_as_path = text.startswith((".", "/", "~"))
    try:
        is_there = path.exists()
    except OSError:  # a name that is too long for a file
        return None
    return path if is_there and (is_written_as_path or catalogue.find_model(text) is None) else None


def _of_files(
    settings: dict[str, Any], models: PublishedModels, text: str, path: Path
) -> tuple[dict[str, Any], PublishedModels]:
    """Return the facts of a checkpoint's folder, a GGUF file, a config.json, or an entry of a lock file."""
    if path.is_dir() or path.suffix == ".gguf":
        from kvgate.fetching.folder import read_folder

        found = (
            read_folder(path, name=text) if path.is_dir() else read_folder(path.parent, name=text, gguf_file=path.name)
        )
        key = name_key(text, found.revision)
        if isinstance(found, NotFetched):
            return {**settings, "model": text}, replace(models, missing={**models.missing, key: found})
        return {**settings, "model": text}, replace(models, fetched={**models.fetched, key: found})
    from kvgate.hf_config.fields import parse_config_text

    config = parse_config_text(read_model_config(path, inside=None).text)
    if "models" not in config or "architectures" in config:
        return {**settings, "model_config": config}, models
    wanted, entries = text.partition("#")[2], read_lock_file(path)
    meant = [each for each in entries if wanted.lower() in ("", each.name.lower())]
    if len(meant) != 1:
        listed = some_of(each.name for each in entries)
        raise UnusableValue(f"--model {text}: the lock file has {listed}; write one of them: {path}#NAME")
    entry = meant[0]
    key = name_key(entry.name, entry.revision)
    known = replace(models, locked={**models.locked, key: entry}, places={**models.places, key: str(path)})
    return {**settings, "model": entry.name, "revision": entry.revision}, known


def _of_short_name(name: str, models: PublishedModels) -> str:
    """Return the name of the one known model that a name without its owner means; the name itself where none is.

    Raises UnusableValue where it means several.
    """
    if "/" in name or ":" in name or catalogue.find_model(name) or name_key(name) in models.locked:
        return name
    known = {**catalogue.names_and_aliases(), **{each.name.lower(): each.name for each in models.locked.values()}}
    wanted = _letters(name)
    meant = list(dict.fromkeys(known[each] for each in known if _letters(each.rpartition("/")[2]) == wanted))
    if len(meant) > 1:
        raise UnusableValue(f"--model {name} may be {some_of(meant)}; write the one that it is")
    begun = {known[each] for each in known if _letters(each.rpartition("/")[2]).startswith(wanted)}
    if not meant and begun:
        shortest_first = sorted(begun, key=lambda each: (len(each), each))
        show_error(f"--model {name} is no whole name; names that begin so: {some_of(shortest_first)}")
    elif not meant:
        show_error(f"--model {name} is a name without its owner; write OWNER/{name}, and add --fetch to ask the hub")
    return meant[0] if meant else name


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()
