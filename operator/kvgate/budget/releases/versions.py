"""Defaults and accounting that a vLLM release changes: one table, and no comparison of versions anywhere else.

The facts were read in the source of the named releases. A boundary such as 0.27 means: absent in 0.26.0 and present in 0.27.1.
"""

from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.ground.interval import UnknownVersion
from kvgate.budget.ground.units import GIB, MIB
from kvgate.budget.releases.accounting import Accounting, BatchLimits, BatchTier
from kvgate.budget.releases.tables import BATCH_TIERS, KV_CACHE_DTYPES, PLAIN_CACHES
from kvgate.text.patterns import pattern

T = TypeVar("T", bound=Struct)
Release = tuple[int, int]
"""(0, 33) stands for 0.33.x, because accounting changes with minor releases."""

_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
_NO_FLOAT16 = frozenset({"Gemma2ForCausalLM", "Gemma3ForConditionalGeneration", "Glm4ForCausalLM"})
_DENSE_V2_FIRST = frozenset({
    "Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM",
})  # fmt: skip

_CHANGES: tuple[tuple[tuple[int, ...], dict[str, object]], ...] = (
    ((0, 6), {"latent_blocks": {9: 64}, "latent_state_block": 64}),
    ((0, 6, 4), {"whole_card_non_torch": True}),  # Worker.determine_num_available_blocks; absent in 0.6.3 and 0.6.5
    ((0, 6, 5), {"whole_card_non_torch": False}),
    ((0, 8), {
        "lora_ranks": _LORA_RANKS,
        "v1_engine": True,
        "begins_last_media_item": True,
        "latent_context_in_profile": False,
        "flashinfer_samples": "installed",
        "whole_card_non_torch": True,
        "has_both_engines": True,
        "v0_is_common": True,
        "v0_cuts_latent_prompts": False,
        "v0_vendors": frozenset({"amd"}),
        "v0_below": (8, 0),
        "v0_runs_states": True,
    }),
    ((0, 9), {
        "v0_is_common": False,
        "falls_back_to_float16": True,
        "hybrid_kv_cache_manager": True,
        "kv_events_exclude_manager": True,
        "keeps_chunks_whole": True,
        "nccl_connects_at_use": True,
    }),
    ((0, 9, 1), {"whole_card_non_torch": False, "checks_free_memory": True}),
    ((0, 9, 2), {"engine_max_num_seqs": 128, "float16_refused": _NO_FLOAT16, "v0_on_amd_in_builds_alone": True}),
    ((0, 10), {
        "v0_vendors": frozenset(), "begins_last_media_item": False, "keeps_chunks_whole": False,
        "fp8_cache_majors": frozenset({9, 10}), "converts_classifiers": True,
    }),
    ((0, 10, 2), {"latent_blocks": {9: 64, 10: 128}, "v0_below": (0, 0), "v0_runs_states": False, "keeps_chunks_whole": True}),
    ((0, 11), {
        "has_both_engines": False,
        "float16_refused": _NO_FLOAT16 | {"Gemma3ForCausalLM"},
        "latent_context_in_profile": True,
        "pads_encoder_outputs": "budget",
        "nccl_in_budget": False,
        "full_graphs": True,
        "v0_reads_fp8_caches": False,
        "sparse_latent_defaults_to_fp8": True,
    }),
    ((0, 11, 1), {
        "sparse_latent_defaults_to_fp8": False,
        "flashinfer_samples": "requested",
        "flashinfer_capabilities": ((7, 5), (12, 1)),
        "compiler_tries_kernels": True,
        "defaults_to_unscaled_length": True,
        "layers_state_cache_dtype": True,
    }),
    ((0, 12), {
        "names_gguf_by_type": True,
        "lora_ranks": (1, *_LORA_RANKS),
        "adapters_may_have_biases": False,
        "overrides_inner_configs": True,
        "expert_chunk_tokens": 16 * 1024,
        "bundles_triton_kernels": True,
        "length_rule": "rope_parameters",
        "pads_encoder_outputs": "item",
        "graphs_by_level": True,
        "lora_in_experts": True,
        "lora_adds_vocabulary": False,
        "lora_graphs_twice": True,
        "compares_draft_ends": True,
        "shrinks_to_fewest_blocks": True,
        "state_modes": frozenset({"all"}),
        "default_state_mode": "all",
    }),
    ((0, 13), {"expert_workspace_persists": True, "pads_encoder_outputs": "", "takes_wish_for_manager": True}),
    ((0, 14), {
        "fp8_weights_on_turing": True,
        "deprecated_quantizations": frozenset({"fbgemm_fp8", "fp_quant"}),
        "cache_scheme_methods": frozenset({"modelopt"}),
        "start_check_counts_all_stages": True,
        "keeps_chunks_whole": False,
        "masks_pictures": True,
        "towers_run": True,
    }),
    ((0, 15), {
        "cache_scheme_methods": frozenset({"modelopt", "compressed-tensors"}),
        "mtp_shares_head": True,
        "state_modes": frozenset({"align", "all"}),
    }),
    ((0, 16), {"latent_blocks": {9: 64, 10: 64}, "leaves_out_unused_encoders": True, "cuts_draft_as_target": True}),
    ((0, 17), {
        "fuses_tower_gates": True,
        "compares_vocabularies": True,
        "lora_max_vocabulary": 258048,
        "start_check_counts_all_stages": False,
        "offloads_after_loading": True,
        "sampler_half_rows": 7,
        "sampler_program_rows": True,
        "performance_modes": True,
        "all_reduce_workspace": "trtllm",
        "all_reduce_multicast": True,
        "all_reduce_excludes": frozenset({"data", "pipeline"}),
    }),
    ((0, 18), {"latent_blocks": None, "expert_chunk_tokens": 0, "estimates_graphs": True, "shutdown_timeout": True}),
    ((0, 19), {"indexer_logits_in_profile": True, "cold_compile_seen": True}),
    ((0, 20), {
        "tells_auto_length": True,
        "loads_split_gguf": True,
        "compressed_cache_needs_fp8": True,
        "latent_state_block": 1,
        "checks_draft_slots": True,
        "kv_events_exclude_manager": False,
        "gpu_memory_utilization": Fraction(92, 100),
        "all_to_all_tokens": 0,
        "graphs_deducted": True,
        "checks_state_blocks": True,
        "wrapper_ties_embeddings": True,
        "scheduled_tokens_leave_draft_slots": True,
    }),
    ((0, 21), {
        "lora_with_expert_parallelism": True,
        "flashinfer_samples": "default",
        "samples_with_generators": True,
        "tokens_by_concurrency": True,
        "unsplit_large_blocks": True,
        "nvfp4_capabilities": frozenset({10}),
        "all_reduce_excludes": frozenset(),
    }),
    ((0, 22), {
        "float16_kernels": frozenset({"awq"}),
        "asks_connectors": True,
        "chunks_pictures": True,
        "all_reduce_multicast": False,
        "v2_runner_architectures": frozenset({"Qwen3ForCausalLM"}),
        "v2_runner_plain_only": True,
        "drafts_beside_all_states": True,
    }),
    ((0, 23), {
        "all_reduce_excludes": frozenset({"pipeline"}),
        "v2_runner_architectures": frozenset({"Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"}),
    }),
    ((0, 24), {
        "float16_kernels": frozenset(),
        "loads_gguf": False,
        "all_reduce_excludes": frozenset(),
        "v2_runner_architectures": _DENSE_V2_FIRST,
        "v2_runner_plain_only": False,
        "shares_indices": True,
        "fp8_cache_capability": (8, 0),
        "pads_experts": True,
        "flashinfer_capabilities": ((8, 0), (12, 1)),
    }),
    ((0, 25), {
        "batch_holds_media_item": True, "shares_prompts": None, "all_reduce_workspace": "mnnvl", "v2_runner_dense": True,
    }),
    ((0, 26), {
        "gathers_with_torch": False,
        "graphs_unmeasured_on": frozenset({"intel"}),
        "v2_sampler_half_rows": 1,
        "hybrid_prefix_caching": True,
        "reserves_batches_in_flight": True,
        "packed_caches_refuse_windows": True,
    }),
    ((0, 27), {
        "v1_runner_on_amd": frozenset({"KimiK3ForConditionalGeneration"}),
        "shares_prompts": True,
        "latent_state_block": 128,
        "consumed_accounting": True,
        "counts_fragments": True,
        "all_reduce_multicast": True,
        "v2_profiles_encoders": True,
        "pools_compressed_queries": True,
        "v2_runner_architectures": _DENSE_V2_FIRST | {"KimiK3ForConditionalGeneration"},
    }),
    ((0, 28), {"blackwell_graphs": True, "scheduled_tokens_leave_draft_slots": False, "default_state_mode": "align"}),
    ((0, 29), {
        "v1_runner_on_amd": frozenset({"DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "GlmMoeDsaForCausalLM"}),
        "refines_expert_blocks": True,
        "state_checkpoints": True, "null_blocks": 1, "v2_runner_architectures": None, "v2_graphs_deducted": True,
        "reduces_alone_mib": {},
    }),
    ((0, 30), {
        "masks_pictures": False,
        "compressed_cache_needs_fp8": False,
        "drafts_with_shared_prompts": True,
        "length_rule": "yarn_stated",
        "reduces_alone_mib": {(103, 4): 80, (103, 8): 64}, "shared_layers_project_keys": False, "pools_compressed_queries": False,
    }),
    ((0, 31), {"counts_fragments": False, "graphs_unmeasured_on": frozenset(), "stages_with_shared_prompts": True}),
    ((0, 32), {
        "adapters_replace_heads": True,
        "v1_runner_on_amd": frozenset(),
        "interleaved_positions_have_room": False,
        "nvfp4_capabilities": frozenset({8, 9, 10, 12}),
        "state_modes": frozenset({"align"}),
    }),
    ((0, 33), {
        "plugs_in_kv_cache_dtypes": True,
        "reduces_alone_mib": {(100, 8): 128, (103, 4): 80, (103, 8): 128},
        "v2_sampler_half_rows": 7,
    }),
)  # fmt: skip
"""Changes of each release, or of one that only mends another (0.11.1), as a person read them. The last row is the newest release whose
memory profiling is understood; it is empty if that release changed no byte. KV cache dtypes and batch limits stand in
`release_tables`, which `make vllm-release` writes."""

OLDEST: Release = (_CHANGES[0][0][0], _CHANGES[0][0][1])
NEWEST: Release = (_CHANGES[-1][0][0], _CHANGES[-1][0][1])
DEFAULT_VERSION = "0.33.0"
"""Release that kvgate assumes where the user names none."""

_VERSION = pattern(
    r"v?(?P<major>\d{1,9})\.(?P<minor>\d{1,9})(?!\d)(?:\.(?P<patch>\d{1,9})(?!\d))?(?:[.+\-]?\w[\w.+\-]*)?"
)


@lru_cache(maxsize=256)
def parse_release(version: str) -> Release:
    """Return the minor release of `0.33.0`, `v0.11.0rc2` or `0.10.2.dev5+g1f3a`. Raises UnknownVersion for any other text."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise UnknownVersion(f"{version!r} is not a vLLM version; write it as 0.33.0")
    return int(match["major"]), int(match["minor"])


@lru_cache(maxsize=1024)
def parse_patch(version: str) -> tuple[int, int, int]:
    """Return (0, 11, 1) for `0.11.1`; a development build counts as the release that it leads to. Raises UnknownVersion."""
    match = _VERSION.fullmatch(version.strip())
    return (*parse_release(version), int(match["patch"] or 0) if match else 0)


def is_unreleased(version: str) -> bool:
    """True for a development build, a release candidate, and a build of somebody else, whose local part names neither CUDA nor ROCm."""
    return _UNRELEASED.search(version) is not None


_UNRELEASED = pattern(r"\.dev|rc\d|\+(?!(?:cu|rocm)\d*(?:\Z|\.))")


def as_of(facts: T, changes: Iterable[tuple[tuple[int, ...], dict[str, object]]], release: tuple[int, ...]) -> T:
    """Return the facts with the changes of all releases up to this one."""
    made: dict[str, object] = {}
    for since, changed in changes:
        made |= changed if since <= release else {}
    return replace(facts, **made)


def is_newer_than_known(version: str) -> bool:
    """True for a release whose source nobody has read yet."""
    return parse_release(version) > NEWEST


def accounting_of(version: str) -> Accounting:
    """Return the accounting of a release; a release newer than the table counts as the newest. Raises UnknownVersion below 0.6."""
    return _accounting(parse_patch(version))


@lru_cache(maxsize=64)
def accounting_of_v0(version: str) -> Accounting:
    """Return the accounting of the V0 engine of a release that has both engines."""
    return replace(
        accounting_of(version),
        v1_engine=False,
        latent_context_in_profile=True,
        whole_card_non_torch=False,
        checks_free_memory=False,
        flashinfer_samples="never",
        hybrid_kv_cache_manager=False,
        engine_max_num_seqs=None,
    )


@lru_cache(maxsize=256)
def _accounting(release: tuple[int, int, int]) -> Accounting:
    if release < OLDEST:
        raise UnknownVersion(
            f"vLLM {release[0]}.{release[1]} is older than {OLDEST[0]}.{OLDEST[1]}, the oldest release that kvgate knows"
        )
    tiers = [tiers for since, tiers in BATCH_TIERS if since <= release][-1]
    facts = Accounting(
        kv_cache_dtypes=frozenset(name for name, since, gone in KV_CACHE_DTYPES if _is_within(release, since, gone)),
        batch_tiers=tuple(
            BatchTier(
                from_bytes=gib * GIB,
                limits=BatchLimits(max_num_batched_tokens=tokens, max_num_seqs=seqs),
                excluded=excluded,
            )
            for gib, tokens, seqs, excluded in tiers
        ),
    )
    facts = as_of(facts, _CHANGES, release)
    if not facts.layers_state_cache_dtype:
        return facts
    rows = ((name, test) for name, test, since, gone in PLAIN_CACHES if _is_within(release, since, gone))
    return replace(facts, plain_caches=frozenset(rows))


def _is_within(release: tuple[int, ...], since: Release, removed_in: Release | None) -> bool:
    return since <= release and (removed_in is None or release < removed_in)


class HostAccounting(Struct, frozen=True, kw_only=True, eq=False):
    """The way in which one release uses memory of the host; one object per release, compared by identity."""

    has_swap_space: bool = True
    """True where `--swap-space` exists; V0 alone uses it (absent in 0.18.0)."""
    may_run_v0: bool = True
    """True while the release has V0, whose GPU caches `--swap-space` swaps out (up to 0.10)."""
    message_bytes: int = 10 * MIB
    """Largest message from the engine to its ranks; the queue in /dev/shm has room for ten (`MultiprocExecutor._init_executor`)."""
    reply_bytes: int = 10 * MIB
    """The same for the replies of each rank (`MessageQueue.__init__`, its default)."""
    checks_shared_memory: bool = False
    """True where vLLM does not start if a segment is larger than what is free in /dev/shm (0.27, `check_shm_free_space`). Before, the
    segment is made whatever its size, because its pages are taken when they are first written."""
    offloads_cache_to_shared_memory: bool = False
    """True where offloaded blocks lie in one file in /dev/shm, all of which is written at the start (0.27, `SharedOffloadRegion`).
    Before, each rank has pinned tensors of its own."""
    sizes_cache_offload: bool = False
    """True where `--kv-offloading-size` sizes that buffer (0.14, `cpu_bytes_to_use`); 0.12 and 0.13 pass it on, and nothing reads it."""
    lmcache_in_process: bool = True
    """True where `--kv-offloading-backend lmcache` keeps blocks in the ranks; since 0.23 a server of LMCache's own has them."""
    api_servers_follow_copies: bool = False
    """True where there is an API server for every data parallel rank by default (0.16, `ServeSubcommand.cmd`)."""
    media_caches_of_server: int = 2
    """Caches in which the API server keeps prepared images (`ProcessingCache`, `MirroredProcessingCache`); since 0.10.2 it keeps only
    their sizes where one engine keeps the images (`MultiModalProcessorSenderCache`)."""


_HOST_CHANGES: tuple[tuple[Release, dict[str, object]], ...] = (
    ((0, 9), {"message_bytes": 16 * MIB}),
    ((0, 11), {"media_caches_of_server": 0, "may_run_v0": False}),
    ((0, 12), {"reply_bytes": 24 * MIB}),
    ((0, 14), {"sizes_cache_offload": True}),
    ((0, 16), {"api_servers_follow_copies": True}),
    ((0, 18), {"has_swap_space": False}),
    ((0, 23), {"lmcache_in_process": False}),
    ((0, 27), {"checks_shared_memory": True, "offloads_cache_to_shared_memory": True}),
)
"""Changes in the memory of the host, read in the source of 0.6.6 to 0.33.0; a row such as 0.27: absent in 0.26.0, present in 0.27.0."""


@lru_cache(maxsize=256)
def host_accounting(release: Release) -> HostAccounting:
    """Return how a release uses the host; a release newer than the table counts as the newest."""
    return as_of(HostAccounting(), _HOST_CHANGES, release)
