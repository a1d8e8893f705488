"""Names of models that may be asked for: checked before anything is requested or opened."""

import re

from msgspec import Struct

from kvgate.checkpoint.not_fetched import Reason
from kvgate.fetching.limits import CouldNotFetch
from kvgate.text.inert import inert
from kvgate.text.patterns import pattern

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_-])?"
_REPOSITORY = pattern(rf"(?:{_PART}/)?{_PART}", re.ASCII)
"""Names that huggingface_hub takes (2.4, `validate_repo_id`)."""
_REVISION = pattern(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,254}", re.ASCII)
_GGUF_FILE = pattern(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,254}\.gguf", re.ASCII)
_QUANTIZATION = pattern(r"[A-Za-z0-9][A-Za-z0-9_-]{1,31}", re.ASCII)
MAIN = "main"
"""The default branch."""


class CheckpointName(Struct, frozen=True, kw_only=True):
    """A repository of a hub, and what is wanted of it."""

    name: str
    """Name as it was asked for, without the revision: `org/name`, `org/name:Q4_K_M`, `org/name/file.gguf`."""
    repository: str
    revision: str = MAIN
    gguf_quantization: str = ""
    gguf_file: str = ""


def name_and_revision(text: str) -> tuple[str, str]:
    """Split `NAME[@REVISION]`."""
    name, _, revision = text.strip().partition("@")
    return name, revision


def is_hub_name(name: str) -> bool:
    """Return True for a name that a hub can have; paths and addresses are none."""
    try:
        checkpoint_name(name)
    except CouldNotFetch:
        return False
    return True


def checkpoint_name(name: str, revision: str = "") -> CheckpointName:
    """Read the name of a model as vLLM does: a repository, with `:QUANT` or a file of it for GGUF. Raises CouldNotFetch."""
    base, _, quantization = name.partition(":")
    parts = base.split("/")
    repository, file = "/".join(parts[:2]), ""
    if len(parts) > 2 and base.endswith(".gguf"):
        file = "/".join(parts[2:])
    elif len(parts) > 2:
        repository = base
    is_repository = _REPOSITORY.fullmatch(repository) and not re.search(r"\.\.|--|\.git$", repository)
    is_file = not file or (_GGUF_FILE.fullmatch(file) and ".." not in file.split("/") and "//" not in file)
    if not is_repository or not is_file or (":" in name and not _QUANTIZATION.fullmatch(quantization)):
        raise CouldNotFetch(
            Reason.INVALID_NAME,
            f"{inert(name[:200])} is no name of a model on a hub, such as org/name, or org/name:Q4_K_M for a GGUF file",
            "write the name under which it is published",
        )
    if revision and (not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision):
        raise CouldNotFetch(
            Reason.INVALID_NAME,
            f"{inert(revision[:200])} is no revision of {name}: a branch, a tag or a commit",
            "write a branch, a tag or a commit of the repository, or leave it out",
        )
    return CheckpointName(
        name=name, repository=repository, revision=revision or MAIN, gguf_quantization=quantization, gguf_file=file
    )
