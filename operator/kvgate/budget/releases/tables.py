"""KV cache dtypes, who takes them, and batch limits of each release of vLLM, by its source. Written by `make vllm-release`."""

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

PLAIN_CACHES: tuple[tuple[str, str, tuple[int, int], tuple[int, int] | None], ...] = (
    ("BaiChuanForCausalLM", "self.position_embedding == 'ALIBI'", (0, 9), (0, 26)),
    ("BaiChuanForCausalLM", "self.postion_embedding == 'ALIBI'", (0, 6), (0, 9)),
    ("BaichuanForCausalLM", "self.position_embedding == 'ALIBI'", (0, 9), (0, 26)),
    ("BaichuanForCausalLM", "self.postion_embedding == 'ALIBI'", (0, 6), (0, 9)),
    ("BartForConditionalGeneration", "", (0, 6), (0, 11)),
    ("BartModel", "", (0, 6), (0, 11)),
    ("DFlashDraftModel", "", (0, 20), (0, 22)),
    ("DonutForConditionalGeneration", "", (0, 10), (0, 11)),
    ("Eagle3LlamaForCausalLM", "", (0, 8), (0, 11)),
    ("EagleLlamaForCausalLM", "", (0, 8), (0, 11)),
    ("Exaone4_5_MTP", "", (0, 20), (0, 33)),
    ("ExaoneMoeMTP", "", (0, 14), None),
    ("FalconForCausalLM", "not self.use_rotary and self.use_alibi", (0, 6), None),
    ("FalconForCausalLM", "self.use_rotary", (0, 6), None),
    ("Florence2ForConditionalGeneration", "", (0, 6), (0, 11)),
    ("LlamaForCausalLMEagle3", "", (0, 10), (0, 11)),
    ("MBartForConditionalGeneration", "", (0, 10), (0, 11)),
    ("MiMoV2FlashForCausalLM", "", (0, 14), (0, 32)),
    ("MiMoV2ForCausalLM", "", (0, 22), (0, 32)),
    ("MiMoV2MTPModel", "", (0, 22), (0, 32)),
    ("MiMoV2OmniForCausalLM", "", (0, 22), (0, 32)),
    ("MiMoV2OmniMTPModel", "", (0, 22), (0, 32)),
    ("MllamaForConditionalGeneration", "", (0, 6), (0, 11)),
    ("RWForCausalLM", "not self.use_rotary and self.use_alibi", (0, 6), (0, 29)),
    ("RWForCausalLM", "self.use_rotary", (0, 6), (0, 29)),
)
"""(model class, tests in its source, first minor release, first one without it again): where the tests hold, or where there are none, the
class builds attention layers without `cache_config`."""

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
