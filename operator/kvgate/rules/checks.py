"""The checks of a budget, in their order."""

from collections.abc import Callable, Iterable

from kvgate.budget import Budget
from kvgate.findings.finding import Finding
from kvgate.rules import connectors, host_memory, memory, pinned, settings, sharing, support, weight_formats

BUDGET_CHECKS: tuple[Callable[[Budget], Iterable[Finding]], ...] = (
    settings.length_within_model,  # vLLM refuses longer contexts than the model's
    settings.sizes_divide,  # parallel sizes must divide heads, layers and blocks
    support.kv_cache_dtype_exists,  # the release, the GPU and the model must have the cache dtype
    support.speculation_is_accepted,  # methods, sizes and numbers of the speculative config
    support.draft_goes_with_model,  # heads read the states of one model only
    settings.batch_holds_sequences,  # a forward pass takes a token of every sequence
    support.block_size_has_kernels,  # attention kernels take multiples of 16
    support.caches_have_kernels,  # sparse and compressed caches are particular
    settings.hybrid_manager_is_on,  # windows and states beside a KV connector
    connectors.connectors_are_taken,  # some came later, and some refuse what is beside them
    support.gpu_has_kernels,  # Pascal and before
    support.weight_format_has_kernels,  # old GPUs have no kernels for new weight formats
    support.lora_is_taken,  # some classes take no adapters, and ranks come from a list
    support.offload_is_taken,  # groups of layers in host memory
    support.weight_format_is_kept,  # some formats need a flag before vLLM drops them
    weight_formats.weight_format_is_in_release,  # others came later, or are gone
    weight_formats.quantization_is_that_of_the_checkpoint,  # vLLM compares the two
    weight_formats.name_and_config_agree,  # a config of another model counts other bytes
    weight_formats.sources_agree,  # so do two sources that contradict each other
    settings.pod_fits_a_node,  # one pod holds the whole engine
    settings.slices_stand_alone,  # MIG slices have no links
    memory.slack_holds_context,  # the CUDA context lives outside the requested share
    sharing.shares_leave_room,  # engines on the same GPU have their share too
    memory.sampler_fits_beside_budget,  # so does the sampler's warm-up
    settings.whole_prompts_fit_a_batch,  # without chunked prefill
    settings.media_fit_a_batch,  # an image is never cut
    support.dtype_has_kernels,  # bfloat16 on GPUs before Ampere
    support.weight_format_takes_bfloat16,  # and with kernels of weight formats
    memory.kv_cache_memory_within_gpu,  # vLLM does not check what it is given
    memory.weights_fit,  # nothing left for the cache
    memory.one_request_fits,  # vLLM's own start condition
    memory.sequences_have_states,  # vLLM's second one, for recurrent states
    memory.guarantee_holds,  # what the user requests beyond it
    pinned.pinned_capacity_is_known,  # a size that nobody can predict is not pinned
    settings.workload_can_run,  # declared requests must be able to run at all
    support.kinds_are_modelled,  # Unknown names its reason
    support.release_is_known,  # wider interval for releases that nobody read
    memory.checkpoint_decides_weights,  # the index of a checkpoint wins over the formulas
    memory.weights_do_not_choose_kv_cache,  # the most common wrong assumption
    support.draft_is_smaller,  # else it saves no time
    memory.headroom_is_thin,  # fits, but only just
    pinned.pinned_capacity_is_told,  # what a pinned size costs
    host_memory.host_memory_suffices,  # the kernel kills a container that takes more than its limit
)

BUDGET_RULES = frozenset({
    memory.WEIGHTS_TOO_LARGE, memory.KV_CACHE_TOO_SMALL, memory.MAMBA_CACHE_BLOCKS_EXCEEDED, memory.GUARANTEE_NOT_MET,
    sharing.SHARED_GPU_OVERBOOKED,
})  # fmt: skip
"""Errors of these rules are about bytes; those of the others are settings that vLLM refuses."""


def judge_budget(budget: Budget) -> tuple[Finding, ...]:
    return tuple(finding for check in BUDGET_CHECKS for finding in check(budget))
