"""Values of charts that nobody knows: which of them are engines, and the facts that stand beside."""

import json
import sys
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from typing import Any

import pytest

from kvgate.manifests import read_manifests
from kvgate.manifests.engines import find_engines
from kvgate.manifests.platforms.custom_values import names_an_engine, snake
from kvgate.manifests.pods.engine_found import FoundEngine
from support.command_line import invoked
from support.tables import table

FLAT = """\
image: {repository: registry.example/team/vllm-openai, tag: v0.11.0}
model: {id: Qwen/Qwen3-8B}
maxModelLen: 4096
extraArgs: [--max-num-seqs=8]
resources: {limits: {nvidia.com/gpu: 2}}
nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}
"""
NESTED = """\
gateway: {image: {repository: a/gateway}, model: other/model, maxModelLen: 1, tensorParallelSize: 1}
llm:
  enabled: true
  config: {model_name: Qwen/Qwen3-8B, MAX_MODEL_LEN: 4096, gpu_memory_utilization: 0.8}
  server: {image: "vllm/vllm-openai:v0.11.0", gpu: {limits: {nvidia.com/gpu: 2}}}
"""
SEVERAL = """\
image: {repository: vllm/vllm-openai, tag: v0.11.0}
models:
  small: {model: Qwen/Qwen3-0.6B, gpus: 1}
  large: {model: Qwen/Qwen3-8B, gpus: 2, args: "--max-model-len 4096 --enforce-eager"}
  off: {enabled: false, model: Qwen/Qwen3-32B}
"""
COMMAND = """\
worker:
  command: [bash, -c, "vllm serve Qwen/Qwen3-8B --max-model-len 4096"]
  accelerator: {gpuType: L4}
"""


def found_engines(text: str) -> list[FoundEngine]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdin", TextIOWrapper(BytesIO(text.encode())))
        return find_engines(read_manifests(["-"])).engines


def engine(text: str) -> FoundEngine:
    (found,) = found_engines(text)
    return found


@pytest.mark.parametrize("text", [FLAT, NESTED], ids=["flat", "nested"])
def test_facts_stand_anywhere_beside_the_engine(text: str) -> None:
    found = engine(text)
    assert (found.model.text, found.num_gpus.count) == ("Qwen/Qwen3-8B", 2)
    assert found.image.text.endswith("vllm-openai:v0.11.0")
    assert "--max-model-len=4096" in [word.text for word in found.arguments]


def test_options_stand_after_settings_and_have_their_own_places() -> None:
    found = engine(FLAT)
    assert [(word.text, word.path) for word in found.arguments] == [
        ("--max-model-len=4096", "maxModelLen"),
        ("--max-num-seqs=8", "extraArgs[0]"),
    ]
    assert [hint.value for hint in found.hints if "product" in hint.name] == ["NVIDIA-L4"]


def test_several_models_share_an_image_and_one_that_is_off_is_none() -> None:
    small, large = found_engines(SEVERAL)
    assert [(each.name, each.model.text, each.num_gpus.count) for each in (small, large)] == [
        ("small", "Qwen/Qwen3-0.6B", 1),
        ("large", "Qwen/Qwen3-8B", 2),
    ]
    assert [word.text for word in large.arguments][:2] == ["--max-model-len", "4096"]


SHELL = """\
image: {repository: vllm/vllm-openai, tag: v0.12.0}
vllm: {command: [/bin/sh, -c], args: ["vllm serve Qwen/Qwen3-8B --max-model-len 4096"], gpu: {number: 1}}
"""


def test_a_line_for_a_shell_in_the_arguments_names_the_engine_and_its_model() -> None:
    found = engine(f"{SHELL}resources: {{limits: {{nvidia.com/gpu: 1}}}}\n")
    assert [word.text for word in found.arguments] == ["Qwen/Qwen3-8B", "--max-model-len", "4096"]


FOLDERS = """\
image: {repository: vllm/vllm-openai, tag: v0.19.0}
models:
- {name: a, subPath: Qwen3-8B-AWQ, replicas: 1, vllm: {maxModelLen: 4096, gpuMemoryUtilization: 0.6}}
- {name: b, subPath: Qwen3-4B, replicas: 1, vllm: {maxModelLen: 8192, maxNumSeqs: 1}}
extraVolumeMounts: [{name: cache, subPath: huggingface, mountPath: /cache}]
"""


def test_a_folder_of_a_volume_beside_settings_of_vllm_is_a_model() -> None:
    found = [(each.name, each.model.text, each.image.text) for each in found_engines(FOLDERS)]
    assert found == [("a", "Qwen3-8B-AWQ", "vllm/vllm-openai:v0.19.0"), ("b", "Qwen3-4B", "vllm/vllm-openai:v0.19.0")]
    assert not found_engines(FOLDERS.replace("maxModelLen", "length").replace("gpuMemoryUtilization", "share"))[1:]


@pytest.mark.parametrize(
    "text",
    [
        "image: {registry: quay.io, repository: corp/vllm, tag: ''}\nconfiguration: {modelReference: Qwen/Qwen3-8B}\n",
        "service: {image: {version: 'vllm/vllm-openai:v0.19.0'}}\nllm: {hfModelName: Qwen/Qwen3-8B}\n",
        "model: {name: a, storage: {uri: 'hf://Qwen/Qwen3-8B'}}\nruntime: {image: 'vllm/vllm-openai:v0.19.0'}\n",
        "kind: Deployment\nimage: {repository: vllm/vllm-openai}\nconfig: {model: Qwen/Qwen3-8B, max_model_len: '4192'}\n",
    ],
)
def test_models_and_images_have_these_names_too(text: str) -> None:
    assert (
        engine(f"{text}resources: {{limits: {{nvidia.com/gpu: 1}}}}\n").model.text.removeprefix("hf://")
        == "Qwen/Qwen3-8B"
    )
    assert not found_engines(text.replace("vllm", "nginx"))


def test_a_command_names_the_engine_and_its_model() -> None:
    found = engine(COMMAND)
    assert [word.text for word in found.arguments] == ["Qwen/Qwen3-8B", "--max-model-len", "4096"]


@pytest.mark.parametrize(
    "text",
    [
        "scripts: {start: 'vllm serve x'}\nname: vllm-frontend\ndependencies: {vllm: 1.0.0}\n",
        "jobs: {test: {steps: [{run: 'vllm serve a/b --max-model-len 4096'}]}}\n",
        "router: {model: a/b, image: vllm/vllm-openai}\n",
        "model: a/b\nimage: {repository: other/server}\nargs: [--host=vllm]\n",
        "image: {repository: vllm/vllm-openai}\n",
        "model: a/b\nreplicas: 1\nlow: {args: [--max-model-len=1, --swap-space=1]}\nup: {args: [--max-model-len=2, --max-num-seqs=1]}\n",
        "model_name: a/b\nmax_model_len: 4096\ntensor_parallel_size: 2\ntasks: [gsm8k]\n",
    ],
    ids=["package", "workflow", "router", "another server", "no model", "alternatives", "an evaluation"],
)
def test_other_texts_about_vllm_are_no_engines(text: str) -> None:
    assert found_engines(text) == []


def test_a_package_is_no_values() -> None:
    """Not even a remark is made about it."""
    package = '{"name": "vllm-frontend", "scripts": {"start": "vllm serve a/b"}}'
    assert "no vLLM engine" in invoked("check", "-", stdin=package).output
    assert names_an_engine({"a": [{"image": {"repository": "vllm/vllm-openai"}}]})
    assert names_an_engine({"run": ["--max-model-len", "4", "--max-num-seqs", "2"]})


@pytest.mark.parametrize("name", ["maxModelLen", "max-model-len", "MAX_MODEL_LEN", "max_model_len"])
def test_names_are_the_same_in_every_style(name: str) -> None:
    assert snake(name) == "max_model_len"


def test_a_finding_stands_at_the_field(tmp_path: Any) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(FLAT.replace("4096", "999999"))
    done = invoked("check", str(path))
    assert f"{path}:3:1: warning" in done.output
    assert "maxModelLen" in done.output


def test_facts_stand_under_names_with_a_prefix() -> None:
    text = """\
recipe_image_uri: vllm/vllm-openai:v0.9.1
recipe_node_shape: VM.GPU.A10.2
recipe_gpu_count: 2
recipe_container_env: [{key: model, value: Qwen/Qwen3-8B}, {key: ranks, value: "2"}]
recipe_container_command_args: [--model, $(model), --tensor-parallel-size, $(ranks)]
"""
    (engine,) = found_engines(text)
    assert [word.text for word in engine.arguments] == ["--model", "Qwen/Qwen3-8B", "--tensor-parallel-size", "2"]
    assert engine.num_gpus.count == 2
    assert [(hint.name, hint.value) for hint in engine.hints] == [("node.kubernetes.io/instance-type", "VM.GPU.A10.2")]
    sliced = found_engines(f"{text}mig_resource_request: 1g.10gb\n")[0]
    assert ("resource", "nvidia.com/mig-1g.10gb") in [(hint.name, hint.value) for hint in sliced.hints]
    assert found_engines(text.replace("--model,", "--num-prompts, --model,")) == []
    assert found_engines(text.replace("vllm/vllm-openai", "other/server")) == []


@pytest.mark.parametrize("backend", ["TRITON_ATTN", "flashinfer_trtllm", "triton"])
def test_a_kernel_named_after_an_engine_leaves_vllm_judged(backend: str) -> None:
    text = (
        f"model: Qwen/Qwen3-8B\nbackend: {backend}\nvllm: {{maxModelLen: 4096, gpuMemoryUtilization: 0.9}}\n"
        "image: {repository: vllm/vllm-openai, tag: v0.30.0}\nresources: {limits: {nvidia.com/gpu: 1}}\n"
    )
    answer = invoked("check", "-", "-o", "json", "--accelerator", "L4-24GB", stdin=text)
    (document,) = json.loads(answer.stdout)["documents"]
    assert (document["verdict"], document["engine"]["vllm_version"]) == ("Fits", "0.30.0")


RECIPE = """\
name: recipe
model: {path: Qwen/Qwen3-32B}
resources: {gpu_type: l4, gpus_per_node: 1}
"""
SETTINGS = "{tensor_parallel_size: 1, pipeline_parallel_size: 1, dtype: fp8, client: vllm-bench}"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (
            f"{RECIPE}backend: {{type: trtllm, trtllm_config: {{prefill: {SETTINGS}, decode: {SETTINGS}}}}}\n",
            "backend.type",
        ),
        (f"{RECIPE}backend: {{sglang_config: {{aggregated: {SETTINGS}}}}}\n", "backend.sglang_config"),
        (f"base:\n  backend: {{type: sglang}}\n  sglang: {SETTINGS}\n", "base.backend.type"),
        (f"{RECIPE}framework: dynamo-trt\nengineArgs: {SETTINGS}\n", "framework"),
        (f"{RECIPE}serving: {{engine: TGI, args: {SETTINGS}}}\n", "serving.engine"),
    ],
)
def test_values_of_another_engine_are_told_once_with_the_field_that_says_so(text: str, path: str) -> None:
    answer = invoked("check", "-", "-o", "json", "--accelerator", "L4-24GB", stdin=text)
    (document,) = json.loads(answer.stdout)["documents"]
    assert [(f["rule"], f["severity"], f["path"]) for f in document["findings"]] == [("OtherEngine", "info", path)]
    assert (document["verdict"], document["engine"]["vllm_version"], document["assumed"]) == ("NotJudged", None, [])
    assert answer.exit_code == 0


def test_settings_that_others_have_too_refuse_nothing_without_a_sign_of_vllm() -> None:
    text = f"{RECIPE}engineArgs: {SETTINGS}\nmodelName: Qwen/Qwen3-32B\n"
    for more, verdict, severity in (("", "MayNotFit", "warning"), ("engine: vllm\n", "DoesNotFit", "error")):
        answer = invoked("check", "-", "-o", "json", "--accelerator", "L4-24GB", stdin=text + more)
        (document,) = json.loads(answer.stdout)["documents"]
        told = {f["rule"]: f["severity"] for f in document["findings"]}
        assert (document["verdict"], told["OptionValue"]) == (verdict, severity)


def test_an_engine_of_vllm_beside_another_one_is_judged_and_the_other_told() -> None:
    text = f"""\
engines:
  a: {{framework: sglang, model: Qwen/Qwen3-32B, replicas: 1, args: {SETTINGS}}}
  b: {{framework: vllm, model: Qwen/Qwen3-4B, replicas: 1, args: {{max_model_len: 4096, max_num_seqs: 8}}}}
"""
    answer = invoked("check", "-", "-o", "json", "--accelerator", "L4-24GB", stdin=text)
    found = {each["path"]: each["verdict"] for each in json.loads(answer.stdout)["documents"]}
    assert (answer.exit_code, found) == (0, {"engines.a": "NotJudged", "engines.b": "Fits"})


@pytest.mark.parametrize(
    "text",
    [
        "modelServers:\n  VLLM: {images: {default: 'vllm/vllm-openai:v0.32.0'}}\n  OLlama: {images: {default: 'ollama/ollama'}}\n",
        f"sglang: {SETTINGS}\nvllm: {SETTINGS}\n",
        f"retrieval: {{engine: ollama}}\nsomething: {SETTINGS}\n",
    ],
)
def test_a_chart_that_may_start_several_engines_states_none(text: str) -> None:
    assert found_engines(text) == []


BESIDE = "image: vllm/vllm-openai:v0.32.0\nreplicas: 1\n"
SETTLED = f"{BESIDE}model: Qwen/Qwen3-8B\n"
ONE = "model: corp/llm, image: 'vllm/vllm-openai:v0.32.0', replicas: 1"
SERVED = "model: corp/llm\nargs: [--max-model-len=1, --max-num-seqs=1]\n"


@pytest.mark.parametrize("style", [str, str.upper, lambda name: name.replace("_", "-")])
def test_every_name_of_a_model_is_one(style: Callable[[str], str]) -> None:
    names = [
        "model", "model_name", "model_id", "model_uri", "model_url", "model_path", "model_repo", "model_ref", "model_tag",
        "hf_model", "hf_model_id", "hf_model_name", "hf_repo", "huggingface_id", "hugging_face_id", "huggingface_model",
        "llm_model_id", "llm_model", "llm_model_name", "repo_id", "vllm_model", "model_reference",
        "storage_uri",
    ]  # fmt: skip
    parts = ["id", "repo", "repository", "name", "hfId", "modelId", "huggingfaceId", "uri", "path"]
    texts = [f"{style(name)}: Qwen/Qwen3-8B" for name in names] + [
        f"model: {{{part}: Qwen/Qwen3-8B}}" for part in parts
    ]
    assert [engine(f"{BESIDE}{text}\n").model.text for text in texts] == ["Qwen/Qwen3-8B"] * len(texts)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            "num_gpus gpu_count gpus gpu gpu_request_count request_gpu gpus_per_replica gpu_limit num_gpu worker_gpu_count my_num_gpus",
            {"num_gpus": 2},
        ),
        ("gpu_type gpu_product accelerator_type gpu_model gpu_name", {"hints": [("accelerator", "2")]}),
        (
            "node_shape instance_type machine_type vm_size worker_instance_type",
            {"hints": [("node.kubernetes.io/instance-type", "2")]},
        ),
        ("number_of_gpus my_gpu model_gpu_type", {}),
    ],
)
def test_every_name_of_gpus_is_one(fields: str, expected: dict[str, Any]) -> None:
    for name in fields.split():
        found = engine(f"{SETTLED}{name}: 2\n")
        told = {"num_gpus": found.num_gpus.count, "hints": [(hint.name, hint.value) for hint in found.hints]}
        assert {key: value for key, value in told.items() if value} == expected, name


@table(
    ("text", "count"),
    [
        *((f"{SERVED}{name}: 1\n", 1) for name in (
            "image", "resources", "replicas", "replicaCount", "nodeSelector", "affinity", "tolerations", "limits", "gpus", "gpuType",
            "worker_replica_count",
        )),
        ("model: corp/llm\nimage: vllm/vllm-openai:v0.32.0\n", 1),
        (SERVED, 0),
        (f"{SERVED}my_replicas: 1\n", 0),
        ("model: corp/llm\nserverImage: vllm/vllm-openai:v0.32.0\n", 0),
        ("model: corp/llm\nserverImage: vllm/vllm-openai:v0.32.0\nreplicas: 1\n", 1),
        ("model: corp/llm\nreplicas: 1\nmaxModelLen: 4096\n", 0),
        ("model: corp/llm\nreplicas: 1\nmaxModelLen: 4096\ndtype: auto\n", 0),
        ("model: corp/llm\nreplicas: 1\nmax_model_len: 4096\nmaxNumSeqs: 8\n", 1),
        ("model: corp/llm\nreplicas: 1\nmax_model_len: 4096\nmaxNumSeqs: many\n", 0),
        ("model: corp/llm\nreplicas: 1\nargs: [--max-model-len=1, --max-num-seqs=1]\n", 1),
        ("model: corp/llm\nreplicas: 1\nargs: [--max-model-len=1]\n", 0),
        ("replicas: 1\nargs: [--max-model-len=1, --model=corp/llm]\n", 1),
        ("replicas: 1\nargs: [--max-model-len=1, --max-num-seqs=1]\n", 0),
        ("replicas: 1\ncommand: vllm serve corp/llm\n", 1),
        ("replicas: 1\ncommand: python -m vllm.entrypoints.openai.api_server --model corp/llm\n", 1),
        ("replicas: 1\ncommand: vllm bench corp/llm --num-prompts 1 --model corp/llm\n", 0),
        ("enabled: false\nmodel: corp/llm\nimage: vllm/vllm-openai:v0.32.0\nreplicas: 1\n", 0),
        ("router: {model: corp/llm, image: 'vllm/vllm-openai:v0.32.0', replicas: 1}\n", 0),
        ("sglang: {model: corp/llm, image: 'vllm/vllm-openai:v0.32.0', replicas: 1}\n", 0),
        ("eval2: {model: corp/llm, image: 'vllm/vllm-openai:v0.32.0', replicas: 1}\n", 0),
        ("a: {b: {c: {d: {e: {model: corp/llm, image: 'vllm/vllm-openai:v0.32.0', replicas: 1}}}}}\n", 1),
        (f"list: [{{{ONE}}}, {{{ONE}, gpus: 1}}]\n", 2),
        ("a: {args: [--max-model-len=1, --model=corp/llm]}\nb: {args: [--max-num-seqs=1]}\nreplicas: 1\nc: {d: 1}\nmodel: corp/llm\n", 0),
    ],
)  # fmt: skip
def test_values_are_an_engine_where_all_that_one_needs_is_there(text: str, count: int) -> None:
    assert len([each for each in found_engines(text) if each.model.is_set or each.arguments]) == count


@pytest.mark.parametrize(
    ("text", "surely"),
    [
        ("model: corp/llm\nreplicas: 1\nmax_model_len: 1\nmaxNumSeqs: 1\n", True),
        ("model: corp/llm\nreplicas: 1\ntensorParallelSize: 1\npipelineParallelSize: 1\na: vllm\n", False),
        ("model: corp/llm\nreplicas: 1\ntensorParallelSize: 1\nkvCacheDtype: fp8\nenforceEager: true\na: vllm\n", True),
        (
            "model: corp/llm\nreplicas: 1\nbackend: vllm\ntensorParallelSize: 1\npipelineParallelSize: 1\na: vllm\n",
            True,
        ),
        (SETTLED, True),
    ],
)
def test_settings_that_others_have_too_say_less(text: str, *, surely: bool) -> None:
    assert engine(text).is_overridden is not surely


@table(
    ("text", "name"),
    [
        *((f"{SETTLED}{field}: named\n", "named") for field in (
            "name", "deployment_name", "modelName", "serviceName", "deployName", "app", "fullnameOverride", "nameOverride",
        )),
        (SETTLED, "Qwen3-8B"),
        ("chat: {vllmConfig: {model: corp/llm, image: 'vllm/vllm-openai:v0.32.0', replicas: 1}}\n", "chat"),
        ("vllm: {model: corp/llm, image: 'vllm/vllm-openai:v0.32.0', replicas: 1}\n", "vllm"),
        ("chat: {name: corp/llm, model: corp/other, image: 'vllm/vllm-openai:v0.32.0', replicas: 1}\n", "chat"),
    ],
)  # fmt: skip
def test_an_engine_is_called_as_people_call_it(text: str, name: str) -> None:
    assert engine(text).name == name


def test_slices_variables_and_settings_reach_the_engine() -> None:
    found = engine(
        f"{SETTLED}migProfile: 1g.10gb\nmy_env: [{{key: LENGTH, value: '4096'}}, {{name: SEQS, value: '8'}}]\n"
        "extraArgs: [--max-model-len=$(LENGTH), --max-num-seqs=$(SEQS)]\nenforceEager: true\ncpuOffloadGb: 1\ndtype: odd\n"
    )
    assert [(word.text, word.path) for word in found.arguments] == [
        ("--enforce-eager", "enforceEager"),
        ("--cpu-offload-gb=1", "cpuOffloadGb"),
        ("--max-model-len=4096", "extraArgs[0]"),
        ("--max-num-seqs=8", "extraArgs[1]"),
    ]
    assert [(hint.name, hint.value) for hint in found.hints] == [("resource", "nvidia.com/mig-1g.10gb")]
    assert found.option_paths == {"enforce_eager": "enforceEager", "cpu_offload_gb": "cpuOffloadGb"}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("backend: sglang\nmax_model_len: 1\nmax_num_seqs: 1\n", "backend"),
        ("a: {engine: trtllm, max_model_len: 1, max_num_seqs: 1}\n", "a.engine"),
        ("sglang: {max_model_len: 1, max_num_seqs: 1}\n", "sglang"),
        ("sglang: {max_model_len: 1, max_num_seqs: 1}\nvllm: {a: 1}\n", ""),
        (
            "a: {engine: trtllm, max_model_len: 1, max_num_seqs: 1}\nb: {engine: vllm, max_model_len: 1, max_num_seqs: 1}\n",
            "",
        ),
        ("a: {engine: trtllm}\nb: {max_model_len: 1, max_num_seqs: 1}\n", ""),
    ],
)
def test_values_that_name_another_engine_are_its(text: str, path: str) -> None:
    assert [each.stated.path for each in found_engines(text)] == ([path] if path else [])
