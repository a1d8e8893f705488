"""The front page shows what really happens: every command of kvgate in it is run, and its output compared."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvgate.budget.ground.interval import Verdict
from kvgate.judgement.assess import effective_values
from kvgate.judgement.assessment import Decision
from kvgate.judgement.summary import refusal, warnings
from kvgate.rendering.admission import budget_status, prediction_of
from support.samples import SAMPLES, judged

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CLUSTER = README.partition("```text\n")[2].partition("```")[0]
SHOWN = re.findall(r"^```console\n\$ (kvgate [^\n]+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_of_the_readme_prints_what_the_readme_shows(command: str, output: str) -> None:
    program, *arguments = command.split()
    done = subprocess.run(
        [Path(sys.executable).parent / program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout + done.stderr).rstrip() == output.rstrip()


@pytest.mark.parametrize("name", SAMPLES)
def test_the_readme_shows_what_the_cluster_says_about_a_sample(name: str) -> None:
    """Warnings and refusals word for word, and the row of `kubectl get`."""
    subject, assessment = judged(name)
    shown = " ".join(CLUSTER.split())
    if assessment.decision is Decision.REFUSE:
        assert f"denied the request: {' '.join(refusal(assessment).split())}" in shown
        return
    assert f"inferencedeployment.kvgate.io/{subject.name} created" in shown
    assert [line for line in warnings(assessment) if f"Warning: {line}" not in shown] == []
    assert subject.deployment is not None
    spec, effective = subject.deployment.spec, effective_values(subject.deployment.spec, assessment)
    headroom = (budget_status(prediction_of(assessment)) or {}).get("headroomPercent", "")
    row = (
        subject.name, spec.model.name, spec.accelerator.type, spec.vllm.tensor_parallel_size, effective.max_model_len,
        effective.max_num_seqs, headroom, "Unknown" if assessment.verdict is Verdict.UNKNOWN else "True", "True",
    )  # fmt: skip
    assert " ".join(" ".join(map(str, row)).split()) in shown


def test_the_readme_shows_commands_of_kvgate_and_stays_short() -> None:
    assert len(SHOWN) >= 2
    assert len(README.splitlines()) <= 140


def test_no_module_lies_loose_where_it_would_shadow_the_standard_library() -> None:
    assert not list((ROOT / "operator").glob("*.py"))
