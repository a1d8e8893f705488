"""The widest moment inside a layer during the profile run, and the workspaces that layers keep."""

from collections.abc import Iterator

from kvgate.budget.matrix import Cut
from kvgate.budget.model_shape import (
    DenseMlp,
    Encoder,
    LatentAttention,
    LayerShape,
    MediaItem,
    RecurrentState,
    SparseMlp,
)
from kvgate.budget.run import Run
from kvgate.budget.units import MIB
from kvgate.record import record

MAX_CONTEXT_CHUNK_TOKENS = 64 * 1024
"""MLA up-projects at most this much context at a time (`determine_chunked_prefill_workspace_size`)."""
INT8_ACTIVATIONS = "int8-channel"
"""W8A8: one start, Mistral Small 3.1 with 0.19 on H100, agrees to 0.01 GiB. What Inductor fuses (fp8) needs no copy."""
INDEXER_LOGITS_BYTES = 512 * MIB
"""`VLLM_SPARSE_INDEXER_MAX_LOGITS_MB`; the profile run allocates all of it."""
INDEXER_CONTEXTS = 40
"""Contexts of max_model_len that the indexer of sparse MLA can gather (`get_max_prefill_buffer_size`)."""


def block_bytes(run: Run) -> int:
    """The most that a layer has alive at once, above what it keeps."""
    return max((_layer_bytes(layer, run) for layer in run.layers), default=0)


def _layer_bytes(layer: LayerShape, run: Run) -> int:
    mixing = max((_mixer_bytes(mixer, run) for mixer in layer.mixers), default=0)
    return max(mixing, _feed_forward_bytes(layer, run)) + _residual_bytes(run)


def _residual_bytes(run: Run) -> int:
    """Attention output, residual before and after, and the normed input; a rank that sums over others holds one more."""
    return (5 if run.parallelism.tensor > 1 else 4) * run.token_bytes


def _feed_forward_bytes(layer: LayerShape, run: Run) -> int:
    """gate and up (2 I) live together with their product (I), and with that in 8 bits where a kernel of its own makes it so."""
    elements, quantized = 0, 0
    for mlp in layer.mlps:
        if isinstance(mlp, DenseMlp):
            elements += (3 if mlp.gated else 2) * mlp.intermediate_size // run.parallelism.tensor
            quantized += mlp.intermediate_size // run.parallelism.tensor
        else:
            shared = 3 * mlp.shared_intermediate_size // run.parallelism.tensor
            elements += shared if run.accounting.expert_workspace_persists else max(shared, _products(mlp, run))
    stored = run.shape.quantization
    if stored is None or stored.format != INT8_ACTIVATIONS:
        quantized = 0
    return run.max_num_batched_tokens * (run.element_bytes * elements + quantized)


def _mixer_bytes(mixer: object, run: Run) -> int:
    if isinstance(mixer, LatentAttention):
        return _latent_bytes(mixer, run)
    return _recurrent_bytes(mixer, run) if isinstance(mixer, RecurrentState) else 0


def _latent_bytes(mixer: LatentAttention, run: Run) -> int:
    """Queries, outputs, and the up-projected context that the profile run allocates in place of attention."""
    heads = max(1, mixer.num_heads // run.parallelism.tensor)
    query = heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim) + mixer.width
    context = min(8 * run.max_model_len, MAX_CONTEXT_CHUNK_TOKENS) * heads * (mixer.qk_nope_head_dim + mixer.v_head_dim)
    extra = max(context * run.element_bytes, INDEXER_LOGITS_BYTES if mixer.is_sparse else 0)
    return run.max_num_batched_tokens * query * run.element_bytes + extra


def _recurrent_bytes(mixer: RecurrentState, run: Run) -> int:
    """Projected channels before and after the convolution, and the states' output."""
    tensor = run.parallelism.tensor
    channels = sum(units.on_rank(tensor) for units in mixer.conv)
    return run.max_num_batched_tokens * run.element_bytes * 3 * channels


def workspace_bytes(run: Run) -> int:
    """One buffer for all layers that stays after the profile run (0.13+, `WorkspaceManager`): the largest that any asks for."""
    return max((size for layer in run.layers for size in _workspaces(layer, run)), default=0)


def _workspaces(layer: LayerShape, run: Run) -> Iterator[int]:
    for mixer in layer.mixers:
        if isinstance(mixer, LatentAttention) and mixer.is_sparse and mixer.index_head_dim:
            yield INDEXER_CONTEXTS * run.max_model_len * (mixer.index_head_dim + 4)
    for mlp in layer.mlps:
        if isinstance(mlp, SparseMlp) and run.accounting.expert_workspace_persists:
            yield run.max_num_batched_tokens * run.element_bytes * _products(mlp, run)


def _products(mlp: SparseMlp, run: Run) -> int:
    """Elements per token of both matrix products of its k experts (`TritonExperts.workspace_shapes`).

    gpt-oss on Hopper and Blackwell computes in kernels that need none.
    """
    capability, quantization = run.accelerator.compute_capability, run.shape.quantization
    if quantization and quantization.method == "mxfp4" and capability and capability[0] in (9, 10):
        return 0
    size = mlp.intermediate_size if run.parallelism.expert else mlp.intermediate_size // run.parallelism.tensor
    hidden = mlp.hidden_size or run.shape.hidden_size
    return mlp.num_experts_per_token * (max(size, hidden) + max(2 * size, hidden))


@record
class EncoderProfile:
    """Bytes of one rank."""

    item_tokens: int = 0
    """Embeddings of the largest item, as vLLM reckons."""
    peak_bytes: int = 0
    """While the encoder runs; the language model follows."""
    worst_bytes: int = 0
    """The same at its highest."""
    kept_bytes: int = 0
    """Alive while the language model follows."""


def encoder_profile(run: Run) -> EncoderProfile:
    """Profile the modality with the largest item; as many items as the budget holds are encoded at once (`MultiModalBudget`)."""
    if not run.has_encoder:
        return EncoderProfile()
    profiles = [
        _profile(encoder, item, run)
        for encoder in run.shape.encoders
        for item in encoder.items
        if item.modality in run.modalities
    ]
    return max(profiles, key=lambda profile: profile.item_tokens, default=EncoderProfile())


def _profile(encoder: Encoder, item: MediaItem, run: Run) -> EncoderProfile:
    """Inside a block of the tower: two intermediate and four hidden sizes per patch, to 0.01 GiB in Qwen3.5-4B.

    What stays: the embeddings of all items, and with the V1 runner their pixels. Gemma-3 and Mistral Small 3.1 (0.19) agree to
    0.01 GiB, Llava (0.10) too; Qwen3-VL (0.11) to 0.1. Less shrinks with tensor parallelism than this says: Qwen3.8-27B-FP8 took
    1.59 GiB on two RTX 5090 (0.27) instead of 1.28; the high end divides nothing.
    """
    one = item.tokens_within(run.max_model_len)
    reckoned = max(one, item.reckoned_tokens) if run.accounting.pads_encoder_outputs else one
    budget = max(run.max_num_batched_tokens, reckoned)
    count = budget // max(1, reckoned)
    patches = count * one * encoder.patches_per_token
    width, uncut = (
        2 * encoder.intermediate_size // ranks + 4 * encoder.hidden_size for ranks in (_ranks(encoder, run), 1)
    )
    inputs = patches * run.element_bytes * _input_elements(encoder)
    embeddings = count * _kept_tokens(run, one, reckoned, budget) * encoder.embedding_parts
    embeddings *= run.shape.hidden_size * run.element_bytes
    peak = inputs + max(patches * run.element_bytes * width, embeddings)
    return EncoderProfile(
        item_tokens=reckoned,
        peak_bytes=peak,
        worst_bytes=max(_worst(item, peak), inputs + patches * run.element_bytes * uncut),
        kept_bytes=embeddings if run.v2_runner else inputs + embeddings,
    )


def _ranks(encoder: Encoder, run: Run) -> int:
    """That share the tower's intermediate size."""
    return run.parallelism.tensor if any(matrix.cut is not Cut.WHOLE for matrix, _ in encoder.matrices) else 1


def _worst(item: MediaItem, peak: int) -> int:
    """Widen the peak of a video: the frames that it may have have changed between releases by more than a factor of two."""
    return 2 * peak if item.modality == "video" else peak + peak // 3


def _kept_tokens(run: Run, one: int, reckoned: int, budget: int) -> int:
    """Embeddings that are kept for one item."""
    return {"budget": budget, "item": reckoned}.get(run.accounting.pads_encoder_outputs, one)


def _input_elements(encoder: Encoder) -> int:
    """Elements of a patch: what its embedding multiplies."""
    sizes = [matrix.columns for matrix, _ in encoder.matrices if "patch_embed" in matrix.name]
    return max(sizes, default=0)
