"""Values of Helm charts that stand inside something else, as a whole, under the name of a dependency, or set one by one.

Names and types of `helm --set`: helm.sh, "The Format and Limitations of --set".
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate.documents.written import Written
from kvgate.manifests.platforms.custom_values import read_custom_values
from kvgate.manifests.platforms.mapped_values import read_mapped_values
from kvgate.manifests.platforms.reader import Reader
from kvgate.manifests.pods.engine_found import FoundEngine, ReaderInput
from kvgate.manifests.pods.pod_engines import read_pod_templates
from kvgate.text.patterns import pattern

_CHART_NAME = pattern(r"(?!global$)[A-Za-z0-9][\w.\-]*")
"""Helm passes `global` to all charts; fields that begin with another letter hold anchors."""
_MAX_DEPTH = 2
"""Dependencies of dependencies; nobody goes deeper."""
_TOKEN = pattern(r"token(?!s|izer)|secret|password|api_?key", re.IGNORECASE)
_IN_LIST = pattern(r"\[\d+\]")
_STEP = pattern(r"(?:^|\.)((?:[^.\[\]\\]|\\.)+)|\[(\d{1,3})\]")
_WHOLE = pattern(r"-?[1-9]\d{0,17}|0")
_WORDS = {"true": True, "false": False, "null": None}
MAX_STEPS = 50
"""Steps from the top of the values down; a chart's are five levels deep."""
MAX_INDICES = 999
"""Sum of the indices of a name: each list on the way gets as many items."""

Remark = tuple[str, str]
"""(path, a sentence about a value there that is not read)."""
Step = str | int


class ChartInput(Struct, frozen=True, kw_only=True):
    """The values that an object or a file passes to a chart, with remarks on other sources of values."""

    given: ReaderInput
    """The document, with these as its `values`."""
    under: tuple[Remark, ...] = ()
    """Other sources, over which these values win."""
    over: tuple[Remark, ...] = ()
    """Other sources, which win over these values."""


ChartInputs = Callable[[ReaderInput], Iterable[ChartInput]]


def is_chart_file(given: ReaderInput) -> bool:
    """Return True for Helm's `Chart.yaml`, whose descriptions may name vLLM."""
    root = given.root
    is_chart = root.get("apiVersion").text in ("v1", "v2") and root.get("name").is_set and root.get("version").is_set
    return is_chart and not given.document.kind


def read_charts(given: ReaderInput, inputs: ChartInputs, charts: Sequence[Reader]) -> Iterator[FoundEngine]:
    """Yield the engines of every known chart, also of dependencies; for any other chart those in lists of containers, else by values."""
    for passed in inputs(given):
        if mapped := tuple(read_mapped_values(passed.given)):
            yield from (_with_remarks(engine, passed, passed.given.values) for engine in mapped)
            continue
        known = tuple(_charts_in(passed.given, passed.given.values, charts, _MAX_DEPTH))
        for reader, values in known:
            for engine in reader.read(replace(passed.given, values=values)):
                yield _with_remarks(engine, passed, values)
        read = tuple(f"{values.path}." for _, values in known)
        others = [engine for engine in read_pod_templates(passed.given) if not engine.path.startswith(read)]
        if not known and not others:
            others = list(read_custom_values(passed.given))
        yield from (_with_remarks(engine, passed, passed.given.values) for engine in others)


def _charts_in(
    given: ReaderInput, values: Written, charts: Sequence[Reader], depth: int
) -> Iterator[tuple[Reader, Written]]:
    """Yield the readers of known charts with their values; a dependency that is switched off gets none."""
    reader = next((reader for reader in charts if reader.takes(replace(given, values=values))), None)
    if reader:
        yield reader, values
    elif depth:
        for child in dependencies(values):
            if child.get("enabled").value is not False:
                yield from _charts_in(given, child, charts, depth - 1)


def dependencies(values: Written) -> Iterator[Written]:
    """Yield the objects whose name may be the name or the alias of a chart."""
    for name, child in values.fields():
        if isinstance(child.value, dict) and _CHART_NAME.fullmatch(name):
            yield child


def _with_remarks(engine: FoundEngine, passed: ChartInput, values: Written) -> FoundEngine:
    """Add remarks: values that these win over may add to objects, never to a list, because Helm takes lists as a whole."""
    is_whole = _IN_LIST.search(engine.path, len(values.path)) is not None
    is_partial = bool(passed.over) or (bool(passed.under) and not is_whole)
    remarks = (*engine.remarks, *passed.under, *passed.over)
    is_overridden = engine.is_overridden or bool(passed.over)
    return replace(engine, remarks=remarks, is_partial=engine.is_partial or is_partial, is_overridden=is_overridden)


def may_set_more(path: str) -> bool:
    """Return whether a value that is set apart may concern an engine; tokens, which people keep out of their values, do not."""
    return _TOKEN.search(path) is None


SetValue = tuple[Sequence[Step], Any]
"""The way through objects and lists to a value that is set by its name, and the value."""


def read_set(name: str, text: str, *, as_text: bool) -> SetValue | None:
    """Read `servingEngineSpec.modelSpec[0].tag`; None for a name that Helm refuses. `as_text`: as --set-string does."""
    steps: list[Step] = []
    end = 0
    while match := _STEP.match(name, end):
        steps.append(int(match[2]) if match[2] else re.sub(r"\\(.)", r"\1", match[1]))
        end = match.end()
    if sum(step for step in steps if isinstance(step, int)) > MAX_INDICES:
        return None
    if not 0 < len(steps) <= MAX_STEPS or end != len(name) or isinstance(steps[0], int):
        return None
    return steps, text if as_text else _typed(text)


def _typed(text: str) -> Any:
    """Read a value; numbers with a point stay texts, and `{a,b}` is a list."""
    if text.startswith("{") and text.endswith("}"):
        return [_typed(item) for item in text[1:-1].split(",") if item]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    return int(text) if _WHOLE.fullmatch(text) else text


def with_set(values: Written, given: SetValue) -> tuple[Written, str]:
    """Return (the values with this one, its path); a value in its way is replaced, and a list that is too short gets longer."""
    path = values.path
    for step in given[0]:
        path = f"{path}[{step}]" if isinstance(step, int) else Written(value=None, path=path).get(step).path
    return replace(values, value=_with(values.value, *given)), path


def _with(values: Any, steps: Sequence[Step], value: Any) -> Any:
    if not steps:
        return value
    step, *rest = steps
    if isinstance(step, int):
        items = list(values) if isinstance(values, list) else []
        items += [None] * (step + 1 - len(items))
        items[step] = _with(items[step], rest, value)
        return items
    fields = values if isinstance(values, Mapping) else {}
    return {**fields, step: _with(fields.get(step), rest, value)}
