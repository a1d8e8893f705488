"""The engines of an input: each document of another platform goes to its reader, which may look up the others."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from kvgate.documents.chart_beside import completed_values
from kvgate.documents.discovery import Why
from kvgate.documents.duplicates import touches
from kvgate.documents.positions import Broken, broken, defect
from kvgate.documents.reading import Document
from kvgate.documents.written import Written
from kvgate.manifests.inputs import NO_NAMESPACE, InputDocuments, Nearest
from kvgate.manifests.platforms.custom_values import names_an_engine
from kvgate.manifests.platforms.readers import NOT_READ, engines_in, holds_no_engine
from kvgate.manifests.pods.engine_found import FoundEngine, MappedFields, ReaderInput
from kvgate.manifests.pods.pod_engines import other_servers
from kvgate.shell.environment import OutOfRoom, SharedRoom

FieldsOf = Callable[[Sequence[str], Written], MappedFields | None]


class EnginesFound(Struct, kw_only=True):
    """Engines in the documents of other platforms."""

    engines: list[FoundEngine] = field(default_factory=list)
    not_understood: list[Document] = field(default_factory=list)
    """Documents that name vLLM, and in which no reader finds an engine."""
    broken: list[Broken] = field(default_factory=list)
    num_others: int = 0


def find_engines(manifests: InputDocuments, fields_of: FieldsOf = lambda _files, _root: None) -> EnginesFound:
    """Return every engine, in the order of the input. `fields_of`: the files of a document and its value → what the user states."""
    found = EnginesFound()
    loaded = [each for document in manifests.others if (each := _loaded(document, found))]
    input_of = _inputs(manifests, [(document, Written(value=value)) for document, value, _ in loaded])
    for document, value, twice in loaded:
        try:
            root = Written(value=value)
            given = replace(input_of(document, root), mapped=fields_of(document.files, root))
            engines = engines_in(given)
            engines = (*engines, *other_servers(given, engines))
            if engines:
                found.engines += (each for each in engines if not any(touches(path, each.path) for path in twice))
            elif document.group_kind in NOT_READ:
                manifests.passed_over[Why.NIM] += 1
            elif not holds_no_engine(given) and (_names_vllm(value) if document.kind else names_an_engine(value)):
                found.not_understood.append(document)
            else:
                found.num_others += 1
        except OutOfRoom as error:
            found.broken.append(
                broken(document.file, document.position, str(error), "check parts of the input one by one")
            )
        except Exception as error:  # noqa: BLE001 - a defect of ours costs one document
            found.broken.append(defect(document.file, document.position, error))
    return found


def _loaded(document: Document, found: EnginesFound) -> tuple[Document, Any, Sequence[str]] | None:
    """Return the value of a document, and the paths that it writes twice; None, with a finding, where it cannot be judged.

    The API server refuses an object with a key that is written twice. In values and in docker-compose's files, other engines may be
    judged all the same.
    """
    value = document.load()
    if not isinstance(value, Broken):
        return document, value, ()
    duplicates = document.duplicates
    found.broken += [duplicate for _, duplicate in duplicates] or [value]
    if document.kind or not duplicates:
        return None
    document = document.with_last_keys()
    value = document.load()
    return None if isinstance(value, Broken) else (document, value, [path for path, _ in duplicates])


def _inputs(
    manifests: InputDocuments, readable: Sequence[tuple[Document, Written]]
) -> Callable[[Document, Written], ReaderInput]:
    """Return the function that makes a reader's input of a document; all inputs share one index of objects and one room."""
    objects = Nearest()
    for document, root in readable:
        metadata = root.get("metadata")
        for namespace in (metadata.get("namespace").text or NO_NAMESPACE, ""):
            key = (namespace, document.kind, metadata.get("name").text)
            if namespace or (key, document.file) not in objects.in_file:
                objects.add(key, document.file, root)
    # Texts that many containers share may have a fixed number of characters more than the documents.
    shared = SharedRoom()
    shared.left += sum(each.node.end_mark.index - each.node.start_mark.index for each in manifests.others)

    @cache
    def collected(look: Callable[[Written], Iterable[Written]]) -> tuple[Written, ...]:
        return tuple(value for _, root in readable for value in look(root))

    def service_beside(namespace: str, file: str, name: str) -> tuple[Written, bool] | None:
        key = (namespace, "Service", name)
        found: Written | None = objects.find(key, file, only_beside=True)
        return (found, (key, file) in objects.in_file) if found else None

    def input_of(document: Document, root: Written) -> ReaderInput:
        namespace = root.get("metadata", "namespace").text or NO_NAMESPACE
        is_written = not document.kind and document.origin is None
        return ReaderInput(
            document=document,
            root=root,
            values=Written(value=completed_values(document.file, root.value)) if is_written else root,
            config_data=partial(manifests.config_data, namespace, document.file),
            # Of the same namespace, else the first of any: KServe has its own objects in a namespace of its own.
            config_document=partial(manifests.config_document, namespace, document.file),
            find=lambda kind, name: (
                objects.find((namespace, kind, name), document.file) or objects.find(("", kind, name), document.file)
            ),
            find_claim=partial(manifests.find_claim, namespace, document.file),
            find_service=partial(service_beside, namespace, document.file),
            collected=collected,
            shared=shared,
        )

    return input_of


def _names_vllm(value: object) -> bool:
    """Return whether a value names vLLM; names of objects, labels and annotations do not count."""
    if isinstance(value, dict):
        return any(
            _names_vllm(child) for key, child in value.items() if key not in ("metadata", "labels", "annotations")
        )
    if isinstance(value, list):
        return any(map(_names_vllm, value))
    return isinstance(value, str) and "vllm" in value.lower()
