"""Peak activation: the most that torch holds above the weights while vLLM profiles one forward pass."""

from kvgate.budget.blocks import block_bytes, workspace_bytes
from kvgate.budget.compilation import Compilation, compilation
from kvgate.budget.encoder_profile import EncoderProfile, encoder_profile
from kvgate.budget.interval import Interval
from kvgate.budget.run import Run
from kvgate.budget.sampler import penalty_bytes, sampler_bytes, spared_by_flashinfer_bytes
from kvgate.budget.term import Term
from kvgate.budget.units import KIB, MIB, gib

DENSE_MARGIN_BYTES = gib(0.06)
"""One dense text start in 40 lies further off than this (0.11 to 0.19, 0.26 eager): no formula counts small buffers."""


FLOAT32_BYTES = 4
"""Of an element; one start in float32 needed 3 hidden states per token more than the formula says, and why is not known."""


def peak_activation(run: Run) -> Term:
    """Encoder, compiler, layers and sampler run one after another: the largest counts, with what is alive beside it."""
    encoder, workspace, penalties = encoder_profile(run), workspace_bytes(run), penalty_bytes(run)
    block, sampler, library = block_bytes(run), sampler_bytes(run), blas_workspace_bytes(run)
    compiler = compilation(run)
    text = encoder.kept_bytes + workspace + max(block, sampler)
    warm = max(encoder.peak_bytes, text) + penalties + library
    return Term(
        name="peak_activation",
        amount=_amount(run, warm, encoder, compiler, penalties + library),
        formula="max(encoder, compiler, encoder_kept + workspace + max(layer, sampler)) + fragments + penalties + blas_workspace",
        source="vLLM 0.19 and 0.29, profile_run; 36 configurations of 0.19.0 on H100 and 7 of 0.11.0 within 0.03 GiB",
        inputs=(
            ("max_num_batched_tokens", run.max_num_batched_tokens),
            ("sampler_rows", run.sampler_rows),
            ("vocabulary", run.shape.vocab_size),
            ("hidden_size", run.shape.hidden_size),
            ("runner", "V2" if run.v2_runner else "V1" if run.accounting.v1_engine else "V0"),
            ("encoder_bytes", encoder.peak_bytes),
            ("encoder_kept_bytes", encoder.kept_bytes),
            ("compiler_bytes", compiler.expected_bytes),
            ("fragments_bytes", compiler.fragment_bytes),
            ("workspace_bytes", workspace),
            ("layer_bytes", block),
            ("sampler_bytes", sampler),
            ("penalties_bytes", penalties),
            ("blas_workspace_bytes", library),
        ),
    )


def blas_workspace_bytes(run: Run) -> int:
    """torch's workspace for cuBLAS, allocated by the first matrix product (`getChosenWorkspaceSize`): 32 MiB on Hopper."""
    capability = run.accelerator.compute_capability
    return 32 * MIB if capability and capability[0] in (9, 10) else 8 * MIB + 128 * KIB


def _amount(run: Run, warm: int, encoder: EncoderProfile, compiler: Compilation, kept: int) -> Interval:
    """A warm compile cache is the low end, a cold one the high end; which of them is expected depends on the release."""
    margin = _margin(run)
    expected = max(warm, encoder.kept_bytes + compiler.expected_bytes + kept) + compiler.fragment_bytes
    worst = max(warm, encoder.kept_bytes + compiler.peak_bytes + kept) + compiler.worst_fragment_bytes
    return Interval(
        low=max(0, warm - margin - spared_by_flashinfer_bytes(run) - encoder.peak_bytes // 4),
        expected=expected,
        high=max(worst, encoder.worst_bytes + kept) + margin,
    )


def _margin(run: Run) -> int:
    """Half a hidden state per token is all that the layers of a dense model have been off; experts by more."""
    margin = DENSE_MARGIN_BYTES + run.token_bytes // 2
    if run.is_sparse:
        margin += gib(0.1) + workspace_bytes(run) // 10
    if run.draft_tokens:
        margin += gib(0.2) + run.logits_bytes
    return margin + (4 * run.token_bytes if run.element_bytes == FLOAT32_BYTES else 0)
