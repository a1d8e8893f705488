"""The profile run of one rank of one pipeline stage, in which vLLM measures the memory that it needs."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from kvgate.budget.hardware import Accelerator, Parallelism
from kvgate.budget.matrix import whole
from kvgate.budget.model_shape import (
    DTYPE_BYTES,
    MROPE_POSITIONS,
    Encoder,
    LayerShape,
    ModelShape,
    RotaryCache,
    SparseMlp,
    distinct_layers,
)
from kvgate.budget.request import DEFAULT_GRAPHS, EngineSettings, GraphSettings
from kvgate.budget.versions import Accounting
from kvgate.record import record


@record
class Run:
    """The profile run of a rank; every term of the ledger beside the weights is a function of this.

    Symbols in formulas: T max_num_batched_tokens, S rows of the sampler, V vocabulary, H hidden size, I intermediate size of
    a rank, b bytes of an element.
    """

    shape: ModelShape
    accelerator: Accelerator
    accounting: Accounting
    parallelism: Parallelism
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enforce_eager: bool
    graphs: GraphSettings = DEFAULT_GRAPHS
    modalities: tuple[str, ...] = ()
    """Modalities that are encoded in the profile run: `image`, `video`, `audio`."""
    takes_embeddings: bool = False
    """Prompts may hold images or sounds, so the language model is fed with embeddings, not with tokens."""
    draft_tokens: int = 0
    """Tokens drafted ahead per step and verified together."""
    stage: tuple[int, int]

    @property
    def num_layers(self) -> int:
        return self.stage[1] - self.stage[0]

    @property
    def layers(self) -> Iterator[LayerShape]:
        """Every different layer of the stage once."""
        return (layer for layer, _ in distinct_layers(self.shape, *self.stage))

    @property
    def has_sampler(self) -> bool:
        return self.stage[1] == len(self.shape.layers)

    @property
    def has_encoder(self) -> bool:
        """The first stage encodes the largest images or sounds before the language model runs."""
        return self.stage[0] == 0 and bool(self.modalities)

    @property
    def is_sparse(self) -> bool:
        return any(isinstance(mlp, SparseMlp) for layer in self.layers for mlp in layer.mlps)

    @property
    def v2_runner(self) -> bool:
        return self.accounting.uses_v2_runner(self.shape.architecture, is_dense=self.shape.is_dense)

    @property
    def is_compiled(self) -> bool:
        return not self.enforce_eager and self.graphs.compiles is not False

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.shape.dtype]

    @property
    def sampler_rows(self) -> int:
        """Dummy requests of the profile run: the tokens are dealt out over max_num_seqs, at least one each."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)

    @property
    def logits_bytes(self) -> int:
        """Rows of the whole vocabulary in float32: every tensor-parallel rank gathers all of it."""
        return self.sampler_rows * self.shape.vocab_size * 4

    @property
    def token_bytes(self) -> int:
        """One hidden state per token of the profile run."""
        return self.max_num_batched_tokens * self.shape.hidden_size * self.element_bytes


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
