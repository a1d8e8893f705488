"""docker-compose: GPUs that a service asks for, and files of variables that nobody reads."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.manifests import read_manifests
from kvgate.manifests.engine_found import FoundEngine
from kvgate.manifests.engines import find_engines


def engine(folder: Path, **service: Any) -> FoundEngine:
    services = {"a": {"image": "vllm/vllm-openai:v0.32.0", "command": ["--model=x"], **service}}
    (folder / "compose.yaml").write_text(yaml.safe_dump({"services": services}), encoding="utf-8")
    (found,) = find_engines(read_manifests([str(folder)])).engines
    return found


def reserved(*devices: Any) -> dict[str, Any]:
    return {"deploy": {"resources": {"reservations": {"devices": list(devices)}}}}


@pytest.mark.parametrize(
    ("service", "count"),
    [
        ({}, None),
        ({"gpus": "all"}, None),
        ({"gpus": 2}, 2),
        ({"gpus": [{"count": 2}]}, 2),
        ({"gpus": [{"count": "all"}]}, None),
        ({"gpus": [{"driver": "nvidia"}]}, None),
        ({"gpus": [{"count": "${N:-4}"}]}, 4),
        ({"gpus": [{"count": "${N}"}]}, None),
        ({"gpus": [{"device_ids": ["0", "3"]}]}, 2),
        ({"gpus": [{"device_ids": ["0"]}, {"device_ids": ["1", "2"]}]}, 3),
        ({"gpus": [{"count": 1}, {"count": "all"}]}, None),
        (reserved({"count": 1, "capabilities": ["gpu"]}, {"count": 1, "capabilities": ["gpu"]}), 2),
        (reserved({"count": 1, "capabilities": ["tpu"]}, {"count": 2, "capabilities": [["gpu", "utility"]]}), 2),
    ],
)
def test_gpus_are_those_of_all_requests(tmp_path: Path, service: dict[str, Any], count: int | None) -> None:
    assert engine(tmp_path, **service).num_gpus.count == count


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ({}, False),
        ({"ipc": "shareable"}, False),
        ({"volumes": ["cache:/root/.cache"]}, False),
        ({"ipc": "host"}, True),
        ({"shm_size": "8g"}, True),
        ({"volumes": ["/dev/shm:/dev/shm"]}, True),
        ({"volumes": [{"type": "tmpfs", "target": "/dev/shm"}]}, True),
        ({"tmpfs": "/dev/shm:size=8g"}, True),
    ],
)
def test_shared_memory_is_more_than_the_runtimes_where_something_says_so(
    tmp_path: Path, service: dict[str, Any], *, expected: bool
) -> None:
    assert engine(tmp_path, **service).has_shared_memory is expected


@pytest.mark.parametrize("files", [".env", ["a.env", "b.env"], [{"path": "a.env", "required": False}]])
def test_a_file_of_variables_is_told_where_one_is_not_known(tmp_path: Path, files: Any) -> None:
    given = engine(tmp_path, env_file=files, entrypoint=["sh", "-c"], command=["vllm serve $$MODEL"])
    assert [path for path, _ in given.remarks] == ["services.a.env_file"]
    assert engine(tmp_path, env_file=files).remarks == ()
