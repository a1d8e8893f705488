"""The Service in front of the engines."""

from kvgate.api.base import Document
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.rendering.labels import hashed, metadata, selector
from kvgate.rendering.pod import PORT


def service(owner: InferenceDeployment) -> Document:
    """`http://NAME.NAMESPACE:8000`; the port says TCP, or server-side apply would list it twice."""
    port = {"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}
    return hashed({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(owner),
        "spec": {"selector": selector(owner.name), "ports": [port]},
    })  # fmt: skip
