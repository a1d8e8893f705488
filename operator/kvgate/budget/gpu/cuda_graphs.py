"""The reserve for CUDA graphs: how many vLLM captures, and what its estimate takes for them."""

from kvgate.budget.engine.run import Run
from kvgate.budget.gpu.lora import graph_cases
from kvgate.budget.ground import fitted
from kvgate.budget.ground.interval import Fact, Interval, Term
from kvgate.budget.model.shape import CompressedAttention, LatentAttention, RecurrentState


def cuda_graphs(run: Run) -> Term:
    """Return the reserve that vLLM takes out of the budget for CUDA graphs; exactly 0 where the release takes none."""
    deducted = captures_graphs(run) and _is_deducted(run)
    cases = graph_cases(run.lora, specializes=run.accounting.lora_graphs_twice) if captures_graphs(run) else 0
    piecewise, full = cases * num_piecewise_graphs(run), cases * num_full_graphs(run)
    layers = run.num_layers + (len(run.draft.layers) if run.draft else 0)
    # experts, MLA and recurrent states consist of many small kernels
    mixers = (mixer for layer in run.layers for mixer in layer.mixers)
    is_complex = run.is_sparse or any(
        isinstance(mixer, LatentAttention | CompressedAttention | RecurrentState) for mixer in mixers
    )
    graph = fitted.V2_GRAPH if run.v2_runner else fitted.GRAPH
    layer = fitted.V2_GRAPH_LAYER if run.v2_runner else fitted.GRAPH_COMPLEX_LAYER if is_complex else fitted.GRAPH_LAYER
    first = _first_graphs(run) if is_complex and piecewise + full else Interval.exactly(0)
    estimate = (graph.interval + layer.interval.times(layers)).times(piecewise + full) + first
    return Term(
        name="cuda_graph",
        amount=_with_unknowns(run, estimate) if deducted else Interval.exactly(0),
        formula="(graph + layer × layers) × (piecewise + full) + first"
        if deducted
        else "0: this release takes nothing out of the budget",
        source="vLLM 0.19 and 0.29, profile_cudagraph_memory; estimates in 60 logs",
        facts=() if run.circumstances.estimates_graphs is None else (_STATED_ON if deducted else _STATED_OFF,),
        inputs=(
            ("graph_bytes", graph.interval.expected),
            ("layer_bytes", layer.interval.expected),
            ("piecewise_graphs", piecewise),
            ("full_graphs", full),
            ("layers", layers),
            ("first_bytes", first.expected),
            ("estimate_bytes", estimate.expected),
        ),
    )


def _first_graphs(run: Run) -> Interval:
    """Return what the first graphs take more than the others: the kernels of experts, MLA and recurrent states then allocate workspaces.

    The V2 runner captures all pieces, so that little is left of this.
    """
    stored = run.shape.quantization
    if run.v2_runner:
        return Interval.exactly(0)
    if run.is_sparse and run.accelerator.capability_major == 10:
        return fitted.FIRST_GRAPHS_BLACKWELL.interval
    if run.is_sparse and stored is not None and stored.format == "nvfp4":
        return fitted.FIRST_GRAPHS_NVFP4.interval
    return fitted.FIRST_GRAPHS.interval


def _with_unknowns(run: Run, estimate: Interval) -> Interval:
    """Return the estimate with wider ends where no start shows it, or where starts show more or less than anybody understands."""
    mixers = [mixer for layer in run.layers for mixer in layer.mixers]
    picks_tokens = any(
        isinstance(mixer, CompressedAttention) or (isinstance(mixer, LatentAttention) and mixer.is_sparse)
        for mixer in mixers
    )
    unknown = fitted.INDEXED_LAYER.interval.high * run.num_layers if picks_tokens and not run.v2_runner else 0
    if run.draft is not None and run.draft.method == "dflash" and not run.v2_runner:
        unknown += fitted.DFLASH_GRAPH.interval.high * (num_piecewise_graphs(run) + num_full_graphs(run))
    if run.draft_tokens or run.lora.enabled:
        unknown = max(unknown, fitted.UNTRIED_GRAPHS.of(estimate.expected).high)
    low = estimate.low
    if run.draft_tokens and not run.v2_runner and any(isinstance(mixer, RecurrentState) for mixer in mixers):
        low = min(low, fitted.UNCLAMPED_GRAPHS.interval.low)
    return Interval(low=low, expected=estimate.expected, high=max(estimate.high, estimate.expected + unknown))


_STATED = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS says so, where the release captures graphs for an estimate"
_STATED_ON = Fact(name="reserve for graphs", value="deducted", why=_STATED)
_STATED_OFF = Fact(name="reserve for graphs", value="not deducted", why=_STATED)


def _is_deducted(run: Run) -> bool:
    """True where the estimate counts; the variable decides in every release that captures graphs for one (0.18 to 0.33)."""
    vendor, stated = run.accelerator.vendor, run.circumstances.estimates_graphs
    if stated is None:
        return run.accounting.deducts_graphs(vendor, v2_runner=run.v2_runner)
    return stated and run.accounting.captures_graphs(vendor, v2_runner=run.v2_runner)


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
