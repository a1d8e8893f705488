"""Weight bytes of a rank: every tensor that vLLM allocates, cut as vLLM cuts it.

What the log calls "Model loading took" is more than the plain sum: allocator blocks, rotary tables and MLA's absorbed
copies come on top.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from kvgate.budget.matrix import Cut, Matrix
from kvgate.budget.model_shape import DTYPE_BYTES, End, LatentAttention, LayerShape, ModelShape, distinct_layers
from kvgate.budget.parallelism import Parallelism
from kvgate.budget.units import MIB, round_up
from kvgate.budget.weight_format import LocalMatrix, stored_tensors

VOCABULARY_MULTIPLE = 64
"""Embedding and head are padded to this many rows before they are cut (`DEFAULT_VOCAB_PADDING_SIZE`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Bytes of one rank."""

    parameter_bytes: int
    """Plain sum of the parameters at construction."""
    loaded_bytes: int
    """What the log calls "Model loading took"."""


@lru_cache(maxsize=4096)
def rank_weights(
    shape: ModelShape, parallelism: Parallelism, stage: tuple[int, int], *, unsplit_large_blocks: bool
) -> Weights:
    """Weights of one rank of a pipeline stage that holds the layers first ≤ i < last of `stage`."""
    plain, loaded = 0, _rotary_bytes(shape)
    for sizes, count in _tensors(shape, parallelism, stage):
        plain += count * sum(sizes)
        loaded += count * sum(_allocated(size, unsplit_large_blocks=unsplit_large_blocks) for size in sizes)
    for layer, count in distinct_layers(shape, *stage):
        loaded += count * _absorbed_bytes(shape, layer, parallelism)
    return Weights(parameter_bytes=plain, loaded_bytes=loaded)


def _tensors(shape: ModelShape, parallelism: Parallelism, stage: tuple[int, int]) -> Iterator[tuple[list[int], int]]:
    """(bytes of each tensor, how many of such sets) of a stage."""
    element = DTYPE_BYTES[shape.dtype]
    for layer, count in distinct_layers(shape, *stage):
        yield _sizes(layer.matrices, parallelism, element), count
    for encoder in shape.encoders:
        for matrix, count in encoder.matrices:
            yield _sizes((matrix,), parallelism, element), count
    yield _sizes(shape.everywhere, parallelism, element), 1
    yield list(_end_tensors(shape, parallelism, stage)), 1


def _sizes(matrices: Iterable[Matrix], parallelism: Parallelism, element: int) -> list[int]:
    return [size for matrix in matrices for size in _matrix_tensors(matrix, parallelism, element)]


def _matrix_tensors(matrix: Matrix, parallelism: Parallelism, element: int) -> Iterator[int]:
    """Weight, scales and bias of one matrix; experts are one tensor each for all that the rank holds."""
    tensor = 1 if matrix.experts and parallelism.expert else parallelism.tensor
    copies = parallelism.num_experts_per_rank(matrix.experts) if matrix.experts else 1
    parts = tuple(part.on_rank(tensor) if matrix.cut is Cut.ROWS else part.elements for part in matrix.rows)
    columns = matrix.columns // tensor if matrix.cut is Cut.COLUMNS else matrix.columns
    element = matrix.element_bytes or element
    local = LocalMatrix(parts=parts, columns=columns, element_bytes=element)
    yield from (copies * size for size in stored_tensors(local, matrix.format))
    if matrix.bias:
        yield copies * sum(parts) * element


def _allocated(size: int, *, unsplit_large_blocks: bool) -> int:
    """The caching allocator's block for a tensor of `size` bytes (torch 2.x `CUDACachingAllocator`; 11 starts agree to 4 MiB).

    From 10 MiB on a block is a multiple of 2 MiB; a tail above 1 MiB is given back, unless max_split_size_mb = 20 forbids
    it (vLLM 0.22+) for blocks above 20 MiB.
    """
    if size < 10 * MIB:
        return round_up(size, 512)
    block = round_up(size, 2 * MIB)
    splits = block - size > MIB and not (unsplit_large_blocks and block > 20 * MIB)
    return round_up(size, 512) if splits else block


def _rotary_bytes(shape: ModelShape) -> int:
    return sum(table.max_position * table.rotary_dim * DTYPE_BYTES[shape.dtype] for table in shape.rotary)


def _absorbed_bytes(shape: ModelShape, layer: LayerShape, parallelism: Parallelism) -> int:
    """MLA keeps W_UK and W_UV beside kv_b_proj after loading (vLLM 0.32, `MLAAttention.process_weights_after_loading`)."""
    return sum(
        mixer.num_heads // parallelism.tensor
        * (mixer.qk_nope_head_dim + mixer.v_head_dim)
        * mixer.kv_lora_rank
        * DTYPE_BYTES[shape.dtype]
        for mixer in layer.mixers
        if isinstance(mixer, LatentAttention)
    )  # fmt: skip


def _end_tensors(shape: ModelShape, parallelism: Parallelism, stage: tuple[int, int]) -> Iterator[int]:
    """Embedding and head with what stands beside them; tied ends are one tensor where they share a rank."""
    element = DTYPE_BYTES[shape.dtype]
    is_first, is_last = stage[0] == 0, stage[1] == len(shape.layers)
    has_embedding = is_first or End.EMBEDDING in shape.ends_everywhere
    has_head = is_last or End.HEAD in shape.ends_everywhere
    rows = round_up(shape.vocab_size, VOCABULARY_MULTIPLE) // parallelism.tensor
    if has_embedding:
        yield rows * shape.hidden_size * element
        yield from _sizes(shape.first, parallelism, element)
    if is_last:
        yield from _sizes(shape.last, parallelism, element)
    if has_head:
        if not (shape.tie_word_embeddings and has_embedding):
            yield rows * shape.hidden_size * element
        if shape.lm_head_bias:
            yield rows * element
