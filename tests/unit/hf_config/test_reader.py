"""config.json → ModelShape: what is read, what is named, and what is told about a config that is wrong."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kvgate import catalogue
from kvgate.budget.model.shape import FullAttention, LatentAttention, SparseMlp
from kvgate.hf_config import ModelConfigError, read_config
from kvgate.hf_config.fields import parse_config_text
from kvgate.hf_config.formats.modules import MAX_EXPRESSION, MODULES, ModuleList
from support.builders import catalogue_shape, new_llama_config
from support.tables import table


def problems(**overrides: Any) -> tuple[str, ...]:
    with pytest.raises(ModelConfigError) as error:
        read_config(new_llama_config(**overrides))
    return error.value.problems


def test_a_llama_is_read() -> None:
    shape = read_config(new_llama_config(), name="test/llama")
    assert (shape.name, shape.hidden_size, len(shape.layers), shape.dtype) == ("test/llama", 4096, 4, "bfloat16")
    assert shape.mixers[0] == FullAttention(num_heads=32, num_kv_heads=8, head_dim=128)
    assert shape.unmodelled_kinds == ()


def test_all_missing_keys_are_listed_at_once_and_once() -> None:
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    found = problems(**dict.fromkeys(keys, ...))
    assert len(found) == len(set(found)) == len(keys)
    assert all(any(key in problem for problem in found) for key in keys)
    assert all("missing" in problem for problem in found)


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]
)
@pytest.mark.parametrize("value", [0, -1, True, False, 3.5, "4096", [4096], {}, 10**13], ids=repr)
def test_a_count_that_is_none_is_named_with_its_value(key: str, value: object) -> None:
    found = problems(**{key: value})
    assert len(found) == 1
    assert found[0].startswith(f"{key} is ")


@pytest.mark.parametrize("key", ["num_key_value_heads", "head_dim", "max_position_embeddings"])
@pytest.mark.parametrize("value", [-1, True, 3.5, "8", 10**13], ids=repr)
def test_an_optional_count_that_is_none_is_named_once(key: str, value: object) -> None:
    found = problems(**{key: value})
    assert len(found) == 1
    assert found[0].startswith(f"{key} is ")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 1.5, True, "0.5", [1]], ids=repr)
def test_a_rotary_share_outside_0_to_1_is_named(value: object) -> None:
    assert "partial_rotary_factor" in problems(partial_rotary_factor=value)[0]


def test_a_thousand_layers_too_many_are_refused_without_building_them() -> None:
    assert problems(num_hidden_layers=10**9) == ("num_hidden_layers is 1000000000; no model has more than 1024",)


def test_more_heads_than_width_is_a_problem() -> None:
    assert "more than hidden_size" in problems(num_attention_heads=8192, hidden_size=4096)[0]


def test_heads_that_do_not_divide_the_width_round_down_as_vllm_does() -> None:
    mixer = read_config(new_llama_config(num_attention_heads=30)).mixers[0]
    assert isinstance(mixer, FullAttention)
    assert mixer.head_dim == 136


@pytest.mark.parametrize("value", [..., None, [], "LlamaForCausalLM", [1], {}], ids=repr)
def test_a_config_without_architecture_is_no_model(value: object) -> None:
    assert "architectures is missing" in problems(architectures=value)[0]


@table(
    ("lengths", "scaling", "expected"),
    [
        ({"max_position_embeddings": 8192}, None, 8192),
        ({"max_position_embeddings": ...}, None, 0),
        ({"max_position_embeddings": 8192, "model_max_length": 4096}, None, 4096),
        ({"max_position_embeddings": 8192}, {"rope_type": "linear", "factor": 4.0}, 32_768),
        ({"max_position_embeddings": 8192}, {"type": "dynamic", "factor": 2}, 16_384),
        ({"max_position_embeddings": 131_072}, {"rope_type": "llama3", "factor": 8.0}, 131_072),
        ({"max_position_embeddings": 131_072}, {"rope_type": "longrope", "factor": 32.0}, 131_072),
        ({"max_position_embeddings": 163_840}, {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}, 163_840),
        ({"max_position_embeddings": 32_768}, {"type": "yarn", "factor": 4.0}, 32_768),
        ({"max_position_embeddings": 32_768}, {"rope_type": "default"}, 32_768),
        ({"max_position_embeddings": 32_768}, {"rope_theta": 10_000}, 32_768),
    ],
)  # fmt: skip
def test_the_longest_context_is(lengths: dict[str, Any], scaling: object, expected: int) -> None:
    assert read_config(new_llama_config(**lengths, rope_scaling=scaling)).max_model_len == expected


@pytest.mark.parametrize(
    ("kind", "original", "expected"),
    [("longrope", 4096, 4096), ("su", 4096, 4096), ("longrope", ..., 0), ("yarn", 4096, 0)],
)
def test_longrope_is_served_unscaled_where_nobody_asks_for_more(kind: str, original: object, expected: int) -> None:
    config = new_llama_config(
        max_position_embeddings=131_072, original_max_position_embeddings=original, rope_scaling={"type": kind}
    )
    assert read_config(config).default_max_model_len == expected


@pytest.mark.parametrize("factor", [0, -2, True, "4", float("nan"), float("inf"), 1e300, None], ids=repr)
def test_a_rope_factor_that_is_none_is_named_once(factor: object) -> None:
    found = problems(rope_scaling={"rope_type": "linear", "factor": factor})
    assert len(found) == 1
    assert "rope" in found[0]


def test_a_negative_original_length_is_named() -> None:
    scaling = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": -5}
    assert "original_max_position_embeddings is -5" in problems(rope_scaling=scaling)[0]


@pytest.mark.parametrize(
    ("stored", "asked", "expected"),
    [
        ("bfloat16", None, "bfloat16"),
        ("torch.float16", None, "float16"),
        ("float32", None, "bfloat16"),
        (..., None, "bfloat16"),
        ("bfloat16", "half", "float16"),
        ("bfloat16", "float", "float32"),
        ("float16", "auto", "float16"),
    ],
)
def test_the_dtype_that_runs_is(stored: object, asked: str | None, expected: str) -> None:
    assert read_config(new_llama_config(torch_dtype=stored), dtype=asked).dtype == expected


def compressed_tensors(groups: object) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}}


UNMODELLED = [
    ({"layer_types": ["linear_attention", "full_attention"]}, "linear attention layers"),
    ({"mamba_d_state": 16}, "Mamba hybrid"),
    ({"state_size": 16}, "Mamba"),
    ({"hybrid_override_pattern": "M-M*"}, "Mamba hybrid"),
    ({"linear_num_key_heads": 16}, "GDN (linear attention)"),
    ({"linear_attn_config": {"kda_layers": [1]}}, "KDA (linear attention)"),
    ({"attn_type_list": [0, 1]}, "linear attention"),
    ({"attention_chunk_size": 8192}, "chunked-local attention"),
    ({"index_topk": 2048}, "sparse MLA"),
    ({"compress_ratios": [4]}, "compressed MLA"),
    ({"num_kv_shared_layers": 2}, "KV sharing across layers"),
    ({"cross_attention_layers": [3]}, "encoder-decoder cross attention"),
    ({"block_configs": [{}]}, "per-layer block configurations"),
    ({"conv_L_cache": 3}, "short convolution hybrid"),
    ({"decoder_layers": 4}, "encoder-decoder cross attention"),
    ({"architectures": ["NewForCausalLM"]}, "architecture NewForCausalLM"),
    ({"architectures": ["NewVLForConditionalGeneration"], "vision_config": {"depth": 2}}, "multimodal encoder"),
    ({"architectures": ["ChatGLMModel"], "vision_config": {"depth": 2}}, "multimodal encoder"),
    ({"architectures": ["QWenLMHeadModel"], "visual": {"layers": 2}}, "multimodal encoder"),
    ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}}, "quantization modelopt NVFP4_AWQ"),
    ({"quantization_config": {"quant_method": "quark"}}, "quark without a format of weights"),
    ({"quantization_config": {"quant_method": "torchao"}}, "quantization torchao"),
    ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization bitsandbytes without its number of bits"),
    ({"quantization_config": {"quant_method": "gguf"}}, "quantization gguf"),
    ({"quantization_config": {"bits": 4}}, "quantization without quant_method"),
    ({"quantization_config": {"quant_method": "awq", "bits": 3}}, "awq with 3 bits"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 5}}, "gptq with 5 bits"),
    (compressed_tensors({"a": {"weights": {"type": "float", "num_bits": 4, "strategy": "tensor_group"}}}),
     "compressed-tensors float 4 tensor_group"),
    (compressed_tensors({"a": {}, "b": {}}), "compressed-tensors without weights"),
    ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 0]}}, "fp8 in blocks of 0 × 0"),
    (compressed_tensors({"a": {"weights": {"type": "float", "num_bits": 8, "strategy": "block"}}}),
     "compressed-tensors with blocks missing"),
    ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}}, "fp8 with blocks of type list"),
    (compressed_tensors(["x"]), "quantization_config with config_groups of type list"),
    ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": float("inf")}},
     "quantization_config with group_size inf"),
    ({"quantization_config": "fp8"}, "an unreadable quantization_config"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "kind"), UNMODELLED, ids=[f"{kind} {i}" for i, (_, kind) in enumerate(UNMODELLED)]
)
def test_what_has_no_formula_is_named(overrides: dict[str, Any], kind: str) -> None:
    assert read_config(new_llama_config(**overrides)).unmodelled_kinds == (kind,)


@pytest.mark.parametrize(
    "overrides",
    [
        {"sliding_window": None},
        {"sliding_window": 4096, "use_sliding_window": False},
        {"layer_types": ["full_attention"] * 4},
        {"attn_type_list": [1, 1, 1, 1]},
        {"vision_config": None},
        {"quantization_config": None},
        {"quantization_config": {}},
        {"num_experts": 0},
    ],
    ids=repr,
)
def test_a_key_that_says_nothing_leaves_the_model_as_it_is(overrides: dict[str, Any]) -> None:
    shape = read_config(new_llama_config(**overrides))
    assert shape.unmodelled_kinds == ()
    assert shape.layers == read_config(new_llama_config()).layers


EVERY_MODULE = {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}


def fp8_with(*entries: str, method: str = "fp8") -> set[str]:
    """The linear modules of a layer that a checkpoint with this list keeps in the model dtype."""
    quantization = {"quant_method": method, "modules_to_not_convert": list(entries)}
    layer = read_config(new_llama_config(quantization_config=quantization)).layers[1]
    return {matrix.name for matrix in layer.matrices if matrix.columns > 1 and matrix.format is None}


@table(
    ("entry", "modules"),
    [
        ("lm_head", set()),
        ("model.layers.1.self_attn.o_proj", {"o_proj"}),
        ("model.layers.11.self_attn.o_proj", set()),
        ("model.layers.1", EVERY_MODULE),
        ("mlp.down_proj", {"down_proj"}),
        ("down_proj", {"down_proj"}),
        ("down", set()),
        ("model.layers.*.self_attn.q_proj", {"qkv_proj"}),
        ("model.layers.*.mlp.gate", set()),
        ("*.mlp.down_proj", {"down_proj"}),
        ("re:.*down_proj", {"down_proj"}),
        ("re:.*mlp.(gate|up|gate_up|down)_proj", {"gate_up_proj", "down_proj"}),
        (r"re:model\.layers\.\d+\.self_attn\.o_proj$", {"o_proj"}),
        ("re:down_proj", set()),
        ("", set()),
        ("*", EVERY_MODULE),
    ],
)  # fmt: skip
def test_a_list_of_unquantised_modules_names(entry: str, modules: set[str]) -> None:
    assert fp8_with(entry) == modules


@pytest.mark.parametrize(
    "expression",
    [
        "re:" + "a" * (MAX_EXPRESSION + 1),
        r"re:(a)\1",
        r"re:.*(?=mlp)",
        r"re:(?<!mlp)x",
        "re:(?>a*)b",
        r"re:\Q",
        "re:(",
        "re:a)|(b",
        "re:[",
        "re:[[:alpha:]]",
        "re:[a||b]",
        "re:a{1,9999}",
        "re:((a{999}){999}){999}",
        "re:" + "(" * 400 + ")" * 99,
        "re:a**",
    ],
)
@pytest.mark.timeout(5)
def test_an_expression_that_cannot_run_in_linear_time_or_is_none_is_named(expression: str) -> None:
    config = new_llama_config(quantization_config={"quant_method": "fp8", "ignored_layers": [expression]})
    (kind,) = read_config(config).unmodelled_kinds
    assert kind.startswith(f"a list of modules with the expression {expression[3:63]!r} (")


@pytest.mark.parametrize(
    "expressions",
    [
        [f"re:{'.*' * 4}{letter}" for letter in "ABCDEFGHZ"],
        ["re:(a+)+b", "re:(.*)*x", "re:(.|.)*c", "re:(?P<same>.*)Q", "re:(?P<same>.*)V"],
        ["re:" + ".*" * 200 + "Z"],
        ["re:(" + ".?" * 150 + ")" + "[a-z.]" * 20 + "Z"],
        [f"re:.*{number}.*_.*_.*_.*_.*_.*_.*Z" for number in range(100)],
    ],
    ids=["nine wildcards", "nested repetition", "many wildcards", "optional parts", "a hundred"],
)
def test_expressions_that_run_away_by_backtracking_take_linear_time(expressions: list[str]) -> None:
    config = new_llama_config(
        num_hidden_layers=64, quantization_config={"quant_method": "fp8", "ignored_layers": expressions}
    )
    started = time.process_time()
    shape = read_config(config)
    assert shape.unmodelled_kinds == ()
    assert time.process_time() - started < 1


def test_a_list_whose_expressions_would_take_too_long_is_named() -> None:
    expressions = [f"re:.*{number}.*{'(one|two|three|four|five).' * 10}.*" for number in range(1, 150)]
    config = new_llama_config(
        num_hidden_layers=64, quantization_config={"quant_method": "fp8", "ignored_layers": expressions}
    )
    (kind,) = read_config(config).unmodelled_kinds
    assert kind == "a list of modules with 149 expressions, which would take too long"


def every_name() -> Iterator[str]:
    names = {tail for tails in MODULES.values() for tail in tails}
    return (f"{before}.{name}" for name in names for before in ("model.layers.0", "model.layers.47", "mtp.layers.0"))


def expressions_in(value: Any) -> Iterator[str]:
    """Every `re:` entry, however deep."""
    if isinstance(value, dict | list):
        yield from (
            found for child in (value.values() if isinstance(value, dict) else value) for found in expressions_in(child)
        )
    elif isinstance(value, str) and value.startswith("re:"):
        yield value[3:]


def published_expressions() -> list[str]:
    entries = (catalogue.find_model(name) for name in catalogue.model_names())
    return sorted({found for entry in entries if entry for found in expressions_in(dict(entry.config))})


OTHER_EXPRESSIONS = [
    "down_proj", r"model\.layers\.\d+\.self_attn\.o_proj$", ".*mlp.(gate|up|gate_up|down)_proj",
    "[^.]+[.]layers[.][0-9]{1,2}[.]mlp", r".*\bq_proj\b", "(?i)MODEL.*PROJ", r"^model\.\w+\.(?:4[0-7]|0)\.", "",
]  # fmt: skip


def test_re2_matches_the_names_that_vllm_matches_by_re() -> None:
    published = published_expressions()
    assert len(published) > 20
    for expression in (*published, *OTHER_EXPRESSIONS):
        (pattern,) = ModuleList.of([f"re:{expression}"], num_layers=48).expressions
        matched = [name for name in every_name() if pattern.match(name)]
        assert matched == [name for name in every_name() if re.match(expression, name)], expression


def test_re2_is_imported_only_for_expressions() -> None:
    program = "import sys, kvgate.hf_config as h; h.read_config({config!r}); print('re2' in sys.modules)"
    for entry, expected in (("*.mlp.*", "False"), ("re:.*mlp.*", "True")):
        config = new_llama_config(quantization_config={"quant_method": "fp8", "ignored_layers": [entry]})
        command = [sys.executable, "-c", program.format(config=config)]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == expected


@pytest.mark.parametrize("entries", [5, "lm_head", {"a": 1}, True], ids=repr)
def test_a_list_that_is_no_list_is_named(entries: object) -> None:
    config = new_llama_config(quantization_config={"quant_method": "fp8", "ignored_layers": entries})
    assert read_config(config).unmodelled_kinds == ("a list of unquantised modules that is not a list",)


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    "entry",
    ["model.layers.{}.mlp.up_projx", "*a*b{}*c*", "re:.*a.*b.*c{}.*d"],
    ids=["names", "wildcards", "expressions"],
)
def test_a_list_of_thousands_is_read_in_time(entry: str) -> None:
    entries = [entry.format(i) for i in range(20_000)]
    config = new_llama_config(
        num_hidden_layers=1024, quantization_config={"quant_method": "fp8", "ignored_layers": entries}
    )
    assert len(read_config(config).layers) == 1024


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "of type list"),
        ("null", "of type NoneType"),
        ("x" * 4_000_001, "characters"),
    ],
    ids=["empty", "cut", "deep", "list", "null", "long"],
)
def test_a_text_that_is_no_config_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ModelConfigError, match=problem):
        parse_config_text(text)


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse_config_text("\ufeff" + json.dumps({"a": 1})) == {"a": 1}


@pytest.mark.parametrize(
    ("name", "kv_heads"), [("Qwen/Qwen3-8B", 8), ("meta-llama/Llama-2-7b-hf", 32), ("THUDM/glm-4-9b", 2)]
)
def test_kv_heads_are_found_under_their_many_names(name: str, kv_heads: int) -> None:
    mixer = catalogue_shape(name).mixers[0]
    assert isinstance(mixer, FullAttention)
    assert mixer.num_kv_heads == kv_heads


@pytest.mark.parametrize(
    ("multi_query", "new_decoder", "kv_heads"), [(True, False, 1), (False, False, 32), (True, True, 8)]
)
def test_falcon_has_one_kv_head_unless_it_says_otherwise(multi_query: bool, new_decoder: bool, kv_heads: int) -> None:  # noqa: FBT001
    falcon = new_llama_config(
        architectures=["FalconForCausalLM"], model_type="falcon", multi_query=multi_query,
        new_decoder_architecture=new_decoder, num_kv_heads=8,
    )  # fmt: skip
    mixer = read_config(falcon).mixers[0]
    assert isinstance(mixer, FullAttention)
    assert mixer.num_kv_heads == kv_heads


def test_deepseek_v3_has_three_dense_layers_and_a_latent_cache() -> None:
    shape = catalogue_shape("deepseek-ai/DeepSeek-V3")
    assert [isinstance(layer.mlps[0], SparseMlp) for layer in shape.layers] == [False] * 3 + [True] * 58
    assert all(isinstance(mixer, LatentAttention) for mixer in shape.mixers)


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ({"num_bits": 8, "type": "float"}, "fp8"),
        ({"num_bits": 8, "type": "int"}, None),
        ({"num_bits": [8], "type": "float"}, None),
        (None, None),
        (5, None),
    ],
    ids=repr,
)
def test_a_checkpoint_may_ask_for_an_fp8_cache(scheme: object, expected: str | None) -> None:
    quantization = {"quant_method": "fp8", "kv_cache_scheme": scheme}
    assert read_config(new_llama_config(quantization_config=quantization)).kv_cache_scheme == expected


@pytest.mark.parametrize(
    ("method", "kinds"),
    [("fp8", ()), ("bitsandbytes", ()), ("awq", ("quantization awq of an unquantised checkpoint",))],
)
def test_an_unquantised_checkpoint_may_be_converted_while_loading(method: str, kinds: tuple[str, ...]) -> None:
    assert read_config(new_llama_config(), quantization=method).unmodelled_kinds == kinds


def test_towers_that_nobody_read_leave_the_caches_of_the_language_model_known() -> None:
    text = new_llama_config(model_type="llama")
    config = {"architectures": ["NewVLForConditionalGeneration"], "text_config": text, "vision_config": {"depth": 2}}
    shape = read_config(config)
    assert shape.unmodelled_kinds == ("multimodal encoder",)
    assert shape.layers == read_config(text).layers
