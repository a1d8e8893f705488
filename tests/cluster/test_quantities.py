"""Quantities on a real API server: what it takes and refuses, and what it makes of them, is what kvgate takes and makes."""

from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import ControlPlaneError
from kvgate.api.quantity import is_same_amount, parse_quantity
from kvgate.api.validation import InvalidDocument, parse_document
from support.inference import inference_deployment

pytestmark = pytest.mark.cluster

TABLE: tuple[object, ...] = (
    0, 1, 4, -1, -100, (1 << 63) - 1, "0", "4", "+4", "-4", "-0.5", "-1Gi", "1.", ".5", "0.5", "1.5", "500m", "0.1m", "1e3", "12E6", "1E",
    "1e-3", "1E+2", "1n", "1u", "100n", "0.0001", "1k", "1K", "1ki", "1Ki", "1.5Ki", "1M", "1Mi", "1mi", "1Gi", "1.5Gi", "2G", "1T", "1Ti",
    "1P", "1Pi", "1Ei", "9" * 22, "1e30", "", " 1", "1 ", "1\n", "lots", "1e", "1e1.5", "1.2.3", ".", "+", "Gi", "1GiB", "1,5", True,
    "\u0663", 1.5,
    "9223372036854775807", "9223372036854775808", "3.14159265358979", "0.000000000001", "1e-12", "-0",
)  # fmt: skip
NOT_TAKEN = (" 1", "1 ", ".", "+", "Gi", 1.5, "-0")
"""Kubernetes takes these too, as 1 and 0; kvgate wants a number without spaces around it, and its API has no floats."""
COLLECTION = "/apis/kvgate.io/v1alpha1/namespaces/default/inferencedeployments?dryRun=All&fieldValidation=Strict"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments?dryRun=All&fieldValidation=Strict"


def with_amount(resource: str, amount: object) -> dict[str, Any]:
    return inference_deployment("amount", template={"resources": {"requests": {resource: amount}}})


def pods_with(resource: str, amount: object) -> dict[str, Any]:
    """What Kubernetes itself takes for a container."""
    container = {"name": "a", "image": "a", "resources": {"requests": {resource: amount}}}
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": {"app": "a"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "amount"}, "spec": spec}


def answer(plane: ControlPlane, path: str, document: dict[str, Any]) -> dict[str, Any] | None:
    try:
        return plane.request("POST", path, document)
    except ControlPlaneError:
        return None


def is_readable(document: dict[str, Any]) -> bool:
    try:
        parse_document(document)
    except InvalidDocument:
        return False
    return True


@pytest.mark.parametrize("resource", ["cpu", "memory", "ephemeral-storage"])
def test_kubernetes_the_crd_and_the_command_line_take_the_same_quantities(plane: ControlPlane, resource: str) -> None:
    found = {}
    for amount in TABLE:
        pods = answer(plane, DEPLOYMENTS, pods_with(resource, amount))
        document = with_amount(resource, amount)
        found[repr(amount)] = (pods is not None, answer(plane, COLLECTION, document) is not None, is_readable(document))
        if pods is not None and found[repr(amount)][2]:
            stored = pods["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"][resource]
            assert is_same_amount(amount, stored), f"{amount!r} is stored as {stored}"
    differ = {amount: verdicts for amount, verdicts in found.items() if len(set(verdicts)) > 1}
    assert differ == {repr(amount): (True, False, False) for amount in NOT_TAKEN}, "(Kubernetes, CRD, kvgate) take it"


def test_the_api_server_refuses_a_negative_amount_in_its_own_words(plane: ControlPlane) -> None:
    with pytest.raises(
        ControlPlaneError, match=r"spec\.template\.resources\.requests\.memory.*greater than or equal to 0"
    ):
        plane.request("POST", COLLECTION, with_amount("memory", -1))


def test_every_text_of_a_quantity_is_bounded_before_it_is_computed() -> None:
    assert parse_quantity("1e" + "9" * 30) is not None
    assert parse_quantity("1e" + "9" * 31) is None
