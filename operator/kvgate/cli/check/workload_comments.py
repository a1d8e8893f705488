"""`# kvgate:workload …`: which engine of a document a comment speaks of."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby

from kvgate.budget.request import Workload
from kvgate.cli.check.directives import WorkloadComment, directives
from kvgate.manifests.pods.engine_found import FoundEngine


def commented_workloads(engines: Sequence[FoundEngine]) -> Iterator[Workload | None]:
    """Return the workload of each engine, in their order; None where no comment states it."""
    for _, group in groupby(engines, key=lambda engine: (engine.document.file, engine.document.index)):
        beside = list(group)
        yield from _in_one_document(beside) if beside[0].document.comments else [None] * len(beside)


def _in_one_document(engines: list[FoundEngine]) -> list[Workload | None]:
    """A comment speaks of the engine that it stands in, which wins over one that stands before the whole document."""
    said = [each for each in directives(engines[0].document) if isinstance(each, WorkloadComment)]
    for_all = next((each.workload for each in reversed(said) if each.in_whole_document), None)
    starts = _first_lines(engines)
    in_order = sorted(starts)
    own = {
        in_order[max(0, bisect_right(in_order, each.comment.about) - 1)]: each.workload
        for each in said
        if not each.in_whole_document
    }
    return [own.get(start, for_all) for start in starts]


def _first_lines(engines: list[FoundEngine]) -> list[int]:
    """Return the line at which each begins; the first one of an object begins where the object does, for a List holds several."""
    lines = [engine.document.position_of(engine.path).line for engine in engines]
    first: dict[int, int] = {}
    for engine, line in zip(engines, lines, strict=True):
        first[id(engine.document)] = min(line, first.get(id(engine.document), line))
    return [
        engine.document.position.line if line == first[id(engine.document)] else line
        for engine, line in zip(engines, lines, strict=True)
    ]
