"""The answers of tests/manifests/upstream, as records."""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from msgspec import Struct, convert

FOLDER = Path(__file__).resolve().parents[2] / "tests/manifests/upstream"
_ENDING = ".answer.yaml"
_AT_A_COMMIT = re.compile(r"# source: \S+ \S+@[0-9a-f]{7,}\n")


class EngineAnswer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer of a careful reader about one engine."""

    name: str | None = None
    """Name of the object, or of the entry in a values file; None where it has none."""
    model: str | list[str] | None = None
    """Any one of a list is right; None where nobody can know it from this input."""
    accelerator: str | list[str | None] | None = None
    """Name in kvgate's catalogue; None where the input names no GPU."""
    runs_on: str | None = None
    """`cpu`, `gaudi`, `tpu` …: an engine that uses no GPU of the catalogue, which need not be judged."""
    tensor_parallel_size: int | None = 1
    """None where it is a variable, or the platform's choice."""
    pipeline_parallel_size: int | None = 1
    data_parallel_size: int | None = 1
    vllm_version: str | None = None
    """Release that the input states; `any` where an image's tag tells it only to who knows the image."""
    verdict: str | list[str] | None = None
    """Any one of a list is right; None for an engine that runs on no GPU."""
    starts_on: list[str] = []
    """GPUs on which it certainly starts, where no GPU is named."""
    not_on: list[str] = []
    """GPUs on which it certainly does not start, where no GPU is named."""
    must: list[str] = []
    """Rules that have to appear."""
    must_not: list[str] = []
    """Rules that would be wrong, or noise."""
    may: list[str] = []
    """Rules that are true and not needed. An error that neither `must` nor `may` names is false."""
    acts_on: list[str] = []
    """Rules of warnings that are true and on which the owner can act. Any other warning counts as one on which nobody can."""


class Answer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answers of a careful reader about one file or folder."""

    engines: list[EngineAnswer]
    optional: bool = False
    """True where a program that nobody sees here starts vLLM: an engine need not be found, and what is said of it must be right."""
    unreadable: list[str] = []
    """Rules of documents that are in truth not readable, such as one with a placeholder in braces."""
    known: str = ""
    """Reason why kvgate does not say so yet."""
    note: str = ""
    """Why the answer is what it is."""


class Case(Struct, frozen=True, kw_only=True):
    """A manifest and its answer."""

    name: str
    """Its place in the folder: `kubernetes/l4-qwen`."""
    path: Path
    """A file, or a folder that is checked as a whole."""
    answer: Answer

    @property
    def is_at_a_commit(self) -> bool:
        """Whether its source names a commit: a state of a history of `histories.csv`, or the newest of a repository."""
        return self.path.is_file() and bool(_AT_A_COMMIT.match(self.path.read_text(encoding="utf-8")))


def cases(folder: Path = FOLDER) -> Iterator[Case]:
    """Yield all cases, in the order of their names. Raises ValueError for an answer that is not valid, or has no manifest."""
    for file in sorted(folder.glob(f"*/*{_ENDING}")):
        stem = file.name.removesuffix(_ENDING)
        of_it = (path for path in sorted(file.parent.glob(f"{stem}*")) if path.name in (stem, f"{stem}{path.suffix}"))
        manifest = next(of_it, None)
        if manifest is None:
            raise ValueError(f"{file} has no manifest {stem}.yaml beside it")
        answer = convert(yaml.safe_load(file.read_text(encoding="utf-8")), Answer)
        yield Case(name=f"{file.parent.name}/{stem}", path=manifest, answer=answer)
