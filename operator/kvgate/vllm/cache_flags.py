"""vLLM's options that shape the KV cache or what is left for it, and that no field of the spec owns.

As settings of a what-if, and in extraArgs.
"""

import json
from collections.abc import Mapping
from typing import Any

from kvgate.budget.request import GRAPH_MODES, GraphSettings, Speculation
from kvgate.record import record
from kvgate.vllm.values import Reader, Unusable, one_of, truth, whole

_MANY = 1024
"""Layers of a model, at most."""
_MODES_BY_NUMBER = {0: "NONE", 1: "PIECEWISE", 2: "FULL"}
"""Members of vLLM's `CUDAGraphMode` that are one number each."""


@record
class CacheFlag:
    """One option; its name is vLLM's."""

    name: str
    read: Reader
    help: str
    field: str = ""
    """Field of the engine's settings, where it is not the name."""
    is_switch: bool = False
    """True or false, without a value on the command line."""

    @property
    def setting(self) -> str:
        """Name of the field."""
        return self.field or self.name


def _layers(value: Any) -> tuple[str, ...]:
    """Indices of layers, or `sliding_window`: a list, or text with spaces or commas."""
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or len(words) > _MANY:
        raise Unusable("it must be a list of layers, such as 0,1 or sliding_window")
    names = tuple(str(word) for word in words)
    if not all(name == "sliding_window" or name.isdecimal() for name in names):
        raise Unusable("it must be a list of layers, such as 0,1 or sliding_window")
    return names


def _object(value: Any, example: str) -> Mapping[str, Any]:
    """A JSON object, or its text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, Mapping):
        raise Unusable(f"it must be an object such as {example}")
    return value


def _whole(value: Any, at_most: int, what: str) -> int:
    """Also as text, which vLLM's configuration classes take for a number."""
    value = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 20 else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= at_most:
        raise Unusable(f"{what} must be a whole number up to {at_most}")
    return value


def _limits(value: Any) -> tuple[tuple[str, int], ...]:
    """`--limit-mm-per-prompt`: items, or an object with their `count`; text such as `image=2,video=0` was taken before 0.9."""
    if isinstance(value, str) and "=" in value and "{" not in value:
        pairs = (part.partition("=") for part in value.split(","))
        value = {name.strip(): int(count) if count.strip().isdecimal() else None for name, _, count in pairs}
    limits = _object(value, '{"image": 1, "video": 0}')
    counts = {
        str(name): limit.get("count", 1) if isinstance(limit, Mapping) else limit for name, limit in limits.items()
    }
    return tuple((name, _whole(count, _MANY * _MANY, "a count of items")) for name, count in counts.items())


def graph_settings(value: Any) -> GraphSettings:
    """`--compilation-config`: what it says about CUDA graphs; a number is a level of optimisation."""
    if isinstance(value, int) or (isinstance(value, str) and value.strip().isdecimal()):
        return GraphSettings(mode="NONE" if int(value) == 0 else None, compiles=_compiles(int(value)))
    config = _object(value, '{"cudagraph_mode": "PIECEWISE"}')
    mode, sizes, largest = (
        config.get(key) for key in ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")
    )
    if isinstance(mode, int):
        mode = _MODES_BY_NUMBER.get(mode, mode)
    if mode is not None and str(mode).upper() not in GRAPH_MODES:
        raise Unusable(f"cudagraph_mode must be one of {', '.join(GRAPH_MODES)}")
    if sizes is not None and not isinstance(sizes, list | tuple):
        raise Unusable("cudagraph_capture_sizes must be a list of numbers")
    return GraphSettings(
        mode=None if mode is None else str(mode).upper(),
        capture_sizes=None if sizes is None else tuple(_whole(size, 1 << 20, "a capture size") for size in sizes),
        max_capture_size=None if largest is None else _whole(largest, 1 << 20, "max_cudagraph_capture_size"),
        compiles=_compiles(config.get("mode", config.get("level"))),
    )


def _compiles(mode: Any) -> bool | None:
    """Return whether a mode of compilation (`level` before 0.12) compiles, where it is certain."""
    if mode is None:
        return None
    return {"0": False, "NONE": False, "3": True, "VLLM_COMPILE": True}.get(str(mode).upper())


def _level(value: Any) -> int | None:
    """`-O0` to `-O3`; keys of a compilation config, which `-O.mode` once meant, are no level."""
    if isinstance(value, Mapping):
        return None
    if isinstance(value, bool) or str(value) not in ("0", "1", "2", "3"):
        raise Unusable("it must be 0, 1, 2 or 3")
    return int(value)


def speculation(value: Any) -> Speculation:
    """`--speculative-config`: an object, or its JSON text. What is drafted with decides what the draft keeps."""
    config = _object(value, '{"method": "mtp", "num_speculative_tokens": 1}')
    tokens = _whole(config.get("num_speculative_tokens") or 0, _MANY, "num_speculative_tokens")
    method = config.get("method")
    return Speculation(method=method if isinstance(method, str) else "draft_model", num_speculative_tokens=tokens)


_dtype = one_of("auto", "float32", "float16", "bfloat16")

CACHE_FLAGS: tuple[CacheFlag, ...] = (
    CacheFlag(
        name="num_gpu_blocks_override", read=whole(1 << 40), help="Blocks of the KV cache, whatever memory there is."
    ),
    CacheFlag(
        name="disable_hybrid_kv_cache_manager", read=truth, help="Keep windows as full attention.", is_switch=True
    ),
    CacheFlag(name="enable_chunked_prefill", read=truth, help="Cut long prompts into several batches.", is_switch=True),
    CacheFlag(name="async_scheduling", read=truth, help="Schedule the next batch while one runs.", is_switch=True),
    CacheFlag(
        name="kv_cache_dtype_skip_layers", read=_layers, help="Layers that keep the model dtype: 0,1 or sliding_window."
    ),
    CacheFlag(name="mamba_cache_mode", read=one_of("none", "align", "all"), help="How recurrent states are cached."),
    CacheFlag(name="mamba_block_size", read=whole(1 << 30), help="Tokens between recurrent states that are cached."),
    CacheFlag(name="mamba_cache_dtype", read=_dtype, help="Format of convolution states."),
    CacheFlag(name="mamba_ssm_cache_dtype", read=_dtype, help="Format of recurrent states."),
    CacheFlag(name="speculative_config", read=speculation, field="speculation", help="Speculative decoding, as JSON."),
    CacheFlag(name="language_model_only", read=truth, help="Take no images and no sounds.", is_switch=True),
    CacheFlag(name="skip_mm_profiling", read=truth, help="Keep no memory for encoders.", is_switch=True),
    CacheFlag(name="mm_encoder_tp_mode", read=one_of("weights", "data"), help="Cut encoders, or hold them whole."),
    CacheFlag(name="limit_mm_per_prompt", read=_limits, help='Items of a prompt, as JSON: {"image": 0}.'),
    CacheFlag(name="compilation_config", read=graph_settings, field="graphs", help="CUDA graphs, as JSON."),
    CacheFlag(name="optimization_level", read=_level, help="0: neither torch.compile nor CUDA graphs; 1: pieces only."),
    CacheFlag(
        name="performance_mode",
        read=one_of("balanced", "interactivity", "throughput"),
        help="throughput: twice the default batch limits.",
    ),
)


_SPECULATION = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
"""Options that each give one key of `--speculative-config`."""


def with_speculation(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments, with the keys of the speculative config that stand apart in one."""
    given = {key: values[name] for name, key in _SPECULATION.items() if values.get(name) is not None}
    rest = {name: value for name, value in values.items() if name not in _SPECULATION}
    if not given or rest.get("speculative_config"):
        return rest
    return {**rest, "speculative_config": given}


def cache_settings(known: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the engine's settings, from values by vLLM's names that have been read."""
    return {flag.setting: known[flag.name] for flag in CACHE_FLAGS if flag.name in known}
