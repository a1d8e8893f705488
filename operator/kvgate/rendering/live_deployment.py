"""The running Deployment: the admission that it was rendered from, and the pods that another release rendered. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.api import FIELD_MANAGER
from kvgate.api.base import Document
from kvgate.api.quantity import parse_quantity
from kvgate.rendering.admission import Admitted, Lost
from kvgate.rendering.drift import AMOUNTS, has_key
from kvgate.rendering.labels import (
    RECORD_ANNOTATION,
    RECORD_DIGEST_ANNOTATION,
    REVISION_ANNOTATION,
    TEMPLATE_ANNOTATION,
    digest_of,
    hashed,
)
from kvgate.rendering.workload import Rendered
from kvgate.text.patterns import pattern

_DIGEST = pattern("[0-9a-f]{64}")
_REVISION = pattern("[0-9]{1,15}")


def annotated(wanted: Rendered, admitted: Admitted) -> Rendered:
    """Return the manifests with the name and the digest of their record, and the digest of their pods, on the Deployment."""
    deployment = wanted.deployment
    metadata = deployment["metadata"]
    annotations = {
        **metadata.get("annotations", {}),
        RECORD_ANNOTATION: admitted.name,
        RECORD_DIGEST_ANNOTATION: admitted.digest,
        REVISION_ANNOTATION: str(admitted.record.calibration_revision or 0),
        TEMPLATE_ANNOTATION: template_digest(deployment["spec"]["template"]),
    }
    noted = {**deployment, "metadata": {**metadata, "annotations": annotations}}
    return Rendered(deployment=hashed(noted), service=wanted.service)


def record_of(live: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return name and digest of the record that a Deployment was rendered from; empty where there is none."""
    annotations = _annotations(live)
    return annotations.get(RECORD_ANNOTATION, ""), annotations.get(RECORD_DIGEST_ANNOTATION, "")


def lost_record(live: Mapping[str, Any] | None) -> Lost | None:
    """Return what a Deployment says of a record that is gone."""
    annotations = _annotations(live)
    digest, revision = annotations.get(RECORD_DIGEST_ANNOTATION, ""), annotations.get(REVISION_ANNOTATION, "")
    if not _DIGEST.fullmatch(digest) or not _REVISION.fullmatch(revision):
        return None
    return Lost(digest=digest, calibration_revision=int(revision))


def rendered_template(live: Mapping[str, Any] | None, admitted: Admitted) -> str | None:
    """Return the digest of the pod template that was rendered for this admission; None where the Deployment is of another."""
    annotations = _annotations(live)
    return annotations.get(TEMPLATE_ANNOTATION) if record_of(live)[0] == admitted.name else None


def _annotations(live: Mapping[str, Any] | None) -> Mapping[str, str]:
    return (live or {}).get("metadata", {}).get("annotations") or {}


def template_digest(template: Mapping[str, Any]) -> str:
    """Digest a pod template; as the API server stores it and as it was rendered are the same."""
    return digest_of(_stored(template))


def as_it_runs(wanted: Rendered, live: Mapping[str, Any], digest: str | None) -> Rendered:
    """Return the manifests with the pod template that runs, where it is the one that was rendered at the admission.

    Another release of kvgate may render other pods for the same verdict: those that run are left as they are.
    """
    template = _own_template(live) if digest else {}
    if not template or template_digest(template) != digest:
        return wanted
    deployment = {**wanted.deployment, "spec": {**wanted.deployment["spec"], "template": template}}
    return Rendered(deployment=hashed(deployment), service=wanted.service)


def _own_template(live: Mapping[str, Any]) -> Document:
    """Return the fields of the pod template that kvgate owns by server-side apply."""
    for entry in live.get("metadata", {}).get("managedFields") or ():
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource"):
            fields = (entry.get("fieldsV1") or {}).get("f:spec", {}).get("f:template") or {}
            template = live.get("spec", {}).get("template")
            return _owned(fields, template) if fields and isinstance(template, Mapping) else {}
    return {}


def _owned(fields: Mapping[str, Any], value: Any) -> Any:
    """Return the part of a value that these steps of managedFields name."""
    steps = {step: inside for step, inside in fields.items() if step != "."}
    if not steps:
        return value
    if isinstance(value, Mapping):
        named = {step.partition(":")[2]: inside for step, inside in steps.items() if step.startswith("f:")}
        return {name: _owned(inside, value[name]) for name, inside in named.items() if name in value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        keys = [(json.loads(step[2:]), inside) for step, inside in steps.items() if step.startswith("k:")]
        matching = (next((inside for key, inside in keys if has_key(item, key)), None) for item in value)
        return [_owned(inside, item) for item, inside in zip(value, matching, strict=True) if inside is not None]
    return value


def _stored(value: Any, *, is_amount: bool = False) -> Any:
    """Return a value without what the API server drops, and with amounts as numbers."""
    if isinstance(value, Mapping):
        inner = {name: _stored(item, is_amount=is_amount or name in AMOUNTS) for name, item in value.items()}
        return {name: item for name, item in inner.items() if item not in ("", None)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_stored(item, is_amount=is_amount) for item in value]
    amount = parse_quantity(value) if is_amount else None
    return value if amount is None else str(-(-amount.numerator * 1000 // amount.denominator))
