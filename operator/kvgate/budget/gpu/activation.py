"""Peak activation: the most that torch holds above the weights while vLLM profiles one forward pass."""

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.engine.circumstances import compile_cache_of, sampler_of
from kvgate.budget.engine.run import EMBEDDING_BY_LAYER, Run
from kvgate.budget.gpu.layer_activation import (
    EncoderProfile,
    encoder_profile,
    layer_bytes,
    unpacked_bytes,
    workspace_bytes,
)
from kvgate.budget.gpu.lora import embedding_table_bytes
from kvgate.budget.ground import fitted
from kvgate.budget.ground.interval import Fact, Interval, Term
from kvgate.budget.ground.units import KIB, MIB, cdiv, round_up
from kvgate.budget.model.weights import VOCABULARY_MULTIPLE

FLOAT32_BYTES = 4
"""Bytes of one element."""

HALF = 2
"""Rows of the sampler are counted in halves of S × V × 4 bytes, because logits in the model's 16-bit dtype are one half."""
COPIED_HALF_ROWS = 3
"""Half rows of logits in 16 bits and their copy in 32."""
UNSORTED_HALF_ROWS = 7
"""Half rows of a sampler that does not sort."""
DRAFT_HALF_ROWS = 4
"""V1 verifies drafts on 2 S rows in 16 bits and keeps a copy of S rows in 32 (0.19, `RejectionSampler.forward`); no logged start
shows it."""


OLDER_ENGINE = Fact(
    name="engine",
    value="V0",
    why="this release falls back to it on this GPU, for this model, or because VLLM_USE_V1 says so",
)


class Compilation(Struct, frozen=True, kw_only=True):
    """Memory that torch.compile takes while it works inside the profile run, in bytes of one rank."""

    peak_bytes: int = 0
    """Peak of compilation with an empty cache, before the first forward pass; 0 where the cache is known to be warm."""
    expected_bytes: int = 0
    """The same where a start is expected to compile: a pod without a volume for VLLM_CACHE_ROOT always does."""
    fragment_bytes: int = 0
    """Part of it that still counts afterwards, because the allocator cannot give back a block of which a piece is in use."""
    worst_fragment_bytes: int = 0
    """The same at its highest."""


class Parts(Struct, frozen=True, kw_only=True):
    """Memory of the profile run in bytes of one rank: steps that follow each other, and tensors that stay beside them."""

    encoder: EncoderProfile
    compiler: Compilation
    workspace_bytes: int
    layer_bytes: int
    sampler_bytes: int
    """The sampler that is expected."""
    least_sampler_bytes: int
    """The sampler that takes least, of those that may run."""
    most_sampler_bytes: int
    penalties_bytes: int
    library_bytes: int

    @property
    def kept_bytes(self) -> int:
        """Bytes that are alive during every step."""
        return self.penalties_bytes + self.library_bytes

    @property
    def warm_bytes(self) -> int:
        """Least peak: with the compile cache of an earlier start."""
        return self._peak(self.least_sampler_bytes, 0)

    @property
    def expected_bytes(self) -> int:
        """Peak of the kind of start that the release is expected to make."""
        return self._peak(self.sampler_bytes, self.compiler.expected_bytes) + self.compiler.fragment_bytes

    @property
    def cold_bytes(self) -> int:
        """Highest peak: without a compile cache, unless it is known to be warm."""
        return self._peak(self.most_sampler_bytes, self.compiler.peak_bytes) + self.compiler.worst_fragment_bytes

    def _peak(self, sampler_bytes: int, compiler_bytes: int) -> int:
        text = self.workspace_bytes + max(self.layer_bytes, sampler_bytes)
        return max(self.encoder.peak_bytes, self.encoder.kept_bytes + max(text, compiler_bytes)) + self.kept_bytes


def parts_of(run: Run) -> Parts:
    """Return the steps and tensors of the profile run, each with its bytes."""
    # cuBLAS gets its workspace from torch at the first matrix product (`getChosenWorkspaceSize`): 32 MiB on Hopper
    blas_workspace = 32 * MIB if run.accelerator.capability_major in (9, 10) else 8 * MIB + 128 * KIB
    # hidden states of other layers that the target keeps for the draft: one of each layer for every token (EAGLE-3)
    handed_over_bytes = run.draft.target_states * run.token_bytes if run.draft else 0
    sampler = sampler_of(run.circumstances, run.accounting, run.accelerator)
    sampler_bytes = other_sampler_bytes = bytes_of_sampler(run, sampler.value)
    if not sampler.is_known:
        other_sampler_bytes = bytes_of_sampler(run, sampler.other)
    elif run.parallelism.tensor > 1 and not run.accounting.v1_engine:
        other_sampler_bytes = 0  # V0 samples on its first rank, and a log may show what another one has
    return Parts(
        encoder=encoder_profile(run),
        compiler=compilation(run),
        workspace_bytes=workspace_bytes(run),
        layer_bytes=max(layer_bytes(run), _draft_layer_bytes(run)) + handed_over_bytes,
        sampler_bytes=sampler_bytes,
        least_sampler_bytes=min(sampler_bytes, other_sampler_bytes),
        most_sampler_bytes=max(sampler_bytes, other_sampler_bytes),
        penalties_bytes=penalty_bytes(run),
        library_bytes=blas_workspace,
    )


def _draft_layer_bytes(run: Run) -> int:
    """Return the most that a layer of the draft has alive at once: it runs after the target, on as many tokens."""
    if run.draft is None or not run.draft.layers:
        return 0
    stage = (0, len(run.draft.layers))
    return layer_bytes(replace(run, shape=run.draft.shape, parallelism=run.draft_parallelism, stage=stage, draft=None))


def peak_activation(run: Run) -> Term:
    """Return the peak; where it is not known how many sequences are profiled, the one that is expected, in a range that covers both."""
    term = _peak_activation(run)
    if run.other_max_num_seqs is None:
        return term
    other = _peak_activation(replace(run, max_num_seqs=run.other_max_num_seqs, other_max_num_seqs=None)).amount
    why = "vLLM prints max_num_batched_tokens and not max_num_seqs, and programs that build an engine have other defaults than vllm serve"
    seqs, other_seqs = str(run.max_num_seqs), str(run.other_max_num_seqs)
    fact = Fact(name="default of max_num_seqs", value=seqs, other=other_seqs, why=why)
    return replace(term, amount=term.amount.spanning(other), facts=(*term.facts, fact))


def _peak_activation(run: Run) -> Term:
    """Return the peak: encoder, compiler, layers and sampler run one after another, so the largest counts, with what is alive beside it.

    A warm compile cache is the low end and a cold one the high end, unless it is known; the release decides which of them is expected.
    """
    parts = parts_of(run)
    errors, encoder, expected = _errors(run), parts.encoder, parts.expected_bytes
    high = max(parts.cold_bytes, encoder.worst_bytes + parts.kept_bytes) + errors.sum_bytes + unpacked_bytes(run)
    return Term(
        name="peak_activation",
        amount=Interval(low=min(_least_bytes(run), expected), expected=expected, high=max(high, expected)),
        formula="max(encoder, compiler, encoder_kept + workspace + max(layer, sampler)) + fragments + penalties + blas_workspace",
        source="vLLM 0.19 and 0.29, profile_run; 36 configurations of 0.19.0 on H100 and 7 of 0.11.0 within 0.03 GiB",
        facts=facts_of(run),
        inputs=(
            ("max_num_batched_tokens", run.max_num_batched_tokens),
            ("sampler_rows", run.sampler_rows),
            ("vocabulary", run.shape.vocab_size),
            ("hidden_size", run.shape.hidden_size),
            ("runner", "V2" if run.v2_runner else "V1" if run.accounting.v1_engine else "V0"),
            ("encoder_bytes", encoder.peak_bytes),
            ("encoder_kept_bytes", encoder.kept_bytes),
            ("compiler_bytes", parts.compiler.expected_bytes),
            ("fragments_bytes", parts.compiler.fragment_bytes),
            ("workspace_bytes", parts.workspace_bytes),
            ("layer_bytes", parts.layer_bytes),
            ("sampler_bytes", parts.sampler_bytes),
            ("penalties_bytes", parts.penalties_bytes),
            ("blas_workspace_bytes", parts.library_bytes),
        ),
    )


def facts_of(run: Run) -> tuple[Fact, ...]:
    facts: tuple[Fact, ...] = ()
    if (
        not run.v2_runner or run.accounting.v2_sampler_half_rows == UNSORTED_HALF_ROWS
    ):  # before 0.33 it moves nothing in the V2 runner
        facts = (sampler_of(run.circumstances, run.accounting, run.accelerator),)
    if _tries_kernels(run):
        facts += (compile_cache_of(run.circumstances, run.accounting),)
    if run.accounting.v2_runner_architectures != frozenset():
        is_told = run.circumstances.use_v2_model_runner is not None
        why = "VLLM_USE_V2_MODEL_RUNNER says so" if is_told else "this release chooses it for the model"
        facts = (Fact(name="model runner", value="V2" if run.v2_runner else "V1", why=why), *facts)
    return (OLDER_ENGINE, *facts) if run.accounting.has_both_engines and not run.accounting.v1_engine else facts


class _Errors(Struct, frozen=True, kw_only=True):
    """Errors of the formulas in bytes, by the step that each belongs to."""

    whole_bytes: int
    layer_bytes: int
    """At most half a hidden state per token for the layers of a dense model."""
    sampler_bytes: int = 0
    workspace_bytes: int = 0

    @property
    def sum_bytes(self) -> int:
        return self.whole_bytes + self.layer_bytes + self.sampler_bytes + self.workspace_bytes


def _errors(run: Run) -> _Errors:
    """Return the errors of a dense model's formulas, and those that experts, drafts and 32-bit elements add."""
    whole, sampler, workspace = fitted.ACTIVATION_ERROR.interval.high, 0, 0
    layer = fitted.LAYER_ERROR.of(run.token_bytes).high
    if run.is_sparse:
        whole += fitted.EXPERTS_ERROR.interval.high
        workspace = fitted.WORKSPACE_ERROR.of(workspace_bytes(run)).high
    if run.draft_tokens:
        whole += fitted.DRAFT_ERROR.interval.high
        sampler = fitted.DRAFT_ROWS_ERROR.of(run.logits_bytes).high
    if run.element_bytes == FLOAT32_BYTES:
        layer += fitted.FLOAT32_ERROR.of(run.token_bytes).high
    return _Errors(whole_bytes=whole, layer_bytes=layer, sampler_bytes=sampler, workspace_bytes=workspace)


def _least_bytes(run: Run) -> int:
    """Return the least peak: each step at its own least, and then the highest of them.

    The error of a step that does not decide takes nothing off, so that a smaller batch never has a higher least peak.
    """
    if run.parallelism.data > 1:
        run = replace(run, gathers_tokens=False)
    parts, errors = parts_of(run), _errors(run)
    layer, sampler = parts.layer_bytes - errors.layer_bytes, parts.least_sampler_bytes - errors.sampler_bytes
    text = parts.encoder.kept_bytes + parts.workspace_bytes - errors.workspace_bytes + max(layer, sampler)
    return max(0, max(parts.encoder.least_bytes, text) + parts.kept_bytes - errors.whole_bytes)


def compilation(run: Run) -> Compilation:
    """Return the compiler's memory: it tries kernels on invented inputs, and the largest input of the first graph is the embedding table.

    Cold starts show a peak of that size to 0.02 GiB: Qwen3-14B and 32B AWQ (0.28, 1.449 GiB), Qwen2.5-0.5B (0.27, 0.254),
    Qwen2.5-7B twice (0.22, 1.015), gpt-oss-20b (0.19, 1.079), Llama-3.1-8B (0.31, 0.979), Qwen3-4B with 1 to 64 adapters, whose A
    matrices the same graph reads (0.27, 0.724 and 0.0045 for each). Combined kernels are tried since 0.11.1, but no start before 0.19
    has shown it. The table is not part of the compiled graph where an encoder feeds the model.

    From 0.27 to 0.30 the same amount may stay counted afterwards, because the allocator cannot give back a block that a later tensor
    was cut from (`SECOND_TABLE`).
    """
    if not _tries_kernels(run):
        return Compilation()
    table = 0 if run.takes_embeddings else _table_bytes(run, run.shape.vocab_size, run.shape.hidden_size)
    peak = table and table + embedding_table_bytes(run)
    left, unexplained = 0, 0
    if run.accounting.counts_fragments:
        # Gemma-4-E4B counted its token embedding as well on RTX 5090 (0.28, 0.30), and did not on RTX 3090 (0.27.1, cold and warm). Not
        # understood: E2B's peak on MI300X (0.28) was 3 GiB above the formula, which the embedding of every layer covers.
        tables = [matrix for matrix in run.shape.everywhere if matrix.name == EMBEDDING_BY_LAYER]
        widths = (matrix.columns if run.accelerator.vendor == "amd" else run.shape.hidden_size for matrix in tables)
        unexplained = sum(_table_bytes(run, run.shape.vocab_size, width) for width in widths)
        is_rare = run.lora.enabled or run.accelerator.vendor == "amd"
        second = (fitted.SECOND_TABLE_RARE if is_rare else fitted.SECOND_TABLE).of(table)
        left, unexplained = second.expected, unexplained + second.high - second.expected
    cache = compile_cache_of(run.circumstances, run.accounting)
    if cache.is_known and cache.value == "warm":
        return Compilation(worst_fragment_bytes=unexplained)
    return Compilation(
        peak_bytes=peak,
        expected_bytes=peak if run.accounting.cold_compile_seen else 0,
        fragment_bytes=left,
        worst_fragment_bytes=left + unexplained,
    )


def _tries_kernels(run: Run) -> bool:
    """True where a cold compile cache moves memory: on the stage with the embedding."""
    tries = run.accounting.compiler_tries_kernels and run.graphs.tries_kernels is not False
    return tries and run.is_compiled and run.stage[0] == 0


def _table_bytes(run: Run, vocab_size: int, width: int) -> int:
    return round_up(vocab_size, VOCABULARY_MULTIPLE) // run.parallelism.tensor * width * run.element_bytes


def bytes_of_sampler(run: Run, sampler: str) -> int:
    """Peak of the sampler's dummy run, with what was alive before it; 0 on stages without the head.

    Rows at the peak, read in the source of each sampler: logits in 16 and 32 bits (0.5 + 1), then
    sorting by `torch.sort` (sorted values 1, their indices 2, scratch of keys and 64-bit values 5): 9.5; without a sort
    (filtered logits or probabilities 1, random numbers 1): 3.5; the V2 runner samples from the 16-bit logits: 0.5.
    The hidden states of all tokens, those of the sampled rows twice, and the kernel's scratch rows come on top.
    """
    if not run.has_sampler:
        return 0
    rows = run.sampler_rows * run.shape.hidden_size * run.element_bytes
    # one row per program of the Triton kernel, a program per multiprocessor (0.17 to 0.33, `apply_top_k_top_p_triton`)
    programs = min(1 << (run.sampler_rows - 1).bit_length(), run.accelerator.multiprocessors)
    scratch = programs * run.shape.vocab_size * 4
    if run.v2_runner:
        halves = run.accounting.v2_sampler_half_rows
        # 0.33 also samples with all parameters: without FlashInfer that takes the copy in 32 bits alone (`Sampler.apply_sampling_params`)
        is_unfused = halves == UNSORTED_HALF_ROWS and sampler == "pytorch"
        halves = (COPIED_HALF_ROWS if is_unfused else halves) - 1 + run.element_bytes // HALF
        return run.logits_bytes * halves // HALF + run.token_bytes + rows + (scratch if is_unfused else 0)
    halves = UNSORTED_HALF_ROWS if sampler == "flashinfer" else run.accounting.sampler_half_rows
    halves -= 1 if run.element_bytes == 4 else 0
    halves += DRAFT_HALF_ROWS if run.draft_tokens else 0
    has_scratch = run.accounting.sampler_program_rows and (
        sampler == "pytorch" or run.accounting.samples_with_generators
    )
    return run.logits_bytes * halves // HALF + run.token_bytes + 2 * rows + (scratch if has_scratch else 0)


def penalty_bytes(run: Run) -> int:
    """Counts of output tokens (S × V × 4 bytes) and two bit masks, which the V2 runner allocates once (`PenaltiesState`).

    They count since 0.27.
    """
    if not (run.has_sampler and run.v2_runner and run.accounting.consumed_accounting):
        return 0
    return run.max_num_seqs * (run.shape.vocab_size * 4 + 2 * 4 * cdiv(run.shape.vocab_size, 32))
