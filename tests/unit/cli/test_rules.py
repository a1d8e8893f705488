"""Every rule is in the catalogue, and its example does what the reference says."""

import json
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

import kvgate
from kvgate.cli import rule_examples
from kvgate.cli.rule_examples import Example, address_of, example_of, page_of
from kvgate.findings.finding import Rule, Scope, Severity
from kvgate.rules.catalogue import RULES
from support.command_line import invoked
from support.tables import table

ROOT = Path(__file__).parents[3]


def fired(example: Example, folder: Path) -> set[tuple[str, str]]:
    """(rule, severity) of every finding."""
    if example.kind == "config":
        return fired_by_config(example.fires, folder)
    settings = folder / "settings.yaml"
    settings.write_text(example.settings, encoding="utf-8")
    is_request = example.kind == "request"
    check = ["check", "-", "-o", "json", "--config", str(settings), *example.options]
    arguments = ["explain", "--requests", "-", "-o", "jsonl"] if is_request else check
    answer = json.loads(invoked(*arguments, stdin=example.fires).stdout)
    findings = answer["findings"] if is_request else [f for d in answer["documents"] for f in d["findings"]]
    unreadable = [] if is_request else answer["unreadable"]
    return {(f["rule"], f["severity"]) for f in findings} | {(f["rule"], "error") for f in unreadable}


def fired_by_config(example: str, folder: Path) -> set[tuple[str, str]]:
    path = folder / ".kvgate.yaml"
    path.write_text(example, encoding="utf-8")
    told = invoked("check", "-", "--config", str(path), stdin="kind: Service\n").stderr
    return {(rule, severity) for severity, rule in re.findall(r"^\S+:\d+:\d+: (\w+) +(\w+) ", told, re.MULTILINE)}


EXAMPLES = {rule: example for rule in RULES.values() if (example := example_of(rule))}


@pytest.mark.parametrize(("rule", "example"), EXAMPLES.items(), ids=[rule.id for rule in EXAMPLES])
def test_a_rule_fires_on_its_example_and_not_after_the_change(rule: Rule, example: Example, tmp_path: Path) -> None:
    told = {severity for name, severity in fired(example, tmp_path) if name == rule.id}
    assert told
    assert told <= set(rule.severities)
    assert example.silent != example
    assert rule.id not in {name for name, _ in fired(example.silent, tmp_path)}


def test_only_what_takes_too_long_or_needs_a_cluster_has_no_example() -> None:
    without = {rule.id for rule in RULES.values() if example_of(rule) is None}
    too_long = {rule.id for rule in RULES.values() if rule.scope is Scope.TIME_LIMITS}
    assert too_long == {"AssessmentStopped", "SearchStopped"}
    assert without == too_long | {"NodesContradict"}


def test_the_catalogue_has_every_rule_that_a_module_defines_once() -> None:
    names = [
        module.name for module in pkgutil.walk_packages(kvgate.__path__, "kvgate.") if "__main__" not in module.name
    ]
    defined = {
        id(value): value for name in names for value in vars(import_module(name)).values() if isinstance(value, Rule)
    }
    ids = sorted(rule.id for rule in defined.values())
    assert ids == sorted(RULES)
    assert all(RULES[rule.id] is rule for rule in defined.values())


@table("rule", RULES.values(), ids=str)
def test_the_words_of_a_rule_are_sentences(rule: Rule) -> None:
    assert re.fullmatch(r"[A-Za-z].*[.]", rule.title)
    assert not rule.explanation or re.fullmatch(r"[A-Za-z].*[.]", rule.explanation)
    assert rule.severities


def test_a_rule_is_listed_with_severity_sentence_and_page() -> None:
    result = invoked("rules", "kvcachetoosmall", "-o", "json")
    (row,) = json.loads(result.stdout)
    assert row["rule"] == "KVCacheTooSmall"
    assert row["severities"] == [Severity.ERROR, Severity.WARNING, Severity.INFO]
    assert row["page"] == "docs/reference/rules.md#kvcachetoosmall"
    assert "max_model_len" in invoked("rules", "KVCacheTooSmall").stdout
    assert invoked("rules", "NoSuchRule").exit_code == 2


def test_every_page_that_help_leads_to_is_there() -> None:
    page = (ROOT / "docs/reference/rules.md").read_text(encoding="utf-8")
    anchors = {line[3:].lower() for line in page.splitlines() if line.startswith("## ")}
    assert {page_of(rule).partition("#")[2] for rule in RULES.values()} == anchors
    for rule in RULES.values():
        file, _, anchor = address_of(page_of(rule)).partition("#")
        assert Path(url2pathname(urlsplit(file).path)).samefile(ROOT / "docs/reference/rules.md")
        assert anchor in anchors


def test_links_follow_the_address_of_the_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_examples, "DOCS_URL", "https://git.example/our/kvgate/blob/main/docs")
    told = invoked("rules", "KVCacheTooSmall").stdout
    assert told.rstrip().endswith("https://git.example/our/kvgate/blob/main/docs/reference/rules.md#kvcachetoosmall")
    monkeypatch.setenv("KVGATE_DOCS_URL", "https://docs.example/")
    assert address_of("docs/runbooks/A.md") == "https://docs.example/runbooks/A.md"


@pytest.mark.parametrize(
    ("origin", "address"),
    [
        (
            {"url": "https://git.example/our/kvgate.git", "vcs_info": {"vcs": "git", "commit_id": "a1b2"}},
            "https://git.example/our/kvgate/blob/a1b2/docs",
        ),
        ({"url": "file:///src/kvgate", "dir_info": {"editable": True}}, ""),
        ({"url": "ssh://git@git.example/our/kvgate", "vcs_info": {"vcs": "git", "commit_id": "a1b2"}}, ""),
    ],
)
def test_an_installation_from_a_repository_leads_to_its_pages(
    origin: object, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(read_text=lambda _: json.dumps(origin))
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: found)
    assert rule_examples._installed_from.__wrapped__() == address
