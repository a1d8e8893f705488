"""What a server of one release builds of a model."""

from dataclasses import replace
from functools import lru_cache

from kvgate.budget.model_shape import ModelShape
from kvgate.budget.versions import Accounting


@lru_cache(maxsize=1024)
def built_shape(shape: ModelShape, accounting: Accounting) -> ModelShape:
    """The model as this release builds it; the same object for the same question."""
    if shape.tied_by_wrapper and accounting.wrapper_ties_embeddings and not shape.tie_word_embeddings:
        return replace(shape, tie_word_embeddings=True)
    return shape
