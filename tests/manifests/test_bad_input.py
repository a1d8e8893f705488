"""Input that people and machines get wrong: never a traceback, always a place and a remedy, and the files beside it are still judged."""

import json
import os
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.check.run import run
from kvgate.cli.reports.json_report import render
from kvgate.cli.reports.report import Item, Report
from kvgate.documents.discovery import Why

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}
  containers:
    - name: vllm
      image: vllm/vllm-openai:v0.32.0
      args: [--model=Qwen/Qwen3-4B, --max-model-len=8192]
      resources: {limits: {nvidia.com/gpu: 1}}
"""
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}]\n"
    for old, new in ("ab", "bc", "cd", "de", "ef", "fg")
)


def checked(*paths: Path) -> Report:
    """Rendered too, because that must not fail either."""
    report = run([str(path) for path in paths], CheckOptions())
    assert render(report)
    return report


def the_good_one(report: Report) -> Item:
    good = [item for item in report.items if item.name == "good"]
    assert [item.verdict for item in good] == ["Fits"]
    return good[0]


def test_a_comment_on_each_of_many_lines_takes_no_longer_than_the_lines(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("# kvgate:ignore Oversubscribed why\n" * 20_000 + POD.replace("NAME", "good"))
    started = time.process_time()
    the_good_one(checked(tmp_path))
    assert time.process_time() - started < 20


@pytest.mark.parametrize(
    ("content", "rule", "line", "words"),
    [
        (b"vllm: [1,\n  b: {\n", "InvalidYaml", 3, "not YAML"),
        (
            b"a: [1,\n  b: {\n",
            None,
            0,
            "",
        ),  # nothing in it speaks of an engine: it is counted, and fails nobody's check
        (b"one: 1\ntwo: \xe9\n", None, 0, ""),
        (b"key: 1\nother: 2\nkey: 3\n", None, 0, ""),
        (POD.replace("metadata:", "kind: Pod\nmetadata:").encode(), "InvalidYaml", 3, "written twice"),
        (b"kind: Pod\n  vllm: x\n", "InvalidYaml", 2, "not YAML"),
        (b"kind: \xff\xfe vllm\n", "Unreadable", 1, "not UTF-8"),
        (b"vllm: 1\ntwo: \xe9\n", "Unreadable", 2, "not UTF-8"),
        (b"kind: Pod\n\0vllm\n", "Unreadable", 1, "binary"),
        (BOMB.encode() + b"vllm: *g\n", "InvalidYaml", 1, "aliases"),
        (b"a: &a\n  vllm: *a\n", "InvalidYaml", 1, "alias"),
        (b"vllm: " + b"[" * 5000, "InvalidYaml", 1, "deeper"),
        (b"vllm: !!python/object:os.system {}\n", None, 0, ""),
        (b"kind: Pod\nvllm: !!bool x\n", "InvalidYaml", 2, "'x' is not a value of type !!bool"),
        (b"kind: Pod\nspec: [1, !!int '']\nvllm: 1\n", "InvalidYaml", 2, "'' is not a value of type !!int"),
        (b"kind: Pod\nspec:\n  vllm: !!float 1:-\n", "InvalidYaml", 3, "'1:-' is not a value of type !!float"),
        (b"vllm: 1\nspec: !!binary /w==\n", "InvalidYaml", 2, "'/w==' is not a value of type !!binary"),
        (b"vllm: 1\nspec: 0b" + b"1" * 20_000, "InvalidYaml", 2, "a number of 20002 characters"),
        (b"vllm: 1\nspec: 1" + b":59" * 20_000, "InvalidYaml", 2, "a number of 60001 characters"),
        (b"vllm: 1\nspec: -" + b"9" * 5_000, "InvalidYaml", 2, "a number of 5001 characters"),
        (b"vllm: 1\nspec: 0x" + b"f" * 5_000, "InvalidYaml", 2, "a number of 5002 characters"),
        (b"vllm: 1\nspec: 1." + b"9" * 5_000, "InvalidYaml", 2, "a number of 5002 characters"),
        (b"vllm: 1\n? !!int x\n: 1\n", "InvalidYaml", 2, "'x' is not a value of type !!int"),
        (b"vllm: 1\n? [1]\n: 1\n", "InvalidYaml", 2, "unhashable"),
        (b"vllm: 1\nspec: {<<: 3}\n", "InvalidYaml", 2, "merging"),
        (b"vllm: 1\nspec: \x1b[31m\n", "InvalidYaml", 2, "control characters"),
        (b"!!str {=: x, kind: ConfigMap}\n", "InvalidYaml", 1, "does not make an object"),
        (b"!reset {kind: ConfigMap}\n", "InvalidYaml", 1, "does not make an object"),
        (b"!!set {kind, vllm}\n", None, 0, ""),
        (b"vllm: 2001-99-99\nspec: !!timestamp 2001-99-99\n", None, 0, ""),
    ],
)
def test_what_cannot_be_read_is_told_at_its_line(
    tmp_path: Path, content: bytes, rule: str | None, line: int, words: str
) -> None:
    (tmp_path / "bad.yaml").write_bytes(content)
    (tmp_path / "good.yaml").write_text(POD.replace("NAME", "good"))
    report = checked(tmp_path)
    the_good_one(report)
    told = [(placed.rule, placed.line) for placed in report.unreadable]
    assert told == ([(rule, line)] if rule else [])
    assert all(words in placed.finding.message and placed.finding.remediation for placed in report.unreadable)


def test_one_document_of_a_stream_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    parts = ("kind: Pod\nvllm: !!bool x\n", POD.replace("NAME", "good"), f"vllm: 0b{'1' * 9999}\n", "vllm: [\n")
    (tmp_path / "stream.yaml").write_text("---\n".join(parts))
    report = checked(tmp_path)
    assert the_good_one(report).line == 10
    assert sorted((placed.line, placed.column) for placed in report.unreadable) == [(2, 7), (15, 7), (18, 1)]


def test_json_with_signs_beyond_16_bits_is_read_as_kubernetes_reads_it(tmp_path: Path) -> None:
    pod = yaml.safe_load(POD.replace("NAME", "good"))
    pod["metadata"]["annotations"] = {"mood": "😀", "half": "\ud83d", "path": "C:\\ud83d"}
    (tmp_path / "pod.json").write_text(json.dumps(pod))
    read = the_good_one(checked(tmp_path)).document.load()
    assert read["metadata"]["annotations"] == {"mood": "😀", "half": "\ufffd", "path": "C:\\ud83d"}


@pytest.mark.parametrize(
    "text",
    [
        "{{- if .Values.vllm.enabled }}\napiVersion: v1\nkind: Pod\n{{- end }}\n",
        "apiVersion: v1\nkind: Pod\nspec:\n  {{- toYaml .Values.vllm | nindent 2 }}\n",
    ],
)
def test_a_template_that_is_named_is_told_how_to_render_it_and_else_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "deployment.yaml").write_text(text)
    (placed,) = checked(tmp_path / "deployment.yaml").unreadable
    assert "render it first: helm template CHART | kvgate check -" in placed.finding.remediation
    found = checked(tmp_path)
    assert (list(found.unreadable), found.passed_over) == ([], {Why.TEMPLATE: 1})


def test_the_fields_of_a_template_are_variables_that_nobody_sets(tmp_path: Path) -> None:
    text = POD.replace("NAME", "{{NAME}}").replace("image: ", "image: {{{REGISTRY}}}/").replace("8192", "{{ LENGTH }}")
    text = text.replace(
        "nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}", "nodeSelector:\n    {{PREFIX}}/family: {{F}}"
    )
    (tmp_path / "deployment.yaml").write_text(text)
    (item,) = checked(tmp_path).items
    assert item.verdict == "Unknown"
    assert [placed.rule for placed in item.findings] == ["VariableUnknown"]


def test_json_with_comments_is_for_tools_of_editors(tmp_path: Path) -> None:
    (tmp_path / "tsconfig.json").write_text('{\n  // for vllm\n  "a": 1,\n}\n')
    assert checked(tmp_path).passed_over == {Why.JSON: 1}
    (tmp_path / "broken.json").write_text('{"kind": "Pod", "vllm": \n')
    (placed,) = checked(tmp_path).unreadable
    assert placed.file.endswith("broken.json")


def test_a_template_that_is_yaml_by_chance_is_not_decided(tmp_path: Path) -> None:
    text = POD.replace("NAME", '"{{ .Release.Name }}"').replace("8192", "{{ .Values.maxModelLen }}")
    (tmp_path / "deployment.yaml").write_text(
        text.replace("args: [", "args: ['").replace(", --max", "', '--max").replace("}}]", "}}']")
    )
    (item,) = checked(tmp_path).items
    assert item.verdict == "Unknown"
    (placed,) = item.findings
    assert placed.rule == "VariableUnknown"
    assert "--max-model-len is {{ .Values.maxModelLen }}" in placed.finding.message
    assert "helm template CHART | kvgate check -" in placed.finding.remediation


def test_a_hundred_thousand_words_are_told_in_a_few(tmp_path: Path) -> None:
    words = "".join(f"        - --option-{index}=1\n" for index in range(20_000))
    text = POD.replace("NAME", "long").replace("args: [--model=Qwen/Qwen3-4B, --max-model-len=8192]", f"args:\n{words}")
    (tmp_path / "long.yaml").write_text(text)
    (item,) = checked(tmp_path).items
    unknown = [placed.finding for placed in item.findings if placed.rule == "OptionUnknown"]
    assert len(unknown) == 50
    assert "19950 more problems" in unknown[-1].message


@pytest.mark.parametrize(
    "doubling",
    [
        {
            "args": ["$(A)"],
            "env": [{"name": "A", "value": "x"}, *({"name": "A", "value": "$(A)$(A)"} for _ in range(60))],
        },
        {"command": ["sh", "-c", "A=x\n" + 'A="$A$A"\n' * 60 + "vllm serve $A"]},
        {"command": ["sh", "-c", "A=(x)\n" + 'A+=("${A[@]}")\n' * 60 + 'vllm serve "${A[@]}"']},
    ],
)
def test_values_that_double_each_other_do_not_fill_the_memory(tmp_path: Path, doubling: dict[str, object]) -> None:
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", **doubling}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [container]}}
    (tmp_path / "bomb.yaml").write_text(json.dumps(pod))
    (item,) = checked(tmp_path).items
    assert item.verdict == "Unknown"


def test_two_engines_of_one_name_are_two(tmp_path: Path) -> None:
    (tmp_path / "twice.yaml").write_text(POD.replace("NAME", "same") + "---\n" + POD.replace("NAME", "same"))
    report = checked(tmp_path)
    assert [(item.name, item.line, item.verdict) for item in report.items] == [
        ("same", 7, "Fits"),
        ("same", 18, "Fits"),
    ]


def test_values_of_another_chart_are_an_engine_by_the_image_and_by_nothing_less(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        "image: {repository: vllm/vllm-openai, tag: v0.32.0}\nmodel: Qwen/Qwen3-4B\nargs: [--max-model-len=8192]\n"
    )
    (item,) = checked(tmp_path).items
    assert item.verdict == "Fits"
    values.write_text("serving:\n  engine: vllm\n  replicas: 2\n")
    assert list(checked(tmp_path).items) == []


def test_a_charts_own_description_is_none_of_an_engine(tmp_path: Path) -> None:
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: llm\nversion: 0.1.0\ndescription: vllm for all\n")
    report = checked(tmp_path)
    assert (report.items, report.num_others) == ((), 1)


def test_an_empty_folder_and_empty_files_decide_nothing(tmp_path: Path) -> None:
    assert checked(tmp_path).exit_code == 2
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "comments.yaml").write_text("# vllm\n---\n---\n")
    report = checked(tmp_path)
    assert (report.exit_code, report.items, report.unreadable) == (2, (), ())


def _loop(folder: Path) -> None:
    (folder / "loop").symlink_to(folder)
    (folder / "self.yaml").symlink_to(folder / "self.yaml")


def _missing(folder: Path) -> None:
    (folder / "dangling.yaml").symlink_to(folder / "nowhere.yaml")


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe.yaml")


@pytest.mark.parametrize("make", [_loop, _missing, _pipe])
def test_files_that_are_none_are_told_beside_the_others(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "good.yaml").write_text(POD.replace("NAME", "good"))
    make(tmp_path)
    report = checked(tmp_path)
    the_good_one(report)
    assert [placed.rule for placed in report.unreadable] == ["Unreadable"]


def test_a_file_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(POD.replace("NAME", "good"))
    make_unreadable(tmp_path / "secret.yaml")
    report = checked(tmp_path)
    the_good_one(report)
    assert [placed.rule for placed in report.unreadable] == ["Unreadable"]
    assert "cannot be read: " in report.unreadable[0].finding.message


def make_unreadable(path: Path) -> None:
    """For root, whom no mode of a file stops, a file whose first byte is no memory of the process."""
    if os.geteuid() == 0:
        path.symlink_to("/proc/self/mem")
    else:
        path.write_text(POD)
        path.chmod(0)


@pytest.mark.parametrize("part", ["kvgate.manifests.engines.engines_in", "kvgate.cli.check.run.judge_engine"])
def test_a_defect_of_kvgate_costs_one_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    module, name = part.rsplit(".", 1)
    real = getattr(import_module(module), name)

    def failing(about: Any, *others: Any) -> Any:
        if about.root.get("metadata", "name").text == "bad":
            raise LookupError("a\nb")
        return real(about, *others)

    monkeypatch.setattr(part, failing)
    (tmp_path / "two.yaml").write_text(POD.replace("NAME", "bad") + "---\n" + POD.replace("NAME", "good"))
    report = checked(tmp_path)
    the_good_one(report)
    (placed,) = report.unreadable
    assert (placed.line, placed.rule, report.exit_code) == (1, "Unreadable", 1)
    assert placed.finding.message.startswith("kvgate failed on this: LookupError: a\nb (test_bad_input.py:")


def test_a_defect_in_one_of_ours_costs_that_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise RecursionError("deep")

    ours = "apiVersion: kvgate.io/v1alpha1\nkind: InferenceDeployment\nmetadata: {name: x}\n"
    monkeypatch.setattr("kvgate.manifests.inputs._add_own", failing)
    (tmp_path / "two.yaml").write_text(f"{ours}---\n" + POD.replace("NAME", "good"))
    report = checked(tmp_path)
    the_good_one(report)
    assert [placed.line for placed in report.unreadable] == [1]
