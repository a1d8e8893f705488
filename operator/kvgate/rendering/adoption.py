"""A Deployment and a Service that become an object's own: orphans of an earlier object of its name, and what others made. Pure.

What others set in the pods and in the Service's selector becomes kvgate's before it is applied, so that one write leaves nothing of it that
is not rendered, and pods are replaced once or not at all.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from kvgate.api import ADOPT_ANNOTATION, API_VERSION, FIELD_MANAGER, KIND
from kvgate.api.base import Document
from kvgate.rendering.labels import OWNER_LABEL, controller_of, hashed
from kvgate.rendering.workload import Rendered

_TAKEN = {
    "Deployment": (("f:spec", "f:template", "f:spec"), ("f:spec", "f:paused")),
    "Service": (("f:spec", "f:selector"),),
}
"""Fields of which nothing stays that kvgate does not render, as steps of managedFields; all others are left to whoever set them."""


def wants_adoption(document: Mapping[str, Any]) -> bool:
    return (document["metadata"].get("annotations") or {}).get(ADOPT_ANNOTATION) == "true"


def controlled_by(child: Mapping[str, Any]) -> str:
    """Return kind and name of the other object that controls a child; empty where there is none."""
    controller = controller_of(child)
    return f"{controller.get('kind')} {controller.get('name')}" if controller is not None else ""


def is_of_others(child: Mapping[str, Any]) -> bool:
    """Return True where another one than kvgate set a part of a child's spec; who only scales it does not count."""
    entries = child["metadata"].get("managedFields") or ()
    return any(
        entry.get("manager") != FIELD_MANAGER
        and not entry.get("subresource")
        and "f:spec" in (entry.get("fieldsV1") or {})
        for entry in entries
    )


def taken_over(child: Mapping[str, Any], reference: Document) -> Document:
    """Return the metadata by which a child becomes the object's of this reference, if it is still as it was read."""
    metadata = child["metadata"]
    others = [
        owner
        for owner in metadata.get("ownerReferences") or ()
        if not owner.get("controller") and (owner.get("apiVersion"), owner.get("kind")) != (API_VERSION, KIND)
    ]
    return {
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
        "ownerReferences": [*others, reference],
        "managedFields": _managed(
            child["apiVersion"], _TAKEN.get(child["kind"], ()), metadata.get("managedFields") or ()
        ),
    }


def _managed(api_version: str, paths: Sequence[Sequence[str]], entries: Sequence[Mapping[str, Any]]) -> list[Document]:
    """Return managedFields in which kvgate alone owns what is below these paths."""
    ours: Document = {
        "manager": FIELD_MANAGER,
        "operation": "Apply",
        "apiVersion": api_version,
        "fieldsType": "FieldsV1",
    }
    fields: Document = {}
    others = []
    for entry in entries:
        key = entry.get("manager"), entry.get("operation"), entry.get("subresource")
        if key == (FIELD_MANAGER, "Apply", None):
            ours, fields = dict(entry), _merged(fields, entry.get("fieldsV1") or {})
        elif entry.get("subresource") or entry.get("apiVersion") != api_version:
            others.append(dict(entry))
        else:
            rest = entry.get("fieldsV1") or {}
            for path in paths:
                taken, rest = _split(rest, path)
                fields = _merged(fields, taken)
            others += [{**entry, "fieldsV1": rest}] if rest else []
    return [*others, {**ours, "fieldsV1": fields}] if fields else others


def _split(fields: Mapping[str, Any], path: Sequence[str]) -> tuple[Document, Document]:
    """Return the fields below a path, and the others."""
    first, *deeper = path
    if first not in fields:
        return {}, dict(fields)
    rest = {step: inside for step, inside in fields.items() if step != first}
    if not deeper:
        return {first: fields[first]}, rest
    taken, left = _split(fields[first], deeper)
    return ({first: taken} if taken else {}), ({**rest, first: left} if left else rest)


def _merged(fields: Mapping[str, Any], more: Mapping[str, Any]) -> Document:
    both = fields.keys() & more.keys()
    return {**fields, **more, **{step: _merged(fields[step], more[step]) for step in both}}


def with_selector_of(wanted: Rendered, live: Mapping[str, Any]) -> Rendered:
    """Return the manifests with the selector of the Deployment, which can never change, and the labels that its pods need for that."""
    deployment, selector = wanted.deployment, live.get("spec", {}).get("selector") or {}
    spec = deployment["spec"]
    if selector == spec["selector"]:
        return wanted
    keys = {*(selector.get("matchLabels") or ()), *(each["key"] for each in selector.get("matchExpressions") or ())}
    theirs = live["spec"].get("template", {}).get("metadata", {}).get("labels") or {}
    metadata = spec["template"]["metadata"]
    labels = metadata["labels"] | {key: theirs[key] for key in keys - {OWNER_LABEL} if key in theirs}
    template = {**spec["template"], "metadata": {**metadata, "labels": labels}}
    changed = hashed({**deployment, "spec": {**spec, "selector": selector, "template": template}})
    return replace(wanted, deployment=changed)
