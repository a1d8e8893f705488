"""The rules, in the order in which their findings are told."""

from collections.abc import Callable, Iterable

from kvgate.budget.plan import Budget
from kvgate.rules import consistency, fit, start_up
from kvgate.rules.finding import Finding

Rule = Callable[[Budget], Iterable[Finding]]

RULES: tuple[Rule, ...] = (
    consistency.length_within_model,  # vLLM refuses longer contexts than the model's
    consistency.sizes_divide,  # parallel sizes must divide heads, layers and blocks
    consistency.kv_cache_dtype_exists,  # the release, the GPU and the model must have the cache dtype
    consistency.batch_holds_sequences,  # a forward pass takes a token of every sequence
    consistency.block_size_has_kernels,  # attention kernels take multiples of 16
    consistency.caches_have_kernels,  # sparse and compressed caches are particular
    consistency.weight_format_has_kernels,  # old GPUs have no kernels for new weight formats
    consistency.weight_format_is_kept,  # some formats need a flag before vLLM drops them
    consistency.pod_fits_a_node,  # one pod holds the whole engine
    consistency.slices_stand_alone,  # MIG slices have no links
    start_up.slack_holds_context,  # the CUDA context lives outside the requested share
    start_up.sampler_fits_beside_budget,  # so does the sampler's warm-up
    start_up.whole_prompts_fit_a_batch,  # without chunked prefill
    start_up.media_fit_a_batch,  # an image is never cut
    start_up.dtype_has_kernels,  # bfloat16 on GPUs before Ampere
    consistency.kv_cache_memory_within_gpu,  # vLLM does not check what it is given
    fit.weights_fit,  # nothing left for the cache
    fit.one_request_fits,  # vLLM's own start condition
    fit.sequences_have_states,  # vLLM's second one, for recurrent states
    fit.guarantee_holds,  # what the user asks beyond it
    consistency.workload_can_run,  # declared requests must be able to run at all
    consistency.kinds_are_modelled,  # Unknown names its reason
    consistency.release_is_known,  # wider interval for releases that nobody read
    consistency.checkpoint_decides_weights,  # the index of a checkpoint wins over the formulas
    consistency.weights_do_not_choose_kv_cache,  # the most common wrong assumption
    fit.headroom_is_thin,  # fits, but only just
)


BUDGET_RULES = frozenset({"WeightsTooLarge", "KVCacheTooSmall", "MambaCacheBlocksExceeded", "GuaranteeNotMet"})
"""Errors of these rules are about bytes; those of the others are settings that vLLM refuses."""


def judge_budget(budget: Budget) -> tuple[Finding, ...]:
    """All findings of all rules."""
    return tuple(finding for rule in RULES for finding in rule(budget))
