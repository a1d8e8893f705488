"""Each file of a checkout that changes a verdict is named in every format, and CI can read such files from another revision."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvgate import catalogue
from kvgate.checkpoint.published import Published, lock_text
from support.command_line import invoked
from support.repositories import Sandbox

LARGE = "meta-llama/Llama-3.1-70B-Instruct"
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: engine}
spec:
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.32.0
    args: [--model=%s, --max-model-len=4096]
    resources: {limits: {nvidia.com/gpu: 1}}
"""
ON_L4 = POD.replace("  containers:", "  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}\n  containers:")
CONFIG = catalogue.load_model(LARGE).config
LOCK = lock_text([Published(name="Qwen/Qwen3-8B", config=catalogue.load_model("Qwen/Qwen3-8B").config),
                  Published(name=LARGE, config={**CONFIG, "num_hidden_layers": 1})])  # fmt: skip
LOCK_LINE = next(number for number, line in enumerate(LOCK.split("\n"), 1) if LARGE in line) - 1
SETTINGS = """\
accelerator: L4-24GB
models: {lock: models.lock}
ignore:
- {rule: SourcesContradict, reason: we know}
"""
FORMATS = ("text", "json", "sarif", "junit", "github", "gitlab", "markdown")


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """The checkout of a pull request that loosens its own check in every way, after a commit that does not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    repository = Sandbox(tmp_path)
    strict = {"a.yaml": POD % LARGE, "hidden/b.yaml": ON_L4 % LARGE, ".kvgate.yaml": "accelerator: L4-24GB\n"}
    repository.commit_files(strict)
    repository.commit_files({".kvgate.yaml": SETTINGS, "models.lock": LOCK, ".kvgateignore": "# no\nhidden/\n"})
    return repository


def report(*arguments: str, code: int = 0) -> dict[str, Any]:
    result = invoked("check", *arguments, "-o", "json")
    assert result.exit_code == code, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_names_what_changed_the_verdict(sandbox: Sandbox, form: str) -> None:
    result = invoked("check", ".", "-o", form)
    assert result.exit_code == 0
    for part in (
        f"models.lock:{LOCK_LINE}",
        "1 layer, not 80 layers",
        ".kvgate.yaml:1",
        "we know",
        ".kvgate.yaml:4",
        ".kvgateignore:2",
    ):
        assert part in result.stdout, part
    assert "hidden" in result.stdout


def test_the_json_has_each_source_and_how_sure_it_is(sandbox: Sandbox) -> None:
    answer = report(".")
    (document,) = answer["documents"]
    assert (document["verdict"], document["confidence"]) == ("MayNotFit", "Contradictory")
    told = {each["fact"]: (each["source"], each["place"]) for each in document["provenance"]}
    assert told == {
        "model": ("lock file", f"models.lock:{LOCK_LINE}"),
        "accelerator": ("configuration", ".kvgate.yaml:1"),
        "ignore SourcesContradict": ("configuration", ".kvgate.yaml:4"),
    }
    assert [each["place"] for each in document["ignored"]] == [".kvgate.yaml:4"]
    assert [(each["path"], each["by"]) for each in answer["skipped"]] == [("hidden", ".kvgateignore:2")]


def test_what_changes_nothing_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest states its GPU, and the lock file does not have its model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(ON_L4 % "Qwen/Qwen3-0.6B")
    (tmp_path / "models.lock").write_text(LOCK)
    (tmp_path / ".kvgate.yaml").write_text(
        "accelerator: H100-SXM-80GB\nvllmVersion: 0.33.0\nmodels: {lock: models.lock}\n"
    )
    (document,) = report(".")["documents"]
    assert [(each["fact"], each["source"], each["place"]) for each in document["provenance"]] == [
        ("model", "catalogue", "")
    ]
    assert document["confidence"] == "Known"
    assert "rests on" not in invoked("check", ".").stdout


IN_POOL = POD.replace("  containers:", "  nodeSelector: {cloud.google.com/gke-nodepool: small}\n  containers:")
POOLS = "pools:\n  big: [H200-SXM-141GB]\n  small: [%s]\naccelerator: %s\n"


@pytest.mark.parametrize(
    ("engine", "configured", "sources"),
    [
        (IN_POOL, "T4-16GB", {"pool small": ".kvgate.yaml:3"}),
        (POD, "small", {"accelerator": ".kvgate.yaml:4", "pool small": ".kvgate.yaml:3"}),
        (POD, "T4-16GB", {"accelerator": ".kvgate.yaml:4"}),
    ],
)
def test_a_pool_is_named_where_it_states_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, configured: str, sources: dict[str, str]
) -> None:
    """The accelerator of the configuration is named only where no pool wins over it; the command line wins over both."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(engine % "Qwen/Qwen3-0.6B")
    (tmp_path / ".kvgate.yaml").write_text(POOLS % ("L4-24GB", configured))
    (document,) = report(".")["documents"]
    assert {each["fact"]: each["place"] for each in document["provenance"]} == {"model": "", **sources}
    (document,) = report(".", "--accelerator", "H100-SXM-80GB")["documents"]
    assert [each["fact"] for each in document["provenance"]] == ["model"]


def test_diff_names_a_pool_whose_gpus_change(sandbox: Sandbox) -> None:
    before = {"a.yaml": None, "hidden/b.yaml": None, "c.yaml": IN_POOL % "Qwen/Qwen3-8B"}
    sandbox.commit_files({**before, ".kvgate.yaml": POOLS % ("L4-24GB", "T4-16GB")})
    sandbox.commit_files({".kvgate.yaml": POOLS % ("H100-SXM-80GB", "T4-16GB")})
    shown = invoked("diff", "main~1..main").stdout
    assert "pool small: from .kvgate.yaml:3, L4-24GB → from .kvgate.yaml:3, H100-SXM-80GB" in shown, shown


def test_the_catalogue_may_go_first(sandbox: Sandbox) -> None:
    answer = report(".", "--facts", "catalogue-first", code=1)
    (document,) = answer["documents"]
    assert document["verdict"] == "DoesNotFit"
    assert next(each["source"] for each in document["provenance"]) == "catalogue"


CONFIG_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: model, namespace: serving}
data:
  other: x
  config.json: '%s'
---
apiVersion: kvgate.io/v1alpha1
kind: InferenceDeployment
metadata: {name: one, namespace: serving}
spec:
  model: {name: %s, configFrom: {configMapKeyRef: {name: model, key: config.json}}}
  accelerator: {type: L4-24GB}
  vllm: {maxModelLen: 4096, maxNumSeqs: 1}
"""


def test_a_config_map_is_named_and_gives_way_to_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(CONFIG_MAP % (json.dumps({**CONFIG, "num_hidden_layers": 1}), LARGE))
    (document,) = report("a.yaml")["documents"]
    assert (document["verdict"], document["admission"]["decision"]) == ("MayNotFit", "AdmitWithWarning")
    assert document["provenance"][0]["place"] == "a.yaml:6"
    assert "1 layer, not 80 layers" in document["provenance"][0]["detail"]
    (document,) = report("a.yaml", "--facts=catalogue-first", code=1)["documents"]
    assert document["admission"]["decision"] == "Refuse"
    own = CONFIG_MAP % (json.dumps({**CONFIG, "num_hidden_layers": 1}), "acme/own")
    (tmp_path / "a.yaml").write_text(own)
    (document,) = report("a.yaml", "--facts=catalogue-first")["documents"]
    assert (document["verdict"], document["confidence"]) == ("Fits", "Known")


def test_an_object_that_contradictory_facts_do_not_fit_is_admitted_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = CONFIG_MAP % (json.dumps({**CONFIG, "num_hidden_layers": 800}), LARGE)
    (tmp_path / "a.yaml").write_text(text)
    (document,) = report("a.yaml")["documents"]
    admission = document["admission"]
    assert (document["verdict"], admission["decision"], admission["reason"]) == (
        "DoesNotFit", "AdmitWithWarning", "SourcesContradict",
    )  # fmt: skip
    assert admission["alternatives"] == []


def test_observed_starts_are_named_where_they_correct_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Path(__file__).parents[4] / "docs" / "examples" / "calibration.jsonl"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "starts.jsonl").write_text(starts.read_text(encoding="utf-8"))
    (tmp_path / ".kvgate.yaml").write_text("calibration: starts.jsonl\n")
    engine = POD.replace(
        "  containers:", "  nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}\n  containers:"
    )
    (tmp_path / "a.yaml").write_text(engine.replace("v0.32.0", "v0.19.0") % "meta-llama/Llama-3.1-8B-Instruct")
    (document,) = report(".")["documents"]
    used = [each for each in document["provenance"] if each["fact"] == "calibration"]
    assert bool(used) is (document["ledger"]["calibration"] is not None)
    assert [(each["source"], each["place"]) for each in used] == [("observed starts", "starts.jsonl")]


def test_an_ignore_comment_and_a_baseline_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(f"# kvgate:ignore WeightsTooLarge we know\n{ON_L4 % LARGE}")
    (document,) = report("a.yaml")["documents"]
    assert document["provenance"][-1] == {
        "fact": "ignore WeightsTooLarge", "source": "comment", "place": "a.yaml:1", "is_file": True, "detail": "reason: we know",
    }  # fmt: skip
    (tmp_path / "a.yaml").write_text(ON_L4 % LARGE)
    invoked("check", "a.yaml", "--write-baseline", "known.json")
    (document,) = report("a.yaml", "--baseline", "known.json")["documents"]
    assert [each["place"] for each in document["ignored"]] == ["known.json"]
    assert "known.json" in invoked("check", "a.yaml", "--baseline", "known.json", "-o", "github").stdout


def test_a_pull_request_cannot_loosen_its_own_check(sandbox: Sandbox) -> None:
    answer = report(".", "--config-from", "main~1", code=1)
    assert {each["file"]: each["verdict"] for each in answer["documents"]} == {
        "a.yaml": "DoesNotFit", "hidden/b.yaml": "DoesNotFit",
    }  # fmt: skip
    assert (answer["skipped"], answer["summary"]["ignored"]) == ([], 0)
    places = {each["place"] for document in answer["documents"] for each in document["provenance"]}
    assert places == {"", "main~1:.kvgate.yaml:1"}


def test_files_that_settings_and_options_name_come_from_the_revision_too(sandbox: Sandbox) -> None:
    sandbox.commit_files({"models.lock": None, ".kvgate.yaml": None, ".kvgateignore": None})
    (document,) = report(".", "--config-from", "HEAD~1")["documents"]
    assert document["provenance"][0]["place"] == f"HEAD~1:models.lock:{LOCK_LINE}"
    (sandbox.folder / "models.lock").write_text("no lock file")
    (document,) = report("a.yaml", "--config-from", "HEAD~1", "--lock", "models.lock")["documents"]
    assert document["confidence"] == "Contradictory"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--config-from", "nowhere"), "nowhere is neither a file nor a revision"),
        (("--config-from", "main~1", "--lock", "models.lock"), "main~1 has no file models.lock"),
    ],
)
def test_a_revision_that_cannot_be_read_is_misuse(sandbox: Sandbox, arguments: tuple[str, ...], part: str) -> None:
    result = invoked("check", ".", *arguments)
    assert (result.exit_code, part in result.stderr) == (2, True), result.stderr


def test_a_mistake_in_the_revision_is_named_as_git_names_its_file(sandbox: Sandbox) -> None:
    sandbox.commit_files({".kvgate.yaml": "models: {lock: missing.lock}\n"})
    result = invoked("check", ".", "--config-from", "HEAD")
    assert (result.exit_code, result.stderr.startswith("HEAD:missing.lock cannot be read")) == (2, True), result.stderr
    sandbox.commit_files({".kvgate.yaml": "nonsense: 1\n"})
    result = invoked("check", ".", "--config-from", "HEAD")
    assert (result.exit_code, "HEAD:.kvgate.yaml:1" in result.stderr) == (2, True), result.stderr


def test_mappings_of_the_revision_are_about_the_files_of_the_checkout(sandbox: Sandbox) -> None:
    mapping = "mappings:\n- {paths: [deploy/*], accelerator: H200-SXM-141GB}\naccelerator: L4-24GB\n"
    sandbox.commit_files({".kvgate.yaml": mapping, "deploy/c.yaml": POD % "Qwen/Qwen3-8B"})
    (sandbox.folder / ".kvgate.yaml").write_text("accelerator: T4-16GB\n")
    (document,) = report("deploy", "--config-from", "HEAD")["documents"]
    assert document["engine"]["accelerator"] == "H200-SXM-141GB"
    assert [each["place"] for each in document["provenance"]] == ["", "HEAD:.kvgate.yaml:2"]


VALUES = "large: {model: %s}\nsmall: {model: Qwen/Qwen3-0.6B}\nimage: vllm/vllm-openai:v0.32.0\ncount: 1\n"
MAPPING = """\
accelerator: L4-24GB
mappings:
- paths: ["*.yaml"]
  fields: {model: %s.model, image: image, gpus: count}
  workload: {peakConcurrency: 1, promptTokens: %d, outputTokens: 10}
"""


def test_diff_names_other_places_of_facts_and_another_workload(sandbox: Sandbox) -> None:
    files = {"a.yaml": None, "hidden/b.yaml": None, "values.yaml": VALUES % LARGE}
    sandbox.commit_files({**files, ".kvgate.yaml": MAPPING % ("large", 100)})
    sandbox.commit_files({".kvgate.yaml": MAPPING % ("small", 200)})
    (engine,) = json.loads(invoked("diff", "main~1..main", "-o", "json").stdout)["engines"]
    assert {"places of facts", "workload"} <= {each["fact"] for each in engine["changed_sources"]}
    assert "places of facts: from .kvgate.yaml:4, whose content changed" in invoked("diff", "main~1..main").stdout


def test_a_model_folder_is_named_with_its_paths_in_the_repository(sandbox: Sandbox) -> None:
    """`diff` reads each side from a folder of its own; a source whose file and content stay is none that changed."""
    files = {
        ".kvgate.yaml": "modelConfig: m/config.json\n",
        "m/config.json": json.dumps(catalogue.load_model("Qwen/Qwen3-8B").config),
        ".kvgateignore": None,
    }
    sandbox.commit_files({**files, "hidden/b.yaml": None, "a.yaml": ON_L4 % "acme/own"})
    (document,) = report(".")["documents"]
    assert [(each["fact"], each["place"]) for each in document["provenance"]] == [
        ("model", "m/config.json"), ("choice of config.json", ".kvgate.yaml:1"),
    ]  # fmt: skip
    sandbox.commit_files({"a.yaml": (ON_L4 % "acme/own").replace("4096", "8192")})
    (engine,) = json.loads(invoked("diff", "main~1..main", "-o", "json").stdout)["engines"]
    assert (engine["change"], engine["changed_sources"]) == ("changed", [])
    awq = {"quant_method": "awq", "bits": 4, "w_bit": 4, "q_group_size": 128, "group_size": 128, "zero_point": True}
    sandbox.commit_files({"m/quant_config.json": json.dumps(awq)})
    for sides in ("main~1..main", "main~1"):
        shown = invoked("diff", sides).stdout
        assert "model: from m/config.json → from m/config.json, with quant_config.json" in shown, shown
    assert "file=m/config.json,line=1" in invoked("check", ".", "-o", "github").stdout
    (document,) = report(".", "--config-from", "main")["documents"]
    assert document["provenance"][0]["place"] == "main:m/config.json"
    sandbox.commit_files({".kvgate.yaml": None})
    for revision, place in (((), "m/config.json"), (("--config-from", "main"), "main:m/config.json")):
        (document,) = report(".", "--model-config", "m/config.json", *revision)["documents"]
        assert document["provenance"][0]["place"] == place


def test_diff_names_the_source_that_changed(sandbox: Sandbox) -> None:
    result = invoked("diff", "main~1..main", "-o", "json")
    engines = {each["file"]: each for each in json.loads(result.stdout)["engines"]}
    changed = {each["fact"]: each for each in engines["a.yaml"]["changed_sources"]}
    assert set(changed) == {"model", "ignore SourcesContradict"}
    assert changed["model"]["before"]["source"] == "catalogue"
    assert changed["model"]["after"]["place"] == f"models.lock:{LOCK_LINE}"
    assert changed["ignore SourcesContradict"]["before"] is None
    (gone,) = engines["hidden/b.yaml"]["changed_sources"]
    assert (gone["fact"], gone["after"]["place"]) == ("not read", ".kvgateignore:2")
    for form in ("text", "markdown"):
        shown = invoked("diff", "main~1..main", "-o", form).stdout
        assert f"models.lock:{LOCK_LINE}, differs from the catalogue: 1 layer, not 80 layers" in shown
        assert ".kvgateignore:2" in shown


def test_an_entry_that_only_moves_changes_nothing(sandbox: Sandbox) -> None:
    sandbox.commit_files({".kvgateignore": None})
    sandbox.commit_files({"models.lock": LOCK.replace("\n", "\n\n", 1)})
    engines = json.loads(invoked("diff", "main~1..main", "-o", "json").stdout)["engines"]
    assert [(each["change"], each["effects"], each["changed_sources"]) for each in engines] == [
        ("unchanged", [], [])
    ] * 2


def test_an_entry_whose_content_changes_is_named_though_its_place_stays(sandbox: Sandbox) -> None:
    sandbox.commit_files({"models.lock": LOCK.replace('"num_hidden_layers": 1,', '"num_hidden_layers": 2,')})
    (engine,) = json.loads(invoked("diff", "main~1..main", "-o", "json").stdout)["engines"]
    (source,) = engine["changed_sources"]
    assert "2 layers, not 80 layers" in source["after"]["detail"]
    assert [each["setting"] for each in engine["effects"]] == ["model_config"]


def test_an_adapter_of_the_lock_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    adapter = {"peft_type": "LORA", "r": 16, "base_model_name_or_path": "Qwen/Qwen3-0.6B", "target_modules": ["q_proj"]}
    (tmp_path / "models.lock").write_text(lock_text([Published(name="acme/lora", config={}, adapter=adapter)]))
    (tmp_path / ".kvgate.yaml").write_text("models: {lock: models.lock}\n")
    arguments = "--model=%s, --enable-lora, --lora-modules=support=acme/lora"
    (tmp_path / "a.yaml").write_text(ON_L4.replace("--model=%s", arguments) % "Qwen/Qwen3-0.6B")
    (document,) = report(".")["documents"]
    assert {each["fact"]: each["place"] for each in document["provenance"]} == {
        "model": "", "adapter support": "models.lock:4",
    }  # fmt: skip


TINY = lock_text(
    [Published(name="Qwen/Qwen3-8B", config={**catalogue.load_model("Qwen/Qwen3-8B").config, "num_hidden_layers": 80})]
)


@pytest.mark.parametrize(
    ("requirement", "code"), [("guarantee: FullContext", 0), ("headroom: 99%", 0), ("accelerators: [H100-SXM-80GB]", 1)]
)
def test_contradictory_figures_break_no_requirement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requirement: str, code: int
) -> None:
    """The GPU is no figure: an accelerator that is not allowed stays an error. Without the lock file each of the three is one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.lock").write_text(TINY)
    (tmp_path / "a.yaml").write_text(ON_L4.replace("NVIDIA-L4", "NVIDIA-L40S") % "Qwen/Qwen3-8B")
    (tmp_path / ".kvgate.yaml").write_text(f"models: {{lock: models.lock}}\nrequire: {{{requirement}}}\n")
    (document,) = report(".", code=code)["documents"]
    assert document["confidence"] == "Contradictory"
    report(".", "--facts=catalogue-first", code=1)


def test_explain_knows_the_sources_of_an_engine_in_a_manifest(sandbox: Sandbox) -> None:
    shown = invoked("explain", "a.yaml")
    assert "rests on: model from models.lock" in shown.stdout
    first = invoked("explain", "a.yaml", "--facts", "catalogue-first")
    assert (first.exit_code, "models.lock" in first.stdout) == (1, False)
