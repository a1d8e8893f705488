"""Parallel sizes that vLLM refuses for a model: heads, layers, blocks of quantised weights, and caches that cannot be dealt out.

Each reason is a sentence of ours; read in vLLM 0.32 and held to the settings that it refuses (tests/parity).
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from kvgate.budget.hardware import Parallelism, stage_sizes
from kvgate.budget.matrix import Cut, Matrix
from kvgate.budget.model_shape import CompressedAttention, FullAttention, ModelShape, SharedCache

_EXPERT_BLOCK = 64
"""Rows and columns that the blocks of experts are cut down to where larger ones do not divide."""


@lru_cache(maxsize=4096)
def parallelism_refusals(shape: ModelShape, parallelism: Parallelism) -> tuple[tuple[str, str], ...]:
    """(field, reason) for every parallel size that does not go with the model."""
    reasons = [("tensor_parallel_size", reason) for reason in _tensor_refusals(shape, parallelism)]
    reasons += [("pipeline_parallel_size", reason) for reason in _pipeline_refusals(shape, parallelism.pipeline)]
    reasons += [("decode_context_parallel_size", reason) for reason in _context_refusals(shape, parallelism)]
    return tuple(dict.fromkeys(reasons))


def _tensor_refusals(shape: ModelShape, parallelism: Parallelism) -> Iterator[str]:
    tensor = parallelism.tensor
    if shape.num_heads % tensor:
        yield f"{shape.num_heads} attention heads are not divisible by {tensor}"
        return
    for mixer in shape.mixers:
        if isinstance(mixer, FullAttention) and _uneven(mixer.num_kv_heads, tensor):
            yield f"{mixer.num_kv_heads} KV heads and {tensor} ranks do not divide each other"
    cuts = (reason for matrix in _matrices(shape) for reason in _matrix_refusals(matrix, parallelism))
    yield from islice(cuts, 1)  # one cause shows in several matrices


def _uneven(num_kv_heads: int, tensor: int) -> bool:
    return bool(num_kv_heads % tensor and tensor % num_kv_heads)


def _matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    return tuple(dict.fromkeys(matrix for layer, _ in shape.distinct_layers for matrix in layer.matrices))


def _matrix_refusals(matrix: Matrix, parallelism: Parallelism) -> Iterator[str]:
    """Sizes that do not divide, and blocks of scales that a cut would go through (`validate_fp8_block_shape`)."""
    tensor = 1 if matrix.experts and parallelism.expert else parallelism.tensor
    rows, columns = matrix.format.block if matrix.format and not matrix.experts else (0, 0)  # experts get finer blocks
    if matrix.experts:  # vLLM 0.32 makes their blocks smaller (Qwen3-235B-A22B-FP8 on eight GPUs)
        rows, columns = min(rows, _EXPERT_BLOCK), min(columns, _EXPERT_BLOCK)
    if matrix.cut is Cut.COLUMNS and matrix.columns % tensor:
        yield f"the {matrix.columns} inputs of {matrix.name} are not divisible by {tensor}"
    elif matrix.cut is Cut.COLUMNS and columns and (matrix.columns // tensor) % columns and tensor > 1:
        yield f"{matrix.columns // tensor} inputs of {matrix.name} per rank cut the quantisation blocks of {columns}"
    is_checked = (
        matrix.experts or len(matrix.rows) == 1
    )  # vLLM 0.32 lets fused matrices end within a block (MiMo-V2-Flash)
    if matrix.cut is Cut.ROWS and rows and tensor > 1 and is_checked:
        yield from (
            f"{part.on_rank(tensor)} outputs of {matrix.name} per rank cut the quantisation blocks of {rows}"
            for part in matrix.rows
            if part.on_rank(tensor) % rows
        )


def _pipeline_refusals(shape: ModelShape, pipeline: int) -> Iterator[str]:
    if pipeline == 1:
        return
    if not shape.supports_pipeline:
        yield f"{shape.architecture} cannot be cut into stages"
    if pipeline > len(shape.layers):
        yield f"{len(shape.layers)} layers cannot be cut into {pipeline} stages"
    elif far := _shared_over_stages(shape, pipeline):
        yield f"layer {far[0]} reads the cache of layer {far[1]}, which is on another stage"


def _shared_over_stages(shape: ModelShape, pipeline: int) -> tuple[int, int] | None:
    """(layer, target) of the first cache that is shared between two stages."""
    stage_of = [stage for stage, size in enumerate(stage_sizes(len(shape.layers), pipeline)) for _ in range(size)]
    shared = (
        (index, mixer.target)
        for index, layer in enumerate(shape.layers)
        for mixer in layer.mixers
        if isinstance(mixer, SharedCache)
    )
    return next(((index, target) for index, target in shared if stage_of[index] != stage_of[target]), None)


def _context_refusals(shape: ModelShape, parallelism: Parallelism) -> Iterator[str]:
    """Full attention deals out tokens only between ranks that hold the same KV heads (`ParallelConfig` checks)."""
    context, tensor = parallelism.decode_context, parallelism.tensor
    if context == 1 or parallelism.prefill_context > 1:  # beside it, other sizes go together, and no budget is given
        return
    if tensor % context:
        yield f"{context} does not divide tensor_parallel_size {tensor}"
    if any(isinstance(mixer, CompressedAttention) or getattr(mixer, "sliding_window", 0) for mixer in shape.mixers):
        yield "a sliding window is not dealt out over ranks"
    if any(isinstance(mixer, FullAttention) and mixer.sees_images_both_ways for mixer in shape.mixers):
        yield "no attention kernel for images that attend both ways deals out tokens"
    if shape.num_heads % tensor == 0:
        yield from _head_refusals(shape, tensor, context)


def _head_refusals(shape: ModelShape, tensor: int, context: int) -> Iterator[str]:
    heads = {mixer.num_kv_heads for mixer in shape.mixers if isinstance(mixer, FullAttention)}
    for count in sorted(heads):
        if context > tensor // count:
            yield f"{count} KV heads on {tensor} ranks are held {max(1, tensor // count)} times, not {context} times"
