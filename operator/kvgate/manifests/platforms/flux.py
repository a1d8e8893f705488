"""Flux: the values that a HelmRelease hands to its chart.

What wins over what: fluxcd.io, "Helm Releases", "Values".
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvgate.documents.nodes import YamlError, value_of
from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.platforms.chart_values import Handed, Remark, sets_more
from kvgate.manifests.pods.engine_found import ReaderInput

_REACHES_ENGINES = re.compile(r"containers|images|nodeSelector|affinity")
"""Patches of anything else, such as labels and tolerations, move no number."""
_KEY = "values.yaml"
"""Key of the data where a reference names no other."""


def handed_by_release(given: ReaderInput) -> Iterator[Handed]:
    """`values` win over `valuesFrom`, later references over earlier ones; those with a targetPath, and patches, win over all."""
    spec = given.root.get("spec")
    own, referred, under, over = spec.get("values"), NOTHING, list(_files(spec)), list(_patches(spec))
    for reference in spec.get("valuesFrom").items():
        data = _data(given, reference)
        if data is not None:
            referred = Written(value=_merged(referred.value, data), path=reference.path)
        else:
            wins = reference.get("targetPath").is_set or referred.is_set
            (over if wins else under).extend(_not_read(reference))
    path = own.path if own.is_set else referred.path
    values = Written(value=_merged(referred.value, own.value or {}), path=path)
    yield Handed(given=replace(given, values=values), under=tuple(under), over=tuple(over))


def _data(given: ReaderInput, reference: Written) -> Mapping[str, Any] | None:
    """Values in a ConfigMap of the input; None where they are not there."""
    if reference.get("kind").text != "ConfigMap" or reference.get("targetPath").is_set:
        return None
    data = given.config_data(reference.get("name").text) or {}
    text = data.get(reference.get("valuesKey").text or _KEY)
    try:
        read = value_of(text) if isinstance(text, str) else None
    except YamlError:
        return None
    return read if isinstance(read, Mapping) else None


def _merged(under: Any, over: Any) -> Any:
    """Merge as Flux does: objects field by field, all else as a whole, also null, by which Helm drops a field."""
    if isinstance(under, Mapping) and isinstance(over, Mapping):
        return {**under, **{name: _merged(under.get(name), value) for name, value in over.items()}}
    return over


def _not_read(reference: Written) -> Iterator[Remark]:
    target = reference.get("targetPath").text
    what = f"{reference.get('kind').text} {reference.get('name').text}"
    if not target:
        yield reference.path, f"values of {what} are not in the input: they may set more"
    elif sets_more(target):
        yield reference.path, f"{target} is set from {what}, which is not read"


def _files(spec: Written) -> Iterator[Remark]:
    """Return the value files of the chart."""
    for name in ("valuesFiles", "valuesFile"):
        files = spec.get("chart", "spec", name)
        if files.is_set:
            yield files.path, f"{name} are not read: they may set more"


def _patches(spec: Written) -> Iterator[Remark]:
    """Those that may reach an engine."""
    patches = spec.get("postRenderers")
    if _REACHES_ENGINES.search(str(patches.value)):
        yield patches.path, "postRenderers are not read: they may change what is rendered"
