"""Environment variables of the vLLM container: reserved ones, those that load what was not judged, folders, variables that move GPU
memory, and secrets.

The verdict is about the GPUs, the program and the sizes that the spec names. A variable is reserved if it puts others in their place, and
warned of if it can do so with some values. One that tunes the program that was judged (most of NCCL_*, HF_* and VLLM_*, OMP_NUM_THREADS,
PYTORCH_ALLOC_CONF …) is neither.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

from kvgate.text.patterns import pattern

CACHE_MOUNT = "/cache"
"""Folder of the volume for downloads and compiled kernels. No other folder outlives the container."""


class ReservedVariables(Struct, frozen=True, kw_only=True):
    """Variables that are refused for the same reason."""

    patterns: tuple[str, ...]
    """Patterns of whole names, in RE2 syntax."""
    reason: str
    instead: str

    @property
    def pattern(self) -> str:
        return "^(" + "|".join(self.patterns) + ")$"

    def hold(self, name: str) -> bool:
        return re.fullmatch(self.pattern, name) is not None


RESERVED: tuple[ReservedVariables, ...] = (
    ReservedVariables(
        patterns=(
            "NVIDIA_VISIBLE_DEVICES", "NVIDIA_MIG_[A-Z_]+", "NVIDIA_IMEX_CHANNELS", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_[A-Z_]+",
            "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK",
            "HABANA_VISIBLE_(DEVICES|MODULES)", "ASCEND_(RT_)?VISIBLE_DEVICES", "TPU_VISIBLE_(CHIPS|DEVICES)", "NEURON_RT_VISIBLE_CORES",
        ),
        reason="it chooses the GPUs of the container, and the device plugin gives it those that were judged",
        instead="the parallel sizes in spec.vllm say how many GPUs there are",
    ),
    ReservedVariables(
        patterns=("LD_[A-Z0-9_]+", "VLLM_(NCCL|CUDART)_SO_PATH", "VLLM_CUDA_COMPATIBILITY_PATH", "CUDA_INJECTION(32|64)_PATH"),
        reason="it puts other libraries in the place of the image's",
        instead="build an image with them and name it in spec.vllm.image",
    ),
    ReservedVariables(
        patterns=(
            "PATH", "BASH_ENV", "PYTHON(PATH|HOME|STARTUP|USERBASE|PLATLIBDIR|EXECUTABLE|INSPECT|BREAKPOINT)", "VLLM_RUST_FRONTEND_PATH",
        ),
        reason="it puts another program in the place of the image's vLLM",
        instead="build an image with it and name it in spec.vllm.image",
    ),
    ReservedVariables(
        patterns=("VLLM_MODEL_REDIRECT_PATH", "VLLM_TEST_FORCE_LOAD_FORMAT"),
        reason="it loads other weights than those that were judged",
        instead="name the model in spec.model",
    ),
    ReservedVariables(
        patterns=("VLLM_DP_[A-Z_]+", "RAY_ADDRESS"),
        reason="it makes the engine a part of one that spans other pods",
        instead="set spec.vllm.dataParallelSize; one pod holds the whole engine",
    ),
)  # fmt: skip


class LoadingVariables(Struct, frozen=True, kw_only=True):
    """Variables by which vLLM's process loads what the image and the spec do not name."""

    patterns: tuple[str, ...]
    """Patterns of whole names."""
    effect: str
    instead: str
    harmless: tuple[str, ...] = ("",)
    """Values in lower case that load nothing else. A value in a Secret is not known, and counts as one that does."""
    is_path: bool = False
    """The value is a path or a list of paths, and loads nothing else where all are the image's own."""
    is_program: bool = False
    """A value without a slash is searched on PATH, which is the image's."""
    tuning: frozenset[str] = frozenset()
    """Names that the patterns match, and that load nothing."""

    def is_harmless(self, value: str) -> bool:
        if value.lower() in self.harmless:
            return True
        paths = [each for each in value.replace(",", ":").split(":") if each] if self.is_path or self.is_program else []
        is_bare = self.is_program and "/" not in value
        are_of_image = (
            path == "/dev/null" or (path.startswith(_FOLDERS_OF_IMAGE) and ".." not in path.split("/"))
            for path in paths
        )
        return is_bare or bool(paths and all(are_of_image))


_FOLDERS_OF_IMAGE = ("/usr/", "/opt/", "/etc/", "/lib/", "/lib64/", "/bin/", "/sbin/")
"""No volume of a rendered pod lies there, and the user of its process may not write there."""


_OF_A_LIBRARY = (
    "(AITER|CRIU|CUDA|CUPTI|FLASHINFER|HIP|HSA|LMCACHE|MKL|NCCL|NEURON|NIXL|NVSHMEM|NVTX|OMP|PJRT|RCCL|ROCP|TORCH|TPU|TRITON|TVM|UCC"
    "|UCX|VLLM|XLA)_([A-Z0-9_]+_)?"
)
"""Beginning of the variables of libraries in vLLM's images; a user's own programs may have plugins too."""
_IN_IMAGE = "build an image with it, and name it in spec.vllm.image"
_NOTHING_OR_OFF = ("", "0", "false", "no", "off")
LOADING: tuple[LoadingVariables, ...] = (
    LoadingVariables(
        patterns=(
            "GCONV_PATH", "OPENSSL_(CONF|CONF_INCLUDE|MODULES|ENGINES)", "NCCL_CONF_FILE", "UCX_MODULE_DIR", "FI_PROVIDER_PATH",
            "CUDNN_LIBRARY", "FLASHINFER_CUBINS_REPOSITORY", "TRITON_OVERRIDE_DIR",
            rf"{_OF_A_LIBRARY}(PLUGIN(_PATHS?|_DIRS?)?|(SO|LIB[A-Z0-9]*)_PATHS?|INJECTION(32|64)_PATH|TOOLS?_LIB(RARIES)?)",
        ),
        effect="it loads libraries that the image would not load",
        instead=_IN_IMAGE,
        harmless=("", "none"),
        is_path=True,
    ),
    LoadingVariables(
        patterns=("TRITON_[A-Z0-9_]+_PATH", "CC|CXX|CUDAHOSTCXX|(PYTORCH|FLASHINFER)_NVCC", "(CUDA|ROCM|HIP)_(HOME|PATH)"),
        effect="it runs compilers from outside of the image",
        instead=_IN_IMAGE,
        is_program=True,
    ),
    LoadingVariables(
        patterns=("VLLM_LOGGING_CONFIG_PATH", "PYTHON[A-Z0-9]+", "PYTHON_PRESITE"),
        effect="it runs Python code that the image would not run",
        instead=_IN_IMAGE,
        is_path=True,
        tuning=frozenset({
            "PYTHONASYNCIODEBUG", "PYTHONCASEOK", "PYTHONCOERCECLOCALE", "PYTHONDEBUG", "PYTHONDEVMODE", "PYTHONDONTWRITEBYTECODE",
            "PYTHONDUMPREFS", "PYTHONFAULTHANDLER", "PYTHONHASHSEED", "PYTHONHTTPSVERIFY", "PYTHONINTMAXSTRDIGITS",
            "PYTHONIOENCODING", "PYTHONLEGACYWINDOWSSTDIO", "PYTHONMALLOC", "PYTHONMALLOCSTATS", "PYTHONNODEBUGRANGES",
            "PYTHONNOUSERSITE", "PYTHONOPTIMIZE", "PYTHONPERFSUPPORT", "PYTHONPROFILEIMPORTTIME", "PYTHONPYCACHEPREFIX",
            "PYTHONSAFEPATH", "PYTHONTRACEMALLOC", "PYTHONUNBUFFERED", "PYTHONUTF8", "PYTHONVERBOSE", "PYTHONWARNDEFAULTENCODING",
            "PYTHONWARNINGS",
        }),
    ),
    LoadingVariables(
        patterns=("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD",),
        effect="it runs code that is in files of weights",
        instead="publish the weights as safetensors",
        harmless=_NOTHING_OR_OFF,
    ),
    LoadingVariables(
        patterns=("HF_ENDPOINT",),
        effect="it loads the weights from another hub than the one that was judged",
        instead="check that this hub is a mirror of the judged one; or put the weights on a volume, spec.model.source",
        harmless=("", "https://huggingface.co", "https://huggingface.co/"),
    ),
    LoadingVariables(
        patterns=("VLLM_USE_MODELSCOPE", "HUGGINGFACE_CO_STAGING"),
        effect="it loads the weights from another hub than the one that was judged",
        instead="leave it out; or put the weights on a volume, spec.model.source",
        harmless=_NOTHING_OR_OFF,
    ),
)  # fmt: skip
"""Sources: vLLM 0.33.0, envs.py, logger.py (dictConfig imports the classes that the file names) and utils/flashinfer.py; constants.py of
huggingface_hub; the documentation of glibc (iconv), OpenSSL (openssl.cnf), NCCL, Triton, CUDA, ROCm, UCX and Python."""


def loading(name: str, value: str | None) -> LoadingVariables | None:
    """Return the row of a variable that loads what was not judged, or None. None for a value: it is not known."""
    row = next((row for row in LOADING if name not in row.tuning and _one_of(row.patterns).fullmatch(name)), None)
    return None if row is None or (value is not None and row.is_harmless(value.strip())) else row


@lru_cache(maxsize=64)
def _one_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


FOLDERS = {"HOME": CACHE_MOUNT, "HF_HOME": f"{CACHE_MOUNT}/huggingface", "VLLM_CACHE_ROOT": f"{CACHE_MOUNT}/vllm"}
"""Variables that kvgate sets to folders of the cache volume. A user may choose other folders; the best ones are in the volume."""


def is_outside_cache(name: str, value: str) -> bool:
    """Return whether a variable of FOLDERS names a folder that is lost with the container, or that user 2000 may not write to."""
    return name in FOLDERS and value != CACHE_MOUNT and not value.startswith(f"{CACHE_MOUNT}/")


class MovingVariable(Struct, frozen=True, kw_only=True):
    """A variable that changes how much GPU memory vLLM takes, by an amount without a formula here."""

    name: str
    unmodelled: str
    """Feature that it switches on: the verdict is then Unknown. Empty: it moves less memory than a change of the cache's layout does, and
    a warning names it."""
    harmless: tuple[str, ...] = ()
    """Values with which it moves no memory."""


_OFF = ("", "0", "false", "False")
_SWITCHED = (*_OFF, "1", "true", "True")
"""Values that `TELLING` reads, so that the budget knows what they do."""
MOVING: tuple[MovingVariable, ...] = (
    MovingVariable(
        name="VLLM_MLA_DISABLE", unmodelled="VLLM_MLA_DISABLE, another layout of the KV cache", harmless=_OFF
    ),
    MovingVariable(
        name="VLLM_PP_LAYER_PARTITION",
        unmodelled="VLLM_PP_LAYER_PARTITION, layers that are cut by hand",
        harmless=("",),
    ),
    MovingVariable(
        name="VLLM_USE_V1",
        unmodelled="VLLM_USE_V1, vLLM's older engine",
        harmless=("", "0", "1", "false", "true", "False", "True"),
    ),
    MovingVariable(
        name="VLLM_HUMMING_ONLINE_QUANT_CONFIG",
        unmodelled="VLLM_HUMMING_ONLINE_QUANT_CONFIG, other weights",
        harmless=("",),
    ),
    MovingVariable(
        name="VLLM_ROCM_MUSE_MOE_ONLINE_QUANT",
        unmodelled="VLLM_ROCM_MUSE_MOE_ONLINE_QUANT, other weights",
        harmless=_OFF,
    ),
    MovingVariable(name="VLLM_ENABLE_STARTUP_PLAN", unmodelled="", harmless=_OFF),
    MovingVariable(name="VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", unmodelled="", harmless=_SWITCHED),
    MovingVariable(name="VLLM_USE_V2_MODEL_RUNNER", unmodelled="", harmless=_SWITCHED),
    MovingVariable(name="VLLM_DISABLE_COMPILE_CACHE", unmodelled="", harmless=_SWITCHED),
    MovingVariable(name="VLLM_USE_FLASHINFER_SAMPLER", unmodelled="", harmless=_SWITCHED),
    MovingVariable(name="VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", unmodelled=""),
    MovingVariable(name="VLLM_SPARSE_INDEXER_MAX_LOGITS_MB", unmodelled=""),
    MovingVariable(name="VLLM_DEEPEP_BUFFER_SIZE_MB", unmodelled=""),
    MovingVariable(name="VLLM_ATTENTION_BACKEND", unmodelled=""),
    MovingVariable(name="VLLM_BATCH_INVARIANT", unmodelled="", harmless=_OFF),
)


class TellingVariable(Struct, frozen=True, kw_only=True):
    """A variable that tells a circumstance of the start, which the budget knows how to take."""

    name: str
    setting: str
    """Name of the circumstance in `vllm/settings.py`."""
    values: Mapping[str, Any]
    """Its values by the variable's texts in lower case; another text tells nothing."""
    part: str = ""
    """A part of the text that switches the circumstance on."""


_SWITCH: Mapping[str, Any] = {"1": True, "true": True, "0": False, "false": False}
TELLING: tuple[TellingVariable, ...] = (
    TellingVariable(name="VLLM_USE_FLASHINFER_SAMPLER", setting="use_flashinfer_sampler", values=_SWITCH),
    TellingVariable(name="VLLM_USE_V1", setting="use_v1", values=_SWITCH),
    TellingVariable(name="NCCL_P2P_DISABLE", setting="links", values={"1": "host"}),
    TellingVariable(name="VLLM_USE_V2_MODEL_RUNNER", setting="use_v2_model_runner", values=_SWITCH),
    TellingVariable(name="VLLM_DISABLE_COMPILE_CACHE", setting="compile_cache", values={"1": "cold", "true": "cold"}),
    TellingVariable(name="VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", setting="estimates_graphs", values=_SWITCH),
    TellingVariable(
        name="VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE", setting="chunks_beside_manager", values=_SWITCH
    ),
    TellingVariable(name="VLLM_USE_SIMPLE_KV_OFFLOAD", setting="simple_kv_offload", values=_SWITCH),
    TellingVariable(
        name="PYTORCH_CUDA_ALLOC_CONF", setting="expandable_segments", values={}, part="expandable_segments:True"
    ),
)
LMCACHE_SIZE = "LMCACHE_MAX_LOCAL_CPU_SIZE"
"""Variable of LMCache: GiB of host memory that it takes in each rank."""


def circumstances_by(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the circumstances that variables tell, by the names of `vllm/settings.py`."""
    told = {
        row.setting: row.values[text]
        for row in TELLING
        if (text := variables.get(row.name, "").strip().lower()) in row.values
    }
    parts = {row.setting: True for row in TELLING if row.part and row.part in variables.get(row.name, "")}
    return {**told, **parts}


PORTS: Mapping[str, str] = {
    "VLLM_PORT": "",
    "VLLM_DP_MASTER_PORT": "without data parallel ranks",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "with NixlConnector",
    "VLLM_MOONCAKE_BOOTSTRAP_PORT": "with MooncakeConnector",
    "VLLM_P2P_SIDE_CHANNEL_PORT": "with P2pConnector",
    "VLLM_EC_SIDE_CHANNEL_PORT": "with an EC connector",
}
"""Variables that vLLM reads as whole numbers, and that Kubernetes sets to `tcp://ADDRESS:PORT` for a Service of such a name → when vLLM
reads them; empty: at every start (envs.py, 0.6 to 0.33, by `get_open_port`; 0.9.1 only put another message in place of int()'s)."""
ALLOW_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
"""Variable of vLLM by which it takes any max_model_len."""


def allows_any_length(value: str) -> bool:
    """Read the value of ALLOW_LONG; an unknown text counts as yes."""
    return value.strip().lower() not in ("0", "false")


_SECRET = pattern(r"(.*_)?(API_KEY|TOKEN|PASSWORD|SECRET|SECRET_ACCESS_KEY|SECRET_KEY|ACCESS_KEY)", re.IGNORECASE)
_LEAST_SECRET_LENGTH = 8
"""Characters of a secret at least; switches such as HF_HUB_DISABLE_IMPLICIT_TOKEN=1 are shorter."""


def looks_secret(name: str, value: str) -> bool:
    """Return whether a text is one that others should not read, by the name of its variable."""
    return len(value) >= _LEAST_SECRET_LENGTH and _SECRET.fullmatch(name) is not None


def moving(name: str, value: str | None) -> MovingVariable | None:
    """Return the row of a variable that moves memory, or None. A value that is not known counts as one that does."""
    found = _MOVING.get(name)
    return None if found is None or (value is not None and value.strip() in found.harmless) else found


_MOVING = {variable.name: variable for variable in MOVING}
