"""Values of charts that stand inside something else: under the name of a dependency, or in an object that installs a chart."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from kvgate.documents.written import Written
from kvgate.manifests.platforms.reader import Reader
from kvgate.manifests.pods.engine_found import FoundEngine, ReaderInput
from kvgate.manifests.pods.pod_engines import read_pod_templates
from kvgate.record import record

_CHART_NAME = re.compile(r"(?!global$)[A-Za-z0-9][\w.\-]*")
"""Helm hands `global` to all charts; fields that begin with another letter hold anchors."""
_MAX_DEPTH = 2
"""Dependencies of dependencies; nobody goes deeper."""
_TOKEN = re.compile(r"token(?!s|izer)|secret|password|api_?key", re.IGNORECASE)
_IN_LIST = re.compile(r"\[\d+\]")

Remark = tuple[str, str]
"""(path, what stands there and is not read)."""


@record
class Handed:
    """The values that something hands to a chart, and what else sets some."""

    given: ReaderInput
    """Its `values` are these."""
    under: tuple[Remark, ...] = ()
    """These values win over it."""
    over: tuple[Remark, ...] = ()
    """It wins over these values."""


Hand = Callable[[ReaderInput], Iterable[Handed]]


def handed_by_file(given: ReaderInput) -> tuple[Handed]:
    """A file of values is all of them."""
    return (Handed(given=given),)


def is_chart_file(given: ReaderInput) -> bool:
    """Helm's `Chart.yaml`, whose descriptions may name vLLM."""
    root = given.root
    is_chart = root.get("apiVersion").text in ("v1", "v2") and root.get("name").is_set and root.get("version").is_set
    return is_chart and not given.document.kind


def read_handed(given: ReaderInput, hand: Hand, charts: Sequence[Reader]) -> Iterator[FoundEngine]:
    """The engines of every chart that is known, also of dependencies; of others, what is a list of containers."""
    for handed in hand(given):
        known = tuple(_charts_in(handed.given, handed.given.values, charts, _MAX_DEPTH))
        for reader, values in known:
            for engine in reader.read(replace(handed.given, values=values)):
                yield _with_remarks(engine, handed, values)
        read = tuple(f"{values.path}." for _, values in known)
        others = (engine for engine in read_pod_templates(handed.given) if not engine.path.startswith(read))
        yield from (_with_remarks(engine, handed, handed.given.values) for engine in others)


def _charts_in(
    given: ReaderInput, values: Written, charts: Sequence[Reader], depth: int
) -> Iterator[tuple[Reader, Written]]:
    """Values that a chart knows as its own; a dependency that is switched off gets none."""
    reader = next((reader for reader in charts if reader.takes(replace(given, values=values))), None)
    if reader:
        yield reader, values
    elif depth:
        for child in dependencies(values):
            if child.get("enabled").value is not False:
                yield from _charts_in(given, child, charts, depth - 1)


def dependencies(values: Written) -> Iterator[Written]:
    """Objects under what may be the name or the alias of a chart."""
    for name, child in values.fields():
        if isinstance(child.value, dict) and _CHART_NAME.fullmatch(name):
            yield child


def _with_remarks(engine: FoundEngine, handed: Handed, values: Written) -> FoundEngine:
    """Add remarks: values below these may add to objects, never to a list, because Helm takes lists as a whole."""
    is_whole = _IN_LIST.search(engine.path, len(values.path)) is not None
    is_partial = bool(handed.over) or (bool(handed.under) and not is_whole)
    remarks = (*engine.remarks, *handed.under, *handed.over)
    return replace(engine, remarks=remarks, is_partial=engine.is_partial or is_partial, is_overridden=bool(handed.over))


def sets_more(path: str) -> bool:
    """Something that is set apart is more than a token, which people keep out of their values."""
    return _TOKEN.search(path) is None
