"""Values of charts that stand inside something else: under the name of a dependency, or in an object that installs a chart."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from kvgate.manifests.engine_found import FoundEngine
from kvgate.manifests.pods import Input, read_pod_templates
from kvgate.manifests.reader import Reader
from kvgate.manifests.written import Written
from kvgate.record import record

_CHART_NAME = re.compile(r"(?!global$)[A-Za-z0-9][\w.\-]*")
"""Helm hands `global` to all charts; fields that begin with another letter hold anchors."""
_MAX_DEPTH = 2
"""Dependencies of dependencies; nobody goes deeper."""
_IN_LIST = re.compile(r"\[\d+\]")


@record
class Handed:
    """The values that something hands to a chart, and what else sets some."""

    given: Input
    """Its `values` are these."""
    under: tuple[tuple[str, str], ...] = ()
    """(path, what stands there and is not read): these values win over it."""
    over: tuple[tuple[str, str], ...] = ()
    """The same, where it wins."""


def read_handed(all_handed: Iterable[Handed], charts: Sequence[Reader]) -> Iterator[FoundEngine]:
    """The engines of every chart that is known, also of dependencies."""
    for handed in all_handed:
        for reader, values in _charts_in(handed.given, handed.given.values, charts, _MAX_DEPTH):
            engines = reader.read(replace(handed.given, values=values))
            yield from (_with_remarks(engine, handed, values) for engine in engines)


def _charts_in(given: Input, values: Written, charts: Sequence[Reader], depth: int) -> Iterator[tuple[Reader, Written]]:
    """Values that a chart knows as its own; a dependency that is switched off gets none."""
    reader = next((reader for reader in charts if reader.recognises(replace(given, values=values))), None)
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
    """What these values win over may add to objects, never to a list: Helm takes lists as a whole."""
    is_whole = _IN_LIST.search(engine.path, len(values.path)) is not None
    is_partial = bool(handed.over) or (bool(handed.under) and not is_whole)
    remarks = (*engine.remarks, *handed.under, *handed.over)
    return replace(engine, remarks=remarks, is_partial=engine.is_partial or is_partial)


def read_umbrella(given: Input, charts: Sequence[Reader]) -> Iterator[FoundEngine]:
    """Values of a chart whose dependencies are known ones, or that has lists of containers."""
    yield from _or_pod_templates(given, read_handed([Handed(given=given)], charts))


def _or_pod_templates(given: Input, engines: Iterator[FoundEngine]) -> Iterator[FoundEngine]:
    found = tuple(engines)
    yield from found or read_pod_templates(given)
