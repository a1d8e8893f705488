"""The weights of a rank: scaled to the checkpoint's index where one is known, and every byte in one row of the table of parts."""

from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.gpu.ledger import weights_of
from kvgate.budget.ground.interval import Verdict
from kvgate.budget.ground.units import GIB
from kvgate.budget.model.matrix import LocalMatrix, WeightFormat, stored_tensors
from kvgate.budget.model.shape import Encoder, LayerShape, ModelShape, RecurrentState
from kvgate.budget.model.weights import Weights, checkpoint_ratio, weight_parts
from kvgate.budget.releases.versions import accounting_of
from kvgate.catalogue import load_model
from kvgate.hf_config.blocks import replicated, vector
from kvgate.judgement.assessment import Assessment
from kvgate.judgement.models import look_up_model
from kvgate.judgement.what_if import assess_request
from kvgate.rules.checks import judge_budget
from support.builders import catalogue_shape, new_model_shape, new_request
from support.tables import table

QWEN = "Qwen/Qwen3-8B"
INDEX_BYTES = 16_381_470_720
"""`total_size` of its published model.safetensors.index.json."""


def ledger_weights(budget: Budget) -> int:
    assert budget.tightest is not None
    assert budget.tightest.ledger is not None
    return budget.tightest.ledger.weights.expected


def test_a_published_index_agrees_with_the_formulas() -> None:
    shape, _ = look_up_model(QWEN)
    assert shape is not None
    assert shape.checkpoint_bytes == INDEX_BYTES
    assert checkpoint_ratio(shape) == 1


@table("name", [n for n in catalogue.model_names() if catalogue.load_model(n).safetensors_bytes])
def test_every_index_of_the_catalogue_agrees(name: str) -> None:
    shape, _ = look_up_model(name)
    assert shape is not None
    assert checkpoint_ratio(shape) == 1


@pytest.mark.parametrize(
    ("index_bytes", "scaled"),
    [
        (INDEX_BYTES * 11 // 10, True),
        (INDEX_BYTES // 2, True),
        (0, False),
        (INDEX_BYTES * 1002 // 1000, False),
    ],
)
def test_the_weights_of_a_rank_are_scaled_to_another_total(index_bytes: int, *, scaled: bool) -> None:
    shape = replace(catalogue_shape(QWEN), checkpoint_bytes=index_bytes)
    budget = plan(new_request(shape=shape, tensor=2))
    plain = ledger_weights(plan(new_request(shape=catalogue_shape(QWEN), tensor=2)))
    ratio = Fraction(ledger_weights(budget), plain)
    assert float(ratio) == pytest.approx(index_bytes / INDEX_BYTES if scaled else 1, rel=1e-6)
    assert ("CheckpointDecidesWeights" in {f.rule.id for f in judge_budget(budget)}) is scaled


def test_a_what_if_can_bring_the_index() -> None:
    assessment = assess_request({"model": QWEN, "gpu": "H100-SXM-80GB", "checkpoint_bytes": 2 * INDEX_BYTES})
    assert "CheckpointDecidesWeights" in {finding.rule.id for finding in assessment.findings}


HQQ = {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}}
QUARTER = 5 * GIB


def hqq_verdict(**more: Any) -> Assessment:
    """A Qwen3-8B, 15.26 GiB in bfloat16, in a format without a formula."""
    config = {**load_model(QWEN).config, "quantization_config": HQQ}
    return assess_request({"model_config": config, "gpu": "L4-24GB", "max_model_len": 8192, **more})


def test_a_format_without_a_formula_has_no_budget_until_the_checkpoints_bytes_are_known() -> None:
    unknown, known = hqq_verdict(), hqq_verdict(checkpoint_bytes=QUARTER)
    assert (unknown.verdict, known.verdict) == (Verdict.UNKNOWN, Verdict.FITS)
    assert known.budget is not None
    assert known.budget.tightest is not None
    assert known.budget.tightest.ledger is not None
    weights = known.budget.tightest.ledger.weights
    assert weights.low < QUARTER < weights.high
    assert weights.expected == pytest.approx(QUARTER, rel=0.02)
    assert 0.15 < (weights.high - weights.low) / weights.expected < 0.3
    assert "CheckpointDecidesWeights" in {finding.rule.id for finding in known.findings}


def test_weights_that_are_given_need_no_formula_either() -> None:
    assert hqq_verdict(weights_bytes=QUARTER).verdict is Verdict.FITS


@pytest.mark.parametrize(
    ("checkpoint_gib", "verdict"), [(12, Verdict.FITS), (18, Verdict.MAY_NOT_FIT), (30, Verdict.DOES_NOT_FIT)]
)
def test_only_what_is_certain_is_refused_by_the_bytes_of_a_checkpoint(checkpoint_gib: int, verdict: Verdict) -> None:
    assert hqq_verdict(checkpoint_bytes=checkpoint_gib * GIB).verdict is verdict


def test_ranks_share_a_format_without_a_formula_with_a_wider_interval() -> None:
    widths = []
    for tensor in (1, 2):
        budget = hqq_verdict(checkpoint_bytes=QUARTER, tensor_parallel_size=tensor).budget
        assert budget is not None
        assert budget.tightest is not None
        assert budget.tightest.ledger is not None
        weights = budget.tightest.ledger.weights
        assert weights.low < QUARTER // tensor < weights.high
        widths.append((weights.high - weights.low) / weights.expected)
    assert widths[0] < widths[1]


MODELS = [
    "meta-llama/Llama-3.1-70B-Instruct",
    "Qwen/Qwen3-30B-A3B-FP8",
    "Qwen/Qwen3-0.6B",
    "deepseek-ai/DeepSeek-V3",
    "openai-community/gpt2",
    "google/gemma-3-27b-it",
    "Qwen/Qwen3.6-27B-FP8",
    "openai/whisper-large-v3",
    "openai/gpt-oss-20b",
    "Qwen/Qwen3-VL-8B-Instruct",
]


def parts_of(shape: ModelShape, tensor: int = 1, stage: tuple[int, int] | None = None) -> dict[str, int]:
    layers = stage or (0, len(shape.layers))
    request = new_request(shape=shape, tensor=tensor)

    def weigh(part: ModelShape) -> Weights:
        return weights_of(part, request, accounting_of(request.vllm_version), layers)

    parts = weight_parts(shape, layers, weigh)
    assert sum(part.size_bytes for part in parts) == weigh(shape).loaded_bytes
    assert all(part.size_bytes > 0 for part in parts)
    return {part.name: part.size_bytes for part in parts}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tensor", [1, 2])
def test_the_parts_are_all_that_is_loaded(name: str, tensor: int) -> None:
    shape = catalogue_shape(name)
    middle = len(shape.layers) // 2
    for stage in [(0, len(shape.layers)), (0, middle), (middle, len(shape.layers))]:
        parts_of(shape, tensor, stage)


def test_a_70b_is_mostly_feed_forward() -> None:
    parts = parts_of(catalogue_shape("meta-llama/Llama-3.1-70B-Instruct"))
    assert parts["embedding"] == parts["head"] == 128_256 * 8192 * 2
    assert parts["attention"] == 80 * (8192 * (64 + 2 * 8) * 128 + 64 * 128 * 8192) * 2
    assert parts["feed-forward"] == 80 * 3 * 8192 * 28_672 * 2
    assert parts["norms"] == (80 * 2 + 1) * 8192 * 2


def test_ends_stand_on_their_stages() -> None:
    shape = catalogue_shape("meta-llama/Llama-3.1-70B-Instruct")
    assert "head" not in parts_of(shape, stage=(0, 40))
    assert "embedding" not in parts_of(shape, stage=(40, 80))


def test_tied_ends_count_once_where_they_share_a_rank() -> None:
    shape = new_model_shape(tie_word_embeddings=True)
    assert "head" not in parts_of(shape)
    assert parts_of(shape, stage=(16, 32))["head"] == 128_256 * 4096 * 2


def test_mla_keeps_absorbed_copies_and_experts_hold_the_most() -> None:
    parts = parts_of(catalogue_shape("deepseek-ai/DeepSeek-V3"))
    assert parts["MLA's absorbed copies"] == 61 * 128 * (128 + 128) * 512 * 2
    assert max(parts, key=parts.__getitem__) == "experts and routers"


def test_recurrent_layers_and_towers_have_rows_of_their_own() -> None:
    matrices = (replicated("in_proj", 64, columns=32), vector("mixer_norm", 16))
    state = LayerShape(mixers=(RecurrentState(kind="GDN"),), matrices=matrices)
    tower = Encoder(
        matrices=((replicated("qkv", 32, columns=8), 3),), hidden_size=8, intermediate_size=8, items=()
    )  # fmt: skip
    parts = parts_of(new_model_shape(layers=(state,) * 2, encoders=(tower,)))
    assert parts["recurrent layers"] == 2 * 64 * 32 * 2
    assert parts["norms"] == (2 * 16 + 4096) * 2
    assert parts["encoders"] == 3 * 32 * 8 * 2


def test_a_matrix_as_stored_has_its_ranks_share_of_the_bytes_of_the_checkpoint() -> None:
    stored = WeightFormat(method="gguf", format="as-stored", stored_bytes=100, stored_elements=80)
    half = LocalMatrix(parts=(10,), columns=4, element_bytes=2)
    assert list(stored_tensors(half, stored)) == [50]
    uneven = LocalMatrix(parts=(9,), columns=3, element_bytes=2)  # 33.75 bytes take 34
    assert list(stored_tensors(uneven, stored)) == [34]


def test_attention_alone_has_no_recurrent_part() -> None:
    shape = catalogue_shape("openai/gpt-oss-20b")  # sinks and biases are matrices of attention too
    request = new_request(shape=shape)
    layers = (0, len(shape.layers))
    parts = weight_parts(shape, layers, lambda part: weights_of(part, request, accounting_of("0.33.0"), layers))
    assert {"attention", "experts and routers", "norms"} <= {part.name for part in parts}
    assert "recurrent layers" not in {part.name for part in parts}


GEMMA, QWEN_MOE = "google/gemma-4-26B-A4B-it", "Qwen/Qwen3-30B-A3B"
"""Experts of 704 with gelu, and of 768 with silu; a quarter of either is no multiple of 128."""


def expert_bytes(model: str, **settings: Any) -> int:
    values = {"model": model, "gpu": "B200-SXM-180GB", "tensor_parallel_size": 4, "vllm_version": "0.33.0", **settings}
    budget = assess_request(values).budget
    assert budget is not None
    return ledger_weights(budget)


@pytest.mark.parametrize(
    ("model", "settings", "is_padded"),
    [
        (QWEN_MOE, {}, True),
        (QWEN_MOE, {"vllm_version": "0.24.0"}, True),
        (QWEN_MOE, {"moe_backend": "flashinfer_trtllm"}, True),
        (QWEN_MOE, {"vllm_version": "0.23.0"}, False),
        (QWEN_MOE, {"moe_backend": "triton"}, False),
        (QWEN_MOE, {"moe_backend": "flashinfer_cutlass"}, False),
        (QWEN_MOE, {"enable_lora": True}, False),
        (GEMMA, {}, False),
        (GEMMA, {"vllm_version": "0.25.1"}, False),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", {}, False),
    ],
    ids=str,
)
def test_experts_are_padded_for_the_kernels_that_compute_them(
    model: str,
    settings: dict[str, Any],
    is_padded: bool,  # noqa: FBT001
) -> None:
    """FlashInfer's TRT-LLM kernels take steps of 128; they lack gelu, and a softmax whose shares are not normalised."""
    others = {**settings, "gpu": "H100-SXM-80GB", "moe_backend": "auto"}
    ratio = Fraction(expert_bytes(model, **settings), expert_bytes(model, **others))
    assert ratio > Fraction(11, 10) if is_padded else abs(ratio - 1) < Fraction(1, 1000)


def test_plain_experts_with_the_swiglu_of_openai_are_not_padded() -> None:
    config = {**catalogue.load_model("openai/gpt-oss-20b").config}
    config.pop("quantization_config", None)
    sizes = {
        gpu: expert_bytes("mine/plain", model_config=config, gpu=gpu) for gpu in ("B200-SXM-180GB", "H100-SXM-80GB")
    }
    assert len(set(sizes.values())) == 1
