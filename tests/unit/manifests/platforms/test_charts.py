"""Values of known charts inside something else, and names and values of `helm --set`."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.documents.written import Written
from kvgate.manifests import read_manifests
from kvgate.manifests.engines import EnginesFound, find_engines
from kvgate.manifests.platforms.charts import read_set, with_set
from kvgate.manifests.pods.engine_found import FoundEngine
from support.tables import table

STACK: dict[str, Any] = {
    "servingEngineSpec": {
        "modelSpec": [{"name": "qwen", "modelURL": "Qwen/Qwen3-8B", "repository": "vllm/vllm-openai"}]
    }
}
SERVICE: dict[str, Any] = {
    "modelArtifacts": {"name": "Qwen/Qwen3-8B", "uri": "hf://Qwen/Qwen3-8B"},
    "decode": {"containers": [{"image": "vllm/vllm-openai:v0.32.0", "modelCommand": "vllmServe"}]},
}


def found(folder: Path, *documents: Any) -> EnginesFound:
    (folder / "x.yaml").write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return find_engines(read_manifests([str(folder)]))


def paths(engines: list[FoundEngine]) -> list[str]:
    return [engine.path for engine in engines]


@pytest.mark.parametrize(
    ("values", "path"),
    [
        (STACK, "servingEngineSpec.modelSpec[0]"),
        ({"stack": STACK}, "stack.servingEngineSpec.modelSpec[0]"),
        ({"platform": {"stack": STACK}}, "platform.stack.servingEngineSpec.modelSpec[0]"),
        ({"platform": {"enabled": True, "stack": STACK}}, "platform.stack.servingEngineSpec.modelSpec[0]"),
        ({"kubeai": {"models": {"catalog": {"a": {"engine": "VLLM", "enabled": True}}}}}, "kubeai.models.catalog.a"),
    ],
)
def test_values_are_found_where_helm_hands_them_down(tmp_path: Path, values: Any, path: str) -> None:
    assert paths(found(tmp_path, values).engines) == [path]


@pytest.mark.parametrize(
    "values",
    [
        {"global": STACK},
        {"platform": {"global": STACK}},
        {"stack": {"enabled": False, **STACK}},
        {"platform": {"enabled": False, "stack": STACK}},
        {"service": {"enabled": False, **SERVICE}},
        {"service": {**SERVICE, "decode": {"create": False, **SERVICE["decode"]}}},
        {"app": {"enabled": False, "containers": [{"image": "vllm/vllm-openai:v0.32.0"}]}},
        {"_anchor": STACK},
        {".anchor": STACK},
        {"stacks": [STACK]},
        {"a": {"b": {"c": STACK}}},
        {"stack": {"servingEngineSpec": {"image": "vllm/vllm-openai"}}},
        {"own": {"modelSpec": [{"modelURL": "Qwen/Qwen3-8B", "repository": "vllm/vllm-openai"}]}},
        {"own": {"modelArtifacts": {"uri": "hf://Qwen/Qwen3-8B"}, "image": "vllm/vllm-openai"}},
        {"kind": "Site", "stack": STACK},
    ],
)
def test_what_no_known_chart_reads_is_told_and_not_judged(tmp_path: Path, values: Any) -> None:
    result = found(tmp_path, values)
    assert not result.engines
    assert len(result.not_understood) == 1


def test_containers_in_values_of_an_unknown_chart_are_still_read(tmp_path: Path) -> None:
    container = {"image": "vllm/vllm-openai:v0.32.0", "args": ["--model=Qwen/Qwen3-8B"]}
    result = found(tmp_path, {"app": {"containers": [container]}})
    assert paths(result.engines) == ["app.containers[0]"]


def test_containers_beside_a_known_chart_are_read_too_and_its_own_once(tmp_path: Path) -> None:
    container = {"image": "vllm/vllm-openai:v0.32.0", "args": ["--model=Qwen/Qwen3-8B"]}
    result = found(tmp_path, {"service": SERVICE, "app": {"containers": [container]}})
    assert paths(result.engines) == ["service.decode", "app.containers[0]"]


def test_values_of_a_known_chart_need_no_word_of_vllm(tmp_path: Path) -> None:
    result = found(tmp_path, {"servingEngineSpec": {"modelSpec": [{"name": "qwen", "modelURL": "Qwen/Qwen3-8B"}]}})
    assert paths(result.engines) == ["servingEngineSpec.modelSpec[0]"]


def test_values_of_kubeai_itself_are_nothing_that_is_not_understood(tmp_path: Path) -> None:
    values = {"resourceProfiles": {"l4": {}}, "modelServers": {"VLLM": {"images": {"default": "vllm/vllm-openai"}}}}
    assert found(tmp_path, {"kubeai": values}).num_others == 1


@table(
    ("name", "text", "expected"),
    [
        ("a", "x", {"a": "x"}),
        ("a.b.c", "1", {"a": {"b": {"c": 1}}}),
        ("a[1].b", "x", {"a": [None, {"b": "x"}]}),
        ("a[0][1]", "x", {"a": [[None, "x"]]}),
        (r"a.nvidia\.com/gpu\.product", "x", {"a": {"nvidia.com/gpu.product": "x"}}),
        ("a", "true", {"a": True}),
        ("a", "null", {"a": None}),
        ("a", "0.9", {"a": "0.9"}),
        ("a", "007", {"a": "007"}),
        ("a", "-7", {"a": -7}),
        ("a", "{x,1}", {"a": ["x", 1]}),
        ("a", "", {"a": ""}),
    ],
)
def test_one_value_is_set_as_helm_does(name: str, text: str, expected: Any) -> None:
    given = read_set(name, text, as_text=False)
    assert given
    assert with_set(Written(value=None), given)[0].value == expected


def test_what_stands_there_stays_or_gives_way() -> None:
    values = {"a": {"b": [1, {"c": 2}]}, "d": "text"}
    changes = {"a.b[1].c": {"a": {"b": [1, {"c": "5"}]}, "d": "text"}, "d.e": {"a": values["a"], "d": {"e": "5"}}}
    for name, expected in changes.items():
        given = read_set(name, "5", as_text=True)
        assert given
        found, path = with_set(Written(value=values, path="values"), given)
        assert (found.value, found.path, path) == (expected, "values", f"values.{name}")
    assert values == {"a": {"b": [1, {"c": 2}]}, "d": "text"}


@table("name", ["", ".", "a.", "a..b", "[0]", "a[x]", "a[-1]", "a[1", "a]", "a[99999]", "a[0]b"])
def test_other_names_are_none(name: str) -> None:
    assert read_set(name, "x", as_text=False) is None
