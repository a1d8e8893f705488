"""The encoder's part in the profile run: the largest images or sounds that one step may hold."""

from dataclasses import dataclass

from kvgate.budget.model_shape import Encoder
from kvgate.budget.run import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderProfile:
    """Bytes of one rank."""

    item_tokens: int = 0
    """Embeddings of the largest item."""
    peak_bytes: int = 0
    """While the encoder runs; the language model follows."""
    worst_bytes: int = 0
    """The same at its highest: what a video may have of frames differs between releases by more than a factor of two."""
    kept_bytes: int = 0
    """Dummy inputs and embeddings, alive until the profile run ends."""


def encoder_profile(run: Run) -> EncoderProfile:
    """Of the modality with the largest item: as many of them as the budget holds are encoded at once (`MultiModalBudget`)."""
    profiles = [_profile(encoder, run) for encoder in run.shape.encoders] if run.has_encoder else []
    return max(profiles, key=lambda profile: profile.item_tokens, default=EncoderProfile())


def _profile(encoder: Encoder, run: Run) -> EncoderProfile:
    """Inside a block of the tower: two intermediate and four hidden sizes per patch (two starts of Qwen3.5)."""
    item = max((item.tokens_within(run.max_model_len) for item in encoder.items), default=0)
    if not item:
        return EncoderProfile()
    budget = max(run.max_num_batched_tokens, item)
    tokens = budget // item * item
    patches = tokens * encoder.patches_per_token
    width = 2 * encoder.intermediate_size // run.parallelism.tensor + 4 * encoder.hidden_size
    block = patches * run.element_bytes * width
    inputs = patches * run.element_bytes * _input_elements(encoder)
    embeddings = tokens * run.shape.hidden_size * run.element_bytes
    return EncoderProfile(item_tokens=item, peak_bytes=inputs + max(block, embeddings), kept_bytes=inputs + embeddings)


def _input_elements(encoder: Encoder) -> int:
    """Elements of a patch: what its embedding multiplies."""
    sizes = [matrix.columns for matrix, _ in encoder.matrices if "patch_embed" in matrix.name]
    return max(sizes, default=0)
