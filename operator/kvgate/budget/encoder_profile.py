"""The encoder's part in the profile run: the largest images or sounds that one step may hold."""

from kvgate.budget.matrix import Cut
from kvgate.budget.model_shape import Encoder, MediaItem
from kvgate.budget.run import Run
from kvgate.record import record


@record
class EncoderProfile:
    """Bytes of one rank."""

    item_tokens: int = 0
    """Embeddings of the largest item, as vLLM reckons."""
    peak_bytes: int = 0
    """While the encoder runs; the language model follows."""
    worst_bytes: int = 0
    """The same at its highest."""
    kept_bytes: int = 0
    """Alive while the language model follows."""


def encoder_profile(run: Run) -> EncoderProfile:
    """Profile the modality with the largest item; as many items as the budget holds are encoded at once (`MultiModalBudget`)."""
    if not run.has_encoder:
        return EncoderProfile()
    profiles = [
        _profile(encoder, item, run)
        for encoder in run.shape.encoders
        for item in encoder.items
        if item.modality in run.modalities
    ]
    return max(profiles, key=lambda profile: profile.item_tokens, default=EncoderProfile())


def _profile(encoder: Encoder, item: MediaItem, run: Run) -> EncoderProfile:
    """Inside a block of the tower: two intermediate and four hidden sizes per patch, to 0.01 GiB in Qwen3.5-4B.

    What stays: the embeddings of all items, and with the V1 runner their pixels. Gemma-3 and Mistral Small 3.1 (0.19) agree to
    0.01 GiB, Llava (0.10) too; Qwen3-VL (0.11) to 0.1. Less shrinks with tensor parallelism than this says: Qwen3.8-27B-FP8 took
    1.59 GiB on two RTX 5090 (0.27) instead of 1.28; the high end divides nothing.
    """
    one = item.tokens_within(run.max_model_len)
    reckoned = max(one, item.reckoned_tokens) if run.accounting.pads_encoder_outputs else one
    budget = max(run.max_num_batched_tokens, reckoned)
    count = budget // max(1, reckoned)
    patches = count * one * encoder.patches_per_token
    width, uncut = (
        2 * encoder.intermediate_size // ranks + 4 * encoder.hidden_size for ranks in (_ranks(encoder, run), 1)
    )
    inputs = patches * run.element_bytes * _input_elements(encoder)
    embeddings = count * _kept_tokens(run, one, reckoned, budget) * encoder.embedding_parts
    embeddings *= run.shape.hidden_size * run.element_bytes
    peak = inputs + max(patches * run.element_bytes * width, embeddings)
    return EncoderProfile(
        item_tokens=reckoned,
        peak_bytes=peak,
        worst_bytes=max(_worst(item, peak), inputs + patches * run.element_bytes * uncut),
        kept_bytes=embeddings if run.v2_runner else inputs + embeddings,
    )


def _ranks(encoder: Encoder, run: Run) -> int:
    """That share the tower's intermediate size."""
    return run.parallelism.tensor if any(matrix.cut is not Cut.WHOLE for matrix, _ in encoder.matrices) else 1


def _worst(item: MediaItem, peak: int) -> int:
    """Widen the peak of a video: the frames that it may have have changed between releases by more than a factor of two."""
    return 2 * peak if item.modality == "video" else peak + peak // 3


def _kept_tokens(run: Run, one: int, reckoned: int, budget: int) -> int:
    """Embeddings that are kept for one item."""
    return {"budget": budget, "item": reckoned}.get(run.accounting.pads_encoder_outputs, one)


def _input_elements(encoder: Encoder) -> int:
    """Elements of a patch: what its embedding multiplies."""
    sizes = [matrix.columns for matrix, _ in encoder.matrices if "patch_embed" in matrix.name]
    return max(sizes, default=0)
