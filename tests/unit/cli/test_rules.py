"""Every rule that the code names is described, and its example does what the reference says."""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from kvgate.cli.rule_texts import RuleText, rule_text, rule_texts
from kvgate.rules.finding import Severity
from support.command_line import invoked

PACKAGE = Path(__file__).parents[3] / "operator" / "kvgate"
RULE_ID = re.compile(r"[A-Z][A-Za-z]+")


def fired(text: RuleText, example: str, folder: Path) -> set[tuple[str, str]]:
    """(rule, severity) of every finding."""
    if text.kind == "config":
        return fired_by_config(example, folder)
    is_request = text.kind == "request"
    arguments = ["explain", "--requests", "-", "-o", "jsonl"] if is_request else ["check", "-", "-o", "json"]
    answer = json.loads(invoked(*arguments, stdin=example).stdout)
    findings = answer["findings"] if is_request else [f for d in answer["documents"] for f in d["findings"]]
    unreadable = [] if is_request else answer["unreadable"]
    return {(f["rule"], f["severity"]) for f in findings} | {(f["rule"], "error") for f in unreadable}


def fired_by_config(example: str, folder: Path) -> set[tuple[str, str]]:
    path = folder / ".kvgate.yaml"
    path.write_text(example, encoding="utf-8")
    told = invoked("check", "-", "--config", str(path), stdin="kind: Service\n").stderr
    return {(rule, severity) for severity, rule in re.findall(r"^\S+:\d+:\d+: (\w+) +(\w+) ", told, re.MULTILINE)}


@pytest.mark.parametrize("rule", [rule for rule, text in rule_texts().items() if text.kind != "process"])
def test_a_rule_fires_on_its_example_and_not_after_the_change(rule: str, tmp_path: Path) -> None:
    text = rule_text(rule)
    told = {severity for name, severity in fired(text, text.example, tmp_path) if name == rule}
    assert told
    assert told <= set(text.severities)
    assert text.silent_example != text.example
    assert rule not in {name for name, _ in fired(text, text.silent_example, tmp_path)}


def test_only_what_takes_too_long_has_no_example() -> None:
    without = {rule for rule, text in rule_texts().items() if not text.example}
    assert without == {rule for rule, text in rule_texts().items() if text.kind == "process"}
    assert without == {"AssessmentStopped", "SearchStopped"}


def rules_in_the_code() -> Iterator[str]:
    """What is given as `rule=`, as the first argument of a function whose parameter is called so, or is its default."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    takers = {node.name for node in nodes if isinstance(node, ast.FunctionDef) and _takes_rule(node)}
    for node in nodes:
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            given = [keyword.value for keyword in node.keywords if keyword.arg == "rule"]
            given += node.args[:1] if name in takers else []
            yield from _ids(given)
        elif isinstance(node, ast.FunctionDef):
            yield from _ids(
                default
                for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                if argument.arg == "rule"
            )


def _ids(given: Iterable[ast.expr | None]) -> Iterator[str]:
    texts = (value.value for value in given if isinstance(value, ast.Constant))
    return (text for text in texts if isinstance(text, str) and RULE_ID.fullmatch(text))


def _takes_rule(function: ast.FunctionDef) -> bool:
    names = [argument.arg for argument in function.args.args if argument.arg != "self"]
    return names[:1] == ["rule"]


def test_every_rule_of_the_code_is_described_and_no_other() -> None:
    assert set(rules_in_the_code()) == set(rule_texts()), "describe it in data/rules.yaml; run `make generate`"


def test_a_rule_is_listed_with_severity_sentence_and_page() -> None:
    result = invoked("rules", "kvcachetoosmall", "-o", "json")
    (row,) = json.loads(result.stdout)
    assert row["rule"] == "KVCacheTooSmall"
    assert row["severities"] == [Severity.ERROR, Severity.WARNING]
    assert row["page"] == "docs/reference/rules.md#kvcachetoosmall"
    assert "max_model_len" in invoked("rules", "KVCacheTooSmall").stdout
    assert invoked("rules", "NoSuchRule").exit_code == 2


def test_every_page_that_help_leads_to_is_there() -> None:
    root = PACKAGE.parents[1]
    page = (root / "docs/reference/rules.md").read_text(encoding="utf-8")
    anchors = {line[3:].lower() for line in page.splitlines() if line.startswith("## ")}
    assert {text.page.partition("#")[2] for text in rule_texts().values()} == anchors
