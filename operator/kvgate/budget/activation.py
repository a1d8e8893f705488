"""Peak activation: the most that torch holds above the weights while vLLM profiles one forward pass."""

from kvgate.budget.blocks import block_bytes, workspace_bytes
from kvgate.budget.encoder_profile import encoder_profile
from kvgate.budget.interval import Interval
from kvgate.budget.run import Run
from kvgate.budget.sampler import penalty_bytes, sampler_bytes
from kvgate.budget.term import Term
from kvgate.budget.units import KIB, MIB, gib

COLD_COMPILE_BYTES = gib(1.05)
"""Peak while torch.compile works on an empty cache; four cold starts of 0.19 to 0.31 lie within 0.10 GiB, others at 0.45 to 2.6."""


def peak_activation(run: Run) -> Term:
    """Encoder, layers and sampler run one after another: the largest counts, with what is alive beside it."""
    encoder, workspace, penalties = encoder_profile(run), workspace_bytes(run), penalty_bytes(run)
    block, sampler, library = block_bytes(run), sampler_bytes(run), blas_workspace_bytes(run)
    text = encoder.kept_bytes + workspace + max(block, sampler)
    kept = library + penalties
    peak = max(encoder.peak_bytes, text)
    return Term(
        name="peak_activation",
        amount=_amount(run, peak, kept),
        formula="max(encoder, encoder_kept + workspace + max(layer, sampler)) + penalties + blas_workspace",
        source="vLLM 0.19 and 0.29, profile_run; 36 configurations of 0.19.0 on H100 within 0.03 GiB",
        inputs=(
            ("max_num_batched_tokens", run.max_num_batched_tokens),
            ("sampler_rows", run.sampler_rows),
            ("vocabulary", run.shape.vocab_size),
            ("hidden_size", run.shape.hidden_size),
            ("runner", "V2" if run.v2_runner else "V1" if run.accounting.v1_engine else "V0"),
            ("encoder_bytes", encoder.peak_bytes),
            ("encoder_kept_bytes", encoder.kept_bytes),
            ("workspace_bytes", workspace),
            ("layer_bytes", block),
            ("sampler_bytes", sampler),
            ("penalties_bytes", penalties),
            ("blas_workspace_bytes", library),
        ),
    )


def blas_workspace_bytes(run: Run) -> int:
    """torch's workspace for cuBLAS, allocated by the first matrix product (`getChosenWorkspaceSize`): 32 MiB from Hopper on."""
    capability = run.accelerator.compute_capability
    return 32 * MIB if capability and capability[0] in (9, 10) else 8 * MIB + 128 * KIB


def _amount(run: Run, peak: int, kept: int) -> Interval:
    """A cold compile cache puts a floor under the peak, so a warm one is the low end."""
    margin = (gib(0.35) if run.is_sparse else gib(0.15)) + peak // 20
    if not run.accounting.cold_compile_floor or run.enforce_eager:
        return Interval.around(peak + kept, below=margin, above=margin)
    cold = max(peak, COLD_COMPILE_BYTES)
    return Interval(
        low=max(0, peak + kept - margin),
        expected=cold + kept,
        high=max(peak + margin, cold + gib(0.4)) + kept,
    )
