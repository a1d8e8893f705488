"""What a server of one release builds of a model."""

from dataclasses import replace
from functools import lru_cache
from itertools import compress

from kvgate.budget.model_shape import Encoder, ModelShape
from kvgate.budget.request import EngineSettings
from kvgate.budget.versions import Accounting


def built_shape(shape: ModelShape, accounting: Accounting, settings: EngineSettings) -> ModelShape:
    """The model as this release builds it with these settings; the same object for the same question."""
    ties = shape.tied_by_wrapper and accounting.wrapper_ties_embeddings and not shape.tie_word_embeddings
    kept = tuple(_is_built(encoder, accounting, settings) for encoder in shape.encoders)
    return shape if all(kept) and not ties else _built(shape, kept, ties=ties)


def _is_built(encoder: Encoder, accounting: Accounting, settings: EngineSettings) -> bool:
    """An encoder that no prompt may use is left out (0.17+, `_mark_tower_model`)."""
    return not accounting.leaves_out_unused_encoders or any(settings.takes(item.modality) for item in encoder.items)


@lru_cache(maxsize=1024)
def _built(shape: ModelShape, kept: tuple[bool, ...], *, ties: bool) -> ModelShape:
    encoders = tuple(compress(shape.encoders, kept))
    return replace(shape, encoders=encoders, tie_word_embeddings=shape.tie_word_embeddings or ties)
