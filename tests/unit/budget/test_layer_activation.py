"""What encoding the largest images takes, and what of it stays while the language model is profiled."""

from typing import Any

import pytest

from kvgate.budget.answers.answer import plan
from kvgate.budget.gpu.ledger import Ledger
from kvgate.budget.ground.units import GIB, gib
from support.builders import catalogue_accelerator, catalogue_shape, new_request

MISTRAL = "mistralai/Mistral-Small-3.1-24B-Instruct-2503"
SERIES = "https://github.com/llm-d-incubation/llm-d-planner/tree/d3121e05/accuracy/results/v0.19.0/logs"


def ledger(model: str, version: str, gpu: str = "H100-SXM-80GB", **settings: Any) -> Ledger:
    request = new_request(
        shape=catalogue_shape(model), accelerator=catalogue_accelerator(gpu), vllm_version=version, **settings
    )
    found = plan(request).stages[0].ledger
    assert found is not None
    return found


def parts(found: Ledger) -> dict[str, int]:
    return {name: value for name, value in found.lines[1].inputs if isinstance(value, int)}


def test_two_images_of_1540_pixels_stay_beside_the_sampler() -> None:
    """2.03 GiB logged (SERIES, mistralai-mistral-small)."""
    found = ledger(MISTRAL, "0.19.0")
    image, patches, hidden = 55 * 55, 110 * 110, 5120
    assert parts(found)["encoder_kept_bytes"] == 2 * (patches * 14 * 14 * 3 * 2 + image * hidden * 2)
    assert found.peak_activation.expected / GIB == pytest.approx(2.03, abs=0.02)


def test_an_image_is_one_item_of_the_batch_at_least() -> None:
    few, many = (parts(ledger(MISTRAL, "0.19.0", max_num_batched_tokens=tokens)) for tokens in (2048, 8192))
    assert many["encoder_kept_bytes"] == 2 * few["encoder_kept_bytes"]
    mask = 2 * (110 * 110) ** 2  # of all patches of both pictures
    assert many["encoder_bytes"] - 4 * mask == 2 * (few["encoder_bytes"] - mask)
    later = [parts(ledger(MISTRAL, "0.30.0", max_num_batched_tokens=tokens)) for tokens in (2048, 8192)]
    assert later[1]["encoder_bytes"] == 2 * later[0]["encoder_bytes"]


def test_0_11_kept_the_whole_budget_for_every_item() -> None:
    kept = [parts(ledger(MISTRAL, version))["encoder_kept_bytes"] for version in ("0.10.2", "0.11.0", "0.14.0")]
    assert kept[0] == kept[2]
    assert kept[1] - kept[0] == 2 * (8192 - 55 * 55) * 5120 * 2


def test_a_video_of_qwen3_vl_was_reckoned_with_its_timestamps() -> None:
    """2.31 GiB left on an RTX 3090 with 0.11.0 and weights of 14.77 (public log, index id 42588844709)."""
    settings = {"tensor": 4, "max_model_len": 65_536, "max_num_batched_tokens": 2048}
    found = ledger("Qwen/Qwen3-VL-30B-A3B-Instruct", "0.11.0", "RTX-3090-24GB", **settings)
    embeddings, pixels = 153_600 * 4 * 2048 * 2, 12_288 * 4 * 1536 * 2
    assert parts(found)["encoder_kept_bytes"] == embeddings + pixels
    left = found.available.expected + found.weights.expected - gib(14.77)
    assert left / GIB == pytest.approx(2.31, abs=0.1)
    later = ledger("Qwen/Qwen3-VL-30B-A3B-Instruct", "0.17.0", "RTX-3090-24GB", **settings)
    assert parts(later)["encoder_kept_bytes"] == 16_384 * 4 * (2048 * 2 + 1536 * 2)


@pytest.mark.parametrize(
    "settings",
    [
        {"language_model_only": True},
        {"skip_mm_profiling": True},
        {"limit_mm_per_prompt": (("image", 0),)},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_leave_encoders_out_of_the_profile(settings: dict[str, Any]) -> None:
    assert parts(ledger(MISTRAL, "0.33.0"))["encoder_bytes"] > 0
    found = parts(ledger(MISTRAL, "0.33.0", **settings))
    assert (found["encoder_bytes"], found["encoder_kept_bytes"]) == (0, 0)


def test_an_encoder_that_nobody_may_use_is_not_loaded_since_0_16() -> None:
    tower = [
        ledger(MISTRAL, version).weights.expected - ledger(MISTRAL, version, language_model_only=True).weights.expected
        for version in ("0.14.0", "0.16.0")
    ]
    assert tower[0] == 0
    assert gib(0.6) < tower[1] < gib(1.2)
    assert ledger(MISTRAL, "0.17.0", skip_mm_profiling=True).weights == ledger(MISTRAL, "0.17.0").weights


def test_text_alone_is_compiled_with_its_embedding_table() -> None:
    assert parts(ledger(MISTRAL, "0.33.0"))["compiler_bytes"] == 0
    assert parts(ledger(MISTRAL, "0.33.0", language_model_only=True))["compiler_bytes"] == 131_072 * 5120 * 2


def test_the_v2_runner_moves_pixels_to_the_gpu_only_while_it_encodes() -> None:
    """0.27 and later: dense models run on V2 (`EncoderRunner.profile_encoder_cache`); the embeddings stay until the run ends."""
    kept = [parts(ledger(MISTRAL, version))["encoder_kept_bytes"] for version in ("0.24.0", "0.27.0")]
    assert kept[0] - kept[1] == 2 * 110 * 110 * 14 * 14 * 3 * 2


@pytest.mark.parametrize("version", ["0.25.1", "0.26.0"])
def test_the_v2_runner_ran_no_encoder_at_first(version: str) -> None:
    """Dense models run on V2 since 0.25, and its profile runs encoders since 0.27 (`GPUModelRunner.profile_run`)."""
    found = parts(ledger(MISTRAL, version))
    assert (found["encoder_bytes"], found["encoder_kept_bytes"]) == (0, 0)


def test_the_inputs_of_every_layer_are_alive_beside_each() -> None:
    """Gemma-4-E4B: 42 slices of 256 for each token; 0.27.1 logged a peak of 0.22 GiB with 2048 tokens on RTX 3090."""
    found = parts(ledger("google/gemma-4-E4B-it", "0.27.1", max_num_batched_tokens=2048, max_num_seqs=256))
    assert found["layer_bytes"] == 2048 * 2 * (3 * 10_240 + 4 * 2560 + 42 * 256)


def test_an_uncut_tower_is_as_wide_on_every_rank() -> None:
    """`--mm-encoder-tp-mode data`; the high end divides nothing in either case, as Qwen3.8-27B-FP8 on two RTX 5090 shows."""
    settings = {"tensor": 2, "max_num_seqs": 2, "max_num_batched_tokens": 8192}
    shared, uncut = (
        ledger("Qwen/Qwen3.8-27B-FP8", "0.27.1", "RTX-5090-32GB", mm_encoder_tp_mode=mode, **settings)
        for mode in ("weights", "data")
    )
    patches = 65_536
    assert parts(uncut)["encoder_bytes"] - parts(shared)["encoder_bytes"] == patches * 2 * 4 * 1152
    assert shared.peak_activation.low < gib(1.59) < shared.peak_activation.high
    assert uncut.peak_activation.high >= shared.peak_activation.high


@pytest.mark.parametrize(("version", "images"), [("0.9.2", 3), ("0.10.2", 2)])
def test_the_last_image_of_a_budget_was_begun_before_0_10(version: str, images: int) -> None:
    """8192 tokens hold 2.7 images of 3025 (`max_num_mm_items_encoder_budget`)."""
    one = 110 * 110 * 14 * 14 * 3 * 2 + 55 * 55 * 5120 * 2
    kept = parts(ledger(MISTRAL, version, max_num_batched_tokens=8192))["encoder_kept_bytes"]
    assert kept == images * one


def test_no_more_images_are_encoded_than_the_prompts_of_a_batch_may_hold() -> None:
    settings = {"max_num_batched_tokens": 16_384, "max_num_seqs": 2, "limit_mm_per_prompt": (("image", 1),)}
    two, five = (
        parts(ledger(MISTRAL, "0.19.0", **{**settings, "max_num_seqs": seqs}))["encoder_kept_bytes"] for seqs in (2, 8)
    )
    assert two * 5 == five * 2


@pytest.mark.parametrize(
    ("version", "gpu", "patches"),
    [
        ("0.19.0", "RTX-5090-32GB", 280 * 9),
        ("0.27.1", "RTX-3090-24GB", None),
        ("0.27.1", "H100-SXM-80GB", 32 * 70 * 9),
    ],
)
def test_gemma_4_encodes_as_many_pictures_as_a_tenth_of_the_memory_holds(
    version: str, gpu: str, patches: int | None
) -> None:
    """One at a time at first; since 0.22 a patch is reckoned at 4 × 10,240 × 8 bytes (`_encoder_chunk`). E4B's video has 20,160 patches."""
    found = parts(ledger("google/gemma-4-E4B-it", version, gpu, max_num_batched_tokens=2048, max_num_seqs=8))
    chunk = catalogue_accelerator(gpu).memory_bytes // 10 // (4 * 10_240 * 8) if patches is None else patches
    video = 32 * 70 * 9
    assert found["encoder_bytes"] == 2 * (video * (768 + 768) + chunk * (768 + 3 * 3072 + 4 * 768))


def test_vllms_own_cutlass_kernels_reorder_the_tokens_of_4_bit_experts() -> None:
    """Gemma-4-26B-A4B in NVFP4 on RTX 5090 (0.19.2rc1, 16,384 tokens, WSL) left 7.15 GiB beside 15.67 of weights."""
    settings = {"max_num_batched_tokens": 16_384, "max_num_seqs": 2, "max_model_len": 256_000}
    plain, cutlass = (
        parts(ledger("google/gemma-4-26B-A4B-it", "0.19.2", "RTX-5090-32GB", moe_backend=backend, **settings))
        for backend in ("auto", "cutlass")
    )
    tokens = 16_384 * 8 * 2
    assert plain["workspace_bytes"] == tokens * (2816 + 2816)
    assert cutlass["workspace_bytes"] == tokens * (2816 + 704)
    assert cutlass["layer_bytes"] - plain["layer_bytes"] == tokens * 3 * 2816
