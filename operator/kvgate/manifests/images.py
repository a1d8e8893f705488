"""Which release of vLLM an image holds: by tag where the tag says so, else a range of what it may be."""

import re
from dataclasses import dataclass

_RELEASE = re.compile(r"(?:^|[-_])v?(\d+\.\d+\.\d+(?:\.post\d+|rc\d+|\.dev\d+)?)(?:$|[-_+.])")
_VLLM_IMAGES = ("vllm/vllm-openai", "vllm-openai", "rocm/vllm", "vllm/vllm")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFound:
    """What an image says."""

    version: str | None
    """None where nothing in it is a release of vLLM."""
    reason: str
    """For people: why it is not known, or how it is."""


def version_of(image: str) -> ImageFound:
    """`vllm/vllm-openai:v0.29.0-cu129` → 0.29.0. Tags of other projects' images count their own releases."""
    name, _, digest = image.partition("@")
    repository, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "")
    if not tag:
        return ImageFound(version=None, reason="a digest names no release" if digest else "the image has no tag")
    if not repository.endswith(_VLLM_IMAGES):
        return ImageFound(
            version=None, reason=f"{repository} is not vLLM's own image: its tags need not be vLLM's releases"
        )
    match = _RELEASE.search(tag)
    if match is None:
        return ImageFound(version=None, reason=f"the tag {tag} names no release")
    return ImageFound(version=match[1], reason=f"tag {tag}")
