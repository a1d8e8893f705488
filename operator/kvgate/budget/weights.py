"""Weight bytes of a rank: every tensor that vLLM allocates, cut as vLLM cuts it.

Layers are described by the modules of vLLM 0.32's model classes (fused qkv and gate_up, expert stacks). What the log calls
"Model loading took" is more than the plain sum: allocator blocks, rotary tables and MLA's absorbed copies come on top.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from kvgate.budget.model_shape import (
    DTYPE_BYTES,
    DenseMlp,
    FullAttention,
    LatentAttention,
    LayerShape,
    LowRankProjections,
    ModelShape,
    Quantization,
    SparseMlp,
    UnmodelledLayer,
    distinct_layers,
)
from kvgate.budget.parallelism import Parallelism, local_heads
from kvgate.budget.units import MIB, cdiv, round_up

VOCABULARY_MULTIPLE = 64
"""Embedding and head are padded to this many rows before they are cut (`DEFAULT_VOCAB_PADDING_SIZE`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Bytes of one rank."""

    parameter_bytes: int
    """Plain sum of the parameters at construction."""
    loaded_bytes: int
    """What the log calls "Model loading took"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """One matrix as a rank holds it; `name` is vLLM's, so that a checkpoint's exceptions can be looked up."""

    name: str
    rows: int
    """Output features on this rank."""
    columns: int
    """Input features on this rank."""
    bias_rows: int = 0
    parts: int = 1
    """Logical matrices fused into one (q, k and v: 3)."""
    copies: int = 1
    """Experts stacked into one tensor."""


@lru_cache(maxsize=4096)
def rank_weights(
    shape: ModelShape, parallelism: Parallelism, stage: tuple[int, int], *, unsplit_large_blocks: bool
) -> Weights:
    """Weights of one rank of a pipeline stage that holds the layers first ≤ i < last of `stage`."""
    first, last = stage
    plain = loaded = 0
    for layer, count in distinct_layers(shape, first, last):
        sizes = list(_layer_tensors(shape, layer, parallelism))
        plain += count * sum(sizes)
        loaded += count * sum(_allocated(size, unsplit_large_blocks=unsplit_large_blocks) for size in sizes)
        loaded += count * _absorbed_bytes(shape, layer, parallelism)
    is_first = first == 0 or shape.ends_on_every_stage
    is_last = last == len(shape.layers) or shape.ends_on_every_stage
    outside = list(_outer_tensors(shape, parallelism, is_first=is_first, is_last=is_last))
    plain += sum(outside)
    loaded += sum(_allocated(size, unsplit_large_blocks=unsplit_large_blocks) for size in outside)
    return Weights(parameter_bytes=plain, loaded_bytes=loaded + _rotary_bytes(shape))


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
    if not isinstance(layer.mixer, LatentAttention):
        return 0
    p = layer.mixer.projections
    heads = layer.mixer.num_heads // parallelism.tensor
    return heads * (p.qk_nope_head_dim + p.v_head_dim) * p.kv_lora_rank * DTYPE_BYTES[shape.dtype]


def _outer_tensors(shape: ModelShape, parallelism: Parallelism, *, is_first: bool, is_last: bool) -> Iterator[int]:
    """Embedding, positions, final norm and head; tied ends are one tensor where they share a rank."""
    element = DTYPE_BYTES[shape.dtype]
    rows = round_up(shape.vocab_size, VOCABULARY_MULTIPLE) // parallelism.tensor
    if is_first:
        yield rows * shape.hidden_size * element
        if shape.position_rows:
            yield shape.position_rows * shape.hidden_size * element
    if is_last:
        yield shape.final_norm_elements * element
        if not (shape.tie_word_embeddings and is_first):
            yield rows * shape.hidden_size * element
        if shape.lm_head_bias:
            yield rows * element


def _layer_tensors(shape: ModelShape, layer: LayerShape, parallelism: Parallelism) -> Iterator[int]:
    element = DTYPE_BYTES[shape.dtype]
    yield layer.norm_elements * element
    yield _head_norm_elements(layer, parallelism) * element
    for linear in _linears(shape, layer, parallelism):
        quantization = None if linear.name in layer.unquantized else shape.quantization
        yield from linear_tensors(linear, quantization, element)
    if isinstance(layer.mlp, SparseMlp):
        yield from _router_tensors(layer.mlp, shape.hidden_size, element)


def _head_norm_elements(layer: LayerShape, parallelism: Parallelism) -> int:
    mixer = layer.mixer
    if isinstance(mixer, LatentAttention):
        return _latent_norm_elements(mixer.projections)
    if isinstance(mixer, UnmodelledLayer):
        return 0
    spanning = (
        (mixer.num_heads + mixer.num_kv_heads) * mixer.head_dim // parallelism.tensor if mixer.norm_over_heads else 0
    )
    latent = _latent_norm_elements(mixer.low_rank) if mixer.low_rank else 0
    return mixer.head_norm_elements + spanning + latent


def _latent_norm_elements(p: LowRankProjections) -> int:
    return p.kv_lora_rank + (p.q_lora_rank or 0)


def _router_tensors(mlp: SparseMlp, hidden_size: int, element: int) -> Iterator[int]:
    """Routers are never cut; their precision may be the model's or float32."""
    yield mlp.num_experts * hidden_size * (mlp.router_bytes_per_element or element)
    if mlp.router_bias:
        yield mlp.num_experts * 4
    if mlp.shared_gate:
        yield hidden_size * element


def _linears(shape: ModelShape, layer: LayerShape, parallelism: Parallelism) -> Iterator[Linear]:
    tensor, hidden = parallelism.tensor, shape.hidden_size
    if isinstance(layer.mixer, FullAttention):
        yield from _attention_linears(layer.mixer, hidden, tensor)
    elif isinstance(layer.mixer, LatentAttention):
        yield from _latent_linears(layer.mixer.projections, layer.mixer.num_heads, hidden, tensor)
    if isinstance(layer.mlp, DenseMlp):
        yield from _mlp_linears(layer.mlp, hidden, tensor)
    else:
        yield from _expert_linears(layer.mlp, hidden, parallelism)


def _attention_linears(mixer: FullAttention, hidden: int, tensor: int) -> Iterator[Linear]:
    if mixer.low_rank:
        yield from _latent_linears(mixer.low_rank, mixer.num_heads, hidden, tensor)
        return
    queries = mixer.num_heads // tensor * mixer.head_dim
    rows = queries + 2 * local_heads(mixer.num_kv_heads, tensor) * mixer.head_dim
    yield Linear(name="qkv_proj", rows=rows, columns=hidden, bias_rows=rows if mixer.qkv_bias else 0, parts=3)
    yield Linear(name="o_proj", rows=hidden, columns=queries, bias_rows=hidden if mixer.output_bias else 0)


def _latent_linears(p: LowRankProjections, num_heads: int, hidden: int, tensor: int) -> Iterator[Linear]:
    """The down projections are whole on every rank, the rest is cut by heads."""
    heads = num_heads // tensor
    queries = heads * (p.qk_nope_head_dim + p.qk_rope_head_dim)
    if p.q_lora_rank:
        yield Linear(name="q_a_proj", rows=p.q_lora_rank, columns=hidden)
        yield Linear(name="q_b_proj", rows=queries, columns=p.q_lora_rank)
    else:
        yield Linear(name="q_b_proj", rows=queries, columns=hidden)
    yield Linear(name="kv_a_proj", rows=p.kv_lora_rank + p.qk_rope_head_dim, columns=hidden)
    yield Linear(name="kv_b_proj", rows=heads * (p.qk_nope_head_dim + p.v_head_dim), columns=p.kv_lora_rank)
    yield Linear(name="o_proj", rows=hidden, columns=heads * p.v_head_dim)


def _mlp_linears(mlp: DenseMlp, hidden: int, tensor: int) -> Iterator[Linear]:
    size, parts = mlp.intermediate_size // tensor, 2 if mlp.gated else 1
    yield Linear(
        name="gate_up_proj", rows=parts * size, columns=hidden, bias_rows=parts * size if mlp.bias else 0, parts=parts
    )
    yield Linear(name="down_proj", rows=hidden, columns=size, bias_rows=hidden if mlp.bias else 0)


def _expert_linears(mlp: SparseMlp, hidden: int, parallelism: Parallelism) -> Iterator[Linear]:
    """Experts are cut along their own width, or dealt out whole; the shared part is an ordinary block."""
    size = mlp.intermediate_size if parallelism.expert else mlp.intermediate_size // parallelism.tensor
    experts = parallelism.num_experts_per_rank(mlp.num_experts)
    yield Linear(name="experts", rows=2 * size, columns=hidden, parts=2, copies=experts)
    yield Linear(name="experts", rows=hidden, columns=size, copies=experts)
    if mlp.shared_intermediate_size:
        shared = mlp.shared_intermediate_size // parallelism.tensor
        yield Linear(name="shared_experts", rows=2 * shared, columns=hidden, parts=2)
        yield Linear(name="shared_experts", rows=hidden, columns=shared)


def linear_tensors(linear: Linear, quantization: Quantization | None, element: int) -> Iterator[int]:
    """Bytes of each tensor that stores one matrix: weight, scales, zero points, bias."""
    if quantization is None:
        yield linear.copies * linear.rows * linear.columns * element
    else:
        yield from (linear.copies * size for size in _packed_tensors(linear, quantization))
    if linear.bias_rows:
        yield linear.bias_rows * element


def _packed_tensors(linear: Linear, quantization: Quantization) -> Iterator[int]:
    """Shapes of vLLM 0.32's `create_weights` for each method."""
    rows, columns = linear.rows, linear.columns
    groups = cdiv(columns, quantization.group_size) if quantization.group_size else 1
    match quantization.format:
        case "fp8-block":
            yield rows * columns
            yield 4 * cdiv(rows, quantization.block[0]) * cdiv(columns, quantization.block[1])
        case "fp8-tensor":
            yield rows * columns
            yield 4 * linear.parts * (2 if quantization.static_activation_scale else 1)
        case "fp8-channel":
            yield rows * columns
            yield 4 * rows
        case "int4-awq":
            yield rows * columns // 2
            yield groups * rows // 2
            yield 2 * groups * rows
        case "int4-gptq" | "int8-gptq":
            bits = 4 if quantization.format == "int4-gptq" else 8
            yield rows * columns * bits // 8
            yield groups * rows * bits // 8
            yield 2 * groups * rows
            yield 4 * columns
        case "int4-packed":
            yield rows * columns // 2
            yield 2 * groups * rows
