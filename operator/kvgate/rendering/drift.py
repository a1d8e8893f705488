"""Who changed a child of an InferenceDeployment, when, and what to do instead. Pure.

The API server notes in managedFields which program set a field last. What somebody took away has no owner any more, so nobody is named.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from kvgate.api import FIELD_MANAGER
from kvgate.api.conditions import Reason
from kvgate.rendering.labels import HASH_ANNOTATION

LASTS_SECONDS = 3600
"""Time for which a change that kvgate took back is reported."""
_AUTOSCALER = "kube-controller-manager"
"""Program that scales for every HorizontalPodAutoscaler, those of KEDA included."""
_REMEDIES = {
    Reason.SCALED_BY_AUTOSCALER: "let the HorizontalPodAutoscaler (or KEDA's ScaledObject) scale InferenceDeployment {name} in its place",
    Reason.SCALED_BY_KEDA: "let the scaleTargetRef of KEDA's ScaledObject name InferenceDeployment {name}",
    Reason.SCALED_BY_HAND: "scale InferenceDeployment {name} in its place",
    Reason.TEMPLATE_CHANGED: "change the spec of InferenceDeployment {name} in its place",
    Reason.CHILD_CHANGED: "change the InferenceDeployment {name} in its place",
}


class Drift(Struct, frozen=True, kw_only=True):
    reason: Reason
    who: str
    """Completes `changed by …`: programs with their times; empty where nobody is named."""
    message: str
    """A sentence, up to what kvgate does about it."""
    remedy: str


def drift_of(
    live: Mapping[str, Any], wanted: Mapping[str, Any], differs: Sequence[str], added: Sequence[str]
) -> Drift | None:
    """Return what somebody changed in a child that was rendered as it is wanted now; None where kvgate wants something else by now."""
    if _hash(live) != _hash(wanted):
        return None
    ends = tuple(f"/{path.rpartition('.')[2]}" for path in differs)  # a changed field is somebody else's too
    paths = (*differs, *(each[1:].replace("/", ".") for each in added if not each.endswith(ends)))
    authors = {path: author for path in paths if (author := _author(live, path)) is not None}
    reason = _reason(paths, authors)
    who = ", ".join(dict.fromkeys(map(_described, authors.values())))
    name = wanted["metadata"]["name"]
    is_nameless = "spec.replicas" in paths and "spec.replicas" not in authors and not live["spec"].get("replicas")
    by = f" by {who}" if who else ", and the API server does not note who scales to 0: KEDA does" if is_nameless else ""
    message = f"{wanted['kind']} {name}: {', '.join(paths)} changed{by}"
    return Drift(reason=reason, who=who, message=message, remedy=_REMEDIES[reason].format(name=name))


def _hash(child: Mapping[str, Any]) -> object:
    return (child["metadata"].get("annotations") or {}).get(HASH_ANNOTATION)


def _reason(paths: Sequence[str], authors: Mapping[str, Mapping[str, Any]]) -> Reason:
    if any(path.startswith("spec.template") for path in paths):
        return Reason.TEMPLATE_CHANGED
    if "spec.replicas" not in paths:
        return Reason.CHILD_CHANGED
    author = authors.get("spec.replicas", {})
    if str(author.get("manager", "")).startswith("keda"):
        return Reason.SCALED_BY_KEDA
    is_autoscaler = (author.get("manager"), author.get("subresource")) == (_AUTOSCALER, "scale")
    return Reason.SCALED_BY_AUTOSCALER if is_autoscaler else Reason.SCALED_BY_HAND


def _described(entry: Mapping[str, Any]) -> str:
    """Name a program and its time; the API server notes no time of a write to /scale."""
    through = f" ({entry['subresource']})" if entry.get("subresource") else ""
    at = f" at {entry['time']}" if entry.get("time") else ""
    return f"{entry.get('manager')}{through}{at}"


def _author(live: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """Return the entry of managedFields of another program that set a field last."""
    entries: Sequence[Mapping[str, Any]] = live["metadata"].get("managedFields") or ()
    found = [
        entry
        for entry in entries
        if entry.get("manager") != FIELD_MANAGER
        and entry.get("subresource") != "status"
        and _meets(entry.get("fieldsV1") or {}, path)
    ]
    return max(found, key=lambda entry: str(entry.get("time", "")), default=None)


def _meets(fields: Mapping[str, Any], path: str) -> bool:
    """Return True where managedFields have the field at a path, one above it or one below it; names may have dots in them."""
    if not path or not fields:
        return True
    for step, inside in fields.items():
        kind, _, name = step.partition(":")
        if kind == "k":  # an item of a list, which a JSON pointer has by its number
            name = path.partition(".")[0] if path[0].isdigit() else f"[{json.loads(name).get('name', '')}]"
        is_on_path = path == name or path.startswith((f"{name}.", f"{name}["))
        if kind in ("f", "k") and is_on_path and _meets(inside, path[len(name) :].removeprefix(".")):
            return True
    return False
