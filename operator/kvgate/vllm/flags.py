"""vLLM's options that a field of the spec owns: rendering writes them, extraArgs must not."""

import re

from kvgate.record import record


@record
class OwnedFlag:
    """One option, and the field that sets it."""

    flag: str
    field: str
    """vLLM's name of the setting, snake_case; empty where kvgate itself decides."""


FLAGS: tuple[OwnedFlag, ...] = (
    OwnedFlag(flag="--model", field="model"),
    OwnedFlag(flag="--revision", field="revision"),
    OwnedFlag(flag="--max-model-len", field="max_model_len"),
    OwnedFlag(flag="--max-num-seqs", field="max_num_seqs"),
    OwnedFlag(flag="--max-num-batched-tokens", field="max_num_batched_tokens"),
    OwnedFlag(flag="--kv-cache-dtype", field="kv_cache_dtype"),
    OwnedFlag(flag="--kv-cache-memory-bytes", field="kv_cache_memory_bytes"),
    OwnedFlag(flag="--kv-cache-memory", field="kv_cache_memory_bytes"),
    OwnedFlag(flag="--dtype", field="dtype"),
    OwnedFlag(flag="--quantization", field="quantization"),
    OwnedFlag(flag="-q", field="quantization"),
    OwnedFlag(flag="--gpu-memory-utilization", field="gpu_memory_utilization"),
    OwnedFlag(flag="--device-memory-utilization", field="gpu_memory_utilization"),
    OwnedFlag(flag="--tensor-parallel-size", field="tensor_parallel_size"),
    OwnedFlag(flag="-tp", field="tensor_parallel_size"),
    OwnedFlag(flag="--pipeline-parallel-size", field="pipeline_parallel_size"),
    OwnedFlag(flag="-pp", field="pipeline_parallel_size"),
    OwnedFlag(flag="--data-parallel-size", field="data_parallel_size"),
    OwnedFlag(flag="-dp", field="data_parallel_size"),
    OwnedFlag(flag="--decode-context-parallel-size", field="decode_context_parallel_size"),
    OwnedFlag(flag="-dcp", field="decode_context_parallel_size"),
    OwnedFlag(flag="--prefill-context-parallel-size", field="prefill_context_parallel_size"),
    OwnedFlag(flag="-pcp", field="prefill_context_parallel_size"),
    OwnedFlag(flag="--enable-expert-parallel", field="enable_expert_parallel"),
    OwnedFlag(flag="-ep", field="enable_expert_parallel"),
    OwnedFlag(flag="--no-enable-expert-parallel", field="enable_expert_parallel"),
    OwnedFlag(flag="--block-size", field="block_size"),
    OwnedFlag(flag="--enforce-eager", field="enforce_eager"),
    OwnedFlag(flag="--no-enforce-eager", field="enforce_eager"),
    OwnedFlag(flag="--enable-prefix-caching", field="enable_prefix_caching"),
    OwnedFlag(flag="--no-enable-prefix-caching", field="enable_prefix_caching"),
    OwnedFlag(flag="--num-gpu-blocks-override", field=""),
    OwnedFlag(flag="--host", field=""),
    OwnedFlag(flag="--port", field=""),
    OwnedFlag(flag="--served-model-name", field=""),
    OwnedFlag(flag="--config", field=""),
)
"""Long and short spellings; vLLM also takes `_` for `-` and unique abbreviations (see owned_flag)."""

SECRET_FLAGS = {
    "--api-key": "the variable VLLM_API_KEY in template.env with secretKeyRef",
    "--hf-token": "model.tokenSecretRef",
}
"""Options whose value is a secret → where a spec has it; extraArgs must not, because everybody who sees the pod sees them."""

_MIN_ABBREVIATION = 5
"""`--` and three letters: no shorter beginning is unique, and no option of vLLM's is the beginning of one of ours."""


def _spellings(flag: str) -> str:
    """The option as vLLM's parser reads it: `_` for `-`, unique abbreviations, `=value`, `.key`."""
    if not flag.startswith("--"):
        return f"{flag}.*" if len(flag) == 2 else f"{flag}(=.*)?"  # -q takes its value attached: -qfp8
    words = flag[2:].replace("-", "[-_]")
    stem, rest = _split(words, _MIN_ABBREVIATION - 2)
    optional = "".join(f"({part}" for part in rest) + ")?" * len(rest)
    return f"--{stem}{optional}([=.].*)?"


def _split(pattern: str, length: int) -> tuple[str, list[str]]:
    parts = re.findall(r"\[-_\]|\w", pattern)
    return "".join(parts[:length]), parts[length:]


OWNED_FLAG_PATTERN = "^(" + "|".join(_spellings(owned.flag) for owned in FLAGS) + ")$"
SECRET_FLAG_PATTERN = "^(" + "|".join(map(_spellings, SECRET_FLAGS)) + ")$"
"""RE2 syntax, so that CEL and Python agree."""


def secret_flag(argument: str) -> bool:
    """True where an argument is an option that takes a secret."""
    return re.fullmatch(SECRET_FLAG_PATTERN, argument) is not None


def owned_flag(argument: str) -> bool:
    """True where an argument sets an option that a field owns, in any spelling that vLLM's parser takes."""
    return re.fullmatch(OWNED_FLAG_PATTERN, argument) is not None
