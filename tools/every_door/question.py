"""The questions, and how each is written for a door: as a manifest, as flags, as a request."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

QUESTIONS = Path(__file__).resolve().parents[2] / "tests" / "every_door" / "questions.yaml"
NAMESPACE = "default"
NEW_NAMESPACE = "asked"
"""There the webhook is asked: it admits an object that is stored already and does not change."""
FACTS = ("verdict", "decides", "starts", "holds", "confidence", "decision", "reason")


@dataclass(frozen=True, kw_only=True)
class Question:
    """One row of the questions file; its comments say what each field means."""

    id: str
    title: str
    promise: str
    expected: Mapping[str, str]
    spec: Mapping[str, Any] | None = None
    manifest: Mapping[str, Any] | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    cannot: Mapping[str, str] = field(default_factory=dict)

    def documents(self) -> list[dict[str, Any]]:
        """Return the manifests: the InferenceDeployment and the ConfigMap that it names, or the other kind of object."""
        if self.manifest is not None:
            return [_deployment(self.id, self.manifest)]
        metadata: dict[str, Any] = {"name": self.id}
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        owner = {
            "apiVersion": "kvgate.io/v1alpha1",
            "kind": "InferenceDeployment",
            "metadata": metadata,
            "spec": self.spec,
        }
        if self.config is None:
            return [owner]
        data = {"config.json": json.dumps(self.config)}
        return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self.id}, "data": data}, owner]

    def text(self) -> str:
        """Return the manifests as a file."""
        return yaml.dump_all(self.documents(), Dumper=_Plain, sort_keys=False, width=120)

    def options(self) -> dict[str, Any]:
        """Return the question in vLLM's words, `workload` as one mapping; `guarantee` only where the row states it."""
        if self.spec is None:
            return dict(self.flags)
        admission, accelerator = self.spec.get("admission", {}), self.spec["accelerator"]
        found = {"model": self.spec["model"]["name"], "gpu": accelerator["type"], **_snake(self.spec["vllm"])}
        found["vllm_version"] = found.pop("version")
        wider = {
            "shared_by": accelerator.get("sharedBy"),
            "capacity": admission.get("capacity"),
            "guarantee": admission.get("guarantee"),
            "workload": _snake(self.spec["workload"]) if "workload" in self.spec else None,
        }
        return found | {key: value for key, value in wider.items() if value is not None}

    def guarantee(self) -> str:
        """Return what is promised: `guarantee`, else Workload with a workload, else FullContext; auto promises the start."""
        options = self.options()
        implied = "Workload" if "workload" in options else "FullContext"
        return str(options.get("guarantee", "Startup" if options.get("max_model_len") == "auto" else implied))


def read_questions() -> list[Question]:
    """Return the rows in their order."""
    return [Question(**row) for row in yaml.safe_load(QUESTIONS.read_text(encoding="utf-8"))]


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """Return options as flags; a workload's fields are flags of their own."""
    flat = {**options, **options.get("workload", {})}
    flat.pop("workload", None)
    return [text for name, value in flat.items() for text in (f"--{name.replace('_', '-')}", str(value))]


class _Plain(yaml.SafeDumper):
    """Writes a value that stands in two places twice, and not as an alias."""

    def ignore_aliases(self, _: object) -> bool:
        return True


def _snake(values: Mapping[str, Any]) -> dict[str, Any]:
    return {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): value for name, value in values.items()}


def _deployment(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    resources = given.get("resources", {"limits": {"nvidia.com/gpu": 1}})
    container = {key: given[key] for key in ("image", "command", "args") if key in given}
    pod: dict[str, Any] = {"containers": [{"name": "engine", **container, "resources": resources}]}
    if given["gpu"]:
        pod["nodeSelector"] = {"nvidia.com/gpu.product": given["gpu"]}
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
