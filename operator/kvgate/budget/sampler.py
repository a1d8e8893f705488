"""The sampler's part in the profile run: rows of the whole vocabulary, several of them alive at once."""

from kvgate.budget.run import Run
from kvgate.budget.units import cdiv

HALF = 2
"""Rows are counted in halves of S × V × 4: logits in the model's 16-bit dtype are one half."""

UNSORTED_HALF_ROWS = 7
"""Half rows of a sampler that does not sort."""

DRAFT_HALF_ROWS = 4
"""V1 verifies drafts on 2 S rows in 16 bits and keeps a copy of S rows in 32 (0.19, `RejectionSampler.forward`); no start tells."""


def sampler_bytes(run: Run) -> int:
    """Peak of the sampler's dummy run (0 on stages without the head), what was alive before it included.

    Rows at the peak, read in the source of each sampler: logits in 16 and 32 bits (0.5 + 1), then
    sorting by `torch.sort` (sorted values 1, their indices 2, scratch of keys and 64-bit values 5): 9.5; without a sort
    (filtered logits or probabilities 1, random numbers 1): 3.5; the V2 runner samples from the 16-bit logits: 0.5.
    Beside them the hidden states of all tokens, those of the sampled rows twice, and the kernel's scratch rows.
    """
    if not run.has_sampler:
        return 0
    rows = run.sampler_rows * run.shape.hidden_size * run.element_bytes
    if run.v2_runner:
        return run.logits_bytes * run.element_bytes // 4 + run.token_bytes + rows
    halves = run.accounting.sampler_half_rows - (1 if run.element_bytes == 4 else 0)
    halves += DRAFT_HALF_ROWS if run.draft_tokens else 0
    return run.logits_bytes * halves // HALF + run.token_bytes + 2 * rows + _scratch_bytes(run)


def _scratch_bytes(run: Run) -> int:
    """One row per program of the Triton kernel, a program per multiprocessor (0.17+, `apply_top_k_top_p_triton`)."""
    if not run.accounting.sampler_program_rows:
        return 0
    return min(run.sampler_rows, run.accelerator.multiprocessors) * run.shape.vocab_size * 4


def spared_by_flashinfer_bytes(run: Run) -> int:
    """Bytes that FlashInfer saves where it is installed: V1 before 0.12 then samples without sorting (two of eight starts)."""
    if not (run.has_sampler and run.accounting.samples_with_flashinfer_if_installed):
        return 0
    return run.logits_bytes * (run.accounting.sampler_half_rows - UNSORTED_HALF_ROWS) // HALF


def penalty_bytes(run: Run) -> int:
    """V2 runner: output counts S × V × 4 and two bit masks, allocated once (`PenaltiesState`); counted since 0.27."""
    if not (run.has_sampler and run.v2_runner and run.accounting.consumed_accounting):
        return 0
    return run.max_num_seqs * (run.shape.vocab_size * 4 + 2 * 4 * cdiv(run.shape.vocab_size, 32))
