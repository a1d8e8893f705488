"""The profile run of one rank of one pipeline stage, in which vLLM measures the memory that it needs."""

from collections.abc import Iterator

from kvgate.budget.hardware import Accelerator, Parallelism
from kvgate.budget.model_shape import DTYPE_BYTES, LayerShape, ModelShape, SparseMlp, distinct_layers
from kvgate.budget.request import DEFAULT_GRAPHS, GraphSettings
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
