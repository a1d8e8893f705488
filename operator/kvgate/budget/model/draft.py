"""The model or the heads that draft tokens for another model: what they add to a rank of the last pipeline stage."""

from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.ground.units import round_up
from kvgate.budget.model.matrix import Matrix
from kvgate.budget.model.shape import DTYPE_BYTES, LayerShape, ModelShape
from kvgate.budget.model.weights import VOCABULARY_MULTIPLE, Weights, rank_weights

READS_STATES = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark", "medusa", "mlp_speculator"})
"""Methods whose draft reads hidden states of its target, so that it goes with one target only."""


class Draft(Struct, frozen=True, kw_only=True, eq=False):
    """A draft as its own config.json describes it; equal means the same object, so that results can be cached by it."""

    shape: ModelShape
    """Everything that is certainly its own: layers, norms, projections, rotary tables, and ends that are never shared."""
    method: str = ""
    """Method that vLLM deduces from the config alone; empty: a complete model, which drafts as any other model (`draft_model`)."""
    embedding: tuple[Matrix, ...] = ()
    """Token embedding that vLLM replaces by the target's if it can."""
    head: tuple[Matrix, ...] = ()
    """Output head that vLLM replaces by the target's if it can."""
    per_token: tuple[Matrix, ...] = ()
    """Weights that it holds once for each token that is drafted (Medusa's heads)."""
    buffers: tuple[Matrix, ...] = ()
    """Copies that vLLM makes of its weights after they are loaded (DFlash's fused projection of keys and values)."""
    vocab_size: int = 0
    """Tokens that it reads."""
    draft_vocab_size: int = 0
    """Tokens that it can propose."""
    target_hidden_size: int = 0
    """Width of the target's hidden states that it reads; 0: it reads none, or its config does not state it."""
    target_states: int = 0
    """Hidden states of other layers that the target hands over for each token (EAGLE-3, DFlash)."""
    n_predict: int = 0
    """Tokens that it was trained to draft at once; vLLM takes as many, or a multiple of it; 0: not stated."""
    stored_bytes: int = 0
    """Bytes of all tensors of its checkpoint; 0: not known."""
    stored_ends: frozenset[str] | None = None
    """Which of `embed_tokens` and `lm_head` its checkpoint holds; None: not known."""

    @property
    def layers(self) -> tuple[LayerShape, ...]:
        return self.shape.layers

    @property
    def is_complete(self) -> bool:
        """True for a model that could run alone; it shares nothing with its target."""
        return not self.method

    @property
    def unmodelled_kinds(self) -> tuple[str, ...]:
        return self.shape.unmodelled_kinds


@lru_cache(maxsize=1024)
def draft_weights(
    draft: Draft, target: ModelShape, parallelism: Parallelism, *, tokens: int, alone: bool, compares_ends: bool,
    unsplit_large_blocks: bool, compute_capability: tuple[int, int] | None,
) -> tuple[Weights, Weights]:  # fmt: skip
    """Return the draft's weights, its rotary tables and the copies that vLLM makes of them, at the least and at the most.

    EAGLE, MTP and DFlash use the target's embedding and head if those are as wide, the embedding only if the engine has one pipeline
    stage (`alone`; vLLM 0.32, `SpecDecodeBaseProposer._maybe_share_embeddings` and `_maybe_share_lm_head`). Since 0.12 vLLM compares
    the weights (`compares_ends`): a draft with an embedding or a head of its own keeps it unless it equals the target's, which only
    the size of its checkpoint can rule out. Before that equal sizes were enough.
    """
    alike = draft.shape.hidden_size == target.hidden_size
    embedding = () if alike and alone and draft.vocab_size == target.vocab_size else draft.embedding
    head = () if alike and draft.draft_vocab_size == target.vocab_size else draft.head
    ends = [(embedding, head)]
    if compares_ends:
        own = draft.embedding if _may_hold("embed_tokens", draft) else embedding
        ends.append((own, draft.head if _may_hold("lm_head", draft) else head))
    found = [
        rank_weights(
            _built(draft, target, own_embedding, own_head, tokens),
            parallelism,
            (0, len(draft.layers)),
            unsplit_large_blocks=unsplit_large_blocks,
            compute_capability=compute_capability,
        )
        for own_embedding, own_head in ends
    ]
    copies = rank_weights(
        replace(_built(draft, target, (), (), 0), layers=(), first=(), last=draft.buffers, everywhere=(), rotary=()),
        parallelism,
        (0, 0),
        unsplit_large_blocks=unsplit_large_blocks,
        compute_capability=compute_capability,
    )
    least, most = (
        replace(each, loaded_bytes=each.loaded_bytes + copies.loaded_bytes) for each in (found[0], found[-1])
    )
    return least, most


_SHARED_HEAD = frozenset({
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM", "PanguUltraMoEForCausalLM", "Step3p5ForCausalLM",
})  # fmt: skip
"""Classes whose layers of multi-token prediction are built with a `SharedHead`, which holds a head for each layer."""


MTP_CLASSES = {
    "Exaone4_5_ForConditionalGeneration": "Exaone4_5_MTP",
    "ExaoneMoEForCausalLM": "ExaoneMoeMTP",
    "ExaoneMoeForCausalLM": "ExaoneMoeMTP",
    "MiMoV2FlashForCausalLM": "MiMoV2MTPModel",
}
"""Model class → the class of its layers of multi-token prediction, where that one ignores the cache's dtype (0.31,
`SpeculativeConfig.hf_config_override`)."""


def own_ends_bytes(shape: ModelShape, parallelism: Parallelism, *, shares_head: bool) -> int:
    """Bytes of the embedding and the heads that layers of multi-token prediction keep beside the model's, on the last stage.

    The embedding is the model's own only where the engine has one pipeline stage; before 0.15 the head of a `SharedHead` was loaded
    beside the model's (`EagleProposer.load_model`).
    """
    heads = 0 if shares_head or shape.architecture not in _SHARED_HEAD else len(shape.draft_layers)
    embeddings = 0 if parallelism.pipeline == 1 else 1
    rows = round_up(shape.vocab_size, VOCABULARY_MULTIPLE) // parallelism.tensor
    return (heads + embeddings) * rows * shape.hidden_size * DTYPE_BYTES[shape.dtype]


def _may_hold(end: str, draft: Draft) -> bool:
    """False where the names or the size of the checkpoint's tensors show that it has no such end."""
    if draft.stored_ends is not None:
        return end in draft.stored_ends
    sizes = (
        sum(part.elements for part in matrix.rows) * matrix.columns
        for matrices in (draft.embedding, *(layer.matrices for layer in draft.layers))
        for matrix in matrices
    )
    return not 0 < draft.stored_bytes < 2 * sum(sizes)


@lru_cache(maxsize=512)
def _built(
    draft: Draft, target: ModelShape, embedding: tuple[Matrix, ...], head: tuple[Matrix, ...], tokens: int
) -> ModelShape:
    """Return the draft as a shape whose weights can be counted: in the target's dtype, without tables that the target has already."""
    shape = draft.shape
    return replace(
        shape,
        dtype=target.dtype,
        first=(*shape.first, *embedding),
        last=(*shape.last, *head, *draft.per_token * tokens),
        rotary=tuple(table for table in shape.rotary if table not in target.rotary),
    )


def of_draft(parallelism: Parallelism, draft: Draft, requested: int | None) -> Parallelism:
    """Return how a draft is cut: as its target is, but never into stages; with V0 a complete model may stand whole on a rank.

    V1's layers take the size of the target's group, whatever `draft_tensor_parallel_size` says (vLLM 0.32,
    `get_tensor_model_parallel_world_size`); `requested` is its value for V0. An MLP speculator is never cut.
    """
    tensor = 1 if draft.method == "mlp_speculator" else parallelism.tensor
    if draft.is_complete:
        tensor = requested or parallelism.tensor
    return Parallelism(tensor=tensor, data=parallelism.data, expert=parallelism.expert and draft.shape.is_sparse)
