"""From a model's layers to the KV cache groups of an engine: specs per layer, and the block size a kernel wants."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from kvgate.budget.accelerator import Accelerator
from kvgate.budget.errors import UnmodelledKind
from kvgate.budget.kv_cache_dtype import KVCacheDtype
from kvgate.budget.kv_cache_groups import Groups, bytes_per_block, form_groups
from kvgate.budget.kv_cache_spec import FullAttentionSpec, KVCacheSpec, MLASpec
from kvgate.budget.model_shape import FullAttention, LatentAttention, LayerShape, Mixer, ModelShape
from kvgate.budget.parallelism import local_heads, stage_sizes

DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layout:
    """Groups of the whole model, and what each pipeline stage holds of them."""

    groups: Groups
    stages: tuple[tuple[int, int], ...]
    """Layers first ≤ i < last of each stage."""
    stage_block_bytes: tuple[int, ...]
    """Bytes of one block on a rank of each stage."""


@lru_cache(maxsize=1024)
def layout_of(shape: ModelShape, dtype: KVCacheDtype, *, tensor: int, pipeline: int, block_size: int) -> Layout:
    """The layout on one tensor-parallel rank of every stage. Raises UnmodelledKind for a layer without a formula."""
    specs = {id(layer): _spec(_only_mixer(layer), dtype, tensor, block_size) for layer in shape.layers}
    groups = form_groups([specs[id(layer)] for layer in shape.layers])
    stages = tuple(pairwise(accumulate(stage_sizes(len(shape.layers), min(pipeline, len(shape.layers))), initial=0)))
    sizes = tuple(bytes_per_block(groups, first, last) for first, last in stages)
    return Layout(groups=groups, stages=stages, stage_block_bytes=sizes)


def _only_mixer(layer: LayerShape) -> Mixer:
    if len(layer.mixers) != 1:
        raise UnmodelledKind("layers with two caches, or without one")
    return layer.mixers[0]


def _spec(mixer: Mixer, dtype: KVCacheDtype, tensor: int, block_size: int) -> KVCacheSpec:
    if isinstance(mixer, FullAttention) and mixer.kind == "full attention" and not mixer.v_head_dim:
        heads = local_heads(mixer.num_kv_heads, tensor)
        return FullAttentionSpec(block_size=block_size, num_kv_heads=heads, head_dim=mixer.head_dim, dtype=dtype)
    if isinstance(mixer, LatentAttention):
        return MLASpec(block_size=block_size, width=mixer.width, dtype=dtype)
    raise UnmodelledKind(mixer.kind)


def block_size_of(shape: ModelShape, accelerator: Accelerator, dtype: KVCacheDtype, asked: int | None) -> int:
    """Tokens of a block: what the user asks, else 16, and never less than the attention kernel's own block."""
    return max(asked or DEFAULT_BLOCK_SIZE, _kernel_block_size(shape, accelerator, dtype))


def _kernel_block_size(shape: ModelShape, accelerator: Accelerator, dtype: KVCacheDtype) -> int:
    """MLA kernels: FLASHINFER_MLA on Blackwell takes 32, FLASHMLA (fp8 on Hopper) 64 (vLLM 0.32, backend selection)."""
    if not isinstance(shape.mixers[0], LatentAttention) or accelerator.compute_capability is None:
        return DEFAULT_BLOCK_SIZE
    major = accelerator.compute_capability[0]
    if major == 10:
        return 32
    return 64 if major == 9 and dtype.is_fp8 else DEFAULT_BLOCK_SIZE
