"""The reserve for CUDA graphs: how many vLLM captures, and what its estimate takes for them."""

from kvgate.budget.interval import Interval, Term
from kvgate.budget.lora import graph_cases
from kvgate.budget.model_shape import CompressedAttention, LatentAttention, RecurrentState
from kvgate.budget.run import Run
from kvgate.budget.units import MIB

PIECE_BYTES = round(0.2 * MIB)
"""Estimate of the V1 runner per layer and graph of a dense model: 22 starts of 0.19 on H100 lie at 0.13 to 0.27, one at 0.53;
0.12 to 0.26 in six starts of 0.22 to 0.26 on other GPUs."""
COMPLEX_PIECE_BYTES = round(0.33 * MIB)
"""The same with experts, MLA or recurrent states: 0.23 to 0.54 in ten starts of 0.19; 0.64 (GLM-5.2) and more where the estimate
goes wrong."""
INDEXED_LAYER_BYTES = 60 * MIB
"""Not understood, so it counts at the high end only: GLM-5.1 on eight RTX PRO 6000 (0.20, S 64) was estimated at 4.8 to 5.1 GiB for
30 graphs, of which 1.2 were used; GLM-5.2 on GB200 (0.26) at 5.0 for 102 graphs."""
DFLASH_GRAPH_BYTES = 100 * MIB
"""Not understood, so it counts at the high end only: Qwen3.6-35B-A3B with DFlash on A800 (0.20.2, S 24) was estimated at 6.24 GiB for
64 graphs; the same pair on GB10 (0.22, S 8) at 0.65 for 27."""
V2_PIECE_BYTES = round(0.2 * MIB)
"""Estimate of the V2 runner, which measures more than it multiplies: 0.15 and 0.17 in two starts (Qwen3.8-27B on RTX 3090 with
0.29, Llama-3.1-8B on A100 with 0.31). The graphs then used 0.09 to 0.19 on small GPUs, and 0.28 with V1 on H100."""


def cuda_graphs(run: Run) -> Term:
    """Return the reserve that vLLM takes out of the budget for CUDA graphs; exactly 0 where the release takes none."""
    deducted = captures_graphs(run) and run.accounting.deducts_graphs(v2_runner=run.v2_runner)
    mixers = [mixer for layer in run.layers for mixer in layer.mixers]
    # experts, MLA and recurrent states consist of many small kernels
    is_complex = run.is_sparse or any(
        isinstance(mixer, LatentAttention | CompressedAttention | RecurrentState) for mixer in mixers
    )
    piece = V2_PIECE_BYTES if run.v2_runner else COMPLEX_PIECE_BYTES if is_complex else PIECE_BYTES
    cases = graph_cases(run.lora, specializes=run.accounting.lora_graphs_twice)
    piecewise, full = cases * num_piecewise_graphs(run), cases * num_full_graphs(run)
    layers = run.num_layers + (len(run.draft.layers) if run.draft else 0)
    reserve = piece * layers * (piecewise + full)
    return Term(
        name="cuda_graph",
        amount=_spread(run, reserve, is_complex=is_complex) if deducted else Interval.exactly(0),
        formula="piece × layers × (piecewise + full)"
        if deducted
        else "0: this release takes nothing out of the budget",
        source="vLLM 0.19 and 0.29, profile_cudagraph_memory; estimates in 40 logs",
        inputs=(
            ("piece_bytes", piece),
            ("piecewise_graphs", piecewise),
            ("full_graphs", full),
            ("layers", layers),
        ),
    )


def _spread(run: Run, reserve: int, *, is_complex: bool) -> Interval:
    """Return the reserve with its error.

    The figure is coarse: vLLM captures two graphs of each kind and multiplies the second, in steps of the driver's 2 MiB.
    """
    if is_complex or run.draft_tokens:
        picks_tokens = any(
            isinstance(mixer, CompressedAttention) or (isinstance(mixer, LatentAttention) and mixer.is_sparse)
            for layer in run.layers
            for mixer in layer.mixers
        )
        unexplained = INDEXED_LAYER_BYTES * run.num_layers if picks_tokens and not run.v2_runner else 0
        if run.draft is not None and run.draft.method == "dflash" and not run.v2_runner:
            unexplained += DFLASH_GRAPH_BYTES * (num_piecewise_graphs(run) + num_full_graphs(run))
        return Interval.around(reserve, below=reserve * 6 // 10, above=max(2 * reserve, unexplained))
    # no start with adapters prints the estimate of a dense model; Gemma-4-26B-A4B with four sizes (0.25) used 0.17 GiB, expected 0.13
    alone = run.parallelism.tensor == 1 and not run.lora.enabled
    return Interval.around(reserve, below=reserve // 2, above=reserve * 8 // 10 if alone else reserve)


def captures_graphs(run: Run) -> bool:
    """False where `--enforce-eager` or a compilation config turns CUDA graphs off."""
    return not run.enforce_eager and run.graphs.mode != "NONE"


def num_piecewise_graphs(run: Run) -> int:
    """Count the batch sizes that are captured piece by piece."""
    return 0 if run.graphs.mode in ("NONE", "FULL", "FULL_DECODE_ONLY") else _num_sizes(run, run.max_num_batched_tokens)


def num_full_graphs(run: Run) -> int:
    """Count the batch sizes that are captured as whole decode steps, which go up to S sequences."""
    mode = run.graphs.mode or ("FULL_AND_PIECEWISE" if run.accounting.full_graphs else "PIECEWISE")
    if mode in ("NONE", "PIECEWISE"):
        return 0
    return _num_sizes(run, min(_decode_tokens(run), run.max_num_batched_tokens))


def _decode_tokens(run: Run) -> int:
    """Return the tokens of a whole decode step: drafts are verified with the token before them."""
    return run.max_num_seqs * (1 + run.draft_tokens)


def _num_sizes(run: Run, limit: int) -> int:
    """Count the sizes up to `limit` tokens.

    The user may list the sizes. Otherwise they go up to two decode steps, and at most to 512 (1024 on compute capability 10.x since 0.28).
    """
    if run.graphs.capture_sizes is not None:
        return sum(size <= limit for size in run.graphs.capture_sizes)
    ceiling = 1024 if run.accelerator.capability_major == 10 and run.accounting.blackwell_graphs else 512
    largest = run.graphs.max_capture_size or min(2 * _decode_tokens(run), ceiling)
    return num_capture_sizes(min(limit, largest), every_small_size=run.graphs.every_small_size)


def num_capture_sizes(limit: int, *, every_small_size: bool = False) -> int:
    """Count the sizes 1, 2, 4, 8, 16 … 248, 256, 272, 288 … that are at most `limit` (vLLM 0.32, `_set_cudagraph_sizes`).

    With `every_small_size` the sizes are 1, 2, 3, 4 … 32, 40, 48 …
    """
    few = min(limit, 32)
    small = few - few // 8 if every_small_size else sum(size <= limit for size in (1, 2, 4))
    return small + min(limit, 255) // 8 + max(0, (limit - 256) // 16 + 1)
