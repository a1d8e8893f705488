"""Weight bytes of a rank: every tensor that vLLM allocates, cut as vLLM cuts it.

What the log calls "Model loading took" is more than the plain sum: allocator blocks, rotary tables and MLA's absorbed
copies come on top.
"""

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.ground.hardware import SINGLE_GPU, Parallelism
from kvgate.budget.ground.units import MIB, round_up
from kvgate.budget.model.matrix import Cut, LocalMatrix, Matrix, mxfp4_multiples, stored_tensors
from kvgate.budget.model.shape import (
    DTYPE_BYTES,
    End,
    LatentAttention,
    LayerShape,
    ModelShape,
    RecurrentState,
    distinct_layers,
)

VOCABULARY_MULTIPLE = 64
"""Embedding and head are padded to a multiple of this many rows before they are cut (`DEFAULT_VOCAB_PADDING_SIZE`)."""
EXACT_WITHIN = Fraction(1, 200)
"""A checkpoint's index that differs by less confirms the formulas: the rest is scales and names of tensors (28 published indexes
agree to 0.01 %)."""
_BALANCING_STEPS = 1000
"""Steps whose load of every expert is remembered (`EPLBConfig.window_size`)."""
_STORED_AS_IT_IS = (9, 0)
"""Compute capability of kernels that hold MXFP4 as the checkpoint does."""

EXPERTS = "experts and routers"
FEED_FORWARD = "feed-forward"
NORMS = "norms"
RECURRENT = "recurrent layers"
ATTENTION = "attention"
_OF_LAYERS = (ATTENTION, RECURRENT, FEED_FORWARD, EXPERTS, NORMS)
_ATTENTION_NAMES = frozenset({"qkv_proj", "qk_norm", "o_proj"})
"""Names that matter only in layers that attend and also keep a recurrent state (Falcon-H1)."""


_REST = {False: "beyond what the config describes", True: "fewer bits of the checkpoint's format"}
"""Row of the bytes by which a checkpoint's index differs from the formulas; True: the format has none."""


class Weights(Struct, frozen=True, kw_only=True):
    parameter_bytes: int
    """Plain sum of the parameters at construction."""
    loaded_bytes: int
    """Bytes that vLLM logs as "Model loading took"."""


class Storage(Struct, frozen=True, kw_only=True):
    """Facts that decide how a rank stores a matrix."""

    parallelism: Parallelism
    element_bytes: int
    """Bytes of an element of the model dtype."""
    compute_capability: tuple[int, int] | None
    loaded: bool = False
    """True after kernels have converted and padded it; False: as the model class builds it."""
    pads_experts: bool = True
    """True where FlashInfer's TRT-LLM kernels compute plain experts on Blackwell, if they can."""

    @property
    def is_blackwell(self) -> bool:
        """True on Blackwell for data centres."""
        return self.compute_capability is not None and self.compute_capability[0] == 10


@lru_cache(maxsize=4096)
def rank_weights(
    shape: ModelShape,
    parallelism: Parallelism,
    stage: tuple[int, int],
    *,
    unsplit_large_blocks: bool,
    compute_capability: tuple[int, int] | None = None,
    with_drafts: bool = False,
    pads_experts: bool = True,
) -> Weights:
    """Return the weights of one rank of a pipeline stage that holds the layers first ≤ i < last of `stage`."""
    element = DTYPE_BYTES[shape.dtype]
    built = Storage(
        parallelism=parallelism,
        element_bytes=element,
        compute_capability=compute_capability,
        pads_experts=pads_experts,
    )
    plain = sum(count * sum(sizes) for sizes, count in _tensors(shape, built, stage, with_drafts=with_drafts))
    loaded = sum(table.max_position * table.rotary_dim * (table.element_bytes or element) for table in shape.rotary)
    for sizes, count in _tensors(shape, replace(built, loaded=True), stage, with_drafts=with_drafts):
        loaded += count * sum(allocated_bytes(size, unsplit_large_blocks=unsplit_large_blocks) for size in sizes)
    for layer, count in distinct_layers(shape, *stage):
        loaded += count * _absorbed_bytes(shape, layer, parallelism)
    if parallelism.balances_experts:
        loaded += _balancing_bytes(shape, replace(built, loaded=True), stage)
    return Weights(parameter_bytes=plain, loaded_bytes=loaded)


def _tensors(
    shape: ModelShape, storage: Storage, stage: tuple[int, int], *, with_drafts: bool
) -> Iterator[tuple[list[int], int]]:
    """(bytes of each tensor, how many of such sets) of a stage."""
    for layer, count in distinct_layers(shape, *stage):
        yield tensor_sizes(layer.matrices, storage), count
    if with_drafts and stage[1] == len(shape.layers):
        for layer in shape.draft_layers:
            yield tensor_sizes(layer.matrices, storage), 1
    for encoder in shape.encoders:
        if encoder.is_unlisted and not (storage.loaded and counts_unlisted(shape)):
            continue
        for matrix, count in encoder.matrices:
            yield tensor_sizes((matrix,), storage), count
    yield tensor_sizes(shape.everywhere, storage), 1
    yield list(_end_tensors(shape, storage, stage)), 1


def counts_unlisted(shape: ModelShape) -> bool:
    """Return True where towers that the config leaves out are loaded all the same: unless the checkpoint's own bytes are known."""
    return not shape.checkpoint_bytes


def unlisted_bytes(shape: ModelShape) -> int:
    """Return the bytes of towers that are counted although the config leaves them out."""
    towers = [encoder for encoder in shape.encoders if encoder.is_unlisted and counts_unlisted(shape)]
    matrices = ((matrix, count) for encoder in towers for matrix, count in encoder.matrices)
    return sum(count * whole_bytes((matrix,), DTYPE_BYTES[shape.dtype]) for matrix, count in matrices)


def tensor_sizes(matrices: Iterable[Matrix], storage: Storage) -> list[int]:
    """Bytes of the weights, scales and biases; experts are one tensor each for all that the rank holds."""
    sizes = []
    for matrix in matrices:
        copies = storage.parallelism.num_experts_per_rank(matrix.experts) if matrix.experts else 1
        local = local_expert(matrix, storage) if matrix.experts else local_matrix(matrix, storage)
        sizes += [copies * size for size in stored_tensors(local, matrix.format, loaded=storage.loaded)]
        if matrix.bias:
            sizes.append(copies * local.rows * local.element_bytes)
    return sizes


def local_matrix(matrix: Matrix, storage: Storage) -> LocalMatrix:
    """Return the rank's part of a matrix that is not an expert."""
    tensor = storage.parallelism.tensor
    parts = tuple(part.on_rank(tensor) if matrix.cut is Cut.ROWS else part.elements for part in matrix.rows)
    columns = matrix.columns // tensor if matrix.cut is Cut.COLUMNS else matrix.columns
    # Hopper and Blackwell for data centres multiply bfloat16 into float32 (vLLM 0.32, `GateLinear`)
    has_kernel = storage.is_blackwell or storage.compute_capability in (None, (9, 0))
    is_wide = matrix.computes_in_float32 and not has_kernel
    element = 4 if is_wide else matrix.element_bytes or storage.element_bytes
    return LocalMatrix(parts=parts, columns=columns, element_bytes=element)


def local_expert(matrix: Matrix, storage: Storage) -> LocalMatrix:
    """Return the rank's part of an expert: cut along its inner width, or whole; classes and kernels pad what is left."""
    tensor, is_down = storage.parallelism.expert_tensor, matrix.cut is Cut.COLUMNS
    whole = matrix.columns if is_down else matrix.rows[0].elements
    if storage.parallelism.tensor > 1 and not storage.parallelism.expert:
        whole = max(whole, matrix.least_width * storage.parallelism.tensor)
    outer_multiple, inner_multiple = 1, 1
    if matrix.format is None and storage.is_blackwell and storage.pads_experts and matrix.suits_trtllm:
        inner_multiple = 128  # FlashInfer's TRT-LLM kernels take plain experts in steps of this width
    elif matrix.format is not None and matrix.format.format == "mxfp4":
        outer_multiple, inner_multiple = mxfp4_multiples(storage.compute_capability, loaded=storage.loaded)
    inner = round_up(whole // tensor, inner_multiple)
    outer = round_up(matrix.rows[0].elements if is_down else matrix.columns, outer_multiple)
    return LocalMatrix(
        parts=(outer,) if is_down else (inner,) * len(matrix.rows),
        columns=inner if is_down else outer,
        element_bytes=matrix.element_bytes or storage.element_bytes,
        expert_width=inner,
    )


def allocated_bytes(size: int, *, unsplit_large_blocks: bool) -> int:
    """Return the caching allocator's block for a tensor of `size` bytes (torch 2.x `CUDACachingAllocator`; 11 starts agree to 4 MiB).

    From 10 MiB on a block is a multiple of 2 MiB. A tail above 1 MiB is given back, unless max_split_size_mb = 20 forbids
    it (vLLM 0.22+) for blocks above 20 MiB.
    """
    if size < 10 * MIB:
        return round_up(size, 512)
    block = round_up(size, 2 * MIB)
    splits = block - size > MIB and not (unsplit_large_blocks and block > 20 * MIB)
    return round_up(size, 512) if splits else block


def _absorbed_bytes(shape: ModelShape, layer: LayerShape, parallelism: Parallelism) -> int:
    """Bytes of W_UK and W_UV, which MLA keeps beside kv_b_proj after loading.

    Formula: vLLM 0.32, `MLAAttention.process_weights_after_loading`.
    """
    return sum(
        mixer.num_heads // parallelism.tensor
        * (mixer.qk_nope_head_dim + mixer.v_head_dim)
        * mixer.kv_lora_rank
        * DTYPE_BYTES[shape.dtype]
        for mixer in layer.mixers
        if isinstance(mixer, LatentAttention)
    )  # fmt: skip


def _balancing_bytes(shape: ModelShape, storage: Storage, stage: tuple[int, int]) -> int:
    """Bytes by which vLLM moves experts between ranks: a copy of one layer's experts, and how often each was used in the last 1000 steps
    (0.32, `EplbState.add_model`; `window_size`)."""
    layers = [layer for layer in shape.layers[slice(*stage)] if any(matrix.experts for matrix in layer.matrices)]
    if not layers:
        return 0
    experts = [matrix for matrix in layers[0].matrices if matrix.experts]
    copies = experts[0].experts + storage.parallelism.redundant_experts
    return sum(tensor_sizes(experts, storage)) + 4 * copies * len(layers) * _BALANCING_STEPS


def _end_tensors(shape: ModelShape, storage: Storage, stage: tuple[int, int]) -> Iterator[int]:
    """Bytes of embedding, head and the weights beside them; tied ends are one tensor on a rank that holds both."""
    element = storage.element_bytes
    is_first, is_last = stage[0] == 0, stage[1] == len(shape.layers)
    has_embedding = is_first or End.EMBEDDING in shape.ends_everywhere
    has_head = is_last or End.HEAD in shape.ends_everywhere
    rows = round_up(shape.vocab_size, VOCABULARY_MULTIPLE) // storage.parallelism.tensor
    if has_embedding:
        yield from tensor_sizes(shape.first, storage)
    if is_last:
        yield from tensor_sizes(shape.last, storage)
    if shape.own_ends:
        return
    end = LocalMatrix(parts=(rows,), columns=shape.hidden_size, element_bytes=element)
    if has_embedding:
        yield from stored_tensors(end, shape.embedding_format, loaded=storage.loaded)
    if has_head:
        holds_copy = shape.tie_word_embeddings and has_embedding
        # a pooling model makes no head, but its last stage still makes the embedding that would be tied to one
        if not holds_copy and (shape.tie_word_embeddings or not shape.pools):
            yield from stored_tensors(end, shape.head_format, loaded=storage.loaded)
        if shape.lm_head_bias:
            yield rows * element


def whole_bytes(matrices: Iterable[Matrix], element_bytes: int) -> int:
    """Return the bytes of whole matrices as their formats store them, without their biases."""
    storage = Storage(parallelism=SINGLE_GPU, element_bytes=element_bytes, compute_capability=_STORED_AS_IT_IS)
    return sum(tensor_sizes((replace(matrix, bias=False) for matrix in matrices), storage))


@lru_cache(maxsize=512)
def checkpoint_ratio(shape: ModelShape) -> Fraction:
    """Bytes of the checkpoint's own index ÷ bytes by formula; 1 where no index is known, or where the two agree.

    Where the two differ, the index wins. A checkpoint may hold layers of multi-token prediction that vLLM leaves out, so the
    nearer of both counts is compared.
    """
    if not shape.checkpoint_bytes:
        return Fraction(1)
    described = described_bytes(shape)
    nearest = Fraction(shape.checkpoint_bytes, described) if described else Fraction(1)
    return Fraction(1) if abs(nearest - 1) <= EXACT_WITHIN else nearest


@lru_cache(maxsize=512)
def described_bytes(shape: ModelShape) -> int:
    """Return the bytes of all weights by formula, with or without layers that only draft: the count that is nearer to the checkpoint's."""
    counts = [
        rank_weights(
            shape,
            SINGLE_GPU,
            (0, len(shape.layers)),
            unsplit_large_blocks=False,
            compute_capability=_STORED_AS_IT_IS,
            with_drafts=with_drafts,
        ).parameter_bytes
        for with_drafts in (False, True)
    ]
    stored = shape.checkpoint_bytes or counts[0]
    return min(counts, key=lambda count: abs(Fraction(stored, count) - 1) if count else stored)


class WeightPart(Struct, frozen=True, kw_only=True):
    """One row of the table of a rank's weights."""

    name: str
    size_bytes: int


Weigh = Callable[[ModelShape], Weights]
"""Weights of a rank for a shape from which parts may have been removed."""


def weight_parts(shape: ModelShape, stage: tuple[int, int], weigh: Weigh) -> tuple[WeightPart, ...]:
    """Return every part of the weights, in the order of the model; the parts sum to the loaded bytes.

    The bytes of a part are what a model with nothing else would load.
    """
    weights = weigh(shape)
    loaded = weights.loaded_bytes
    unabsorbed = replace(shape, layers=_mapped(shape.layers, lambda layer: replace(layer, mixers=())))
    rotary = loaded - weigh(replace(shape, rotary=())).loaded_bytes
    absorbed = loaded - weigh(unabsorbed).loaded_bytes
    sizes = {
        **_parameters(shape, stage, weigh),
        "rotary tables": rotary,
        "MLA's absorbed copies": absorbed,
        "padding, allocator rounding": loaded - weights.parameter_bytes - rotary - absorbed,
        _REST[bool(shape.unmodelled)]: int(loaded * checkpoint_ratio(shape)) - loaded,
    }
    return tuple(WeightPart(name=name, size_bytes=size) for name, size in sizes.items() if size)


def _parameters(shape: ModelShape, stage: tuple[int, int], weigh: Weigh) -> dict[str, int]:
    def plain(part: ModelShape) -> int:
        return weigh(part).parameter_bytes

    bare = replace(
        shape, vocab_size=0, first=(), last=(), everywhere=(), encoders=(), rotary=(), draft_layers=(),
        layers=_mapped(shape.layers, lambda _: LayerShape()),
    )  # fmt: skip
    ends = replace(bare, vocab_size=shape.vocab_size)
    has_embedding = stage[0] == 0 or End.EMBEDDING in shape.ends_everywhere
    embedding = plain(replace(ends, tie_word_embeddings=True, lm_head_bias=False)) if has_embedding else 0
    sizes = {
        "encoders": plain(replace(bare, encoders=shape.encoders)),
        "embedding": embedding + plain(replace(bare, first=shape.first)),
        **{name: plain(_only(shape, bare, name)) for name in _OF_LAYERS},
        "head": plain(ends) - embedding,
    }
    return {**sizes, "draft layers": plain(shape) - sum(sizes.values())}


def _only(shape: ModelShape, bare: ModelShape, part: str) -> ModelShape:
    """Return a shape with one part of the layers, and with the same part of the weights beside the layers."""

    def kept(layer: LayerShape) -> LayerShape:
        return LayerShape(matrices=tuple(matrix for matrix in layer.matrices if _part(matrix, layer) == part))

    last, everywhere = (kept(LayerShape(matrices=matrices)).matrices for matrices in (shape.last, shape.everywhere))
    return replace(bare, layers=_mapped(shape.layers, kept), last=last, everywhere=everywhere)


def _mapped(layers: tuple[LayerShape, ...], change: Callable[[LayerShape], LayerShape]) -> tuple[LayerShape, ...]:
    """Change every layer; equal layers stay one object, because they are counted by identity."""
    changed = {key: change(layer) for key, layer in {id(layer): layer for layer in layers}.items()}
    return tuple(changed[id(layer)] for layer in layers)


def _part(matrix: Matrix, layer: LayerShape) -> str:
    """Name the part of a matrix by vLLM's names of modules."""
    name = matrix.name
    if matrix.experts or name.startswith(("experts", "router", "shared_expert")):
        return EXPERTS
    if name in ("gate_up_proj", "down_proj"):
        return FEED_FORWARD
    if matrix.columns == 1 and "norm" in name:
        return NORMS
    recurrent = [isinstance(mixer, RecurrentState) for mixer in layer.mixers]
    if any(recurrent) and (all(recurrent) or name not in _ATTENTION_NAMES):
        return RECURRENT
    return ATTENTION
