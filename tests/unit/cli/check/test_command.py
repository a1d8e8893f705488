"""`kvgate check`: lines with their place, the exit code, and the same answer for programs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result

from kvgate import catalogue
from support.command_line import MISTAKEN_POD, invoked
from support.tables import table

HEAD = """\
apiVersion: kvgate.io/v1alpha1
kind: InferenceDeployment
metadata: {name: one, namespace: serving}
"""
FITS = HEAD + "spec: {model: {name: Qwen/Qwen3-8B}, accelerator: {type: H100-SXM-80GB}, vllm: {maxNumSeqs: 4}}\n"
REFUSED = HEAD + "spec:\n  model: {name: Qwen/Qwen3-8B}\n  accelerator: {type: L4-24GB}\n  vllm:\n    maxNumSeqs: 64\n"
UNKNOWN = FITS.replace("Qwen3-8B", "Qwen3-8")
INVALID = FITS.replace("maxNumSeqs: 4", 'maxNumSeq: 4, gpuMemoryUtilization: "0,9"')
BROKEN = "a: [1,\n"
OTHER = "kind: Service\n"
ON_CPUS = """\
apiVersion: v1
kind: Pod
metadata: {name: on-cpus}
spec:
  containers:
  - name: server
    image: vllm/vllm-openai-cpu:v0.32.0
    args: [--model=Qwen/Qwen3-0.6B]
"""
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "vocab_size": 32000,
    "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 2048,
}  # fmt: skip


def check(*arguments: str, stdin: str | None = None) -> Result:
    return invoked("check", *arguments, stdin=stdin)


def stream(*documents: str) -> str:
    return "---\n".join(documents)


@table(
    ("documents", "code"),
    [
        ((FITS,), 0),
        ((FITS, OTHER), 0),
        ((REFUSED,), 1),
        ((INVALID,), 1),
        ((FITS, REFUSED), 1),
        ((UNKNOWN,), 2),
        ((FITS, UNKNOWN), 0),
        ((UNKNOWN, REFUSED), 1),
        ((BROKEN,), 1),
        ((BROKEN, UNKNOWN), 1),
        ((ON_CPUS,), 0),
        ((ON_CPUS, UNKNOWN), 2),
        ((ON_CPUS, REFUSED), 1),
        ((ON_CPUS, FITS, UNKNOWN), 0),
        ((ON_CPUS, BROKEN), 1),
        ((FITS, BROKEN), 1),
        ((BROKEN, REFUSED), 1),
        ((OTHER,), 2),
        (("",), 2),
        ((REFUSED + "  admission: {policy: Warn}\n",), 0),
        ((REFUSED + "  admission: {policy: Adjust}\n",), 0),
    ],
)
def test_the_exit_code_is_that_of_the_worst_object_which_was_judged(documents: tuple[str, ...], code: int) -> None:
    result = check("-", stdin=stream(*documents))
    assert result.exit_code == code, result.output


def test_an_engine_that_is_not_judged_is_told_once_and_fails_nothing() -> None:
    strict = check("-", "--fail-on", "warning,unknown", "-o", "json", stdin=ON_CPUS)
    (document,) = json.loads(strict.stdout)["documents"]
    assert (strict.exit_code, document["verdict"], document["guarantee"]) == (0, "NotJudged", None)
    assert (document["decides"], document["starts"], document["holds"]) == (None, None, None)
    assert json.loads(strict.stdout)["summary"]["verdicts"] == {"NotJudged": 1}
    assert [each["rule"] for each in document["findings"]] == ["RunsOnCpu"]
    junit = check("-", "-o", "junit", stdin=ON_CPUS).stdout
    assert '<testsuites name="kvgate check" tests="1" failures="0" errors="0" skipped="1">' in junit
    refused = check("-", "-o", "json", stdin=ON_CPUS.replace("]", ", --no-such-option]"))
    assert (refused.exit_code, json.loads(refused.stdout)["documents"][0]["verdict"]) == (1, "DoesNotFit")


def test_requirements_do_not_apply_to_what_is_not_judged(tmp_path: Path) -> None:
    config = tmp_path / ".kvgate.yaml"
    config.write_text("require: {headroom: 10%, accelerators: [L4-24GB], guarantee: FullContext}\n", encoding="utf-8")
    result = check("-", "--config", str(config), "--fail-on", "warning,unknown", stdin=ON_CPUS)
    assert result.exit_code == 0, result.output


def test_every_finding_has_its_place(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(stream(OTHER, REFUSED, INVALID))
    output = check(str(path)).output
    assert f"{path}:3: serving/one: DoesNotFit, refused" in output
    assert f"{path}:9:3: error" in output
    assert "would fit: " in output
    assert f"{path}:15:" in output
    assert "did you mean maxNumSeqs?" in output
    assert 'such as "0.90"' in output
    assert "2 InferenceDeployments: 2 refused; 1 document of other kinds was not judged" in output


def test_a_snake_cased_setting_is_an_error_and_not_an_admission(tmp_path: Path) -> None:
    """The API server prunes it: without it the context is the model's own, which does not fit an L4."""
    path = tmp_path / "x.yaml"
    model = "spec: {model: {name: Qwen/Qwen3-8B}, accelerator: {type: L4-24GB}, "
    written = {name: HEAD + model + f"vllm: {{{name}: 4096}}}}\n" for name in ("max_model_len", "maxModelLen")}
    path.write_text(written["max_model_len"])
    refused = check(str(path))
    assert refused.exit_code == 1
    assert "spec.vllm.max_model_len is not a field" in refused.output
    assert "did you mean maxModelLen?" in refused.output
    assert check("-", stdin=written["maxModelLen"]).exit_code == 0
    assert "DoesNotFit, refused" in check("-", stdin=HEAD + model + "vllm: {}}\n").output


def test_a_slip_in_metadata_is_told_with_the_others() -> None:
    head = HEAD.replace("metadata: {", "metadata: {nmae: x, ")
    spec = "spec: {model: {name: Qwen/Qwen3-8B}, accelerator: {type: L4-24GB}, replica: 2}\n"
    answer = json.loads(check("-", "-o", "json", stdin=head + spec).output)
    fields = {finding["field"] for finding in answer["documents"][0]["findings"]}
    assert fields == {"metadata.nmae", "spec.replica"}


def test_all_findings_of_a_document_are_told_at_once() -> None:
    spec = "spec: {model: {}, accelerator: {type: 7}, vllm: {tensorParallelSize: 0, maxModelLen: 32k}, replica: 2}\n"
    answer = json.loads(check("-", "-o", "json", stdin=HEAD + spec).output)
    fields = {finding["field"] for finding in answer["documents"][0]["findings"]}
    assert fields == {
        "spec.model.name", "spec.accelerator.type", "spec.vllm.tensorParallelSize", "spec.vllm.maxModelLen", "spec.replica",
    }  # fmt: skip


@table("value", ["0", '"0"', '"1.5"', '"0,9"', "1.5", "0.9", "true", "null-ish"])
def test_a_utilization_that_is_none_is_refused_with_what_to_write(value: str) -> None:
    document = FITS.replace("maxNumSeqs: 4", f"gpuMemoryUtilization: {value}")
    answer = json.loads(check("-", "-o", "json", stdin=document).output)
    finding = answer["documents"][0]["findings"][0]
    assert finding["field"] == "spec.vllm.gpuMemoryUtilization"
    assert finding["message"]


@pytest.mark.parametrize("version", ["foo", "0", f"0.{'9' * 40}.1"])
def test_a_version_option_that_is_no_release_is_a_usage_error(version: str) -> None:
    result = check("--vllm-version", version, "-", stdin=FITS)
    assert result.exit_code == 2
    assert "Invalid value for '--vllm-version'" in result.output
    assert "is not a vLLM version; write it as 0.33.0" in result.output


def test_each_gpu_has_its_verdict_in_numbers_and_in_words() -> None:
    args = "[--model=Qwen/Qwen3-8B, --max-model-len=8192]"
    pod = f"kind: Pod\napiVersion: v1\nspec: {{containers: [{{name: x, image: 'vllm/vllm-openai:v0.32.0', args: {args}}}]}}\n"
    told = {}
    for guarantee in ("Startup", "FullContext"):
        (document,) = json.loads(check("-", "-o", "json", "--guarantee", guarantee, stdin=pod).output)["documents"]
        told[guarantee] = {each["name"]: each for each in document["engine"]["accelerators"]}
    smallest = told["Startup"]["T4-16GB"]
    assert set(smallest) == {"name", "verdict", "reason", "lacking_bytes", "message"}
    assert smallest["message"] == f"it does not start on T4-16GB (lacks {smallest['lacking_bytes'] / 2**30:.2f} GiB)"
    assert told["Startup"]["H200-SXM-141GB"]["message"] == "it starts on H200-SXM-141GB"
    assert told["FullContext"]["T4-16GB"]["message"].startswith("it does not fit on T4-16GB")


def test_the_json_report_has_every_key_that_is_promised() -> None:
    answer = json.loads(check("-", "-o", "json", stdin=stream(REFUSED, FITS, BROKEN)).output)
    refused, fits = answer["documents"]
    promised = {
        "file", "line", "path", "platform", "kind", "namespace", "name", "engine", "guarantee", "verdict", "kv_cache", "ledger", "host",
        "assumed", "findings",
    }  # fmt: skip
    assert set(refused) == promised | {
        "ignored",
        "admission",
        "rendered_by",
        "rendered_line",
        "confidence",
        "decides",
        "starts",
        "holds",
        "provenance",
        "workload",
        "decision",
        "alternatives",
    }
    assert set(refused["engine"]) >= {
        "model", "accelerator", "accelerators", "vllm_version", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
        "max_model_len", "max_num_seqs", "kv_cache_dtype",
    }  # fmt: skip
    assert set(refused["kv_cache"]) >= {"tokens", "bytes", "requests", "headroom_ratio"}
    assert set(refused["findings"][0]) == {
        "rule", "severity", "file", "line", "column", "field", "path", "message", "remediation",
    }  # fmt: skip
    assert refused["admission"]["effective"] is None
    assert fits["admission"]["effective"] == {
        "max_model_len": 40960, "max_num_seqs": 4, "kv_cache_dtype": "auto", "gpu_memory_utilization": None, "chosen": None,
        "kv_cache_memory_bytes": None, "num_gpu_blocks_override": None,
    }  # fmt: skip
    assert answer["schemaVersion"].split(".")[0] == "1"
    assert answer["summary"] == {
        "exit_code": 1, "engines": 2, "verdicts": {"DoesNotFit": 1, "Fits": 1}, "decisions": {"Refuse": 1, "Admit": 1}, "unreadable": 1,
        "ignored": 0, "other_kinds": 0, "skipped": {},
    }  # fmt: skip
    assert answer["unreadable"][0]["line"] == 16


def test_model_config_serves_models_that_the_catalogue_does_not_know(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    document = FITS.replace("Qwen/Qwen3-8B", "ours/llama")
    assert check("-", stdin=document).exit_code == 2
    assert check("-", "--model-config", str(config), stdin=document).exit_code == 0
    config.write_text("{}")
    result = check("-", "--model-config", str(config), stdin=document)
    assert result.exit_code == 2
    assert "architectures is missing" in result.output


@pytest.mark.parametrize("command", ["check", "explain"])
def test_the_quantisation_beside_a_config_counts_as_in_vllm(tmp_path: Path, command: str) -> None:
    """ModelOpt 0.29 and older write hf_quant_config.json; without it 131 GiB of weights would be counted for one H100."""
    config = tmp_path / "config.json"
    model = catalogue.load_model("nvidia/Llama-3.1-70B-Instruct-FP8").config
    config.write_text(json.dumps({key: value for key, value in model.items() if key != "quantization_config"}))
    document = FITS.replace("Qwen/Qwen3-8B", "ours/llama").replace("maxNumSeqs: 4", "maxNumSeqs: 1, maxModelLen: 4096")
    arguments = {
        "check": ("check", "-", "--model-config", str(config)),
        "explain": ("explain", "--model-config", str(config), "--gpu", "H100-SXM-80GB", "--max-model-len", "4096"),
    }[command]
    assert invoked(*arguments, stdin=document).exit_code == 1
    settings = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    beside = {"producer": {"name": "modelopt", "version": "0.23.0"}, "quantization": settings}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    done = invoked(*arguments, stdin=document)
    assert done.exit_code == 0, done.output
    (tmp_path / "hf_quant_config.json").write_text("{")
    assert invoked(*arguments, stdin=document).exit_code == 2


@pytest.mark.parametrize(
    "content", ["{", "[]", "\x00", '{"bits": 1e400, "group_size": "many"}', "[" * 100_000, '"' + "x" * 5_000_000]
)
@pytest.mark.parametrize("command", ["check", "explain"])
def test_a_quantisation_beside_a_config_that_cannot_be_read_is_told(tmp_path: Path, command: str, content: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    (tmp_path / "quantize_config.json").write_text(content)
    arguments = ("check", "-") if command == "check" else ("explain", "--gpu", "H100-SXM-80GB")
    done = invoked(*arguments, "--model-config", str(config), stdin=FITS.replace("Qwen/Qwen3-8B", "ours/llama"))
    assert done.exit_code == 2
    assert "quantize_config.json" in done.output or "bits inf is not modelled" in done.output


def test_a_model_config_of_a_class_that_the_release_does_not_have_is_told(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**LLAMA, "architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss"}))
    document = FITS.replace("Qwen/Qwen3-8B", "ours/seed").replace("vllm: {", "vllm: {version: 0.9.2, ")
    result = check("-", "--model-config", str(config), stdin=document)
    assert "ModelClassNotInRelease" in result.output


def test_a_model_config_that_does_not_exist_is_bad_usage() -> None:
    result = check("-", "--model-config", "none.json", stdin=FITS)
    assert result.exit_code == 2
    assert "none.json" in result.output


def test_no_path_is_bad_usage() -> None:
    assert check().exit_code == 2


def test_a_missing_path_is_told_beside_the_others(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(FITS)
    result = check(str(tmp_path / "x.yaml"), str(tmp_path / "none.yaml"))
    assert result.exit_code == 1
    assert "none.yaml:1:1: error Unreadable cannot be read: No such file" in result.output
    assert "1 InferenceDeployment: 1 admitted; 1 document could not be read" in result.output


def test_a_template_that_nobody_rendered_is_told() -> None:
    result = check(
        "-",
        stdin=FITS.replace("name: one", 'name: "{{ .Release.Name }}"').replace(
            "maxNumSeqs: 4", 'maxNumSeqs: "{{ 4 }}"'
        ),
    )
    assert result.exit_code == 1
    assert "helm template" in result.output


def test_output_has_no_colours_off_a_terminal() -> None:
    assert "\x1b" not in check("-", stdin=REFUSED).output


HEAVY = ("kubernetes", "aiohttp", "prometheus_client", "asyncio", "importlib.metadata")
COMPOSE = "services: {vllm: {image: 'vllm/vllm-openai:v0.32.0', command: --model Qwen/Qwen3-8B}}\n"


@pytest.mark.parametrize(("document", "code", "heavy"), [(FITS, 0, HEAVY), (COMPOSE, 0, (*HEAVY, "pydantic"))])
def test_the_whole_process_answers_and_imports_only_what_it_needs(
    tmp_path: Path, document: str, code: int, heavy: tuple[str, ...]
) -> None:
    (tmp_path / "x.yaml").write_text(document)
    script = (
        "import sys\nfrom kvgate.__main__ import main\n"
        "sys.argv = ['kvgate', 'check', '--accelerator', 'H100-SXM-80GB', sys.argv[1]]\n"
        f"try:\n    main()\nfinally:\n    print(sorted(set({heavy}) & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, env={**os.environ}, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (OTHER, 0),
        ("image: vllm/vllm-openai\n", 0),
        (BROKEN, 1),
        (MISTAKEN_POD, 1),
        (UNKNOWN, 2),
    ],
    ids=["nothing", "not understood", "broken", "does not start", "an engine that nobody can judge"],
)
def test_where_nothing_is_fine_an_engine_still_counts(text: str, code: int) -> None:
    assert check("-", "--nothing-is-fine", stdin=text).exit_code == code


UNDECIDED = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  nodeSelector: {nvidia.com/gpu.product: GPU}
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.32.0
    args: ["--model=MODEL", --max-model-len=8192]
    resources: {limits: {nvidia.com/gpu: 1}}
"""


def undecided(name: str, *, model: str = "Qwen/Qwen3-8B", gpu: str = "NVIDIA-L4") -> str:
    return UNDECIDED.replace("NAME", name).replace("MODEL", model).replace("GPU", gpu)


def test_the_last_line_says_what_is_missing_for_a_verdict() -> None:
    other = undecided("f").replace("nvidia.com/gpu: 1", "habana.ai/gaudi: 1")
    text = stream(
        undecided("a"), undecided("b", model="Org/Name"), undecided("c", model="${TAG}"), undecided("d", gpu="NVIDIA-X1"),
        undecided("e", model="Org/Name-2"), other.replace("nvidia.com/gpu.product: NVIDIA-L4", "pool: gaudi"),
    )  # fmt: skip
    last = check("-", stdin=text).stdout.splitlines()[-1]
    unknown = "4 Unknown: 2 models (Org/Name, Org/Name-2), a variable (TAG), a GPU (NVIDIA-X1)"
    assert last.startswith(f"6 engines: 1 starts; 1 not judged (Intel Gaudi), {unknown}")


@pytest.mark.parametrize(
    ("given", "action"),
    [
        ({"model": "Org/Name"}, "give its config.json by --model-config"),
        ({"model": "Org/Name"}, "name its config.json in .kvgate.yaml: `modelConfig: FILE`"),
        ({"model": "Org/Name"}, "fetch what its publisher published: add --fetch"),
        ({"model": "${TAG}"}, "check what is rendered: envsubst < FILE | kvgate check -"),
        ({"model": "$(TAG)"}, "give the variable a value in the same input"),
        ({"model": "{{ .Values.model }}"}, "render this template first: helm template CHART | kvgate check -"),
        ({"gpu": "NVIDIA-X1"}, "ask for its memory: kvgate explain --model MODEL --gpu-memory-bytes BYTES"),
    ],
)
def test_what_is_unknown_is_told_with_what_settles_it(given: dict[str, str], action: str) -> None:
    result = check("-", stdin=undecided("a", **given))
    assert ": Unknown: not decided" in result.stdout
    assert action in result.stdout


def proposed(*arguments: str) -> set[str]:
    """The settings of all proposals."""
    tight = REFUSED.replace("maxNumSeqs: 64", "maxNumSeqs: 8")
    (document,) = json.loads(check("-", "-o", "json", *arguments, stdin=tight).stdout)["documents"]
    return {change["field"] for each in document["alternatives"] for change in each["changes"]}


def test_what_must_stay_is_in_no_proposal() -> None:
    every = proposed()
    kept = {"max_model_len", "accelerator"}
    assert every & kept
    left = proposed("--keep=--max-model-len,gpu")
    assert left
    assert not left & kept
    unknown = check("-", "--keep=temperature", stdin=REFUSED)
    assert (unknown.exit_code, "--keep names temperature" in unknown.stderr) == (2, True)


@pytest.mark.parametrize("option", ["--values=values.yaml", "--set=a=1", "--helm-argument=--namespace=serving"])
def test_values_of_charts_that_are_not_rendered_are_bad_usage(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("Chart.yaml").write_text("name: chat\n")
    Path("values.yaml").write_text("a: 1\n")
    found = check(".", option, "--render=never")
    assert found.exit_code == 2
    assert "--render=never renders none" in found.stderr
