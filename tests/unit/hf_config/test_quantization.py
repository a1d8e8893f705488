import gc
import time
from typing import Any

import pytest

from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.model.matrix import LocalMatrix, Matrix, WeightFormat, stored_tensors
from kvgate.budget.model.shape import LayerShape, ModelShape
from kvgate.budget.model.weights import rank_weights
from kvgate.hf_config import read_config
from support.builders import new_llama_config
from support.tables import table

MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
NVFP4_WEIGHTS = {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16}
INT4_WEIGHTS = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True}
FP8_BLOCKS = {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [128, 128]}
DYNAMIC = {"dynamic": True, "num_bits": 8}


def shape_with(quantization: dict[str, Any], **overrides: Any) -> ModelShape:
    shape = read_config(new_llama_config(quantization_config=quantization, **overrides))
    assert shape.unmodelled_kinds == ()
    return shape


def formats_of(layer: LayerShape) -> dict[str, str]:
    return {matrix.name: matrix.format.format for matrix in layer.matrices if matrix.format}


def groups(*weights: dict[str, Any], targets: tuple[str, ...] = ("Linear",), **more: Any) -> dict[str, Any]:
    named = zip("abc", weights, targets, strict=False)
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {name: {"weights": each, "targets": [target], **more} for name, each, target in named},
    }


ALL = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


@table(
    ("quantization", "expected"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8-tensor"),
        ({"quant_algo": "FP8", "producer": {"name": "modelopt"}}, "fp8-tensor"),
        ({"quantization": {"quant_algo": "FP8", "quant_method": "modelopt"}}, "fp8-tensor"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, "mxfp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8-channel"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8-channel"),
        ({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_awq"}, "int4-awq"),
        (groups(NVFP4_WEIGHTS, input_activations=DYNAMIC), "nvfp4"),
        (groups(NVFP4_WEIGHTS), "nvfp4-weights"),
        (groups(INT4_WEIGHTS), "int4-packed"),
        (groups(FP8_BLOCKS, input_activations=DYNAMIC), "fp8-block"),
        (groups({"type": "int", "num_bits": 8, "strategy": "channel"}, input_activations=DYNAMIC), "int8-channel"),
        (groups({"type": "int", "num_bits": 8, "strategy": "channel"}), "int8-packed"),
        (groups({"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32}), "mxfp4"),
    ],
)  # fmt: skip
def test_every_linear_layer_gets_the_format(quantization: dict[str, Any], expected: str) -> None:
    assert formats_of(shape_with(quantization).layers[0]) == dict.fromkeys(ALL, expected)


def test_mxfp4_is_only_for_experts() -> None:
    shape = shape_with({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, **MIXTRAL)
    assert formats_of(shape.layers[0]) == {"experts": "mxfp4"}


def test_modelopt_may_list_every_layer_with_its_own_algorithm() -> None:
    listed = {
        "model.language_model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        "language_model.model.layers.1.block_sparse_moe.experts.7.w1": {"quant_algo": "NVFP4", "group_size": 16},
        "model.layers.2.block_sparse_moe.experts": {"quant_algo": "NVFP4", "group_size": 16},
        "mtp.layers.3.self_attn.q_proj": {"quant_algo": "FP8"},
        "lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
    }
    quantization = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": listed}
    shape = shape_with(quantization, **MIXTRAL)
    assert [formats_of(layer) for layer in shape.layers] == [{"qkv_proj": "fp8-tensor"}, {}, {"experts": "nvfp4"}, {}]
    assert shape.head_format is not None
    assert shape.head_format.format == "nvfp4-weights"


def test_groups_of_compressed_tensors_are_about_their_targets() -> None:
    shape = shape_with(groups(FP8_BLOCKS, INT4_WEIGHTS, targets=("re:.*self_attn.*", r"re:.*mlp\.down_proj$")))
    assert formats_of(shape.layers[3]) == {"qkv_proj": "fp8-block", "o_proj": "fp8-block", "down_proj": "int4-packed"}


def test_a_group_of_names_goes_before_the_group_of_all() -> None:
    shape = shape_with(groups(INT4_WEIGHTS, FP8_BLOCKS, targets=("Linear", "model.layers.0.self_attn.o_proj")))
    assert formats_of(shape.layers[0])["o_proj"] == "fp8-block"
    assert formats_of(shape.layers[1])["o_proj"] == "int4-packed"


def excepted(*entries: str, method: str = "modelopt") -> list[set[str]]:
    """By layer, what keeps the model dtype."""
    shape = shape_with({"quant_method": method, "quant_algo": "FP8", "exclude_modules": list(entries)})
    return [set(ALL) - formats_of(layer).keys() for layer in shape.layers]


ATTENTION, EVERYTHING = {"qkv_proj", "o_proj"}, set(ALL)


@table(
    ("entry", "expected"),
    [
        ("model.layers.1*", [set(), EVERYTHING, set(), set()]),
        ("model.layers.1.*", [set(), EVERYTHING, set(), set()]),
        ("model.layers.2.self_attn*", [set(), set(), ATTENTION, set()]),
        ("model.language_model.layers.2.self_attn*", [set(), set(), ATTENTION, set()]),
        ("language_model.model.layers.0*", [EVERYTHING, set(), set(), set()]),
        ("language_model.model.layers.0.self_attn.q_proj", [{"qkv_proj"}, set(), set(), set()]),
        ("*.mlp.down_proj*", [{"down_proj"}] * 4),
        (r"re:.*language_model\.model\.layers\.3\.mlp.*", [set(), set(), set(), {"gate_up_proj", "down_proj"}]),
        ("re:.*layers.[12].*down_proj", [set(), {"down_proj"}, {"down_proj"}, set()]),
        ("mtp.layers.0*", [set()] * 4),
        ("model.visual*", [set()] * 4),
        ("vision_model.model.layers.0.self_attn.q_proj", [set()] * 4),
    ],
)  # fmt: skip
def test_modules_are_excepted_by_any_of_their_names(entry: str, expected: list[set[str]]) -> None:
    assert excepted(entry) == expected


def test_a_long_list_by_layer_is_read() -> None:
    entries = [f"model.layers.{i}.self_attn*" for i in range(200)]
    quantization = {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": entries}
    shape = shape_with(quantization, num_hidden_layers=200)
    assert all(formats_of(layer).keys() == {"gate_up_proj", "down_proj"} for layer in shape.layers)
    assert len(set(map(id, shape.layers))) == 1


@table(
    ("quantization", "scheme", "scales"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "fp8", 4),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": "FP8"}, "fp8", 4),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "nvfp4", 4),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": None}, None, 4),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int8", "qscheme": "per_channel"}}}, None, 4),
        ({"quant_method": "modelopt", "quantized_layers": {"model.layers.0": {"quant_algo": "FP8"}}}, None, 0),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}, "fp8", 4),
        ({"quant_method": "fp8"}, None, 4),
        ({"quant_method": "awq", "bits": 4}, None, 0),
    ],
)  # fmt: skip
def test_attention_holds_scales_for_a_cache(quantization: dict[str, Any], scheme: str | None, scales: int) -> None:
    shape = shape_with(quantization)
    assert shape.kv_cache_scheme == scheme
    assert sum(matrix.rows[0].elements for matrix in shape.layers[0].matrices if matrix.name == "kv_scales") == scales


@pytest.mark.parametrize(
    ("quantization", "bytes_per_element"),
    [({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5625),
     ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 0.516),
     ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5625),
     ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, 1.03125),
     ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.5195),
     ({"quant_method": "gptq", "bits": 4, "group_size": 32}, 0.5781)],
)  # fmt: skip
def test_bytes_per_element(quantization: dict[str, Any], bytes_per_element: float) -> None:
    down = next(m for m in shape_with(quantization).layers[0].matrices if m.name == "down_proj")
    assert down.format is not None
    local = LocalMatrix(parts=(4096,), columns=14336, element_bytes=2)
    assert sum(stored_tensors(local, down.format)) / (4096 * 14336) == pytest.approx(bytes_per_element, rel=2e-3)


def test_experts_cut_through_their_blocks_get_finer_ones() -> None:
    """Qwen3-235B-A22B-FP8 on 8 ranks: 192 of 1,536 rows (https://huggingface.co/Qwen/Qwen3-235B-A22B-FP8)."""
    stored = WeightFormat(method="fp8", format="fp8-block", block=(128, 128))
    up = LocalMatrix(parts=(192, 192), columns=4096, element_bytes=2, expert_width=192)
    down = LocalMatrix(parts=(4096,), columns=192, element_bytes=2, expert_width=192)
    assert list(stored_tensors(up, stored)) == [384 * 4096, 6 * 64 * 4]
    assert list(stored_tensors(down, stored)) == [192 * 4096, 64 * 3 * 4]


def one_layer(*matrices: Matrix) -> ModelShape:
    layer = LayerShape(matrices=matrices)
    return ModelShape(
        name="", architecture="", hidden_size=64, vocab_size=64, layers=(layer,), dtype="bfloat16", max_model_len=64
    )


@pytest.mark.parametrize(
    ("capability", "loaded", "hidden", "width"),
    [((9, 0), False, 2880, 2880), ((9, 0), True, 3072, 2880), ((8, 0), False, 3072, 2944), ((10, 0), True, 3072, 2944)],
)
def test_mxfp4_experts_are_padded_as_the_kernel_asks(
    capability: tuple[int, int],
    loaded: bool,  # noqa: FBT001
    hidden: int,
    width: int,
) -> None:
    """gpt-oss: 2,880 inside and out (https://huggingface.co/openai/gpt-oss-120b)."""
    shape = shape_with(
        {"quant_method": "mxfp4"}, **MIXTRAL, hidden_size=2880, intermediate_size=2880, num_attention_heads=45,
        num_key_value_heads=9,
    )  # fmt: skip
    experts = one_layer(*(m for m in shape.layers[0].matrices if m.name == "experts"))
    ends = 2 * 64 * 64 * 2
    weights = rank_weights(experts, Parallelism(), (0, 1), unsplit_large_blocks=False, compute_capability=capability)
    stored = 8 * 3 * hidden * width * 17 // 32
    measured = weights.loaded_bytes if loaded else weights.parameter_bytes
    assert measured - ends == pytest.approx(stored, rel=0.01 if loaded else 0)


def test_a_plain_checkpoint_is_built_plain_and_kept_converted() -> None:
    plain, online = read_config(new_llama_config()), read_config(new_llama_config(), quantization="fp8")
    stage = (0, len(plain.layers))
    before = rank_weights(plain, Parallelism(), stage, unsplit_large_blocks=False)
    after = rank_weights(online, Parallelism(), stage, unsplit_large_blocks=False)
    assert after.parameter_bytes == before.parameter_bytes
    ends = 2 * 128256 * 4096 * 2
    assert after.loaded_bytes - ends == pytest.approx((before.loaded_bytes - ends) / 2, rel=0.01)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 128}


def formats_by_layer(quantization: dict[str, Any], **overrides: Any) -> list[dict[str, str]]:
    return [formats_of(layer) for layer in shape_with(quantization, **overrides).layers]


def test_gptq_changes_and_leaves_out_modules_by_expressions_the_first_of_which_counts() -> None:
    dynamic = {
        r"-:.*\.0\.mlp.*": {},
        r"+:.*\.[01]\.": {"bits": 8, "group_size": 64},
        r".*\.3\..*o_proj": {"group_size": 32},
    }
    layers = formats_by_layer({**GPTQ, "dynamic": dynamic})
    assert layers[0] == dict.fromkeys(("qkv_proj", "o_proj"), "int8-gptq")
    assert layers[1] == dict.fromkeys(ALL, "int8-gptq")
    assert layers[2] == dict.fromkeys(ALL, "int4-gptq")
    shape = shape_with({**GPTQ, "dynamic": dynamic})
    sizes = {matrix.name: matrix.format.group_size for matrix in shape.layers[3].matrices if matrix.format}
    assert sizes == {"qkv_proj": 128, "o_proj": 32, "gate_up_proj": 128, "down_proj": 128}


def test_gptq_looks_up_experts_as_one_module() -> None:
    """An expression on a part of an expert changes nothing in vLLM, one on `experts` does."""
    moe = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    inside = formats_by_layer({**moe, "dynamic": {r"+:.*experts\.\d+\.w2": {"bits": 8}}}, **MIXTRAL)
    whole = formats_by_layer({**moe, "dynamic": {r"+:.*block_sparse_moe\.experts": {"bits": 8}}}, **MIXTRAL)
    assert (inside[0]["experts"], whole[0]["experts"]) == ("int4-gptq", "int8-gptq")


def test_gptq_may_list_the_only_modules_that_it_quantises() -> None:
    listed = [["self_attn.k_proj", "self_attn.q_proj", "self_attn.v_proj"], ["mlp.down_proj"]]
    (first, *_) = formats_by_layer({**GPTQ, "modules_in_block_to_quantize": listed})
    assert first == dict.fromkeys(("qkv_proj", "down_proj"), "int4-gptq")


def test_auto_round_has_formats_of_single_modules_by_name_and_by_expression() -> None:
    extra = {
        "model.layers.0.mlp.down_proj": {"bits": 8},
        "model.layers.1.self_attn.o_proj": {"bits": 16, "data_type": "float"},
        r".*layers\.[23]\.mlp": {"bits": 2},
    }
    layers = formats_by_layer({**AUTO_ROUND, "extra_config": extra})
    assert layers[0]["down_proj"] == "int8-gptq"
    assert "o_proj" not in layers[1]
    assert layers[2] == {
        "qkv_proj": "int4-gptq",
        "o_proj": "int4-gptq",
        "gate_up_proj": "int2-gptq",
        "down_proj": "int2-gptq",
    }


@pytest.mark.parametrize(
    "blocks",
    ["model.layers.1,model.layers.2", ["model.layers.1", "model.layers.2"], [["model.layers.1"], ["model.layers.2"]]],
)
def test_auto_round_quantises_the_blocks_that_it_lists(blocks: Any) -> None:
    layers = formats_by_layer({**AUTO_ROUND, "block_name_to_quantize": blocks})
    assert [bool(layer) for layer in layers] == [False, True, True, False]


def test_quark_has_a_format_of_all_layers_and_others_by_name() -> None:
    fp8 = {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, "input_tensors": {"is_dynamic": False}}
    mx = {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}}
    quantization = {
        "quant_method": "quark", "global_quant_config": mx, "layer_quant_config": {"*self_attn*": fp8, "*.down_proj": {"weight": None}},
        "exclude": ["model.layers.1.mlp.gate_up_proj"],
    }  # fmt: skip
    layers = formats_by_layer(quantization)
    assert layers[0] == {"qkv_proj": "fp8-tensor", "o_proj": "fp8-tensor", "gate_up_proj": "mxfp4"}
    assert layers[1] == {"qkv_proj": "fp8-tensor", "o_proj": "fp8-tensor"}


def test_groups_may_be_about_attention_or_experts_only() -> None:
    named = groups(FP8_BLOCKS, INT4_WEIGHTS, NVFP4_WEIGHTS, targets=("LlamaAttention", "Linear", "RoutedExperts"))
    (first, *_) = formats_by_layer(named, **MIXTRAL)
    assert first == {"qkv_proj": "int4-packed", "o_proj": "int4-packed", "experts": "nvfp4-weights"}


def test_scales_of_integers_for_fp8_become_eight_while_they_are_loaded() -> None:
    fp8 = {"type": "float", "num_bits": 8, "strategy": "token", "dynamic": True}
    shape = shape_with(groups(INT4_WEIGHTS, input_activations=fp8))
    down = next(matrix for matrix in shape.layers[0].matrices if matrix.name == "down_proj")
    assert down.format is not None
    assert down.format.format == "int4-fp8"
    matrix = LocalMatrix(parts=(128,), columns=256, element_bytes=2)
    built = [128 * 256 // 2, 2 * 128 * 256 // 32, 16]
    loaded = [128 * 256 // 2, 8 * 128 * 256 // 32, 4 * 128, 16]
    assert list(stored_tensors(matrix, down.format, loaded=False)) == built
    assert list(stored_tensors(matrix, down.format)) == loaded


WEIGHTS = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 128}
HOSTILE: list[dict[str, Any]] = [
    {**GPTQ, "dynamic": {f"+:.*x{i}.*": {"bits": 8 if i % 2 else 4} for i in range(20_000)}},
    {**GPTQ, "dynamic": {f"+:(?:a|b|.){{40}}{i}": {"group_size": 32 + i} for i in range(63)}},
    {**GPTQ, "dynamic": {"-:(a+)+$" * 50: {}}},
    {**GPTQ, "dynamic": {"+:(": {"bits": 8}}},
    {**GPTQ, "dynamic": {"+:.*": []}},
    {**GPTQ, "dynamic": ["x"]},
    {**GPTQ, "bits": 10**4000},
    {**GPTQ, "group_size": "128"},
    {**AUTO_ROUND, "extra_config": {f".*x{i}.*": {"bits": 8 if i % 2 else 16} for i in range(20_000)}},
    {**AUTO_ROUND, "extra_config": {"a": {"bits": "8"}}},
    {**AUTO_ROUND, "extra_config": {"a": None}},
    {"quant_method": "quark", "global_quant_config": {"weight": [[1]]}},
    {
        "quant_method": "compressed-tensors",
        "config_groups": {str(i): {"weights": WEIGHTS, "targets": [f"re:x{i}"]} for i in range(9_999)},
    },
    {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": WEIGHTS, "targets": 5}}},
    {"quant_method": "fp8", "weight_block_size": [float("nan"), 1]},
    {"quant_method": ["x"] * 100_000},
]


@pytest.mark.parametrize("quantization", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_config_is_named_shortly_and_at_once(quantization: dict[str, Any]) -> None:
    gc.freeze()  # the collector does not look through what other tests have left
    before = time.process_time()
    shape = read_config(new_llama_config(num_hidden_layers=400, quantization_config=quantization))
    taken = time.process_time() - before
    gc.unfreeze()
    assert taken < 1.5
    assert all(len(kind) < 200 for kind in shape.unmodelled_kinds)
    assert shape.unmodelled_kinds or "(a+)+" in str(quantization)
