"""GPUs that a container claims: how many, and which."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.pods.engine_found import SeenGpus
from kvgate.manifests.pods.gpu_requests import claim_of, claimed_gpus, devices_in, gpu_part_of, gpus_of, shown_by_cuda
from support.tables import table

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


@table(
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


@table(
    ("resources", "count", "path"),
    [
        *(({"limits": {name: 2}}, 2, f'limits["{name}"]') for name in (
            "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "volcano.sh/gpu-number", "volcano.sh/vgpu-number",
            "aliyun.com/gpu-count", "amd.com/gpu", "gpu.intel.com/xe", "gpu.intel.com/i915", "habana.ai/gaudi", "google.com/tpu",
            "aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "huawei.com/Ascend910", "huawei.com/ascend-1980",
            "cambricon.com/vmlu", "metax-tech.com/gpu", "enflame.com/gcu", "hygon.com/dcu", "mthreads.com/gpu", "kunlunxin.com/xpu",
            "qualcomm.com/qaic", "iluvatar.ai/gpu", "rebellions.ai/ATOM",
        )),
        ({"limits": {"memory": "1Gi", "nvidia.com/gpu": "4"}, "requests": {"nvidia.com/gpu": 1}}, 4, 'limits["nvidia.com/gpu"]'),
        ({"limits": {"memory": "1Gi"}, "requests": {"nvidia.com/gpu": 1}}, 1, 'requests["nvidia.com/gpu"]'),
        ({"limits": {"nvidia.com/gpumem": 1, "nvidia.com/gpucores": 1, "rdma/ib": 1, "cpu": 1}}, None, ""),
        ({}, None, ""),
    ],
)  # fmt: skip
def test_gpus_are_the_first_resource_of_accelerators(resources: Any, count: int | None, path: str) -> None:
    found, hint = gpus_of(Written(value=resources, path="r"))
    assert found.count == count
    assert found.path == (f"r.{path}" if path else "r")
    assert (hint and (hint.name, hint.path)) == (("resource", f"r.{path}") if path else None)
    assert hint is None or hint.value in path


GIB = 1 << 30


@table(
    ("side", "name", "amount", "part_bytes", "is_all"),
    [
        ("limits", "nvidia.com/gpumem", "10240", 10 * GIB, True),
        ("requests", "nvidia.com/gpumem", 10240, 10 * GIB, True),
        ("limits", "nvidia.com/gpumem-percentage", "25", 20 * GIB, True),
        ("limits", "nvidia.com/gpumem-percentage", "100", 80 * GIB, True),
        ("limits", "nvidia.com/gpumem-percentage", "101", None, None),
        ("limits", "volcano.sh/vgpu-memory", "10240", 10 * GIB, True),
        ("limits", "volcano.sh/vgpu-memory-percentage", "25", 20 * GIB, True),
        ("limits", "volcano.sh/gpu-memory", "10240", 10 * GIB, False),
        ("limits", "aliyun.com/gpu-mem", "10", 10 * GIB, False),
        ("annotations", "gpu-fraction", "0.25", 20 * GIB, False),
        ("annotations", "gpu-fraction", "1", 80 * GIB, False),
        ("annotations", "gpu-fraction", "1.5", None, None),
        ("annotations", "gpu-memory", "10240", 10 * GIB, False),
        ("annotations", "gpu-memory", "0", None, None),
        ("annotations", "gpu-memory", "-1", None, None),
        ("annotations", "gpu-memory", "1Gi", None, None),
        ("annotations", "gpu-memory", "16777216", 80 * GIB, False),
        ("annotations", "gpu-memory", "16777217", None, None),
        ("limits", "nvidia.com/gpu", "1", None, None),
    ],
)
def test_a_claim_is_a_part_of_the_memory(
    side: str,
    name: str,
    amount: Any,
    part_bytes: int | None,
    is_all: bool | None,  # noqa: FBT001
) -> None:
    written = Written(value={side: {name: amount}}, path="r")
    annotations = written.get("annotations") if side == "annotations" else NOTHING
    part = gpu_part_of(written, annotations)
    told = part and (part.of(80 * GIB), part.is_all_it_sees, part.path, part.claim)
    path = written.get(side, name).path
    assert told == (None if part_bytes is None else (part_bytes, is_all, path, f"{name}: {amount}"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", ("0",)),
        ("0, 12", ("0", "12")),
        ("GPU-ab/1,MIG-cd", ("GPU-ab/1", "MIG-cd")),
        ("", None),
        ("all", None),
        ("0,", None),
        ("-1", None),
    ],
)
def test_devices_are_known_where_all_of_them_are(text: str, expected: tuple[str, ...] | None) -> None:
    assert devices_in(text) == expected


@table(
    ("names", "shown", "expected"),
    [
        (("2", "3"), None, ("2", "3")),
        (("2", "3"), ("1",), ("3",)),
        (("2", "3"), ("1", "0"), ("3", "2")),
        (("2", "3"), ("GPU-a",), ("GPU-a",)),
        (("2", "3"), ("2",), "unknown"),
        (("2", "3"), (), "unknown"),
        (None, ("1",), ("1",)),
        (None, (), "unknown"),
        (None, None, None),
    ],
)
def test_cuda_counts_among_what_the_container_sees(names: Any, shown: Any, expected: Any) -> None:
    seen = SeenGpus(pool="p", names=names, place="the host", label="a")
    left = shown_by_cuda(seen, NOTHING if shown is None else Written(value=shown or None, path="v"))
    assert ("unknown" if left is None else left.names) == expected


@pytest.mark.parametrize(
    ("claims", "reference", "expected"),
    [
        ([{"name": "a"}], {"name": "a", "resourceClaimName": "x"}, ("ResourceClaim x", "a")),
        ([{"name": "a", "request": "r"}], {"name": "a", "resourceClaimName": "x"}, ("ResourceClaim x r", "a r")),
        ([{"name": "a"}], {"name": "a", "resourceClaimTemplateName": "x"}, ("", "a")),
        ([{"name": "a"}], {"name": "b", "resourceClaimName": "x"}, None),
        ([{"name": "a"}, {"name": "b"}], {"name": "a", "resourceClaimName": "x"}, None),
        ([{}], {"resourceClaimName": "x"}, None),
        ([], {"name": "a", "resourceClaimName": "x"}, None),
    ],
)
def test_one_claim_is_seen_by_its_names(claims: list[Any], reference: Any, expected: Any) -> None:
    pod, container = {"resourceClaims": [reference]}, {"resources": {"claims": claims}}
    assert claim_of(Written(value=pod), Written(value=container)) == expected


@pytest.mark.parametrize(
    ("driver", "resource"),
    [
        ("gpu.nvidia.com", "nvidia.com/gpu"),
        ("mig.nvidia.com", "nvidia.com/gpu"),
        ("gpu.amd.com", "amd.com/gpu"),
        ("gpu.intel.com", "gpu.intel.com/xe"),
    ],
)
def test_a_driver_is_of_a_vendor(driver: str, resource: str) -> None:
    assert claimed(request(device_class=driver)) == (1, [resource])


@pytest.mark.parametrize("reference", ["resourceClaimName", "resourceClaimTemplateName"])
def test_requests_stand_in_the_claim_or_its_template(reference: str) -> None:
    requests = {"devices": {"requests": [request(count=2)]}}
    kind, spec = {
        "resourceClaimName": ("ResourceClaim", requests),
        "resourceClaimTemplateName": ("ResourceClaimTemplate", {"spec": requests}),
    }[reference]
    pod = Written(value={"resourceClaims": [{"name": "gpu", reference: "t"}]})
    container = Written(value={"resources": {"claims": [{"name": "gpu"}]}}, path="c")
    asked: list[tuple[str, str]] = []

    def find(kind: str, name: str) -> Written | None:
        asked.append((kind, name))
        return Written(value={"spec": spec}) if kind.startswith("ResourceClaim") else None

    count, hints = claimed_gpus(pod, container, find)
    assert (count.count, count.path, asked[0]) == (2, "c.resources.claims", (kind, "t"))
    assert [hint.path for hint in hints] == ["c.resources.claims"]
