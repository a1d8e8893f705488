"""JSON schemas of other projects' kinds, from the names and types in tests/chart/kinds.yaml, for kubeconform."""

import json
from pathlib import Path
from typing import Any

import yaml

FACTS = Path(__file__).resolve().parents[1] / "chart" / "kinds.yaml"
DURATION = r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$"
ACTIONS = [
    "replace",
    "keep",
    "drop",
    "hashmod",
    "labelmap",
    "labeldrop",
    "labelkeep",
    "lowercase",
    "uppercase",
    "keepequal",
    "dropequal",
]
WORDS: dict[str, Any] = {
    **{name: {"type": name} for name in ("string", "integer", "boolean")},
    "map": {"type": "object", "additionalProperties": {"type": "string"}},
    "any": {},
    "duration": {"type": "string", "minLength": 1, "pattern": DURATION},
    "action": {"enum": ACTIONS},
    "mode": {"enum": ["daemonset", "deployment", "sidecar", "statefulset"]},
}


def write_schemas(folder: Path) -> Path:
    """One file for each kind, named as kubeconform's template says; the folder."""
    facts = yaml.safe_load(FACTS.read_text(encoding="utf-8"))
    for kind, spec in facts["kinds"].items():
        group_version, _, name = kind.partition(" ")
        metadata = {"type": "object"}
        text = {"type": "string"}
        whole = {
            "type": "object", "additionalProperties": False, "required": ["apiVersion", "kind", "metadata", "spec"],
            "properties": {"apiVersion": text, "kind": text, "metadata": metadata, "spec": _schema(spec, facts["shared"])},
        }  # fmt: skip
        file = f"{group_version.replace('/', '-')}-{name.lower()}.json"
        (folder / file).write_text(json.dumps(whole), encoding="utf-8")
    return folder


def _schema(fact: Any, shared: dict[str, Any]) -> dict[str, Any]:
    if isinstance(fact, list):
        return {"type": "array", "items": _schema(fact[0], shared)}
    if isinstance(fact, dict):
        properties = {name.removesuffix("!"): _schema(each, shared) for name, each in fact.items()}
        required = [name.removesuffix("!") for name in fact if name.endswith("!")]
        needed = {"required": required} if required else {}  # kubeconform's draft wants at least one
        return {"type": "object", "additionalProperties": False, "properties": properties, **needed}
    return _schema(shared[fact], shared) if fact in shared else WORDS[fact]
