"""The models that manifests name → the lock file."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from kvgate.checkpoint.not_fetched import NotFetched
from kvgate.checkpoint.published import ModelKey, Published, PublishedModels, by_name, lock_text
from kvgate.cli.check.given_facts import CheckOptions, GivenFacts, given_facts
from kvgate.cli.check.run import Engines, engines_in
from kvgate.cli.exits import Exit, replace_file
from kvgate.cli.known_models import MOST_ROUNDS, Recorded, fetched_models, read_lock_file
from kvgate.cli.terminal import show_error
from kvgate.documents.bounded_files import read_text

DEFAULT_FILE = "kvgate-models.json"


class Gathered(Struct, frozen=True, kw_only=True):
    """The entries for a file, and what could not be had."""

    entries: Mapping[str, Published]
    missing: Mapping[str, NotFetched]
    wanted: Mapping[str, ModelKey]
    """Names that are looked up and are neither in the file nor in the catalogue."""


def locked(
    paths: Sequence[str],
    file: Path | None,
    *,
    every: bool,
    update: bool,
    check: bool,
    config: Path | None,
    fetch_seconds: int,
) -> Exit:
    """Write the file, or compare it. Raises BadInput."""
    given = given_facts(paths, CheckOptions(config=config))
    path = file or (given.file.lock if given.file else None) or Path(DEFAULT_FILE)
    known = by_name(read_lock_file(path) if path.exists() else ())
    engines = engines_in(paths, CheckOptions(config=config), given)
    if check and not update:
        return _compared(path, known, gathered(engines, given, known, every=every, seconds=0))
    kept = {key: each for key, each in known.items() if not update or not each.commit}
    new = gathered(engines, given, kept, every=every, seconds=fetch_seconds)
    for each in new.missing.values():
        show_error(each.message, *(f"  {remedy}" for remedy in each.remedies))
    if check:
        return _compared(path, known, new)
    replace_file(path, lock_text(new.entries.values()))
    what = f"{len(new.entries)} model{'' if len(new.entries) == 1 else 's'}"
    show_error(f"{path}: {what}" + (f", {len(new.missing)} could not be fetched" if new.missing else ""))
    return Exit.UNDECIDED if new.missing else Exit.FITS


def gathered(
    engines: Engines, given: GivenFacts, kept: Mapping[str, Published], *, every: bool, seconds: float
) -> Gathered:
    """Judge to see which models are looked up, and fetch those that are not kept; nothing is requested without seconds."""
    from kvgate.fetching.checkpoint_names import is_hub_name

    found: dict[str, Published] = {}
    missing: dict[str, NotFetched] = {}
    for _ in range(MOST_ROUNDS):
        locked, fetched = Recorded({**kept, **found}), Recorded({})
        engines.judged(replace(given, models=PublishedModels(locked=locked, fetched=fetched)))
        every_name = locked.wanted if every else fetched.wanted
        known = locked.keys() | missing.keys()
        wanted = {key: name for key, name in every_name.items() if key not in known and is_hub_name(name.name)}
        if not wanted or not seconds:
            break
        more, refused = fetched_models(list(wanted.values()), max_seconds=seconds)
        found, missing = {**found, **more}, {**missing, **refused}
    used = {key: each for key, each in {**kept, **found}.items() if key in locked.wanted}
    return Gathered(entries=used, missing=missing, wanted=wanted)


def _compared(path: Path, known: Mapping[str, Published], new: Gathered) -> Exit:
    """Say what is wrong with the file, and what makes it right."""
    problems = list(_problems(path, known, new))
    if not problems and (
        not path.exists() or read_text(path, max_bytes=1 << 30, inside=None) != lock_text(known.values())
    ):
        problems.append(f"{path} is not as `kvgate models lock` writes it" if path.exists() else f"{path} is missing")
    if problems:
        show_error(*problems, "write it anew: kvgate models lock")
    if new.missing:
        return Exit.UNDECIDED
    return Exit.FINDINGS if problems else Exit.FITS


def _problems(path: Path, known: Mapping[str, Published], new: Gathered) -> Iterator[str]:
    for key, name in new.wanted.items():
        if key not in new.missing:
            yield f"{path} lacks {name.name}{f'@{name.revision}' if name.revision else ''}, which an engine names"
    for key, entry in known.items():
        now = new.entries.get(key)
        if now is None and key not in new.missing:
            yield f"{path} has {entry.name}, which no engine names"
        elif now is not None and now.commit != entry.commit:
            yield f"{path} has {entry.name} of commit {entry.commit[:12]}, and {now.source} has {now.commit[:12]}"
    for key, entry in new.entries.items():
        if key not in known:
            yield f"{path} lacks {entry.name}, which an engine names"
