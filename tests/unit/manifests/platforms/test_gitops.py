"""What a HelmRelease or an Application hands to its chart: what wins, and what may change it from elsewhere."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.findings.finding import Severity
from kvgate.manifests import read_manifests
from kvgate.manifests.engines import find_engines
from kvgate.manifests.judging.engine_budget import Defaults
from kvgate.manifests.judging.judgement import judge_engine
from kvgate.manifests.pods.engine_found import FoundEngine

MODEL = {"name": "a", "repository": "vllm/vllm-openai", "modelURL": "Qwen/Qwen3-8B"}
STACK: dict[str, Any] = {"servingEngineSpec": {"modelSpec": [MODEL]}}
SERVICE: dict[str, Any] = {
    "modelArtifacts": {"name": "Qwen/Qwen3-8B", "uri": "hf://Qwen/Qwen3-8B"},
    "decode": {"containers": [{"image": "vllm/vllm-openai:v0.32.0", "modelCommand": "vllmServe"}]},
}


def engines(folder: Path, *documents: Any) -> list[FoundEngine]:
    (folder / "x.yaml").write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return find_engines(read_manifests([str(folder)])).engines


def release(**spec: Any) -> dict[str, Any]:
    spec = {"releaseName": "vllm", **spec}
    return {"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease", "metadata": {"name": "x"}, "spec": spec}


def application(**helm: Any) -> dict[str, Any]:
    spec = {"source": {"helm": helm}}
    return {"apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "metadata": {"name": "x"}, "spec": spec}


def config_map(name: str, values: Any, key: str = "values.yaml") -> dict[str, Any]:
    data = {key: yaml.safe_dump(values)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def reference(name: str, **more: Any) -> dict[str, Any]:
    return {"kind": "ConfigMap", "name": name, **more}


@pytest.mark.parametrize(
    ("more", "is_partial"),
    [
        ({}, (False, False)),
        ({"chart": {"spec": {"valuesFiles": ["values.yaml"]}}}, (False, True)),
        ({"chart": {"spec": {"valuesFile": "values.yaml"}}}, (False, True)),
        ({"valuesFrom": [reference("elsewhere")]}, (False, True)),
        ({"valuesFrom": [{"kind": "Secret", "name": "s"}]}, (False, True)),
        ({"valuesFrom": [reference("elsewhere", targetPath="a.b")]}, (True, True)),
        ({"valuesFrom": [{"kind": "Secret", "name": "s", "targetPath": "servingEngineSpec.hf_token"}]}, (False, False)),
        (
            {"postRenderers": [{"kustomize": {"images": [{"name": "vllm/vllm-openai", "newTag": "v0.1"}]}}]},
            (True, True),
        ),
        (
            {"postRenderers": [{"kustomize": {"patches": [{"patch": "/spec/template/metadata/labels"}]}}]},
            (False, False),
        ),
    ],
)
def test_a_release_is_seen_in_part_where_something_else_may_reach_the_engine(
    tmp_path: Path, more: dict[str, Any], is_partial: tuple[bool, bool]
) -> None:
    """Lists are taken as a whole: what lies under the values does not reach into one."""
    (in_list,) = engines(tmp_path, release(values=STACK, **more))
    (in_object,) = engines(tmp_path, release(values=SERVICE, **more))
    assert (in_list.is_partial, in_object.is_partial) == is_partial
    assert bool(in_object.remarks) == any(is_partial)


@pytest.mark.parametrize(
    ("more", "is_partial"),
    [
        ({}, (False, False)),
        ({"valueFiles": ["values.yaml"]}, (False, True)),
        ({"parameters": [{"name": "servingEngineSpec.modelSpec[0].tag", "value": "v0.1"}]}, (False, False)),
        ({"parameters": [{"name": "servingEngineSpec.modelSpec[x].tag", "value": "v0.1"}]}, (True, True)),
        ({"parameters": [{"name": "servingEngineSpec.modelSpec[x].hf_token", "value": "x"}]}, (False, False)),
        ({"parameters": [{"name": "a", "value": "b"}] * 201}, (True, True)),
        ({"fileParameters": [{"name": "a", "path": "b"}]}, (True, True)),
    ],
)
def test_an_application_is_seen_in_part_where_something_else_may_reach_the_engine(
    tmp_path: Path, more: dict[str, Any], is_partial: tuple[bool, bool]
) -> None:
    (in_list,) = engines(tmp_path, application(valuesObject=STACK, **more))
    (in_object,) = engines(tmp_path, application(values=yaml.safe_dump(SERVICE), **more))
    assert (in_list.is_partial, in_object.is_partial) == is_partial


def test_parameters_win_over_values_one_by_one(tmp_path: Path) -> None:
    written = {
        "servingEngineSpec.modelSpec[0].tag": "v0.31.0",
        "servingEngineSpec.modelSpec[0].vllmConfig.tensorParallelSize": "2",
        "servingEngineSpec.modelSpec[1].name": "b",
        "servingEngineSpec.modelSpec[1].modelURL": "Qwen/Qwen3-32B",
    }
    parameters = [{"name": name, "value": value} for name, value in written.items()]
    first, second = engines(tmp_path, application(valuesObject=STACK, parameters=parameters))
    assert first.version.text.endswith("v0.31.0")
    assert [word.text for word in first.arguments if "tensor" in word.text or word.text == "2"]
    assert (second.name, second.model.text) == ("b", "Qwen/Qwen3-32B")
    name = second.document.position_of(f"{second.path}.name")
    assert name == first.document.position_of("spec.source.helm.parameters[2]")
    alone = [{"name": each["name"].replace("[1]", "[0]"), "value": each["value"]} for each in parameters[2:]]
    (engine,) = engines(tmp_path, application(parameters=alone))
    assert engine.model.text == "Qwen/Qwen3-32B"


def test_config_maps_lie_under_the_values_and_the_last_one_wins(tmp_path: Path) -> None:
    first = {"servingEngineSpec": {"modelSpec": [MODEL, MODEL]}, "stack": {"x": 1}}
    second = {"servingEngineSpec": {"modelSpec": [MODEL | {"name": "b"}]}}
    maps = [config_map("first", first), config_map("second", second, key="gpu.yaml")]
    references = [reference("first"), reference("second", valuesKey="gpu.yaml")]
    (engine,) = engines(tmp_path, *maps, release(valuesFrom=references))
    assert (engine.name, engine.path) == ("b", "spec.valuesFrom[1].servingEngineSpec.modelSpec[0]")
    assert not engine.is_partial
    (engine,) = engines(tmp_path, *maps, release(valuesFrom=references, values={"servingEngineSpec": {"x": 1}}))
    assert (engine.name, engine.path) == ("b", "spec.values.servingEngineSpec.modelSpec[0]")
    (engine,) = engines(tmp_path, *maps, release(valuesFrom=references, values=STACK))
    assert engine.name == "a"
    assert not engines(tmp_path, *maps, release(valuesFrom=references, values={"servingEngineSpec": None}))


def test_values_that_win_over_a_config_map_and_are_not_in_the_input_are_told(tmp_path: Path) -> None:
    given = release(valuesFrom=[reference("first"), {"kind": "Secret", "name": "s"}])
    (engine,) = engines(tmp_path, config_map("first", STACK), given)
    assert engine.is_partial
    assert "Secret s" in engine.remarks[0][1]


@pytest.mark.parametrize("text", ["vllm: [", "- vllm", "vllm"])
def test_a_config_map_without_values_is_not_read(tmp_path: Path, text: str) -> None:
    broken = {**config_map("first", {}), "data": {"values.yaml": text}}
    (engine,) = engines(tmp_path, broken, release(valuesFrom=[reference("first")], values=STACK))
    assert engine.remarks


def test_objects_of_these_names_of_other_groups_are_not_meant(tmp_path: Path) -> None:
    assert not engines(tmp_path, {**release(values=STACK), "apiVersion": "example.com/v1"})
    assert not engines(tmp_path, {**application(valuesObject=STACK), "apiVersion": "app.k8s.io/v1beta1"})


def test_containers_are_those_of_the_source_that_has_them(tmp_path: Path) -> None:
    sources = [
        {"helm": {"values": yaml.safe_dump({"app": {"containers": [{"image": f"vllm/vllm-openai:v0.{minor}.0"}]}})}}
        for minor in (31, 32)
    ]
    found = engines(tmp_path, {**application(), "spec": {"sources": sources}})
    assert [engine.image.text for engine in found] == ["vllm/vllm-openai:v0.31.0", "vllm/vllm-openai:v0.32.0"]


def test_containers_in_values_of_an_unknown_chart_are_still_read(tmp_path: Path) -> None:
    container = {"image": "vllm/vllm-openai:v0.32.0", "args": ["--model=Qwen/Qwen3-8B"]}
    (engine,) = engines(tmp_path, release(values={"app": {"containers": [container]}}))
    assert engine.path == "spec.values.app.containers[0]"


@pytest.mark.parametrize("model", ["{{.model}}", "${MODEL}"])
def test_a_model_that_somebody_fills_in_later_is_a_variable(tmp_path: Path, model: str) -> None:
    values = {"servingEngineSpec": {"modelSpec": [MODEL | {"modelURL": model}]}}
    (engine,) = engines(tmp_path, application(valuesObject=values))
    (told,) = (each for each in judge_engine(engine, Defaults()).findings if each.finding.field == "model")
    assert told.finding.rule.id == "VariableUnknown"
    assert told.path.endswith(".modelSpec[0].modelURL")


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("servingEngineSpec.modelSpec[0].tag", "MayNotFit"),
        ("servingEngineSpec.modelSpec[0].vllmConfig.maxNumBatchedTokens", "MayNotFit"),
        ("hf_token", "DoesNotFit"),
    ],
)
def test_nothing_is_refused_that_a_file_may_put_right(tmp_path: Path, name: str, verdict: str) -> None:
    """The option is newer than the release that is written, and there are too few GPUs."""
    config = {"tensorParallelSize": 2, "extraArgs": ["--async-scheduling"]}
    values = {"servingEngineSpec": {"modelSpec": [MODEL | {"tag": "v0.8.5", "requestGPU": 1, "vllmConfig": config}]}}
    (engine,) = engines(tmp_path, application(valuesObject=values, fileParameters=[{"name": name, "path": "x"}]))
    judged = judge_engine(engine, Defaults(accelerator="H100-SXM-80GB"))
    told = {each.finding.rule.id: each.finding.severity for each in judged.findings}
    severity = Severity.WARNING if verdict == "MayNotFit" else Severity.ERROR
    assert (judged.verdict.value, told["OptionNotYet"], told["TooFewGpus"]) == (verdict, severity, severity)
