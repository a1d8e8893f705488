"""The documents of one input: InferenceDeployments, objects that others look up by name, and documents that may hold an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import chain
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from kvgate.api import GROUP, KIND
from kvgate.documents.discovery import OtherRevision, PassedOver, Why
from kvgate.documents.interest import WordsOfInterest
from kvgate.documents.origins import ChartOptions, Unrendered
from kvgate.documents.paths import AS_WRITTEN, read_relevant
from kvgate.documents.positions import Broken, defect
from kvgate.documents.reading import Document, Reading
from kvgate.documents.templates import objects_of
from kvgate.documents.written import NOTHING, Written
from kvgate.findings.finding import Finding, words
from kvgate.judgement.facts import ConfigLookup, ConfigMissing, text_of_key
from kvgate.manifests.platforms.reader import name_of_kind
from kvgate.manifests.platforms.readers import (
    KEYS_OF_ENGINES,
    NOT_READ,
    WITHOUT_ENGINES,
    engine_marks,
    engine_words,
    supporting_kinds,
)
from kvgate.manifests.pods.accelerator_hints import COMPUTE_CLASS, NODE_POOL, node_labels
from kvgate.rules.repository import UNKNOWN_KIND

if TYPE_CHECKING:
    from kvgate.api.base import KeyRef
    from kvgate.api.v1alpha1 import InferenceDeployment

_MAX_FOLDERS = 32
MAX_SKIPPED = 1000
"""Paths that were not read and that reports name; the rest is counted."""
NO_NAMESPACE = "default"
"""Namespace of objects that name none."""
_VOLUME_CLAIM = "PersistentVolumeClaim"
_CLAIM_KINDS = (_VOLUME_CLAIM, "ResourceClaim", "ResourceClaimTemplate", "DeviceClass", COMPUTE_CLASS, NODE_POOL)
"""Kinds of claims that pods refer to by name, and of classes of devices and nodes."""


class Subject(Struct, frozen=True, kw_only=True):
    """One InferenceDeployment of the input, which is judged by its policy."""

    document: Document
    name: str
    namespace: str
    deployment: InferenceDeployment | None
    """None where the schema refuses it."""
    findings: tuple[Finding, ...] = ()


ConfigMap = tuple[Mapping[str, Any], Document]
"""The data of a ConfigMap, and its document."""


class Nearest(Struct, kw_only=True):
    """Objects of an input by key, each with the file that it stands in; examples of one repository often call theirs alike.

    What belongs together stands in one file, else in one folder; else the object counts that shares the most folders with the one that
    asks. Where several are as near and differ, none of them is known to be meant.
    """

    in_file: dict[tuple[Hashable, str], Any] = field(default_factory=dict)
    """The last one of each file."""
    in_folder: dict[tuple[Hashable, str], list[tuple[Any, Any]]] = field(default_factory=dict)
    """The first one of each folder with what it says, and one that says something else."""
    below: dict[tuple[Hashable, str], list[tuple[Any, Any]]] = field(default_factory=dict)
    """The same for the folder and those below it."""

    def add(self, key: Hashable, file: str, value: Any, says: Any = None) -> None:
        """Add an object of a file. `says`: what two must share to be the same, where that is not the whole object."""
        self.in_file[key, file] = value
        folders, one = _folders(file), (value, value if says is None else says)
        for places, folder in [(self.in_folder, folders[0]), *((self.below, folder) for folder in folders)]:
            known = places.setdefault((key, folder), [one])
            if len(known) == 1 and known[0][1] != one[1]:
                known.append(one)

    def find(self, key: Hashable, file: str, *, only_beside: bool = False) -> Any | None:
        """Return the object that is meant in a file; None where none is known to be. `only_beside`: in its file or folder."""
        if (found := self.in_file.get((key, file))) is not None:
            return found
        folders = _folders(file)
        near = self.in_folder.get((key, folders[0]))
        if not near and not only_beside:
            near = next((found for folder in folders if (found := self.below.get((key, folder)))), None)
        return near[0][0] if near and len(near) == 1 else None


def _folders(file: str) -> list[str]:
    """Return the folder of a file and those around it, the innermost first."""
    return [str(folder) for folder in PurePath(file).parents][:_MAX_FOLDERS] or ["."]


class InputDocuments(Struct, kw_only=True):
    """The documents of one input, by what is done with them."""

    subjects: list[Subject] = field(default_factory=list)
    others: list[Document] = field(default_factory=list)
    """Documents of other platforms that may hold an engine, or that a reader may look up."""
    broken: list[Broken] = field(default_factory=list)
    num_others: int = 0
    """Documents that have nothing to do with vLLM."""
    passed_over: Counter[Why] = field(default_factory=Counter)
    """Files in the folders that were not read, by reason."""
    skipped: list[PassedOver] = field(default_factory=list)
    """Paths that a file of the checkout keeps from being read, as many as are named."""
    unrendered: list[Unrendered] = field(default_factory=list)
    """Charts and kustomizations that are not rendered, or not all of them."""
    config_maps: Nearest = field(default_factory=Nearest)
    """Data of ConfigMaps with their documents, by (namespace, name)."""
    claims: Nearest = field(default_factory=Nearest)
    """Claims of volumes and of devices, by (namespace, kind, name)."""

    def config_data(self, namespace: str, file: str, name: str) -> Mapping[str, Any] | None:
        """Return the data of a ConfigMap of the same input; one without a namespace is applied to any."""
        found = self._config_map(namespace, file, name)
        return found[0] if found else None

    def config_document(self, namespace: str, file: str, name: str) -> Document | None:
        """Return the document of the ConfigMap that `config_data` reads."""
        found = self._config_map(namespace, file, name)
        return found[1] if found else None

    def _config_map(self, namespace: str, file: str, name: str) -> ConfigMap | None:
        found: ConfigMap | None = self.config_maps.find((namespace, name), file)
        return found or self.config_maps.find((NO_NAMESPACE, name), file)

    def find_claim(self, namespace: str, file: str, kind: str, name: str) -> Written | None:
        """Return a claim of the same input, or a template of one; one without a namespace is applied to any.

        A claim of a volume must stand in the same file or folder: many examples share a name, and each cluster has its own volume.
        """
        only_beside = kind == _VOLUME_CLAIM
        found: Written | None = self.claims.find((namespace, kind, name), file, only_beside=only_beside)
        return found or self.claims.find((NO_NAMESPACE, kind, name), file, only_beside=only_beside)

    def lookup(self, namespace: str, file: str) -> ConfigLookup:
        """Return the function that finds the text of configFrom for an object in this namespace."""

        def text_of(reference: KeyRef) -> str | ConfigMissing:
            found: ConfigMap | None = self.config_maps.find((namespace, reference.name), file)
            if found is None:
                return ConfigMissing(
                    message=f"ConfigMap {namespace}/{reference.name} is not among the files that are checked",
                    remediation="check it together with the ConfigMap, or give --model-config",
                )
            return text_of_key(reference, found[0])

        return text_of


def of_interest(is_mapped: Callable[[str], bool] | None = None) -> WordsOfInterest:
    """Return the words by which a document may hold an engine, or support one. `is_mapped`: True for a file that is read without them."""
    return WordsOfInterest(
        engine=engine_words(),
        marks=(GROUP, *engine_marks()),
        exact=(GROUP,),
        kinds=(*supporting_kinds(), *map(name_of_kind, NOT_READ)),
        without_engines=WITHOUT_ENGINES,
        keys=KEYS_OF_ENGINES,
        is_named=is_mapped,
    )


def read_manifests(
    paths: Iterable[str],
    root: Path | None = None,
    charts: ChartOptions = AS_WRITTEN,
    seen: Callable[[int], None] | None = None,
    is_mapped: Callable[[str], bool] | None = None,
    other: OtherRevision | None = None,
    texts: Iterable[tuple[str, bytes]] = (),
) -> InputDocuments:
    """Read all documents of the paths before any is judged: a ConfigMap may stand after the object that refers to it.

    `root`: a path that is written below this folder must not lead out of it. `seen` is called with the bytes of each document.
    `is_mapped`: True for a file whose values the user says to be those of engines. `other`: the revision whose `.kvgateignore` counts.
    `texts`: (name, content) of documents that stand in no file.
    """
    found, words = InputDocuments(), of_interest(is_mapped)
    of_texts = (item for name, text in texts for item in Reading(words=words).of_text(name, text))
    for item in chain(read_relevant(paths, words, root, charts, seen, other), of_texts):
        if item is None:
            found.num_others += 1
        elif isinstance(item, PassedOver):
            found.passed_over[item.why] += item.count
            if item.why in (Why.IGNORED, Why.PACKAGES) and len(found.skipped) < MAX_SKIPPED:
                found.skipped.append(item)
        elif isinstance(item, Unrendered):
            found.unrendered.append(item)
        elif isinstance(item, Broken):
            found.broken.append(item)
        else:
            try:
                for each in objects_of(item):
                    _add(found, each)
            except Exception as error:  # noqa: BLE001 - a defect of ours costs one document
                found.broken.append(defect(item.file, item.position, error))
    return found


def _add(found: InputDocuments, document: Document) -> None:
    if document.api_version.startswith(f"{GROUP}/"):
        _add_own(found, document)
    elif document.kind in ("ConfigMap", *_CLAIM_KINDS):
        found.num_others += 1
        value = document.load()
        # a tool that takes the last one of equal keys may have made it
        if isinstance(value, Broken) and not document.mentions_engine:
            value = document.with_last_keys().load()
        if isinstance(value, Mapping):
            name, namespace = _identity(value)
            if document.kind == "ConfigMap":
                data = value.get("data") if isinstance(value.get("data"), Mapping) else {}
                found.config_maps.add((namespace, name), document.file, (data, document), says=data)
            else:
                written = Written(value=value)
                found.claims.add((namespace, document.kind, name), document.file, written)
                for label in node_labels(written) if document.kind == NODE_POOL else ():
                    key = (namespace, document.kind, label)
                    is_second = (key, document.file) in found.claims.in_file  # nobody knows which of both it will be
                    found.claims.add(key, document.file, NOTHING if is_second else written)
        elif document.kind == "ConfigMap":  # an unreadable claim changes no verdict
            found.broken.append(value)
    elif document.mentions_engine or document.kind in supporting_kinds() or document.group_kind in NOT_READ:
        found.others.append(document)
    else:
        found.num_others += 1


def _add_own(found: InputDocuments, document: Document) -> None:
    """Add an InferenceDeployment with the findings of its schema; a mistyped kind must not pass as another project's object."""
    if document.kind != KIND:
        message = words("{kind} is {given!r}; {group} has no such kind", given=document.kind, group=GROUP)
        finding = UNKNOWN_KIND.finding("kind", message, f"write kind: {KIND}")
        found.broken.append(Broken(file=document.file, position=document.position_of("kind"), finding=finding))
        return
    value = document.load()
    if isinstance(value, Broken):
        found.broken += [duplicate for _, duplicate in document.duplicates] or [value]
        return
    from kvgate.api.validation import InvalidDocument, parse_document, unknown_metadata

    name, namespace = _identity(value)
    deployment, findings = None, unknown_metadata(value)
    try:
        deployment = parse_document(value)
    except InvalidDocument as error:
        findings = (*findings, *error.findings)
    in_order = tuple(sorted(findings, key=lambda finding: document.position_of(finding.field).line))
    judged = None if findings else deployment
    found.subjects.append(
        Subject(document=document, name=name, namespace=namespace, deployment=judged, findings=in_order)
    )


def _identity(value: Mapping[str, Any]) -> tuple[str, str]:
    """Return (name, namespace), as far as they are written."""
    metadata = value.get("metadata")
    fields = metadata if isinstance(metadata, Mapping) else {}
    return str(fields.get("name") or ""), str(fields.get("namespace") or NO_NAMESPACE)
