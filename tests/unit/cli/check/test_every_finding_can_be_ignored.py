"""Whatever `kvgate check` says of an input, somebody can answer for it: by a comment, in the configuration, and in a baseline."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.cli.rule_examples import Example, example_of
from kvgate.findings.finding import Rule
from kvgate.rules.catalogue import RULES
from support.command_line import invoked

NOT_IN_CHECK = {
    "InvalidConfig": "nothing is judged with such a configuration",
    "AssessmentStopped": "a time limit of the webhook and the controller",
    "SearchStopped": "a time limit of the webhook and the controller",
    "NodesContradict": "a finding about the nodes of a cluster, which a file does not show",
}
NO_COMMENT = {
    "InvalidYaml": "the comments of a document that cannot be parsed are not read",
    "Unreadable": "the comments of a file that cannot be read are not read",
    "UnknownKind": "the document is not one of kvgate's, and its comments are not read",
}
"""Rule → why a comment cannot ignore it; the configuration and a baseline can."""
IN_CHECK = {
    rule: example
    for rule in RULES.values()
    if rule.id not in NOT_IN_CHECK and (example := example_of(rule)) and example.kind == "manifest"
}
STRICT = ("--fail-on", "warning,unknown")


def checked(example: Example, folder: Path, *options: str, settings: str = "", text: str = "") -> tuple[Any, int]:
    config = folder / "settings.yaml"
    config.write_text(settings or example.settings, encoding="utf-8")
    result = invoked(
        "check", "-", "-o", "json", "--config", str(config), *example.options, *options, stdin=text or example.fires
    )
    return json.loads(result.stdout), result.exit_code


def rules(report: Any, key: str = "findings") -> list[str]:
    unreadable = [each["rule"] for each in report["unreadable"]] if key == "findings" else []
    return [each["rule"] for document in report["documents"] for each in document[key]] + unreadable


def test_every_rule_of_check_is_tried() -> None:
    left = {rule.id for rule in RULES.values()} - {rule.id for rule in IN_CHECK} - set(NOT_IN_CHECK)
    assert {example_of(RULES[each]).kind for each in left} == {"request"}  # type: ignore[union-attr]


@pytest.mark.parametrize(("rule", "example"), IN_CHECK.items(), ids=[rule.id for rule in IN_CHECK])
def test_the_configuration_ignores_it(rule: Rule, example: Example, tmp_path: Path) -> None:
    entry = [{"rule": rule.id, "reason": "we know"}]
    settings = yaml.safe_dump({**(yaml.safe_load(example.settings or "{}") or {}), "ignore": entry})
    report, _ = checked(example, tmp_path, settings=settings)
    assert rule.id not in rules(report)


@pytest.mark.parametrize(("rule", "example"), IN_CHECK.items(), ids=[rule.id for rule in IN_CHECK])
def test_a_baseline_holds_for_everything_and_nothing_fails(rule: Rule, example: Example, tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    before, _ = checked(example, tmp_path)
    assert rule.id in rules(before)
    checked(example, tmp_path, "--write-baseline", str(baseline))
    report, code = checked(example, tmp_path, "--baseline", str(baseline), *STRICT)
    assert rules(report) == []
    has_engine = any(each["engine"] or each["admission"] for each in report["documents"])
    assert code == (0 if has_engine else 2)


@pytest.mark.parametrize(
    ("rule", "example"),
    [(rule, example) for rule, example in IN_CHECK.items() if rule.id not in NO_COMMENT],
    ids=[rule.id for rule in IN_CHECK if rule.id not in NO_COMMENT],
)
def test_a_comment_before_the_document_ignores_it(rule: Rule, example: Example, tmp_path: Path) -> None:
    report, _ = checked(example, tmp_path, text=commented(rule, example))
    assert rule.id not in rules(report)
    assert rule.id in rules(report, "ignored")


@pytest.mark.parametrize("name", NO_COMMENT)
def test_a_comment_in_what_cannot_be_read_is_none(name: str, tmp_path: Path) -> None:
    rule, example = RULES[name], IN_CHECK[RULES[name]]
    assert name in rules(checked(example, tmp_path, text=commented(rule, example))[0])


def commented(rule: Rule, example: Example) -> str:
    """The example with a comment before each document."""
    head = f"# kvgate:ignore {rule.id} we know\n"
    return "---\n".join(head + part for part in example.fires.split("---\n"))


UNKNOWN = {
    "UnknownModel": ("nobody/heard-of-it", "NVIDIA-L4"),
    "VariableUnknown": ("Qwen/Qwen3-0.6B --max-num-seqs=$(SEQS)", "NVIDIA-L4"),
    "ModelNotNamed": ("", "NVIDIA-L4"),
    "UnknownAccelerator": ("Qwen/Qwen3-0.6B", "NVIDIA-Z9000"),
}


@pytest.mark.parametrize("rule", UNKNOWN)
def test_an_unknown_verdict_that_somebody_answers_for_fails_nothing(rule: str) -> None:
    model, gpu = UNKNOWN[rule]
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"},
        "spec": {
            "nodeSelector": {"nvidia.com/gpu.product": gpu},
            "containers": [{
                "name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "command": ["vllm", "serve"],
                "args": [*model.split(), "--max-model-len=4096"],
                "resources": {"limits": {"nvidia.com/gpu": 1}},
            }],
        },
    }  # fmt: skip
    text = yaml.safe_dump(pod)
    result = invoked("check", "-", "-o", "json", stdin=text)
    (document,) = json.loads(result.stdout)["documents"]
    assert (document["verdict"], result.exit_code) == ("Unknown", 2)
    assert rule in [each["rule"] for each in document["findings"]]
    assert invoked("check", "-", *STRICT, stdin=text).exit_code == 1
    ignored = invoked("check", "-", "--fail-on", "unknown", stdin=f"# kvgate:ignore {rule} we know\n{text}")
    assert ignored.exit_code == 0, ignored.output
