"""What `kvgate size -o yaml` writes: `kvgate check` reads it back, and comes to the same verdict and the same numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.budget import Budget
from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.check.run import run
from kvgate.cli.reports.report import Item
from kvgate.cli.size.manifests import FORMS, row_of, written
from kvgate.cli.size.question import question_of
from kvgate.planning.candidate import Candidate
from kvgate.planning.size import find_candidates
from kvgate.vllm.values import UnusableValue
from support.command_line import invoked

DENSE = {"model": "Qwen/Qwen3-32B", "vllm_version": "0.33.0", "gpus": "H100-SXM-80GB"}
RAG = {"peak_concurrency": "64", "prompt_tokens": "6k", "output_tokens": "500"}
QUESTIONS: dict[str, dict[str, Any]] = {
    "a workload on two GPUs": {**DENSE, **RAG},
    "replicas on one GPU each": {**DENSE, **RAG, "model": "Qwen/Qwen3-8B", "gpus": "L4-24GB", "peak_concurrency": "40"},
    "the start alone": {**DENSE, "model": "openai/gpt-oss-20b"},
    "full context on GPUs of AMD": {**DENSE, "gpus": "MI300X", "max_num_seqs": "8", "max_model_len": "16k"},
    "as many as four GPUs hold": {**DENSE, **RAG, "gpus": "4xA100-SXM-80GB", "peak_concurrency": None},
    "pipeline stages": {**DENSE, "model": "Qwen/Qwen2.5-7B-Instruct", "gpus": "8xT4", "prompt_tokens": "20k", "output_tokens": "1k"},
    "settings of the user": {
        **DENSE, **RAG, "gpu_memory_utilization": "0.85", "max_num_batched_tokens": "16k", "enforce_eager": True,
        "enable_prefix_caching": False, "limit_mm_per_prompt": '{"image": 0}', "shared_prefix_tokens": "2k",
    },
    "drafts": {**DENSE, "speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}'},
    "an older release": {**DENSE, **RAG, "vllm_version": "0.19.0"},
    "a release whose image decides": {**DENSE, **RAG, "vllm_version": "0.11.0", "installed_by": "image"},
    "a pinned capacity": {**DENSE, **RAG, "capacity": "Pinned"},
}  # fmt: skip
POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: line}}
spec:
  nodeSelector: {{{label}: {gpu}}}
  containers:
  - name: vllm
    image: {image}
    command: [sh, -c, {line}]
    resources: {{limits: {{{resource}: {count}}}}}
    volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
  volumes: [{{name: shm, emptyDir: {{medium: Memory}}}}]
"""


def first_that_fits(values: dict[str, Any]) -> tuple[Candidate, dict[str, Any]]:
    given = {name: value for name, value in values.items() if value is not None}
    question, _ = question_of({"dtypes": "auto,fp8", **given}, None)
    return find_candidates(question)[0], given


def judged(folder: Path, text: str) -> Item:
    file = folder / "written.yaml"
    file.write_text(text, encoding="utf-8")
    report = run((str(file),), CheckOptions())
    (item,) = report.items
    return item


def in_a_pod(line: str, candidate: Candidate, image: str) -> str:
    """The command line in the least pod that starts it."""
    accelerator = candidate.accelerator
    label = {"nvidia": "nvidia.com/gpu.product", "amd": "amd.com/gpu.product-name"}[accelerator.vendor]
    return POD.format(
        label=label, gpu=accelerator.gpu_labels[0], image=image, line=json.dumps(line.splitlines()[-1]),
        resource=accelerator.resource, count=candidate.parallelism.num_gpus,
    )  # fmt: skip


def figures(budget: Budget) -> dict[str, Any]:
    return {
        "blocks": budget.num_blocks,
        "tokens": budget.num_tokens,
        "stages": [(stage.available, stage.bytes_per_block) for stage in budget.stages],
        "gpus": budget.request.settings.parallelism.num_gpus,
        "lengths": (
            budget.resolved.max_model_len,
            budget.resolved.max_num_seqs,
            budget.resolved.max_num_batched_tokens,
        ),
        "model": budget.request.shape.name,
        "gpu": budget.request.accelerator.name,
        "release": budget.request.vllm_version,
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("values", QUESTIONS.values(), ids=QUESTIONS)
def test_check_comes_to_the_same_verdict_and_numbers(values: dict[str, Any], form: str, tmp_path: Path) -> None:
    candidate, given = first_that_fits(values)
    row = row_of(candidate, given)
    text = written(row, form)
    item = judged(tmp_path, in_a_pod(text, candidate, row.image) if form == "vllm-serve" else text)
    assert item.verdict == candidate.verdict, [each.finding.message for each in item.all_findings]
    assert item.assessment is not None
    assert item.assessment.budget is not None
    assert figures(item.assessment.budget) == figures(candidate.budget)


@pytest.mark.parametrize("form", ["inferencedeployment", "production-stack", "kserve"])
def test_check_judges_the_workload_that_is_written(form: str, tmp_path: Path) -> None:
    candidate, given = first_that_fits({**DENSE, **RAG})
    text = written(row_of(candidate, given), form)
    assert [
        each.finding.rule.id for each in judged(tmp_path, text).all_findings if each.finding.severity != "info"
    ] == []
    more = text.replace("peakConcurrency=64", "peakConcurrency=640").replace(
        "peakConcurrency: 64", "peakConcurrency: 640"
    )
    assert more != text
    assert [each for each in judged(tmp_path, more).all_findings if each.finding.severity != "info"]


def test_no_manifest_is_written_for_gpus_without_an_image_of_vllm() -> None:
    candidate, given = first_that_fits({**DENSE, "model": "Qwen/Qwen3-8B", "gpus": "Gaudi3"})
    row = row_of(candidate, given)
    with pytest.raises(UnusableValue, match="vLLM publishes no image for GPUs of intel"):
        written(row, "kserve")
    assert written(row, "vllm-serve").splitlines()[-1].startswith("vllm serve Qwen/Qwen3-8B --tensor-parallel-size=1")


def test_an_engine_over_several_nodes_is_an_inference_deployment_only(tmp_path: Path) -> None:
    candidate, given = first_that_fits({**DENSE, "model": "deepseek-ai/DeepSeek-V3", "gpus": "H100-SXM-80GB"})
    assert candidate.parallelism.num_gpus == 16
    row = row_of(candidate, given)
    assert judged(tmp_path, written(row, "inferencedeployment")).verdict == candidate.verdict
    for form in ("production-stack", "kserve"):
        with pytest.raises(UnusableValue, match="writes engines of one node, and this one has 16 GPUs"):
            written(row, form)


def test_a_board_without_a_label_of_its_own_is_named_in_a_comment(tmp_path: Path) -> None:
    candidate, given = first_that_fits({**DENSE, "model": "Qwen/Qwen3-8B", "gpus": "RTX-4090-48GB"})
    text = written(row_of(candidate, given), "production-stack")
    assert "check with --gpu RTX-4090-48GB" in text
    assert "nodeSelectorTerms" not in text


# ── the command line ──────────────────────────────────────────────────────────────────────────────────────────────

ASKED = (
    "size",
    "--model",
    "Qwen/Qwen3-32B",
    "--vllm-version",
    "0.33.0",
    "--gpus",
    "H100-SXM-80GB,H200-SXM-141GB",
    "--max-num-seqs",
    "4",
)


def test_yaml_is_the_first_that_fits_or_a_row_that_is_chosen() -> None:
    rows = [line.split() for line in invoked(*ASKED).stdout.splitlines() if " tp" in line and "Fits" in line]
    for number, row in enumerate(rows, start=1):
        document = yaml.safe_load(invoked(*ASKED, "-o", "yaml", "--choose", str(number)).stdout)
        assert document["kind"] == "InferenceDeployment"
        assert document["spec"]["accelerator"]["type"] == row[3]
    assert invoked(*ASKED, "-o", "yaml").stdout == invoked(*ASKED, "-o", "yaml", "--choose", "1").stdout
    assert len(rows) > 1


@pytest.mark.parametrize("form", FORMS)
def test_as_alone_means_yaml(form: str) -> None:
    shown = invoked(*ASKED, "--as", form)
    assert shown.exit_code == 0
    assert shown.stdout == invoked(*ASKED, "--as", form, "-o", "yaml").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--choose", "99"), "--choose is 99; write the number of a row of the table: it has the rows 1 to"),
        (("--as", "kserve", "-o", "json"), "--as writes YAML or a command line, not json"),
        (("--choose", "1", "-o", "csv"), "--choose is for text and yaml, and csv has every row"),
        (("-o", "yaml", "--max-gpus", "1", "--gpus", "T4"), "no candidate fits, so there is nothing to choose"),
    ],
)
def test_what_cannot_be_written_is_named(arguments: tuple[str, ...], words: str) -> None:
    result = invoked(*ASKED, *arguments)
    assert words in result.output
    assert result.exit_code == 2


def test_a_config_without_a_name_cannot_be_written(tmp_path: Path) -> None:
    from kvgate import catalogue

    entry = catalogue.find_model("Qwen/Qwen3-8B")
    assert entry is not None
    file = tmp_path / "config.json"
    file.write_text(json.dumps(dict(entry.config)))
    result = invoked("size", "--model-config", str(file), "--gpus", "L40S", "-o", "yaml")
    assert "-o yaml needs --model" in result.output
    named = invoked("size", "--model-config", str(file), "--model", "me/mine", "--gpus", "L40S", "-o", "yaml").stdout
    assert "stated for kvgate size, and no part of this: --model-config" in named


def test_the_workload_of_an_inference_deployment_is_that_of_all_replicas(tmp_path: Path) -> None:
    question, _ = question_of({"dtypes": "auto", **QUESTIONS["replicas on one GPU each"]}, None)
    several = next(each for each in find_candidates(question, every=True) if each.replicas > 1)
    row = row_of(several, QUESTIONS["replicas on one GPU each"])
    spec = yaml.safe_load(written(row, "inferencedeployment"))["spec"]
    assert spec["workload"]["peakConcurrency"] == several.share * several.replicas >= 40
    assert f"peakConcurrency={several.share * several.replicas} " in written(row, "kserve")
    item = judged(tmp_path, written(row, "inferencedeployment"))
    assert item.assessment is not None
    assert item.assessment.budget is not None
    assert item.assessment.budget.request.workload is not None
    assert item.assessment.budget.request.workload.peak_concurrency == several.share
