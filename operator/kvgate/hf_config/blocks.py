"""The weights of the blocks that layers are built from, under the names of vLLM 0.32's model classes.

Every function gives whole matrices; ranks cut them later. Formats are given to them by `quantization.ModuleFormats`.
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.model.matrix import Cut, Matrix, Units
from kvgate.budget.model.shape import DenseMlp, FullAttention, LatentAttention, SparseMlp


def vector(name: str, elements: int, *, element_bytes: int | None = None) -> Matrix:
    """Return a norm or another vector that every rank holds whole."""
    return Matrix(name=name, rows=(Units(count=elements),), element_bytes=element_bytes)


def cut_vector(name: str, *units: Units, element_bytes: int | None = None) -> Matrix:
    """Return a vector that is dealt out with the heads or channels it belongs to."""
    return Matrix(name=name, rows=units, cut=Cut.ROWS, element_bytes=element_bytes)


def column_parallel(name: str, *rows: Units, columns: int, bias: bool = False, experts: int = 0) -> Matrix:
    """Return a matrix whose output features are dealt out to the ranks."""
    return Matrix(name=name, rows=rows, columns=columns, cut=Cut.ROWS, bias=bias, experts=experts)


def row_parallel(name: str, rows: int, *, columns: int, bias: bool = False, experts: int = 0) -> Matrix:
    """Return a matrix whose input features are dealt out to the ranks."""
    return Matrix(name=name, rows=(Units(count=rows),), columns=columns, cut=Cut.COLUMNS, bias=bias, experts=experts)


def replicated(name: str, rows: int, *, columns: int, bias: bool = False, element_bytes: int | None = None) -> Matrix:
    return Matrix(name=name, rows=(Units(count=rows),), columns=columns, bias=bias, element_bytes=element_bytes)


def attention(
    mixer: FullAttention, hidden_size: int, *, qkv_bias: bool = False, output_bias: bool = False, query_parts: int = 1
) -> Iterator[Matrix]:
    """Yield fused q, k and v, and the output projection; `query_parts` is 2 where a gate of the output stands beside q."""
    head, values = mixer.head_dim, mixer.v_head_dim or mixer.head_dim
    queries = Units(count=mixer.num_heads, width=query_parts * head)
    keys = Units(count=mixer.num_kv_heads, width=head)
    values_of_heads = Units(count=mixer.num_kv_heads, width=values)
    yield column_parallel("qkv_proj", queries, keys, values_of_heads, columns=hidden_size, bias=qkv_bias)
    yield row_parallel("o_proj", hidden_size, columns=mixer.num_heads * values, bias=output_bias)


def latent_attention(mixer: LatentAttention, hidden_size: int, *, q_lora_rank: int) -> Iterator[Matrix]:
    """Yield MLA: the down projections and their norms are whole on every rank, the rest is cut by heads."""
    queries = Units(count=mixer.num_heads, width=mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
    if q_lora_rank:
        yield replicated("q_a_proj", q_lora_rank, columns=hidden_size)
        yield vector("q_a_layernorm", q_lora_rank)
    yield column_parallel("q_b_proj", queries, columns=q_lora_rank or hidden_size)
    yield replicated("kv_a_proj", mixer.kv_lora_rank + mixer.qk_rope_head_dim, columns=hidden_size)
    yield vector("kv_a_layernorm", mixer.kv_lora_rank)
    up = Units(count=mixer.num_heads, width=mixer.qk_nope_head_dim + mixer.v_head_dim)
    yield column_parallel("kv_b_proj", up, columns=mixer.kv_lora_rank)
    yield row_parallel("o_proj", hidden_size, columns=mixer.num_heads * mixer.v_head_dim)


def dense_mlp(mlp: DenseMlp, hidden_size: int, *, bias: bool = False, fused: bool = True) -> Iterator[Matrix]:
    """Yield gate and up, fused into one except in Laguna, and down."""
    yield from _up("gate_up_proj", mlp.intermediate_size, hidden_size, gated=mlp.gated, bias=bias, fused=fused)
    yield row_parallel("down_proj", hidden_size, columns=mlp.intermediate_size, bias=bias)


def _up(name: str, size: int, hidden_size: int, *, gated: bool, bias: bool = False, fused: bool) -> Iterator[Matrix]:
    parts = (Units(count=size),) * (2 if gated else 1)
    for rows in (parts,) if fused else [(part,) for part in parts]:
        yield column_parallel(name, *rows, columns=hidden_size, bias=bias)


class Router(Struct, frozen=True, kw_only=True):
    """The way in which a model class keeps its router, which is never cut."""

    bias: bool = False
    """A correction term per expert (DeepSeek-V3 and its kin), float32."""
    element_bytes: int | None = None
    """Its own precision where it is not the model's (GLM-4.5, MiniMax-M2: float32)."""
    computes_in_float32: bool = False
    """float32 where the GPU has no kernel that multiplies bfloat16 into it (Nemotron 3)."""
    shared_gate: bool = False
    """A gate of the shared expert (Qwen2-MoE)."""
    linear_bias: bool = False
    """A bias of the projection itself (gpt-oss)."""
    fused_shared: bool = True
    """Gate and up of the shared part are one matrix."""


def sparse_mlp(
    mlp: SparseMlp, hidden_size: int, router: Router, *, bias: bool = False, least_width: int = 0
) -> Iterator[Matrix]:
    """Yield experts, which are cut along their own width or dealt out whole, their router, and the shared part, an ordinary block."""
    width = mlp.hidden_size or hidden_size
    inner = (Units(count=mlp.intermediate_size),) * (2 if mlp.gated else 1)
    up = column_parallel("experts", *inner, columns=width, bias=bias, experts=mlp.num_experts)
    down = row_parallel("experts", width, columns=mlp.intermediate_size, bias=bias, experts=mlp.num_experts)
    gate = replicated(
        "router", mlp.num_experts, columns=hidden_size, bias=router.linear_bias, element_bytes=router.element_bytes
    )
    yield replace(up, least_width=least_width, suits_trtllm=mlp.suits_trtllm)
    yield replace(down, least_width=least_width, suits_trtllm=mlp.suits_trtllm)
    yield replace(gate, computes_in_float32=router.computes_in_float32)
    if router.bias:
        yield vector("router_bias", mlp.num_experts, element_bytes=4)
    if mlp.shared_intermediate_size:
        shared = mlp.shared_intermediate_size
        yield from _up("shared_experts", shared, hidden_size, gated=mlp.gated, fused=router.fused_shared)
        yield row_parallel("shared_experts", hidden_size, columns=mlp.shared_intermediate_size)
    if router.shared_gate:
        yield vector("shared_expert_gate", hidden_size)
