"""docker-compose: GPUs that a service asks for, and its variables."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.manifests import read_manifests
from kvgate.manifests.engines import find_engines
from kvgate.manifests.pods.engine_found import FoundEngine


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
        ({"gpus": [{"device_ids": ["0,1,2,3"]}]}, 4),
        ({"gpus": [{"device_ids": ["${IDS}"]}]}, None),
        ({"gpus": [{"device_ids": ["${IDS:-0,1}"]}]}, 2),
        ({"gpus": [{"device_ids": ["all"]}]}, None),
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


@pytest.mark.parametrize(
    ("files", "paths"),
    [
        ("no.env", ["env_file"]),
        ("\0", ["env_file"]),
        ("circle", ["env_file"]),
        ("binary.env", ["env_file"]),
        (["a.env", "../b.env"], ["env_file[0]", "env_file[1]"]),
        ([{"path": "a.env", "required": False}], ["env_file[0]"]),
    ],
)
def test_a_file_of_variables_that_is_not_here_is_told_where_one_is_not_known(
    tmp_path: Path, files: Any, paths: list[str]
) -> None:
    (tmp_path / "compose").mkdir()
    (tmp_path / "b.env").write_text("MODEL=secret\n", encoding="utf-8")
    (tmp_path / "compose/binary.env").write_bytes(b"MODEL=\xff\n")
    (tmp_path / "compose/circle").symlink_to(tmp_path / "compose/circle")
    given = engine(tmp_path / "compose", env_file=files, entrypoint=["sh", "-c"], command=["vllm serve $$MODEL"])
    assert [path for path, _ in given.remarks] == [f"services.a.{path}" for path in paths]
    assert engine(tmp_path / "compose", env_file=files).remarks == ()


ENV = """# a comment
export SIZE=8B
MODEL="Qwen/Qwen3-${SIZE}"   # quoted
EMPTY=
this is no assignment
"""


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("$MODEL", "Qwen/Qwen3-8B"),
        ("${MODEL}", "Qwen/Qwen3-8B"),
        ("$$MODEL", "$MODEL"),
        ("${MODEL:-other}", "Qwen/Qwen3-8B"),
        ("${MODEL:?is needed}", "Qwen/Qwen3-8B"),
        ("a${EMPTY}b", "ab"),
        ("a${EMPTY-c}b", "ab"),
        ("a${EMPTY:-c}b", "acb"),
        ("${OTHER:-${MODEL}}", "Qwen/Qwen3-8B"),
        ("${MODEL:+of ${MODEL}}", "of Qwen/Qwen3-8B"),
        ("a${SIZE:+c}b", "acb"),
        ("a${EMPTY:+c}b", "ab"),
        ("a${EMPTY+c}b", "acb"),
        ("${NOBODY}", "${NOBODY}"),
        ("${NOBODY-c}", "c"),
        ("${NOBODY:+c}", "${NOBODY:+c}"),
    ],
)
def test_variables_are_those_of_the_file_beside_it(tmp_path: Path, written: str, expected: str) -> None:
    (tmp_path / ".env").write_text(ENV, encoding="utf-8")
    assert engine(tmp_path, command=[written]).arguments[0].text == expected


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("--model x --api-key ${KEY:-} --seed 1", ["--model", "x", "--api-key", "${KEY}", "--seed", "1"]),
        (["--model", "x", "--max-model-len", "${LENGTH:-}"], ["--model", "x", "--max-model-len", "${LENGTH}"]),
        ("--model x --enforce-eager ${MORE:-}", ["--model", "x", "--enforce-eager"]),
    ],
)
def test_an_empty_default_of_an_options_value_is_not_known_here(tmp_path: Path, command: Any, words: list[str]) -> None:
    assert [word.text for word in engine(tmp_path, command=command).arguments] == words


def test_what_env_files_set_reaches_the_container(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("IMAGE=vllm/vllm-openai:v0.32.0\nLENGTH=4096\n", encoding="utf-8")
    (tmp_path / "a.env").write_text("MODEL=a\nLENGTH=${LENGTH}\nSEED=1\nTWICE=${SEED}${SEED}", encoding="utf-8")
    (tmp_path / "b.env").write_text("MODEL='b'\n", encoding="utf-8")
    given = engine(
        tmp_path,
        image="$IMAGE",
        env_file=["a.env", {"path": "b.env"}],
        environment=["SEED=2"],
        entrypoint=["sh", "-c"],
        command=["vllm serve $$MODEL --max-model-len=$$LENGTH --seed=$$SEED --max-num-seqs=$$TWICE"],
    )
    texts = [word.text for word in given.arguments]
    assert texts == ["b", "--max-model-len=4096", "--seed=2", "--max-num-seqs=11"]
    assert (given.image.text, given.remarks) == ("vllm/vllm-openai:v0.32.0", ())
    assert [note for note in given.assumed if ".env" in note]


def test_cuda_shows_some_of_all_gpus(tmp_path: Path) -> None:
    given = engine(tmp_path, gpus="all", environment={"CUDA_VISIBLE_DEVICES": "0,2"})
    assert (given.num_gpus.count, given.visible_gpus.count) == (None, 2)


def test_variables_that_double_each_other_stay_small(tmp_path: Path) -> None:
    lines = ["A0=aaaaaaaa", *(f"A{i}=$A{i - 1}$A{i - 1}" for i in range(1, 60))]
    (tmp_path / ".env").write_text("\n".join(lines), encoding="utf-8")
    given = engine(tmp_path, command=["--model=$A59"] * 3)
    assert sum(len(word.text) for word in given.arguments) < 5 << 20


def test_tags_of_a_file_that_stands_over_others_are_read(tmp_path: Path) -> None:
    text = """\
services:
  a:
    image: !override vllm/vllm-openai:v0.32.0
    command: !override [--model, x]
    deploy: !override {resources: {reservations: {devices: [{count: 2, capabilities: [gpu]}]}}}
    entrypoint: !reset null
    ports: !reset []
"""
    (tmp_path / "compose.override.yaml").write_text(text, encoding="utf-8")
    (found,) = find_engines(read_manifests([str(tmp_path)])).engines
    assert [word.text for word in found.arguments] == ["--model", "x"]
    assert (found.image.text, found.num_gpus.count) == ("vllm/vllm-openai:v0.32.0", 2)


@pytest.mark.parametrize(
    ("name", "service", "expected"),
    [
        ("vllm", {"command": "--model=x"}, True),
        ("vllm", {"command": ["--model=x"]}, True),
        ("vllm", {"command": "uvicorn app:app"}, False),
        ("vllm", {}, False),
        ("vllm-router", {"command": "--model=x"}, False),
        ("app", {"command": "--model=x"}, False),
        ("vllm", {"command": "--model=x", "image": "our/app:1"}, False),
    ],
)
def test_an_image_that_is_built_here_is_called_as_its_service(
    tmp_path: Path,
    name: str,
    service: dict[str, Any],
    expected: bool,  # noqa: FBT001
) -> None:
    services = {name: {"build": ".", **service}}
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump({"services": services}), encoding="utf-8")
    found = find_engines(read_manifests([str(tmp_path)])).engines
    assert [(each.is_partial, bool(each.remarks)) for each in found] == ([(True, True)] if expected else [])


@pytest.mark.parametrize(
    "volume", ["./serve.sh:/usr/local/bin/serve:ro", {"type": "bind", "source": "./", "target": "/usr/local/bin"}]
)
def test_a_script_beside_the_file_that_a_service_mounts_is_read(tmp_path: Path, volume: Any) -> None:
    script = (
        '#!/bin/sh\nargs=(--model "${VLLM_MODEL:?}" --max-model-len "${LENGTH:-4096}")\nexec vllm serve "${args[@]}"\n'
    )
    name = "serve.sh" if isinstance(volume, str) else "serve"
    (tmp_path / name).write_text(script, encoding="utf-8")
    found = engine(
        tmp_path, entrypoint=["/usr/local/bin/serve"], command=[], volumes=[volume], environment=["VLLM_MODEL=a/b"]
    )
    assert [word.text for word in found.arguments] == ["--model", "a/b", "--max-model-len", "4096"]


def test_a_script_elsewhere_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text("exec vllm serve a/b\n", encoding="utf-8")
    (tmp_path / "below").mkdir()
    found = engine(tmp_path / "below", entrypoint=["/serve.sh"], command=[], volumes=["../serve.sh:/serve.sh"], gpus=1)
    assert [word.text for word in found.arguments] == ["`/serve.sh`"]


@pytest.mark.parametrize(
    "gpus",
    [
        {"gpus": "all"},
        {"runtime": "nvidia"},
        {"devices": ["nvidia.com/gpu=all"]},
        {"devices": ["/dev/kfd", "/dev/dri"]},
        reserved({"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}),
    ],
)
def test_an_image_of_vllm_with_gpus_is_an_engine_whatever_starts_it(tmp_path: Path, gpus: dict[str, Any]) -> None:
    assert engine(tmp_path, entrypoint=["/start.sh"], command=None, **gpus).name == "a"
    (tmp_path / "compose.yaml").write_text(
        yaml.safe_dump({"services": {"a": {"image": "vllm/vllm-openai:v0.32.0", "entrypoint": ["/start.sh"]}}}),
        encoding="utf-8",
    )
    assert not find_engines(read_manifests([str(tmp_path)])).engines
