"""The command line: what is set is said, what is not is left to vLLM, and nothing can smuggle in an option."""

from typing import Any

import pytest

from kvgate.api.status import Effective
from kvgate.api.v1alpha1 import InferenceDeploymentSpec
from kvgate.budget.ground.interval import Verdict
from kvgate.controller.decision import assess_owner
from kvgate.judgement.assess import effective_values
from kvgate.rendering.workload import arguments, command
from kvgate.vllm.settings import SPEC_SETTINGS
from support.manifests import an_owner
from support.tables import table

OLD = "0.11.0"
"""A release without --shutdown-timeout."""


def spec_of(**spec: Any) -> InferenceDeploymentSpec:
    return an_owner(**spec).spec


def said(vllm: dict[str, Any], **effective: Any) -> list[str]:
    return arguments(spec_of(vllm={"version": OLD} | vllm), Effective(kv_cache_dtype="auto", **effective))


@table(
    ("vllm", "expected"),
    [
        ({}, []),
        ({"maxNumBatchedTokens": 4096}, ["--max-num-batched-tokens=4096"]),
        ({"dtype": "bfloat16"}, ["--dtype=bfloat16"]),
        ({"quantization": "fp8"}, ["--quantization=fp8"]),
        ({"gpuMemoryUtilization": "0.85"}, ["--gpu-memory-utilization=0.85"]),
        ({"tensorParallelSize": 4}, ["--tensor-parallel-size=4"]),
        ({"pipelineParallelSize": 2}, ["--pipeline-parallel-size=2"]),
        ({"dataParallelSize": 2}, ["--data-parallel-size=2"]),
        ({"decodeContextParallelSize": 2}, ["--decode-context-parallel-size=2"]),
        ({"prefillContextParallelSize": 2}, ["--prefill-context-parallel-size=2"]),
        ({"enableExpertParallel": True}, ["--enable-expert-parallel"]),
        ({"blockSize": 1}, ["--block-size=1"]),
        ({"enforceEager": True}, ["--enforce-eager"]),
        ({"enablePrefixCaching": True}, ["--enable-prefix-caching"]),
        ({"enablePrefixCaching": False}, ["--no-enable-prefix-caching"]),
        ({"kvCacheMemoryBytes": 1 << 30}, ["--kv-cache-memory-bytes=1073741824"]),
        ({"extraArgs": ["--seed", "1"]}, ["--seed", "1"]),
    ],
)
def test_a_setting_is_said_once_and_a_default_not_at_all(vllm: dict[str, Any], expected: list[str]) -> None:
    assert said(vllm) == expected


def test_a_length_that_vllm_chooses_is_left_to_it_whatever_was_predicted() -> None:
    assert said({"maxModelLen": "auto"}, max_model_len=4096) == ["--max-model-len=auto"]
    assert said({"maxModelLen": 8192}, max_model_len=4096) == ["--max-model-len=4096"]


@pytest.mark.parametrize(
    ("effective", "expected"),
    [
        ({"kv_cache_memory_bytes": 1 << 30}, ["--kv-cache-memory-bytes=1073741824"]),
        ({"num_gpu_blocks_override": 512}, ["--num-gpu-blocks-override=512"]),
    ],
)
def test_a_pinned_size_is_said_as_the_release_takes_it(effective: dict[str, int], expected: list[str]) -> None:
    assert said({}, **effective) == expected


def test_effective_values_win_over_the_specs() -> None:
    effective = Effective(max_model_len=100, max_num_seqs=2, kv_cache_dtype="fp8")
    vllm = {"version": OLD, "maxModelLen": 4096, "maxNumSeqs": 64}
    assert arguments(spec_of(vllm=vllm), effective) == [
        "--max-model-len=100", "--max-num-seqs=2", "--kv-cache-dtype=fp8",
    ]  # fmt: skip


def test_every_field_of_the_spec_that_vllm_knows_has_an_option() -> None:
    rendered_elsewhere = {"version", "image", "extra_args"}
    fields = set(type(spec_of().vllm).model_fields) - rendered_elsewhere
    assert fields <= {setting.name for setting in SPEC_SETTINGS}


@pytest.mark.parametrize(("version", "is_said"), [("0.17.9", False), ("0.18.0", True), ("v0.33.0", True)])
def test_a_release_that_can_finish_its_requests_is_told_how_long_it_may_take(version: str, *, is_said: bool) -> None:
    arguments_ = arguments(spec_of(vllm={"version": version}), Effective(kv_cache_dtype="auto"))
    assert ("--shutdown-timeout=100" in arguments_) is is_said


@pytest.mark.parametrize(
    ("source", "path"),
    [
        (None, "Qwen/Qwen3-8B"),
        ({"persistentVolumeClaim": {"claimName": "models"}}, "/model"),
        ({"persistentVolumeClaim": {"claimName": "models", "path": "a/b"}}, "/model/a/b"),
        ({"image": {"reference": "models/a:1"}}, "/model"),
    ],
)
def test_the_model_is_an_id_or_a_mounted_folder(source: dict[str, Any] | None, path: str) -> None:
    model = {"name": "Qwen/Qwen3-8B"} | ({"source": source} if source else {})
    spec = spec_of(model=model)
    assert command(spec.model) == ["vllm", "serve", path]
    served = "--served-model-name=Qwen/Qwen3-8B" in arguments(spec, Effective(kv_cache_dtype="auto"))
    assert served is (source is not None)


def test_where_nothing_could_be_judged_the_specs_own_values_are_rendered() -> None:
    owner = an_owner(model={"name": "nobody/x"}, vllm={"maxModelLen": 77})
    judged = assess_owner(owner, "")
    assert judged.assessment.verdict is Verdict.UNKNOWN
    assert effective_values(owner.spec, judged.assessment) == Effective(max_model_len=77, kv_cache_dtype="auto")
