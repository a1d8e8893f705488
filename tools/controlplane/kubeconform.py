"""kubeconform without a network: its schemas come from what our own kube-apiserver serves, kvgate's kinds among them.

One file for each kind, named as TEMPLATE says, kept in the user's cache under the hash of all that they are made from.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from controlplane.build import cache_folder, exclusive, short_hash
from controlplane.plane import ControlPlane
from controlplane.programs import wait_until

CRDS = Path(__file__).resolve().parents[2] / "crds"
TEMPLATE = "{{.Group}}-{{.ResourceAPIVersion}}-{{.ResourceKind}}.json"
"""kubeconform calls the group of core kinds v1."""
REFERENCE = re.compile(r"^#/components/schemas/")

Schema = dict[str, Any]


def kubeconform(assets: Path) -> list[str]:
    """The command line, but for what it is to check: as strict as the API server, silent about kinds of other platforms."""
    return [str(assets / "kubeconform"), "-strict", "-ignore-missing-schemas", "-schema-location", _location(assets)]


def _location(assets: Path) -> str:
    """The first call on a machine starts an API server, for three seconds."""
    texts = [path.read_text(encoding="utf-8") for path in (*sorted(CRDS.iterdir()), Path(__file__))]
    folder = cache_folder() / f"schemas-{short_hash([str((assets / 'kube-apiserver').resolve()), *texts])}"
    if not folder.is_dir():
        with exclusive(cache_folder() / "schemas.lock"):
            if not folder.is_dir():
                _write(assets, folder)
    return f"{folder}/{TEMPLATE}"


def _write(assets: Path, folder: Path) -> None:
    """Write beside the final place, then rename: no reader ever meets half a set."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".schemas-") as name:
        fresh = Path(name) / "schemas"
        fresh.mkdir()
        with ControlPlane(assets, full=False) as plane:
            plane.kubectl("apply", "-f", str(CRDS))
            _wait_for_ours(plane)
            for group in plane.request("GET", "/openapi/v3")["paths"]:
                served = plane.request("GET", f"/openapi/v3/{group}")  # an address with a hash redirects after a change
                for file, schema in kinds(served.get("components", {}).get("schemas", {})):
                    (fresh / file).write_text(json.dumps(schema), encoding="utf-8")
        fresh.rename(folder)


def _wait_for_ours(plane: ControlPlane) -> None:
    """CRDs of one group come into its schemas one after the other."""
    crds = json.loads(plane.kubectl("get", "crds", "-o", "json").stdout)["items"]
    ours = {
        (f"/openapi/v3/apis/{spec['group']}/{version['name']}", spec["names"]["kind"])
        for spec in (crd["spec"] for crd in crds)
        for version in spec["versions"]
    }
    wait_until(lambda: all(_serves(plane, path, kind) for path, kind in ours), "/openapi/v3 has every kind of ours")


def _serves(plane: ControlPlane, path: str, kind: str) -> bool:
    served = (plane.find(path) or {}).get("components", {}).get("schemas", {})
    return any(file.endswith(f"-{kind.lower()}.json") for file, _ in kinds(served))


def kinds(served: Mapping[str, Schema]) -> Iterator[tuple[str, Schema]]:
    """File name and self-contained schema of each kind among the schemas of one group and version."""
    definitions = {name: closed(schema) for name, schema in served.items()}
    for name, schema in served.items():
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            file = f"{kind['group'] or kind['version']}-{kind['version']}-{kind['kind'].lower()}.json"
            used = {each: definitions[each] for each in _reachable(name, definitions)}
            yield file, {"allOf": [{"$ref": f"#/definitions/{name}"}], "definitions": used}


def closed(node: Any) -> Any:
    """Return the schema with unknown fields refused, as in the strict validation of the API server."""
    if isinstance(node, list):
        return [closed(each) for each in node]
    if not isinstance(node, dict):
        return node
    fresh = {key: closed(value) for key, value in node.items()}
    if isinstance(node.get("$ref"), str):
        fresh["$ref"] = REFERENCE.sub("#/definitions/", node["$ref"])
    if isinstance(node.get("properties"), dict) and not node.get("x-kubernetes-preserve-unknown-fields"):
        fresh.setdefault("additionalProperties", False)
    return fresh


def _reachable(name: str, definitions: Mapping[str, Schema]) -> set[str]:
    """This schema and all that it refers to."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += re.findall(r'"#/definitions/([^"]+)"', json.dumps(definitions[current]))
    return found
