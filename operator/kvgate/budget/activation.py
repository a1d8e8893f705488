"""Peak activation: the most that torch holds above the weights while vLLM profiles one forward pass."""

from kvgate.budget.blocks import block_bytes, workspace_bytes
from kvgate.budget.compilation import Compilation, compilation
from kvgate.budget.encoder_profile import EncoderProfile, encoder_profile
from kvgate.budget.interval import Interval, Term
from kvgate.budget.run import Run
from kvgate.budget.sampler import penalty_bytes, sampler_bytes, spared_by_flashinfer_bytes
from kvgate.budget.units import KIB, MIB, gib
from kvgate.record import record

DENSE_MARGIN_BYTES = gib(0.06)
"""One dense text start in 40 lies further off than this (0.11 to 0.19, 0.26 eager): no formula counts small buffers."""


FLOAT32_BYTES = 4
"""Bytes of one element. One start in float32 needed 3 hidden states per token more than the formula says; the reason is not known."""


@record
class Parts:
    """Memory of the profile run in bytes of one rank: steps that follow each other, and tensors that stay beside them."""

    encoder: EncoderProfile
    compiler: Compilation
    workspace_bytes: int
    layer_bytes: int
    sampler_bytes: int
    penalties_bytes: int
    library_bytes: int

    @property
    def kept_bytes(self) -> int:
        """Alive whatever runs."""
        return self.penalties_bytes + self.library_bytes

    @property
    def warm_bytes(self) -> int:
        """The peak with the compile cache of an earlier start."""
        text = self.encoder.kept_bytes + self.workspace_bytes + max(self.layer_bytes, self.sampler_bytes)
        return max(self.encoder.peak_bytes, text) + self.kept_bytes

    @property
    def expected_bytes(self) -> int:
        """Peak of the kind of start that the release is expected to make."""
        return self._compiled(self.compiler.expected_bytes) + self.compiler.fragment_bytes

    @property
    def cold_bytes(self) -> int:
        """The peak without a compile cache, at its highest."""
        return self._compiled(self.compiler.peak_bytes) + self.compiler.worst_fragment_bytes

    def _compiled(self, compiler_bytes: int) -> int:
        return max(self.warm_bytes, self.encoder.kept_bytes + compiler_bytes + self.kept_bytes)


def parts_of(run: Run) -> Parts:
    return Parts(
        encoder=encoder_profile(run),
        compiler=compilation(run),
        workspace_bytes=workspace_bytes(run),
        layer_bytes=block_bytes(run),
        sampler_bytes=sampler_bytes(run),
        penalties_bytes=penalty_bytes(run),
        library_bytes=blas_workspace_bytes(run),
    )


def peak_activation(run: Run) -> Term:
    """Encoder, compiler, layers and sampler run one after another: the largest counts, with what is alive beside it."""
    parts = parts_of(run)
    return Term(
        name="peak_activation",
        amount=_amount(run, parts),
        formula="max(encoder, compiler, encoder_kept + workspace + max(layer, sampler)) + fragments + penalties + blas_workspace",
        source="vLLM 0.19 and 0.29, profile_run; 36 configurations of 0.19.0 on H100 and 7 of 0.11.0 within 0.03 GiB",
        inputs=(
            ("max_num_batched_tokens", run.max_num_batched_tokens),
            ("sampler_rows", run.sampler_rows),
            ("vocabulary", run.shape.vocab_size),
            ("hidden_size", run.shape.hidden_size),
            ("runner", "V2" if run.v2_runner else "V1" if run.accounting.v1_engine else "V0"),
            ("encoder_bytes", parts.encoder.peak_bytes),
            ("encoder_kept_bytes", parts.encoder.kept_bytes),
            ("compiler_bytes", parts.compiler.expected_bytes),
            ("fragments_bytes", parts.compiler.fragment_bytes),
            ("workspace_bytes", parts.workspace_bytes),
            ("layer_bytes", parts.layer_bytes),
            ("sampler_bytes", parts.sampler_bytes),
            ("penalties_bytes", parts.penalties_bytes),
            ("blas_workspace_bytes", parts.library_bytes),
        ),
    )


def blas_workspace_bytes(run: Run) -> int:
    """torch's workspace for cuBLAS, allocated by the first matrix product (`getChosenWorkspaceSize`): 32 MiB on Hopper."""
    capability = run.accelerator.compute_capability
    return 32 * MIB if capability and capability[0] in (9, 10) else 8 * MIB + 128 * KIB


def _amount(run: Run, parts: Parts) -> Interval:
    """A warm compile cache is the low end, a cold one the high end; which of them is expected depends on the release."""
    margin, encoder = _margin(run), parts.encoder
    return Interval(
        low=max(0, parts.warm_bytes - margin - spared_by_flashinfer_bytes(run) - encoder.peak_bytes // 4),
        expected=parts.expected_bytes,
        high=max(parts.cold_bytes, encoder.worst_bytes + parts.kept_bytes) + margin,
    )


def _margin(run: Run) -> int:
    """Half a hidden state per token is all that the layers of a dense model have been off; experts by more."""
    margin = DENSE_MARGIN_BYTES + run.token_bytes // 2
    if run.is_sparse:
        margin += gib(0.1) + workspace_bytes(run) // 10
    if run.draft_tokens:
        margin += gib(0.2) + run.logits_bytes
    return margin + (4 * run.token_bytes if run.element_bytes == FLOAT32_BYTES else 0)
