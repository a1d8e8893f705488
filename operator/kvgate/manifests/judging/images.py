"""Release of vLLM in an image, by its tag where the tag states it."""

import re

from kvgate.record import record

_NUMBERS = r"\d{1,9}\.\d{1,9}\.\d{1,9}"
"""A longer number is not a release; `parse_release` refuses it too."""
_RELEASE = re.compile(rf"(?:^|[-_])v?({_NUMBERS}(?:\.post\d{{1,9}}|rc\d{{1,9}}|\.dev\d{{1,9}})?)(?:$|[-_+.])")
_NAMED_RELEASE = re.compile(rf"vllm[-_]?v?({_NUMBERS}(?:\.post\d{{1,9}}|rc\d{{1,9}})?)(?:$|[-_+.])")
"""Release in tags of other projects: `v0.9.0-vllm0.30.0`, `2.43.0-vllm_0.7.3`."""
_FRAMEWORK_RELEASE = re.compile(rf"({_NUMBERS})-[gc]pu-py3\d+")
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


@record
class ImageFound:
    """Facts that an image's name states."""

    version: str | None
    """None where nothing in it is a release of vLLM."""
    reason: str
    """Words for people: why the release is not known, or how it is known."""
    is_newest: bool = False
    """The tag moves with vLLM's releases."""
    is_ahead: bool = False
    """It is built between them."""


def version_of(image: str) -> ImageFound:
    """`vllm/vllm-openai:v0.29.0-cu129` → 0.29.0. Tags of other projects' images count their own releases."""
    name, at, digest = image.partition("@")
    repository, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "")
    is_ours = repository.endswith(_VLLM_IMAGES) and not repository.endswith(_OWN_TAGS)
    if not repository:
        return ImageFound(version=None, reason="no image is written")
    if not is_ours:
        return _of_another_project(repository, tag)
    match = _RELEASE.search(tag)
    if match is not None:
        return ImageFound(version=match[1], reason=f"tag {tag}")
    if at or digest:
        return ImageFound(version=None, reason="a digest names no release")
    if tag in _MOVING_TAGS:
        reason = f"the tag {tag or 'latest'} moves with the releases"
        return ImageFound(version=None, reason=reason, is_newest=True, is_ahead=tag in _TAGS_AHEAD)
    return ImageFound(version=None, reason=f"the tag {tag} names no release")


def _of_another_project(repository: str, tag: str) -> ImageFound:
    named = _NAMED_RELEASE.search(tag) or (repository.endswith(_FRAMEWORK_IMAGES) and _FRAMEWORK_RELEASE.match(tag))
    if named:
        return ImageFound(version=named[1], reason=f"tag {tag}")
    reason = f"{repository} is not vLLM's own image, and its tags need not be vLLM's releases"
    return ImageFound(version=None, reason=reason)
