"""The chart's own ValidatingWebhookConfiguration, pointed at a process on the loopback: Service routing needs a kube-proxy."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import yaml

INSTALL = Path(__file__).resolve().parents[2] / "deploy" / "install.yaml"


def webhook_configuration(*, ca_pem: str, port: int) -> dict[str, Any]:
    """Return the one that Helm renders with the chart's defaults; only clientConfig is replaced."""
    documents = INSTALL.read_text(encoding="utf-8").split("\n---\n")
    (text,) = (document for document in documents if "\nkind: ValidatingWebhookConfiguration\n" in document)
    configuration: dict[str, Any] = yaml.safe_load(text)
    authority = base64.b64encode(ca_pem.encode()).decode()
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}/validate", "caBundle": authority}
    return configuration
