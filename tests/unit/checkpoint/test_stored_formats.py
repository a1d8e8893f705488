"""The tensors decide how weights are stored; config.json is only asked where they agree."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import plan
from kvgate.budget.ground.hardware import SINGLE_GPU, Parallelism
from kvgate.budget.model.shape import LayerShape, ModelShape
from kvgate.budget.model.weights import checkpoint_ratio, rank_weights
from kvgate.checkpoint.stored_formats import loaded_bytes, with_stored_formats
from kvgate.checkpoint.tensors import DTYPES, TensorGroup, summarize
from kvgate.hf_config import read_config
from kvgate.rules.checks import judge_budget
from support.builders import new_llama_config, new_request
from support.checkpoints import (
    awq,
    deepseek_v3,
    fp8_block,
    gpt_oss_layer,
    llama,
    new_tensors,
    nf4,
    nvfp4,
    plain,
    unknown_6_bits,
)

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
UNHEARD = {"quant_method": "sixbit", "anything": True}


def read(groups: tuple[TensorGroup, ...], declared: Any = None, **options: Any) -> ModelShape:
    config = new_llama_config(**({"quantization_config": declared} if declared else {}))
    return with_stored_formats(read_config(config, **options), groups)


def formats_of(layer: LayerShape) -> dict[str, str]:
    return {matrix.name: matrix.format.format for matrix in layer.matrices if matrix.format}


def parameter_bytes(shape: ModelShape, tensor: int = 1) -> int:
    ranks = SINGLE_GPU if tensor == 1 else Parallelism(tensor=tensor)
    stage = (0, len(shape.layers))
    return rank_weights(shape, ranks, stage, unsplit_large_blocks=False, compute_capability=(9, 0)).parameter_bytes


@pytest.mark.parametrize(
    ("store", "quantization"), [(plain, None), (awq, AWQ), (fp8_block, FP8), (nvfp4, NVFP4), (nf4, NF4)]
)
def test_a_checkpoint_that_is_what_its_config_says_stays_as_it_is(store: Any, quantization: Any) -> None:
    config = new_llama_config(**({"quantization_config": quantization} if quantization else {}))
    before = read_config(config)
    after = with_stored_formats(before, llama(store))
    assert after.layers == before.layers
    assert len(after.distinct_layers) == 1
    assert (after.quantization, after.head_format, after.unmodelled) == (before.quantization, None, ())
    assert checkpoint_ratio(after) == 1


@pytest.mark.slow
def test_deepseek_v3_agrees_to_the_byte_without_its_draft() -> None:
    entry = catalogue.find_model("deepseek-ai/DeepSeek-V3")
    assert entry is not None
    shape = with_stored_formats(read_config(entry.config), summarize(deepseek_v3()))
    assert shape.checkpoint_bytes == parameter_bytes(shape) == 673_150_611_808
    assert len(shape.distinct_layers) == 2


def test_gpt_oss_keeps_mxfp4_in_its_experts() -> None:
    entry = catalogue.find_model("openai/gpt-oss-20b")
    assert entry is not None
    before = read_config(entry.config)
    entries = [each for layer in range(24) for each in gpt_oss_layer(f"model.layers.{layer}")]
    entries += [
        *plain("model.embed_tokens", 201088, 2880),
        *plain("lm_head", 201088, 2880),
        ("model.norm.weight", "BF16", (2880,)),
    ]
    after = with_stored_formats(before, summarize(new_tensors(entries)))
    assert after.layers == before.layers
    assert after.checkpoint_bytes == 13_761_264_768  # total_size of the published index
    assert checkpoint_ratio(after) == 1


def test_a_layer_that_the_config_calls_quantised_and_is_not() -> None:
    exceptions = {f"0.self_attn.{name}": plain for name in ("q_proj", "k_proj", "v_proj")}
    shape = read(llama(awq, exceptions=exceptions), AWQ)
    assert formats_of(shape.layers[0]) == dict.fromkeys(("o_proj", "gate_up_proj", "down_proj"), "int4-awq")
    assert formats_of(shape.layers[1]).keys() == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    assert parameter_bytes(shape) == pytest.approx(shape.checkpoint_bytes, rel=0.0001)


def test_a_list_of_exceptions_that_the_tensors_contradict() -> None:
    shape = read(llama(awq), {**AWQ, "modules_to_not_convert": ["down_proj"]})
    assert formats_of(shape.layers[3])["down_proj"] == "int4-awq"
    assert checkpoint_ratio(shape) == 1


def test_a_format_that_nobody_described_is_taken_as_it_is_stored() -> None:
    groups = llama(unknown_6_bits)
    before = read_config(new_llama_config(quantization_config=UNHEARD))
    assert before.unmodelled_kinds == ("quantization sixbit",)
    after = with_stored_formats(before, groups, method="sixbit")
    assert after.unmodelled_kinds == ()
    assert after.quantization is not None
    assert (after.quantization.method, after.quantization.format) == ("sixbit", "as-stored")
    assert parameter_bytes(after) == after.checkpoint_bytes == sum(group.size_bytes for group in groups)
    whole, half = parameter_bytes(after), parameter_bytes(after, tensor=2)
    norms = 9 * 2 * 4096
    assert half == norms + (whole - norms) // 2


def test_a_format_without_a_formula_is_named_and_makes_the_interval_wider() -> None:
    budget = plan(new_request(shape=read(llama(unknown_6_bits), UNHEARD)))
    (told,) = [str(each.message) for each in judge_budget(budget) if each.rule.id == "CheckpointDecidesWeights"]
    assert told.startswith("the format as-stored has no formula: the weights are the 2.59 GiB of the checkpoint")
    ledger = budget.stages[0].ledger
    assert ledger is not None
    assert ledger.weights.high - ledger.weights.expected > ledger.weights.expected // 10


def test_an_unknown_format_whose_tensors_are_plain_keeps_its_name() -> None:
    """Nothing was found that could stand for the format, so it still has no formula."""
    assert read(llama(), UNHEARD).unmodelled == ("quantization sixbit",)


def test_a_quantised_head() -> None:
    shape = read(llama(awq, head=awq), AWQ)
    assert shape.head_format is not None
    assert shape.head_format.format == "int4-awq"
    assert read(llama(awq), {**AWQ, "lm_head": True}).head_format is None


def test_a_plain_checkpoint_that_is_converted_while_it_loads_keeps_the_format() -> None:
    shape = read(llama(), quantization="fp8")
    assert formats_of(shape.layers[0])["qkv_proj"] == "fp8-tensor"


def test_float32_checkpoints_are_counted_as_they_are_served() -> None:
    groups = tuple(replace(group, dtype="F32", size_bytes=2 * group.size_bytes) for group in llama())
    shape = read(groups)
    assert shape.checkpoint_bytes == parameter_bytes(shape)


def test_drafts_tied_heads_and_rotary_tables_are_not_loaded() -> None:
    shape = read_config(new_llama_config(tie_word_embeddings=True))
    extra = [
        ("lm_head.weight", "BF16", (128256, 4096)),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", (64,)),
        ("model.layers.4.eh_proj.weight", "BF16", (4096, 8192)),
        ("mtp.layers.0.mlp.up_proj.weight", "BF16", (4096, 8192)),
        ("model.mtp_layers.0.w.weight", "BF16", (4096, 8192)),
        ("model.embed_tokens.weight", "BF16", (128256, 4096)),
        ("vision_tower.layers.7.w.weight", "BF16", (10, 10)),
    ]  # fmt: skip
    assert loaded_bytes(shape, summarize(new_tensors(extra))) == 2 * 128256 * 4096 + 200


@pytest.mark.parametrize("layer", ["model.layers.4", "mtp.layers.0", "model.mtp.layers.0"])
def test_a_draft_has_formats_of_its_own(layer: str) -> None:
    """The config says AWQ everywhere, and the draft's projection is plain."""
    draft = summarize(
        new_tensors([*plain(f"{layer}.mlp.down_proj", 4096, 14336), *awq(f"{layer}.self_attn.o_proj", 4096, 4096)])
    )
    before = read_config(new_llama_config(num_nextn_predict_layers=1, quantization_config=AWQ))
    (own,) = with_stored_formats(before, (*llama(awq), *draft)).draft_layers
    assert formats_of(before.draft_layers[0]).keys() == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    assert formats_of(own).keys() == {"qkv_proj", "o_proj", "gate_up_proj"}


def test_what_the_config_does_not_describe_is_scaled() -> None:
    groups = (*llama(), *summarize(new_tensors([("extra.weight", "BF16", (1 << 28,))])))
    shape = read(groups)
    assert checkpoint_ratio(shape) > 1
    assert shape.layers == read_config(new_llama_config()).layers


def test_a_shape_without_formulas_stays_as_it_is() -> None:
    shape = read_config({"architectures": ["NobodyForCausalLM"], "num_hidden_layers": 4, "vocab_size": 8})
    assert with_stored_formats(shape, llama()) == shape
    known = read_config(new_llama_config())
    assert with_stored_formats(known, ()) == known


NAMES = st.sampled_from([
    "model.layers.{n}.self_attn.q_proj.weight", "model.layers.{n}.self_attn.q_proj.qweight", "model.layers.{n}.mlp.up_proj.weight",
    "model.layers.{n}.mlp.experts.{n}.w1.weight", "layers.{n}", "model.layers.{n}.mlp.down_proj.weight_scale", "lm_head.weight",
    "lm_head.qweight", "model.embed_tokens.weight", "mtp.{n}.weight", "..", "model.layers.{n}.self_attn.o_proj.bias", "x.layers.{n}.{n}.y",
])  # fmt: skip
SIZES = st.lists(st.sampled_from([0, 1, 2, 256, 4096]), max_size=4).map(tuple)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.tuples(NAMES, st.integers(0, 9)), st.tuples(st.sampled_from(sorted(DTYPES)), SIZES), max_size=12)
)
def test_whatever_tensors_there_are_a_shape_comes_back(
    found: dict[tuple[str, int], tuple[str, tuple[int, ...]]],
) -> None:
    entries = {name.format(n=number): each for (name, number), each in found.items()}
    groups = summarize(new_tensors((name, dtype, sizes) for name, (dtype, sizes) in entries.items()))
    for declared in (None, AWQ, UNHEARD):
        shape = read(groups, declared)
        assert parameter_bytes(shape) >= 0
        assert checkpoint_ratio(shape) > 0 or not shape.checkpoint_bytes
