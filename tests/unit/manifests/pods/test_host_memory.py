"""Memory of the host as manifests write it: limits, /dev/shm, and variables about offloaded caches."""

from typing import Any

import pytest

from kvgate.documents.written import Written
from kvgate.manifests.pods.host_memory import HostRoom, room_of, room_of_service, shared_mount
from support.tables import table

GIB = 1 << 30


def of_pod(
    container: dict[str, Any], files: dict[str, str] | None = None, variables: dict[str, str] | None = None, **pod: Any
) -> HostRoom:
    values = {name: Written(value=value) for name, value in (variables or {}).items()}
    return room_of(Written(value=pod), Written(value=container), values, (files or {}).get)


@table(
    ("memory", "expected"),
    [
        ("16Gi", 16 * GIB), ("16G", 16 * 10**9), ("1.5Gi", 1_610_612_736), ("1024", 1024), (2048, 2048), ("16e9", 16 * 10**9),
        ("0", None), (0, None), ("", None), ("lots", None), ("-5Gi", None), ("16 GiB", None), ("${MEMORY}", None), (None, None),
        ([], None), ("9" * 400, None),
    ],
)  # fmt: skip
def test_a_limit_is_a_quantity_and_anything_else_is_none(memory: Any, expected: int | None) -> None:
    assert of_pod({"resources": {"limits": {"memory": memory}}}).limit_bytes == expected


def test_the_pods_own_limit_counts_where_the_container_has_none() -> None:
    own = {"resources": {"limits": {"memory": "8Gi"}}}
    assert of_pod({}, **own).limit_bytes == 8 * GIB
    assert of_pod({"resources": {"limits": {"memory": "4Gi"}}}, **own).limit_bytes == 4 * GIB
    assert of_pod({"resources": {"requests": {"memory": "4Gi"}}}).limit_bytes is None


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ({"emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}, 2 * GIB),
        ({"emptyDir": {"medium": "Memory"}}, None),
        ({"emptyDir": {"sizeLimit": "2Gi"}}, None),
        ({"hostPath": {"path": "/dev/shm"}}, None),
    ],
)
def test_only_a_volume_in_memory_with_a_limit_has_a_size(volume: dict[str, Any], expected: int | None) -> None:
    mounts = {"volumeMounts": [{"name": "cache", "mountPath": "/cache"}, {"name": "s", "mountPath": "/dev/shm/"}]}
    assert of_pod(mounts, volumes=[{"name": "s", **volume}]).shm_bytes == expected


def test_with_all_of_dev_the_container_has_the_shared_memory_of_the_host() -> None:
    mounts = {"volumeMounts": [{"name": "dev", "mountPath": "/dev"}]}
    assert shared_mount(Written(value=mounts)).get("name").text == "dev"
    assert of_pod(mounts, volumes=[{"name": "dev", "hostPath": {"path": "/dev"}}]).shm_bytes is None
    mounts["volumeMounts"].append({"name": "own", "mountPath": "/dev/shm"})
    assert shared_mount(Written(value=mounts)).get("name").text == "own"


@table(
    ("size", "expected"),
    [
        ("1gb", GIB), ("1g", GIB), ("1GiB", GIB), ("64m", 64 << 20), ("1.5g", 3 * GIB // 2), (67108864, 64 << 20), ("16 gb", 16 * GIB),
        ("", None), ("0", None), ("much", None), ("-1g", None), ("1x", None),
    ],
)  # fmt: skip
def test_docker_has_units_of_its_own(size: Any, expected: int | None) -> None:
    room = room_of_service(Written(value={"shm_size": size, "mem_limit": size}), {}, {}.get)
    assert (room.shm_bytes, room.limit_bytes) == (expected, expected)


def test_a_service_with_the_hosts_shared_memory_has_no_size_of_its_own() -> None:
    service = {
        "shm_size": "1g",
        "ipc": "host",
        "deploy": {"resources": {"limits": {"memory": "2g"}}},
        "mem_limit": "9g",
    }
    room = room_of_service(Written(value=service), {}, {}.get)
    assert (room.shm_bytes, room.limit_bytes) == (None, 2 * GIB)


@pytest.mark.parametrize(
    "mount",
    [
        {"volumes": ["/dev/shm:/dev/shm"]},
        {"volumes": [{"type": "tmpfs", "target": "/dev/shm"}]},
        {"tmpfs": "/dev/shm:size=8g"},
    ],
)
def test_what_is_mounted_over_the_shared_memory_of_a_service_wins_over_its_size(mount: dict[str, Any]) -> None:
    assert room_of_service(Written(value={"shm_size": "64m", **mount}), {}, {}.get).shm_bytes is None


@table(
    ("variables", "expected"),
    [
        ({"LMCACHE_MAX_LOCAL_CPU_SIZE": "20"}, "20"),
        ({"LMCACHE_MAX_LOCAL_CPU_SIZE": "20.5"}, "20.5"),
        ({"LMCACHE_MAX_LOCAL_CPU_SIZE": "a lot"}, None),
        ({"LMCACHE_MAX_LOCAL_CPU_SIZE": "-1"}, None),
        ({"LMCACHE_CONFIG_FILE": "/lmcache.yaml", "LMCACHE_MAX_LOCAL_CPU_SIZE": "5"}, "60"),
        ({"LMCACHE_CONFIG_FILE": "/elsewhere.yaml"}, None),
        ({"LMCACHE_CONFIG_FILE": "/broken.yaml"}, None),
        ({}, None),
    ],
)
def test_lmcache_says_its_size_in_a_variable_or_a_file(variables: dict[str, str], expected: str | None) -> None:
    files = {
        "/lmcache.yaml": "local_cpu: true\nmax_local_cpu_size: 60\n",
        "/broken.yaml": "a: [",
        "/big.yaml": "x" * 99_999,
    }
    assert of_pod({}, files, variables).values.get("lmcache_max_local_cpu_size") == expected
