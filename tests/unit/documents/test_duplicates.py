"""Keys that are written twice are all told, and cost only the engines that they touch."""

from pathlib import Path

import pytest

from kvgate.documents.duplicates import touches
from kvgate.manifests import read_manifests
from kvgate.manifests.engines import EnginesFound, find_engines

VALUES = """\
servingEngineSpec:
  modelSpec:
  - name: a
    repository: vllm/vllm-openai
    tag: v0.11.0
    modelURL: Qwen/Qwen3-8B
    requestGPU: 1
    requestGPU: 2
    vllmConfig: {maxModelLen: 1024, maxModelLen: 2048}
  - name: b
    repository: vllm/vllm-openai
    tag: v0.11.0
    modelURL: Qwen/Qwen3-8B
    requestGPU: 1
"""
COMPOSE = """\
services:
  a: {image: "vllm/vllm-openai:v0.11.0", command: --model Qwen/Qwen3-8B, command: x}
  b: {image: "vllm/vllm-openai:v0.11.0", command: --model Qwen/Qwen3-8B}
  c: &c {image: "vllm/vllm-openai:v0.11.0", command: --model Qwen/Qwen3-8B}
  d: *c
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: a, name: b}
spec:
  containers:
  - {image: "vllm/vllm-openai:v0.11.0", args: [--model=Qwen/Qwen3-8B], args: [x]}
"""


def found(folder: Path, text: str) -> EnginesFound:
    (folder / "x.yaml").write_text(text)
    return find_engines(read_manifests([str(folder)]))


@pytest.mark.parametrize(
    ("text", "engines", "lines"),
    [
        (VALUES, ["b"], [8, 9]),
        (COMPOSE, ["b", "c", "d"], [2]),
        (COMPOSE.replace("  b:", "  a:"), ["c", "d"], [2, 3]),
        (VALUES + "servingEngineSpec: {}\n", [], [8, 9, 15]),
        (VALUES + "more: 1\nmore: 2\n", ["b"], [8, 9, 16]),
        (POD, [], [3, 6]),
        (f"{POD}---\n{POD.replace(', name: b', '').replace(', args: [x]', '')}", ["a"], [3, 6]),
    ],
)
def test_engines_beside_a_duplicate_are_found(tmp_path: Path, text: str, engines: list[str], lines: list[int]) -> None:
    result = found(tmp_path, text)
    assert [each.name for each in result.engines] == engines
    assert [each.position.line for each in result.broken] == lines
    assert all("is written twice" in each.finding.message for each in result.broken)


CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: c}
data:
  LENGTH: "40960"
  OTHER: text
  LENGTH: "2048"
---
"""


def test_in_a_configmap_that_speaks_of_no_engine_the_last_one_of_equal_keys_counts(tmp_path: Path) -> None:
    pod = POD.replace(", name: b", "").replace(", args: [x]}", ", envFrom: [{configMapRef: {name: c}}]}")
    result = found(tmp_path, CONFIG_MAP + pod.replace("[--model", "[--max-model-len=$(LENGTH), --model"))
    assert [each.arguments[0].text for each in result.engines] == ["--max-model-len=2048"]
    assert read_manifests([str(tmp_path)]).broken == []
    found(tmp_path, CONFIG_MAP.replace("text", "vllm"))
    assert [each.position.line for each in read_manifests([str(tmp_path)]).broken] == [7]


def test_a_loop_of_aliases_beside_a_duplicate_ends(tmp_path: Path) -> None:
    result = found(tmp_path, "vllm: &a {x: 1, x: 2, y: *a}\n")
    assert result.engines == []
    assert result.broken


@pytest.mark.parametrize(
    ("duplicate", "engine", "expected"),
    [
        ("a.b", "a.b[0]", True),
        ("a.b[0].c", "a.b[0]", True),
        ("a.b[0].c", "a.b[1]", False),
        ("a.b", "a.bc", False),
        ("a", "", True),
    ],
)
def test_a_duplicate_touches_what_is_above_and_below(duplicate: str, engine: str, expected: object) -> None:
    assert touches(duplicate, engine) is expected
