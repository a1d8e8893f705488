"""Values of a chart that is not rendered: what the chart's own files say of them."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.check.run import run
from kvgate.cli.reports.report import Item
from kvgate.documents.chart_beside import completed_values
from kvgate.documents.origins import ChartOptions, Render
from support.assets import require_assets
from support.chart import helm

CHART = "apiVersion: v2\nname: llm\nversion: 1.0.0\nappVersion: v0.11.0\n"
TEMPLATE = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  selector: {matchLabels: {app: llm}}
  template:
    metadata: {labels: {app: llm}}
    spec:
      nodeSelector: {{ toJson .Values.nodeSelector }}
      containers:
      - name: vllm
        image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
        command: [sh, -c]
        args:
        - >-
          vllm serve {{ .Values.engine.model }} --max-model-len {{ .Values.engine.maxModelLen }}
          {{- if .Values.engine.maxNumSeqs }} --max-num-seqs {{ .Values.engine.maxNumSeqs }}{{ end }}
          {{- if .Values.options }} {{ join " " .Values.options }}{{ end }}
        resources: {limits: {nvidia.com/gpu: 1}}
"""
VALUES = """\
image: {repository: vllm/vllm-openai, tag: ""}
model: {name: Qwen/Qwen3-32B}
engine: {model: Qwen/Qwen3-8B, maxModelLen: 8192, maxNumSeqs: 0}
options: ["--gpu-memory-utilization 0.8", "--enforce-eager"]
vllm: {args: [--shm-size=1g]}
resources: {limits: {nvidia.com/gpu: 1}}
nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}
"""
PRODUCTION = "engine: {maxModelLen: 4096}\nnodeSelector: {nvidia.com/gpu.product: NVIDIA-L40S}\n"


def chart(folder: Path, **files: str) -> Path:
    """Write the chart above, or other files in its place."""
    (folder / "templates").mkdir()
    written = {"Chart.yaml": CHART, "values.yaml": VALUES, "templates/llm.yaml": TEMPLATE, **files}
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def only(path: Path) -> Item:
    report = run((str(path),), CheckOptions(charts=ChartOptions(render=Render.NEVER)))
    (item,) = report.items
    return item


def facts(item: Item) -> tuple[Any, ...]:
    assert item.engine is not None
    settings = item.engine.settings
    rules = {placed.rule for placed in item.findings}
    return item.engine.model, item.accelerator, item.vllm_version, settings.get("max_model_len"), item.verdict, rules


def test_values_say_the_same_as_the_rendered_chart(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    binary = require_assets(pytestconfig, "helm") / "helm"
    folder = chart(tmp_path, **{"values-prod.yaml": PRODUCTION})
    seen = []
    for values in ("values.yaml", "values-prod.yaml"):
        rendered = tmp_path / "rendered.json"
        rendered.write_text(helm(binary, "template", "llm", folder, "--values", folder / values), encoding="utf-8")
        written = facts(only(folder / values))
        assert written == facts(only(rendered))
        seen.append(written[1:4])
        rendered.unlink()
    assert seen == [("L4-24GB", "0.11.0", 8192), ("L40S-48GB", "0.11.0", 4096)]


def test_what_no_template_names_is_not_passed_on(tmp_path: Path) -> None:
    folder = chart(tmp_path)
    kept = completed_values(str(folder / "values.yaml"), {"vllm": {"args": []}, "engine": {"model": "a/b", "more": 1}})
    assert kept == {"engine": {"model": "a/b"}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("templates/all.yaml", "{{ toYaml .Values }}"),
        ("templates/index.yaml", '{{ index .Values "vllm" }}'),
        ("templates/llm.yaml", "kind: Service"),
        ("Chart.yaml", f"{CHART}dependencies: [{{name: common, version: 1.0.0}}]\n"),
    ],
)
def test_every_value_is_kept_where_a_chart_may_pass_on_any(tmp_path: Path, name: str, text: str) -> None:
    values = {"vllm": {"args": ["--enforce-eager"]}, "tag": "v0.9.0"}
    assert completed_values(str(chart(tmp_path, **{name: text}) / "values.yaml"), values) == values


def test_objects_are_merged_and_lists_replaced_as_helm_does(tmp_path: Path) -> None:
    folder = chart(
        tmp_path, **{"templates/llm.yaml": "{{ toYaml .Values }}", "values.yaml": "a: {b: 1, c: [1]}\nd: 2\n"}
    )
    assert completed_values(str(folder / "ci/values-x.yaml"), {"a": {"c": [3]}}) == {"a": {"b": 1, "c": [3]}, "d": 2}


def test_a_tag_or_a_digest_of_its_own_wins_over_the_version_of_the_chart(tmp_path: Path) -> None:
    folder = chart(tmp_path, **{"templates/llm.yaml": "{{ toYaml .Values }} {{ .Chart.AppVersion }}"})
    for own in ({"repository": "a/vllm", "tag": "v0.9.0"}, {"repository": "a/vllm", "digest": "sha256:0"}):
        assert completed_values(str(folder / "values.yaml"), {"image": own})["image"].get("tag") == own.get("tag")


def test_files_without_a_chart_and_broken_charts_are_read_as_they_are(tmp_path: Path) -> None:
    values = {"vllm": {"args": []}}
    assert completed_values(str(tmp_path / "values.yaml"), values) == values
    assert completed_values(str(chart(tmp_path, **{"Chart.yaml": "a: ["}) / "values.yaml"), values) == values


def test_the_schema_of_the_values_is_no_file_of_values(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"engine": {"properties": {"model": {"default": "a/b"}}}}}
    folder = chart(tmp_path)
    assert completed_values(str(folder / "values.schema.json"), schema) == schema
    assert completed_values(str(folder / "values.json"), {})["engine"]["model"] == "Qwen/Qwen3-8B"


def test_a_template_that_leads_out_of_the_checkout_is_not_read(tmp_path: Path) -> None:
    outside = tmp_path / "outside.yaml"
    outside.write_text("{{ .Values.secret }}", encoding="utf-8")
    (tmp_path / "in").mkdir()
    folder = chart(tmp_path / "in")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "templates/link.yaml").symlink_to(outside)
    values = {"vllm": {"args": []}}
    assert completed_values(str(folder / "values.yaml"), values) == values
