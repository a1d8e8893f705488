"""Rows of the table "How to add" in CONTRIBUTING.md, followed to the letter in a copy of the tree: a user sees what was added, and the
tests that the rows name pass."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Container
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

import before_and_after
from kvgate.cli.exits import Exit
from mutants.__main__ import copy_tree
from support.json_schemas import checked_report
from support.package_index import ONLY_THIS_INDEX, archive, package_index
from support.vllm_source import new_source

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECIPES: dict[str, dict[str, list[Any]]] = yaml.safe_load((HERE / "recipes.yaml").read_text(encoding="utf-8"))
RELEASE = "a release of vLLM"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: toy}
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-Toy}
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.33.0
    args: [--model, toy/Tiny-0.6B]
    resources: {limits: {nvidia.com/gpu: 1}}
"""
DEPLOYMENT = """
apiVersion: kvgate.io/v1alpha1
kind: InferenceDeployment
metadata: {name: toy}
spec:
  model: {name: toy/Tiny-0.6B}
  accelerator: {type: TOY-24GB}
  toyCount: 7
  vllm: {longPrefillTokenThreshold: 777, maxModelLen: 1024, maxNumSeqs: 4}
"""


def copied(root: Path) -> Path:
    copy_tree(ROOT, root)
    return root


def followed(root: Path, name: str) -> None:
    for edit in RECIPES[name]["writes"]:
        path, above = root / edit["path"], edit.get("above", "")
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.read_text(encoding="utf-8") if path.exists() else ""
        assert not above or written.count(f"\n{above}") == 1, f"{path.name}: {above!r}"
        changed = written.replace(f"\n{above}", f"\n{edit['text']}{above}") if above else written + edit["text"]
        path.write_text(changed, encoding="utf-8")


def run(root: Path, *arguments: str, stdin: str = "", codes: Container[int] = (0,), **variables: str) -> str:
    """What Python prints in the copy, if it ends with one of these codes."""
    environment = {**os.environ, "PYTHONPATH": f"operator{os.pathsep}tools", **variables}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment, cwd=root, check=False)
    assert done.returncode in codes, done.stdout[-5000:] + done.stderr
    return done.stdout


def proved(root: Path, *names: str) -> None:
    """The tests that these rows name pass in the copy."""
    tests = dict.fromkeys(test for name in names for test in RECIPES[name].get("proofs", ()))
    run(root, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", *tests)


def kvgate(root: Path, *arguments: str, stdin: str = "") -> Any:
    """What kvgate answers, whatever the verdict."""
    return json.loads(run(root, "-m", "kvgate", *arguments, "-o", "json", stdin=stdin, codes=tuple(Exit)))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which every recipe but that of a release was followed, up to its `make generate`."""
    root = copied(tmp_path_factory.mktemp("copy"))
    for name in RECIPES.keys() - {RELEASE}:
        followed(root, name)
    run(root, "-m", "generate")
    golden = "tests/manifests/test_golden.py::test_the_report_is_the_golden_one"
    run(root, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "toy", golden, KVGATE_UPDATE_GOLDEN="1")
    return root


@pytest.mark.parametrize("name", RECIPES)
def test_a_row_names_every_file_that_is_written_and_every_test(name: str) -> None:
    rows = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## A release of vLLM")
    (row,) = (row for row in rows[0].splitlines() if row.startswith(f"| {name} |"))
    named = re.findall(r"`([^`]+)`", row + rows[1] * (name == RELEASE))
    paths = [edit["path"] for edit in RECIPES[name]["writes"]] + RECIPES[name].get("proofs", [])
    assert [path for path in paths if not any(fnmatch(path, f"*{word}*") for word in named)] == []


def test_the_tests_that_the_rows_name_pass_on_what_was_added(root: Path) -> None:
    proved(root, *RECIPES.keys() - {RELEASE})


def test_a_rule_is_listed_and_has_a_place_in_the_reference(root: Path) -> None:
    (listed,) = kvgate(root, "rules", "ToyLength")
    assert (listed["severities"], listed["page"]) == (["info"], "docs/reference/rules.md#toylength")
    assert "\n## ToyLength\n" in (root / "docs/reference/rules.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("gpu", ["TOY-24GB", "nvidia toy", "toycard"])
def test_a_model_and_a_gpu_are_found_by_each_of_their_names_and_judged(root: Path, gpu: str) -> None:
    answer = kvgate(root, "explain", "--model", "toy/tiny-0.6b", "--gpu", gpu)
    assert (answer["verdict"], answer["ledger"]["total_bytes"]) == ("Fits", 22564 * 2**20)


def test_a_gpu_is_listed_and_judged_where_a_manifest_selects_its_node_label(root: Path) -> None:
    assert [gpu["name"] for gpu in kvgate(root, "gpus", "toy")] == ["TOY-24GB"]
    (document,) = checked_report(json.dumps(kvgate(root, "check", "-", stdin=POD)))["documents"]
    assert (document["engine"]["accelerator"], document["verdict"]) == ("TOY-24GB", "Fits")


def test_rows_of_labels_images_and_prices_count_at_once(root: Path) -> None:
    by_label = POD.replace("nvidia.com/gpu.product: NVIDIA-Toy", "toy.example.com/card: toy-24")
    pod = by_label.replace("vllm/vllm-openai:v0.33.0", "registry.example.com/toy/serve:1.0\n    command: [vllm, serve]")
    (document,) = kvgate(root, "check", "-", stdin=pod)["documents"]
    assert (document["engine"]["accelerator"], document["engine"]["vllm_version"]) == ("TOY-24GB", "0.32.0")
    cheapest = kvgate(root, "size", "--model", "toy/Tiny-0.6B")["candidates"][0]
    assert (cheapest["accelerator"], cheapest["price_per_gpu_hour"]) == ("TOY-24GB", 0.1)


def test_a_variable_that_is_not_a_users_to_set_is_refused_with_its_reason(root: Path) -> None:
    deployment = f"{DEPLOYMENT}  template: {{env: [{{name: TOY_BOX, value: a}}]}}\n"
    (document,) = kvgate(root, "check", "-", stdin=deployment)["documents"]
    (finding,) = document["findings"]
    assert (finding["path"], finding["severity"]) == ("spec.template.env[0].name", "error")
    assert "it is a toy; leave it out: TOY_BOX" in finding["message"]
    assert "| `TOY_[A-Z]+` | it is a toy | leave it out |" in (root / "docs/reference/pods.md").read_text(
        encoding="utf-8"
    )


def test_an_architecture_has_a_verdict_and_is_no_longer_among_the_unread(root: Path) -> None:
    answer = kvgate(root, "explain", "--model", "toy/Step-0.6B", "--gpu", "TOY-24GB")
    assert (answer["verdict"], answer["ledger"]["parameter_bytes"]) == ("Fits", 1192099840)
    unread = [(tree / "docs/reference/unknown.md").read_text(encoding="utf-8") for tree in (ROOT, root)]
    assert ["`Step1ForCausalLM`" in text for text in unread] == [True, False]


@pytest.mark.parametrize(
    ("case", "engines", "others"),
    [
        ("server", [("toy", "one", "L4-24GB", "DoesNotFit")], 2),
        ("other-group", [], 2),
        ("supporting-only", [], 2),
    ],
)
def test_a_platform_is_read_with_what_supports_it_and_by_its_own_words_only(
    root: Path, case: str, engines: list[object], others: int
) -> None:
    found = json.loads((root / "tests/manifests/toy" / case / "expected.json").read_text(encoding="utf-8"))
    keys = ("platform", "name", "accelerator", "verdict")
    assert [tuple(engine[key] for key in keys) for engine in found["engines"]] == engines
    assert found["other_documents"] == others
    assert all("warning OptionUnknown 4:30 spec.options" in engine["findings"] for engine in found["engines"])


def test_the_reference_and_the_kubectl_plugin_know_a_platform(root: Path) -> None:
    listed = (root / "operator/kvgate/cli/data/kubectl_resources.txt").read_text(encoding="utf-8").split()
    assert {"toyservers.toy.example.com", "toyboards.boards.example.org"} <= set(listed)
    reference = (root / "docs/reference/manifests.md").read_text(encoding="utf-8")
    assert "| `ToyServer` (toy.example.com) | model; options |" in reference


def test_a_setting_is_taken_by_every_door(root: Path) -> None:
    """The budget, a rendered pod, the spec, extraArgs, what-ifs, sweeps, the command line, the CRD and the reference."""
    run(root, str(HERE / "one_setting.py"))
    assert "| `--long-prefill-token-threshold` | `spec.vllm.longPrefillTokenThreshold` |" in (
        root / "docs/reference/pods.md"
    ).read_text(encoding="utf-8")


def test_a_setting_without_a_formula_leaves_the_verdict_open_and_is_listed(root: Path) -> None:
    pod = POD.replace("toy/Tiny-0.6B]", "toy/Tiny-0.6B, --scheduler-cls=a.B]")
    (document,) = kvgate(root, "check", "-", stdin=pod)["documents"]
    assert (document["verdict"], [each["rule"] for each in document["findings"]]) == ("Unknown", ["UnmodelledKind"])
    unknown = (root / "docs/reference/unknown.md").read_text(encoding="utf-8")
    assert "\n| `--scheduler-cls` | a scheduler of its own |\n" in unknown


def test_fields_of_spec_and_status_are_in_the_crd_and_the_chart_and_are_taken(root: Path) -> None:
    crd = yaml.safe_load((root / "crds/kvgate.io_inferencedeployments.yaml").read_text(encoding="utf-8"))
    fields = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    assert fields["spec"]["properties"]["toyCount"]["description"] == "Number of toys."
    assert "toyCount" in fields["status"]["properties"]["budget"]["properties"]
    template = (root / "charts/kvgate/templates/crds/inferencedeployments.yaml").read_text(encoding="utf-8")
    assert template.count("toyCount:") == 2
    (document,) = kvgate(root, "check", "-", stdin=DEPLOYMENT)["documents"]
    assert (document["verdict"], document["findings"]) == ("Fits", [])


def test_a_metric_is_served_and_described(root: Path) -> None:
    program = """if True:
        from kvgate.metrics.exporter import metrics_answer
        from kvgate.metrics.exporter import new_registry
        print(metrics_answer("text/plain", new_registry(), None)[0].decode())"""
    assert "\nkvgate_toys 777.0\n" in run(root, "-c", program)
    assert "kvgate_toys" in (root / "docs/reference/metrics.md").read_text(encoding="utf-8")


def test_an_alert_is_in_the_rules_the_values_of_the_chart_and_the_reference(root: Path) -> None:
    rules = yaml.safe_load((root / "deploy/prometheus/rules.yaml").read_text(encoding="utf-8"))
    alerts = {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    assert alerts["KvgateToy"]["expr"].endswith("> 777")
    assert alerts["KvgateToy"]["annotations"]["runbook_url"].endswith("/KvgateToy.md")
    values = yaml.safe_load((root / "charts/kvgate/values.yaml").read_text(encoding="utf-8"))
    assert "toy" in json.dumps(values["monitoring"])
    assert "KvgateToy" in (root / "docs/reference/alerts.md").read_text(encoding="utf-8")


def test_a_release_of_vllm_is_one_command_and_two_rows(tmp_path: Path) -> None:
    """Until its row stands in the table of releases, a verdict says that nobody has read the release."""
    root = copied(tmp_path / "copy")
    asked = ("explain", "--model", "Qwen/Qwen3-0.6B", "--gpu", "L4-24GB", "--vllm-version", "0.34.0")
    source = {f"vllm-0.34.0/{path}": text for path, text in new_source("0.34.0").files.items()}
    with package_index({"vllm-0.34.0.tar.gz": archive(source)}) as index:
        variables = {**ONLY_THIS_INDEX, "PIP_INDEX_URL": index.url, "XDG_CACHE_HOME": str(tmp_path)}
        report = run(root, "-m", "vllm_release", "0.34.0", **variables)
    assert "add its row to _CHANGES in budget/releases/versions.py" in report
    assert "ReleaseNotKnown" in {finding["rule"] for finding in kvgate(root, *asked)["findings"]}
    followed(root, RELEASE)
    assert "ReleaseNotKnown" not in {finding["rule"] for finding in kvgate(root, *asked)["findings"]}
    proved(root, RELEASE)


def test_speed_is_compared_with_the_revision_that_is_named_and_with_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["before_and_after.py", "--base", "no-such-revision"])
    with pytest.raises(SystemExit, match="no revision no-such-revision in this repository"):
        before_and_after.main()
