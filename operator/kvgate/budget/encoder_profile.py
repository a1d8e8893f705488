"""The encoder's part in the profile run: the largest images or sounds that one step may hold."""

from dataclasses import dataclass

from kvgate.budget.model_shape import Encoder
from kvgate.budget.run import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderProfile:
    """Bytes of one rank."""

    peak_bytes: int = 0
    """While the encoder runs; the language model follows."""
    kept_bytes: int = 0
    """Dummy inputs and embeddings, alive until the profile run ends."""


def encoder_profile(run: Run) -> EncoderProfile:
    """Of the encoder with the largest item: `budget // item` of them are encoded at once (`MultiModalBudget`)."""
    if not run.has_encoder:
        return EncoderProfile()
    encoder, item = max(
        ((encoder, item.tokens_within(run.max_model_len)) for encoder in run.shape.encoders for item in encoder.items),
        key=lambda largest: largest[1],
    )
    budget = max(run.max_num_batched_tokens, item)
    return _profile(encoder, budget // item * item, run)


def _profile(encoder: Encoder, tokens: int, run: Run) -> EncoderProfile:
    """Inside a block of the tower: two intermediate and four hidden sizes per patch (two starts of Qwen3.5)."""
    patches = tokens * encoder.patches_per_token
    block = patches * run.element_bytes * (2 * encoder.intermediate_size + 4 * encoder.hidden_size)
    inputs = patches * run.element_bytes * _input_elements(encoder)
    embeddings = tokens * run.shape.hidden_size * run.element_bytes
    return EncoderProfile(peak_bytes=inputs + max(block, embeddings), kept_bytes=inputs + embeddings)


def _input_elements(encoder: Encoder) -> int:
    """Elements of a patch: what its embedding multiplies."""
    sizes = [matrix.columns for matrix, _ in encoder.matrices if "patch_embed" in matrix.name]
    return max(sizes, default=0)
