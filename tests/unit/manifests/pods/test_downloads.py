"""The name of a model that an init container downloads to the folder that vLLM serves."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.manifests import read_manifests
from kvgate.manifests.engines import find_engines


def model_of(folder: Path, download: dict[str, Any], served: list[str]) -> str:
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.18.0", "args": served}
    pod = {"initContainers": [{"name": "download", "image": "python", **download}], "containers": [container]}
    (folder / "x.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "spec": pod}), encoding="utf-8")
    (engine,) = find_engines(read_manifests([str(folder)])).engines
    return engine.model.text


@pytest.mark.parametrize(
    "download",
    [
        {"args": ["--source", "hf://Qwen/Qwen3-8B", "--output-dir", "/models/a/"]},
        {"command": ["hf", "download", "Qwen/Qwen3-8B", "--local-dir=/models/a"]},
        {"command": ["sh", "-c", "pip install hf && huggingface-cli download $ID --local-dir $DIR"]},
        {
            "command": [
                "python",
                "-m",
                "aibrix.downloader",
                "--model-uri",
                "Qwen/Qwen3-8B",
                "--local-dir",
                "/models",
                "--model-name",
                "a",
            ]
        },
        {
            "command": [
                "python",
                "-c",
                "snapshot_download(repo_id='Qwen/Qwen3-8B', revision='main', local_dir='/models/a')",
            ]
        },
    ],
)
@pytest.mark.parametrize(
    "served", [["--model", "/models/a"], ["--model=/models/a"], ["/models/a", "--max-model-len", "8192"]]
)
def test_the_model_has_the_name_of_what_is_downloaded(
    tmp_path: Path, download: dict[str, Any], served: list[str]
) -> None:
    variables = [{"name": "ID", "value": "Qwen/Qwen3-8B"}, {"name": "DIR", "value": "/models/a"}]
    assert model_of(tmp_path, {**download, "env": variables}, served).removeprefix("hf://") == "Qwen/Qwen3-8B"


@pytest.mark.parametrize("source", ["--source", "--model-uri", "--repo-id", "--repo_id", "--model-id", "download"])
@pytest.mark.parametrize("folder", ["--output-dir", "--local-dir", "--local_dir", "--target-dir"])
@pytest.mark.parametrize(
    ("place", "name", "served", "expected"),
    [
        ("/models/a", "Qwen/Qwen3-8B", "/models/a", True),
        ("/models/", "Qwen/Qwen3-8B", "/models/Qwen3-8B", True),
        ("/models", "Qwen/Qwen3-8B", "/models/Qwen", False),
        ("models", "Qwen/Qwen3-8B", "/models", False),
        ("/models", "Qwen3-8B", "/models", False),
    ],
)
def test_folders_of_a_download_are_these(
    tmp_path: Path, source: str, folder: str, place: str, name: str, served: str, *, expected: bool
) -> None:
    found = model_of(tmp_path, {"command": ["x", source, name, f"{folder}={place}"]}, ["--model", served])
    assert found == (name if expected else "")


@pytest.mark.parametrize(
    "download",
    [
        {"args": ["--source", "hf://Qwen/Qwen3-8B", "--output-dir", "/models/b"]},
        {"args": ["--source", "s3://bucket/a", "--output-dir", "/models/a"]},
        {"args": ["--source", "--output-dir", "/models/a"]},
        {"args": ["--output-dir"]},
        {"command": "hf download Qwen/Qwen3-8B", "args": {"a": "b"}},
        {"command": ["hf", "download", "$OPEN", "--local-dir", "/models/a"]},
    ],
)
def test_anything_else_names_no_model(tmp_path: Path, download: dict[str, Any]) -> None:
    assert model_of(tmp_path, download, ["--model", "/models/a"]) == ""


def test_a_download_into_the_cache_names_no_model_that_the_command_names_itself(tmp_path: Path) -> None:
    download = {"command": ["hf", "download", "Qwen/Qwen3-8B", "--local-dir", "/root/.cache/huggingface"]}
    assert model_of(tmp_path, download, ["Qwen/Qwen3-0.6B"]) == ""
