"""The sources of the facts behind a verdict, under the same names at every door."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from kvgate.budget import Budget, ModelShape
from kvgate.checkpoint.published import NO_MODELS, PublishedModels, content_of, name_key

SourceKind = Literal[
    "catalogue",
    "lock file",
    "fetched",
    "given",
    "assumed",
    "observed starts",
    "configuration",
    "comment",
    "baseline",
]


class Provenance(Struct, frozen=True, kw_only=True):
    """The source of one fact behind a verdict."""

    fact: str
    """`model`, `draft`, `calibration`, a field of `.kvgate.yaml`, or `ignore` with the rule."""
    source: SourceKind
    place: str = ""
    """File and line, or other words for the place; empty for the catalogue."""
    is_file: bool = True
    """True where the place is a file, most often of the checkout that is judged."""
    detail: str = ""
    """The value, the difference from the catalogue, or the reason."""
    digest: str = ""
    """Differs where the content does."""

    @property
    def file(self) -> str:
        return self._file_and_line[0] if self.is_file else ""

    @property
    def line(self) -> int:
        """Line from 1; 1 also where none is known."""
        return self._file_and_line[1]

    @property
    def _file_and_line(self) -> tuple[str, int]:
        file, _, line = self.place.rpartition(":")
        return (file, int(line)) if file and line.isdecimal() else (self.place, 1)

    @property
    def text(self) -> str:
        """Words for people: `model from models.lock:14, differs from the catalogue: 1 layer, not 80`."""
        return f"{self.fact} from {self.place or f'the {self.source}'}" + (f", {self.detail}" if self.detail else "")

    @property
    def content(self) -> tuple[str, ...]:
        """Return what must differ for the source to be another one; its line may move."""
        return self.source, self.file or self.place, self.detail, self.digest


def sources_of_facts(
    budget: Budget | None,
    *,
    given: tuple[str, Sequence[str]] = ("", ()),
    starts: str = "",
    adapters: Iterable[tuple[str, str]] = (),
    models: PublishedModels = NO_MODELS,
    released: str = "",
) -> Iterator[Provenance]:
    """Yield the sources of the facts that the engine itself does not state: model, draft, observed starts, adapters, release.

    `given` are the place of a config.json that somebody gave, and the files that were read with it; `starts` is the place of the observed
    starts, `adapters` are (name, path), and `released` says why the release is assumed, empty where it is not.
    """
    if budget is not None:
        draft = budget.request.draft
        for fact, shape in {"model": budget.request.shape, **({"draft": draft.shape} if draft else {})}.items():
            yield from _source_of_model(fact, shape, given)
        ledger = budget.tightest.ledger if budget.tightest else None
        if ledger is not None and (found := ledger.correction):
            detail = f"{found.starts} observed start{'s' * (found.starts != 1)}"
            source: SourceKind = "observed starts"
            yield Provenance(fact="calibration", source=source, place=starts, detail=detail, digest=repr(found))
    for name, path in adapters:
        if place := models.places.get(name_key(path)):
            digest = content_of(models.locked[name_key(path)]).digest.hex()[:12]
            yield Provenance(fact=f"adapter {name}", source="lock file", place=place, digest=digest)
    if released:
        yield Provenance(fact="vllm_version", source="assumed", is_file=False, detail=released)


def _source_of_model(fact: str, shape: ModelShape, given: tuple[str, Sequence[str]]) -> Iterator[Provenance]:
    """Yield the source of a model's facts, with its differences from the catalogue."""
    origin = shape.origin
    if origin is None or (origin.kind == "given" and origin.place == "hf_overrides"):
        return
    differences = ", ".join(each.difference for each in origin.differences)
    place, beside = given if origin.kind == "given" and given[0] else (origin.place, ())
    details = (
        *(f"with {name}" for name in beside),
        *([f"differs from the catalogue: {differences}"] if differences else []),
    )
    is_file = origin.kind in ("lock file", "given")
    yield Provenance(
        fact=fact, source=origin.kind, place=place, is_file=is_file, detail=", ".join(details), digest=origin.digest
    )
