"""The profile run of one rank of one pipeline stage, in which vLLM measures the memory that it needs."""

from collections.abc import Sequence
from functools import lru_cache
from sys import maxsize

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.engine.circumstances import NO_CIRCUMSTANCES, Circumstances
from kvgate.budget.engine.request import (
    DEFAULT_GRAPHS,
    NO_LORA,
    NO_OFFLOAD,
    BudgetRequest,
    EngineSettings,
    GraphSettings,
    LoraSettings,
    OffloadSettings,
)
from kvgate.budget.engine.settings import Resolved, profiled_seqs, runs_on_v2
from kvgate.budget.ground.hardware import SINGLE_GPU, Accelerator, Parallelism
from kvgate.budget.ground.interval import Term
from kvgate.budget.ground.units import cdiv
from kvgate.budget.model.draft import Draft
from kvgate.budget.model.matrix import whole
from kvgate.budget.model.shape import (
    DTYPE_BYTES,
    INDEXER,
    MROPE_POSITIONS,
    CompressedAttention,
    Encoder,
    LatentAttention,
    LayerShape,
    ModelShape,
    SharedCache,
    different_layers,
    has_experts,
)
from kvgate.budget.releases.accounting import Accounting
from kvgate.budget.releases.versions import NEWEST, Release, parse_release

EMBEDDING_BY_LAYER = "embed_tokens_per_layer"
"""Name of the second embedding of Gemma 3n and of Gemma 4's E models, with a slice for every layer."""
MAX_CONTEXT_CHUNK_TOKENS = 64 * 1024
"""MLA up-projects at most this much context at a time (`determine_chunked_prefill_workspace_size`)."""


_TRTLLM_OR_AUTO = ("auto", "flashinfer_trtllm", "humming", "marlin")
"""Values of --moe-backend with which plain experts may run on FlashInfer's TRT-LLM kernels; two name kernels of other formats."""


def pads_plain_experts(accounting: Accounting, settings: "EngineSettings | Run") -> bool:
    """Return whether those kernels are chosen on Blackwell (0.24 to 0.33, `select_unquantized_moe_backend`): not beside adapters, which
    need widths that fit, nor where experts are balanced."""
    is_chosen = (
        settings.moe_backend in _TRTLLM_OR_AUTO
        and not settings.lora.enabled
        and not settings.parallelism.balances_experts
    )
    return accounting.pads_experts and is_chosen


class Run(Struct, frozen=True, kw_only=True):
    """The profile run of a rank; every term of the ledger except the weights is a function of this.

    Symbols in formulas: T max_num_batched_tokens, S rows of the sampler, V vocabulary, H hidden size, I intermediate size of
    a rank, b bytes of an element.
    """

    shape: ModelShape
    accelerator: Accelerator
    accounting: Accounting
    parallelism: Parallelism
    max_model_len: int
    max_num_seqs: int
    other_max_num_seqs: int | None = None
    """Value that max_num_seqs may have instead, where it is not known which program starts the engine."""
    max_num_batched_tokens: int
    enforce_eager: bool
    graphs: GraphSettings = DEFAULT_GRAPHS
    modalities: tuple[str, ...] = ()
    """Modalities that the profile run encodes: `image`, `video`, `audio`."""
    items_of_prompt: tuple[tuple[str, int], ...] = ()
    """(modality, most items of a prompt), where the user limits them; V0 profiles whole prompts."""
    takes_embeddings: bool = False
    """True where prompts may hold images or sounds: the language model then takes embeddings instead of tokens."""
    draft_tokens: int = 0
    """Tokens that are drafted ahead in each step and verified together."""
    draft: Draft | None = None
    """The model that drafts; the last pipeline stage holds and runs it."""
    draft_parallelism: Parallelism = SINGLE_GPU
    stage: tuple[int, int]
    """Layers first ≤ i < last of the pipeline stage."""
    release: Release
    """Release of vLLM, for tables of model classes."""
    lora: LoraSettings = NO_LORA
    offload: OffloadSettings = NO_OFFLOAD
    circumstances: Circumstances = NO_CIRCUMSTANCES
    gathers_tokens: bool = True
    """False where only a rank's own tokens are to count: no start has shown what those of other data-parallel ranks add."""
    moe_backend: str = "auto"
    """Kernels of the experts that the user requests."""
    fuses_kernels: bool = True
    """False where the optimisation level leaves out the fusions of all-reduce and norm (`-O0`, `-O1`)."""

    @property
    def pads_experts(self) -> bool:
        """True where FlashInfer's TRT-LLM kernels compute plain experts, if their activation suits (`pads_plain_experts`)."""
        return pads_plain_experts(self.accounting, self)

    @property
    def num_layers(self) -> int:
        return self.stage[1] - self.stage[0]

    @property
    def layers(self) -> tuple[LayerShape, ...]:
        """Every different layer of the stage once."""
        return different_layers(self.shape, *self.stage)

    @property
    def has_sampler(self) -> bool:
        return self.stage[1] == len(self.shape.layers) and not self.shape.pools

    @property
    def has_encoder(self) -> bool:
        """True on the first stage of a model that encodes images or sounds before the language model runs."""
        return self.stage[0] == 0 and bool(self.modalities)

    @property
    def is_sparse(self) -> bool:
        return has_experts(self.shape, *self.stage)

    @property
    def v2_runner(self) -> bool:
        return runs_on_v2(self.shape, self.accounting, self.circumstances, self.accelerator.vendor)

    @property
    def is_compiled(self) -> bool:
        return not self.enforce_eager and self.graphs.compiles is not False

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.shape.dtype]

    @property
    def sampler_rows(self) -> int:
        """Dummy requests of the profile run: the tokens are divided over max_num_seqs requests, at least one for each."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)

    @property
    def logits_bytes(self) -> int:
        """Rows of the whole vocabulary in float32; every tensor-parallel rank gathers all of them."""
        return self.sampler_rows * self.shape.vocab_size * 4

    @property
    def token_bytes(self) -> int:
        """One hidden state for each token of the profile run."""
        return self.max_num_batched_tokens * self.shape.hidden_size * self.element_bytes


def most_available_bytes(run: Run, requested_bytes: int, terms: Sequence[Term]) -> int:
    """Return the bytes for the KV cache that no start of this rank exceeds, whatever the formulas of the terms lack.

    The board may report the most memory of its product. The weights and adapters are loaded, and the profile run holds a hidden state
    for each of its tokens (0.6 to 0.33, `profile_run`). Of 211 logged starts one has 0.03 GiB more, with the config of another model.
    """
    board, loaded = run.accelerator, (terms[0], *terms[4:])
    most_requested_bytes = cdiv(requested_bytes * max(board.memory_bytes, board.memory_high_bytes), board.memory_bytes)
    return most_requested_bytes - sum(term.amount.low for term in loaded) - min(terms[1].amount.low, run.token_bytes)


def run_of(request: BudgetRequest, resolved: Resolved, accounting: Accounting, stage: tuple[int, int]) -> Run:
    """Return the profile run of a request on any rank of the pipeline stage first ≤ i < last."""
    settings, shape = request.settings, built_shape(request.shape, accounting, request.settings)
    items = (item.modality for encoder in request.shape.encoders for item in encoder.items)
    modalities = tuple(modality for modality in items if settings.takes(modality))
    draft = request.draft if stage[1] == len(shape.layers) else None
    seqs, other_seqs = profiled_seqs(request, resolved, accounting)
    accelerator, links = request.accelerator, request.circumstances.links
    if links is not None:  # its product may have either
        accelerator = replace(accelerator, nvlink=links == "nvlink")
    return Run(
        shape=shape,
        accelerator=accelerator,
        accounting=accounting,
        parallelism=settings.parallelism,
        # lengths that take the same memory become one length, so that what-ifs about the context ask for the same run again
        max_model_len=min(resolved.max_model_len, _longest_that_counts(shape)),
        max_num_seqs=seqs,
        other_max_num_seqs=other_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        enforce_eager=settings.enforce_eager,
        graphs=resolved.graphs,
        modalities=() if settings.skip_mm_profiling else modalities,
        items_of_prompt=settings.limit_mm_per_prompt,
        takes_embeddings=bool(modalities),
        draft_tokens=request.draft_tokens,
        draft=draft,
        draft_parallelism=request.draft_parallelism,
        stage=stage,
        release=min(parse_release(request.vllm_version), NEWEST),
        lora=settings.lora if settings.lora.enabled else NO_LORA,
        offload=settings.offload,
        circumstances=request.circumstances,
        moe_backend=settings.moe_backend if shape.is_sparse else "auto",
        fuses_kernels=settings.optimization_level not in (0, 1),
    )


@lru_cache(maxsize=1024)
def _longest_that_counts(shape: ModelShape) -> int:
    """Return the length beyond which the context adds nothing to the profile run.

    Videos grow with the context, and so do the buffers of sparse MLA. Those of MLA grow up to the chunks that it up-projects.
    """
    latent = [mixer for mixer in shape.mixers if isinstance(mixer, LatentAttention)]
    has_growing_items = any(item.step_tokens for encoder in shape.encoders for item in encoder.items)
    compresses = shape.has(CompressedAttention)
    if has_growing_items or compresses or any(mixer.is_sparse for mixer in latent):
        return maxsize
    return MAX_CONTEXT_CHUNK_TOKENS if latent else 1


def inputs_by_layer_bytes(run: Run) -> int:
    """Return the bytes of the inputs of every layer for all tokens of the profile run."""
    widths = (matrix.columns for matrix in run.shape.everywhere if matrix.name == EMBEDDING_BY_LAYER)
    return sum(widths) * run.max_num_batched_tokens * run.element_bytes


def built_shape(shape: ModelShape, accounting: Accounting, settings: EngineSettings) -> ModelShape:
    """Return the model as this release builds it with these settings; the same question returns the same object.

    An encoder that no prompt may use is left out (0.16+, `_mark_tower_model`). A rank holds an encoder whole if the user requests
    that, or if the ranks do not divide its heads (vLLM 0.32, `is_vit_use_data_parallel`).
    """
    ties = shape.tied_by_wrapper and accounting.wrapper_ties_embeddings and not shape.tie_word_embeddings
    left_out = tuple(
        accounting.leaves_out_unused_encoders and not any(settings.takes(item.modality) for item in encoder.items)
        for encoder in shape.encoders
    )
    uncut = tuple(_uncut(encoder, settings) for encoder in shape.encoders)
    widens = accounting.interleaved_positions_have_room and any(table.is_interleaved for table in shape.rotary)
    shape = with_own_parts(shape, accounting)
    if not (ties or widens or any(left_out) or any(uncut)):
        return shape
    return _built(shape, left_out, uncut, ties=ties, widens=widens)


def with_own_parts(shape: ModelShape, accounting: Accounting) -> ModelShape:
    """Return the model with the parts that its layers share in later releases, and that this release builds for each of them."""
    if accounting.shared_layers_project_keys:
        shape = _with_own_keys(shape)
    return shape if accounting.shares_indices else _with_own_indexers(shape)


@lru_cache(maxsize=1024)
def _with_own_indexers(shape: ModelShape) -> ModelShape:
    """Give layers of sparse MLA that take another layer's choice an indexer like that layer's; equal layers stay one object."""
    changed: dict[int, LayerShape] = {}
    sparse = [
        (layer, mixer)
        for layer in shape.layers
        for mixer in layer.mixers
        if isinstance(mixer, LatentAttention) and mixer.is_sparse
    ]
    indexed = next((layer for layer, mixer in sparse if mixer.index_head_dim), None)
    for layer, mixer in sparse:
        if mixer.index_head_dim:
            indexed = layer
        elif indexed is not None and id(layer) not in changed:
            own = tuple(matrix for matrix in indexed.matrices if matrix.name.startswith(INDEXER))
            changed[id(layer)] = replace(layer, mixers=indexed.mixers, matrices=(*layer.matrices, *own))
    return _with_layers(shape, changed)


@lru_cache(maxsize=1024)
def _with_own_keys(shape: ModelShape) -> ModelShape:
    """Give layers that read another layer's cache the projections of that layer; equal layers stay one object."""
    changed: dict[int, LayerShape] = {}
    for layer in shape.layers:
        shared = [mixer for mixer in layer.mixers if isinstance(mixer, SharedCache)]
        if not shared or id(layer) in changed:
            continue
        named = {matrix.name: matrix for matrix in shape.layers[shared[0].target].matrices}
        matrices = (named.get(each.name, each) if each.name == "qkv_proj" else each for each in layer.matrices)
        changed[id(layer)] = replace(layer, matrices=tuple(matrices))
    return _with_layers(shape, changed)


def _with_layers(shape: ModelShape, changed: dict[int, LayerShape]) -> ModelShape:
    """Return the shape with other layers in the place of some, by their identity."""
    return replace(shape, layers=tuple(changed.get(id(each), each) for each in shape.layers)) if changed else shape


def _uncut(encoder: Encoder, settings: EngineSettings) -> frozenset[str]:
    """Return the names of the weights that every rank holds whole, although the class would cut them."""
    every = frozenset(matrix.name for matrix, _ in encoder.matrices)
    if settings.mm_encoder_tp_mode == "data":
        return every
    return (encoder.whole_with_heads or every) if encoder.num_heads % settings.parallelism.tensor else frozenset()


@lru_cache(maxsize=1024)
def _built(
    shape: ModelShape, left_out: tuple[bool, ...], uncut: tuple[frozenset[str], ...], *, ties: bool, widens: bool
) -> ModelShape:
    encoders = tuple(
        replace(
            encoder,
            matrices=tuple(
                (whole(matrix) if matrix.name in names else matrix, count) for matrix, count in encoder.matrices
            ),
        )
        if names
        else encoder
        for encoder, is_out, names in zip(shape.encoders, left_out, uncut, strict=True)
        if not is_out
    )
    rotary = tuple(
        replace(table, max_position=table.max_position * MROPE_POSITIONS) if widens and table.is_interleaved else table
        for table in shape.rotary
    )
    return replace(shape, encoders=encoders, rotary=rotary, tie_word_embeddings=shape.tie_word_embeddings or ties)
