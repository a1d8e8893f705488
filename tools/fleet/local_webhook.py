"""The chart's own ValidatingWebhookConfiguration, pointed at a process on the loopback: Service routing needs a kube-proxy."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "charts" / "kvgate"


def webhook_configuration(assets: Path, *, ca_pem: str, port: int) -> dict[str, Any]:
    """Rendered by Helm with the chart's defaults; only clientConfig is replaced."""
    certificates = {"mode": "provided", "secretName": "unused", "caBundle": ca_pem}
    command = [assets / "helm", "template", "kvgate", CHART, "--values", "-"]
    values = yaml.safe_dump({"webhook": {"certs": certificates}})
    rendered = subprocess.run(command, input=values, check=True, capture_output=True, text=True)
    configuration: dict[str, Any] = next(
        document
        for document in yaml.safe_load_all(rendered.stdout)
        if document and document["kind"] == "ValidatingWebhookConfiguration"
    )
    authority = base64.b64encode(ca_pem.encode()).decode()
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}/validate", "caBundle": authority}
    return configuration
