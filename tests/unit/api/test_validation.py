"""Documents that are wrong are told so in words: the field, the value, what to do; all at once."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import kvgate
from kvgate.api import field_path
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.api.validation import InvalidDocument, _is_list, _models_in, parse_document, unknown_metadata
from kvgate.findings.finding import Finding, Severity
from kvgate.vllm.pod_options import OWNED_FLAGS, owned_flag
from kvgate.vllm.settings import Owner
from kvgate.vllm.variables import RESERVED
from support.builders import new_document
from support.tables import table


def findings(document: Any) -> tuple[Finding, ...]:
    with pytest.raises(InvalidDocument) as error:
        parse_document(document)
    assert all(finding.severity is Severity.ERROR for finding in error.value.findings)
    return error.value.findings


def vllm(**settings: Any) -> dict[str, Any]:
    return new_document(vllm=settings)


def test_the_smallest_document_gets_the_defaults() -> None:
    parsed = parse_document(new_document())
    assert (parsed.name, parsed.namespace, parsed.skip_reason) == ("qwen", "serving", None)
    assert (parsed.spec.admission.policy, parsed.spec.replicas, parsed.spec.vllm.kv_cache_dtype) == (
        "Reject",
        1,
        "auto",
    )


WRONG: list[tuple[dict[str, Any], str, str]] = [
    (vllm(maxModelLen="32k"), "spec.vllm.maxModelLen", "'32k'"),
    (vllm(maxModelLen=32768.0), "spec.vllm.maxModelLen", "32768.0"),
    (vllm(maxModelLen=True), "spec.vllm.maxModelLen", "True"),
    (vllm(maxModelLen=0), "spec.vllm.maxModelLen", "0"),
    (vllm(maxModelLen=-1), "spec.vllm.maxModelLen", "-1"),
    (vllm(maxModelLen=10**9), "spec.vllm.maxModelLen", "1000000000"),
    (vllm(maxNumSeqs=0), "spec.vllm.maxNumSeqs", "0"),
    (vllm(enforceEager="maybe"), "spec.vllm.enforceEager", "'maybe'"),
    (vllm(gpuMemoryUtilization="0"), "spec.vllm.gpuMemoryUtilization", "'0'"),
    (vllm(gpuMemoryUtilization="1.5"), "spec.vllm.gpuMemoryUtilization", "'1.5'"),
    (vllm(gpuMemoryUtilization="0,9"), "spec.vllm.gpuMemoryUtilization", "'0,9'"),
    (vllm(gpuMemoryUtilization="90%"), "spec.vllm.gpuMemoryUtilization", "'90%'"),
    (vllm(gpuMemoryUtilization="0.90\n"), "spec.vllm.gpuMemoryUtilization", "'0.90"),
    (vllm(gpuMemoryUtilization="٠.٩"), "spec.vllm.gpuMemoryUtilization", "٠.٩"),
    (vllm(gpuMemoryUtilization=0.9), "spec.vllm.gpuMemoryUtilization", "0.9"),
    (vllm(gpuMemoryUtilization=1), "spec.vllm.gpuMemoryUtilization", "1"),
    (vllm(version="latest"), "spec.vllm.version", "'latest'"),
    (vllm(version=0.33), "spec.vllm.version", "0.33"),
    (vllm(kvCacheDtype="FP8"), "spec.vllm.kvCacheDtype", "'FP8'"),
    (vllm(dtype="fp8"), "spec.vllm.dtype", "'fp8'"),
    (vllm(tensorParallelSize=0), "spec.vllm.tensorParallelSize", "0"),
    (vllm(extraArgs="--foo"), "spec.vllm.extraArgs", "text (not shown)"),
    (vllm(extraArgs=[1]), "spec.vllm.extraArgs[0]", "1"),
    (vllm(extraArgs=["ok", ""]), "spec.vllm.extraArgs[1]", "''"),
    (new_document(admission={"policy": "reject"}), "spec.admission.policy", "'reject'"),
    (new_document(admission={"guarantee": "Everything"}), "spec.admission.guarantee", "'Everything'"),
    (new_document(admission={"adjust": {"knobs": []}}), "spec.admission.adjust.knobs", "[]"),
    (new_document(workload={"peakConcurrency": 1, "promptTokens": 1}), "spec.workload.outputTokens", "required"),
    (new_document(replicas=-1), "spec.replicas", "-1"),
    (new_document(model={}), "spec.model.name", "required"),
    (new_document(model={"name": "a/b/c"}), "spec.model.name", "'a/b/c'"),
    (new_document(model="../../etc/passwd"), "spec.model.name", "etc/passwd"),
    (new_document(template={"env": [{"name": "1A"}]}), "spec.template.env[0].name", "'1A'"),
    ({**new_document(), "apiVersion": "kvgate.io/v2"}, "apiVersion", "'kvgate.io/v2'"),
    ({**new_document(), "kind": "Deployment"}, "kind", "'Deployment'"),
    ({**new_document(), "metadata": None}, "metadata", "None"),
    ({**new_document(), "spec": []}, "spec", "[]"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "path", "shown"), WRONG, ids=[f"{w[1]} {i}" for i, w in enumerate(WRONG)])
def test_a_wrong_value_is_named_with_its_field_and_a_way_out(document: dict[str, Any], path: str, shown: str) -> None:
    (finding,) = findings(document)
    assert finding.field == path
    assert path in finding.message
    assert shown in finding.message
    assert finding.remediation


BROKEN_RULES: list[tuple[dict[str, Any], str, str]] = [
    (vllm(gpuMemoryUtilization="0.0"), "spec.vllm.gpuMemoryUtilization", "above 0"),
    (vllm(tensorParallelSize=64, pipelineParallelSize=32), "spec.vllm", "at most 1024"),
    (vllm(extraArgs=["--max-model-len=5"]), "spec.vllm.extraArgs", "a field of the spec owns"),
    (new_document(admission={"guarantee": "Workload"}), "spec.workload", "needs spec.workload"),
    (new_document(name="x" * 46), "", "at most 45 characters"),
    (new_document(model={"name": "m", "source": {}}), "spec.model.source", "exactly one"),
    (new_document(template={"env": [{"name": "A", "value": "1", "secretKeyRef": {"name": "s", "key": "k"}}]}),
     "spec.template.env[0]", "not both"),
    (new_document(template={"env": [{"name": "LD_PRELOAD", "value": "x.so"}]}), "spec.template.env[0].name", "spec.vllm.image"),
    (vllm(extraArgs=["--api-key=x"]), "spec.vllm.extraArgs", "VLLM_API_KEY in template.env with secretKeyRef"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "path", "text"), BROKEN_RULES, ids=[w[2] for w in BROKEN_RULES])
def test_a_rule_over_several_fields_is_told(document: dict[str, Any], path: str, text: str) -> None:
    (finding,) = findings(document)
    assert finding.field == path
    assert text in finding.message


@pytest.mark.parametrize("document", [None, [], "x", 5], ids=repr)
def test_what_is_no_object_is_told_so(document: object) -> None:
    assert len(findings(document)) == 1


@table(
    ("document", "path", "suggestion"),
    [
        (vllm(maxNumSeq=3), "spec.vllm.maxNumSeq", "maxNumSeqs"),
        (vllm(max_model_length=3), "spec.vllm.max_model_length", "maxModelLen"),
        (vllm(tensorParallel=3), "spec.vllm.tensorParallel", "tensorParallelSize"),
        (vllm(max_model_len=4096), "spec.vllm.max_model_len", "maxModelLen"),
        (vllm(**{"max-model-len": 4096}), "spec.vllm.max-model-len", "maxModelLen"),
        (new_document(maxModelLen=4096), "spec.maxModelLen", "spec.vllm.maxModelLen"),
        (new_document(max_num_seqs=4), "spec.max_num_seqs", "spec.vllm.maxNumSeqs"),
        (new_document(model={"name": "m", "config_from": {}}), "spec.model.config_from", "configFrom"),
        (new_document(admision={}), "spec.admision", "admission"),
        (new_document(admission={"adjust": {"knob": []}}), "spec.admission.adjust.knob", "knobs"),
        (new_document(template={"env": [{"name": "A", "valu": "1"}]}), "spec.template.env[0].valu", "value"),
    ],
)
def test_an_unknown_field_comes_with_a_suggestion(document: dict[str, Any], path: str, suggestion: str) -> None:
    (finding,) = findings(document)
    assert finding.field == path
    assert finding.remediation == f"did you mean {suggestion}?"


def test_a_field_like_no_other_lists_the_fields() -> None:
    (finding,) = findings(new_document(model={"name": "m", "zzz": 1}))
    assert "configFrom" in finding.remediation


def test_all_findings_come_at_once() -> None:
    document = new_document(
        vllm={"maxModelLen": "32k", "gpuMemoryUtilization": 0.9, "maxNumSeq": 3},
        admission={"policy": "No"}, replicas=-1, template={"tolerations": [{"effect": "x"}]},
    )  # fmt: skip
    del document["spec"]["model"]
    assert {finding.field for finding in findings(document)} == {
        "spec.model", "spec.vllm.maxModelLen", "spec.vllm.gpuMemoryUtilization", "spec.vllm.maxNumSeq", "spec.admission.policy",
        "spec.replicas", "spec.template.tolerations[0].effect",
    }  # fmt: skip


def test_a_long_value_is_shown_in_part() -> None:
    (finding,) = findings(vllm(version="x" * 100_000))
    assert len(finding.message) + len(finding.remediation) < 300


def test_a_large_object_in_place_of_text_is_shown_in_part() -> None:
    (finding,) = findings(vllm(version={"a": "x" * 100_000}))
    assert len(finding.message) + len(finding.remediation) < 300


@table(
    "argument",
    [
        "--max-model-len", "--max-model-len=32768", "--max_model_len=1", "--max_model-len", "--max-model", "--max-mo=5",
        "--gpu-memory-utilization=0.99", "--gpu_memory_util", "--tensor-parallel-size", "-tp", "-tp=4", "-q", "-q=fp8",
        "-qfp8", "--quantization=fp8", "--no-enable-prefix-caching", "--no-enforce-eager", "--no-enable-expert-parallel",
        "--config=x.yaml", "--host=0.0.0.0", "--model=x", "--kv_cache_dtype", "--kv-cache-memory=5", "--num-gpu-blocks-override",
        "--served-model-name", "--device-memory-utilization=1",
    ],
)  # fmt: skip
def test_an_option_that_a_field_owns_is_found_in_any_spelling(argument: str) -> None:
    assert owned_flag(argument)
    assert findings(vllm(extraArgs=["--seed=1", argument]))[0].field == "spec.vllm.extraArgs"


@table(
    "argument",
    [
        "--seed=1", "--max-num-partial-prefills=2", "--model-impl=auto", "--enable-eplb", "--data-parallel-rank=1", "-O3",
        "--data-parallel-size-local=1", "max-model-len", "32768", "--", "-", "--max-model-lens", "--max-model-len\n",
        "--kv-cache-dtype-skip-layers", "x--model", "--tokenizer=x", "--port2", "--hostname", "--configure",
    ],
)  # fmt: skip
def test_an_option_that_no_field_owns_is_left_alone(argument: str) -> None:
    assert not owned_flag(argument)


@table("flag", OWNED_FLAGS)
def test_every_owned_option_leads_to_a_field_that_exists(flag: str) -> None:
    assert owned_flag(flag)
    assert owned_flag(f"{flag}=x")
    if OWNED_FLAGS[flag].owner is Owner.SPEC:
        model: Any = InferenceDeployment
        for part in field_path(OWNED_FLAGS[flag].name).split("."):
            (field,) = (f for name, f in model.model_fields.items() if (f.alias or name) == part)
            model = field.annotation


@pytest.mark.parametrize(
    ("annotation", "reason"), [("because", "because"), ("", None), ("  ", None), ("x" * 300, "x" * 256)]
)
def test_the_break_glass_annotation_is_a_reason_or_nothing(annotation: str, reason: str | None) -> None:
    document = new_document()
    document["metadata"]["annotations"] = {"kvgate.io/skip-budget": annotation}
    assert parse_document(document).skip_reason == reason


REFUSED_VARIABLES = (
    "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_MIG_CONFIG_DEVICES",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PATH",
    "VLLM_NCCL_SO_PATH", "VLLM_RUST_FRONTEND_PATH", "VLLM_MODEL_REDIRECT_PATH", "VLLM_DP_SIZE", "VLLM_DP_RANK_LOCAL", "RAY_ADDRESS",
)  # fmt: skip
TAKEN_VARIABLES = (
    "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_NET_PLUGIN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HOME", "VLLM_LOGGING_LEVEL", "VLLM_PLUGINS",
    "VLLM_API_KEY", "VLLM_USE_DEEP_GEMM", "VLLM_HOST_IP", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS", "PYTHONUNBUFFERED", "PYTHONHASHSEED", "PYTHONWARNINGS", "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_DISABLE_REQUIRE", "TORCHINDUCTOR_CACHE_DIR", "http_proxy", "TZ", "CLASSPATH", "MY_LD_PRELOAD", "PATH_TO_X", "LD",
)  # fmt: skip


@table("name", REFUSED_VARIABLES)
@table("variable", [{"value": "1"}, {"value": ""}, {"secretKeyRef": {"name": "s", "key": "k"}}], ids=str)
def test_variables_that_choose_gpus_libraries_or_programs_are_refused(name: str, variable: dict[str, Any]) -> None:
    (finding,) = findings(new_document(template={"env": [{"name": name, **variable}]}))
    assert finding.field == "spec.template.env[0].name"
    assert name in finding.message


@table("name", TAKEN_VARIABLES)
def test_variables_that_tune_what_was_judged_are_taken(name: str) -> None:
    assert parse_document(new_document(template={"env": [{"name": name, "value": "1"}]}))


def test_a_reserved_variable_is_reserved_for_one_reason() -> None:
    for name in (*REFUSED_VARIABLES, *TAKEN_VARIABLES):
        assert sum(group.hold(name) for group in RESERVED) == (name in REFUSED_VARIABLES)


@pytest.mark.parametrize(
    "argument", ["--api-key=k", "--api-key", "--api_key=k", "--api-k=k", "--hf-token", "--hf_token=k"]
)
def test_a_secret_is_no_argument(argument: str) -> None:
    (finding,) = findings(vllm(extraArgs=["--seed=1", argument]))
    assert "model.tokenSecretRef" in finding.message


SECRET = "sk-2f9c41d07ab3"


@pytest.mark.parametrize(
    "spec",
    [
        {"vllm": {"extraArgs": [f"--api-key={SECRET}"]}},
        {"vllm": {"extraArgs": ["--api-key", SECRET]}},
        {"vllm": {"extraArgs": f"--api-key={SECRET}"}},
        {"vllm": {"extraArgs": [f"--api-key={SECRET}" + "x" * 1024]}},
        {"vllm": {"extraArgs": [{"--api-key": SECRET}]}},
        {"vllm": {"extraArgs": [[f"--api-key={SECRET}"]]}},
        {"vllm": [f"--api-key={SECRET}"]},
        {"vllm": f"--api-key={SECRET}"},
        {"template": {"env": {"VLLM_API_KEY": SECRET}}},
        {"template": {"env": [f"VLLM_API_KEY={SECRET}"]}},
        {"template": {"env": [{"name": "VLLM_API_KEY", "value": [SECRET]}]}},
        {"template": {"env": [{"name": "VLLM_API_KEY", "value": SECRET * 400}]}},
        {"template": {"env": [{"name": "LD_PRELOAD", "value": SECRET}]}},
        {"template": {"env": [{"name": "VLLM_API_KEY", "value": SECRET, "secretKeyRef": {"name": "s", "key": "k"}}]}},
        {"template": {"env": [{"name": "VLLM_API_KEY", "value": SECRET}, {"name": "VLLM_API_KEY", "value": SECRET}]}},
        {"template": [{"env": SECRET}]},
    ],
    ids=str,
)
def test_no_message_repeats_a_secret(spec: dict[str, Any]) -> None:
    told = findings(new_document(**spec))
    assert told
    assert SECRET not in str(told)


IMAGES = [
    "vllm/vllm-openai:v0.33.0", "vllm", "localhost:5000/vllm", "registry.example.com:443/a/b__c/d-e.f:V1_x.2", "Registry.example.com/x",
    "ghcr.io/llm-d/llm-d@sha256:" + "a" * 64, "[::1]:5000/x:1", "x:1@sha256:" + "0" * 64, "a/" * 20 + "b:" + "t" * 128,
]  # fmt: skip
NO_IMAGES = [
    " vllm", "vllm ", "vllm/vllm openai", "vllm:", ":v1", "vllm:0.19.0+cu128", "vllm@sha256:abc", "vllm@sha256:" + "A" * 64, "VLLM", "a//b",
    "a/B:1", "vllm:" + "t" * 129, "https://ghcr.io/x", "vllm:$(TAG)", "{{ image }}", "-x", "a_/b", "x\n", "x@md5:" + "a" * 32,
]  # fmt: skip


@table("image", IMAGES)
def test_what_a_runtime_can_pull_is_an_image(image: str) -> None:
    assert parse_document(vllm(image=image)).spec.vllm.image == image
    assert parse_document(new_document(model={"name": "m", "source": {"image": {"reference": image}}}))


@table("image", NO_IMAGES)
def test_what_no_runtime_can_pull_is_no_image(image: str) -> None:
    for document in (vllm(image=image), new_document(model={"name": "m", "source": {"image": {"reference": image}}})):
        assert "reference, such as" in findings(document)[0].remediation


@pytest.mark.parametrize("path", ["a/b", "a/.cache/b", "a//b/", "models--Qwen--Qwen3-8B/snapshots/0f", "a..b"])
def test_the_folder_of_a_model_is_on_its_volume(path: str) -> None:
    assert parse_document(on_a_volume(path))


@table("path", ["a/../b", "a/..", "..", "../cache", "a/...", "/a", "a b", "a/$(X)"])
def test_no_path_leads_out_of_the_volume_of_a_model(path: str) -> None:
    assert findings(on_a_volume(path))[0].field == "spec.model.source.persistentVolumeClaim.path"


def on_a_volume(path: str) -> dict[str, Any]:
    source = {"persistentVolumeClaim": {"claimName": "models", "path": path}}
    return new_document(model={"name": "m", "source": source})


def snake_cased(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, str]]:
    """Every field that Python calls otherwise than the CRD: (path of its object, its name in Python)."""
    for name, field in model.model_fields.items():
        if field.alias and field.alias != name:
            yield path, name
        item = "[0]" if _is_list(field.annotation) else ""
        for inner in _models_in(field.annotation):
            yield from snake_cased(inner, f"{path}.{field.alias or name}{item}".lstrip("."))


@table(("path", "name"), sorted(set(snake_cased(InferenceDeployment))))
def test_no_field_is_read_by_the_name_that_python_gives_it(path: str, name: str) -> None:
    """The API server prunes such a field: kvgate would judge what is never stored."""
    document = new_document(workload={"peakConcurrency": 1, "promptTokens": 1, "outputTokens": 1})
    node: Any = document
    for part in path.split(".") if path else ():
        key = part.removesuffix("[0]")
        node = node.setdefault(key, {} if key == part else [{}])
        node = node if key == part else node[0]
    node[name] = "x"
    of_names = [finding for finding in findings(document) if finding.field == f"{path}.{name}".lstrip(".")]
    assert [finding.message.rpartition(" is ")[2] for finding in of_names] == ["not a field"]


def test_only_one_function_reads_documents_and_it_takes_no_names_of_python() -> None:
    """Whoever calls pydantic's own would accept snake_case again."""
    operator = Path(kvgate.__file__).parent
    callers = {
        path.name for path in operator.rglob("*.py") if re.search(r"\bmodel_validate\b", path.read_text("utf-8"))
    }
    assert callers == {"base.py"}


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("nmae", "did you mean name?"),
        ("generate_name", "did you mean generateName?"),
        ("zzz", "remove it, or write it under metadata.annotations"),
    ],
)
def test_metadata_that_kubernetes_does_not_have_is_told_to_those_who_read_files(name: str, remedy: str) -> None:
    document = new_document()
    document["metadata"][name] = "x"
    (finding,) = unknown_metadata(document)
    assert (finding.field, finding.remediation) == (f"metadata.{name}", remedy)
    assert parse_document(document).name == document["metadata"]["name"]  # a later Kubernetes may have it
