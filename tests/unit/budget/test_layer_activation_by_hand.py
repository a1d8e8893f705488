"""The widest moment of a layer, worked out by hand: ten tokens, a hidden size of 100, two bytes for an element."""

from typing import Any

import pytest

from kvgate.budget.gpu.layer_activation import (
    EncoderProfile,
    encoder_profile,
    layer_bytes,
    loaded_buffer_bytes,
    padded_heads,
    unpacked_bytes,
    workspace_bytes,
)
from kvgate.budget.ground import fitted
from kvgate.budget.ground.units import GIB, MIB
from kvgate.budget.model.matrix import Cut, Matrix, Units, WeightFormat
from kvgate.budget.model.shape import (
    CompressedAttention,
    DenseMlp,
    Encoder,
    FullAttention,
    LatentAttention,
    LayerShape,
    MediaItem,
    Mixer,
    Mlp,
    ModelShape,
    RecurrentState,
    SparseMlp,
    TowerBlock,
)
from support.builders import catalogue_accelerator, new_accelerator, new_model_shape, new_run
from support.tables import table

AMPERE = new_accelerator(compute_capability=(8, 0))
AMD = new_accelerator(vendor="amd", compute_capability=None)
STREAM = 10 * 100 * 2
"""One hidden state of every token; a layer has four alive, and five where ranks sum over others."""


def shape_of(mixer: Mixer | None = None, *mlps: Mlp, **more: Any) -> ModelShape:
    attention = mixer or FullAttention(num_heads=4, num_kv_heads=4, head_dim=8)
    return new_model_shape(hidden_size=100, layers=(LayerShape(mixers=(attention,), mlps=mlps),), **more)


def stored(format_name: Any, method: str = "compressed-tensors") -> WeightFormat:
    return WeightFormat(method=method, format=format_name)


@table(
    ("mlp", "quantization", "tensor", "expected"),
    [
        (DenseMlp(intermediate_size=300), None, 1, 4 * STREAM + 10 * 2 * 900),
        (DenseMlp(intermediate_size=300, gated=False), None, 1, 4 * STREAM + 10 * 2 * 600),
        (DenseMlp(intermediate_size=300), None, 2, 5 * STREAM + 10 * 2 * 450),
        (DenseMlp(intermediate_size=300), stored("int8-channel"), 1, 4 * STREAM + 10 * (2 * 900 + 300)),
        (DenseMlp(intermediate_size=300), stored("int8-channel"), 2, 5 * STREAM + 10 * (2 * 450 + 150)),
        (DenseMlp(intermediate_size=300), stored("fp8-channel"), 1, 4 * STREAM + 10 * 2 * 900),
        (DenseMlp(intermediate_size=300), stored("as-stored", "gguf"), 1, 4 * STREAM + 10 * 2 * 1200),
        (DenseMlp(intermediate_size=300, gated=False), stored("as-stored", "gguf"), 1, 4 * STREAM + 10 * 2 * 600),
    ],
)
def test_gate_up_and_their_product_are_alive_beside_the_residual_streams(
    mlp: DenseMlp, quantization: WeightFormat | None, tensor: int, expected: int
) -> None:
    assert layer_bytes(new_run(shape=shape_of(None, mlp, quantization=quantization), tensor=tensor)) == expected


def test_blocks_beside_each_other_add_up_and_layers_do_not() -> None:
    """Gemma-4-26B-A4B has a dense block beside its experts."""
    dense, sparse = (
        DenseMlp(intermediate_size=300),
        SparseMlp(num_experts=8, num_experts_per_token=2, intermediate_size=10, shared_intermediate_size=50),
    )
    assert layer_bytes(new_run(shape=shape_of(None, dense, dense))) == 4 * STREAM + 2 * 10 * 2 * 900
    assert layer_bytes(new_run(shape=shape_of(None, dense, sparse))) == 4 * STREAM + 10 * 2 * (900 + 150)
    two = (LayerShape(mlps=(dense,)), LayerShape(mlps=(sparse,)))
    assert layer_bytes(new_run(shape=new_model_shape(hidden_size=100, layers=two))) == 4 * STREAM + 10 * 2 * 900
    assert layer_bytes(new_run(shape=new_model_shape(hidden_size=100, layers=()))) == 0


def experts(intermediate_size: int, **more: Any) -> SparseMlp:
    return SparseMlp(num_experts=8, num_experts_per_token=2, intermediate_size=intermediate_size, **more)


@table(
    ("intermediate_size", "settings", "elements"),
    [
        # both products of two experts for each of ten tokens: gate and up are 2 I wide, and a token is 100
        (300, {}, 20 * (300 + 600)),
        (60, {}, 20 * (100 + 120)),
        (40, {}, 20 * (100 + 100)),
        (300, {"tensor": 2}, 20 * (150 + 300)),
        (300, {"data": 2}, 2 * 20 * (150 + 300)),
        (300, {"tensor": 2, "expert": True}, 20 * (300 + 600)),
        (60, {"moe_backend": "cutlass"}, 20 * (60 + 120)),
        (40, {"moe_backend": "cutlass"}, 20 * (40 + 100)),
    ],
)
def test_experts_have_a_workspace_for_both_products(
    intermediate_size: int, settings: dict[str, Any], elements: int
) -> None:
    """`TritonExperts.workspace_shapes`: (tokens × k, max(I, H)) and (tokens × k, max(2 I, H)); CUTLASS takes I for the first."""
    shape = shape_of(None, experts(intermediate_size))
    assert workspace_bytes(new_run(shape=shape, **settings)) == 2 * elements


@pytest.mark.parametrize(
    ("format_name", "backend", "first_width"),
    [
        ("nvfp4", "cutlass", 60),
        ("fp8-block", "cutlass", 100),
        ("nvfp4", "auto", 100),
        ("nvfp4", "flashinfer_cutlass", 100),
    ],
)
def test_only_4_bit_experts_take_the_narrow_workspace_of_cutlass(
    format_name: str, backend: str, first_width: int
) -> None:
    shape = shape_of(None, experts(60), quantization=stored(format_name))
    assert workspace_bytes(new_run(shape=shape, moe_backend=backend)) == 2 * 20 * (first_width + 120)


def test_the_experts_of_nemotron_work_in_a_width_of_their_own() -> None:
    shape = shape_of(None, experts(60, hidden_size=200))
    assert workspace_bytes(new_run(shape=shape)) == 2 * 20 * (200 + 200)
    cutlass = new_run(shape=shape, moe_backend="cutlass")
    assert layer_bytes(cutlass) == 4 * STREAM + 2 * 3 * 20 * 200  # reordered inputs, outputs and weighted outputs


@pytest.mark.parametrize(
    ("version", "accelerator", "has_workspace"),
    [
        ("0.11.0", None, True),
        ("0.12.0", None, False),
        ("0.12.0", catalogue_accelerator("B200-SXM-180GB"), False),
        ("0.12.0", AMPERE, True),
        ("0.12.0", catalogue_accelerator("RTX-5090-32GB"), True),
        ("0.33.0", None, False),
        ("0.33.0", AMPERE, True),
    ],
)
def test_the_kernels_of_gpt_oss_on_hopper_and_blackwell_need_no_workspace(
    version: str, accelerator: Any, *, has_workspace: bool
) -> None:
    """`vllm.third_party.triton_kernels` comes with 0.12; up to 0.12 the workspace lies inside the layer, and then outlives it."""
    shape = shape_of(None, experts(300), quantization=stored("mxfp4", "mxfp4"))
    run = new_run(shape=shape, version=version, **({"accelerator": accelerator} if accelerator else {}))
    assert layer_bytes(run) + workspace_bytes(run) == 4 * STREAM + (2 * 20 * 900 if has_workspace else 0)


@pytest.mark.parametrize(
    ("version", "tokens", "computed"),
    [
        ("0.11.0", 32_767, 32_767), ("0.11.0", 40_000, 32_768), ("0.12.0", 40_000, 16_384), ("0.17.0", 40_000, 16_384),
        ("0.18.0", 40_000, 40_000),
    ],
)  # fmt: skip
def test_experts_compute_in_chunks_up_to_0_17(version: str, tokens: int, computed: int) -> None:
    """VLLM_FUSED_MOE_CHUNK_SIZE: 32,768 up to 0.11, 16,384 from 0.12 to 0.17, none since."""
    run = new_run(shape=shape_of(None, experts(300)), version=version, max_num_batched_tokens=tokens)
    assert layer_bytes(run) + workspace_bytes(run) == 4 * tokens * 200 + 2 * computed * 2 * 900


@pytest.mark.parametrize(("version", "inside"), [("0.12.0", True), ("0.13.0", False)])
def test_the_workspace_of_experts_outlives_the_run_since_0_13(version: str, *, inside: bool) -> None:
    """`WorkspaceManager`, absent in 0.12.0. Inside the run, the shared expert and the others take turns."""
    run = new_run(shape=shape_of(None, experts(300, shared_intermediate_size=100)), version=version)
    assert layer_bytes(run) == 4 * STREAM + (2 * 20 * 900 if inside else 2 * 10 * 300)
    assert workspace_bytes(run) == (0 if inside else 2 * 20 * 900)


def test_data_parallel_ranks_hold_the_gathered_tokens_and_outputs() -> None:
    run = new_run(shape=shape_of(None, experts(10)), data=3, expert=True)
    assert layer_bytes(run) == 4 * STREAM + 2 * (2 * 30 * 100)
    alone = new_run(shape=shape_of(None, experts(10)), expert=True)
    assert layer_bytes(alone) == 4 * STREAM


def test_a_recurrent_state_has_three_copies_of_its_channels() -> None:
    mixer = RecurrentState(kind="GDN", conv=(Units(count=4, width=16), Units(count=1, width=8)), conv_taps=3)
    assert layer_bytes(new_run(shape=shape_of(mixer))) == 4 * STREAM + 3 * 20 * (64 + 8)
    assert layer_bytes(new_run(shape=shape_of(mixer), tensor=2)) == 5 * STREAM + 3 * 20 * (32 + 8)


def latent(**more: Any) -> LatentAttention:
    """A query of 12, an output of 6 and a cached vector of 16 elements."""
    return LatentAttention(num_heads=4, kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6, **more)


@table(
    ("settings", "heads", "context"),
    [
        ({}, 4, 512),  # four blocks of 64 for each of two requests
        ({"accelerator": AMPERE}, 4, 128),  # blocks of 16
        ({"accelerator": catalogue_accelerator("B200-SXM-180GB")}, 4, 512),
        ({"accelerator": catalogue_accelerator("RTX-5090-32GB")}, 4, 128),
        ({"max_model_len": 63}, 4, 512),
        ({"max_model_len": 100}, 4, 800),  # eight lengths
        ({"max_model_len": 10_000}, 4, 65_536),
        ({"max_num_seqs": 2000}, 4, 128_000),  # one block each at least
        ({"max_num_seqs": 512}, 4, 65_536),
        ({"tensor": 2}, 2, 512),
        ({"tensor": 8}, 1, 512),
    ],
)
def test_mla_up_projects_a_chunk_of_context(settings: dict[str, Any], heads: int, context: int) -> None:
    """`determine_chunked_prefill_workspace_size`: min(max(8 × length, 4 × S × block), 64 Ki), and S × block at least."""
    streams = (5 if "tensor" in settings else 4) * STREAM
    expected = streams + 20 * (heads * (12 + 6) + 16) + context * heads * (8 + 6) * 2
    assert layer_bytes(new_run(shape=shape_of(latent()), **settings)) == expected


@pytest.mark.parametrize(("version", "context"), [("0.7.3", 128 * 4), ("0.8.5", 0), ("0.10.2", 0), ("0.11.0", 128 * 4)])
def test_v1_left_the_context_out_of_its_profile_until_0_11(version: str, context: int) -> None:
    run = new_run(shape=shape_of(latent()), version=version)
    assert layer_bytes(run) == 4 * STREAM + 20 * (4 * 18 + 16) + context * 4 * 14 * 2


@pytest.mark.parametrize(("version", "has_logits"), [("0.18.0", False), ("0.19.0", True)])
def test_the_indexer_allocates_512_mib_of_logits_since_0_19(version: str, *, has_logits: bool) -> None:
    sparse, plain = (new_run(shape=shape_of(latent(is_sparse=flag)), version=version) for flag in (True, False))
    context = 512 * 4 * 14 * 2
    assert layer_bytes(sparse) - layer_bytes(plain) == (512 * MIB - context if has_logits else 0)
    long = new_run(
        shape=shape_of(latent(is_sparse=True)), version=version, max_num_seqs=100_000
    )  # more than the logits
    assert layer_bytes(long) == 4 * STREAM + 20 * 88 + 6_400_000 * 4 * 14 * 2


def test_the_indexer_gathers_forty_contexts() -> None:
    """`get_max_prefill_buffer_size`: 40 × max_model_len, each of 8-bit elements and a scale of four bytes."""
    own = shape_of(latent(is_sparse=True, index_head_dim=128))
    assert workspace_bytes(new_run(shape=own, max_model_len=1000)) == 40 * 1000 * 132
    shared = shape_of(latent(is_sparse=True))
    assert workspace_bytes(new_run(shape=shared, max_model_len=1000)) == 0
    assert workspace_bytes(new_run(shape=shape_of(latent(index_head_dim=128)), max_model_len=1000)) == 0


def compressed(num_heads: int = 48, ratio: int = 4, **more: Any) -> CompressedAttention:
    return CompressedAttention(
        num_heads=num_heads, head_dim=8, sliding_window=128, ratio=ratio, index_head_dim=128, **more
    )


@pytest.mark.parametrize(
    ("heads", "tensor", "accelerator", "padded"),
    [
        (48, 1, None, 64), (64, 1, None, 64), (65, 1, None, 128), (128, 1, None, 128), (128, 2, None, 64), (48, 1, AMD, 48),
        (128, 2, AMD, 64),
    ],
)  # fmt: skip
def test_deepseek_v4_has_kernels_for_64_and_128_heads(heads: int, tensor: int, accelerator: Any, padded: int) -> None:
    run = new_run(tensor=tensor, **({"accelerator": accelerator} if accelerator else {}))
    assert padded_heads(compressed(heads), run) == padded


@pytest.mark.parametrize(
    ("version", "copies", "pool"), [("0.26.0", 2, 0), ("0.27.0", 1, 64), ("0.29.0", 1, 64), ("0.30.0", 2, 0)]
)
def test_deepseek_v4_pools_its_queries_from_0_27_to_0_29(version: str, copies: int, pool: int) -> None:
    """`DeepseekV4EagerScratchPool`: present in 0.27.1, absent in 0.26 and 0.30."""
    run = new_run(shape=shape_of(compressed(residual_streams=4)), version=version)
    assert layer_bytes(run) == 4 * STREAM + 20 * ((48 + copies * 64) * 8 + 3 * 100)
    assert loaded_buffer_bytes(run) == 20 * pool * 8


def test_one_pool_serves_all_layers_of_deepseek_v4() -> None:
    layers = tuple(LayerShape(mixers=(compressed(heads),)) for heads in (48, 65))
    run = new_run(shape=new_model_shape(hidden_size=100, layers=layers), version="0.27.1")
    assert loaded_buffer_bytes(run) == 20 * 128 * 8
    assert loaded_buffer_bytes(new_run(shape=shape_of(), version="0.27.1")) == 0


@pytest.mark.parametrize(
    ("ratio", "index_topk", "length", "states", "picked"),
    [
        (0, 512, 4000, 0, 128),  # a window alone
        (4, 512, 4000, 1000, 640),
        (4, 512, 4001, 1001, 640),
        (128, 0, 4000, 32, 128),
        (4, 1, 4000, 1000, 256),  # 129 picked tokens are padded
    ],
)
def test_deepseek_v4_gathers_four_requests_and_what_it_picked(
    ratio: int, index_topk: int, length: int, states: int, picked: int
) -> None:
    mixer = compressed(ratio=ratio, index_topk=index_topk)
    found = workspace_bytes(new_run(shape=shape_of(mixer), max_model_len=length))
    assert found == 4 * (states + 128 + 10) * 8 * 2 + 4 * 10 * picked


def test_the_largest_request_decides_the_workspace() -> None:
    layers = (
        LayerShape(mixers=(compressed(),)),
        LayerShape(mixers=(latent(is_sparse=True, index_head_dim=128),)),
        LayerShape(mlps=(experts(300),)),
    )
    shape = new_model_shape(hidden_size=100, layers=layers)
    assert workspace_bytes(new_run(shape=shape, max_model_len=1000)) == 40 * 1000 * 132
    assert workspace_bytes(new_run(shape=shape, max_model_len=1)) == 2 * 20 * 900


@pytest.mark.parametrize(("method", "tensor", "expected"), [("gguf", 1, 2 * 600), ("gguf", 2, 2 * 300), ("awq", 1, 0)])
def test_a_gguf_file_is_unpacked_one_matrix_at_a_time(method: str, tensor: int, expected: int) -> None:
    """The largest of the matrices that are fused; experts are multiplied as they are."""
    blocks = stored("as-stored", method)
    three = Matrix(name="qkv_proj", rows=(Units(count=6), Units(count=2), Units(count=2)), columns=100, format=blocks)
    small = Matrix(name="o_proj", rows=(Units(count=5),), columns=100, format=blocks)
    plain = Matrix(name="gate", rows=(Units(count=50),), columns=100)
    sparse = Matrix(name="experts", rows=(Units(count=70),), columns=100, format=blocks, experts=8)
    layer = LayerShape(matrices=(small, three, plain, sparse))
    shape = new_model_shape(hidden_size=100, layers=(layer,), quantization=blocks)
    assert unpacked_bytes(new_run(shape=shape, tensor=tensor)) == expected
    assert unpacked_bytes(new_run(shape=new_model_shape(layers=(LayerShape(),), quantization=blocks))) == 0
    assert unpacked_bytes(new_run()) == 0


def tower(**more: Any) -> Encoder:
    """Blocks of 2 × 40 + 4 × 10 = 120 elements for a patch, of which four make an embedding; a patch has 12 elements."""
    patch_embed = Matrix(name="patch_embed", rows=(Units(count=10),), columns=12)
    cut = Matrix(name="fc1", rows=(Units(count=40),), columns=10, cut=more.pop("cut", Cut.ROWS))
    values: dict[str, Any] = {
        "matrices": ((patch_embed, 1), (cut, 2)), "hidden_size": 10, "intermediate_size": 40, "patches_per_token": 4,
        "items": (MediaItem(modality="image", tokens=5),),
    }  # fmt: skip
    return Encoder(**{**values, **more})


def profile(version: str = "0.19.0", *encoders: Encoder, **settings: Any) -> EncoderProfile:
    shape = new_model_shape(hidden_size=100, encoders=encoders or (tower(),))
    return encoder_profile(
        new_run(shape=shape, version=version, **{"modalities": ("image",), "max_num_batched_tokens": 20, **settings})
    )


PATCHES = 4 * 5 * 4
"""Patches of four images, which 20 tokens hold."""
FEW = {"max_num_seqs": 8}


def peak_of(elements: int) -> tuple[int, int]:
    """(peak, its lowest) of a peak of so many elements."""
    return 2 * elements, 2 * elements + fitted.UNREAD_TOWER_ERROR.of(2 * elements).low


def test_a_tower_holds_its_inputs_and_its_widest_block() -> None:
    found = profile(**FEW)
    expected, least = peak_of(PATCHES * (12 + 120))
    assert (found.item_tokens, found.peak_bytes, found.least_bytes) == (5, expected, least)
    assert found.kept_bytes == 2 * (PATCHES * 12 + 4 * 5 * 100)


def test_ranks_cut_the_intermediate_size_alone_and_the_high_end_divides_nothing() -> None:
    found = profile("0.19.0", tower(block=TowerBlock()), tensor=2, **FEW)
    assert found.peak_bytes == 2 * PATCHES * (12 + 80)
    assert found.worst_bytes == 2 * PATCHES * (12 + 120)
    whole = profile("0.19.0", tower(cut=Cut.WHOLE), tensor=2, **FEW)
    assert whole.peak_bytes == 2 * PATCHES * (12 + 120)


def test_embeddings_of_inner_layers_stand_beside_the_tower() -> None:
    """As in Qwen3-VL: four of five parts of 100 are there while the last block runs."""
    found = profile("0.19.0", tower(embedding_parts=5), **FEW)
    assert found.peak_bytes == 2 * (PATCHES * (12 + 120) + 20 * 4 * 100)
    assert found.kept_bytes == 2 * (PATCHES * 12 + 20 * 5 * 100)


@table(
    ("version", "tokens", "settings", "images"),
    [
        ("0.19.0", 20, FEW, 4), ("0.19.0", 24, FEW, 4), ("0.19.0", 3, FEW, 1),
        ("0.9.2", 24, FEW, 5), ("0.9.2", 20, FEW, 4), ("0.10.0", 24, FEW, 4),
        ("0.19.0", 2000, {"max_num_seqs": 2, "items_of_prompt": (("image", 3),)}, 6),
        ("0.19.0", 2000, {"max_num_seqs": 2, "items_of_prompt": (("image", 0), ("video", 9))}, 1),
        ("0.19.0", 20_000, {"max_num_seqs": 2}, 2 * 999),
        ("0.7.3", 20, FEW, 4), ("0.7.3", 20, {"max_num_seqs": 3}, 3), ("0.7.3", 4, FEW, 1),
        ("0.7.3", 20, {"max_num_seqs": 8, "items_of_prompt": (("image", 3),)}, 3),
        ("0.7.3", 30, {"max_num_seqs": 8, "items_of_prompt": (("image", 3),)}, 6),
    ],
)  # fmt: skip
def test_so_many_images_are_encoded_at_once(version: str, tokens: int, settings: dict[str, Any], images: int) -> None:
    """`MultiModalBudget` (V1), whole prompts (V0), the last image begun in 0.8 and 0.9."""
    found = profile(version, max_num_batched_tokens=tokens, **settings)
    assert found.peak_bytes == 2 * images * 5 * 4 * (12 + 120)


@pytest.mark.parametrize(
    ("version", "tokens", "kept"),
    [("0.10.2", 20, 5), ("0.11.0", 20, 20), ("0.11.0", 3, 5), ("0.12.0", 20, 5), ("0.13.0", 20, 5)],
)
def test_0_11_keeps_the_budget_for_every_image(version: str, tokens: int, kept: int) -> None:
    images = max(1, tokens // 5)
    found = profile(version, max_num_batched_tokens=tokens, **FEW)
    assert found.kept_bytes == 2 * images * (5 * 4 * 12 + kept * 100)


@pytest.mark.parametrize(
    ("version", "counted", "kept"), [("0.10.2", 5, 5), ("0.11.0", 8, 20), ("0.12.0", 8, 8), ("0.13.0", 5, 5)]
)
def test_0_11_and_0_12_count_the_timestamps_of_a_video(version: str, counted: int, kept: int) -> None:
    video = tower(items=(MediaItem(modality="video", tokens=5, reckoned_tokens=8),))
    found = profile(version, video, modalities=("video",), **FEW)
    assert found.item_tokens == counted
    assert found.kept_bytes == 2 * (20 // counted) * (5 * 4 * 12 + kept * 100)
    error = fitted.UNREAD_TOWER_ERROR.of(found.peak_bytes)
    assert found.least_bytes == found.peak_bytes + error.low


@pytest.mark.parametrize(("length", "tokens"), [(1, 8), (15, 8), (16, 16), (23, 16), (40, 40), (4000, 40)])
def test_a_video_grows_with_the_context_in_steps(length: int, tokens: int) -> None:
    video = tower(items=(MediaItem(modality="video", tokens=40, step_tokens=8),))
    found = profile("0.19.0", video, modalities=("video",), max_model_len=length, max_num_batched_tokens=1, **FEW)
    assert found.item_tokens == tokens


def test_the_modality_with_the_largest_item_is_profiled() -> None:
    both = tower(items=(MediaItem(modality="image", tokens=5), MediaItem(modality="video", tokens=10)))
    assert profile("0.19.0", both, modalities=("image", "video"), **FEW).item_tokens == 10
    assert profile("0.19.0", both, modalities=("image",), **FEW).item_tokens == 5
    assert profile("0.19.0", both, modalities=("audio",), **FEW) == EncoderProfile()
    assert profile("0.19.0", both, modalities=(), **FEW) == EncoderProfile()
    assert profile("0.19.0", both, stage=(1, 32), **FEW) == EncoderProfile()


@pytest.mark.parametrize(
    ("version", "memory_gib", "patches"),
    [
        ("0.21.0", 79, 6),  # one picture
        ("0.22.0", 79, 40),  # a tenth of the memory holds 40
        ("0.22.0", 1, 6),
    ],
)
def test_gemma_4_encodes_in_chunks(version: str, memory_gib: int, patches: int) -> None:
    """`_encoder_chunk` since 0.22: a tenth of the memory over the bytes of a patch; what is finished lies beside the chunk."""
    each = 79 * GIB // 10 // 40
    found = profile(
        version, tower(chunk_patch_bytes=each, max_picture_patches=6), accelerator=new_accelerator(memory_gib=memory_gib),
        **FEW,
    )  # fmt: skip
    assert found.peak_bytes == 2 * (PATCHES * (12 + 10) + max(patches * 120, 20 * 100))


@table(
    ("block", "version", "settings", "elements"),
    [
        ({}, "0.20.0", {}, 2 * 40 + 40),
        ({"feed_forward": "quick_gelu", "hidden": 3}, "0.20.0", {}, 3 * 40 + 30),
        ({"feed_forward": "quick_gelu", "hidden": 3}, "0.20.0", {"enforce_eager": True}, 2 * 40 + 30),
        ({"feed_forward": "gated"}, "0.14.0", {}, 4 * 40 + 40),
        ({"feed_forward": "gated"}, "0.14.0", {"enforce_eager": True}, 3 * 40 + 40),
        ({"feed_forward": "gated"}, "0.17.0", {}, 3 * 40 + 40),
        ({"feed_forward": "two_gates"}, "0.14.0", {}, 3 * 40 + 40),
        ({"attention_cut": 8, "attention_whole": 7}, "0.20.0", {}, 150),
        ({"attention_cut": 8, "attention_whole": 7, "gathered": 3}, "0.20.0", {"tensor": 2}, 40 + 100),
        ({"feed_forward": "two_gates", "copies_inputs": True}, "0.20.0", {}, 12 + 3 * 40 + 40),
        ({"has_mask": True}, "0.11.0", {}, 120), ({"has_mask": True}, "0.14.0", {}, 120 + PATCHES),
        ({"has_mask": True}, "0.30.0", {}, 120),
    ],
)  # fmt: skip
def test_the_widest_moment_of_a_block_counts(
    block: dict[str, Any], version: str, settings: dict[str, Any], elements: int
) -> None:
    found = profile(version, tower(block=TowerBlock(**block)), **FEW, **settings)
    assert found.peak_bytes == 2 * PATCHES * (12 + elements)
    error = fitted.TOWER_ERROR if version != "0.11.0" else fitted.UNREAD_TOWER_ERROR
    assert found.least_bytes == found.peak_bytes + error.of(found.peak_bytes).low


def test_a_model_with_towers_allocates_the_inputs_of_its_layers_while_it_loads() -> None:
    """Qwen3-VL: one hidden state for each layer that sees the picture; on the first stage alone."""
    shape = new_model_shape(hidden_size=100, encoders=(tower(embedding_parts=4), tower()))
    assert loaded_buffer_bytes(new_run(shape=shape)) == 3 * STREAM
    assert loaded_buffer_bytes(new_run(shape=shape, stage=(16, 32))) == 0
    gemma = new_model_shape(
        hidden_size=100, encoders=(tower(),), everywhere=(Matrix(name="embed_tokens_per_layer", rows=(), columns=64),)
    )
    assert loaded_buffer_bytes(new_run(shape=gemma)) == 64 * 10 * 2
    assert layer_bytes(new_run(shape=gemma)) == 4 * STREAM + 64 * 10 * 2 + 10 * 2 * 3 * 14_336
