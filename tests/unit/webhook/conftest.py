"""An AdmissionReview as the API server sends it, and a Secret's folder on disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.certificates import write_certificates

Json = dict[str, Any]


def new_review(spec: Json | None = None, *, metadata: Json | None = None, request: Json | None = None) -> Json:
    """A review of a deployment that fits; `spec` replaces parts of its spec, `request` parts of the request."""
    whole = {
        "model": {"name": "Qwen/Qwen3-8B"},
        "accelerator": {"type": "H100-SXM-80GB"},
        "vllm": {"maxNumSeqs": 4},
        **(spec or {}),
    }
    document = {
        "apiVersion": "kvgate.io/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": {"name": "chat", "namespace": "serving", **(metadata or {})},
        "spec": whole,
    }
    asked = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "kvgate.io", "version": "v1alpha1", "kind": "InferenceDeployment"},
        "resource": {"group": "kvgate.io", "version": "v1alpha1", "resource": "inferencedeployments"},
        "operation": "CREATE",
        "namespace": "serving",
        "name": "chat",
        "object": document,
        "oldObject": None,
        "dryRun": False,
        **(request or {}),
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}


@pytest.fixture(name="new_review")
def _new_review() -> Callable[..., Json]:
    return new_review


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A folder with tls.crt, tls.key and the ca.crt that signed them."""
    folder = tmp_path / "secret"
    folder.mkdir()
    write_certificates(folder)
    return folder
