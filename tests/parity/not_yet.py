"""What does not yet equal vLLM. Every set must shrink to empty: a test fails as soon as an entry is right in full."""

ARITHMETIC: frozenset[str] = frozenset(
    {
        "google/gemma-3-12b-it",
        "google/gemma-3-4b-it",
        "google/gemma-4-31B-it",
        "google/gemma-4-E4B-it",
        "meta-models/Muse-Glimmer-30B",
        "moonshotai/Kimi-K2.5",
        "nvidia/MiniMax-M3-NVFP4",
        "nvidia/Qwen3.6-27B-NVFP4",
        "Qwen/Qwen3.5-122B-A10B",
        "Qwen/Qwen3.5-27B",
        "Qwen/Qwen3.5-35B-A3B",
        "Qwen/Qwen3.6-35B-A3B",
    }
)
"""Models with a row in kv_arithmetic that differs."""

WEIGHTS: frozenset[str] = frozenset(
    {
        "google/gemma-3-12b-it",
        "google/gemma-3-4b-it",
        "google/gemma-4-31B-it",
        "google/gemma-4-E4B-it",
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        "meta-models/Muse-Glimmer-30B",
        "moonshotai/Kimi-K2.5",
        "nvidia/MiniMax-M3-NVFP4",
        "nvidia/Qwen3.6-27B-NVFP4",
        "Qwen/Qwen3.5-122B-A10B",
        "Qwen/Qwen3.5-27B",
        "Qwen/Qwen3.5-35B-A3B",
        "Qwen/Qwen3.6-35B-A3B",
    }
)
"""Models with a rank whose parameter bytes differ."""

REFUSALS: frozenset[str] = frozenset(
    {
        "decode-context parallelism with sliding-window layers",
        "no attention backend takes this kv_cache_dtype",
        "no attention backend with decode-context parallelism takes these images",
    }
)
"""Reasons for which vLLM refuses a setting that we do not refuse."""

NEIGHBOURS: frozenset[str] = frozenset(
    {
        "google/gemma-3-4b-it",
        "google/gemma-4-E4B-it",
        "meta-models/Muse-Glimmer-30B",
        "moonshotai/Kimi-K2.5",
    }
)
"""Models with a setting that vLLM starts, beside a refused one, that we do not call Fits."""
