"""Releases of vLLM that a manifest may mean: its image's, the configured one, or a range that its own options narrow down."""

from collections.abc import Sequence
from functools import lru_cache

from kvgate import catalogue
from kvgate.budget.versions import is_newer_than_known, parse_patch
from kvgate.manifests.judging.images import ImageFound, version_of
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.record import record
from kvgate.vllm.arguments import Argument
from kvgate.vllm.options import Option, releases_read, spellings
from kvgate.vllm.parser import find_option, parse_arguments
from kvgate.vllm.parser_problems import canonical

_OLDEST_GUESS = "0.8.5"
"""Oldest release that is guessed: without a stated one nobody means an engine before V1, unless only older releases have an option."""
_MAX_FLAGS = 200
"""Flags of a command line that are looked at."""


@record
class Releases:
    """The oldest and the newest release that it may be; both are equal where it is known."""

    low: str
    high: str
    assumed: str = ""
    """Why; empty where the manifest says it."""
    is_stated: bool = False
    """True where the manifest or the configuration states it."""
    is_ahead: bool = False
    """It is built after the newest that is known."""

    @property
    def is_one(self) -> bool:
        return self.low == self.high


def releases_of(engine: FoundEngine, model: str, configured: str | None) -> Releases:
    """Return the manifest's release, else the configured one, else every release that takes its options and has its model."""
    images = [version_of(text) for text in _images(engine)]
    stated = next((found.version for found in images if found.version), None)
    if stated:
        return Releases(low=stated, high=stated, is_stated=True)
    if configured:
        return Releases(low=configured, high=configured, assumed=f"vLLM {configured}, as configured", is_stated=True)
    why = next((found for found in images), ImageFound(version=None, reason="no image is written"))
    usable = _understood(_with_values(usable_releases(_flags(engine.arguments)), engine.arguments))
    newest = newest_understood()
    if why.is_newest and newest in usable:
        return Releases(low=newest, high=newest, assumed=f"vLLM {newest}: {why.reason}", is_ahead=why.is_ahead)
    if why.is_newest:  # or one that was pulled while it had these options
        usable = (*usable, newest)
    return _range(usable, model, why)


def _images(engine: FoundEngine) -> list[str]:
    """A platform's own field for the release, then the image."""
    tag, image = engine.version.text, engine.image.text
    own = [tag if ":" in tag or "/" in tag else f"vllm/vllm-openai:{tag}"] if tag else []
    return [*own, *([image] if image else [])]


def _flags(arguments: Sequence[Argument]) -> frozenset[str]:
    names = (word.text.partition("=")[0].partition(".")[0] for word in arguments if word.text.startswith("--"))
    return frozenset(list(dict.fromkeys(names))[:_MAX_FLAGS])


def _range(usable: Sequence[str], model: str, why: ImageFound) -> Releases:
    from_model = [release for release in usable if _has_class(model, release)] or list(usable)
    recent = [release for release in from_model if parse_patch(release) >= parse_patch(_OLDEST_GUESS)] or from_model
    low, high = recent[0], recent[-1]
    span = f"vLLM {low}" if low == high else f"vLLM {low} to {high}"
    return Releases(low=low, high=high, assumed=f"{span}: {why.reason}", is_ahead=why.is_ahead)


@lru_cache(maxsize=512)
def usable_releases(flags: frozenset[str]) -> tuple[str, ...]:
    """The releases that know most of the options, oldest first: where an option has come or gone, its image has the right one.

    What no release writes out is a slip, or a wrapper's own: that it begins like a long option of some says nothing.
    """
    written_out = frozenset(flag for flag in flags if canonical(flag) in _all_spellings())
    lacking = {release: _num_lacking(written_out, release) for release in releases_read()}
    least = min(lacking.values())
    return tuple(release for release, count in lacking.items() if count == least)


@lru_cache(maxsize=1)
def _all_spellings() -> frozenset[str]:
    return frozenset(spelling for release in releases_read() for spelling in spellings(parse_patch(release)))


def newest_understood() -> str:
    """The newest release that was read and whose accounting the budget knows."""
    return next(release for release in reversed(releases_read()) if not is_newer_than_known(release))


def _understood(releases: Sequence[str]) -> Sequence[str]:
    """Drop releases that were only read where an older one will do: nobody named them, and their interval is wider."""
    return [release for release in releases if not is_newer_than_known(release)] or releases


def _with_values(releases: Sequence[str], arguments: Sequence[Argument]) -> Sequence[str]:
    """Drop the oldest releases that refuse a value which the newest takes, such as max_model_len auto, or a new parser."""
    if _num_refused(arguments, releases[-1]):
        return releases
    return next(releases[i:] for i, release in enumerate(releases) if not _num_refused(arguments, release))


def _num_refused(arguments: Sequence[Argument], release: str) -> int:
    problems = parse_arguments(arguments, parse_patch(release)).problems
    return sum(problem.rule in ("OptionValue", "ParserUnknown") for problem in problems)


def _num_lacking(flags: frozenset[str], release: str) -> int:
    patch = parse_patch(release)
    return sum(not isinstance(find_option(flag, patch), Option) for flag in flags)


def _has_class(model: str, release: str) -> bool:
    """True where the release has the model's class; unknown models are in all."""
    entry = catalogue.find_model(model) if model else None
    known = catalogue.find_model_class(str((entry.config.get("architectures") or [""])[0])) if entry else None
    if known is None:
        return True
    patch = parse_patch(release)
    too_old = bool(known.absent_in) and patch <= parse_patch(known.absent_in)
    return not too_old and not (known.removed_in and patch >= parse_patch(known.removed_in))
