"""KV cache dtypes and batch limits of each release of vLLM, by its source. Written by `make vllm-release`."""

# fmt: off
KV_CACHE_DTYPES: tuple[tuple[str, tuple[int, int], tuple[int, int] | None], ...] = (
    ("auto", (0, 6), None),
    ("fp8", (0, 6), None),
    ("fp8_e4m3", (0, 6), None),
    ("fp8_e5m2", (0, 6), None),
    ("fp8_inc", (0, 10), None),
    ("bfloat16", (0, 11), None),
    ("fp8_ds_mla", (0, 12), None),
    ("float16", (0, 18), None),
    ("fp8_per_token_head", (0, 20), None),
    ("int8_per_token_head", (0, 20), None),
    ("nvfp4", (0, 20), None),
    ("turboquant_3bit_nc", (0, 20), None),
    ("turboquant_4bit_nc", (0, 20), None),
    ("turboquant_k3v4_nc", (0, 20), None),
    ("turboquant_k8v4", (0, 20), None),
    ("int4_per_token_head", (0, 26), None),
    ("nvfp4_4over6", (0, 28), None),
    ("nvfp4_ds_mla", (0, 30), None),
    ("ultraquant_4bit", (0, 32), None),
    ("octave_k3v3", (0, 33), None),
    ("octave_k3v3_compact", (0, 33), None),
    ("octave_k3v4", (0, 33), None),
)
"""(value of --kv-cache-dtype, first minor release with it, first one without it again)."""

BATCH_TIERS: tuple[tuple[tuple[int, int], tuple[tuple[int, int, int, tuple[str, ...]], ...]], ...] = (
    ((0, 6), (
        (0, 2048, 256, ()),
    )),
    ((0, 8), (
        (70, 8192, 1024, ()),
        (0, 2048, 256, ()),
    )),
    ((0, 9), (
        (70, 8192, 1024, ("a100",)),
        (0, 2048, 256, ()),
    )),
    ((0, 28), (
        (160, 16384, 1024, ()),
        (70, 8192, 1024, ("a100",)),
        (0, 2048, 256, ()),
    )),
    ((0, 33), (
        (160, 16384, 1024, ()),
        (70, 8192, 1024, ("a100", "gb10")),
        (0, 2048, 256, ()),
    )),
)
"""(first minor release, tiers), a tier being (GiB of memory from which on it counts, max_num_batched_tokens, max_num_seqs, devices
that it leaves out); the first one that fits counts."""
