"""Releases of vLLM that a manifest may mean: its image's, the configured one, or a range that its own options narrow down."""

from collections.abc import Sequence
from functools import lru_cache

from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import is_newer_than_known, parse_patch
from kvgate.findings.finding import Rule, Severity
from kvgate.judgement.siblings import sibling_of
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.rules.command_line import OPTION_NOT_YET, OPTION_VALUE, PARSER_UNKNOWN, UNEXPECTED_WORD
from kvgate.statement.engine import OLDEST_GUESS, Releases, newest_understood
from kvgate.vllm.arguments import Argument
from kvgate.vllm.images import ImageFound, Strength, release_of_image
from kvgate.vllm.options import Option, Program, releases_read, spellings
from kvgate.vllm.parser import CommandLine, find_option, parse_arguments
from kvgate.vllm.parser_problems import ArgumentProblem, canonical

_CAME_LATER = {OPTION_VALUE, OPTION_NOT_YET}
_MAX_FLAGS = 200
"""Flags of a command line that are looked at."""


def releases_of(engine: FoundEngine, model: str, configured: str | None) -> Releases:
    """Return the manifest's release, else the configured one, else every release that takes its options and has its model."""
    tag = engine.version.text  # a platform's own field for the release, then the image
    written = tag if not tag or ":" in tag or "/" in tag else f"vllm/vllm-openai:{tag}"
    images = [release_of_image(text) for text in (written, engine.image.text) if text]
    stated = next((found.newest for found in images if found.newest and not found.is_assumed), None)
    if stated:
        return Releases(low=stated, high=stated, is_stated=True)
    if configured:
        assumed = f"vLLM {configured}, as configured"
        return Releases(low=configured, high=configured, assumed=assumed, why="as configured", is_stated=True)
    of_images = (*(found for found in images if found.newest), *images, ImageFound(reason="no image is written"))
    why = of_images[0]
    with_class = tuple(release for release in releases_read() if _has_class(model, release)) or releases_read()
    if why.oldest and why.newest and not (why.resembles and not _has_class(model, why.newest)):
        return _range(*_informed(engine, why, [why.oldest, *_between(with_class, why.oldest, why.newest), why.newest]))
    if why.newest:
        why = replace(
            why, reason=f"the image's tag is like that of {why.newest}, which does not have the model's class"
        )
    if why.is_newest:
        return _range([newest_understood()], why)
    # the class is surer than options, and options than values; releases that were only read count where no older one will do
    names = (word.text.partition("=")[0].partition(".")[0] for word in engine.arguments if word.text.startswith("--"))
    flags = frozenset(list(dict.fromkeys(names))[:_MAX_FLAGS])
    usable = _with_values(usable_releases(flags, with_class), engine)
    usable = [release for release in usable if not is_newer_than_known(release)] or usable
    if why.is_for_a_model and len(with_class) < len(releases_read()):
        return _range(usable[:1], why)
    return _range(_between(usable, OLDEST_GUESS, usable[-1]) or usable, why)


def _between(releases: Sequence[str], oldest: str, newest: str) -> list[str]:
    low, high = parse_patch(oldest), parse_patch(newest)
    return [release for release in releases if low <= parse_patch(release) <= high]


def _informed(engine: FoundEngine, why: ImageFound, releases: list[str]) -> tuple[list[str], ImageFound]:
    """Return the range of an image from the first release that has what the engine is written for, where its newest has it: images are
    made later than an option that is new in them, and an option that is gone in the newest stays a finding."""
    lacking = [index for index, release in enumerate(releases) if _CAME_LATER & set(_refused(engine, release))]
    first = lacking[-1] + 1 if lacking else 0
    if not lacking or first == len(releases):
        return releases, why
    return releases[first:], replace(why, reason=f"{why.reason}; {releases[first]} is the first that takes its options")


def _range(releases: Sequence[str], why: ImageFound) -> Releases:
    low, high = releases[0], releases[-1]
    span = f"vLLM {low}" if low == high else f"vLLM {low} to {high}"
    if why.newest is None and high == newest_understood():  # nothing ends the range but what kvgate has read
        why = replace(why, reason=f"{why.reason}; {high} is the newest that kvgate knows")
    return Releases(
        low=low,
        high=high,
        assumed=f"{span}: {why.reason}",
        why=why.reason,
        is_ahead=why.is_ahead,
        strength=why.strength,
        is_inferred=why.newest is None and not why.is_newest,
    )


@lru_cache(maxsize=512)
def usable_releases(flags: frozenset[str], among: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the releases that know most of the options, oldest first: where an option has come or gone, its image has the right one.

    What no release writes out is a slip, or a wrapper's own: that it begins like a long option of some says nothing.
    """
    written_out = frozenset(flag for flag in flags if canonical(flag) in _all_spellings())
    lacking = {}
    for release in among:
        options = (find_option(flag, parse_patch(release)) for flag in written_out)
        lacking[release] = sum(not isinstance(option, Option) for option in options)
    least = min(lacking.values())
    return tuple(release for release, count in lacking.items() if count == least)


@lru_cache(maxsize=1)
def _all_spellings() -> frozenset[str]:
    return frozenset(spelling for release in releases_read() for spelling in spellings(parse_patch(release)))


def taken_elsewhere(engine: FoundEngine, line: CommandLine, model: str, releases: Releases) -> list[ArgumentProblem]:
    """Return the refusals of words that another release takes which it may be: no more is known than that the words and this release do
    not go together. A moving tag may be any release that has the model's class, because nobody sees when it was pulled."""
    errors = [each for each in line.problems if each.severity is None and each.rule.severities[0] is Severity.ERROR]
    is_any = releases.strength is Strength.MOVING or releases.is_inferred
    ends, left = (releases.low, releases.high), errors
    possible = (each for each in releases_read() if is_any or each in ends or releases.may_be(each))
    for release in (each for each in possible if _has_class(model, each, or_nearly=True)) if errors else ():
        refused = {problem.at for problem in _problems(engine, release)}
        left = [problem for problem in left if problem.at in refused]
    return [problem for problem in errors if problem not in left]


def _problems(engine: FoundEngine, release: str) -> tuple[ArgumentProblem, ...]:
    """Read the command line as a release does. Each world that an engine may live in asks again; very long ones are not kept."""
    read = _read_by if len(engine.arguments) <= _MAX_FLAGS else _read_by.__wrapped__
    return read(engine.arguments, engine.program, release)


@lru_cache(maxsize=256)
def _read_by(arguments: tuple[Argument, ...], program: Program, release: str) -> tuple[ArgumentProblem, ...]:
    return tuple(parse_arguments(arguments, parse_patch(release), program=program).problems)


def _with_values(releases: Sequence[str], engine: FoundEngine) -> Sequence[str]:
    """Keep the releases that take the engine's values and words: some came later, as max_model_len auto or a parser, others are gone.

    Where the newest refuses none, the releases before the last one that refuses some are dropped; else those stay that refuse the fewest.
    """
    refused = _refused(engine, releases[-1])
    if not refused:
        return next(releases[i:] for i, release in enumerate(releases) if not _refused(engine, release))
    if PARSER_UNKNOWN in refused:  # a plug-in that is not seen may bring it along, in any release
        return releases
    counts = [len(_refused(engine, release)) for release in releases]
    return [release for release, count in zip(releases, counts, strict=True) if count == min(counts)]


def _refused(engine: FoundEngine, release: str) -> list[Rule]:
    """Return the rules of the values and words that a release refuses, or takes and ignores."""
    problems = _problems(engine, release)
    refused = (each.rule for each in problems if each.severity is None or each.rule == UNEXPECTED_WORD)
    return [rule for rule in refused if rule in (OPTION_VALUE, OPTION_NOT_YET, PARSER_UNKNOWN, UNEXPECTED_WORD)]


def _has_class(model: str, release: str, *, or_nearly: bool = False) -> bool:
    """True where the release has the model's class, or that of its sibling by name; unknown models are in all. `or_nearly`: also the last
    release that was read without it, because those between it and the first one with it were not read."""
    known = catalogue.find_model_class(_architecture(model))
    if known is None:
        return True
    patch = parse_patch(release)
    absent = parse_patch(known.absent_in) if known.absent_in else None
    too_old = absent is not None and (patch < absent or (patch == absent and not or_nearly))
    return not too_old and not (known.removed_in and patch >= parse_patch(known.removed_in))


@lru_cache(maxsize=512)
def _architecture(model: str) -> str:
    entry = catalogue.find_model(model)
    if entry is None and (sibling := sibling_of(model)):
        entry = catalogue.find_model(sibling.model)
    return str((entry.config.get("architectures") or [""])[0]) if entry else ""
