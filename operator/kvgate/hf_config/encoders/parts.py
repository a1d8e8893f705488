"""Parts that vision and audio towers have in common (vLLM 0.32's model classes): layers, patches, projectors."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from kvgate.budget.model.matrix import Matrix, Units
from kvgate.budget.model.shape import DenseMlp, Encoder, FullAttention, MediaItem, TowerBlock
from kvgate.hf_config.blocks import attention, column_parallel, dense_mlp, replicated, row_parallel, vector
from kvgate.hf_config.fields import Fields

COMPLEX_ROTATION = TowerBlock(attention_cut=13, attention_whole=3)
"""Queries and keys become complex numbers in 32 bits to be rotated (Llama 4, MoonViT)."""


class TowerLayer(Struct, frozen=True, kw_only=True):
    """One layer of a tower; its attention caches nothing."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int = 0
    """0: as many as heads."""
    head_dim: int = 0
    """0: hidden_size over heads."""
    gated: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    norm_vectors: int = 4
    """Vectors of the hidden size: two norms, each with a weight and a bias."""

    def matrices(self) -> Iterator[Matrix]:
        heads = FullAttention(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads or self.num_heads,
            head_dim=self.head_dim or self.hidden_size // self.num_heads,
        )
        bias = self.attention_bias
        yield from attention(heads, self.hidden_size, qkv_bias=bias, output_bias=bias)
        mlp = DenseMlp(intermediate_size=self.intermediate_size, gated=self.gated)
        yield from dense_mlp(mlp, self.hidden_size, bias=self.mlp_bias)
        yield vector("norm", self.norm_vectors * self.hidden_size)


def tower(
    layer: TowerLayer,
    num_layers: int,
    around: Iterable[Matrix],
    *items: MediaItem,
    patches_per_token: int = 1,
    block: TowerBlock | None = None,
) -> Encoder:
    """Return a tower of equal layers; `around` are the weights before and behind them, projector included."""
    return Encoder(
        matrices=(*counted(num_layers, layer.matrices()), *counted(1, around)),
        hidden_size=layer.hidden_size,
        intermediate_size=layer.intermediate_size,
        items=items,
        patches_per_token=patches_per_token,
        block=block,
    )


def patch_embedding(width: int, *, columns: int, bias: bool = False) -> Matrix:
    """Return the matrix that turns a picture's pixels, or a sound's frames, into positions of the tower."""
    return replicated("patch_embed", width, columns=columns, bias=bias)


def layer_norm(name: str, width: int) -> Matrix:
    return vector(name, 2 * width)


def two_linears(name: str, *, columns: int, inner: int, rows: int, bias: bool = True) -> tuple[Matrix, Matrix]:
    """Return a projector, cut by its inner width as a feed-forward block is."""
    return (
        column_parallel(name, Units(count=inner), columns=columns, bias=bias),
        row_parallel(name, rows, columns=inner, bias=bias),
    )


def counted(count: int, matrices: Iterable[Matrix]) -> Iterator[tuple[Matrix, int]]:
    """Yield (weight, count) for weights that stand in each of `count` layers."""
    return ((matrix, count) for matrix in matrices)


def built_layers(config: Fields, vision: Fields, *, default: int) -> int:
    """Return the number of layers up to the last one whose output is used (vLLM 0.32, `_get_num_hidden_layers` in llava.py)."""
    whole, used = vision.count("num_hidden_layers"), config.values.get("vision_feature_layer")
    chosen = used if isinstance(used, list) else [default if used is None else used]
    depths = [depth + whole + 1 if depth < 0 else depth for depth in chosen if isinstance(depth, int)]
    if not depths or not 0 < max(depths) <= whole:
        config.problems.append(f"vision_feature_layer is {used!r:.60}; the tower has {whole} layers")
        return whole
    return max(depths)
