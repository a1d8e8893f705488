"""The release of vLLM in an image, by its name: vLLM's own tags, tags that name it, and a dated table of other projects' images."""

import csv
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from kvgate import bundle
from kvgate.budget import parse_patch
from kvgate.text.patterns import pattern

_NUMBERS = r"\d{1,9}\.\d{1,9}\.\d{1,9}(?:\.\d{1,9})?"
"""`0.9.0.1` is one too. A longer number is not a release; `parse_release` refuses it too."""
_RELEASE = pattern(rf"(?:^|[-_])v?({_NUMBERS}(?:\.post\d{{1,9}}|rc\d{{1,9}}|\.dev\d{{1,9}})?)(?:$|[-_+.])")
_NAMED_RELEASE = pattern(rf"vllm[-_]?v?({_NUMBERS}(?:\.post\d{{1,9}}|rc\d{{1,9}})?)(?:$|[-_+.])")
"""Release in tags of other projects: `v0.9.0-vllm0.30.0`, `rocm6.4.1_vllm_0.10.1_20250909`."""
_FRAMEWORK_RELEASE = pattern(rf"({_NUMBERS})-[gc]pu-py3\d+")
"""Release in tags of AWS's Deep Learning Containers: `0.11.0-gpu-py312-cu128-ubuntu22.04-ec2`."""
_FRAMEWORK_IMAGES = "/vllm"
_DAY = pattern(r"(?:^|[^0-9])(20[2-9]\d)[-.]?(0[1-9]|1[0-2])[-.]?(0[1-9]|[12]\d|3[01])(?:$|[^0-9])")
"""Day in a tag: `2025-05-05-v1`, `nightly_main_20250821`."""
_MODEL = pattern(r"[a-z]{3}[a-z0-9_.-]{0,120}")
"""Tag that names a model, as `gemma4-0505-cu129`: a build from before the release that has the model's class."""
_COMMIT = pattern(r"(?:^|-)[0-9a-f]{7,40}(?:$|-)")
_VLLM_IMAGES = (
    "/vllm-omni", "/rocm/vllm", "/rocm/vllm-dev", "/vllm/vllm", "/vllm-cpu-release-repo", "/intel/vllm", "/llm-scaler-vllm",
)  # fmt: skip
"""Ends of repositories beside `vllm-openai…` whose tags are vLLM's releases; vllm-omni counts as the vLLM that it was built for."""
_OWN_TAGS = ("lmcache/vllm-openai",)
"""Repositories that end alike and count their own."""
_TAGS_AHEAD = ("nightly", "main", "dev")
_MOVING_TAGS = ("", "latest", *_TAGS_AHEAD)
_FLAVOURS = pattern(
    r"(?:[-_+.]+(?:[brv]?\d{1,12}|post\d{1,9}|cu\d{1,4}|cuda\d{0,4}|rocm\d{0,4}|x86|amd64|arm64|aarch64|gpu|cpu|xpu|ubuntu\d{0,6}|ubi\d{0,2}|"
    r"instinct|mi\d{3}x?|rhel\d{0,2}|py\d{1,4}|python\d{0,4}|ec2|sagemaker|slim|lightweight|nixl|lmcache|distributed))*"
)
"""Words behind a release that say what it was built for, and nothing of another code: `-x86_64`, `-cu129-ubuntu2404`, `-gpu-py312`."""
_LEADS_TO = pattern(rf"({_NUMBERS})(?:rc\d{{1,9}}|\.dev\d{{1,9}})")
"""Number of a build before a release."""
_BEFORE_A_RELEASE = pattern(r"(?:^|[-_+.\d])(?:rc|dev|alpha|beta|preview|nightly|main|pre)(?:$|[-_+.\d])")
"""Words of builds that are made before a release, and of branches that lead nowhere: `1.4.0-kimi-k3-dev.1`."""
_VARIABLE = pattern(
    r"\$\{\s{0,9}(?P<braced>\w{1,99}+)(?:[^{}]|\{[^{}]{0,999}+\}){0,999}+\}|\$\((?P<round>\w{1,99}+)\)|\$(?P<plain>[A-Za-z_]\w{0,99})|"
    r"\{\{[-\s]{0,9}(?P<template>[\w.$]{1,199}+)[^{}]{0,999}+\}\}"
)
"""A variable, with what stands for it or is said where it has no value, or a field of a template."""


class ImageName(Struct, frozen=True, kw_only=True):
    """`registry/vllm/vllm-openai:v0.29.0@sha256:…` in its parts; empty where one is not written."""

    repository: str
    tag: str
    digest: str


class Strength(Enum):
    """How surely it is known which releases an engine may be."""

    STRONG = "the manifest, the user or a published table says it"
    MOVING = "the tag follows the newest release"
    WEAK = "the tag only resembles a release, or says nothing"


class ImageFound(Struct, frozen=True, kw_only=True):
    oldest: str | None = None
    """None where nothing in it is a release of vLLM."""
    newest: str | None = None
    reason: str
    """Words for people: why the release is not known, or how it is known."""
    is_assumed: bool = False
    """The release follows from a table of other projects' images, or from a day; the tag does not state it."""
    is_newest: bool = False
    """The tag moves with vLLM's releases."""
    is_ahead: bool = False
    """The tag is built between two releases."""
    is_for_a_model: bool = False
    """The tag is a build for one model, from about the first release that has its class."""
    resembles: bool = False
    """The tag is like that of a release, and the image may be another: a build before it, a fork, one that a digest names."""

    @property
    def strength(self) -> Strength:
        if self.newest and not self.resembles and not self.is_ahead:
            return Strength.STRONG
        return Strength.MOVING if self.is_newest else Strength.WEAK


class _Row(Struct, frozen=True, kw_only=True):
    repository: str
    tag: str
    oldest: str
    newest: str
    source: str


def with_short_variables(image: str) -> str:
    """Return `vllm/vllm-openai:$TAG` of `vllm/vllm-openai:${TAG:?such as v0.30.0}`: what a variable is not is no part of the name."""
    return (
        _VARIABLE.sub(lambda match: f"${next(filter(None, match.groups()))}", image)
        if "$" in image or "{{" in image
        else image
    )


def image_name(image: str) -> ImageName:
    """Split an image's name; the port of a registry is no tag, and of a variable there is nothing but `$NAME`."""
    name, _, digest = with_short_variables(image).partition("@")
    repository, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "")
    return ImageName(repository=repository, tag=tag, digest=digest)


def is_own_image(image: str) -> bool:
    """Return whether an image is vLLM's own for NVIDIA GPUs, from wherever it is pulled."""
    return f"/{image_name(image).repository}".endswith("/vllm/vllm-openai")


def release_of_image(image: str) -> ImageFound:
    """`vllm/vllm-openai:v0.29.0-cu129` → 0.29.0. Tags of other projects' images count their own releases."""
    name = image_name(image)
    if not name.repository:
        return ImageFound(reason="no image is written")
    match = (
        _NAMED_RELEASE.search(name.tag)
        or (_RELEASE.search(name.tag) if _counts_as_vllm(name) else None)
        or (_FRAMEWORK_RELEASE.match(name.tag) if name.repository.endswith(_FRAMEWORK_IMAGES) else None)
    )
    if match:
        found = ImageFound(oldest=match[1], newest=match[1], reason=f"tag {name.tag}")
        return _as_far_as_it_says(found, name, name.tag[match.end(1) :], _before_it(name, match.start(1)))
    row = next((row for row in _rows() if _is_of(name, row)), None)
    if row is not None:
        reason = f"{name.repository.rpartition('/')[2]}:{name.tag} ({row.source})"
        found = ImageFound(oldest=row.oldest, newest=row.newest, reason=reason, is_assumed=True)
        return _as_far_as_it_says(found, name, name.tag.removeprefix("v")[len(row.tag) :])
    if not _counts_as_vllm(name):
        if looked := _looks_like(name):
            reason = f"the tag {name.tag} of {name.repository} looks like it"
            return ImageFound(oldest=looked, newest=looked, reason=reason, is_assumed=True, resembles=True)
        return ImageFound(reason=f"{name.repository} is not vLLM's own image, and its tags need not be vLLM's releases")
    return _unnumbered(name)


def _before_it(name: ImageName, start: int) -> str:
    """Return the words that stand before a release, in the tag and behind `vllm-openai` in the repository, but for vLLM's own name."""
    _, is_own, variant = f"/{name.repository}".rpartition("/vllm-openai")
    before = name.tag[:start].removesuffix("v").rstrip("-_").removesuffix("vllm").rstrip("-_")
    return (variant if is_own else "") + (f"-{before}" if before else "")


def _as_far_as_it_says(found: ImageFound, name: ImageName, rest: str, before: str = "") -> ImageFound:
    """Return the release of a tag with its strength; `before` and `rest` are the words on both sides of it.

    A build before a release (`rc`, `dev`) has the code of the one before, of its own, or between; on a branch it may be any later one.
    """
    if found.oldest is None or found.newest is None:
        return found
    if own := _LEADS_TO.fullmatch(found.newest):
        oldest, newest, reason = _before(own[1]), own[1], f"the tag {name.tag} is a build before {own[1]}"
    elif _BEFORE_A_RELEASE.search(f"{before}-{rest}"):
        oldest, newest = _before(found.oldest), _releases()[-1]
        reason = f"the tag {name.tag} is no release: it is a build of its own"
    elif not (_FLAVOURS.fullmatch(rest) and _FLAVOURS.fullmatch(before)):
        oldest, newest, reason = (
            found.oldest,
            found.newest,
            f"the tag {name.tag} is a build of its own from this release",
        )
    else:
        return found
    return replace(found, oldest=oldest, newest=newest, reason=reason, is_assumed=True, resembles=True)


def _before(release: str) -> str:
    """Return the release before another one; the oldest of the table where there is none."""
    known = _releases()
    return known[max(bisect_left(known, parse_patch(release), key=parse_patch) - 1, 0)]


@lru_cache(maxsize=1)
def _releases() -> tuple[str, ...]:
    return tuple(row["release"] for row in _read("release_days.csv"))


def counts_releases_of_vllm(image: str) -> bool:
    """Return whether the tags of an image's repository are vLLM's releases."""
    return _counts_as_vllm(image_name(image))


def _counts_as_vllm(name: ImageName) -> bool:
    is_named = f"/{name.repository}".endswith(_VLLM_IMAGES) or "/vllm-openai" in f"/{name.repository}"
    return is_named and not name.repository.endswith(_OWN_TAGS)


def _looks_like(name: ImageName) -> str | None:
    """Return a release of vLLM that the tag of somebody's image of vLLM has; other numbers are its own."""
    match = _RELEASE.search(name.tag)
    is_vllm = "vllm" in name.repository.rpartition("/")[2] and not name.repository.endswith(_OWN_TAGS)
    return match[1] if match and is_vllm and match[1] in _releases() else None


def _unnumbered(name: ImageName) -> ImageFound:
    """Read a tag of vLLM's own images that is no release."""
    kind = name.tag.partition("-")[0]
    if name.digest:
        return ImageFound(reason="a digest names no release")
    if "$" in name.tag:
        return ImageFound(reason=f"the tag {name.tag} has no value here")
    if day := _DAY.search(name.tag):
        oldest, newest = _around(f"{day[1]}-{day[2]}-{day[3]}")
        return ImageFound(oldest=oldest, newest=newest, reason=f"tag {name.tag}", is_assumed=True, is_ahead=True)
    is_commit = _COMMIT.search(name.tag) is not None
    if kind in _MOVING_TAGS and not is_commit:
        reason = f"the tag {name.tag or 'latest'} moves with the releases"
        return ImageFound(reason=reason, is_newest=True, is_ahead=kind in _TAGS_AHEAD)
    is_for_a_model = kind not in _MOVING_TAGS and not is_commit and _MODEL.fullmatch(name.tag) is not None
    reason = f"the tag {name.tag} names no release"
    return ImageFound(reason=reason, is_ahead=is_for_a_model or kind in _TAGS_AHEAD, is_for_a_model=is_for_a_model)


def _is_of(name: ImageName, row: _Row) -> bool:
    """True where a row is about the image; a number in the tag that goes on is another one."""
    tag = name.tag.removeprefix("v")
    of_folder = row.repository.endswith("/*") and f"/{row.repository[:-1]}" in f"/{name.repository}"
    is_named = of_folder or f"/{name.repository}".endswith(f"/{row.repository}")
    return is_named and tag.startswith(row.tag) and not tag[len(row.tag) : len(row.tag) + 1].isdigit()


@lru_cache(maxsize=1)
def _rows() -> tuple[_Row, ...]:
    """Return the table, the longest tags first."""
    rows = []
    for row in _read("images.csv"):
        oldest, newest = _around(row["built"]) if row["built"] else (row["oldest"], row["newest"] or row["oldest"])
        rows.append(
            _Row(repository=row["repository"], tag=row["tag"], oldest=oldest, newest=newest, source=row["source"])
        )
    return tuple(sorted(rows, key=lambda row: -len(row.tag)))


def _around(day: str) -> tuple[str, str]:
    """Return the release that was stable on a day, and the next one, which a build of the main branch leads to."""
    table = _read("release_days.csv")
    index = bisect_right([row["day"] for row in table], day)
    return table[max(index - 1, 0)]["release"], table[min(index, len(table) - 1)]["release"]


@lru_cache(maxsize=2)
def _read(name: str) -> Sequence[dict[str, str]]:
    return tuple(csv.DictReader(bundle.lines(name)))
