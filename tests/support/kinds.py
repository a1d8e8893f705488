"""Models of every kind of cache, by what their layers keep; weights are left out."""

from collections.abc import Callable, Sequence

from kvgate.budget.model.matrix import Units
from kvgate.budget.model.shape import (
    CompressedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    LayerShape,
    Mixer,
    ModelShape,
    RecurrentState,
    SharedCache,
)
from support.builders import new_model_shape


def shape_of(layers: Sequence[Mixer | tuple[Mixer, ...]], **overrides: object) -> ModelShape:
    """One layer for every mixer, or for several; equal layers are one object, as a reader makes them."""
    known: dict[tuple[Mixer, ...], LayerShape] = {}
    mixers = [layer if isinstance(layer, tuple) else (layer,) for layer in layers]
    shapes = tuple(known.setdefault(layer, LayerShape(mixers=layer)) for layer in mixers)
    return new_model_shape(**{"layers": shapes, "max_model_len": 262_144, **overrides})


def full(num_kv_heads: int = 8, head_dim: int = 128, **more: int | bool) -> FullAttention:
    return FullAttention(num_heads=32, num_kv_heads=num_kv_heads, head_dim=head_dim, **more)  # type: ignore[arg-type]


def latent(**more: int | bool) -> LatentAttention:
    """The widths of DeepSeek-V3."""
    widths = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    return LatentAttention(num_heads=32, **widths, **more)  # type: ignore[arg-type]


def compressed(ratio: int) -> CompressedAttention:
    return CompressedAttention(num_heads=64, head_dim=512, sliding_window=128, ratio=ratio, index_head_dim=128)


def gdn(key_heads: int, value_heads: int, state_dtype: str | None = "float32") -> RecurrentState:
    """Heads of 128, four taps."""
    keys = Units(count=key_heads, width=128)
    conv = (keys, keys, Units(count=value_heads, width=128))
    state = Units(count=value_heads, width=128 * 128)
    return RecurrentState(kind="GDN", conv=conv, conv_taps=3, state=state, state_dtype=state_dtype)


def mamba2(heads: int, head_dim: int, groups: int, state: int, dtype: str | None = None) -> RecurrentState:
    group = Units(count=groups, width=state)
    return RecurrentState(
        kind="Mamba2", conv=(Units(count=heads, width=head_dim), group, group), conv_taps=3,
        state=Units(count=heads, width=head_dim * state), state_dtype=dtype, keeps_checkpoint=True,
    )  # fmt: skip


def mamba1(inner: int, state: int) -> RecurrentState:
    return RecurrentState(kind="Mamba1", conv=(Units(count=inner),), conv_taps=3, state=Units(count=inner, width=state))


def kda(heads: int) -> RecurrentState:
    return RecurrentState(
        kind="KDA", conv=(Units(count=heads, width=3 * 128),), conv_taps=3, state=Units(count=heads, width=128 * 128),
        state_dtype="float32", fixed_state_dtype=True,
    )  # fmt: skip


def short_conv(width: int) -> RecurrentState:
    return RecurrentState(kind="short convolution", conv=(Units(count=width),), conv_taps=2)


def gemma_3_27b() -> ModelShape:
    window = full(16, 128, sliding_window=1024)
    return shape_of([full(16, 128) if i % 6 == 5 else window for i in range(62)])


def gemma_4_31b() -> ModelShape:
    window = full(16, 256, sliding_window=1024, sees_images_both_ways=True)
    return shape_of(([window] * 5 + [full(4, 512, sees_images_both_ways=True)]) * 10)


def gemma_4_e4b() -> ModelShape:
    kept: list[Mixer] = ([full(2, 256, sliding_window=512)] * 5 + [full(2, 512)]) * 4
    return shape_of([*kept, *[SharedCache(num_heads=8, target=22)] * 18])


def gpt_oss_120b() -> ModelShape:
    return shape_of([full(8, 64, sliding_window=128, has_sinks=True), full(8, 64, has_sinks=True)] * 18)


def mistral_7b() -> ModelShape:
    return shape_of([full(sliding_window=4096)] * 32)


def mimo_v2_flash() -> ModelShape:
    window = full(8, 192, v_head_dim=128, sliding_window=128)
    return shape_of(
        ([full(4, 192, v_head_dim=128)] + [window] * 5) * 6 + [full(4, 192, v_head_dim=128)] * 3 + [window] * 9
    )


def llama_4_scout() -> ModelShape:
    return shape_of(([full(chunk_size=8192)] * 3 + [full()]) * 12)


def deepseek_v3() -> ModelShape:
    return shape_of([latent()] * 61)


def deepseek_v32() -> ModelShape:
    return shape_of([latent(is_sparse=True, index_head_dim=128)] * 61)


def deepseek_v4_flash() -> ModelShape:
    return shape_of([compressed(0), compressed(0), *[compressed(4), compressed(128)] * 20, compressed(4)])


def minimax_m3() -> ModelShape:
    return shape_of([full(4)] * 3 + [full(4, index_head_dim=128)] * 57)


def qwen_35_27b() -> ModelShape:
    return shape_of(([gdn(16, 48)] * 3 + [full(4, 256)]) * 16)


def nemotron_3_nano() -> ModelShape:
    state = mamba2(64, 64, 8, 128, "float32")
    blocks: list[tuple[Mixer, ...]] = [(state,), (), (state,), (), (state,), (), (state,), (), (full(2),), ()] * 5
    return shape_of([*blocks, (state,), (state,), (state,), (full(2),)])


def falcon_h1() -> ModelShape:
    return shape_of([(full(2), mamba2(24, 128, 1, 256))] * 44)


def jamba() -> ModelShape:
    return shape_of(([mamba1(8192, 16)] * 4 + [full()] + [mamba1(8192, 16)] * 3) * 4)


def kimi_linear() -> ModelShape:
    return shape_of(([kda(32)] * 3 + [latent()]) * 6 + [kda(32), kda(32), latent()])


def lfm2() -> ModelShape:
    return shape_of([short_conv(2048)] * 10 + [full(8, 64)] * 6)


def whisper() -> ModelShape:
    cross = CrossAttention(num_heads=20, num_kv_heads=20, head_dim=64)
    return shape_of([(full(20, 64), cross)] * 32, dtype="float16")


def pure_mamba() -> ModelShape:
    return shape_of([mamba1(5120, 16)] * 64)


def encoder_only() -> ModelShape:
    return shape_of([()] * 12)


KINDS: tuple[Callable[[], ModelShape], ...] = (
    gemma_3_27b, gemma_4_31b, gemma_4_e4b, gpt_oss_120b, mistral_7b, mimo_v2_flash, llama_4_scout, deepseek_v3,
    deepseek_v32, deepseek_v4_flash, minimax_m3, qwen_35_27b, nemotron_3_nano, falcon_h1, jamba, kimi_linear, lfm2, whisper,
    pure_mamba, encoder_only,
)  # fmt: skip
"""One of every kind of cache."""
