"""`.kvgate.yaml`: where it is found, what it decides, and everything that is wrong with it at once."""

import json
import re
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
import yaml
from click.testing import Result

from kvgate.cli.check.repository_config import Config, read_repository_config
from kvgate.cli.exits import BadInput
from support.command_line import invoked

ROOT = Path(__file__).parents[4]
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: llama-chat, namespace: serving, labels: {pool: chat}}
spec:
  containers:
  - {name: vllm, args: [vllm, serve, Qwen/Qwen3-8B, --max-model-len=8192, --max-num-seqs=2]}
"""
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "vocab_size": 32000,
    "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 8192,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "clusters" / "eu").mkdir(parents=True)
    (tmp_path / "clusters" / "eu" / "pod.yaml").write_text(POD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, stdin: str | None = None) -> Result:
    return invoked("check", *(arguments or ("clusters",)), stdin=stdin)


def judged(*arguments: str, stdin: str | None = None) -> Any:
    return json.loads(run(*(arguments or ("clusters",)), "-o", "json", stdin=stdin).stdout)["documents"][0]


def configure(folder: Path, text: str) -> None:
    (folder / ".kvgate.yaml").write_text(text)


def test_it_is_found_upward_from_what_is_checked(folder: Path) -> None:
    assert judged()["engine"]["accelerator"] is None
    configure(folder, 'accelerator: L4-24GB\nvllmVersion: "0.20.0"\n')
    for path in ("clusters", "clusters/eu/pod.yaml", str(folder)):
        document = judged(path)
        assert (document["engine"]["accelerator"], document["engine"]["vllm_version"]) == ("L4-24GB", "0.20.0")
    assert judged("-", stdin=POD)["engine"]["accelerator"] == "L4-24GB"
    assert ("accelerator", "L4-24GB") in [(each["fact"], each["value"]) for each in judged()["assumed"]]


def test_the_nearest_one_counts_and_different_ones_are_not_mixed(folder: Path) -> None:
    configure(folder, "accelerator: L4-24GB\n")
    configure(folder / "clusters" / "eu", "accelerator: H100-SXM-80GB\n")
    assert judged("clusters/eu")["engine"]["accelerator"] == "H100-SXM-80GB"
    assert judged("clusters")["engine"]["accelerator"] == "L4-24GB"
    result = run("clusters", "clusters/eu/pod.yaml")
    assert result.exit_code == 2
    assert "different configurations" in result.stderr
    assert judged("clusters/eu", "--config", ".kvgate.yaml")["engine"]["accelerator"] == "L4-24GB"


def test_the_command_line_wins_and_the_manifest_over_both(folder: Path) -> None:
    configure(folder, "accelerator: L4-24GB\nfailOn: warning\nmappings: [{paths: ['**'], accelerator: L40S-48GB}]\n")
    assert judged()["engine"]["accelerator"] == "L40S-48GB"
    assert judged("clusters", "--accelerator", "H100-SXM-80GB")["engine"]["accelerator"] == "H100-SXM-80GB"
    own = POD.replace("spec:\n", "spec:\n  nodeSelector: {nvidia.com/gpu.product: Tesla-T4}\n")
    assert judged("-", "--accelerator", "H100-SXM-80GB", stdin=own)["engine"]["accelerator"] == "T4-16GB"


@pytest.mark.parametrize(
    ("mapping", "matches"),
    [
        ("paths: [clusters/eu/**]", True),
        ("paths: [clusters]", True),
        ("paths: ['**/pod.yaml']", True),
        ("paths: [clusters/us, '*.yaml']", False),
        ("selector: {matchLabels: {pool: chat}}", True),
        ("selector: {matchLabels: {pool: chat, tier: a}}", False),
        ("selector: {name: llama-*}", True),
        ("selector: {name: qwen-*}", False),
        ("selector: {namespace: serv*}", True),
        ("selector: {namespace: default}", False),
        ("paths: [clusters], selector: {name: qwen-*}", False),
    ],
)
def test_a_mapping_is_for_paths_and_for_what_is_written_in_objects(
    folder: Path, mapping: str, *, matches: bool
) -> None:
    configure(folder, f"mappings: [{{{mapping}, accelerator: L4-24GB}}]\n")
    assert (judged()["engine"]["accelerator"] == "L4-24GB") is matches


def test_labels_of_the_pods_count_too(folder: Path) -> None:
    deployment = """\
kind: Deployment
metadata: {name: x}
spec:
  template:
    metadata: {labels: {pool: batch}}
    spec: {containers: [{args: [vllm, serve, Qwen/Qwen3-8B]}]}
"""
    configure(folder, "mappings: [{selector: {matchLabels: {pool: batch}}, accelerator: L4-24GB}]\n")
    assert judged("-", stdin=deployment)["engine"]["accelerator"] == "L4-24GB"


def test_of_several_mappings_the_first_one_that_says_something_counts(folder: Path) -> None:
    configure(
        folder,
        'vllmVersion: "0.19.0"\nmappings: [{paths: ["**"], vllmVersion: v0.20.0}, {paths: ["**"], vllmVersion: "0.21.0", '
        "accelerator: L4-24GB}]\n",
    )
    document = judged()
    assert (document["engine"]["vllm_version"], document["engine"]["accelerator"]) == ("0.20.0", "L4-24GB")


def test_a_mapping_says_what_an_engine_serves(folder: Path) -> None:
    configure(
        folder,
        "mappings: [{paths: [clusters], accelerator: L4-24GB, workload: {peakConcurrency: 99, promptTokens: 6000, outputTokens: 500}}]",
    )
    document = judged()
    assert "the workload (99 requests of 6500 tokens)" in document["findings"][0]["message"]
    assert {finding["severity"] for finding in document["findings"]} == {"warning"}


@pytest.mark.parametrize("where", ["", "mappings:\n- selector: {name: '*'}\n  "])
def test_a_config_json_serves_models_that_nobody_knows(folder: Path, where: str) -> None:
    unknown = POD.replace("Qwen/Qwen3-8B", "ours/llama")
    ours = "apiVersion: kvgate.io/v1alpha1\nkind: InferenceDeployment\nmetadata: {name: x}\nspec: {model: {name: ours/llama}, "
    ours += "accelerator: {type: L4-24GB}, vllm: {maxNumSeqs: 2}}\n"
    (folder / "models").mkdir()
    (folder / "models" / "llama.json").write_text(json.dumps(LLAMA))
    configure(folder, f"accelerator: L4-24GB\n{where}modelConfig: models/llama.json\n")
    assert judged("-", stdin=unknown)["verdict"] == "Fits"
    assert judged("-", stdin=ours)["verdict"] == "Fits"
    assert "Qwen3-8B" not in str(judged()["findings"]), "a model of the catalogue keeps its own"
    (folder / ".kvgate.yaml").write_text("accelerator: L4-24GB\n")
    assert judged("-", stdin=unknown)["verdict"] == "Unknown"


def test_a_rule_is_ignored_everywhere_or_in_some_files(folder: Path) -> None:
    configure(
        folder,
        "accelerator: L4-24GB\nfailOn: warning\nignore: [{rule: KVCacheTooSmall, reason: tests, paths: [clusters]}]\n",
    )
    long = POD.replace("8192", "40960")
    (folder / "clusters/eu/pod.yaml").write_text(long)
    assert run().exit_code == 0
    assert [f["by"] for f in judged()["ignored"]] == ["configuration"]
    assert run("-", stdin=long).exit_code == 1
    (folder / "clusters/eu/broken.yaml").write_text("vllm: [")
    assert run().exit_code == 1
    configure(
        folder,
        "ignore: [{rule: InvalidYaml, reason: x, paths: ['**/broken.yaml']}, {rule: AcceleratorDecides, reason: x}]\n",
    )
    result = run()
    assert result.exit_code == 0
    assert "2 findings ignored" in result.stdout


def test_fail_on_of_the_file_is_what_the_command_line_does_not_say(folder: Path) -> None:
    configure(folder, "accelerator: L4-24GB\nfailOn: warning\n")
    deep = POD.replace("--max-num-seqs=2", "--max-num-seqs=2, --max-num-seqs=4")
    assert run("-", stdin=deep).exit_code == 1
    assert run("-", "--fail-on", "error", stdin=deep).exit_code == 0


WRONG = """\
acelerator: L4-24GB
failOn: info
vllmVersion: 0.33
modelConfig: none.json
ignore:
- rule: KVCacheToSmall
  reason: ""
- rule: ThinHedroom
  reason: x
mappings:
- accelerator: H100-80GB-SXM9
- paths: [x]
- paths: [x]
  workload: {peakConcurrency: 0, promptTokens: 1}
"""


def test_everything_that_is_wrong_is_told_at_once_with_line_value_and_what_to_do(folder: Path) -> None:
    configure(folder, WRONG)
    result = run()
    assert result.exit_code == 2
    assert result.stdout == ""
    told: dict[int, str] = {}
    for line, text in re.findall(r"kvgate.yaml:(\d+):\d+: error InvalidConfig (.*\n.*)", result.stderr):
        told[int(line)] = told.get(int(line), "") + text
    expected = {
        1: "did you mean accelerator?", 2: "'info'", 3: "0.33", 7: "reason is ''", 4: "none.json cannot be read",
        8: "did you mean ThinHeadroom?", 11: "H100-80GB-SXM9 is not in the catalogue", 12: "states no fact", 14: "outputTokens",
    }  # fmt: skip
    assert {line for line, text in expected.items() if text not in told.get(line, "")} == set()


@pytest.mark.parametrize(
    "text", ["a: [", "- a\n", "x", "{{ a }}: b", "mappings: [{accelerator: 7}]", "ignore: {rule: x}"]
)
def test_what_is_no_configuration_is_told(folder: Path, text: str) -> None:
    configure(folder, text)
    result = run()
    assert result.exit_code == 2
    assert re.search(r"\.kvgate\.yaml:[12]:\d+: error \w+ ", result.stderr)


def test_a_second_document_is_told_and_not_passed_over(folder: Path) -> None:
    configure(folder, "failOn: warning\n---\nfailOn: error\n")
    result = run()
    assert result.exit_code == 2
    assert ".kvgate.yaml has 2 documents" in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a\n", "the document is ['a']; it must be an object"),
        ("ignore: 3\n", "ignore is 3; it must be a list"),
        ("mappings: [{selector: x, accelerator: L4-24GB}]\n", "mappings[0].selector is 'x'; it must be an object"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_in_words_of_yaml(folder: Path, text: str, words: str) -> None:
    configure(folder, text)
    assert words in run().stderr


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}\n", "null\n"])
def test_an_empty_configuration_says_nothing(folder: Path, text: str) -> None:
    configure(folder, text)
    assert (judged()["verdict"], judged()["engine"]["accelerator"]) == ("Fits", None)


def test_the_example_of_the_reference_is_valid() -> None:
    page = (ROOT / "docs/reference/config.md").read_text(encoding="utf-8")
    example = page.split("```yaml\n")[1].split("```")[0]
    config = Config.model_validate(yaml.safe_load(example))
    assert len(config.mappings) == len(config.ignore) == 2


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("accelerator: L4-24GB\nfailOn: !!bool x\n", "2:9", "'x' is not a value of type !!bool"),
        ("accelerator: !!int ''\n", "1:14", "'' is not a value of type !!int"),
        (f"vllmVersion: 0b{'1' * 9000}\n", "1:14", "a number of 9002 characters"),
        (f"vllmVersion: 1{':59' * 3000}\n", "1:14", "a number of 9001 characters"),
        ("!!str {=: x}\n", "1:1", "does not make an object"),
        ("? [a]\n: 1\n", "1:3", "unhashable"),
    ],
)
def test_a_value_that_yaml_cannot_hold_is_told_at_its_place(folder: Path, text: str, place: str, words: str) -> None:
    configure(folder, text)
    told = run().stderr
    assert f".kvgate.yaml:{place}: error InvalidYaml" in told
    assert words in told


def test_a_configuration_with_thousands_of_mistakes_shows_the_first(tmp_path: Path) -> None:
    path = tmp_path / ".kvgate.yaml"
    path.write_text("ignore:\n" + "- {rule: IdleGpu, reason: x}\n" * 900, encoding="utf-8")
    with pytest.raises(BadInput, match="more than 100 mistakes: the first 100 are shown") as caught:
        read_repository_config(path)
    assert len(caught.value.problems) == 100


@pytest.mark.parametrize("field", ["ignore", "mappings"])
def test_a_list_that_everything_is_compared_with_has_a_limit(tmp_path: Path, field: str) -> None:
    entry = {"ignore": "{rule: IdleGpus, reason: x}", "mappings": "{paths: [a], vllmVersion: 0.33.0}"}[field]
    path = tmp_path / ".kvgate.yaml"
    path.write_text(f"{field}:\n" + f"- {entry}\n" * 1001, encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        read_repository_config(path)
    (problem,) = caught.value.problems
    assert (problem.finding.field, "1000" in problem.finding.message) == (field, True)


def test_an_engine_must_start_on_each_gpu_of_its_pool(folder: Path) -> None:
    configure(folder, "pools: {small: [L4-24GB, T4-16GB], large: [H100-SXM-80GB]}\naccelerator: L4-24GB\n")
    pod = folder / "clusters/eu/pod.yaml"
    text = POD.replace("spec:", "spec:\n  nodeSelector: {cloud.google.com/gke-nodepool: small}", 1)
    pod.write_text(text)
    small = judged()
    assert (small["verdict"], small["engine"]["accelerator"]) == ("DoesNotFit", "T4-16GB")
    assert any(each["message"].startswith("on T4-16GB: ") for each in small["findings"])
    pod.write_text(text.replace("small", "large"))
    assert (judged()["verdict"], judged()["engine"]["accelerator"]) == ("Fits", "H100-SXM-80GB")
    pod.write_text(text.replace("small", "unheard-of"))
    assert judged()["engine"]["accelerator"] == "L4-24GB"
    pod.write_text(text)
    assert judged("clusters", "--accelerator", "H100-SXM-80GB")["engine"]["accelerator"] == "H100-SXM-80GB", (
        "the command line wins"
    )
    assert judged("clusters", "--accelerator", "small")["verdict"] == "DoesNotFit"


def test_a_mapping_may_name_a_pool_or_several_gpus(folder: Path) -> None:
    configure(folder, "pools: {small: [L4-24GB]}\nmappings: [{paths: ['**'], accelerator: small}]\n")
    assert judged()["engine"]["accelerator"] == "L4-24GB"
    configure(folder, "mappings: [{paths: ['**'], accelerator: 'H100-SXM-80GB, L4-24GB'}]\n")
    assert judged()["engine"]["accelerator"] == "L4-24GB"


def test_every_unknown_name_of_a_gpu_is_reported_with_its_field(folder: Path) -> None:
    text = "pools: {a: [L4-24GB, FOO], L4: [T4], empty: []}\naccelerator: 'a, BAR'\nmappings: [{paths: ['**'], accelerator: BAZ}]\n"
    configure(folder, text)
    told = run().stderr
    for words in (
        "pools.a[1]: accelerator FOO is not in the catalogue", "pools.L4 is a pool with the name of a GPU", "pools.empty names no GPU",
        "accelerator: accelerator a is not in the catalogue", "accelerator BAR is not", "mappings[0].accelerator: accelerator BAZ is not",
    ):  # fmt: skip
        assert words in told
    configure(folder, "{}\n")
    result = run("clusters", "--gpu", "L4-24GB,FOO,K80")
    assert result.exit_code == 2
    assert "--gpu K80: vLLM needs compute capability 7.0" in result.stderr
    result = run("clusters", "--accelerator", "L4-24GB,FOO,A100")
    assert result.exit_code == 2
    assert "--gpu L4-24GB,FOO,A100: accelerator FOO is not in the catalogue" in result.stderr


def test_the_schema_for_editors_takes_what_kvgate_takes_and_the_example_of_the_page(folder: Path) -> None:
    valid = fastjsonschema.compile(json.loads((ROOT / "docs/reference/config.schema.json").read_text(encoding="utf-8")))
    page = (ROOT / "docs/reference/config.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(vllmVersion.*?)^```", page, re.MULTILINE | re.DOTALL)
    valid(yaml.safe_load(example))
    configure(folder, example)
    assert read_repository_config(folder / ".kvgate.yaml").has_requirements
    for wrong in (
        {"failOn": "never"},
        {"require": {"headroom": 10}},
        {"requires": {}},
        {"mappings": [{"require": {"guarantee": "All"}}]},
    ):
        with pytest.raises(fastjsonschema.JsonSchemaException):
            valid(wrong)


def test_mistakes_in_the_paths_of_fields_are_told_at_once(folder: Path) -> None:
    wrong = "modle: a.b, image: a b, gpus: a.*, options: {max-modle-len: x}"
    configure(folder, f"mappings:\n- paths: [x]\n  fields: {{{wrong}}}\n- paths: [x]\n  fields: {{}}\n")
    result = run()
    assert result.exit_code == 2
    for told in (
        "mappings[0].fields.modle is not a field\n    did you mean model?",
        "mappings[0].fields.image is 'a b', which is not of the right form\n    write the path of a field",
        "mappings[0].fields.gpus is 'a.*', which is not of the right form",
        "mappings[0].fields.options.max-modle-len is for max-modle-len, which is no option of vLLM\n    did you mean max-model-len?",
        "mappings[1].fields names no field",
    ):
        assert told in result.stderr


@pytest.mark.parametrize(
    "model", ["${MODEL}", "$(MODEL)", "$MODEL", "${MODEL:?is asked for}", "hf://$MODEL", "{{ .Values.model }}"]
)
@pytest.mark.parametrize("path", ["clusters", "-"])
def test_the_row_that_a_finding_shows_settles_a_variable(folder: Path, model: str, path: str) -> None:
    text = (
        POD.replace("Qwen/Qwen3-8B", f'"{model}"')
        .replace("metadata: {", "metadata: {labels: {}, ", 1)
        .replace(", labels: {pool: chat}", "")
    )
    (folder / "clusters" / "eu" / "pod.yaml").write_text(text)
    stdin = text if path == "-" else None
    (row,) = set(re.findall(r"state it in \.kvgate\.yaml: `(.*)`", run(path, "--show", "info", stdin=stdin).stdout))
    configure(folder, row.replace("VALUE", "Qwen/Qwen3-8B"))
    document = judged(path, stdin=stdin)
    assert (document["verdict"], document["engine"]["model"]) == ("Fits", "Qwen/Qwen3-8B")
    assert [each["fact"] for each in document["provenance"] if each["source"] == "configuration"] == [
        "values of variables"
    ]


def test_a_variable_may_hold_several_words(folder: Path) -> None:
    (folder / "clusters" / "eu" / "pod.yaml").unlink()
    (folder / "start.sh").write_text('docker run --gpus "$2" vllm/vllm-openai:v0.24.0 --model $1 $EXTRA\n')
    configure(
        folder,
        'mappings: [{paths: [start.sh], variables: {"1": Qwen/Qwen3-8B, "2": "2", EXTRA: "-tp 2 --max-model-len 8192"}}]',
    )
    engine = judged(str(folder))["engine"]
    assert (engine["model"], engine["tensor_parallel_size"], engine["max_model_len"]) == ("Qwen/Qwen3-8B", 2, 8192)


def test_values_of_variables_are_those_of_all_mappings(folder: Path) -> None:
    line = "docker run $IMAGE ${EXTRA:+--max-num-seqs ${EXTRA}} ${NONE:+--seed} --model ${MODEL} --max-model-len ${LENGTH:?}\n"
    (folder / "clusters" / "eu" / "start.sh").write_text(line)
    (folder / "clusters" / "eu" / "pod.yaml").unlink()
    rows = [
        "{MODEL: Qwen/Qwen3-8B, LENGTH: '1'}",
        "{LENGTH: '4096', EXTRA: '7', NONE: '', IMAGE: 'vllm/vllm-openai:v0.24.0'}",
    ]
    configure(folder, "mappings:\n" + "".join(f"- {{paths: [clusters], variables: {row}}}\n" for row in rows))
    engine = judged()["engine"]
    assert (engine["model"], engine["max_model_len"], engine["max_num_seqs"]) == ("Qwen/Qwen3-8B", 1, 7)


def test_an_unseen_script_has_the_options_that_are_stated_for_it(folder: Path) -> None:
    unseen = POD.replace(
        "args: [vllm, serve, Qwen/Qwen3-8B, --max-model-len=8192, --max-num-seqs=2]",
        "image: vllm/vllm-openai, command: [/run.sh]",
    )
    limits = "resources: {limits: {nvidia.com/gpu: 1}}"
    (folder / "clusters" / "eu" / "pod.yaml").write_text(unseen.replace("command:", f"{limits}, command:"))
    assert judged()["verdict"] == "Unknown"
    configure(folder, "mappings: [{paths: [clusters], variables: {/run.sh: Qwen/Qwen3-8B --max-model-len 4096}}]")
    assert (judged()["verdict"], judged()["engine"]["max_model_len"]) == ("Fits", 4096)
