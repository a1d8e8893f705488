"""Argo CD: the values that an Application hands to its charts, and the template of an ApplicationSet.

What wins over what: argo-cd.readthedocs.io, "Helm", "Value Precedence".
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvgate.documents.written import Written
from kvgate.manifests.platforms.chart_values import Handed, Remark, sets_more
from kvgate.manifests.platforms.helm_set import SetValue, path_below, read_set, with_set
from kvgate.manifests.pods.engine_found import ReaderInput

_SPECS = {"Application": ("spec",), "ApplicationSet": ("spec", "template", "spec")}
"""Kind → where its sources are."""
_SOURCES = (("source",), ("sources", "*"))
_MAX_PARAMETERS = 200
"""Parameters of one source; nobody sets more."""
_Parameter = tuple[Written, SetValue | None]
"""The place of a parameter, and the value that it sets; None where that is not read."""


def handed_by_application(given: ReaderInput) -> Iterator[Handed]:
    """Return the values of every source; `sources` stand in for `source`. Parameters win over values, and valuesObject over values."""
    above = _SPECS[given.document.kind]
    given = given.with_texts_read(*((*above, *source, "helm", "values") for source in _SOURCES))
    spec = given.root.get(*above)
    helms = [source.get("helm") for source in spec.get("sources").items() or [spec.get("source")]]
    sources = [(helm, tuple(_parameters(helm))) for helm in helms]
    elsewhere = {
        path_below(_values(helm).path, found): parameter.path
        for helm, parameters in sources
        for parameter, found in parameters
        if found
    }
    given = replace(given, document=replace(given.document, elsewhere=elsewhere))
    return (_handed(given, helm, parameters) for helm, parameters in sources)


def _handed(given: ReaderInput, helm: Written, parameters: Sequence[_Parameter]) -> Handed:
    values, unread = _values(helm), helm.get("fileParameters").items()
    for parameter, found in parameters:
        if found:
            values = replace(values, value=with_set(values.value, found))
        else:
            unread.append(parameter)
    return Handed(given=replace(given, values=values), under=tuple(_files(helm)), over=tuple(_not_read(unread)))


def _values(helm: Written) -> Written:
    return helm.get("valuesObject") if helm.get("valuesObject").is_set else helm.get("values")


def _parameters(helm: Written) -> Iterator[_Parameter]:
    for index, parameter in enumerate(helm.get("parameters").items()):
        name, text = parameter.get("name").text, parameter.get("value").text
        as_text = parameter.get("forceString").value is True
        yield parameter, read_set(name, text, as_text=as_text) if index < _MAX_PARAMETERS else None


def _files(helm: Written) -> Iterator[Remark]:
    files = helm.get("valueFiles")
    if files.is_set:
        yield files.path, "valueFiles are not read: they may set more"


def _not_read(parameters: Sequence[Written]) -> Iterator[Remark]:
    for parameter in parameters:
        name = parameter.get("name").text
        if sets_more(name):
            yield parameter.path, f"{name} is set here by a parameter, which is not read"
