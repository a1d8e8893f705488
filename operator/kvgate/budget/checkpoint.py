"""Bytes by a checkpoint's own index beside bytes by the formulas; where the two differ, the index wins."""

from fractions import Fraction
from functools import lru_cache

from kvgate.budget.hardware import SINGLE_GPU
from kvgate.budget.model_shape import ModelShape
from kvgate.budget.weights import rank_weights

EXACT_WITHIN = Fraction(1, 200)
"""Closer than this the formulas are right: scales and names of tensors are the rest (28 published indexes agree to 0.01 %)."""
_STORED_AS_IT_IS = (9, 0)
"""Compute capability of kernels that hold MXFP4 as the checkpoint does."""


@lru_cache(maxsize=512)
def checkpoint_ratio(shape: ModelShape) -> Fraction:
    """Bytes of the index ÷ bytes by formula; 1 where no index is known, or the two agree.

    A checkpoint may hold layers of multi-token prediction that vLLM leaves out: the nearer of both counts is compared.
    """
    if not shape.checkpoint_bytes:
        return Fraction(1)
    counted = {_stored_bytes(shape, with_drafts=with_drafts) for with_drafts in (False, True)}
    ratios = [Fraction(shape.checkpoint_bytes, count) for count in counted if count]
    nearest = min(ratios, key=lambda ratio: abs(ratio - 1), default=Fraction(1))
    return Fraction(1) if abs(nearest - 1) <= EXACT_WITHIN else nearest


def _stored_bytes(shape: ModelShape, *, with_drafts: bool) -> int:
    """The whole model on one GPU, as it is stored."""
    return rank_weights(
        shape,
        SINGLE_GPU,
        (0, len(shape.layers)),
        unsplit_large_blocks=False,
        compute_capability=_STORED_AS_IT_IS,
        with_drafts=with_drafts,
    ).parameter_bytes
