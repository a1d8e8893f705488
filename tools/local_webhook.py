"""The chart's own ValidatingWebhookConfiguration, pointed at a process on the loopback: Service routing needs a kube-proxy."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parent.parent / "charts" / "kvgate"


def webhook_configuration(assets: Path, *, ca_pem: str, port: int) -> dict[str, Any]:
    """Rendered by Helm with the chart's defaults; only clientConfig is replaced."""
    authority = base64.b64encode(ca_pem.encode()).decode()
    values = ["webhook.certs.mode=provided", "webhook.certs.secretName=unused", f"webhook.certs.caBundle={authority}"]
    options = [part for value in values for part in ("--set", value)]
    rendered = subprocess.run(
        [assets / "helm", "template", "kvgate", CHART, *options], check=True, capture_output=True, text=True
    )
    documents = yaml.safe_load_all(rendered.stdout)
    configuration = next(d for d in documents if d and d["kind"] == "ValidatingWebhookConfiguration")
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}/validate", "caBundle": authority}
    result: dict[str, Any] = configuration
    return result
