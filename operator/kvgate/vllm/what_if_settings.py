"""The keys of a what-if: vLLM's arguments under their own names, as JSON values or as text from flags."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from kvgate.budget.model_shape import DTYPE_BYTES
from kvgate.budget.request import AUTO_MAX_MODEL_LEN
from kvgate.record import record
from kvgate.vllm.cache_flags import CACHE_FLAGS
from kvgate.vllm.values import Reader, Unusable, exact_decimal, mapping, text, truth, whole


@record
class Setting:
    """One key of the contract."""

    name: str
    read: Reader
    help: str
    is_flag: bool = False
    """True or false, without a value on the command line."""
    short: str = ""
    """A short flag that vLLM has too."""


read_tokens: Reader = whole(100_000_000, units=True)
"""A number of tokens."""
_bytes = whole(1 << 50, units=True)
_size = whole(1024)


def _length(value: Any) -> int:
    """max_model_len: tokens, or -1 or auto for the longest that fits."""
    return AUTO_MAX_MODEL_LEN if value in (AUTO_MAX_MODEL_LEN, "-1", "auto") else int(read_tokens(value))


def _share(value: Any) -> Fraction:
    share = exact_decimal(value)
    if share is not None and 0 < share <= 1:
        return share
    raise Unusable("it must be a number above 0 and up to 1, such as 0.9")


def _dtype(value: Any) -> str:
    names = ("auto", "half", "float", *DTYPE_BYTES)
    if value not in names:
        raise Unusable(f"it must be one of {', '.join(names)}")
    return str(value)


SETTINGS: tuple[Setting, ...] = (
    Setting(name="model", read=text, help="Hugging Face id; `kvgate models` lists those that are known."),
    Setting(name="model_config", read=mapping, help="The model's config.json; wins over the catalogue."),
    Setting(
        name="gpu",
        read=text,
        help="Accelerator, such as H100-SXM-80GB; a name of several, such as H100, is answered with all of them.",
    ),
    Setting(name="gpu_memory_bytes", read=_bytes, help="Memory of one GPU as vLLM sees it; wins over the catalogue."),
    Setting(name="vllm_version", read=text, help="Release of vLLM."),
    Setting(name="dtype", read=_dtype, help="Format of weights and activations that are not quantised."),
    Setting(name="quantization", read=text, help="Quantise while loading, such as fp8.", short="-q"),
    Setting(
        name="allow_deprecated_quantization", read=truth, help="Take weight formats that vLLM will drop.", is_flag=True
    ),
    Setting(name="tensor_parallel_size", read=_size, help="GPUs that share every layer.", short="-tp"),
    Setting(name="pipeline_parallel_size", read=_size, help="Stages that share the layers.", short="-pp"),
    Setting(name="data_parallel_size", read=_size, help="Replicas of the attention within one engine.", short="-dp"),
    Setting(name="enable_expert_parallel", read=truth, help="Deal experts out whole.", is_flag=True),
    Setting(name="decode_context_parallel_size", read=_size, help="Ranks that share a request's cache.", short="-dcp"),
    Setting(
        name="prefill_context_parallel_size",
        read=_size,
        help="GPUs that share a prompt; how they share its cache is not modelled.",
        short="-pcp",
    ),
    Setting(name="gpu_memory_utilization", read=_share, help="Share of the GPU's memory that vLLM may use."),
    Setting(name="max_model_len", read=_length, help="Longest request: 32768, 32k, 32K, or auto."),
    Setting(name="max_num_seqs", read=whole(1_000_000), help="Requests at the same time."),
    Setting(name="max_num_batched_tokens", read=read_tokens, help="Tokens of one forward pass."),
    Setting(name="kv_cache_dtype", read=text, help="Format of the KV cache: auto, fp8, bfloat16 …"),
    Setting(name="block_size", read=whole(16384), help="Tokens of a block."),
    Setting(name="enforce_eager", read=truth, help="Run without CUDA graphs.", is_flag=True),
    Setting(name="enable_prefix_caching", read=truth, help="Share the cache of equal prefixes.", is_flag=True),
    Setting(name="kv_cache_memory_bytes", read=_bytes, help="KV cache memory per GPU; bypasses the ledger."),
    *(Setting(name=flag.name, read=flag.read, help=flag.help, is_flag=flag.is_switch) for flag in CACHE_FLAGS),
    Setting(
        name="checkpoint_bytes", read=_bytes, help="All tensors of the checkpoint: total_size of its safetensors index."
    ),
    Setting(name="weights_bytes", read=_bytes, help="Loaded weights per GPU, where they are known."),
)
"""The request keys of the contract, in the order of the help."""


def read_settings(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """(typed values, problems by key); null means that nobody set it. Keys that are not settings are left out."""
    known, problems = {}, {}
    for setting in SETTINGS:
        value = values.get(setting.name)
        if value is None:
            continue
        try:
            known[setting.name] = setting.read(value)
        except Unusable as error:
            problems[setting.name] = f"{setting.name} is {_shown(value)}; {error}"
    return known, problems


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
