"""Memory that torch.compile takes while it works inside the profile run, on an empty cache."""

from kvgate.budget.run import Run
from kvgate.budget.units import round_up
from kvgate.budget.weights import VOCABULARY_MULTIPLE
from kvgate.record import record


@record
class Compilation:
    """Bytes of one rank."""

    peak_bytes: int = 0
    """Bytes at the peak of compilation, with an empty cache and before the first forward pass."""
    expected_bytes: int = 0
    """The same where a start is expected to compile: a pod without a volume for VLLM_CACHE_ROOT always does."""
    fragment_bytes: int = 0
    """Bytes of it that still count afterwards: the allocator cannot give back a block of which a piece is in use."""
    worst_fragment_bytes: int = 0
    """The same at its highest."""


def compilation(run: Run) -> Compilation:
    """The compiler tries its kernels on made-up inputs, and the largest input of the first graph is the embedding table.

    Cold starts show a peak of that size to 0.02 GiB: Qwen3-14B and 32B AWQ (0.28, 1.449 GiB), Qwen2.5-0.5B (0.27, 0.254),
    Qwen2.5-7B twice (0.22, 1.015), gpt-oss-20b (0.19, 1.079), Llama-3.1-8B (0.31, 0.979). From 0.27 to 0.30 as much again stays
    counted. Combined kernels are tried since 0.12, but no start before 0.19 has shown it. Where an encoder feeds the model,
    the table is not part of the compiled graph.
    """
    if not run.is_compiled or run.stage[0] != 0 or not run.accounting.compiler_tries_kernels:
        return Compilation()
    table = 0 if run.takes_embeddings else _table_bytes(run, run.shape.vocab_size, run.shape.hidden_size)
    left = table if run.accounting.counts_fragments else 0
    return Compilation(
        peak_bytes=table,
        expected_bytes=table if run.accounting.cold_compile_seen else 0,
        fragment_bytes=left,
        worst_fragment_bytes=left + _unexplained_bytes(run),
    )


def _table_bytes(run: Run, vocab_size: int, width: int) -> int:
    return round_up(vocab_size, VOCABULARY_MULTIPLE) // run.parallelism.tensor * width * run.element_bytes


def _unexplained_bytes(run: Run) -> int:
    """Not understood: models with an embedding for every layer count more than their weights from 0.27 to 0.30.

    Gemma-4-E4B by 2.2 GiB on RTX 5090 (0.28, 0.30) and Gemma-4-E2B by 2.7 GiB on MI300X (0.28); that table is the most it can be.
    """
    if not run.accounting.counts_fragments:
        return 0
    tables = (matrix for matrix in run.shape.everywhere if matrix.name == "embed_tokens_per_layer")
    return sum(_table_bytes(run, matrix.rows[0].count, matrix.columns) for matrix in tables)
