"""Kubernetes' own types in a spec are those of the API server, which takes a pod with every field."""

import pytest

from controlplane.plane import ControlPlane
from generate.kubernetes_types import kubernetes_types
from kvgate.api.kubernetes_types import DATA

pytestmark = pytest.mark.cluster
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def test_the_types_are_those_of_the_api_server(plane: ControlPlane) -> None:
    """`PYTHONPATH=tools python -m generate.kubernetes_types` writes the file."""
    assert kubernetes_types(lambda path: plane.request("GET", path)) == DATA.read_text(encoding="utf-8")
