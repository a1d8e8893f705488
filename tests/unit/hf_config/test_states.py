"""Classes with recurrent states: which layer is what, what a layer keeps of a sequence, and what a config must say."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.model.shape import (
    DTYPE_BYTES,
    FullAttention,
    LatentAttention,
    LayerShape,
    ModelShape,
    RecurrentState,
    SparseMlp,
    UnmodelledLayer,
)
from kvgate.budget.model.weights import rank_weights
from kvgate.hf_config import ModelConfigError, read_config
from support.builders import catalogue_shape
from support.tables import table


def kinds(shape: ModelShape) -> Counter[str]:
    """Layers by what they mix with; a layer with two mixers counts for both, one without for "none"."""
    return Counter(mixer.kind for layer in shape.layers for mixer in layer.mixers) + Counter(
        "none" for layer in shape.layers if not layer.mixers
    )


def state_bytes(shape: ModelShape, tensor: int) -> int:
    """Bytes of the convolution's window and of the state on a rank, the former in the model dtype."""
    (mixer,) = (mixer for mixer in shape.mixers if isinstance(mixer, RecurrentState))
    element = DTYPE_BYTES[shape.dtype]
    window = mixer.conv_taps * sum(units.on_rank(tensor) for units in mixer.conv) * element
    state = mixer.state.on_rank(tensor) * DTYPE_BYTES[mixer.state_dtype or shape.dtype] if mixer.state else 0
    return window + state


@table(
    ("model", "expected"),
    [
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"GDN": 36, "full attention": 12}),
        ("Qwen/Qwen3.8-2.4T-A95B", {"GDN": 69, "full attention": 23}),
        ("Qwen/Qwen3.5-27B", {"GDN": 48, "full attention": 16}),
        ("moonshotai/Kimi-K3", {"KDA": 69, "MLA": 24}),
        ("ai21labs/AI21-Jamba-1.5-Mini", {"Mamba1": 28, "full attention": 4}),
        ("ibm-granite/granite-4.0-h-small", {"Mamba2": 36, "full attention": 4}),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"Mamba2": 23, "full attention": 6, "none": 23}),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", {"Mamba2": 48, "full attention": 12, "none": 48}),
        ("nvidia/Nemotron-H-56B-Base-8K", {"Mamba2": 54, "full attention": 10, "none": 54}),
        ("tiiuae/Falcon-H1-7B-Instruct", {"Mamba2": 44, "full attention": 44}),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", {"KDA": 20, "MLA": 7}),
        ("LiquidAI/LFM2-1.2B", {"short convolution": 10, "full attention": 6}),
        ("LiquidAI/LFM2.5-8B-A1B", {"short convolution": 18, "full attention": 6}),
        ("mistralai/Mamba-Codestral-7B-v0.1", {"Mamba2": 64}),
        ("state-spaces/mamba-2.8b-hf", {"Mamba1": 64}),
        ("MiniMaxAI/MiniMax-M1-80k", {"linear attention": 70, "full attention": 10}),
        ("inclusionAI/Ling-2.5-1T", {"linear attention": 70, "MLA": 10}),
    ],
)
def test_every_layer_has_its_kind(model: str, expected: dict[str, int]) -> None:
    assert kinds(catalogue_shape(model)) == expected


@table(
    ("model", "tensor", "expected"),
    [
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 1, 1_097_728),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 4, 274_432),
        ("Qwen/Qwen3.5-27B", 1, 3_207_168),
        ("Qwen/Qwen3.5-27B", 8, 400_896),
        ("moonshotai/Kimi-K3", 1, 6_512_640),
        ("ibm-granite/granite-4.0-h-small", 1, 2_147_840),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 1, 2_134_016),
        ("nvidia/Nemotron-H-56B-Base-8K", 1, 16_900_096),
        ("ai21labs/AI21-Jamba-1.5-Mini", 1, 311_296),
        ("tiiuae/Falcon-H1-7B-Instruct", 1, 1_594_368),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", 1, 2_170_880),
        ("LiquidAI/LFM2-1.2B", 1, 8_192),
    ],
)
def test_a_state_has_the_bytes_of_vllms_own_specs(model: str, tensor: int, expected: int) -> None:
    assert state_bytes(catalogue_shape(model), tensor) == expected


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("LiquidAI/LFM2.5-8B-A1B", 8_467_856_832),
        ("MiniMaxAI/MiniMax-M1-80k", 456_089_655_296),
        ("Qwen/Qwen3.8-2.4T-A95B", 2_419_804_697_984),
        ("nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16", 3_973_556_832),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 120_668_707_840),
        ("nvidia/Nemotron-H-56B-Base-8K", 56_324_350_464),
        ("tiiuae/Falcon-H1-34B-Instruct", 33_642_516_224),
    ],
)
def test_a_model_has_the_parameters_that_were_published(model: str, parameters: int) -> None:
    config = {key: value for key, value in catalogue.load_model(model).config.items() if key != "quantization_config"}
    shape = read_config(config, name=model)  # what is published counts no scales
    layers = sum(count * elements(layer) for layer, count in shape.distinct_layers)
    ends = shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2)
    assert layers + ends + shape.hidden_size == parameters


def elements(layer: LayerShape) -> int:
    rows = [(sum(units.elements for units in matrix.rows), matrix) for matrix in layer.matrices]
    return sum(max(1, matrix.experts) * count * (matrix.columns + matrix.bias) for count, matrix in rows)


def test_only_mamba2_keeps_checkpoints_of_prefixes() -> None:
    keeps = {
        mixer.kind: mixer.keeps_checkpoint
        for name in (NEXT, NANO, LFM2, KIMI, "ai21labs/Jamba-v0.1", "inclusionAI/Ling-2.5-1T")
        for mixer in catalogue_shape(name).mixers
        if isinstance(mixer, RecurrentState)
    }
    assert {kind for kind, kept in keeps.items() if kept} == {"Mamba2"}
    assert len(keeps) == 6


def test_kimi_k3_has_the_bytes_that_vllm_builds() -> None:
    """Latent experts in MXFP4, gates of full rank, attention over residuals, and the tower: 1560.86 GB on one rank."""
    shape = catalogue_shape("moonshotai/Kimi-K3")
    weights = rank_weights(shape, Parallelism(), (0, 93), unsplit_large_blocks=False, compute_capability=(9, 0))
    assert round(weights.parameter_bytes / 1e9, 2) == 1560.86
    assert all(mixer.keeps_checkpoint for mixer in shape.mixers if isinstance(mixer, RecurrentState))


def test_latent_experts_work_in_their_own_width() -> None:
    shape = catalogue_shape("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8")
    sparse = {mlp for layer in shape.layers for mlp in layer.mlps}
    assert sparse == {
        SparseMlp(
            num_experts=512, num_experts_per_token=22, intermediate_size=2688, shared_intermediate_size=5376,
            gated=False, hidden_size=1024,
        )
    }  # fmt: skip


def test_full_attention_of_a_gdn_model_has_its_gate_beside_the_queries() -> None:
    shape = catalogue_shape("Qwen/Qwen3-Next-80B-A3B-Instruct")
    full = next(layer for layer in shape.layers if isinstance(layer.mixers[0], FullAttention))
    (qkv,) = (matrix for matrix in full.matrices if matrix.name == "qkv_proj")
    assert [units.elements for units in qkv.rows] == [2 * 16 * 256, 2 * 256, 2 * 256]


@pytest.mark.parametrize("model", ["ai21labs/Jamba-v0.1", "moonshotai/Kimi-Linear-48B-A3B-Instruct"])
def test_attention_without_positions_needs_no_table_of_them(model: str) -> None:
    assert catalogue_shape(model).rotary == ()


def test_some_classes_cannot_be_cut_into_stages() -> None:
    assert not catalogue_shape("mistralai/Mamba-Codestral-7B-v0.1").supports_pipeline
    assert not catalogue_shape("MiniMaxAI/MiniMax-M1-80k").supports_pipeline
    assert catalogue_shape("state-spaces/mamba-2.8b-hf").supports_pipeline


# ---- what a config must say


def config(name: str, **overrides: Any) -> dict[str, Any]:
    """A published config with other values; `...` takes a key away."""
    entry = catalogue.find_model(name)
    assert entry is not None
    merged = {**entry.config, **overrides}
    return {key: value for key, value in merged.items() if value is not ...}


def problems(name: str, **overrides: Any) -> tuple[str, ...]:
    with pytest.raises(ModelConfigError) as error:
        read_config(config(name, **overrides))
    return error.value.problems


NEXT, NANO, LFM2 = (
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "LiquidAI/LFM2-1.2B",
)
GRANITE, KIMI = "ibm-granite/granite-4.0-h-small", "moonshotai/Kimi-Linear-48B-A3B-Instruct"


@pytest.mark.parametrize(
    ("model", "key", "value", "entries", "layers"),
    [
        (NEXT, "layer_types", ["linear_attention"] * 47, 47, 48),
        (GRANITE, "layer_types", ["mamba"] * 39, 39, 40),
        (LFM2, "layer_types", ["conv"], 1, 16),
        ("MiniMaxAI/MiniMax-M1-80k", "attn_type_list", [0, 1], 2, 80),
        (NANO, "hybrid_override_pattern", "ME" * 3, 6, 52),
    ],
)
def test_a_list_of_another_length_is_named(model: str, key: str, value: object, entries: int, layers: int) -> None:
    assert problems(model, **{key: value}) == (
        f"{key} has {entries} entries for {layers} layers; each layer needs one",
    )


@pytest.mark.parametrize(
    ("model", "overrides", "kind"),
    [
        (NEXT, {"layer_types": ["linear_attention", "holographic"] * 24}, "holographic layers"),
        (NANO, {"hybrid_override_pattern": "MQ" * 26}, "layers of kind Q"),
        (LFM2, {"layer_types": ["conv", "sliding_attention"] * 8}, "sliding attention layers"),
    ],
)
def test_a_kind_of_layer_that_nobody_knows_is_named(model: str, overrides: dict[str, Any], kind: str) -> None:
    shape = read_config(config(model, **overrides))
    assert shape.unmodelled_kinds == (kind,)
    assert any(isinstance(mixer, UnmodelledLayer) for mixer in shape.mixers)


@pytest.mark.parametrize(
    ("model", "key"),
    [
        (NEXT, "linear_num_value_heads"),
        (NEXT, "linear_conv_kernel_dim"),
        (NANO, "ssm_state_size"),
        (NANO, "mamba_num_heads"),
        (LFM2, "conv_L_cache"),
        (KIMI, "moe_intermediate_size"),
        ("inclusionAI/Ling-2.5-1T", "num_experts_per_tok"),
    ],
)
@pytest.mark.parametrize("value", [..., -1, "8", 2.5, [4]], ids=repr)
def test_a_dimension_that_is_missing_or_none_is_named(model: str, key: str, value: object) -> None:
    assert [problem.split()[0] for problem in problems(model, **{key: value})] == [key]


@pytest.mark.parametrize("value", [[3, [4]], ["3"], [None], [True], [3.0], [{"b": 1}]], ids=repr)
def test_a_list_of_layers_holds_their_numbers(value: list[object]) -> None:
    for model, key in (("LiquidAI/LFM2-1.2B", "full_attn_idxs"), ("Qwen/Qwen3-30B-A3B", "mlp_only_layers")):
        named = [problem.split()[0] for problem in problems(model, **{key: value, "layer_types": ...})]
        assert named == [key]


def test_kimis_full_layers_are_numbers() -> None:
    declared = config(KIMI)["linear_attn_config"] | {"full_attn_layers": [[1, 2]]}
    assert problems(KIMI, linear_attn_config=declared)[0].startswith("linear_attn_config.full_attn_layers has [1, 2]")


@pytest.mark.parametrize("value", [0, -1, True, "2", 1e308, float("inf"), float("nan")], ids=repr)
def test_a_width_is_not_multiplied_by_what_is_no_number(value: object) -> None:
    assert problems("LiquidAI/LFM2-1.2B", block_ffn_dim_multiplier=value)[0].startswith("block_ffn_dim_multiplier is ")


@pytest.mark.parametrize("value", [None, [], "KDA", {"head_dim": 128}], ids=repr)
def test_kimi_without_a_readable_attention_config_is_a_problem(value: object) -> None:
    assert any("linear_attn_config" in problem for problem in problems(KIMI, linear_attn_config=value))


def test_a_state_dtype_is_vllms_or_a_problem() -> None:
    assert state_dtypes(NANO, mamba_ssm_cache_dtype="bfloat16") == {"bfloat16"}
    assert state_dtypes(NANO, mamba_ssm_cache_dtype="auto") == {None}
    assert state_dtypes(NANO, mamba_ssm_cache_dtype=...) == {"float32"}
    assert state_dtypes(NEXT) == {None}
    assert state_dtypes(NEXT, mamba_ssm_dtype="float32") == {"float32"}
    assert "mamba_ssm_cache_dtype is 'int3'" in problems(NANO, mamba_ssm_cache_dtype="int3")[0]


def state_dtypes(model: str, **overrides: Any) -> set[str | None]:
    mixers = read_config(config(model, **overrides)).mixers
    return {mixer.state_dtype for mixer in mixers if isinstance(mixer, RecurrentState)}


def test_the_interval_stands_in_for_a_list_of_layers() -> None:
    listed = [index % 4 == 3 for index in range(48)]
    for overrides in ({}, {"full_attention_interval": ...}):
        layers = read_config(config(NEXT, **overrides)).layers
        assert [isinstance(layer.mixers[0], FullAttention) for layer in layers] == listed


def test_a_pattern_in_words_is_the_pattern_in_letters() -> None:
    words = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    pattern = config(NANO)["hybrid_override_pattern"]
    spelled = config(
        NANO,
        hybrid_override_pattern=...,
        num_hidden_layers=...,
        layers_block_type=[words[letter] for letter in pattern],
    )
    assert kinds(read_config(spelled)) == kinds(catalogue_shape(NANO))


def test_a_mixer_may_leave_its_width_to_the_class() -> None:
    shape = read_config(config(GRANITE, mamba_d_head="auto"))
    assert state_bytes(shape, 1) == state_bytes(catalogue_shape(GRANITE), 1)
    assert "mamba_d_head" in problems(GRANITE, mamba_d_head=-2)[0]


def test_kimi_counts_its_full_layers_from_one() -> None:
    layers = catalogue_shape(KIMI).layers
    assert [index + 1 for index, layer in enumerate(layers) if isinstance(layer.mixers[0], LatentAttention)] == [
        4, 8, 12, 16, 20, 24, 27,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parallelism", "elements_of_experts"),
    [
        (Parallelism(), 256 * 1024),
        (Parallelism(tensor=4), 256 * 256),
        (Parallelism(tensor=8), 256 * 256),
        (Parallelism(tensor=8, expert=True), 32 * 1024),
    ],
)
def test_kimis_experts_are_padded_to_256_where_they_would_be_narrower(
    parallelism: Parallelism, elements_of_experts: int
) -> None:
    shape = catalogue_shape(KIMI)
    layer = shape.layers[-1]
    bare = replace(layer, matrices=tuple(matrix for matrix in layer.matrices if matrix.experts))
    sizes = [
        rank_weights(replace(shape, layers=(part,) * 2), parallelism, (0, 2), unsplit_large_blocks=False)
        for part in (bare, replace(bare, matrices=()))
    ]
    assert sizes[0].parameter_bytes - sizes[1].parameter_bytes == 2 * elements_of_experts * 3 * 2304 * 2


@pytest.mark.parametrize(("capability", "wide"), [((8, 0), 2), ((8, 9), 2), ((9, 0), 1), ((12, 0), 2), (None, 1)])
def test_nemotrons_routers_are_float32_where_no_kernel_helps(capability: tuple[int, int] | None, wide: int) -> None:
    shape = catalogue_shape(NANO)
    weights = rank_weights(shape, Parallelism(), (0, 52), unsplit_large_blocks=False, compute_capability=capability)
    assert weights.parameter_bytes == 63_155_889_408 + (wide - 1) * 23 * 128 * 2688 * 2


# ---- layers that draft


def drafted_bytes(model: str) -> int:
    shape = catalogue_shape(model)
    without, with_drafts = (
        rank_weights(shape, Parallelism(), (0, len(shape.layers)), unsplit_large_blocks=False, with_drafts=drafts)
        for drafts in (False, True)
    )
    return with_drafts.parameter_bytes - without.parameter_bytes


@pytest.mark.parametrize(
    ("model", "mixers", "size_bytes"),
    [
        (NEXT, ["full attention"], 3_300_942_848),  # 79.7 billion parameters without it, 81.3 billion published
        ("Qwen/Qwen3.8-2.4T-A95B", ["full attention"], 52_756_055_040),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", ["full attention"], 5_884_651_528),
        (NANO, [], 0),
    ],
)
def test_draft_layers_are_read_and_stand_apart(model: str, mixers: list[str], size_bytes: int) -> None:
    drafts = catalogue_shape(model).draft_layers
    assert [mixer.kind for layer in drafts for mixer in layer.mixers] == mixers
    assert drafted_bytes(model) == size_bytes


def test_nemotron_drafts_with_the_layers_of_its_pattern() -> None:
    words = catalogue_shape("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16").draft_layers
    assert [[mixer.kind for mixer in layer.mixers] for layer in words] == [["full attention"], []]
    names = [[matrix.name for matrix in layer.matrices] for layer in words]
    assert "eh_proj" in names[0]
    assert "final_layernorm" in names[-1]


def test_drafts_have_the_formats_that_their_own_names_ask_for() -> None:
    """Qwen3.8 in FP8 leaves the shared expert and the fusion of its draft in bfloat16."""
    (draft,) = catalogue_shape("Qwen/Qwen3.8-2.4T-A95B-FP8").draft_layers
    formats = {matrix.name: matrix.format for matrix in draft.matrices}
    assert formats["experts"] is not None
    assert formats["shared_experts"] is None
    assert formats["fc"] is None


@pytest.mark.parametrize(
    ("model", "plain"),
    [
        (
            NEXT,
            {"A_log", "conv1d", "dt_bias", "layernorm", "linear_attn_norm", "qk_norm", "router", "shared_expert_gate"},
        ),
        (NANO, {"A", "D", "conv1d", "dt_bias", "mixer_norm", "norm", "router", "router_bias"}),
        (KIMI, {"A_log", "conv1d", "dt_bias", "kv_a_layernorm", "layernorm", "o_norm", "router", "router_bias"}),
        (GRANITE, {"A", "D", "conv1d", "dt_bias", "layernorm", "mixer_norm", "router"}),
        ("ai21labs/Jamba-v0.1", {"A", "D", "conv1d", "dt_proj", "layernorm", "mixer_norms", "router", "x_proj"}),
        ("MiniMaxAI/MiniMax-M1-80k", {"attention_norm", "layernorm", "router"}),
    ],
)
def test_converting_while_loading_leaves_states_norms_and_routers_alone(model: str, plain: set[str]) -> None:
    shape = catalogue_shape(model, quantization="fp8")
    assert {matrix.name for layer in shape.layers for matrix in layer.matrices if matrix.format is None} == plain
