"""GPUs that a container claims: how many, and which."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from kvgate.documents.written import Written
from kvgate.manifests.pods.gpu_requests import claimed_gpus

PRODUCT = "device.attributes['gpu.nvidia.com'].productName"


def request(name: str = "gpus", *, device_class: str = "gpu.nvidia.com", cel: str = "", **more: Any) -> dict[str, Any]:
    selectors = {"selectors": [{"cel": {"expression": cel}}]} if cel else {}
    return {"name": name, "exactly": {"deviceClassName": device_class, **selectors, **more}}


def claimed(
    *requests: Any, only: str = "", classes: Mapping[str, Written] = MappingProxyType({})
) -> tuple[int | None, list[str]]:
    pod = Written(value={"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]})
    claim = {"name": "gpu", **({"request": only} if only else {})}
    container = Written(value={"resources": {"claims": [claim]}})
    template = Written(value={"spec": {"spec": {"devices": {"requests": list(requests)}}}})
    claims = {("ResourceClaimTemplate", "t"): template}
    claims |= {("DeviceClass", name): found for name, found in classes.items()}
    number, hints = claimed_gpus(pod, container, lambda kind, name: claims.get((kind, name)))
    return number.count, [hint.value for hint in hints]


@pytest.mark.parametrize(
    ("requests", "only", "expected"),
    [
        ([request()], "", 1),
        ([request(count=4)], "", 4),
        ([request("a", count=2), request("b", count=3)], "", 5),
        ([request("a", count=2), request("b", count=3)], "b", 3),
        ([request(allocationMode="All")], "", None),
        ([request(), request("n", device_class="dra.net", count=2)], "", 1),
        ([request(device_class="dra.net")], "", None),
        ([{"name": "any", "firstAvailable": [{"deviceClassName": "gpu.nvidia.com"}]}], "", None),
        ([], "", None),
    ],
)
def test_gpus_are_those_of_the_requests(requests: list[Any], only: str, expected: int | None) -> None:
    assert claimed(*requests, only=only)[0] == expected


@pytest.mark.parametrize(
    ("cel", "expected"),
    [
        (f"{PRODUCT} == 'NVIDIA L4'", ["NVIDIA L4"]),
        (f'{PRODUCT} == "NVIDIA L4" || {PRODUCT} == "NVIDIA L40S"', ["NVIDIA L4", "NVIDIA L40S"]),
        (f"{PRODUCT} != 'NVIDIA L4'", []),
        (f"!({PRODUCT} == 'NVIDIA L4')", []),
        (f"{PRODUCT}.lowerAscii().matches('^.*a100.*$')", ["^.*a100.*$"]),
        (f"{PRODUCT}.contains('H100')", ["H100"]),
        ("device.attributes['gpu.nvidia.com'].profile == '1g.10gb'", ["nvidia.com/mig-1g.10gb"]),
    ],
)
def test_products_are_those_of_the_selectors(cel: str, expected: list[str]) -> None:
    assert claimed(request(cel=cel))[1] == ["nvidia.com/gpu", *expected]


def test_a_class_of_devices_in_the_same_input_names_its_driver_and_its_products() -> None:
    expression = f"device.driver == 'gpu.amd.com' && {PRODUCT} == 'AMD_Instinct_MI300X_OAM'"
    device_class = Written(value={"spec": {"selectors": [{"cel": {"expression": expression}}]}})
    assert claimed(request(device_class="large", count=2), classes={"large": device_class}) == (
        2,
        ["amd.com/gpu", "AMD_Instinct_MI300X_OAM"],
    )
    assert claimed(request(device_class="large")) == (None, [])
