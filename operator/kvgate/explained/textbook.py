"""The textbook's bytes of a request beside vLLM's, and in words every reason why they differ.

Textbook: 2 × layers × KV heads × head size × bytes per element × tokens, divided by the tensor-parallel ranks.
"""

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from msgspec import Struct

from kvgate.budget.answers.answer import Budget
from kvgate.budget.ground.units import format_gib
from kvgate.budget.kv_cache.capacity import KVCache
from kvgate.budget.kv_cache.spec import AttentionSpec, ChunkedLocalSpec, SlidingWindowSpec, StateSpec
from kvgate.budget.model.shape import (
    CompressedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    Mixer,
    RecurrentState,
    SharedCache,
)


class Textbook(Struct, frozen=True, kw_only=True):
    """The formula with a model's numbers, on one rank."""

    num_layers: int
    """Layers of the largest pipeline stage."""
    num_kv_heads: int
    head_dim: int
    bytes_per_element: Fraction
    num_tokens: int
    tensor: int
    reasons: tuple[str, ...]
    """Reasons why the formula does not hold; empty where it holds, except for whole blocks."""

    @property
    def request_bytes(self) -> int:
        elements = 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.num_tokens
        return int(elements * self.bytes_per_element / self.tensor)

    @property
    def formula(self) -> str:
        size = self.bytes_per_element
        element = "1 byte" if size == 1 else f"{float(size):g} bytes"
        heads = "1 KV head" if self.num_kv_heads == 1 else f"{self.num_kv_heads} KV heads"
        ranks = f" / {self.tensor} ranks" if self.tensor > 1 else ""
        return f"2 × {self.num_layers} layers × {heads} × {self.head_dim} × {element} × {self.num_tokens} tokens{ranks}"

    def comparison(self, request_bytes: int) -> str:
        textbook = f"the textbook's {self.formula} is {format_gib(self.request_bytes)}"
        if not self.reasons:
            return f"{textbook}; vLLM rounds it up to whole blocks"
        return f"{textbook}; vLLM takes {format_gib(request_bytes)}"


def textbook_of(budget: Budget) -> Textbook | None:
    """Return the textbook's figure; None for a model without attention, or without a formula."""
    heads = next(filter(None, map(_heads, budget.request.shape.mixers)), None)
    if budget.kv_cache is None or heads is None:
        return None
    return Textbook(
        num_layers=max([stage.last - stage.first for stage in budget.stages], default=len(budget.request.shape.layers)),
        num_kv_heads=heads[0],
        head_dim=heads[1],
        bytes_per_element=budget.kv_cache.dtype.bytes_per_element,
        num_tokens=budget.resolved.max_model_len,
        tensor=budget.request.settings.parallelism.tensor,
        reasons=tuple(reasons_against(budget, budget.kv_cache, heads)),
    )


def _heads(mixer: Mixer) -> tuple[int, int] | None:
    """(KV heads, head size) as the textbook takes them; for MLA these are all heads, and the width of their keys."""
    if isinstance(mixer, FullAttention):
        return mixer.num_kv_heads, mixer.head_dim
    if isinstance(mixer, LatentAttention):
        return mixer.num_heads, mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    return (1, mixer.head_dim) if isinstance(mixer, CompressedAttention) else None


def reasons_against(budget: Budget, kv_cache: KVCache, heads: tuple[int, int]) -> Iterator[str]:
    """Yield one clause for every way in which the model is not `heads` (KV heads, head size) in every layer for every token."""
    layers = budget.request.shape.layers
    mixers = Counter(mixer for layer in layers for mixer in layer.mixers)
    of_all = f"of {len(layers)} layers"
    if idle := sum(not layer.mixers for layer in layers):
        yield f"{idle} {of_all} do not attend and keep nothing"
    yield from _fixed_states(kv_cache, mixers, of_all)
    yield from _local_caches(kv_cache, mixers, of_all)
    yield from _latent_caches(budget, kv_cache, mixers)
    yield from _other_heads(budget, mixers, heads, of_all)
    dtype = kv_cache.dtype
    if dtype.is_packed or dtype.is_octave or dtype.keys.extra_bytes:
        yield f"{dtype.name} keeps scales beside the elements"
    if dtype.is_packed or budget.request.settings.kv_cache_dtype_skip_layers:
        yield f"some layers keep {budget.request.shape.dtype}"
    if budget.request.settings.parallelism.pipeline == 1:
        yield from _padding(kv_cache)


def _fixed_states(kv_cache: KVCache, mixers: Counter[Mixer], of_all: str) -> Iterator[str]:
    """Yield the clauses about recurrent states, encoder states, and layers that own no cache."""
    specs = [group.spec for group in kv_cache.groups if isinstance(group.spec, StateSpec)]
    if specs:
        count = _count(mixers, RecurrentState)
        yield (
            f"{count} {of_all} keep a recurrent state of {specs[0].state_bytes} bytes instead of keys and values: a request takes "
            + (
                "one for every block of its tokens"
                if specs[0].is_kept_by_block
                else f"{sum(spec.num_states for spec in specs)} blocks for it, whatever its length is"
            )
        )
    attention = next((group.spec for group in kv_cache.groups if not isinstance(group.spec, StateSpec)), None)
    if specs and attention is not None:
        yield f"a block has {attention.block_size} tokens, so that a page of it can hold a state"
    if count := _count(mixers, CrossAttention):
        tokens = kv_cache.reach.max_encoder_tokens
        yield f"{count} {of_all} keep the encoder's states as well, with room for {tokens} of them whatever the length is"
    if count := _count(mixers, SharedCache):
        yield f"{count} {of_all} read the cache of an earlier layer and keep none"


def _local_caches(kv_cache: KVCache, mixers: Counter[Mixer], of_all: str) -> Iterator[str]:
    flight = kv_cache.reach.in_flight_tokens
    for spec in dict.fromkeys(group.spec for group in kv_cache.groups):
        if isinstance(spec, SlidingWindowSpec):
            count = sum(n for mixer, n in mixers.items() if isinstance(mixer, FullAttention) and mixer.sliding_window)
            yield (
                f"{count} {of_all} look back {spec.window} tokens: they keep at most {spec.reach_back + flight} tokens "
                f"({spec.reach_back} before the batch and {flight} in flight) and one block more"
            )
        elif isinstance(spec, ChunkedLocalSpec):
            count = sum(n for mixer, n in mixers.items() if isinstance(mixer, FullAttention) and mixer.chunk_size)
            yield (
                f"{count} {of_all} attend within chunks of {spec.chunk_size} tokens: they keep at most "
                f"{spec.reach_back + flight} tokens ({flight} of them in flight)"
            )


def _latent_caches(budget: Budget, kv_cache: KVCache, mixers: Counter[Mixer]) -> Iterator[str]:
    latent = next((mixer for mixer in mixers if isinstance(mixer, LatentAttention)), None)
    if latent is not None:
        size = kv_cache.dtype.latent_bytes(latent.kv_lora_rank, latent.qk_rope_head_dim)
        whole = ", whole on every rank" if budget.request.settings.parallelism.tensor > 1 else ""
        yield (
            f"MLA keeps one vector of {size} bytes per token and layer{whole}, instead of keys and values of "
            f"{latent.num_heads} heads"
        )
    with_index = FullAttention | LatentAttention
    if indexed := sum(n for mixer, n in mixers.items() if isinstance(mixer, with_index) and mixer.index_head_dim):
        yield f"{indexed} layers also keep an indexer's vectors for every token"
    if _count(mixers, CompressedAttention):
        ratios = Counter(mixer.ratio for mixer in mixers.elements() if isinstance(mixer, CompressedAttention))
        vectors = " and ".join(f"one vector for {ratio} tokens in {n} layers" for ratio, n in ratios.items() if ratio)
        flight = kv_cache.reach.in_flight_tokens
        yield (
            f"MLA keeps a window of recent tokens in every layer, with {flight} in flight, {vectors}, and the values that the "
            "compressors read"
        )


def _other_heads(budget: Budget, mixers: Counter[Mixer], heads: tuple[int, int], of_all: str) -> Iterator[str]:
    """Yield the clauses about heads of another number or size, values narrower than keys, and heads that ranks replicate."""
    tensor = budget.request.settings.parallelism.tensor
    widths: Counter[tuple[int, int, int]] = Counter()
    for mixer, count in mixers.items():
        if isinstance(mixer, FullAttention):
            widths[mixer.num_kv_heads, mixer.head_dim, mixer.v_head_dim or mixer.head_dim] += count
    for (kv_heads, keys, values), count in widths.items():
        kv = "1 KV head" if kv_heads == 1 else f"{kv_heads} KV heads"
        if (kv_heads, keys) != heads:
            yield f"{count} {of_all} have {kv} of size {keys}"
        if keys != values:
            yield f"the values of {count} {of_all} are {values} wide, and not {keys}"
        if kv_heads < tensor:
            yield f"{tensor} ranks share {kv} in {count} {of_all}: each rank keeps a whole one"


def _padding(kv_cache: KVCache) -> Iterator[str]:
    """Yield the padding of pages and blocks over one request of the whole model, where it is 1 % or more."""
    size, padding, held = kv_cache.bytes_per_block, 0, 0
    for group in kv_cache.groups:
        blocks, content = group.spec.blocks(kv_cache.reach), 0
        for spec, layers in group.parts:
            page = spec.page_size_bytes
            if isinstance(spec, StateSpec):
                page = spec.state_bytes
            elif isinstance(spec, AttentionSpec):
                page = spec.block_size * spec.token_bytes
            content += page * len(layers)
        held += blocks * size
        padding += blocks * (size - content)
    if padding * 100 >= held:
        yield (
            f"{format_gib(padding)} is padding: pages are made equal, and a block of any group takes as many bytes as one of the "
            "fullest group"
        )


def _count(mixers: Counter[Mixer], kind: type) -> int:
    return sum(count for mixer, count in mixers.items() if isinstance(mixer, kind))
