"""The engines of an input: every document of another platform through its reader, with what stands beside it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from kvgate.documents.positions import Broken, broken, defect
from kvgate.documents.reading import Document
from kvgate.documents.written import Written
from kvgate.manifests.platforms.kubeai import has_profiles, values_with_profiles
from kvgate.manifests.platforms.readers import TEMPLATES, engines_in
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.manifests.pods.pod_engines import Input
from kvgate.manifests.subjects import NO_NAMESPACE, Manifests
from kvgate.shell.environment import OutOfRoom, SharedRoom

_SUPPORTING_KINDS = frozenset({
    *TEMPLATES, "Service", "Ingress", "HTTPRoute", "Gateway", "Secret",
    "ServiceAccount", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "PersistentVolumeClaim", "PersistentVolume",
    "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy", "Namespace", "ServiceMonitor", "PodMonitor", "PrometheusRule",
    "ScaledObject", "CustomResourceDefinition", "InferencePool", "InferenceModel", "InferenceObjective", "Certificate", "Issuer",
    "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "Kustomization", "VirtualService", "DestinationRule",
    "EnvoyFilter", "VLLMRouter", "CacheServer", "LoraAdapter", "HelmRepository", "OCIRepository", "GitRepository", "AppProject",
})  # fmt: skip
"""Kinds that stand beside an engine and never hold one."""
_KNATIVE = "serving.knative.dev/"
"""Group of another `Service`, which holds containers."""
_Key = tuple[str, str, str]
"""Namespace, kind, name."""


@dataclass(kw_only=True)
class EnginesFound:
    """Engines in the documents of other platforms."""

    engines: list[FoundEngine] = field(default_factory=list)
    not_understood: list[Document] = field(default_factory=list)
    """They speak of vLLM, and no reader finds an engine in them."""
    broken: list[Broken] = field(default_factory=list)
    num_others: int = 0


def find_engines(manifests: Manifests) -> EnginesFound:
    """Every engine, in the order of the input."""
    found, roots = EnginesFound(), dict(_roots(manifests))
    objects = _objects(manifests, roots)
    readable = (root for root in roots.values() if isinstance(root, Written))
    profiles = tuple(values for root in readable for values in values_with_profiles(root))
    shared = SharedRoom()
    shared.left += sum(map(_num_characters, manifests.others))
    for document in manifests.others:
        root = roots[id(document)]
        if isinstance(root, Broken):
            found.broken.append(root)
            continue
        try:
            _add(found, _input(manifests, document, root, objects, profiles, shared))
        except OutOfRoom as error:
            found.broken.append(
                broken(document.file, document.position, str(error), "check parts of the input one by one")
            )
        except Exception as error:  # noqa: BLE001 - a defect of ours costs one document
            found.broken.append(defect(document.file, document.position, error))
    return found


def _num_characters(document: Document) -> int:
    """Count the characters of a document; texts that many containers share may have a fixed number more."""
    return int(document.node.end_mark.index - document.node.start_mark.index)


def _roots(manifests: Manifests) -> Iterator[tuple[int, Written | Broken]]:
    for document in manifests.others:
        value = document.load()
        yield id(document), value if isinstance(value, Broken) else Written(value=value)


def _input(
    manifests: Manifests,
    document: Document,
    root: Written,
    objects: Mapping[_Key, Written],
    profiles: tuple[Written, ...],
    shared: SharedRoom,
) -> Input:
    namespace = root.get("metadata", "namespace").text or NO_NAMESPACE
    return Input(
        document=document,
        root=root,
        values=root,
        config_data=partial(manifests.config_data, namespace),
        find=partial(_found, objects, namespace),
        find_claim=partial(manifests.find_claim, namespace),
        profiles=profiles,
        shared=shared,
    )


def _objects(manifests: Manifests, roots: Mapping[int, Written | Broken]) -> Mapping[_Key, Written]:
    """Index the objects that others may refer to; the first of a name is also kept without its namespace."""
    objects: dict[_Key, Written] = {}
    for document in manifests.others:
        root = roots[id(document)]
        if isinstance(root, Written):
            metadata = root.get("metadata")
            for namespace in (metadata.get("namespace").text or NO_NAMESPACE, ""):
                objects.setdefault((namespace, document.kind, metadata.get("name").text), root)
    return objects


def _found(objects: Mapping[_Key, Written], namespace: str, kind: str, name: str) -> Written | None:
    """Another document of the input: of the same namespace, else of any, for KServe has its own in one of its own."""
    return objects.get((namespace, kind, name)) or objects.get(("", kind, name))


def _add(found: EnginesFound, given: Input) -> None:
    engines = engines_in(given)
    if engines:
        found.engines += engines
    elif not _is_supporting(given) and _speaks_of_vllm(given.root.value):
        found.not_understood.append(given.document)
    else:
        found.num_others += 1


def _is_supporting(given: Input) -> bool:
    kind = given.document.kind
    is_beside = kind in _SUPPORTING_KINDS and not given.document.api_version.startswith(_KNATIVE)
    return is_beside or has_profiles(given.root) or (not kind and _is_chart(given.root))


def _is_chart(root: Written) -> bool:
    """Helm's `Chart.yaml`."""
    return root.get("apiVersion").text in ("v1", "v2") and root.get("name").is_set and root.get("version").is_set


def _speaks_of_vllm(value: object) -> bool:
    """A value, not a name or a label, tells of vLLM."""
    if isinstance(value, dict):
        return any(
            _speaks_of_vllm(child) for key, child in value.items() if key not in ("metadata", "labels", "annotations")
        )
    if isinstance(value, list):
        return any(map(_speaks_of_vllm, value))
    return isinstance(value, str) and "vllm" in value.lower()
