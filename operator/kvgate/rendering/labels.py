"""Names, labels, owner and hash of what is rendered."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from kvgate.api import API_VERSION, GROUP, KIND
from kvgate.api.base import Document
from kvgate.api.status import RECORD_KIND
from kvgate.api.v1alpha1 import InferenceDeployment

OWNER_LABEL = f"{GROUP}/inferencedeployment"
"""Label that joins pods, their metrics and the InferenceDeployment; its value is the name of the InferenceDeployment."""
HASH_ANNOTATION = f"{GROUP}/render-hash"
"""Annotation with the hash of the whole manifest on a Deployment and a Service, and of the pod template alone on pods."""
PREDICTED_TOKENS_ANNOTATION = f"{GROUP}/predicted-kv-tokens"
"""Annotation of the Deployment. Its pods do not have it, because a better prediction must not restart an engine."""

RECORD_ANNOTATION = f"{GROUP}/admission-record"
"""Annotation of the Deployment with the name of the AdmissionRecord that it is rendered from."""
RECORD_DIGEST_ANNOTATION = f"{GROUP}/admission-digest"
"""Annotation of the Deployment with the digest of that record: if somebody deletes it, the same judgement makes it again."""
REVISION_ANNOTATION = f"{GROUP}/calibration-revision"
"""Annotation of the Deployment with the number of the newest observed start that the admission knew."""
TEMPLATE_ANNOTATION = f"{GROUP}/template-digest"
"""Annotation of the Deployment with the digest of its pod template. A later release that renders other pods leaves running ones alone."""
PACED_ANNOTATION = f"{GROUP}/replaced-by"
"""Annotation of a Deployment with the release of kvgate that replaced its pods although nobody had edited the object."""


class PassedOn(Struct, frozen=True, kw_only=True):
    """Keys of labels and annotations that children get from their InferenceDeployment; a key with `*` at its end means all that begin so.

    Pods get none of them, because a change would replace the pods.
    """

    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()

    def of(self, owner: Mapping[str, Any]) -> dict[str, dict[str, str]]:
        """Return what an owner's metadata have of them, by `labels` and `annotations`."""
        return {
            part: {key: text for key, text in stated.items() if _is_among(key, keys)}
            for part, keys in (("labels", self.labels), ("annotations", self.annotations))
            if isinstance(stated := owner.get(part) or {}, dict)  # a review may come before the schema is checked
        }

    def on(self, child: Document, owner: Mapping[str, Any]) -> Document:
        """Return the child with those of its owner's metadata; the child's own come first."""
        found, inner = self.of(owner), child["metadata"]
        if not any(found.values()):
            return child
        parts = {part: {**more, **inner.get(part, {})} for part, more in found.items()}
        return hashed({**child, "metadata": {**inner, **parts}})


def _is_among(key: str, keys: Iterable[str]) -> bool:
    may = not key.startswith((f"{GROUP}/", "kubectl.kubernetes.io/", "deployment.kubernetes.io/"))
    return may and any(key.startswith(each[:-1]) if each.endswith("*") else key == each for each in keys)


def selector(name: str) -> dict[str, str]:
    """Return the selector. A Deployment's selector can never change, so it depends on the name alone."""
    return {OWNER_LABEL: name}


def labels(name: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "vllm",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": "kvgate",
        **selector(name),
    }


def metadata(owner: InferenceDeployment) -> Document:
    """Return the metadata of a child, which has its owner's name and is deleted with its owner."""
    return {
        "name": owner.name,
        "namespace": owner.namespace,
        "labels": labels(owner.name),
        "ownerReferences": [owner_reference(owner.name, owner.metadata.get("uid", ""))],
    }


def owner_reference(name: str, uid: object) -> Document:
    """Return the reference to an InferenceDeployment, which goes after its children where it is deleted in the foreground."""
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": str(uid)}
    return {**owner, "controller": True, "blockOwnerDeletion": True}


def is_owned_by(child: Mapping[str, Any], uid: str) -> bool:
    """Return True for a child of the owner with this uid. Anybody can copy labels, so only the owner reference counts."""
    return any(owner.get("uid") == uid for owner in child.get("metadata", {}).get("ownerReferences", ()))


def controller_of(child: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the owner reference of the object that controls a child; there is one at most."""
    owners = child.get("metadata", {}).get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def was_ours(child: Mapping[str, Any], name: str) -> bool:
    """Return True for a child of an InferenceDeployment with this name that is gone: after a restore from a backup, the same objects have
    other uids or no owner at all.

    A name belongs to one object at a time. Without a controller a child counts that kvgate rendered, by its label and its hash.
    """
    metadata = child.get("metadata", {})
    whose = {
        (each.get("apiVersion"), each.get("kind"), each.get("name")) for each in metadata.get("ownerReferences") or ()
    }
    if any(owner[:2] == (API_VERSION, KIND) for owner in whose):
        return (API_VERSION, KIND, name) in whose
    if controller_of(child) is not None:
        return False
    is_ours = child.get("kind") == RECORD_KIND or HASH_ANNOTATION in (metadata.get("annotations") or {})
    return is_ours and (metadata.get("labels") or {}).get(OWNER_LABEL) == name


def digest_of(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def render_hash(manifest: Mapping[str, Any]) -> str:
    """Hash a manifest; 16 hexadecimal digits distinguish two renderings and stay readable."""
    return digest_of(manifest)[:16]


def hashed(manifest: Document) -> Document:
    """Return the manifest with its own hash in its annotations, in the place of an earlier one."""
    inner = manifest.get("metadata", {})
    others = {name: text for name, text in inner.get("annotations", {}).items() if name != HASH_ANNOTATION}
    bare = {**manifest, "metadata": {**inner, "annotations": others}} if inner.get("annotations") else manifest
    return {**manifest, "metadata": {**inner, "annotations": {**others, HASH_ANNOTATION: render_hash(bare)}}}
