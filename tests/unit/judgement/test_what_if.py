"""A what-if as it is asked: the question that its values become, and each finding with its rule, severity and field."""

from typing import Any

import pytest

from kvgate.budget import DEFAULT_VERSION, BudgetRequest, Verdict
from kvgate.budget.ground.units import GIB
from kvgate.checkpoint.published import PublishedModels, by_name, from_json
from kvgate.judgement.what_if import assess_request, read_request
from kvgate.statement.what_if import BadRequest
from support.builders import new_llama_config
from support.tables import table

QWEN: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B", "gpu": "L4-24GB", "vllm_version": "0.33.0", "max_model_len": 4096
}  # fmt: skip
NOBODYS = {**QWEN, "model": "nobody/knows"}
NO_DRAFT = {"method": "eagle3", "model": "no/draft", "num_speculative_tokens": 3}
ASSUMED = ("VersionAssumed", "info", "vllm_version")
UNKNOWN_MODEL = ("UnknownModel", "warning", "model")
UNMODELLED = ("UnmodelledKind", "warning", "model")


@pytest.mark.parametrize(
    ("values", "verdict", "findings"),
    [
        (QWEN, Verdict.FITS, []),
        ({**QWEN, "vllm_version": None}, Verdict.FITS, [ASSUMED]),
        ({**QWEN, "id": "x", "revision": "main", "nothing": None}, Verdict.FITS, []),
        ({**QWEN, "nonsense": 3}, Verdict.FITS, [("SettingNotUnderstood", "info", "nonsense")]),
        ({**QWEN, "vllm_version": "0.5.0"}, Verdict.UNKNOWN, [("UnknownVersion", "warning", "vllm_version")]),
        ({**QWEN, "gpu": "Z-1"}, Verdict.UNKNOWN, [("UnknownAccelerator", "warning", "accelerator")]),
        ({**QWEN, "gpu": "Z-1", "gpu_memory_bytes": 24 * GIB}, Verdict.FITS, [("AcceleratorNotListed", "info", "gpu")]),
        ({**QWEN, "gpu": None, "gpu_memory_bytes": 24 * GIB}, Verdict.FITS, [("AcceleratorNotListed", "info", "gpu")]),
        ({**QWEN, "gpu": None}, Verdict.FITS, []),
        (NOBODYS, Verdict.UNKNOWN, [UNKNOWN_MODEL]),
        ({**QWEN, "model": "my-org/Qwen3-8B"}, Verdict.FITS, [("ModelAssumed", "warning", "model")]),
        ({**QWEN, "model": "m.gguf"}, Verdict.UNKNOWN, [UNKNOWN_MODEL, ("GgufNotInRelease", "warning", "model")]),
        ({**QWEN, "model": "a/b/m-00001-of-00003.gguf", "vllm_version": "0.19.0"}, Verdict.UNKNOWN,
         [UNKNOWN_MODEL, ("GgufNotInRelease", "warning", "model")]),
        ({**QWEN, "model": "unsloth/Qwen3-0.6B-GGUF:Q4_K_M", "vllm_version": "0.11.0"}, Verdict.UNKNOWN,
         [UNKNOWN_MODEL, ("GgufNotInRelease", "warning", "model")]),
        ({**QWEN, "model": "openai/gpt-oss-20b", "vllm_version": "0.9.2"}, Verdict.DOES_NOT_FIT,
         [("ModelClassNotInRelease", "error", "vllm_version"), ("WeightFormatNotInRelease", "warning", "model")]),
        ({**QWEN, "model_config": {"hidden_size": -1}}, Verdict.UNKNOWN, [("InvalidModelConfig", "warning", "config")]),
        ({**QWEN, "speculative_config": NO_DRAFT}, Verdict.UNKNOWN, [("UnknownDraft", "warning", "speculative_config"), UNMODELLED]),
        ({**QWEN, "speculative_config": NO_DRAFT, "draft_config": {}}, Verdict.UNKNOWN,
         [("InvalidModelConfig", "warning", "speculative_config"), UNMODELLED]),
        ({**QWEN, "capacity": "Pinned", "enable_sleep_mode": True}, Verdict.DOES_NOT_FIT,
         [("CapacityConflict", "error", "capacity"), ("CapacityPinned", "info", "capacity")]),
        ({**QWEN, "enable_sleep_mode": True}, Verdict.FITS, []),
        ({**NOBODYS, "host_memory_limit_bytes": GIB}, Verdict.UNKNOWN,
         [UNKNOWN_MODEL, ("HostMemoryTooSmall", "warning", "host_memory_limit_bytes")]),
        ({**NOBODYS, "host_memory_limit_bytes": 64 * GIB}, Verdict.UNKNOWN, [UNKNOWN_MODEL]),
        ({**NOBODYS, "host_memory_limit_bytes": GIB, "vllm_version": "0.5.0"}, Verdict.UNKNOWN,
         [UNKNOWN_MODEL, ("UnknownVersion", "warning", "vllm_version")]),
        ({**NOBODYS, "host_memory_limit_bytes": 64 * GIB, "shm_bytes": 1 << 20, "kv_offloading_size": 40}, Verdict.DOES_NOT_FIT,
         [UNKNOWN_MODEL, ("SharedMemoryTooSmall", "error", "shm_bytes")]),
        ({**NOBODYS, "kv_offloading_size": 40, "shm_bytes": 1 << 20, "gpu": "MI300X-192GB"}, Verdict.UNKNOWN, [UNKNOWN_MODEL]),
        ({**NOBODYS, "dtype": "int8"}, Verdict.DOES_NOT_FIT, [UNKNOWN_MODEL, ("OptionValue", "error", "dtype")]),
    ],
    ids=str,
)  # fmt: skip
def test_a_what_if_has_exactly_these_findings(
    values: dict[str, Any], verdict: Verdict, findings: list[tuple[str, str, str]]
) -> None:
    answer = assess_request(values)
    told = [(each.rule.id, each.severity.value, each.field) for each in answer.findings]
    assert (answer.verdict, told) == (verdict, findings)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"gpu": "L4-24GB"}, ["model"]),
        ({**QWEN, "capacity": "Pinned", "kv_cache_memory_bytes": 5}, ["kv_cache_memory_bytes"]),
        ({**QWEN, "capacity": "Pinned", "num_gpu_blocks_override": 5}, ["num_gpu_blocks_override"]),
        ({**QWEN, "max_num_seqs": 0, "block_size": "x"}, ["max_num_seqs", "block_size"]),
    ],
    ids=str,
)
def test_a_question_without_an_answer_names_each_setting(values: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(BadRequest) as caught:
        assess_request(values)
    assert caught.value.problems.keys() == set(names)


@table(
    ("name", "value"),
    [
        ("api_server_count", 1), ("data_parallel_size_local", 1), ("distributed_executor_backend", "mp"), ("enable_sleep_mode", True),
        ("host_memory_limit_bytes", 64 * GIB), ("kv_offloading_backend", "native"), ("kv_offloading_size", 1.0), ("links", "pcie"),
        ("lmcache_max_local_cpu_size", 5.0), ("mm_processor_cache_gb", 4.0), ("mm_processor_cache_type", "lru"),
        ("node_memory_bytes", 64 * GIB), ("safetensors_load_strategy", "lazy"), ("shm_bytes", 64 * GIB), ("swap_space", 4.0),
        ("max_num_seqs", 4), ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", True),
    ],
)  # fmt: skip
def test_a_setting_that_changes_memory_is_understood(name: str, value: object) -> None:
    found = {each.rule.id for each in assess_request({**QWEN, "vllm_version": "0.32.0", name: value}).findings}
    assert "SettingNotUnderstood" not in found


@table(
    ("gpu_memory_bytes", "vendor", "capability"),
    [
        (15_700_000_000, "nvidia", (7, 5)),  # T4 alone
        (15_633_219_584 * 995 // 1000, "", None),
        (15_633_219_584 * 995 // 1000 + 1, "nvidia", (7, 5)),
        (8_579_448_832, "nvidia", (8, 9)),  # two boards of Ada
        (34_209_792_000 * 995 // 1000, "", None),  # R9700 of AMD begins here, beside boards of NVIDIA
        (34_209_792_000 * 995 // 1000 - 1, "nvidia", None),
        (85_899_345_920, "amd", None),
        (1 << 40, "", None),  # nobody builds it
    ],
)
def test_a_gpu_without_a_name_is_what_all_with_its_memory_have_in_common(
    gpu_memory_bytes: int, vendor: str, capability: tuple[int, int] | None
) -> None:
    accelerator = asked(gpu=None, gpu_memory_bytes=gpu_memory_bytes).accelerator
    assert (accelerator.likely_vendor, accelerator.likely_capability) == (vendor, capability)
    assert {accelerator.memory_bytes, accelerator.memory_low_bytes, accelerator.memory_high_bytes} == {gpu_memory_bytes}
    assert (accelerator.vendor, accelerator.compute_capability, accelerator.name) == ("unknown", None, "this GPU")


def test_a_name_of_no_family_has_no_likely_vendor_and_a_listed_one_keeps_its_own() -> None:
    unlisted = asked(gpu="Z-1", gpu_memory_bytes=15_700_000_000).accelerator
    assert (unlisted.name, unlisted.product, unlisted.likely_vendor) == ("Z-1", "Z-1", "")
    listed = asked(gpu="T4-16GB", gpu_memory_bytes=10 * GIB).accelerator
    assert (listed.name, listed.vendor, listed.memory_low_bytes, listed.memory_bytes) == (
        "T4-16GB", "nvidia", 10 * GIB, 10 * GIB,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "vendor", "capability"),
    [
        ("NVIDIA GeForce GTX 1630", "nvidia", (7, 5)),
        ("RTX 3500 Ada Generation Laptop GPU", "nvidia", (8, 9)),
        ("NVIDIA PG509-210", "nvidia", None),
        ("Radeon RX 6800", "amd", None),
        ("Intel Arc A380", "intel", None),
    ],
)
def test_a_name_that_is_not_listed_has_the_kind_of_its_family(
    gpu: str, vendor: str, capability: tuple[int, int] | None
) -> None:
    accelerator = asked(gpu=gpu, gpu_memory_bytes=7 * GIB).accelerator
    assert (accelerator.likely_vendor, accelerator.likely_capability) == (vendor, capability)
    assert (accelerator.vendor, accelerator.compute_capability) == ("unknown", None)


def test_memory_tells_which_of_the_boards_of_one_name_it_is() -> None:
    assert asked(gpu="RTX 3060", gpu_memory_bytes=int(11.63 * GIB)).accelerator.name == "RTX-3060-12GB"
    assert asked(gpu="RTX 3060", gpu_memory_bytes=1 << 40).accelerator.name == "RTX 3060"


def asked(models: PublishedModels | None = None, **values: Any) -> BudgetRequest:
    request, findings = read_request({**QWEN, **values}, **({"models": models} if models else {}))
    assert request is not None, findings
    return request


@pytest.mark.parametrize(
    ("values", "num_layers", "dtype", "quantization"),
    [
        ({}, 36, "bfloat16", None),
        ({"dtype": "half"}, 36, "float16", None),
        ({"quantization": "fp8"}, 36, "bfloat16", "fp8"),
        ({"hf_overrides": {"num_hidden_layers": 4}}, 4, "bfloat16", None),
        ({"hf_overrides": {"num_hidden_layers": 4}, "dtype": "half", "quantization": "fp8"}, 4, "float16", "fp8"),
        ({"model_config": new_llama_config()}, 4, "bfloat16", None),
        ({"model_config": new_llama_config(), "dtype": "half", "quantization": "fp8"}, 4, "float16", "fp8"),
        ({"model_config": new_llama_config(), "hf_overrides": {"num_hidden_layers": 3}}, 3, "bfloat16", None),
    ],
    ids=str,
)  # fmt: skip
def test_the_shape_of_a_what_if(values: dict[str, Any], num_layers: int, dtype: str, quantization: str | None) -> None:
    shape = asked(**values).shape
    named = shape.quantization.method if shape.quantization else None
    assert (len(shape.layers), shape.dtype, named) == (num_layers, dtype, quantization)
    assert shape.name == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(("revision", "num_layers"), [(None, 2), ("main", 2), ("v2", 5), (7, 2)])
def test_a_revision_asks_for_another_checkpoint(revision: object, num_layers: int) -> None:
    entries = [
        from_json({"name": "my/own", "config": new_llama_config(num_hidden_layers=2)}),
        from_json({"name": "my/own", "revision": "v2", "config": new_llama_config(num_hidden_layers=5)}),
    ]
    models = PublishedModels(fetched=by_name(entries))
    assert len(asked(models, model="my/own", revision=revision).shape.layers) == num_layers
    overridden = asked(models, model="my/own", revision=revision, hf_overrides={"hidden_act": "silu"})
    assert len(overridden.shape.layers) == num_layers


def test_what_is_not_given_is_the_default_of_the_question() -> None:
    request = asked(vllm_version=None)
    assert (request.vllm_version, request.shared_by, request.weights_bytes) == (DEFAULT_VERSION, 1, None)
    assert (request.is_whole, request.is_stretched, request.alternatives, request.draft) == (False, False, (), None)
    given = asked(shared_by=2, weights_bytes=5, checkpoint_bytes=7)
    assert (given.shared_by, given.weights_bytes) == (2, 5)
    assert (given.shape.checkpoint_bytes, given.shape.checkpoint_source) == (7, "checkpoint_bytes of the question")


@pytest.mark.parametrize(
    "values", [{"host_memory_limit_bytes": 5}, {"shm_bytes": 6}, {"node_memory_bytes": 7}, {}], ids=str
)
def test_the_memory_of_the_host_is_what_the_question_states(values: dict[str, int]) -> None:
    pod = asked(**values).pod
    stated = {
        "host_memory_limit_bytes": pod.limit_bytes,
        "shm_bytes": pod.shm_bytes,
        "node_memory_bytes": pod.node_bytes,
    }
    assert {name: value for name, value in stated.items() if value is not None} == values
