"""Charts of a checkout as its own GitOps objects pair them with values: Argo CD, Flux, helmfile, Skaffold and Terraform.

Which values win: argo-cd.readthedocs.io, "Helm" and "Multiple Sources for an Application"; fluxcd.io, "Helm Releases" and "Kustomization";
helmfile.readthedocs.io, "Configuration"; skaffold.dev, "Helm".
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from time import monotonic
from typing import Any

from msgspec import Struct, field

from kvgate.documents import application_sets, terraform
from kvgate.documents.bounded_files import read_file
from kvgate.documents.discovery import CHART_FILE, KUSTOMIZATIONS, TERRAFORM
from kvgate.documents.nodes import YamlError, value_of
from kvgate.documents.origins import Unrendered
from kvgate.documents.reading import Document, parsed
from kvgate.documents.written import Written
from kvgate.text.patterns import pattern

MAX_FILE_BYTES = 1 << 20
"""Size of a file with GitOps objects; a longer one pairs nothing."""
MAX_PAIRINGS, MAX_SECONDS = 500, 5
"""Limits of one input; what is beyond is told, and not rendered."""
_MARKS = (b"argoproj.io/", b"fluxcd.io/")
_HELMFILE, _SKAFFOLD = pattern(r"helmfile.*\.ya?ml(?:\.gotmpl)?"), pattern(r"skaffold.*\.ya?ml")
_ENVIRONMENT = pattern(r"\{\{-?\s*\.Environment\.Name\s*-?\}\}")
_TEMPLATE = ".gotmpl"
_RELEASE_NAME = pattern(r"[a-z0-9](?:[a-z0-9-]{0,51}[a-z0-9])?")
_VARIABLE = pattern(r"\$\{([A-Za-z_]\w*)(?::?[-=]([^{}\n]*))?\}")
_URL = pattern(r"[a-z0-9+]+://.*")


class Pairing(Struct, frozen=True, kw_only=True):
    """A chart of the checkout with the values and the name of the release that one object gives it."""

    file: Path
    """File of the object."""
    line: int
    owner: str
    """Kind and name of the object, for people."""
    chart: Path
    """Folder of the chart."""
    release: str = ""
    namespace: str = ""
    values: tuple[Path | str, ...] = ()
    """Files and texts of values; later ones win."""
    arguments: tuple[str, ...] = ()
    """Further arguments of `helm template`, which win over all values."""
    unread: tuple[str, ...] = ()
    """Sources of values that the object names and kvgate does not read; they may set more."""


class Paired(Struct, kw_only=True):
    """Everything that the GitOps objects of an input say about its charts and overlays."""

    pairings: list[Pairing] = field(default_factory=list)
    variables: dict[Path, Mapping[str, str]] = field(default_factory=dict)
    """Folder of an overlay → the variables that a Kustomization of Flux puts into it (`postBuild.substitute`)."""
    notes: list[Unrendered] = field(default_factory=list)


def paired_in(files: Sequence[tuple[Path, Path]]) -> Paired:
    """Read the GitOps objects among the files, each with the folder that bounds it."""
    found, until, is_late = Paired(), monotonic() + MAX_SECONDS, False
    by_root: dict[Path, list[Path]] = {}
    for path, inside in files:
        by_root.setdefault(inside, []).append(path)
    checkouts = {root: _Checkout(root=root, tree=application_sets.Tree(root, paths)) for root, paths in by_root.items()}
    for path, inside in files:
        checkout = checkouts[inside]
        is_late = monotonic() > until
        if is_late or len(found.pairings) > MAX_PAIRINGS:
            break
        try:
            for each in _of_file(path, checkout):
                if isinstance(each, Unrendered):
                    found.notes.append(each)
                elif isinstance(each, Pairing):
                    found.pairings.append(each)
                else:
                    found.variables.update(each)
        except (OSError, UnicodeDecodeError):
            continue  # the reading of the documents reports it
    if is_late or len(found.pairings) > MAX_PAIRINGS:
        at = found.pairings[MAX_PAIRINGS].file if len(found.pairings) > MAX_PAIRINGS else path
        reason = (
            f"GitOps objects from here on are not read: {MAX_PAIRINGS} pairings or {MAX_SECONDS} seconds are the limit"
        )
        found.notes.append(Unrendered(file=str(at), line=1, reason=reason))
        del found.pairings[MAX_PAIRINGS:]
    return found


def substituted(data: bytes, variables: Mapping[str, str]) -> bytes:
    """Return a rendered overlay with its variables, as Flux does after the build; one that nobody sets keeps its default, or stays."""

    def value(found: Any) -> str:
        return variables.get(found[1], found[0] if found[2] is None else found[2])

    return _VARIABLE.sub(value, data.decode(errors="surrogateescape")).encode(errors="surrogateescape")


class _Checkout(Struct, frozen=True, kw_only=True):
    """The folder that bounds an input, and its files."""

    root: Path
    tree: application_sets.Tree

    def chart(self, folder: Path) -> Path | None:
        """Return the folder if it is a chart of the checkout."""
        resolved = folder.resolve()
        return folder if resolved.is_relative_to(self.root.resolve()) and (resolved / CHART_FILE).is_file() else None

    def why_not(self, path: str) -> str:
        """Return why a path that an object names is no folder here; empty where it may be one of another repository."""
        if "{{" in path:
            return f"its path {path} is a template that is not evaluated"
        folder, top = (self.root / path.lstrip("/")).resolve(), self.root.resolve()
        return "" if folder.is_relative_to(top) else f"its path {path} leads out of the checkout, and is not read"


_Said = Iterator[Pairing | Unrendered | Mapping[Path, Mapping[str, str]]]


def _of_file(path: Path, checkout: _Checkout) -> _Said:
    """Raises OSError, UnicodeDecodeError."""
    is_helmfile = _HELMFILE.fullmatch(path.name) is not None or path.parent.name == "helmfile.d"
    if path.suffix == TERRAFORM:
        yield from _of_terraform(path, checkout)
        return
    is_skaffold = _SKAFFOLD.fullmatch(path.name) is not None
    data = read_file(path, max_bytes=MAX_FILE_BYTES, inside=checkout.root)
    if is_helmfile:
        yield from _of_helmfile(path, data.decode(), checkout)
    elif is_skaffold or any(mark in data for mark in _MARKS):
        for document in parsed(str(path), BytesIO(data)):
            value = document.load() if isinstance(document, Document) else None
            if isinstance(document, Document) and isinstance(value, Mapping):
                read = _KINDS.get(document.group_kind, _of_skaffold if is_skaffold else None)
                if read:
                    place = _Object(path=path, line=document.first_line, kind=document.kind, root=Written(value=value))
                    yield from read(place, checkout)


class _Object(Struct, frozen=True, kw_only=True):
    """One GitOps object and its place."""

    path: Path
    line: int
    kind: str
    root: Written

    @property
    def name(self) -> str:
        return self.root.get("metadata", "name").text

    @property
    def spec(self) -> Written:
        return self.root.get("spec")

    def note(self, reason: str) -> Unrendered:
        return Unrendered(file=str(self.path), line=self.line, reason=f"{self.kind} {self.name}: {reason}")


class _Values:
    """The values that an object gives to a chart, in the order in which later ones win."""

    def __init__(self) -> None:
        self.given: list[Path | str] = []
        self.arguments: list[str] = []
        self.unread: list[str] = []

    def file(self, name: str, path: Path, *, may_be_missing: bool = False) -> None:
        if _URL.fullmatch(name) or "{{" in name or not path.is_file():
            self.unread += [] if may_be_missing else [name]
        else:
            self.given.append(path)

    def text(self, value: Any) -> None:
        """Add values that stand in the object itself: a mapping, or YAML as text."""
        if isinstance(value, Mapping) and value:
            self.given.append(json.dumps(value, default=str))
        elif isinstance(value, str) and value.strip():
            self.given.append(value)

    def set(self, name: str, value: Any, *, as_text: bool = False) -> None:
        text = {True: "true", False: "false", None: "null"}.get(value, value) if not isinstance(value, str) else value
        escaped = str(text).replace("\\", "\\\\").replace(",", "\\,")
        self.arguments.append(f"{'--set-string' if as_text else '--set'}={name}={escaped}")

    def paired(self, at: _Object, chart: Path, owner: str, release: str, namespace: str) -> Pairing:
        return Pairing(
            file=at.path, line=at.line, owner=owner, chart=chart, namespace=namespace,
            release=release if _RELEASE_NAME.fullmatch(release) else "",
            values=tuple(self.given), arguments=tuple(self.arguments), unread=tuple(self.unread),
        )  # fmt: skip


def _of_application(at: _Object, checkout: _Checkout) -> _Said:
    """Parameters win over valuesObject, that over values, and these over valueFiles; `sources` stand in for `source`."""
    spec = at.spec
    for source in spec.get("sources").items() or [spec.get("source")]:
        folder = checkout.root / source.get("path").text.lstrip("/")
        chart = checkout.chart(folder) if source.get("path").text else None
        if chart is None:
            if reason := checkout.why_not(source.get("path").text):
                yield at.note(reason)
            continue
        helm, values = source.get("helm"), _Values()
        may_be_missing = helm.get("ignoreMissingValueFiles").value is True
        for each in helm.get("valueFiles").items():
            reference, _, rest = each.text.partition("/")
            top = checkout.root if not reference or reference.startswith("$") else folder
            below = rest if top is checkout.root else each.text
            values.file(each.text, Path(os.path.normpath(top / below)), may_be_missing=may_be_missing)
        values.text(helm.get("valuesObject").value if helm.get("valuesObject").is_set else helm.get("values").value)
        for each in helm.get("parameters").items():
            values.set(each.get("name").text, each.get("value").text, as_text=each.get("forceString").value is True)
        values.unread += [each.get("name").text for each in helm.get("fileParameters").items()]
        release = helm.get("releaseName").text or at.name
        namespace = spec.get("destination", "namespace").text
        yield values.paired(at, chart, f"{at.kind} {at.name}", release, namespace)


def _of_application_set(at: _Object, checkout: _Checkout) -> _Said:
    made = application_sets.applications(at.root.value, checkout.tree)
    for reason in made.unread:
        yield at.note(reason)
    for each in made.objects:
        application = Written(value=each)
        yield from _of_application(_Object(path=at.path, line=at.line, kind="Application", root=application), checkout)


def _of_helm_release(at: _Object, checkout: _Checkout) -> _Said:
    """`values` win over `valuesFrom`, and these over the files of the chart's source."""
    spec, asked = at.spec, at.spec.get("chart", "spec")
    is_here = asked.get("sourceRef", "kind").text == "GitRepository"
    chart = checkout.chart(checkout.root / asked.get("chart").text.lstrip("/")) if is_here else None
    if chart is None or not asked.get("chart").text:
        if reason := checkout.why_not(asked.get("chart").text) if is_here else "":
            yield at.note(reason)
        return
    values = _Values()
    for each in (*asked.get("valuesFiles").items(), asked.get("valuesFile")):
        if each.text:
            values.file(each.text, Path(os.path.normpath(checkout.root / each.text.lstrip("/"))))
    for each in spec.get("valuesFrom").items():
        source = f"{each.get('kind').text} {each.get('name').text}"
        file = None if each.get("targetPath").is_set else _generated(at.path, each, checkout)
        if file is None:
            values.unread.append(source)
        else:
            values.file(source, file)
    values.text(spec.get("values").value)
    if spec.get("postRenderers").is_set:
        values.unread.append("postRenderers")
    namespace = spec.get("targetNamespace").text or at.root.get("metadata", "namespace").text
    release = spec.get("releaseName").text or "-".join(filter(None, (spec.get("targetNamespace").text, at.name)))
    yield values.paired(at, chart, f"{at.kind} {at.name}", release, namespace)


def _generated(path: Path, reference: Written, checkout: _Checkout) -> Path | None:
    """Return the file of values that the kustomization beside an object makes into the ConfigMap of a reference."""
    wanted = reference.get("valuesKey").text or "values.yaml"
    for name in KUSTOMIZATIONS:
        try:
            text = read_file(path.parent / name, max_bytes=MAX_FILE_BYTES, inside=checkout.root).decode()
            fields = Written(value=value_of(text))
        except (OSError, UnicodeDecodeError, YamlError):
            continue
        for generator in fields.get("configMapGenerator").items():
            if generator.get("name").text != reference.get("name").text:
                continue
            for each in generator.get("files").items():
                key, _, file = each.text.rpartition("=")
                if (key or Path(file).name) == wanted:
                    return Path(os.path.normpath(path.parent / file))
    return None


def _of_flux_kustomization(at: _Object, checkout: _Checkout) -> _Said:
    folder, build = at.spec.get("path").text, at.spec.get("postBuild")
    if folder and build.is_set:
        variables = {name: field.text for name, field in build.get("substitute").fields()}
        yield {(checkout.root / folder.lstrip("/")).resolve(): variables}


def _of_helmfile(path: Path, text: str, checkout: _Checkout) -> _Said:
    """Yield the local charts of a helmfile, for each environment once where the environment decides something."""
    environments = _helmfile_environments(text) if _ENVIRONMENT.search(text) else ["default"]
    for environment in environments:
        filled = _ENVIRONMENT.sub(environment, text)
        for document in parsed(str(path), BytesIO(filled.encode())):
            value = document.load() if isinstance(document, Document) else None
            if not isinstance(value, Mapping):
                reason = "not rendered: a template that kvgate does not evaluate"
                yield Unrendered(file=str(path), line=1, reason=reason)
                continue
            for index, release in enumerate(Written(value=value).get("releases").items()):
                line = document.position_of(f"releases[{index}]").line if isinstance(document, Document) else 1
                at = _Object(path=path, line=line, kind="helmfile", root=release)
                yield from _of_helmfile_release(at, environment, checkout)


def _helmfile_environments(text: str) -> list[str]:
    filled = _ENVIRONMENT.sub("default", text)
    for document in parsed("", BytesIO(filled.encode())):
        value = document.load() if isinstance(document, Document) else None
        if names := [name for name, _ in Written(value=value).get("environments").fields()]:
            return names
    return ["default"]


def _of_helmfile_release(at: _Object, environment: str, checkout: _Checkout) -> _Said:
    release, folder = at.root, at.path.parent
    chart = checkout.chart(folder / release.get("chart").text) if release.get("chart").text else None
    if chart is None or release.get("installed").value is False:
        return
    values, name = _Values(), release.get("name").text
    for each in release.get("values").items():
        path = Path(os.path.normpath(folder / each.text)) if isinstance(each.value, str) else None
        if path and path.suffix == _TEMPLATE and path.is_file():
            data = read_file(path, max_bytes=MAX_FILE_BYTES, inside=checkout.root)
            text = _ENVIRONMENT.sub(environment, data.decode())
            values.text("" if "{{" in text else text)
            values.unread += [f"{each.text} (a template that is not evaluated)"] if "{{" in text else []
        elif path:
            values.file(each.text, path)
        else:
            values.text(each.value)
    for each in release.get("set").items():
        values.set(each.get("name").text, each.get("value").value)
    owner = f"helmfile release {name}" + ("" if environment == "default" else f" ({environment})")
    yield values.paired(at, chart, owner, name, release.get("namespace").text)


def _of_skaffold(at: _Object, checkout: _Checkout) -> _Said:
    for above in ("deploy", "manifests"):
        for release in at.root.get(above, "helm", "releases").items():
            chart, values = checkout.chart(at.path.parent / release.get("chartPath").text), _Values()
            if chart is None or not release.get("chartPath").text:
                continue
            for each in release.get("valuesFiles").items():
                values.file(each.text, Path(os.path.normpath(at.path.parent / each.text)))
            values.text(release.get("overrides").value)
            for name, each in release.get("setValues").fields():
                values.set(name, each.value)
            values.unread += [name for name, _ in release.get("setValueTemplates").fields()]
            name = release.get("name").text
            yield values.paired(at, chart, f"skaffold release {name}", name, release.get("namespace").text)


def _of_terraform(path: Path, checkout: _Checkout) -> _Said:
    """Raises OSError, UnicodeDecodeError."""
    data = read_file(path, max_bytes=terraform.MAX_FILE_BYTES, inside=checkout.root)
    try:
        releases = list(terraform.releases_in(text := data.decode())) if terraform.has_releases(data) else []
    except terraform.NotRead as reason:
        yield Unrendered(file=str(path), line=1, reason=f"not read: {reason}")
        return
    for release in releases:
        chart, values = checkout.chart(path.parent / release.chart) if release.chart else None, _Values()
        if chart is None:
            continue
        for each in release.values:
            if isinstance(each, terraform.File):
                values.file(each.path, Path(os.path.normpath(path.parent / each.path)))
            else:
                values.text(each)
        for name, text in release.set_values:
            values.set(name, text)
        values.unread += release.unread
        line = next((n for n, line in enumerate(text.split("\n"), 1) if f'"{release.name}"' in line), 1)
        at = _Object(path=path, line=line, kind="helm_release", root=Written(value=None))
        yield values.paired(at, chart, f"helm_release {release.name}", release.name, release.namespace)


_KINDS = {
    "Application.argoproj.io": _of_application,
    "ApplicationSet.argoproj.io": _of_application_set,
    "HelmRelease.helm.toolkit.fluxcd.io": _of_helm_release,
    "Kustomization.kustomize.toolkit.fluxcd.io": _of_flux_kustomization,
}


def owners(pairings: Iterable[Pairing]) -> dict[Path, list[Pairing]]:
    """Return the pairings of each chart, by its folder without links."""
    found: dict[Path, list[Pairing]] = {}
    for each in pairings:
        found.setdefault(each.chart.resolve(), []).append(each)
    return found
