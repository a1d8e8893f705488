"""What a spec passes on to vLLM: extraArgs as vLLM's parser reads them, and the variables of template.env."""

import re
from pathlib import Path
from typing import Any

import pytest

from kvgate.api import field_path
from kvgate.api.v1alpha1 import Vllm
from kvgate.budget.engine.request import EngineSettings, GraphSettings, Speculation
from kvgate.controller.decision import assess_owner
from kvgate.statement.passed_through import PodEnvironment, containers_with_gpus, read_environment, read_extra_args
from kvgate.vllm.given_settings import engine_settings
from kvgate.vllm.options import options
from kvgate.vllm.pod_options import POD_OPTIONS
from kvgate.vllm.settings import MENTIONED, Setting
from kvgate.vllm.variables import MOVING, RESERVED, loading
from support.manifests import an_owner
from support.tables import table


@table(
    ("arguments", "expected"),
    [
        ([], {}),
        (["--seed=1", "--max-logprobs", "3"], {}),
        (["--disable-hybrid-kv-cache-manager"], {"disable_hybrid_kv_cache_manager": True}),
        (["--no-async-scheduling"], {"async_scheduling": False}),
        (["--async_scheduling", "--seed=1"], {"async_scheduling": True}),
        (["--mamba-ssm-cache-dtype=float32"], {"mamba_ssm_cache_dtype": "float32"}),
        (["--mamba_cache_dtype", "bfloat16"], {"mamba_cache_dtype": "bfloat16"}),
        (["--mamba-cache-dtype", "fp9"], {}),
        (["--mm-encoder-tp-mode=data"], {"mm_encoder_tp_mode": "data"}),
        (["--mamba-cache-dtype"], {}),
        (["--mamba-block-size", "1024", "--mamba-cache-mode=none"], {"mamba_block_size": 1024, "mamba_cache_mode": "none"}),
        (["--kv-cache-dtype-skip-layers", "0", "1", "--seed=1"], {"kv_cache_dtype_skip_layers": ("0", "1")}),
        (["--kv-cache-dtype-skip-layers=sliding_window"], {"kv_cache_dtype_skip_layers": ("sliding_window",)}),
        (
            ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}'],
            {"speculation": Speculation(method="mtp", num_speculative_tokens=2)},
        ),
        (
            ["--spec-method=mtp", "--spec-tokens", "2"],
            {"speculation": Speculation(method="mtp", num_speculative_tokens=2)},
        ),
        (
            ["--spec-method=mtp", '--speculative-config={"method": "ngram"}'],
            {"speculation": Speculation(method="ngram", num_speculative_tokens=0)},
        ),
        (["--language-model-only"], {"language_model_only": True}),
        (["--skip-mm-profiling", "--seed=1"], {"skip_mm_profiling": True}),
        (["--limit-mm-per-prompt", '{"image": 2, "video": {"count": 0}}'], {"limit_mm_per_prompt": (("image", 2), ("video", 0))}),
        (["--limit-mm-per-prompt", "image=many"], {}),
        (["--compilation-config", '{"cudagraph_mode": "piecewise"}'], {"graphs": GraphSettings(mode="PIECEWISE")}),
        (["--compilation-config=0"], {"graphs": GraphSettings(mode="NONE", compiles=False)}),
        (['--compilation-config={"cudagraph_capture_sizes": ["1", "2"]}'], {"graphs": GraphSettings(capture_sizes=(1, 2))}),
        (["--compilation-config=3"], {"graphs": GraphSettings(compiles=True)}),
        (["--compilation-config.cudagraph_mode=1"], {"graphs": GraphSettings(mode="PIECEWISE")}),
        (["--performance-mode", "throughput"], {"performance_mode": "throughput"}),
        (["-O0"], {"optimization_level": 0}),
        (["-O", "1"], {"optimization_level": 1}),
        (["--optimization-level=2"], {"optimization_level": 2}),
        (["-O.mode=3"], {"optimization_level": None}),
        (["--compilation-config.mode=0"], {"graphs": GraphSettings(compiles=False)}),
        (["--compilation-config", '{"cudagraph_capture_sizes": [1, 2], "max_cudagraph_capture_size": 2}'],
         {"graphs": GraphSettings(capture_sizes=(1, 2), max_capture_size=2)}),
        (["--compilation-config", '{"cudagraph_mode": "SOMETIMES"}'], {}),
        (["--compilation-config", '{"cudagraph_capture_sizes": 8}'], {}),
    ],
)  # fmt: skip
def test_arguments_are_read_as_vllm_reads_them(arguments: list[str], expected: dict[str, Any]) -> None:
    extra = read_extra_args(Vllm(extraArgs=tuple(arguments)))
    assert engine_settings(extra.known) == EngineSettings(**expected)


def test_a_form_that_only_old_releases_take_is_read_for_them() -> None:
    extra = read_extra_args(Vllm(version="0.8.5", extraArgs=("--limit-mm-per-prompt=image=0,video=1",)))
    assert engine_settings(extra.known).limit_mm_per_prompt == (("image", 0), ("video", 1))
    assert extra.findings == ()
    assert [each.rule.id for each in read_extra_args(Vllm(extraArgs=("--limit-mm-per-prompt=image=0",))).findings] == [
        "OptionValue"
    ]


def told(*arguments: str, **vllm: Any) -> list[tuple[str, str, str]]:
    findings = read_extra_args(Vllm(extraArgs=arguments, **vllm)).findings
    return [(each.rule.id, each.severity.value, each.field) for each in findings]


@table(
    ("arguments", "expected"),
    [
        (("--seed=1", "--no-such=1"), [("OptionUnknown", "error", "spec.vllm.extraArgs[1]")]),
        (("--swap-space", "4"), [("OptionRemoved", "error", "spec.vllm.extraArgs[0]")]),
        (("--seed", "many"), [("OptionValue", "error", "spec.vllm.extraArgs[0]")]),
        (("sleep",), [("UnexpectedWord", "error", "spec.vllm.extraArgs[0]")]),
        (("--seed=1", "--seed=2"), [("OptionRepeated", "warning", "spec.vllm.extraArgs[0]")]),
        (("--compilation-config", '{"cudagraph_mode": "SOMETIMES"}'), [("InvalidSetting", "error", "spec.vllm.extraArgs[1]")]),
        (("--lora-modules", "a=b"), [("LoraNotEnabled", "error", "spec.vllm.extraArgs[1]")]),
        (("--reasoning-parser=qwen",), [("ParserUnknown", "error", "spec.vllm.extraArgs[0]")]),
        (("--enable-auto-tool-choice",), [("ToolCallParserMissing", "error", "spec.vllm.extraArgs[0]")]),
        (("--seed 1",), [("OptionUnknown", "error", "spec.vllm.extraArgs[0]")]),
        (("--chat-template", "- {{ messages[0].content }}"), []),
        (("--enable-lora.a", "--enable-lora.b"), [("OptionRepeated", "info", "spec.vllm.extraArgs[0]")]),
        (("--seed=1", "--max-logprobs", "3", "--enable-lora"), []),
    ],
)  # fmt: skip
def test_what_vllm_would_refuse_stands_at_its_argument(
    arguments: tuple[str, ...], expected: list[tuple[str, str, str]]
) -> None:
    assert told(*arguments) == expected


@pytest.mark.parametrize(
    ("rule", "argument", "version"),
    [
        ("OptionUnknown", "--no-such=1", "0.33.0"),
        ("OptionUnknown", "--max-num-prefill-seqs=1", "0.33.0"),
        ("OptionNotYet", "--performance-mode=throughput", "0.16.0"),
        ("OptionValue", "--performance-mode=corp", "0.33.0"),
        ("ParserUnknown", "--reasoning-parser=corp", "0.33.0"),
        ("InvalidSetting", '--compilation-config={"cudagraph_mode": "CORP"}', "0.33.0"),
    ],
)
def test_an_image_of_ones_own_may_take_more(rule: str, argument: str, version: str) -> None:
    assert told(argument, version=version) == [(rule, "error", "spec.vllm.extraArgs[0]")]
    own = told(argument, version=version, image="registry/fork:1")
    assert own == [(rule, "warning", "spec.vllm.extraArgs[0]")]


def test_a_newer_release_may_take_more_and_nothing_brings_back_what_is_gone() -> None:
    assert told("--no-such=1", version="9.0.0") == [("OptionUnknown", "warning", "spec.vllm.extraArgs[0]")]
    assert [severity for _, severity, _ in told("--swap-space=4", image="registry/fork:1")] == ["error"]


def test_a_variable_is_judged_as_the_text_that_vllm_gets() -> None:
    """Rendering escapes it: neither a number, nor a word that may be any option."""
    escaped = ("VariableNotExpanded", "warning", "spec.vllm.extraArgs[0]")
    assert told("--seed=$(SEED)") == [("OptionValue", "error", "spec.vllm.extraArgs[0]"), escaped]
    assert told("$(MORE)") == [("UnexpectedWord", "error", "spec.vllm.extraArgs[0]"), escaped]
    extra = read_extra_args(Vllm(extraArgs=("--mamba-cache-dtype=$(DTYPE)", "--chat-template={{ messages }} $(X)")))
    assert extra.values == {"chat_template": "{{ messages }} $(X)"}


@pytest.mark.parametrize("setting", MENTIONED, ids=lambda setting: setting.name)
def test_an_option_that_moves_some_memory_is_named(setting: Setting) -> None:
    flag, option = setting.flag, options()[setting.flag]
    kind = option.types_in((0, 33, 0))[0]
    value = {"bool": "", "int": "=3", "float": "=1.5"}.get(
        kind, f"={next(iter(set(option.choices_in((0, 33, 0))) - set(setting.harmless)), 'X')}"
    )
    assert told(flag + value) == [("SettingMovesMemory", "warning", "spec.vllm.extraArgs[0]")]
    for harmless in set(setting.harmless) - {False, ""}:
        assert told(f"{flag}={harmless}") == []


@table("name", [each.name for each in (*MENTIONED, *POD_OPTIONS)])
def test_a_key_of_an_option_that_has_none_breaks_nothing(name: str) -> None:
    """`--flag.key value` makes an object of any option."""
    assert read_extra_args(Vllm(extraArgs=(f"--{name.replace('_', '-')}.key", '{"a": [1]}'))).findings is not None


SECRET = "sk-2f9c41d07ab3"
FROM_SECRET = {"secretKeyRef": {"name": "api", "key": "key"}}


def environment(*variables: dict[str, Any]) -> PodEnvironment:
    return read_environment(an_owner(template={"env": list(variables)}).spec)


def found_in(name: str, **given: Any) -> list[tuple[str, str]]:
    return [
        (each.rule.id, each.field)
        for each in environment({"name": "A", "value": "1"}, {"name": name, **given}).findings
    ]


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_API_KEY",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "S3_ACCESS_KEY",
        "api_key",
        "DB_PASSWORD",
    ],
)
def test_a_secret_in_plain_text_is_warned_of_and_not_repeated(name: str) -> None:
    assert found_in(name, value=SECRET) == [("SecretInPlainText", "spec.template.env[1].value")]
    found = environment({"name": name, "value": SECRET}).findings
    assert "secretKeyRef" in found[0].message
    assert len(found[0].message) <= 120  # all that a webhook's warning holds
    assert SECRET not in str(found)
    assert found_in(name, **FROM_SECRET) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"), ("VLLM_API_KEY", ""), ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_NEW_TOKENS", "1000000000"), ("SECRETARY", "a long enough name"), ("MONKEY", "a long enough name"),
    ],
)  # fmt: skip
def test_a_name_or_a_value_that_is_no_secret_is_not_warned_of(name: str, value: str) -> None:
    assert found_in(name, value=value) == []


@pytest.mark.parametrize(
    ("value", "is_warned"),
    [("$(HOME)/x", True), ("$$(HOME)", True), ("$HOME", False), ("$(date +%s)", False), ("$", False), ("$()", False)],
)
def test_a_reference_that_kubernetes_would_replace_is_warned_of(value: str, *, is_warned: bool) -> None:
    assert found_in("X", value=value) == ([("VariableNotExpanded", "spec.template.env[1].value")] if is_warned else [])


@table(
    ("name", "value", "is_warned"),
    [
        ("HF_HOME", "/cache", False), ("HF_HOME", "/cache/hub", False), ("VLLM_CACHE_ROOT", "/cache/v", False),
        ("HF_HOME", "/data", True), ("HOME", "/root", True), ("VLLM_CACHE_ROOT", "", True), ("HF_HOME", "/cachette", True),
        ("HF_HUB_CACHE", "/data", False),
    ],
)  # fmt: skip
def test_a_folder_that_is_lost_with_the_container_is_warned_of(name: str, value: str, *, is_warned: bool) -> None:
    assert found_in(name, value=value) == ([("OutsideCacheVolume", "spec.template.env[1].value")] if is_warned else [])


@pytest.mark.parametrize("row", MOVING, ids=lambda row: row.name)
def test_a_variable_that_moves_memory_leaves_the_verdict_open_or_is_warned_of(row: Any) -> None:
    for given in ({"value": "other"}, FROM_SECRET):
        read_ = environment({"name": row.name, **given})
        assert read_.kinds == ((row.unmodelled,) if row.unmodelled else ())
        assert [each.rule.id for each in read_.findings] == ([] if row.unmodelled else ["SettingMovesMemory"])
    for value in row.harmless:
        read_ = environment({"name": row.name, "value": value})
        assert (read_.kinds, read_.findings) == ((), ())


def test_no_variable_is_both_reserved_and_judged() -> None:
    assert [row.name for row in MOVING if any(group.hold(row.name) for group in RESERVED)] == []


LOADING_CASES = (
    ("GCONV_PATH", "/cache/gconv"), ("OPENSSL_CONF", "/cache/openssl.cnf"), ("OPENSSL_MODULES", "/model"),
    ("NCCL_NET_PLUGIN", "/cache/n.so"), ("NCCL_NET_PLUGIN", "1"), ("NCCL_TUNER_PLUGIN", "libnccl-tuner.so"),
    ("NCCL_PROFILER_PLUGIN", "/tmp/p.so"), ("NCCL_CONF_FILE", "/cache/nccl.conf"), ("TRITON_LIBCUDA_PATH", "/cache/lib"),
    ("TRITON_PTXAS_PATH", "/cache/ptxas"), ("TRITON_PTXAS_PATH", "/usr/../cache/ptxas"), ("CC", "/cache/gcc"),
    ("CUDA_HOME", "/cache/cuda"), ("VLLM_LOGGING_CONFIG_PATH", "/cache/logging.json"), ("HF_ENDPOINT", "https://hub.example.org"),
    ("VLLM_USE_MODELSCOPE", "True"), ("VLLM_USE_MODELSCOPE", "1"), ("PYTHON_PRESITE", "x"), ("PYTHONNEXT", "x"),
    ("NVTX_INJECTION64_PATH", "/cache/i.so"), ("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1"), ("OMP_TOOL_LIBRARIES", "/cache/t.so"),
    ("HSA_TOOLS_LIB", "/cache/t.so"), ("UCX_MODULE_DIR", "/cache"), ("TPU_LIBRARY_PATH", "/cache/libtpu.so"),
    ("FLASHINFER_CUBINS_REPOSITORY", "https://example.org"), ("OPENSSL_CONF", "/etc/ssl/openssl.cnf:/cache"),
)  # fmt: skip
HARMLESS_VALUES = (
    ("OPENSSL_CONF", "/dev/null"), ("OPENSSL_CONF", "/etc/ssl/openssl.cnf"), ("OPENSSL_CONF", ""), ("NCCL_NET_PLUGIN", "none"),
    ("CC", "gcc"), ("TRITON_PTXAS_PATH", "/usr/local/cuda/bin/ptxas"), ("TRITON_LIBCUDA_PATH", "/usr/lib/x86_64-linux-gnu"),
    ("CUDA_HOME", "/usr/local/cuda"), ("ROCM_PATH", "/opt/rocm"), ("CXX", "/usr/bin/g++"), ("HF_ENDPOINT", "https://huggingface.co"),
    ("HF_ENDPOINT", ""), ("VLLM_USE_MODELSCOPE", "False"), ("VLLM_USE_MODELSCOPE", "0"), ("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "0"),
    ("VLLM_LOGGING_CONFIG_PATH", "/etc/vllm/logging.json"),
)  # fmt: skip
TUNING = (Path(__file__).parent / "tuning_variables.txt").read_text(encoding="utf-8").split()
"""Names of the documentation of NCCL, huggingface_hub, OpenMP, PyTorch, Triton, CUDA, ROCm, UCX, Python and others, and of users."""
VLLMS = set((Path(__file__).parent / "vllm_variables.txt").read_text(encoding="utf-8").split())
"""All names in `environment_variables` of `vllm/envs.py`, of thirty releases from 0.8.0 to 0.33.0."""


CHOSEN = re.compile(
    r"CUDA_VISIBLE_DEVICES|LD_.*|VLLM_(DP_.*|.*_SO_PATH|CUDA_COMPATIBILITY_PATH|MODEL_REDIRECT_PATH|RUST_FRONTEND_PATH"
    r"|TEST_FORCE_LOAD_FORMAT)"
)
"""Names of vLLM's by which GPUs, libraries, programs or weights are chosen; they were refused before."""


@table(("name", "value"), LOADING_CASES)
def test_a_variable_that_loads_what_was_not_judged_is_warned_of(name: str, value: str) -> None:
    for given in ({"value": value}, FROM_SECRET):
        (found,) = environment({"name": name, **given}).findings
        assert (found.rule.id, found.severity.value, found.field) == (
            "LoadsUnjudged",
            "warning",
            "spec.template.env[0].name",
        )
        assert name in found.message


PROXY = {"name": "proxy", "image": "registry.example/proxy:1"}


@table(
    ("template", "kinds"),
    [
        ({"containers": [{**PROXY, "resources": {"limits": {"nvidia.com/gpu": 1}}}]}, ("proxy",)),
        ({"initContainers": [{**PROXY, "resources": {"requests": {"nvidia.com/mig-1g.10gb": "1"}}}]}, ("proxy",)),
        ({"containers": [{**PROXY, "resources": {"limits": {"nvidia.com/gpumem": 4000}}}]}, ("proxy",)),
        ({"containers": [{**PROXY, "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]}, ("proxy",)),
        ({"containers": [{**PROXY, "resources": {"limits": {"nvidia.com/gpu": "0", "memory": "1Gi"}}}]}, ()),
        ({"containers": [PROXY]}, ()),
    ],
)
def test_a_container_that_takes_a_gpu_leaves_the_verdict_open(template: dict[str, Any], kinds: tuple[str, ...]) -> None:
    owner = an_owner(template=template)
    assessment = assess_owner(owner, "").assessment
    assert containers_with_gpus(owner.spec) == tuple(f"the container {name}, which takes a GPU," for name in kinds)
    assert (assessment.verdict.value == "Unknown") == bool(kinds)
    told = [each for each in assessment.findings if each.rule.id == "UnmodelledKind"]
    assert [field_path(each.field) for each in told] == ["spec.template.containers"] * len(kinds)
    assert all("the container proxy, which takes a GPU, is not modelled" in each.message for each in told)


def test_variables_of_a_source_are_not_read() -> None:
    template = {"envFrom": [{"configMapRef": {"name": "proxy"}}, {"secretRef": {"name": "keys"}, "prefix": "A_"}]}
    found = read_environment(an_owner(template=template).spec)
    assert found.allows_any_length, "one of them may say so"
    assert [(each.rule.id, each.field) for each in found.findings] == [
        ("LoadsUnjudged", "spec.template.envFrom[0]"),
        ("LoadsUnjudged", "spec.template.envFrom[1]"),
    ]
    assert "ConfigMap proxy" in found.findings[0].message
    assert "Secret keys" in found.findings[1].message


@table(("name", "value"), HARMLESS_VALUES)
def test_a_value_that_names_what_the_image_has_is_not_warned_of(name: str, value: str) -> None:
    assert environment({"name": name, "value": value}).findings == ()


@pytest.mark.parametrize("value", ["1", "/cache/x", "none"])
def test_a_variable_that_tunes_is_neither_refused_nor_warned_of(value: str) -> None:
    """But for those of vLLM that load code or weights, and those that choose the GPUs and the libraries."""
    warned = {name for name in (*TUNING, *VLLMS) if loading(name, value)}
    refused = {name for name in (*TUNING, *VLLMS) if any(group.hold(name) for group in RESERVED)}
    assert warned - refused <= {"VLLM_LOGGING_CONFIG_PATH", "VLLM_USE_MODELSCOPE", "CUDA_HOME"}
    assert {name for name in refused if not CHOSEN.fullmatch(name)} == set()
    assert len(VLLMS) > 400
