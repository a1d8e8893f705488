"""Defaults and accounting that a vLLM release changes: one table, and no comparison of versions anywhere else.

Read in the source of the releases named; a boundary such as 0.27 means absent in 0.26.0 and present in 0.27.1.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from kvgate.budget.errors import UnknownVersion
from kvgate.budget.hardware import Accelerator
from kvgate.budget.release_tables import BATCH_TIERS, KV_CACHE_DTYPES
from kvgate.budget.units import GIB
from kvgate.record import record

Release = tuple[int, int]
"""(0, 33) for 0.33.x: accounting changes with minor releases."""


@record
class BatchLimits:
    """Defaults of max_num_batched_tokens and max_num_seqs for `vllm serve`."""

    max_num_batched_tokens: int
    max_num_seqs: int


DEVICES: dict[str, Callable[[Accelerator], bool]] = {
    "a100": lambda accelerator: accelerator.is_a100,
    "gb10": lambda accelerator: accelerator.compute_capability == (12, 1),
}
"""Devices that tiers of batch limits leave out, by the names in `release_tables`."""


@record
class BatchTier:
    """Batch limits of devices with at least so much memory, but for those that are named."""

    from_bytes: int
    limits: BatchLimits
    excluded: tuple[str, ...] = ()

    def takes(self, accelerator: Accelerator) -> bool:
        """True for a device of this tier; of several, the first one counts."""
        is_excluded = any(DEVICES[name](accelerator) for name in self.excluded)
        return accelerator.memory_bytes >= self.from_bytes and not is_excluded


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Accounting:
    """The way in which one release arrives at the KV cache memory of a rank; one object per release, compared by identity."""

    gpu_memory_utilization: Fraction = Fraction(9, 10)
    """Default share of the device's memory."""
    batch_tiers: tuple[BatchTier, ...] = ()
    """Batch limits by memory, largest first; the last tier is of all other devices."""
    batched_tokens_cover_model_len: bool = False
    """V0 without chunked prefill: max_num_batched_tokens = max(max_model_len, 2048)."""
    null_blocks: int = 0
    """Blocks kept back before the check that one request fits."""
    v1_engine: bool = False
    """The V1 engine runs by default (0.8+)."""
    whole_card_non_torch: bool = False
    """All memory in use outside torch is deducted, the CUDA context included (0.8 only)."""
    nccl_in_budget: bool = True
    """The snapshot is taken before NCCL starts, so its buffers are deducted."""
    sampler_half_rows: int = 19
    """Peak of the sampler's profile in halves of max_num_seqs × vocabulary × 4 bytes, before the V2 runner: sorting takes 9.5."""
    leaves_out_unused_encoders: bool = False
    """Encoders are not loaded where no prompt may hold what they read."""
    pads_encoder_outputs: str = ""
    """The profile run keeps as many embeddings for every item as the `budget`, or as the largest `item` is reckoned to have."""
    samples_with_flashinfer_if_installed: bool = False
    """True where the image decides which sampler runs; the sorting one is expected."""
    sampler_program_rows: bool = False
    """The sampler keeps a scratch row for each of its programs (Triton top-k and top-p)."""
    expert_workspace_persists: bool = False
    """Expert workspaces outlive the profile run and add to its peak instead of being inside it."""
    estimates_graphs: bool = False
    """A few CUDA graphs are captured before the KV cache is sized, to estimate them all (V1 runner)."""
    graphs_deducted: bool = False
    """The estimate of CUDA graph memory is taken out of the budget (V1 runner)."""
    v2_runner_architectures: frozenset[str] | None = frozenset()
    """Architectures that the V2 runner serves by default; None: all of them."""
    v2_runner_dense: bool = False
    """The V2 runner serves every dense architecture."""
    v2_graphs_deducted: bool = False
    consumed_accounting: bool = False
    """Everything still allocated after the profile counts, persistent buffers included."""
    compiler_tries_kernels: bool = False
    """torch.compile measures combined kernels inside the profile run, on inputs that it makes up (`benchmark_combo_kernel`)."""
    cold_compile_seen: bool = False
    """Starts with an empty compile cache have shown that in their peak."""
    counts_fragments: bool = False
    """Blocks of which only a piece is still in use count whole: what the card has lost counts, and large blocks are cut."""
    unsplit_large_blocks: bool = False
    """Weights are loaded under max_split_size_mb = 20: large blocks keep their tail."""
    full_graphs: bool = False
    """CUDA graphs are captured for whole decode steps as well as piecewise."""
    blackwell_graphs: bool = False
    """Compute capability 10.x captures up to 1024 tokens instead of 512."""
    hybrid_kv_cache_manager: bool = False
    """Windows and chunks are kept as such beside full attention."""
    hybrid_prefix_caching: bool = False
    """Prefixes of hybrids are cached by default; those of pure attention since V1."""
    state_checkpoints: bool = False
    """Cached recurrent states keep one more block where the kernel can export it."""
    reserves_batches_in_flight: bool = False
    """Windows hold the tokens of every batch in flight instead of one batch."""
    checks_state_blocks: bool = False
    """Full CUDA graphs refuse more sequences than there are blocks for recurrent states."""
    defaults_to_unscaled_length: bool = False
    """LongRoPE models run at the length before scaling unless the user asks for more."""
    tokens_by_concurrency: bool = False
    """The logged size of the KV cache is concurrency × max_model_len; before, blocks of a group × block size."""
    wrapper_ties_embeddings: bool = False
    """True where the multimodal config's `tie_word_embeddings` counts, its default included: with transformers 5."""
    interleaved_positions_have_room: bool = True
    """Rotary tables of interleaved sections are as long as those of others (two starts of Qwen3.5 of 0.19; not in 0.32)."""
    shutdown_timeout: bool = False
    """`--shutdown-timeout` lets running requests end."""
    deprecated_quantizations: frozenset[str] = frozenset()
    """Methods that are refused without `--allow-deprecated-quantization`."""
    batch_holds_media_item: bool = False
    """A defaulted max_num_batched_tokens is raised to one image or video that attends both ways (2,496 instead of 2,048 with
    Gemma-4-26B in a log of 0.25.1; 0.20.2 refuses instead)."""
    graphs_by_level: bool = False
    """Optimisation level 1 captures pieces only; before, 1 to 3 were levels of compilation."""
    performance_modes: bool = False
    """`--performance-mode` doubles the default batch limits (throughput) or captures every small size (interactivity)."""
    falls_back_to_float16: bool = False
    """A model of bfloat16 is served in float16 where the GPU has none (`_resolve_auto_dtype`)."""
    kv_cache_dtypes: frozenset[str] = frozenset()
    """Values of --kv-cache-dtype that the parser accepts."""
    cache_scheme_methods: frozenset[str] = frozenset()
    """Quantisation methods whose checkpoints decide what `--kv-cache-dtype auto` means (`resolve_kv_cache_dtype_string`, and the
    attention layer for compressed-tensors, absent in 0.14.0 and present in 0.16.0)."""

    def uses_v2_runner(self, architecture: str, *, is_dense: bool) -> bool:
        """True where this release runs the architecture on the V2 model runner by default."""
        if self.v2_runner_architectures is None:
            return True
        return architecture in self.v2_runner_architectures or (self.v2_runner_dense and is_dense)

    def deducts_graphs(self, *, v2_runner: bool) -> bool:
        """True where the reserve for CUDA graphs comes out of the KV cache."""
        return self.v2_graphs_deducted if v2_runner else self.graphs_deducted

    def captures_graphs(self, *, v2_runner: bool) -> bool:
        """True where graphs are captured before the KV cache is sized."""
        return self.v2_graphs_deducted if v2_runner else self.estimates_graphs

    def batch_limits(self, accelerator: Accelerator) -> BatchLimits:
        """Defaults by device memory and name (`EngineArgs.get_batch_defaults`)."""
        return next(tier.limits for tier in self.batch_tiers if tier.takes(accelerator))


_DENSE_V2_FIRST = frozenset({
    "Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM",
})  # fmt: skip

_CHANGES: tuple[tuple[Release, dict[str, object]], ...] = (
    ((0, 6), {"batched_tokens_cover_model_len": True}),
    ((0, 8), {
        "batched_tokens_cover_model_len": False,
        "v1_engine": True,
        "samples_with_flashinfer_if_installed": True,
        "whole_card_non_torch": True,
    }),
    ((0, 9), {"falls_back_to_float16": True, "whole_card_non_torch": False, "hybrid_kv_cache_manager": True}),
    ((0, 11), {"pads_encoder_outputs": "budget", "nccl_in_budget": False, "full_graphs": True}),
    ((0, 12), {
        "defaults_to_unscaled_length": True,
        "pads_encoder_outputs": "item",
        "samples_with_flashinfer_if_installed": False,
        "compiler_tries_kernels": True,
        "graphs_by_level": True,
    }),
    ((0, 13), {"expert_workspace_persists": True}),
    ((0, 14), {
        "pads_encoder_outputs": "",
        "deprecated_quantizations": frozenset({"fbgemm_fp8", "fp_quant"}),
        "cache_scheme_methods": frozenset({"modelopt"}),
    }),
    ((0, 15), {"cache_scheme_methods": frozenset({"modelopt", "compressed-tensors"})}),
    ((0, 17), {
        "sampler_half_rows": 7,
        "sampler_program_rows": True,
        "leaves_out_unused_encoders": True,
        "performance_modes": True,
    }),
    ((0, 18), {"estimates_graphs": True, "shutdown_timeout": True}),
    ((0, 19), {"cold_compile_seen": True}),
    ((0, 20), {
        "gpu_memory_utilization": Fraction(92, 100),
        "graphs_deducted": True,
        "checks_state_blocks": True,
        "wrapper_ties_embeddings": True,
    }),
    ((0, 21), {"tokens_by_concurrency": True}),
    ((0, 22), {"sampler_program_rows": False, "unsplit_large_blocks": True, "v2_runner_architectures": frozenset({"Qwen3ForCausalLM"})}),
    ((0, 24), {"v2_runner_architectures": _DENSE_V2_FIRST, "interleaved_positions_have_room": False}),
    ((0, 25), {"batch_holds_media_item": True}),
    ((0, 26), {
        "v2_runner_dense": True,
        "hybrid_prefix_caching": True,
        "state_checkpoints": True,
        "reserves_batches_in_flight": True,
    }),
    ((0, 27), {"consumed_accounting": True, "counts_fragments": True}),
    ((0, 28), {"blackwell_graphs": True}),
    ((0, 29), {"null_blocks": 1, "v2_runner_architectures": None, "v2_graphs_deducted": True}),
    ((0, 31), {"counts_fragments": False}),
    ((0, 33), {}),
)  # fmt: skip
"""Changes of each release, as a person read them; the last row is of the newest release whose memory profiling is understood, with
nothing in it where it changed no byte. KV cache dtypes and batch limits stand in `release_tables`, which `make vllm-release` writes."""

OLDEST: Release = _CHANGES[0][0]
NEWEST: Release = _CHANGES[-1][0]
DEFAULT_VERSION = "0.33.0"
"""Release that is assumed where nobody names one."""

_VERSION = re.compile(
    r"v?(?P<major>\d{1,9})\.(?P<minor>\d{1,9})(?!\d)(?:\.(?P<patch>\d{1,9})(?!\d))?(?:[.+\-]?\w[\w.+\-]*)?"
)


@lru_cache(maxsize=256)
def parse_release(version: str) -> Release:
    """`0.33.0`, `v0.11.0rc2`, `0.10.2.dev5+g1f3a` → (minor) release. Raises UnknownVersion for anything else."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise UnknownVersion(f"{version!r} is not a vLLM version; write it as 0.33.0")
    return int(match["major"]), int(match["minor"])


@lru_cache(maxsize=1024)
def parse_patch(version: str) -> tuple[int, int, int]:
    """`0.11.1` → (0, 11, 1); a development build counts as the release it leads to. Raises UnknownVersion."""
    match = _VERSION.fullmatch(version.strip())
    return (*parse_release(version), int(match["patch"] or 0) if match else 0)


def is_newer_than_known(version: str) -> bool:
    """True for a release that nobody has read yet."""
    return parse_release(version) > NEWEST


def accounting_of(version: str) -> Accounting:
    """The accounting of a release; one newer than the table counts as the newest. Raises UnknownVersion below 0.6."""
    return _accounting(parse_release(version))


@lru_cache(maxsize=256)
def _accounting(release: Release) -> Accounting:
    if release < OLDEST:
        raise UnknownVersion(
            f"vLLM {release[0]}.{release[1]} is older than {OLDEST[0]}.{OLDEST[1]}, the oldest release that kvgate knows"
        )
    facts = Accounting(kv_cache_dtypes=_kv_cache_dtypes(release), batch_tiers=_batch_tiers(release))
    for since, changes in _CHANGES:
        if since <= release:
            facts = replace(facts, **changes)  # type: ignore[arg-type]
    return facts


def _kv_cache_dtypes(release: Release) -> frozenset[str]:
    return frozenset(
        name
        for name, since, removed_in in KV_CACHE_DTYPES
        if since <= release and (removed_in is None or release < removed_in)
    )


def _batch_tiers(release: Release) -> tuple[BatchTier, ...]:
    tiers = [tiers for since, tiers in BATCH_TIERS if since <= release][-1]
    return tuple(
        BatchTier(
            from_bytes=gib * GIB,
            limits=BatchLimits(max_num_batched_tokens=tokens, max_num_seqs=seqs),
            excluded=excluded,
        )
        for gib, tokens, seqs, excluded in tiers
    )
