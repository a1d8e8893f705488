"""operator/kvgate/api/data/kubernetes_types.json: the types of a pod spec that users write, from the OpenAPI of a real API server.

`PYTHONPATH=tools python -m generate.kubernetes_types`. It is not in generate/files.py, which needs no control plane. Names, types, enums
and required fields are the server's; a description is its first sentence. Types of which a part is left out are in the table KEPT.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from controlplane.build import find_assets
from controlplane.plane import ControlPlane
from kvgate.api.kubernetes_types import DATA

Read = Callable[[str], dict[str, Any]]
"""Path → the answer of the API server."""

ROOTS = (
    "Affinity",
    "Container",
    "EnvFromSource",
    "Lifecycle",
    "Toleration",
    "TopologySpreadConstraint",
    "Volume",
    "VolumeMount",
)
KEPT: dict[str, tuple[str, ...]] = {
    "Container": (
        "name", "image", "imagePullPolicy", "command", "args", "workingDir", "env", "envFrom", "ports", "resources", "volumeMounts",
        "restartPolicy", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle",
    ),
    "ObjectMeta": ("labels", "annotations"),
    "Volume": (
        "name", "configMap", "csi", "emptyDir", "ephemeral", "hostPath", "persistentVolumeClaim", "projected", "secret",
    ),
    "VolumeProjection": ("configMap", "downwardAPI", "secret", "serviceAccountToken"),
}  # fmt: skip
"""Types of which kvgate takes some fields only; the others are not in the CRD."""
SCALARS: dict[str, dict[str, Any]] = {
    "IntOrString": {"x-kubernetes-int-or-string": True},
    "Quantity": {"$ref": "Quantity"},
}
"""Types that a CRD writes otherwise than OpenAPI. A quantity is the one of the other fields of the API."""
MAX_DESCRIPTION = 120


def main() -> int:
    assets = find_assets()
    if not assets:
        print(f"{DATA.name} stays as it is: the control plane is missing, `make tools` builds it")
        return 0
    with ControlPlane(assets, full=False) as plane:
        DATA.write_text(kubernetes_types(lambda path: plane.request("GET", path)), encoding="utf-8")
    print(DATA)
    return 0


def kubernetes_types(read: Read) -> str:
    """Return the file: the release of the server, and each type that ROOTS need by its name."""
    schemas = read("/openapi/v3/api/v1")["components"]["schemas"]
    by_name = {name.rpartition(".")[2]: schema for name, schema in schemas.items()}
    found: dict[str, Any] = {}
    wanted = list(ROOTS)
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = _compact(by_name[name], KEPT.get(name))
            wanted += [each for each in _references(found[name]) if each not in SCALARS]
    version = read("/version")
    lines = [f"{json.dumps(name)}: {json.dumps(found[name], separators=(',', ':'))}" for name in sorted(found)]
    return f'{{"kubernetes": "{version["major"]}.{version["minor"]}", "types": {{\n' + ",\n".join(lines) + "\n}}\n"


def _compact(node: dict[str, Any], kept: tuple[str, ...] | None = None) -> dict[str, Any]:
    (inner,) = node.get("allOf") or [node]
    if reference := inner.get("$ref", "").rpartition(".")[2]:
        found: dict[str, Any] = dict(SCALARS.get(reference, {"$ref": reference}))
    else:
        found = {key: inner[key] for key in ("type", "required", "enum") if key in inner}
        names = inner.get("properties", {}) if kept is None else kept
        if names:
            found["properties"] = {name: _compact(inner["properties"][name]) for name in names}
        for keyword in ("items", "additionalProperties"):
            if keyword in inner:
                found[keyword] = _compact(inner[keyword])
        if inner.get("format") == "int-or-string":
            found = dict(SCALARS["IntOrString"])
    if text := _first_sentence(node.get("description", "")):
        found["description"] = text
    return found


def _first_sentence(text: str) -> str:
    first = re.split(r"(?<=[a-z0-9)`\"])(?<!e\.g)(?<!i\.e)\.(?:\s|$)|\n", " ".join(text.split(" ")), maxsplit=1)[
        0
    ].strip()
    return (
        first if len(first) <= MAX_DESCRIPTION else first[: MAX_DESCRIPTION - 1].rpartition(" ")[0].rstrip(",;:") + " …"
    )


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for child in node.values():
            yield from _references(child)


if __name__ == "__main__":
    sys.exit(main())
