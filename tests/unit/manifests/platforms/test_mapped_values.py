"""Values of charts that nobody knows, with paths that `.kvgate.yaml` states."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.command_line import invoked

VALUES = """\
replicas: 1
llm:
  weights: {hub: Qwen/Qwen3-8B}
  runtime: {repository: registry.example/team/server, tag: 1.4.2}
  release: 0.11.0
  cards: 1
  cardType: L4
  context: 16384
  extra: [--max-num-seqs=1]
"""
FIELDS = {
    "model": "llm.weights.hub", "image": "llm.runtime", "vllmVersion": "llm.release", "gpus": "llm.cards", "arguments": "llm.extra",
    "accelerator": "llm.cardType", "options": {"max-model-len": "llm.context"},
}  # fmt: skip
RELEASE = """\
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: chat, namespace: serving}
spec:
  chart: {spec: {chart: chat}}
  values:
"""


def checked(folder: Path, values: str, **fields: Any) -> list[Any]:
    """The documents of the report."""
    config = {"mappings": [{"paths": ["values.yaml"], "fields": fields}]}
    (folder / ".kvgate.yaml").write_text(json.dumps(config))
    (folder / "values.yaml").write_text(values)
    found: list[Any] = json.loads(invoked("check", str(folder / "values.yaml"), "-o", "json").stdout)["documents"]
    return found


def test_the_facts_are_where_the_mapping_says_though_nothing_names_vllm(tmp_path: Path) -> None:
    (found,) = checked(tmp_path, VALUES, **FIELDS)
    engine = found["engine"]
    assert [engine[name] for name in ("model", "accelerator", "vllm_version", "max_model_len", "max_num_seqs")] == [
        "Qwen/Qwen3-8B", "L4-24GB", "0.11.0", 16384, 1,
    ]  # fmt: skip
    assert found["verdict"] == "Fits"
    assert found["findings"] == []
    assert "mappings[0].fields of .kvgate.yaml" in found["assumed"][0]["why"]


def test_without_a_mapping_nothing_is_read(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(VALUES)
    assert json.loads(invoked("check", str(tmp_path), "-o", "json").stdout)["documents"] == []


def test_values_in_an_object_are_read_by_the_same_paths(tmp_path: Path) -> None:
    indented = "".join(f"    {line}\n" for line in VALUES.splitlines())
    (found,) = checked(tmp_path, RELEASE + indented, **FIELDS)
    assert (found["kind"], found["engine"]["model"], found["verdict"]) == ("HelmRelease", "Qwen/Qwen3-8B", "Fits")


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("fleet.*", "fleet: {a: {id: Qwen/Qwen3-8B}, b: {id: Qwen/Qwen3-4B}, c: {enabled: false, id: x/y}, d: 1}"),
        ("fleet[*]", "fleet: [{id: Qwen/Qwen3-8B}, {id: Qwen/Qwen3-4B}]"),
        ("fleet.*.engine", "fleet: {a: {engine: {id: Qwen/Qwen3-8B}}, b: {engine: {id: Qwen/Qwen3-4B}}, c: {}}"),
    ],
    ids=["object", "list", "below"],
)
def test_each_entry_is_an_engine_and_shares_what_stands_at_the_top(path: str, values: str, tmp_path: Path) -> None:
    found = checked(tmp_path, f"card: L4\n{values}\n", engines=path, model="id", accelerator="card")
    assert [each["engine"]["model"] for each in found] == ["Qwen/Qwen3-8B", "Qwen/Qwen3-4B"]
    assert {each["engine"]["accelerator"] for each in found} == {"L4-24GB"}


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("[--model=Qwen/Qwen3-8B]", 1),
        ("[--model, Qwen/Qwen3-8B]", 1),
        ("[--seed=1]", 0),
        ("{model: Qwen/Qwen3-8B, seed: 1}", 0),
    ],
)
def test_arguments_that_name_a_model_are_an_engine(tmp_path: Path, words: str, count: int) -> None:
    found = checked(
        tmp_path, f"llm: {{line: {words}, card: L4}}\n", engines="llm", arguments="line", accelerator="card"
    )
    assert [each["engine"]["model"] for each in found] == ["Qwen/Qwen3-8B"] * count


def test_values_that_state_no_model_are_no_engine(tmp_path: Path) -> None:
    """A file for one cluster states only what differs there."""
    assert checked(tmp_path, "replicas: 3\nllm: {cards: 2}\n", **FIELDS) == []


def told(found: Any) -> dict[str, tuple[str, int, str]]:
    return {
        each["field"]: (each["severity"], each["line"], each["remediation"])
        for each in found["findings"]
        if each["rule"] == "PathLeadsNowhere"
    }


def test_every_path_that_leads_nowhere_is_told_with_the_field_that_may_be_meant(tmp_path: Path) -> None:
    wrong = {**FIELDS, "accelerator": "llm.cardTyp", "gpus": "llm.weights", "image": "server.image"}
    (found,) = checked(tmp_path, VALUES, **wrong)
    assert told(found) == {
        "accelerator": ("warning", 7, "did you mean llm.cardType?"),
        "gpus": (
            "warning", 3, "write the path of the field that holds the number of GPUs, or the resources of the container",
        ),
        "image": ("info", 1, "write a path that exists; the fields there are replicas, llm"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fact", "wrong", "kind"),
    [
        ("model", "group", "the model's name"),
        ("image", "group", "the image, or its repository and tag"),
        ("gpus", "weights", "the number of GPUs, or the resources of the container"),
        ("accelerator", "weights", "the name of the GPU"),
        ("vllmVersion", "weights", "the release of vLLM"),
    ],
)
def test_a_path_to_a_value_of_another_kind_is_told_with_its_kind(
    tmp_path: Path, fact: str, wrong: str, kind: str
) -> None:
    documents = checked(tmp_path, f"{VALUES}  group: {{a: b}}\n", **{**FIELDS, fact: f"llm.{wrong}"})
    found = {each["field"]: each for document in documents for each in document["findings"]}
    assert (found[fact]["rule"], found[fact]["severity"], found[fact]["path"]) == (
        "PathLeadsNowhere", "warning", f"llm.{wrong}",
    )  # fmt: skip
    assert found[fact]["remediation"] == f"write the path of the field that holds {kind}"


@pytest.mark.parametrize("wrong", [{"model": "llm.weight.hub"}, {"engines": "lllm"}], ids=["model", "engines"])
def test_a_mistyped_path_of_the_model_hides_no_engine(wrong: dict[str, str], tmp_path: Path) -> None:
    (found,) = checked(tmp_path, VALUES, **FIELDS | wrong)
    assert told(found)[next(iter(wrong))][0] == "warning"


@pytest.mark.slow
def test_a_path_with_many_stars_takes_no_time(tmp_path: Path) -> None:
    values = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for name, below in ("ba", "cb", "dc", "ed"):
        values += f"{name}: &{name} [" + ", ".join([f"*{below}"] * 9) + "]\n"
    assert checked(tmp_path, values, engines="*[*][*][*][*][*][*]", model="id") == []
