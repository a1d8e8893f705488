"""Flux, Argo CD and K3s: the values that a HelmRelease, an Application, the template of an ApplicationSet or a HelmChart passes to charts.

Which values win: fluxcd.io, "Helm Releases", "Values"; argo-cd.readthedocs.io, "Helm", "Value Precedence"; docs.k3s.io, "Helm".
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from kvgate.documents.nodes import YamlError, value_of
from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.platforms.charts import ChartInput, Remark, may_set_more, read_set, with_set
from kvgate.manifests.pods.engine_found import ReaderInput
from kvgate.text.json_values import merged_fields
from kvgate.text.patterns import pattern

_REACHES_ENGINES = pattern(r"containers|images|nodeSelector|affinity")
"""Patches of anything else, such as labels and tolerations, change no number."""
_SPECS = {"Application": ("spec",), "ApplicationSet": ("spec", "template", "spec")}
"""Kind → the place of its sources."""
_MAX_PARAMETERS = 200
"""Parameters of one source; nobody sets more."""


def values_of_release(given: ReaderInput) -> Iterator[ChartInput]:
    """Yield the values of a HelmRelease.

    `values` win over `valuesFrom`, later references over earlier ones; those with a targetPath, and patches, win over all.
    """
    spec = given.root.get("spec")
    own, referred, over = spec.get("values"), NOTHING, list[Remark]()
    files = ((name, spec.get("chart", "spec", name)) for name in ("valuesFiles", "valuesFile"))
    under = [(field.path, f"{name} is not read; it may set more values") for name, field in files if field.is_set]
    patches = spec.get("postRenderers")
    if _REACHES_ENGINES.search(str(patches.value)):
        over.append((patches.path, "postRenderers is not read; it may change the rendered objects"))
    for reference in spec.get("valuesFrom").items():
        data = _data(given, reference)
        if data is not None:
            referred = Written(value=merged_fields(referred.value, data), path=reference.path)
            continue
        target = reference.get("targetPath").text
        source = f"{reference.get('kind').text} {reference.get('name').text}"
        wins = reference.get("targetPath").is_set or referred.is_set
        if not target:
            (over if wins else under).append(
                (reference.path, f"the values of {source} are not in the input; they may set more")
            )
        elif may_set_more(target):
            (over if wins else under).append((reference.path, f"{target} is set from {source}, which is not read"))
    path = own.path if own.is_set else referred.path
    values = Written(value=merged_fields(referred.value, own.value or {}), path=path)
    yield ChartInput(given=replace(given, values=values), under=tuple(under), over=tuple(over))


def _data(given: ReaderInput, reference: Written) -> Mapping[str, Any] | None:
    """Return the values in a ConfigMap of the input; None where they are not there."""
    if reference.get("kind").text != "ConfigMap" or reference.get("targetPath").is_set:
        return None
    data = given.config_data(reference.get("name").text) or {}
    text = data.get(reference.get("valuesKey").text or "values.yaml")
    try:
        read = value_of(text) if isinstance(text, str) else None
    except YamlError:
        return None
    return read if isinstance(read, Mapping) else None


def values_of_application(given: ReaderInput) -> Iterator[ChartInput]:
    """Yield the values of every source of an Application; `sources` stand in for `source`.

    Parameters win over values, and valuesObject over values.
    """
    above = _SPECS[given.document.kind]
    given = given.with_texts_read(*((*above, *source, "helm", "values") for source in (("source",), ("sources", "*"))))
    spec = given.root.get(*above)
    elsewhere: dict[str, str] = {}
    inputs: list[ChartInput] = []
    for source in spec.get("sources").items() or [spec.get("source")]:
        helm = source.get("helm")
        values = helm.get("valuesObject") if helm.get("valuesObject").is_set else helm.get("values")
        unread = helm.get("fileParameters").items()
        for index, parameter in enumerate(helm.get("parameters").items()):
            name, text = parameter.get("name").text, parameter.get("value").text
            as_text = parameter.get("forceString").value is True
            found = read_set(name, text, as_text=as_text) if index < _MAX_PARAMETERS else None
            if found:
                values, path = with_set(values, found)
                elsewhere[path] = parameter.path
            else:
                unread.append(parameter)
        files = helm.get("valueFiles")
        under = ((files.path, "valueFiles is not read; it may set more values"),) if files.is_set else ()
        names = ((parameter.path, parameter.get("name").text) for parameter in unread)
        over = [
            (path, f"{name} is set here by a parameter that is not read") for path, name in names if may_set_more(name)
        ]
        inputs.append(ChartInput(given=replace(given, values=values), under=under, over=tuple(over)))
    document = replace(given.document, elsewhere=elsewhere)
    for each in inputs:
        yield replace(each, given=replace(each.given, document=document))


def values_of_helm_chart(given: ReaderInput) -> Iterator[ChartInput]:
    """Yield the values of a HelmChart of K3s: YAML as text, over which those that are set one by one win."""
    given = given.with_texts_read(("spec", "valuesContent"))
    values, elsewhere = given.root.get("spec", "valuesContent"), dict[str, str]()
    for name, field in itertools.islice(given.root.get("spec", "set").fields(), _MAX_PARAMETERS):
        if found := read_set(name, field.text, as_text=False):
            values, path = with_set(values, found)
            elsewhere[path] = field.path
    document = replace(given.document, elsewhere=elsewhere)
    yield ChartInput(given=replace(given, document=document, values=values))
