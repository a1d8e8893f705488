"""Two sources of one fact about a model: honest ones agree, and those that cannot both be right never make Fits."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kvgate import catalogue
from kvgate.budget import Verdict
from kvgate.budget.answers.contradictions import SAME_WEIGHTS, compare, contradictions_of, size_text
from kvgate.checkpoint.published import NO_MODELS, Published, PublishedModels, by_name, name_key
from kvgate.checkpoint.tensors import StoredTensor, summarize
from kvgate.judgement.assessment import Assessment, Confidence
from kvgate.judgement.models import look_up_model
from kvgate.judgement.what_if import assess_request
from support.builders import new_llama_config

QWEN = "Qwen/Qwen3-8B"
QWEN_BYTES = 16_381_470_720
LARGE = "meta-llama/Llama-3.1-70B-Instruct"
UNKNOWN = "acme/own"


def config_of(name: str, **changes: Any) -> Mapping[str, Any]:
    return {**catalogue.load_model(name).config, **changes}


def locked(name: str, config: Mapping[str, Any], **facts: Any) -> PublishedModels:
    entry = Published(name=name, config=config, **facts)
    return PublishedModels(locked=by_name([entry]), places={name_key(name, entry.revision): "models.lock:14"})


def judged(name: str, models: PublishedModels = NO_MODELS, **settings: Any) -> Assessment:
    return assess_request({"model": name, "gpu": "B200-SXM-180GB", "max_model_len": 2048, **settings}, models=models)


def told(assessment: Assessment) -> str:
    return next((each.message for each in assessment.findings if each.rule.id == "SourcesContradict"), "")


def tensors(*, columns: int = 4096) -> tuple[StoredTensor, ...]:
    """The tensors of `new_llama_config()`, whose matrices have as many columns as the config says, or fewer."""
    shapes = {"self_attn.q_proj": (4096, columns), "self_attn.k_proj": (1024, columns), "self_attn.v_proj": (1024, columns),
              "self_attn.o_proj": (4096, columns), "mlp.gate_proj": (14336, columns), "mlp.up_proj": (14336, columns),
              "mlp.down_proj": (4096, 14336 * columns // 4096)}  # fmt: skip
    layers = [
        StoredTensor(name=f"model.layers.{index}.{name}.weight", dtype="BF16", shape=shape)
        for index in range(4)
        for name, shape in shapes.items()
    ]
    ends = [
        StoredTensor(name=name, dtype="BF16", shape=(128256, 4096))
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    ]
    return *layers, *ends


GROUPS = summarize(tensors())
STORED_BYTES = sum(group.size_bytes for group in GROUPS)

CONTRADICTING: dict[str, tuple[str, PublishedModels, dict[str, Any], tuple[str, str]]] = {
    "an index of one byte": (UNKNOWN, locked(UNKNOWN, config_of(QWEN), checkpoint_bytes=1), {}, ("index states 1 byte", "15.26 GiB")),
    "a checkpoint of 8 bytes": (QWEN, NO_MODELS, {"checkpoint_bytes": 8}, ("8 bytes of weights", "config.json 15.26 GiB")),
    "headers of fewer elements": (
        UNKNOWN, locked(UNKNOWN, new_llama_config(num_hidden_layers=80), tensors=GROUPS), {}, ("the headers", "config.json"),
    ),
    "quantised tensors of some bytes": (
        UNKNOWN,
        locked(
            UNKNOWN,
            new_llama_config(),
            tensors=summarize(
                StoredTensor(name=each.name, dtype="I32", shape=(1,)) if "_proj" in each.name else each for each in tensors()
            ),
        ),
        {},
        ("4 bytes for a module", "elements in it"),
    ),
    "an index that the headers do not have": (
        UNKNOWN, locked(UNKNOWN, new_llama_config(), tensors=GROUPS, index_bytes=1), {}, ("the headers", "index 1 byte"),
    ),
    "a size that the tensors do not have": (
        UNKNOWN, locked(UNKNOWN, new_llama_config(), tensors=GROUPS, checkpoint_bytes=STORED_BYTES - 1), {},
        ("the headers", "checkpointBytes of the entry"),
    ),
    "layers": (LARGE, locked(LARGE, config_of(LARGE, num_hidden_layers=1)), {}, ("models.lock:14 states 1 layer", "catalogue 80 layers")),
    "KV heads": (QWEN, locked(QWEN, config_of(QWEN, num_key_value_heads=1)), {}, ("num_kv_heads 1", "the catalogue num_kv_heads 8")),
    "a window": (
        QWEN, locked(QWEN, config_of(QWEN, use_sliding_window=True, sliding_window=128, max_window_layers=0)), {},
        ("sliding_window 128", "sliding_window 0"),
    ),
    "width": (QWEN, locked(QWEN, config_of(QWEN, hidden_size=1024)), {}, ("hidden_size 1024", "hidden_size 4096")),
    "length": (QWEN, locked(QWEN, config_of(QWEN, max_position_embeddings=2048)), {}, ("2,048 tokens", "40,960 tokens")),
    "bytes of the catalogue": (
        QWEN, locked(QWEN, config_of(QWEN, quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True})),
        {}, ("models.lock:14", "the catalogue 15.26 GiB"),
    ),
    "a config that is given": (
        QWEN, NO_MODELS, {"model_config": config_of(QWEN, num_hidden_layers=2)}, ("the config that is given states 2 layers", "36 layers"),
    ),
    "another revision": (
        LARGE, locked(LARGE, config_of(LARGE, num_hidden_layers=1), revision="v2"), {"revision": "v2"}, ("1 layer", "80 layers"),
    ),
    "a draft": (
        QWEN,
        locked("Qwen/Qwen3-0.6B", config_of("Qwen/Qwen3-0.6B", num_hidden_layers=1)),
        {"speculative_config": {"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 3}},
        ("models.lock:14 states 1 layer", "28 layers"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "models", "settings", "parts"), CONTRADICTING.values(), ids=CONTRADICTING)
def test_what_contradicts_never_fits_and_both_sources_are_named(
    name: str, models: PublishedModels, settings: dict[str, Any], parts: tuple[str, str]
) -> None:
    assessment = judged(name, models, **settings)
    assert assessment.verdict is Verdict.MAY_NOT_FIT
    assert assessment.confidence is Confidence.CONTRADICTORY
    for part in parts:
        assert part in told(assessment)
    assert not any(each.severity.value == "error" for each in assessment.findings)


AGREEING: dict[str, tuple[str, PublishedModels, dict[str, Any]]] = {
    "the catalogue alone": (QWEN, NO_MODELS, {}),
    "the published index": (QWEN, locked(QWEN, config_of(QWEN), checkpoint_bytes=QWEN_BYTES), {}),
    "an index in float32": (UNKNOWN, locked(UNKNOWN, config_of(QWEN), checkpoint_bytes=2 * QWEN_BYTES), {}),
    "a tied head in float32 beside its embedding": (
        UNKNOWN, locked(UNKNOWN, config_of("Qwen/Qwen3-0.6B"), checkpoint_bytes=4 * (596_049_920 + 151936 * 1024)), {},
    ),
    "headers": (UNKNOWN, locked(UNKNOWN, new_llama_config(), tensors=GROUPS, checkpoint_bytes=STORED_BYTES), {}),
    "an index from before a conversion": (
        UNKNOWN, locked(UNKNOWN, new_llama_config(), tensors=GROUPS, index_bytes=2 * STORED_BYTES), {},
    ),
    "an index that counts elements": (
        UNKNOWN, locked(UNKNOWN, new_llama_config(), tensors=GROUPS, index_bytes=STORED_BYTES // 2), {},
    ),
    "a format without a formula": (
        UNKNOWN, locked(UNKNOWN, config_of(QWEN, quantization_config={"quant_method": "hqq"}), checkpoint_bytes=QWEN_BYTES // 4), {},
    ),
    "another revision that is quantised": (
        QWEN, locked(QWEN, config_of(QWEN, quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}),
                     revision="awq"), {"revision": "awq"},
    ),
    "quantised while it is loaded": (QWEN, locked(QWEN, config_of(QWEN), checkpoint_bytes=QWEN_BYTES), {"quantization": "fp8"}),
    "a model that nobody else knows": (UNKNOWN, locked(UNKNOWN, config_of(QWEN, num_hidden_layers=1)), {}),
    "overrides of the user": (QWEN, NO_MODELS, {"hf_overrides": {"num_hidden_layers": 2}}),
    "bytes that the user measured": (QWEN, NO_MODELS, {"checkpoint_bytes": 8, "weights_bytes": QWEN_BYTES}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "models", "settings"), AGREEING.values(), ids=AGREEING)
def test_what_honest_sources_differ_by_is_no_contradiction(
    name: str, models: PublishedModels, settings: dict[str, Any]
) -> None:
    assessment = judged(name, models, **settings)
    assert told(assessment) == ""
    assert assessment.confidence is not Confidence.CONTRADICTORY
    assert assessment.verdict is Verdict.FITS


def published_sizes(entry: catalogue.ModelEntry) -> Iterator[int]:
    """Yield the sizes that the publisher states for the checkpoint, or for a float32 copy of a plain one."""
    if entry.safetensors_bytes:
        yield entry.safetensors_bytes
    if entry.parameters and not catalogue.is_quantised(entry.config):
        yield from (2 * entry.parameters, 4 * entry.parameters)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_no_catalogued_model_contradicts_what_its_publisher_states() -> None:
    """Its config and its published numbers of bytes and parameters, in the catalogue and in a lock file."""
    found = {}
    for name in catalogue.model_names():
        entry = catalogue.load_model(name)
        sources = [
            NO_MODELS,
            *(locked(name, entry.config, checkpoint_bytes=size) for size in (0, *published_sizes(entry))),
        ]
        for models in sources:
            shape, _ = look_up_model(name, models=models)
            assert shape is not None
            if each := contradictions_of(shape):
                found[name] = each
    assert found == {}


def test_a_contradiction_that_does_not_fit_is_said_and_refuses_nothing() -> None:
    assessment = judged(UNKNOWN, locked(UNKNOWN, config_of(QWEN), checkpoint_bytes=10**14))
    assert assessment.verdict is Verdict.DOES_NOT_FIT
    assert not assessment.is_refusal
    assert judged(LARGE, gpu="L4-24GB").is_refusal


def test_the_catalogue_goes_first_where_the_user_says_so() -> None:
    models = locked(LARGE, config_of(LARGE, num_hidden_layers=1))
    first = PublishedModels(locked=models.locked, catalogue_first=True)
    assert judged(LARGE, first, gpu="L4-24GB").is_refusal
    unlisted = PublishedModels(locked=locked(UNKNOWN, config_of(QWEN)).locked, catalogue_first=True)
    assert judged(UNKNOWN, unlisted).verdict is Verdict.FITS


@pytest.mark.parametrize(
    ("value", "agrees"), [(59, False), (60, True), (100, True), (300, True), (301, False), (0, True)]
)
def test_the_ends_of_a_tolerance_agree(value: int, *, agrees: bool) -> None:
    found = list(compare("weights", ("one", value), ("other", 100), within=SAME_WEIGHTS))
    assert (found == []) is agrees


def test_sizes_are_shown_in_bytes_where_gib_would_hide_them() -> None:
    assert [size_text(size) for size in (1, 8, 1 << 20, 1 << 30)] == [
        "1 byte",
        "8 bytes",
        "1,048,576 bytes",
        "1.00 GiB",
    ]
