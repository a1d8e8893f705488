"""Argo CD: the values that an Application hands to its charts, and the template of an ApplicationSet.

What wins over what: argo-cd.readthedocs.io, "Helm", "Value Precedence".
"""

from collections.abc import Iterator
from dataclasses import replace

from kvgate.manifests.chart_values import Handed, Remark, sets_more
from kvgate.manifests.pods import Input
from kvgate.manifests.written import Written
from kvgate.manifests.yaml_in_text import with_texts_read

_SPECS = {"Application": ("spec",), "ApplicationSet": ("spec", "template", "spec")}
"""Kind → where its sources are."""
_SOURCES = (("source",), ("sources", "*"))


def handed_by_application(given: Input) -> Iterator[Handed]:
    """Of every source; `sources` stand in for `source`."""
    above = _SPECS[given.document.kind]
    given = with_texts_read(given, *((*above, *source, "helm", "values") for source in _SOURCES))
    spec = given.root.get(*above)
    for source in spec.get("sources").items() or [spec.get("source")]:
        helm = source.get("helm")
        values = helm.get("valuesObject") if helm.get("valuesObject").is_set else helm.get("values")
        yield Handed(given=replace(given, values=values), under=tuple(_files(helm)), over=tuple(_parameters(helm)))


def _files(helm: Written) -> Iterator[Remark]:
    files = helm.get("valueFiles")
    if files.is_set:
        yield files.path, "valueFiles are not read: they may set more"


def _parameters(helm: Written) -> Iterator[Remark]:
    for parameter in (*helm.get("parameters").items(), *helm.get("fileParameters").items()):
        name = parameter.get("name").text
        if sets_more(name):
            yield parameter.path, f"{name} is set here by a parameter, which is not read"
