"""The running Deployment: it proves an admission whose record somebody deleted, and has the pods that another release rendered. Pure.

A Deployment carries a copy of the record of its admission. It is believed only where the pods run exactly what the copy says.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.api import FIELD_MANAGER
from kvgate.api.base import Document
from kvgate.api.conditions import ConditionType
from kvgate.api.quantity import parse_quantity
from kvgate.api.v1alpha1 import InferenceDeployment, InferenceDeploymentSpec
from kvgate.rendering.drift import AMOUNTS, carries, has_key
from kvgate.rendering.labels import ADMISSION_ANNOTATION, hashed, is_owned_by
from kvgate.rendering.standing import Admitted, dumped, has_room, judged_part, read_standing, resigned
from kvgate.rendering.workload import Rendered, rendered

_LEFT_OUT = ("generation", "spec", "digest", "budget")
"""Fields of the record that the copy has not: they change with every edit, are too large, or stand beside it."""
_MAX_COPY = 64 << 10
"""Characters of a copy that is read; kvgate writes at most a quarter of it."""


def admission_copy(admitted: Admitted, owner: InferenceDeployment) -> str:
    """Return the copy of the record for the Deployment of this spec."""
    record = {name: value for name, value in dumped(admitted.record).items() if name not in _LEFT_OUT}
    copy = {"standing": record, "budget": admitted.budget, "spec": _spec_digest(owner.spec)}
    return json.dumps(copy, sort_keys=True, separators=(",", ":"))


def restored(
    document: Mapping[str, Any], owner: InferenceDeployment, live: Mapping[str, Any] | None
) -> Admitted | None:
    """Return the admission of this very spec from the copy in its Deployment; None where that does not run what the copy says.

    A refusal in the status is believed, and not a Deployment.
    """
    metadata = (live or {}).get("metadata", {})
    text = (metadata.get("annotations") or {}).get(ADMISSION_ANNOTATION, "")
    if live is None or not is_owned_by(live, str(document["metadata"].get("uid"))) or not 0 < len(text) <= _MAX_COPY:
        return None
    conditions = (document.get("status") or {}).get("conditions") or ()
    refused = {"type": ConditionType.ACCEPTED.value, "status": "False"}
    if any(isinstance(each, Mapping) and refused.items() <= each.items() for each in conditions):
        return None
    try:
        copy = json.loads(text)
        record, budget, spec = {**copy["standing"]}, copy["budget"], copy["spec"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if spec != _spec_digest(owner.spec):
        return None
    record |= {"generation": document["metadata"].get("generation", 1)}
    record |= {"spec": document["spec"]} if has_room(document) else {}
    more = (document.get("status") or {}).get("provenance")
    signed = resigned(record, document, budget)
    found = read_standing(document, {"standing": signed, "budget": budget, "provenance": more})
    if found is None:
        return None
    template = rendered(owner, found.figures).deployment["spec"]["template"]
    return found if carries(live["spec"].get("template"), template) else None


def _spec_digest(spec: InferenceDeploymentSpec) -> str:
    """Digest what a verdict depends on; a field that a later release adds counts only where it is set."""
    written = judged_part(spec).model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return _digest(written)


def template_digest(template: Mapping[str, Any]) -> str:
    """Digest a pod template; as the API server stores it and as it was rendered are the same."""
    return _digest(_stored(template))


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


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
