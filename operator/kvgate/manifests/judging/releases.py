"""Releases of vLLM that a manifest may mean: its image's, the configured one, or a range that its own options narrow down."""

from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from kvgate import catalogue
from kvgate.budget import is_newer_than_known, parse_patch
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.text.patterns import pattern
from kvgate.vllm.arguments import Argument
from kvgate.vllm.options import Option, releases_read, spellings
from kvgate.vllm.parser import find_option, parse_arguments
from kvgate.vllm.parser_problems import OPTION_VALUE, PARSER_UNKNOWN, canonical

_OLDEST_GUESS = "0.8.5"
"""Oldest release that is guessed: without a stated one nobody means an engine before V1, unless only older releases have an option."""
_MAX_FLAGS = 200
"""Flags of a command line that are looked at."""

_NUMBERS = r"\d{1,9}\.\d{1,9}\.\d{1,9}"
"""A longer number is not a release; `parse_release` refuses it too."""
_RELEASE = pattern(rf"(?:^|[-_])v?({_NUMBERS}(?:\.post\d{{1,9}}|rc\d{{1,9}}|\.dev\d{{1,9}})?)(?:$|[-_+.])")
_NAMED_RELEASE = pattern(rf"vllm[-_]?v?({_NUMBERS}(?:\.post\d{{1,9}}|rc\d{{1,9}})?)(?:$|[-_+.])")
"""Release in tags of other projects: `v0.9.0-vllm0.30.0`, `2.43.0-vllm_0.7.3`."""
_FRAMEWORK_RELEASE = pattern(rf"({_NUMBERS})-[gc]pu-py3\d+")
"""Release in tags of AWS's Deep Learning Containers: `0.11.0-gpu-py312-cu128-ubuntu22.04-ec2`."""
_FRAMEWORK_IMAGES = "/vllm"
_VLLM_IMAGES = (
    "vllm/vllm-openai", "vllm-openai", "vllm/vllm-openai-rocm", "rocm/vllm", "vllm/vllm", "vllm-cpu-release-repo", "intel/vllm",
)  # fmt: skip
"""Ends of repositories whose tags are vLLM's releases."""
_OWN_TAGS = ("lmcache/vllm-openai",)
"""Repositories that end alike and count their own."""
_TAGS_AHEAD = ("nightly", "main", "dev")
_MOVING_TAGS = ("", "latest", *_TAGS_AHEAD)


def is_own_image(image: str) -> bool:
    """Return whether an image is vLLM's own for NVIDIA GPUs, from wherever it is pulled."""
    name = image.partition("@")[0]
    repository = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
    return f"/{repository}".endswith("/vllm/vllm-openai")


class ImageFound(Struct, frozen=True, kw_only=True):
    """Facts that an image's name states."""

    version: str | None
    """None where nothing in it is a release of vLLM."""
    reason: str
    """Words for people: why the release is not known, or how it is known."""
    is_newest: bool = False
    """The tag moves with vLLM's releases."""
    is_ahead: bool = False
    """The tag is built between two releases."""


def version_of(image: str) -> ImageFound:
    """`vllm/vllm-openai:v0.29.0-cu129` → 0.29.0. Tags of other projects' images count their own releases."""
    name, at, digest = image.partition("@")
    repository, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "")
    is_ours = repository.endswith(_VLLM_IMAGES) and not repository.endswith(_OWN_TAGS)
    if not repository:
        return ImageFound(version=None, reason="no image is written")
    if not is_ours:
        is_framework = repository.endswith(_FRAMEWORK_IMAGES)
        release = _NAMED_RELEASE.search(tag) or (_FRAMEWORK_RELEASE.match(tag) if is_framework else None)
        other = f"{repository} is not vLLM's own image, and its tags need not be vLLM's releases"
        return ImageFound(version=release[1] if release else None, reason=f"tag {tag}" if release else other)
    match = _RELEASE.search(tag)
    if match is not None:
        return ImageFound(version=match[1], reason=f"tag {tag}")
    if at or digest:
        return ImageFound(version=None, reason="a digest names no release")
    if tag in _MOVING_TAGS:
        reason = f"the tag {tag or 'latest'} moves with the releases"
        return ImageFound(version=None, reason=reason, is_newest=True, is_ahead=tag in _TAGS_AHEAD)
    return ImageFound(version=None, reason=f"the tag {tag} names no release")


class Releases(Struct, frozen=True, kw_only=True):
    """The oldest and the newest release that it may be; both are equal where it is known."""

    low: str
    high: str
    assumed: str = ""
    """Words for people about the assumption; empty where the manifest states the release."""
    is_stated: bool = False
    """True where the manifest or the configuration states it."""
    is_ahead: bool = False
    """The engine is built after the newest release that is known."""

    @property
    def is_one(self) -> bool:
        return self.low == self.high


def releases_of(engine: FoundEngine, model: str, configured: str | None) -> Releases:
    """Return the manifest's release, else the configured one, else every release that takes its options and has its model."""
    tag = engine.version.text  # a platform's own field for the release, then the image
    written = tag if not tag or ":" in tag or "/" in tag else f"vllm/vllm-openai:{tag}"
    images = [version_of(text) for text in (written, engine.image.text) if text]
    stated = next((found.version for found in images if found.version), None)
    if stated:
        return Releases(low=stated, high=stated, is_stated=True)
    if configured:
        return Releases(low=configured, high=configured, assumed=f"vLLM {configured}, as configured", is_stated=True)
    why = next((found for found in images), ImageFound(version=None, reason="no image is written"))
    names = (word.text.partition("=")[0].partition(".")[0] for word in engine.arguments if word.text.startswith("--"))
    flags = frozenset(list(dict.fromkeys(names))[:_MAX_FLAGS])
    usable = _with_values(usable_releases(flags), engine.arguments)
    # nobody named the releases that were only read, and their interval is wider: they are dropped where an older one will do
    usable = [release for release in usable if not is_newer_than_known(release)] or usable
    newest = newest_understood()
    if why.is_newest and newest in usable:
        return Releases(low=newest, high=newest, assumed=f"vLLM {newest}: {why.reason}", is_ahead=why.is_ahead)
    if why.is_newest:  # or one that was pulled while it had these options
        usable = [*usable, newest]
    return _range(usable, model, why)


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
    lacking = {}
    for release in releases_read():
        options = (find_option(flag, parse_patch(release)) for flag in written_out)
        lacking[release] = sum(not isinstance(option, Option) for option in options)
    least = min(lacking.values())
    return tuple(release for release, count in lacking.items() if count == least)


@lru_cache(maxsize=1)
def _all_spellings() -> frozenset[str]:
    return frozenset(spelling for release in releases_read() for spelling in spellings(parse_patch(release)))


def newest_understood() -> str:
    """The newest release that was read and whose accounting the budget knows."""
    return next(release for release in reversed(releases_read()) if not is_newer_than_known(release))


def _with_values(releases: Sequence[str], arguments: Sequence[Argument]) -> Sequence[str]:
    """Drop the oldest releases that refuse a value which the newest takes, such as max_model_len auto, or a new parser."""
    if _num_refused(arguments, releases[-1]):
        return releases
    return next(releases[i:] for i, release in enumerate(releases) if not _num_refused(arguments, release))


def _num_refused(arguments: Sequence[Argument], release: str) -> int:
    problems = parse_arguments(arguments, parse_patch(release)).problems
    return sum(problem.rule in (OPTION_VALUE, PARSER_UNKNOWN) for problem in problems)


def _has_class(model: str, release: str) -> bool:
    """True where the release has the model's class; unknown models are in all."""
    entry = catalogue.find_model(model) if model else None
    known = catalogue.find_model_class(str((entry.config.get("architectures") or [""])[0])) if entry else None
    if known is None:
        return True
    patch = parse_patch(release)
    too_old = bool(known.absent_in) and patch <= parse_patch(known.absent_in)
    return not too_old and not (known.removed_in and patch >= parse_patch(known.removed_in))
