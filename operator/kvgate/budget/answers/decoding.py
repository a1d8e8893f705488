"""An upper bound of the decode speed of one engine: each step reads weights and caches from the GPU's memory, and cannot be faster.

tokens per second ≤ batch × tokens per sequence and step × memory bandwidth of a GPU ÷ bytes that a GPU reads in the step.
This is the memory roof of the roofline model (Williams, Waterman, Patterson 2009) with the bytes of this budget. Arithmetic, transfers
between GPUs, activations, prompts and the time between steps are left out: they only make an engine slower.
"""

from collections.abc import Iterator
from fractions import Fraction
from math import ceil

from msgspec import Struct

from kvgate.budget.answers.answer import Budget, Stage
from kvgate.budget.ground.units import round_up
from kvgate.budget.kv_cache.layer_specs import index_bytes
from kvgate.budget.kv_cache.spec import AttentionSpec, CrossAttentionSpec, KVCacheSpec, MLASpec, StateSpec
from kvgate.budget.model.matrix import LocalMatrix, stored_tensors
from kvgate.budget.model.shape import (
    DTYPE_BYTES,
    CompressedAttention,
    FullAttention,
    LatentAttention,
    LayerShape,
    ModelShape,
    SparseMlp,
    distinct_layers,
)
from kvgate.budget.model.weights import VOCABULARY_MULTIPLE, Storage, checkpoint_ratio, tensor_sizes

_INDEXED_RATIO = 4
"""Tokens per compressed state of the layers of DeepSeek-V4 that have an indexer."""


class DecodeBound(Struct, frozen=True, kw_only=True):
    """The roof of one batch size; a real engine stays below it."""

    batch: int
    """Sequences that decode at the same time in one engine."""
    sequence_tokens: int
    """Tokens of each sequence that are in the cache."""
    weights_bytes: int
    """Bytes of weights that a GPU reads in a step, of all pipeline stages together."""
    kv_cache_bytes: int
    """Bytes of caches that a GPU reads in a step."""
    tokens_per_second: int
    """Bound for all sequences of the engine together, rounded up."""


def decode_bound(budget: Budget, *, batch: int, sequence_tokens: int, shared_tokens: int = 0) -> DecodeBound | None:
    """Return the bound for a batch of sequences of a (mean) length, of which `shared_tokens` are the same tokens, read once.

    None where the bandwidth of the GPU or a formula of the model is not known. Of p pipeline stages each works on a p-th of the batch
    at a time, as vLLM runs them (0.33, `max_concurrent_batches`): until every sequence has its token, a GPU reads its own weights p
    times, which is about the weights of all stages once, and the caches of its stage once.
    """
    request, parallelism = budget.request, budget.request.settings.parallelism
    bandwidth = request.accelerator.memory_bandwidth_bytes_per_second
    if bandwidth is None or budget.kv_cache is None or budget.unmodelled or not budget.stages:
        return None
    tokens_per_step = 1 + request.draft_tokens
    routed = Fraction(batch * tokens_per_step, parallelism.pipeline)
    weights = sum((_weights_read(budget, stage, routed) for stage in budget.stages), Fraction(0))
    own, whole = max(0, sequence_tokens - shared_tokens), min(sequence_tokens, shared_tokens)
    local, caches = Fraction(batch, parallelism.data), Fraction(0)
    for stage in budget.stages:
        caches += local * _cache_read(budget, stage, sequence_tokens, own)
        caches += _cache_read(budget, stage, whole, whole, states=False)
    caches /= parallelism.pipeline
    read = weights + caches
    return DecodeBound(
        batch=batch,
        sequence_tokens=sequence_tokens,
        weights_bytes=int(weights),
        kv_cache_bytes=int(caches),
        tokens_per_second=ceil(batch * tokens_per_step * bandwidth / read) if read else 0,
    )


def expected_expert_share(num_experts: int, experts_per_token: int, tokens: Fraction) -> Fraction:
    """Share of a layer's experts that a number of tokens is expected to use: 1 − (1 − k/E)^tokens, for experts chosen evenly.

    A router that prefers some experts uses fewer of them. Floating point is exact enough here.
    """
    return Fraction(1 - (1 - min(1.0, experts_per_token / num_experts)) ** float(tokens))


def _weights_read(budget: Budget, stage: Stage, tokens: Fraction) -> Fraction:
    """Bytes of weights that a rank of a stage reads for a step of so many tokens; of the embedding it reads only some rows."""
    shape = budget.request.shape
    storage = Storage(
        parallelism=budget.request.settings.parallelism,
        element_bytes=DTYPE_BYTES[shape.dtype],
        compute_capability=budget.request.accelerator.compute_capability,
        loaded=True,
    )
    is_last = stage.last == len(shape.layers)
    read = Fraction(sum(tensor_sizes(shape.everywhere + (shape.last if is_last else ()), storage)))
    read += sum(_head(shape, storage)) if is_last else 0
    for layer, count in distinct_layers(shape, stage.first, stage.last):
        mlp = next((mlp for mlp in layer.mlps if isinstance(mlp, SparseMlp)), None)
        used = expected_expert_share(mlp.num_experts, mlp.num_experts_per_token, tokens) if mlp else Fraction(1)
        for matrix in layer.matrices:
            read += count * sum(tensor_sizes((matrix,), storage)) * (used if matrix.experts else 1)
    return read * checkpoint_ratio(shape)


def _head(shape: ModelShape, storage: Storage) -> Iterator[int]:
    """Bytes of the rank's part of the output head, which is the embedding where both are tied."""
    if shape.own_ends or shape.pools:
        return
    rows = round_up(shape.vocab_size, VOCABULARY_MULTIPLE) // storage.parallelism.tensor
    head = LocalMatrix(parts=(rows,), columns=shape.hidden_size, element_bytes=storage.element_bytes)
    is_tied = shape.tie_word_embeddings
    yield from stored_tensors(head, shape.embedding_format if is_tied else shape.head_format, loaded=True)


def _cache_read(budget: Budget, stage: Stage, length: int, tokens: int, *, states: bool = True) -> Fraction:
    """Bytes that a rank of a stage reads of `tokens` tokens of one sequence of a length, and of its states."""
    layers, decode_context = budget.request.shape.layers, budget.request.settings.parallelism.decode_context
    read = Fraction(0)
    for group in budget.kv_cache.groups if budget.kv_cache else ():
        for spec, indices in group.parts:
            for index in indices:
                if not stage.first <= index < stage.last:
                    continue
                if isinstance(spec, StateSpec):
                    read += spec.state_bytes if states else 0
                else:
                    read += _token_bytes(spec, layers[index]) * _seen(layers[index], length, tokens) / decode_context
    return read


def _token_bytes(spec: KVCacheSpec, layer: LayerShape) -> int:
    """Bytes of a token that a step reads; none of what only picked tokens are read of, of windows of vectors and of encoder states."""
    if not isinstance(spec, AttentionSpec | MLASpec) or isinstance(spec, CrossAttentionSpec):
        return 0
    for mixer in layer.mixers:
        if isinstance(mixer, FullAttention) and mixer.index_head_dim:
            return spec.token_bytes if isinstance(spec, MLASpec) else 0
        picks = isinstance(mixer, LatentAttention) and mixer.is_sparse
        picks |= isinstance(mixer, CompressedAttention) and mixer.ratio == _INDEXED_RATIO
        if picks and isinstance(mixer, LatentAttention | CompressedAttention) and isinstance(spec, MLASpec):
            return spec.token_bytes if spec.vector_bytes == index_bytes(mixer.index_head_dim) else 0
    return spec.token_bytes


def _seen(layer: LayerShape, length: int, tokens: int) -> Fraction:
    """Tokens out of `tokens` that a layer looks at: those in its window, and of a chunk the half that is there on average."""
    for mixer in layer.mixers:
        if isinstance(mixer, FullAttention) and mixer.sliding_window:
            return Fraction(min(tokens, mixer.sliding_window))
        if isinstance(mixer, FullAttention) and mixer.chunk_size and length > mixer.chunk_size:
            return Fraction(min(tokens, mixer.chunk_size), 2)
    return Fraction(tokens)
