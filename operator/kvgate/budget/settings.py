"""vLLM's arguments as it runs them: defaults, and the limits that they put on each other."""

from dataclasses import dataclass
from fractions import Fraction

from kvgate.budget.request import BudgetRequest
from kvgate.budget.versions import Accounting


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """The settings as vLLM runs them, defaults filled in."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: Fraction
    default_max_num_seqs: int
    """What vLLM takes for this release and GPU where nobody chooses."""


def resolve_settings(request: BudgetRequest, accounting: Accounting) -> Resolved:
    """vLLM's defaults and their mutual limits (0.32, `EngineArgs._set_default_max_num_seqs_and_batched_tokens_args`)."""
    asked, limits = request.settings, accounting.batch_limits(request.accelerator)
    max_model_len = asked.max_model_len or request.shape.max_model_len or 1
    batched = asked.max_num_batched_tokens or limits.max_num_batched_tokens
    if asked.max_num_batched_tokens is None and accounting.batched_tokens_cover_model_len:
        batched = max(max_model_len, 2048)
    seqs = asked.max_num_seqs or limits.max_num_seqs
    if asked.max_num_batched_tokens is None:
        batched = min(batched, seqs * max_model_len)
    if asked.max_num_seqs is None:
        seqs = min(seqs, batched)
    return Resolved(
        max_model_len=max_model_len,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        gpu_memory_utilization=asked.gpu_memory_utilization or accounting.gpu_memory_utilization,
        default_max_num_seqs=min(limits.max_num_seqs, batched),
    )
