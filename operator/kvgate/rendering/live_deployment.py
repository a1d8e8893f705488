"""The running Deployment: how it and its Service differ from what was rendered, and the admission that it was rendered from. Pure.

Defaults of the API server, and fields that an admission webhook adds to kvgate's own writes, are no difference: nobody could undo them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from kvgate.api import FIELD_MANAGER
from kvgate.api.base import Document
from kvgate.api.quantity import is_same_amount, parse_quantity
from kvgate.rendering.admission import Admitted, Lost
from kvgate.rendering.labels import (
    PACED_ANNOTATION,
    RECORD_ANNOTATION,
    RECORD_DIGEST_ANNOTATION,
    REVISION_ANNOTATION,
    TEMPLATE_ANNOTATION,
    digest_of,
    hashed,
)
from kvgate.rendering.workload import Rendered
from kvgate.text.patterns import pattern

AMOUNTS = frozenset({"resources", "sizeLimit"})
"""Fields whose values are quantities or contain them."""
_RUNS = ("spec", "template", "spec")
"""The part of a Deployment that decides what a pod runs; anybody may add labels and annotations (`kubectl rollout restart`)."""


def differences(live: Any, wanted: Any, path: str = "", *, is_amount: bool = False) -> Iterator[str]:
    """Yield the paths of rendered fields that are missing or have another value; the API server drops empty strings."""
    if live == wanted:
        return
    if isinstance(wanted, dict):
        if not isinstance(live, dict):
            yield path
            return
        for key, value in wanted.items():
            inside = f"{path}.{key}" if path else str(key)
            yield from differences(live.get(key), value, inside, is_amount=is_amount or key in AMOUNTS)
    elif isinstance(wanted, list | tuple):
        if isinstance(live, list | tuple):
            yield from _item_differences(live, wanted, path, is_amount=is_amount)
        else:
            yield path
    elif not ((live is None and wanted == "") or (is_amount and is_same_amount(live, wanted))):
        yield path


_KEYS = ("mountPath", "name")
"""Keys of the items of lists. A volume may be mounted twice, at different paths."""


def _item_differences(live: Sequence[Any], wanted: Sequence[Any], path: str, *, is_amount: bool) -> Iterator[str]:
    """Compare items by their path or name where all have one (mounts; containers, env, volumes, ports), else by position."""
    items = (*live, *wanted)
    key = next((key for key in _KEYS if all(isinstance(item, dict) and key in item for item in items)), None)
    if key is not None:
        by_name = {item[key]: item for item in live}
        for item in wanted:
            name = item[key]
            yield from differences(by_name.get(name), item, f"{path}[{name}]", is_amount=is_amount)
    elif len(live) != len(wanted):
        yield path
    else:
        for index, pair in enumerate(zip(live, wanted, strict=True)):
            yield from differences(*pair, f"{path}[{index}]", is_amount=is_amount)


def additions(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the JSON pointers of what others added, if it changes what runs or who is served.

    In a Service these are keys of its selector. In a Deployment these are `paused`, and what other field managers set in the pods' spec.
    """
    if wanted["kind"] == "Service":
        more = set(live.get("spec", {}).get("selector") or {}) - set(wanted["spec"]["selector"])
        return tuple(f"/spec/selector/{_escaped(key)}" for key in sorted(more))
    paused = ("/spec/paused",) if live.get("spec", {}).get("paused") else ()
    pod = live.get("spec", {}).get("template", {}).get("spec", {})
    pointers = (_pointer(path, pod) for path in _added_fields(live))
    found = sorted({pointer for pointer in pointers if pointer is not None}, key=_from_the_end)
    return (*paused, *("/spec/template/spec" + pointer for pointer in found))


def _added_fields(live: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the fields of the pods' spec that others own and kvgate does not, as steps of managedFields."""
    entries = [
        entry for entry in live.get("metadata", {}).get("managedFields", ()) if entry.get("subresource") != "status"
    ]
    ours = [_of_pods(entry) for entry in entries if entry.get("manager") == FIELD_MANAGER]
    for entry in entries:
        if entry.get("manager") != FIELD_MANAGER:
            yield from _beyond(_of_pods(entry), ours)


def _of_pods(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    fields: Any = entry.get("fieldsV1") or {}
    for step in _RUNS:
        fields = fields.get(f"f:{step}") or {}
    return fields if isinstance(fields, Mapping) else {}


def _beyond(theirs: Mapping[str, Any], ours: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for step, inside in theirs.items():
        if step == ".":
            continue
        known = [fields[step] for fields in ours if step in fields]
        if not known:
            yield (step,)
        elif inside and all(known):  # otherwise one of ours owns the whole field
            yield from ((step, *deeper) for deeper in _beyond(inside, known))


_DEFAULTS: Mapping[str, Any] = {
    "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {}, "scheme": "HTTP",
    "successThreshold": 1, "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
}  # fmt: skip
"""Values that the API server gives to fields of a pod that nobody sets; who restores a backup owns them."""


def unrendered(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of what stands in a child that others made, changes what runs or who is served, and is not rendered."""
    steps = ("spec", "selector") if wanted["kind"] == "Service" else _RUNS
    for step in steps:
        live, wanted = live.get(step) or {}, wanted[step]
    yield from differences(wanted, _without_defaults(live), ".".join(steps))


def _without_defaults(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_defaults(inside) for name, inside in value.items() if not _is_default(name, value)}
    return [_without_defaults(item) for item in value] if isinstance(value, list) else value


def _is_default(name: str, inside: Mapping[str, Any]) -> bool:
    if name == "imagePullPolicy":
        last = str(inside.get("image", "")).rpartition("/")[2]
        return bool(
            inside[name] == ("Always" if last.endswith(":latest") or not {":", "@"} & {*last} else "IfNotPresent")
        )
    return name in _DEFAULTS and bool(inside[name] == _DEFAULTS[name])


def _pointer(steps: Sequence[str], node: Any) -> str | None:
    """Return the JSON pointer for steps of managedFields; None where the field is gone, is one value of a set, or has its default."""
    pointer = ""
    for step in steps:
        kind, _, name = step.partition(":")
        if kind == "f" and isinstance(node, Mapping) and name in node:
            if step is steps[-1] and _is_default(name, node):
                return None
            node, pointer = node[name], f"{pointer}/{_escaped(name)}"
        elif kind == "k" and isinstance(node, Sequence):
            key = json.loads(name)
            at = next((i for i, item in enumerate(node) if has_key(item, key)), None)
            if at is None:
                return None
            node, pointer = node[at], f"{pointer}/{at}"
        else:
            return None
    return pointer


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def has_key(item: Any, key: Mapping[str, Any]) -> bool:
    """Return True where managedFields name this item of a list by this key; a port's protocol has a default."""
    return isinstance(item, Mapping) and key.items() <= {"protocol": "TCP", **item}.items()


def _from_the_end(pointer: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key that puts later items of a list first, because a removal moves the items after it."""
    return tuple((-int(part), "") if part.isdigit() else (1, part) for part in pointer.split("/"))


_DIGEST = pattern("[0-9a-f]{64}")
_REVISION = pattern("[0-9]{1,15}")


def annotated(wanted: Rendered, admitted: Admitted, *, replaced_by: str = "") -> Rendered:
    """Return the manifests with the name and the digest of their record, and the digest of their pods, on the Deployment.

    `replaced_by` is the release that replaced the pods although nobody had edited the object, if one did.
    """
    deployment = wanted.deployment
    metadata = deployment["metadata"]
    annotations = {
        **metadata.get("annotations", {}),
        RECORD_ANNOTATION: admitted.name,
        RECORD_DIGEST_ANNOTATION: admitted.digest,
        REVISION_ANNOTATION: str(admitted.record.calibration_revision or 0),
        TEMPLATE_ANNOTATION: template_digest(deployment["spec"]["template"]),
        **({PACED_ANNOTATION: replaced_by} if replaced_by else {}),
    }
    noted = {**deployment, "metadata": {**metadata, "annotations": annotations}}
    return replace(wanted, deployment=hashed(noted))


def record_of(live: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return name and digest of the record that a Deployment was rendered from; empty where there is none."""
    annotations = _annotations(live)
    return annotations.get(RECORD_ANNOTATION, ""), annotations.get(RECORD_DIGEST_ANNOTATION, "")


def lost_record(live: Mapping[str, Any] | None) -> Lost | None:
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
    return replace(wanted, deployment=hashed(deployment))


def _own_template(live: Mapping[str, Any]) -> Document:
    """Return the fields of the pod template that kvgate owns by server-side apply."""
    template: Document = _own_fields(live).get("spec", {}).get("template") or {}
    return template


def _own_fields(live: Mapping[str, Any]) -> Document:
    """Return the fields that kvgate owns by server-side apply: what it applied last, as far as nobody changed it."""
    for entry in live.get("metadata", {}).get("managedFields") or ():
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource"):
            fields: Document = _owned(entry.get("fieldsV1") or {}, live) if entry.get("fieldsV1") else {}
            return fields
    return {}


def replaced_by(live: Mapping[str, Any] | None) -> str:
    return _annotations(live).get(PACED_ANNOTATION, "")


def applied(live: Mapping[str, Any]) -> Document:
    """Return a child as it was applied last, as far as nobody changed it."""
    own = _own_fields(live)
    names = {name: live["metadata"][name] for name in ("name", "namespace")}
    kind = {name: live[name] for name in ("apiVersion", "kind")}
    return {**kind, **own, "metadata": {**own.get("metadata", {}), **names}}


def held(wanted: Document, live: Mapping[str, Any]) -> Document:
    """Return the Deployment as it was applied last, with the replicas that are wanted now."""
    own = applied(live)
    return {**own, "spec": {**own.get("spec", {}), "replicas": wanted["spec"]["replicas"]}}


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
    if isinstance(value, dict):
        inner = {name: _stored(item, is_amount=is_amount or name in AMOUNTS) for name, item in value.items()}
        return {name: item for name, item in inner.items() if item not in ("", None)}
    if isinstance(value, list | tuple):
        return [_stored(item, is_amount=is_amount) for item in value]
    amount = parse_quantity(value) if is_amount else None
    return value if amount is None else str(-(-amount.numerator * 1000 // amount.denominator))
