"""`require` in .kvgate.yaml: what is missing is an error of its own with field and figure; what is not known refuses nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvgate.cli.check.requirements import percent
from support.command_line import MISTAKEN_POD, invoked

POD = MISTAKEN_POD.replace("    - --no-such-option\n", "").replace("40960", "8192")
UNKNOWN = POD.replace("Qwen/Qwen3-8B", "org/of-nobody")
UNNAMED = POD.replace("  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}\n", "")
OURS = """\
apiVersion: kvgate.io/v1alpha1
kind: InferenceDeployment
metadata: {name: one}
spec:
  model: {name: Qwen/Qwen3-8B}
  accelerator: {type: L4-24GB}
  vllm: {maxModelLen: 8192, maxNumSeqs: 2}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(settings: str, text: str = POD, *arguments: str) -> tuple[Any, int]:
    """(the findings about requirements, exit code)."""
    Path(".kvgate.yaml").write_text(settings, encoding="utf-8")
    result = invoked("check", "-", "-o", "json", *arguments, stdin=text)
    (document,) = json.loads(result.stdout)["documents"]
    return [f for f in document["findings"] if "require." in f["message"]], result.exit_code


def test_headroom_is_the_expected_one_of_the_guarantee_that_was_judged() -> None:
    """8192 tokens take 1.13 GiB of the 3.07 GiB that are expected on an L4."""
    assert checked("require: {headroom: 60%}") == ([], 0)
    (finding,), code = checked("require: {headroom: 63.5%}")
    assert (finding["rule"], finding["severity"], code) == ("HeadroomBelowRequired", "error", 1)
    told = "require.headroom of .kvgate.yaml is 63.5%, and the headroom beside one request of 8192 tokens is 63."
    assert finding["message"].startswith(told)
    two = POD.replace("- --max-", "- --max-num-seqs=2\n    - --max-")
    (finding,), _ = checked("require: {headroom: 45%, guarantee: FullContext}", two)
    assert "beside full context (2 requests of 8192 tokens) is 39" in finding["message"]
    assert percent("7.5 %") == percent("7.50%")


def test_the_first_mapping_that_states_a_requirement_counts_and_the_others_come_from_above() -> None:
    mapping = "mappings:\n- {selector: {name: other}, require: {headroom: 1%}}\n- {selector: {name: engine}, require: {headroom: 90%}}\n"
    found, code = checked(f"require: {{headroom: 5%, accelerators: [H100-SXM-80GB]}}\n{mapping}")
    assert code == 1
    assert {f["rule"]: f["message"].partition(" of ")[0] for f in found} == {
        "HeadroomBelowRequired": "mappings[1].require.headroom",
        "AcceleratorNotAllowed": "require.accelerators",
    }


@pytest.mark.parametrize(
    ("accelerators", "text", "rule"),
    [
        ("[L4-24GB]", POD, None),
        ("[l4]", POD, None),
        ("[chat]", POD, None),
        ("[L40S-48GB, H100-SXM-80GB]", POD, "AcceleratorNotAllowed"),
        ("[L40S-48GB]", OURS, "AcceleratorNotAllowed"),
        ("[L4-24GB]", UNKNOWN, None),
        ("[L4-24GB]", UNNAMED, "RequirementNotJudged"),
    ],
    ids=["allowed", "by another name", "in a pool", "not allowed", "an object of ours", "an unknown model", "no GPU"],
)
def test_accelerators_are_those_that_are_listed(accelerators: str, text: str, rule: str | None) -> None:
    found, code = checked(f"pools: {{chat: [L4-24GB]}}\nrequire: {{accelerators: {accelerators}}}\n", text)
    assert [f["rule"] for f in found] == ([rule] if rule else [])
    assert code == {"AcceleratorNotAllowed": 1}.get(rule or "", 2 if text == UNKNOWN else 0)


def test_a_guarantee_that_may_be_held_is_a_warning_and_one_that_is_not_an_error() -> None:
    """On an L4 3.5 to 4.7 GiB are predicted: three requests of 1.13 GiB fit, and four may."""
    for count, severity, code in ((3, None, 0), (4, "warning", 0), (8, "error", 1)):
        found, exit_code = checked(
            "require: {guarantee: FullContext}", POD.replace("- --max-", f"- --max-num-seqs={count}\n    - --max-")
        )
        assert [f["severity"] for f in found] == ([severity] if severity else [])
        assert exit_code == code
    assert found[0]["message"].startswith(
        "require.guarantee of .kvgate.yaml is FullContext, and the engine does not hold full context "
        "(8 requests of 8192 tokens); starts; at most "
    )


def test_what_cannot_be_judged_is_reported_and_fails_only_who_asks_for_that() -> None:
    for settings, text, code in (
        ("require: {headroom: 10%}", UNKNOWN, 2),
        ("require: {headroom: 10%}", UNNAMED, 0),
        ("require: {guarantee: Workload}", POD, 0),
        ("require: {guarantee: Workload}", OURS, 0),
    ):
        (finding,), exit_code = checked(settings, text)
        assert (finding["rule"], finding["severity"], exit_code) == ("RequirementNotJudged", "warning", code)
        assert checked(settings, text, "--fail-on", "unknown")[1] == 1
        assert checked(f"{settings}\nfailOn: error, unknown\n", text)[1] == 1


def test_the_verdict_stays_and_the_engine_is_not_allowed() -> None:
    Path(".kvgate.yaml").write_text("require: {headroom: 90%}\n", encoding="utf-8")
    for text in (POD, OURS):
        result = invoked("check", "-", stdin=text)
        assert ": Fits, not allowed: " in result.stdout
        assert "1 not allowed" in result.stdout
        assert result.exit_code == 1
    ignored = invoked("check", "-", stdin=f"# kvgate:ignore HeadroomBelowRequired it is a test\n{POD}")
    assert ignored.exit_code == 0


def test_a_refused_engine_has_findings_enough() -> None:
    assert checked("require: {headroom: 90%, accelerators: [H100-SXM-80GB]}", MISTAKEN_POD) == ([], 1)


@pytest.mark.parametrize(
    ("fail_on", "text", "code"),
    [
        ("unknown", POD, 0),
        ("unknown", UNKNOWN, 1),
        ("warning,unknown", UNKNOWN, 1),
        ("warning", UNKNOWN, 2),
        ("error", UNKNOWN, 2),
        ("unknown", f"# kvgate:ignore UnknownModel it is ours\n{UNKNOWN}", 0),
        ("warning, unknown", POD.replace("- --max-", "- --max-num-seqs=8\n    - --max-num-seqs=4\n    - --max-"), 1),
        ("unknown", POD.replace("- --max-", "- --max-num-seqs=8\n    - --max-num-seqs=4\n    - --max-"), 0),
    ],
)
def test_fail_on_takes_several_words(fail_on: str, text: str, code: int) -> None:
    assert invoked("check", "-", "--fail-on", fail_on, stdin=text).exit_code == code


SKIPPED = """
apiVersion: kvgate.io/v1alpha1
kind: InferenceDeployment
metadata: {name: chat, annotations: {kvgate.io/skip-budget: load test, kvgate.io/skip-budget-until: 2126-12-24T18:00:00Z}}
spec:
  model: {name: Qwen/Qwen3-8B}
  accelerator: {type: L4-24GB}
  vllm: {maxModelLen: 40960, maxNumSeqs: 1}
"""
"""An end without quotes is a text for kubectl too."""


@pytest.mark.parametrize(
    ("options", "text", "code"),
    [
        ([], SKIPPED, 0),
        (["--fail-on", "error"], SKIPPED, 0),
        (["--fail-on", "skipped"], SKIPPED, 1),
        (["--fail-on", "unknown,skipped"], SKIPPED, 1),
        (["--fail-on", "warning"], SKIPPED, 1),
        (["--fail-on", "skipped,warning"], SKIPPED.replace("maxModelLen: 40960", "maxModelLen: 4096"), 0),
        ([], SKIPPED.replace("2126", "2025"), 1),
        ([], SKIPPED.replace("T18:00:00Z", ""), 1),
        ([], SKIPPED.replace("maxNumSeqs: 1", "maxNumSeqs: 1, tensorParallelSize: 3"), 1),
    ],
)
def test_a_skipped_budget_passes_unless_it_is_to_fail(options: list[str], text: str, code: int) -> None:
    assert invoked("check", "-", *options, stdin=text).exit_code == code


def test_the_json_has_the_skip_with_its_end() -> None:
    answer = json.loads(invoked("check", "-", "-o", "json", stdin=SKIPPED).output)
    (judged,) = answer["documents"]
    assert judged["admission"]["skip"] == {"reason": "load test", "until": "2126-12-24T18:00:00Z"}
    assert (judged["verdict"], answer["summary"]["decisions"]) == ("DoesNotFit", {"Skipped": 1})
    assert [each["rule"] for each in judged["findings"] if each["severity"] == "error"] == []


def test_mistakes_of_the_requirements_are_all_told() -> None:
    Path(".kvgate.yaml").write_text(
        "failOn: never\nrequire: {headroom: 10, guarantee: Full, accelerators: [L4-24GB, A-GPU]}\n"
        "mappings: [{paths: [a], require: {headroom: 100%}}]\n",
        encoding="utf-8",
    )
    result = invoked("check", "-", stdin=POD)
    assert result.exit_code == 2
    for field in (
        "failOn",
        "require.headroom",
        "require.guarantee",
        "require.accelerators[1]",
        "mappings[0].require.headroom",
    ):
        assert field in result.stderr
    assert "'never' is none of error, warning, unknown" in invoked("check", "-", "--fail-on", "never", stdin=POD).stderr
