"""The chart as Helm renders it."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "kvgate"
NAMESPACE = "kvgate-system"


class HelmError(Exception):
    """What Helm said when it refused."""


def helm(binary: Path, *arguments: str | Path) -> str:
    """What Helm prints; a failure is an error with its words."""
    environment = {**os.environ, "GOGC": "off"}  # it ends before a search for garbage pays
    result = subprocess.run(
        [binary, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=90
    )
    if result.returncode:
        raise HelmError(result.stderr + result.stdout)
    return result.stdout


def render(binary: Path, *options: str | Path) -> str:
    """The manifests of a release called kvgate."""
    return helm(binary, "template", "kvgate", CHART, "--namespace", NAMESPACE, *options)


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def one(found: Sequence[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The only document of this kind and name."""
    (document,) = (each for each in found if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return document
