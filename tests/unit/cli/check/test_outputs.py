"""What `kvgate check` writes for other programs: each format by its own rules, all with the same findings."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import fastjsonschema
import pytest

from kvgate.cli.check.command import FORMATS
from kvgate.cli.rule_examples import page_of
from kvgate.rules.catalogue import RULES
from support.command_line import MISTAKEN_POD, invoked

HERE = Path(__file__).parent
REFUSED = """\
apiVersion: kvgate.io/v1alpha1
kind: InferenceDeployment
metadata: {name: one, namespace: serving}
spec:
  model: {name: Qwen/Qwen3-8B}
  accelerator: {type: L4-24GB}
  vllm:
    maxNumSeqs: 64
"""
ADJUSTED = REFUSED.replace("name: one", "name: two") + "  admission: {policy: Adjust}\n"
UNKNOWN = REFUSED.replace("Qwen3-8B", "Qwen3-8").replace("name: one", "name: unknown")
NAME = "a folder/ünï,co:de%.yaml"
STREAM = f"{REFUSED}---\n{ADJUSTED}---\n{MISTAKEN_POD}---\n{UNKNOWN}---\na: [1,\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KVGATE_DOCS_URL", raising=False)
    (tmp_path / NAME).parent.mkdir()
    (tmp_path / NAME).write_text(STREAM, encoding="utf-8")
    return tmp_path


def answer(output: str, *arguments: str, stdin: str | None = None, code: int = 1) -> str:
    result = invoked("check", *(arguments or (NAME,)), "-o", output, stdin=stdin)
    assert result.exit_code == code, result.output
    return result.stdout


def findings() -> list[tuple[str, int, str]]:
    """(rule, line, severity) of every finding of the report, from JSON."""
    report = json.loads(answer("json"))
    told = [f for document in report["documents"] for f in document["findings"]]
    return [(f["rule"], f["line"], f["severity"]) for f in told] + [
        (f["rule"], f["line"], "error") for f in report["unreadable"]
    ]


@lru_cache(maxsize=1)
def sarif_schema() -> Callable[[Any], Any]:
    schema = json.loads((HERE / "data" / "sarif-schema-2.1.0.json").read_text(encoding="utf-8"))
    compiled: Callable[[Any], Any] = fastjsonschema.compile(schema)
    return compiled


def valid_sarif(text: str) -> Any:
    log = json.loads(text)
    sarif_schema()(log)
    return log["runs"][0]


def test_sarif_is_valid_and_says_what_the_report_says(folder: Path) -> None:
    run = valid_sarif(answer("sarif"))
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    levels = {"error": "error", "warning": "warning", "note": "info"}
    told = []
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert unquote(place["artifactLocation"]["uri"]) == NAME
        told.append((result["ruleId"], place["region"]["startLine"], levels[result["level"]]))
    assert told == findings()
    assert ("KVCacheTooSmall", 16, "warning") in told  # the policy admits it after an adjustment


def anchor_is_there(address: str, rule: str) -> bool:
    """Whether an address without a host leads to the rule's heading in a file."""
    file, _, anchor = address.partition("#")
    headings = Path(url2pathname(urlsplit(file).path)).read_text(encoding="utf-8").splitlines()
    return anchor == rule.lower() and f"## {rule}" in headings


def test_sarif_carries_help_for_every_rule_that_it_names(folder: Path) -> None:
    for rule in valid_sarif(answer("sarif"))["tool"]["driver"]["rules"]:
        ours = RULES[rule["id"]]
        assert rule["shortDescription"]["text"] == ours.title
        assert ours.words in rule["help"]["markdown"]
        assert page_of(ours) in rule["help"]["text"]
        assert anchor_is_there(rule["helpUri"], ours.id)


def test_sarif_leads_to_published_pages_where_the_environment_knows_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVGATE_DOCS_URL", "https://git.example/our/kvgate/blob/v1/docs/")
    first = valid_sarif(answer("sarif"))["tool"]["driver"]["rules"][0]
    assert first["helpUri"] == f"https://git.example/our/kvgate/blob/v1/docs/reference/rules.md#{first['id'].lower()}"


def fingerprints(text: str) -> list[str]:
    return [issue["fingerprint"] for issue in json.loads(text)]


def test_a_fingerprint_stays_when_lines_move_and_numbers_change(folder: Path) -> None:
    before = fingerprints(answer("gitlab"))
    assert len(set(before)) == len(before)
    (folder / NAME).write_text("# moved\n\n" + STREAM.replace("maxNumSeqs: 64", "maxNumSeqs: 63"), encoding="utf-8")
    assert fingerprints(answer("gitlab")) == before
    assert [r["partialFingerprints"]["kvgate/v1"] for r in valid_sarif(answer("sarif"))["results"]] == before
    (folder / NAME).write_text(STREAM.replace("name: one", "name: three"), encoding="utf-8")
    assert len(set(fingerprints(answer("gitlab"))) & set(before)) == len(before) - 1


def test_equal_findings_of_one_engine_have_different_fingerprints(folder: Path) -> None:
    twice = MISTAKEN_POD.replace("- --no-such-option\n", "- --no-such-option\n    - --nor-this\n")
    found = fingerprints(answer("gitlab", "-", stdin=twice))
    assert len(found) == 3
    assert len(set(found)) == 3


def test_gitlab_gets_issues_with_path_line_and_severity(folder: Path) -> None:
    issues = json.loads(answer("gitlab"))
    assert {issue["location"]["path"] for issue in issues} == {NAME}
    assert {issue["severity"] for issue in issues} <= {"info", "minor", "major", "critical", "blocker"}
    assert [(i["check_name"], i["location"]["lines"]["begin"]) for i in issues] == [f[:2] for f in findings()]
    assert all(issue["description"] for issue in issues)


def test_github_gets_one_command_per_finding_errors_first(folder: Path) -> None:
    lines = answer("github").splitlines()
    commands = [line for line in lines if line.startswith("::")]
    assert len(commands) == len(findings())
    kinds = [command.split()[0] for command in commands]
    assert kinds == sorted(kinds, key=["::error", "::warning", "::notice"].index)
    assert "file=a folder/ünï%2Cco%3Ade%25.yaml,line=7,col=3,title=KVCacheTooSmall::serving/one: " in commands[0]
    assert lines[-1].startswith("3 InferenceDeployments: ")


def test_github_commands_stay_on_one_line_whatever_a_manifest_says(folder: Path) -> None:
    odd = MISTAKEN_POD.replace("--no-such-option", '"--no-such\\n::error::option\\r100%"')
    lines = answer("github", "-", stdin=odd).splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["::error", "::error"]
    assert "--no-such\\n::error::option\\r100%25" in lines[1]


def test_junit_counts_what_it_holds(folder: Path) -> None:
    root = ET.fromstring(answer("junit"))
    suite, about = root.iter("testsuite")
    assert about.findtext("system-out") == answer("text").splitlines()[-1].partition("; 1 info")[0]
    counts = {"tests": "5", "failures": "2", "errors": "1", "skipped": "1"}
    assert {name: suite.get(name) for name in counts} == counts
    assert {name: root.get(name) for name in counts} == counts
    assert [child.tag for case in suite for child in case] == ["failure", "system-out", "failure", "skipped", "error"]
    assert [case.get("line") for case in suite] == ["1", "10", "26", "34", "44"]
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("type") == "KVCacheTooSmall"


def test_junit_is_xml_whatever_a_manifest_says(folder: Path) -> None:
    odd = MISTAKEN_POD.replace("--no-such-option", '"--no\\x01<&\\ud800\\U0001f600"')
    text = answer("junit", "-", stdin=odd.replace("\\ud800", "\\x7f"))
    assert "--no\\x01<&\\x7f😀" in "".join(ET.fromstring(text).itertext())


def test_markdown_lists_engines_and_findings(folder: Path) -> None:
    text = answer("markdown")
    assert "| serving/one | DoesNotFit, refused | does not start; at most " in text
    assert "| pod engine on L4-24GB | DoesNotFit | does not start" in text
    assert text.count("\n- ") == len(findings())


def test_markdown_of_a_manifest_calls_nobody_and_links_nowhere(folder: Path) -> None:
    odd = MISTAKEN_POD.replace("--no-such-option", '"--no|@someone <img> [a](b) #12 `x`"')
    line = next(line for line in answer("markdown", "-", stdin=odd).splitlines() if "OptionUnknown" in line)
    assert r"--no\|@<!-- -->someone \<img\> \[a\](b) #<!-- -->12 `x`" in line
    assert len(re.findall(r"(?<!\\)\|", line)) == 0


def test_text_begins_no_line_and_colours_nothing_that_a_manifest_says() -> None:
    name, word = r'"x\n::error::no\e[31m"', r'"--no-such\n::stop-commands::x"'
    pod = MISTAKEN_POD.replace("name: engine", f"name: {name}").replace("--no-such-option", word)
    text = invoked("check", "-", stdin=pod).stdout
    assert r"pod x\n::error::no\x1b[31m on L4-24GB: DoesNotFit" in text
    assert not any(line.startswith("::") for line in text.splitlines())


def test_text_stands_in_columns_and_on_one_screen(folder: Path) -> None:
    odd = MISTAKEN_POD.replace("--no-such-option", f"--{'x' * 5000}")
    lines = answer("text", "-", stdin=odd).splitlines()
    told = [line for line in lines if line.startswith("  <stdin>:")]
    assert len({line.index(rule) for line, rule in zip(told, ("KVCacheTooSmall", "OptionUnknown"), strict=True)}) == 1
    assert max(map(len, lines)) < 80 * 20


@pytest.mark.parametrize("output", FORMATS)
def test_an_input_without_engines_is_valid_in_every_format(folder: Path, output: str) -> None:
    text = answer(output, "-", stdin="kind: Service\n", code=2)
    if output in ("json", "sarif", "gitlab"):
        json.loads(text)
    if output == "sarif":
        valid_sarif(text)
    if output == "junit":
        assert ET.fromstring(text).get("tests") == "0"


def test_people_see_infos_where_they_ask_for_them_and_where_nothing_was_decided(folder: Path) -> None:
    default = MISTAKEN_POD.replace("    - --no-such-option\n", "").replace("40960", "8192")
    told = answer("text", "-", stdin=default, code=0)
    assert "info" not in told.splitlines()[0]
    assert told.splitlines()[-1] == "1 engine: 1 starts; 1 info is not shown (--show info shows it)"
    assert "Oversubscribed" not in answer("markdown", "-", stdin=default, code=0)
    for output in ("text", "markdown"):
        assert "Oversubscribed" in answer(output, "-", "--show", "info", stdin=default, code=0)
    assert "Oversubscribed" in answer("github", "-", stdin=default, code=0)
    unknown = default.replace("Qwen/Qwen3-8B", "org/of-nobody")
    assert "info UnknownModel" in answer("text", "-", stdin=unknown, code=2)
    chosen = MISTAKEN_POD.replace("40960", "8192\n    - --max-num-seqs=256")
    only_errors = answer("text", "--show", "error", "-", stdin=chosen)
    assert "Oversubscribed" not in only_errors
    assert only_errors.splitlines()[-1].endswith("1 finding is not shown (--show warning shows it)")


def test_findings_are_sorted_by_line_and_then_by_severity(folder: Path) -> None:
    odd = MISTAKEN_POD.replace("    - --no-such-option\n", "    - {a: b}\n").replace(
        "    - --max", "    - --no-such-option\n    - --max"
    )
    documents = json.loads(answer("json", "-", stdin=odd))["documents"]
    order = [(f["line"], ["error", "warning", "info"].index(f["severity"])) for d in documents for f in d["findings"]]
    assert order == sorted(order)
    assert len(order) > 1


def test_a_limit_of_the_scheduler_oversubscribes_as_an_info_and_a_declared_workload_as_a_warning(folder: Path) -> None:
    default = MISTAKEN_POD.replace("    - --no-such-option\n", "").replace("40960", "8192")
    chosen = default.replace("    - --max-model", "    - --max-num-seqs=256\n    - --max-model")
    declared = f"# kvgate:workload peakConcurrency=64 promptTokens=7000 outputTokens=500\n{default}"
    for text, severity, code in ((default, "info", 0), (chosen, "info", 0), (declared, "warning", 1)):
        (document,) = json.loads(answer("json", "-", "--fail-on", "warning", stdin=text, code=code))["documents"]
        assert [(f["rule"], f["severity"]) for f in document["findings"]] == [("Oversubscribed", severity)]


def test_a_verdict_without_a_named_gpu_says_on_which_ones_and_how_much_the_smallest_has(folder: Path) -> None:
    unnamed = MISTAKEN_POD.replace("    - --no-such-option\n", "").replace(
        "  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}\n", ""
    )
    (line,) = [line for line in answer("text", "-", stdin=unnamed, code=0).splitlines() if line.startswith("<stdin>")]
    assert re.match(r"<stdin>:\d+: pod engine: Fits: starts on [A-Z0-9, and-]+ and larger; ", line)
    assert re.search(
        r"; on (\S+) \d+\.\d requests of 40960 tokens at once, .* GiB of KV cache \(headroom \d+ %\)$", line
    )
    full = ("--guarantee", "FullContext", "--accelerator", "H100-SXM-80GB,H200-SXM-141GB")
    told = answer("text", "-", *full, stdin=unnamed.replace("- --max-", "- --max-num-seqs=12\n    - --max-"), code=1)
    assert "does not hold full context (12 requests of 40960 tokens)" in told
    cpu = unnamed.replace("vllm/vllm-openai:v0.32.0", "vllm/vllm-openai-cpu:v0.32.0")
    assert "NotJudged: not judged (RunsOnCpu)" in answer("text", "-", stdin=cpu, code=0)


def test_what_only_kvgate_does_not_know_is_an_info_and_so_is_a_gpu_that_nobody_chose(folder: Path) -> None:
    chosen = MISTAKEN_POD.replace("    - --no-such-option\n", "    - --max-num-seqs=256\n").replace("40960", "8192")
    declared = f"# kvgate:workload peakConcurrency=64 promptTokens=7000 outputTokens=500\n{chosen}"
    unnamed = chosen.replace("  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}\n", "")
    old = chosen.replace("v0.32.0", "v0.4.3")
    for text, rule, severity, code in (
        (declared, "Oversubscribed", "warning", 0),
        (unnamed, "Oversubscribed", "info", 0),
        (old, "UnknownVersion", "info", 2),
    ):
        (document,) = json.loads(answer("json", "-", stdin=text, code=code))["documents"]
        assert {f["severity"] for f in document["findings"] if f["rule"] == rule} == {severity}
