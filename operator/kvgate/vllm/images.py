"""The release of vLLM in an image, by its name: vLLM's own tags, tags that name it, and a dated table of other projects' images."""

import csv
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from kvgate.text.patterns import pattern

_DATA = Path(__file__).parent / "data"
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


class ImageName(Struct, frozen=True, kw_only=True):
    """`registry/vllm/vllm-openai:v0.29.0@sha256:…` in its parts; empty where one is not written."""

    repository: str
    tag: str
    digest: str


class ImageFound(Struct, frozen=True, kw_only=True):
    """Facts that an image's name states."""

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


class _Row(Struct, frozen=True, kw_only=True):
    repository: str
    tag: str
    oldest: str
    newest: str
    source: str


def image_name(image: str) -> ImageName:
    """Split an image's name; the port of a registry is no tag."""
    name, _, digest = image.partition("@")
    has_tag = ":" in name.rpartition("/")[2]
    repository, _, tag = name.rpartition(":") if has_tag else (name, "", "")
    return ImageName(repository=repository, tag=tag, digest=digest)


def is_own_image(image: str) -> bool:
    """Return whether an image is vLLM's own for NVIDIA GPUs, from wherever it is pulled."""
    return f"/{image_name(image).repository}".endswith("/vllm/vllm-openai")


def release_of_image(image: str) -> ImageFound:
    """`vllm/vllm-openai:v0.29.0-cu129` → 0.29.0. Tags of other projects' images count their own releases."""
    name = image_name(image)
    if not name.repository:
        return ImageFound(reason="no image is written")
    is_framework = name.repository.endswith(_FRAMEWORK_IMAGES)
    match = (
        _NAMED_RELEASE.search(name.tag)
        or (_RELEASE.search(name.tag) if _counts_as_vllm(name) else None)
        or (_FRAMEWORK_RELEASE.match(name.tag) if is_framework else None)
    )
    stated = match[1] if match else None
    if stated:
        return ImageFound(oldest=stated, newest=stated, reason=f"tag {name.tag}")
    row = next((row for row in _rows() if _is_of(name, row)), None)
    if row is not None:
        reason = f"{name.repository.rpartition('/')[2]}:{name.tag} ({row.source})"
        return ImageFound(oldest=row.oldest, newest=row.newest, reason=reason, is_assumed=True)
    if not _counts_as_vllm(name):
        if looked := _looks_like(name):
            reason = f"the tag {name.tag} of {name.repository} looks like it"
            return ImageFound(oldest=looked, newest=looked, reason=reason, is_assumed=True)
        return ImageFound(reason=f"{name.repository} is not vLLM's own image, and its tags need not be vLLM's releases")
    return _unnumbered(name)


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
    is_release = match is not None and any(row["release"] == match[1] for row in _read("release_days.csv"))
    return match[1] if match and is_vllm and is_release else None


def _unnumbered(name: ImageName) -> ImageFound:
    """Read a tag of vLLM's own images that is no release."""
    kind = name.tag.partition("-")[0]
    if name.digest and not name.tag:
        return ImageFound(reason="a digest names no release")
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
    lines = (_DATA / name).read_text(encoding="utf-8").splitlines()
    return tuple(csv.DictReader(line for line in lines if not line.startswith("#")))
