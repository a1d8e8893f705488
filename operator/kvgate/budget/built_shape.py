"""The parts of a model that a server of one release builds."""

from dataclasses import replace
from functools import lru_cache

from kvgate.budget.matrix import whole
from kvgate.budget.model_shape import MROPE_POSITIONS, Encoder, ModelShape, RotaryCache
from kvgate.budget.request import EngineSettings
from kvgate.budget.versions import Accounting


def built_shape(shape: ModelShape, accounting: Accounting, settings: EngineSettings) -> ModelShape:
    """The model as this release builds it with these settings; the same object for the same question."""
    ties = shape.tied_by_wrapper and accounting.wrapper_ties_embeddings and not shape.tie_word_embeddings
    left_out = tuple(not _is_built(encoder, accounting, settings) for encoder in shape.encoders)
    uncut = tuple(_is_uncut(encoder, settings) for encoder in shape.encoders)
    widens = accounting.interleaved_positions_have_room and any(table.is_interleaved for table in shape.rotary)
    if not (ties or widens or any(left_out) or any(uncut)):
        return shape
    return _built(shape, left_out, uncut, ties=ties, widens=widens)


def _is_built(encoder: Encoder, accounting: Accounting, settings: EngineSettings) -> bool:
    """An encoder that no prompt may use is left out (0.17+, `_mark_tower_model`)."""
    return not accounting.leaves_out_unused_encoders or any(settings.takes(item.modality) for item in encoder.items)


def _is_uncut(encoder: Encoder, settings: EngineSettings) -> bool:
    """Whole on every rank if asked for, and where its heads do not divide (vLLM 0.32, `is_vit_use_data_parallel`)."""
    return settings.mm_encoder_tp_mode == "data" or encoder.num_heads % settings.parallelism.tensor > 0


@lru_cache(maxsize=1024)
def _built(
    shape: ModelShape, left_out: tuple[bool, ...], uncut: tuple[bool, ...], *, ties: bool, widens: bool
) -> ModelShape:
    every = zip(shape.encoders, left_out, uncut, strict=True)
    encoders = tuple(_uncut(encoder) if is_uncut else encoder for encoder, is_out, is_uncut in every if not is_out)
    rotary = tuple(map(_widened, shape.rotary)) if widens else shape.rotary
    return replace(shape, encoders=encoders, rotary=rotary, tie_word_embeddings=shape.tie_word_embeddings or ties)


def _widened(table: RotaryCache) -> RotaryCache:
    return replace(table, max_position=table.max_position * MROPE_POSITIONS) if table.is_interleaved else table


def _uncut(encoder: Encoder) -> Encoder:
    return replace(encoder, matrices=tuple((whole(matrix), count) for matrix, count in encoder.matrices))
