"""Facts of a model's config.json that decide memory: caches, matrices, experts, formats. Other modules turn them into bytes."""

from collections import Counter
from enum import StrEnum
from functools import cached_property, lru_cache
from types import UnionType

from msgspec import Struct

from kvgate.budget.model.matrix import Matrix, Units, WeightFormat
from kvgate.budget.model.origin import Assumption, Contradiction, ModelOrigin


class End(StrEnum):
    """Parts before and after the layers of a language model."""

    EMBEDDING = "embedding"
    NORM = "final norm"
    HEAD = "head"


DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of one element of a model dtype."""


class FullAttention(Struct, frozen=True, kw_only=True):
    """Softmax attention that caches keys and values: MHA, GQA and MQA differ only in the number of KV heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int = 0
    """Width of the values where they are narrower than keys (MiMo-V2); 0: as wide."""
    sliding_window: int = 0
    """Tokens that a layer looks back, as vLLM keeps them; 0: all tokens."""
    chunk_size: int = 0
    """Tokens of a chunk, within which a layer attends (Llama 4); 0: no chunks."""
    has_sinks: bool = False
    """True for a learned logit per head (gpt-oss), which fewer kernels can do."""
    index_head_dim: int = 0
    """Width of the sparse indexer's own cache, in the model dtype (MiniMax-M3); 0: no indexer."""
    sees_images_both_ways: bool = False
    """True where image tokens attend to each other in both directions (Gemma 3 and 4), which fewer kernels can do."""

    @property
    def sees_all_tokens(self) -> bool:
        return not (self.sliding_window or self.chunk_size)

    @property
    def kind(self) -> str:
        if self.sliding_window:
            return "sliding-window attention"
        return "full attention" if self.sees_all_tokens else "chunked-local attention"


INDEXER = "indexer_"
"""Beginning of the names of an indexer's weights."""


class LatentAttention(Struct, frozen=True, kw_only=True):
    """Multi-head latent attention (MLA): one latent vector per token, not divided by tensor parallelism."""

    num_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    is_sparse: bool = False
    """True where the layer attends only to the tokens that an indexer picks (DeepSeek-V3.2)."""
    index_head_dim: int = 0
    """Width of this layer's own indexer cache; 0 where the layer has no indexer, or uses another layer's choice (GLM-5.2)."""

    @property
    def kind(self) -> str:
        return "sparse MLA" if self.is_sparse else "MLA"

    @property
    def width(self) -> int:
        """Elements cached per token."""
        return self.kv_lora_rank + self.qk_rope_head_dim


class CompressedAttention(Struct, frozen=True, kw_only=True):
    """DeepSeek-V4's attention: a window of recent tokens, and one state for every `ratio` tokens before it."""

    num_heads: int
    head_dim: int
    sliding_window: int
    ratio: int
    """Tokens per compressed state: 0 (window only), 4 (with an indexer) or 128."""
    index_head_dim: int
    index_topk: int = 0
    """States that the indexer picks for a token."""
    residual_streams: int = 1
    """Hidden states that run side by side through the model (`hc_mult`)."""

    kind = "compressed MLA"


class CrossAttention(Struct, frozen=True, kw_only=True):
    """Attention to the encoder's states, whose keys and values it caches (Whisper, Mllama)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    kind = "cross attention"


class SharedCache(Struct, frozen=True, kw_only=True):
    """Attention that reads the cache of an earlier layer and has no cache of its own (Gemma 3n and 4 E)."""

    num_heads: int
    target: int
    """Index of the layer whose cache is read; both layers must be on one pipeline stage."""

    kind = "shared KV cache"


class EncoderAttention(Struct, frozen=True, kw_only=True):
    """Attention to the whole input in both directions, which needs no cache (vLLM 0.32, `EncoderOnlyAttention`)."""

    num_heads: int

    kind = "encoder-only attention"


class RecurrentState(Struct, frozen=True, kw_only=True):
    """A state of fixed size per sequence: Mamba 1 and 2, GDN, KDA, linear attention, short convolution."""

    kind: str
    """`Mamba1`, `Mamba2`, `GDN`, `KDA`, `linear attention` or `short convolution`."""
    conv: tuple[Units, ...] = ()
    """Channels of the convolution's window, which tensor-parallel ranks divide between them."""
    conv_taps: int = 0
    """Past tokens that the convolution keeps: kernel size − 1."""
    state: Units | None = None
    """Heads or channels of the recurrent state, each with its own square or column; None: there is no recurrent state."""
    state_dtype: str | None = None
    """Dtype of the recurrent state by config.json; None: the model dtype."""
    fixed_state_dtype: bool = False
    """True where the kernel computes in `state_dtype`, or in the model dtype, whatever the user sets (linear attention)."""
    keeps_checkpoint: bool = False
    """True where a request takes one more block for a checkpoint if prefixes are cached (Mamba2, KDA of Kimi-K3)."""


class UnmodelledLayer(Struct, frozen=True, kw_only=True):
    """A kind of layer whose cache or weights have no formula here; a finding names the `kind`."""

    kind: str


Mixer = (
    FullAttention
    | LatentAttention
    | CompressedAttention
    | CrossAttention
    | SharedCache
    | EncoderAttention
    | RecurrentState
    | UnmodelledLayer
)


class DenseMlp(Struct, frozen=True, kw_only=True):
    """A feed-forward block; a `gated` one holds a gate beside the up projection."""

    intermediate_size: int
    gated: bool = True


class SparseMlp(Struct, frozen=True, kw_only=True):
    """A mixture of experts with an optional shared part that every token passes."""

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    """Width of one expert."""
    shared_intermediate_size: int = 0
    gated: bool = True
    hidden_size: int = 0
    """Width in which the experts work (Nemotron-3 Super's latent experts); 0: the model's."""
    suits_trtllm: bool = True
    """True where FlashInfer's TRT-LLM kernels can compute the plain experts: their activation is silu, or relu² without a gate, and
    their routing is one of the kernels' own, which a softmax without normalised shares is not (`TrtLlmBf16Experts`, 0.24 to 0.33)."""


Mlp = DenseMlp | SparseMlp


class LayerShape(Struct, frozen=True, kw_only=True):
    """One decoder layer: what it caches, what it computes with, and every weight that it holds."""

    mixers: tuple[Mixer, ...] = ()
    """Usually one mixer; none in a pure feed-forward layer (Nemotron-H), two where a layer has two caches (Falcon-H1, Whisper)."""
    mlps: tuple[Mlp, ...] = ()
    """Usually one block; Gemma-4-26B-A4B has a dense block beside its experts."""
    matrices: tuple[Matrix, ...] = ()
    """All weights of the layer, norms included."""


class MediaItem(Struct, frozen=True, kw_only=True):
    """The largest item of one modality, counted in the embeddings that it gives to the language model."""

    modality: str
    """`image`, `video` or `audio`, as `--limit-mm-per-prompt` calls them."""
    tokens: int
    step_tokens: int = 0
    """Tokens by which an item grows, as far as max_model_len allows; it has at least one such step; 0: the item has one size."""
    encoded_tokens: int = 0
    """Tokens of it that come from the tower, where text such as timestamps stands between them; 0: all."""
    reckoned_tokens: int = 0
    """Tokens that vLLM 0.11 and 0.12 counted if that was more: timestamps of as many frames as a video may have (Qwen3-VL)."""

    def tokens_within(self, max_model_len: int) -> int:
        """Return the tokens of the largest item that vLLM profiles at this length."""
        if not self.step_tokens:
            return self.tokens
        return min(self.tokens, max(1, max_model_len // self.step_tokens) * self.step_tokens)


class TowerBlock(Struct, frozen=True, kw_only=True):
    """Tensors that a layer of a tower has alive in its widest moments, in multiples of its sizes, as the class itself showed
    (tests/parity/towers_by_release). Attention runs by FlashAttention, which keeps no scores."""

    feed_forward: str = "gelu"
    """`gelu`: input and output of the activation; `quick_gelu`: without a kernel of its own, a sigmoid beside them; `gated`: both inputs
    and their product, fused; `two_gates`: gate, its activation and the other input, which no kernel fuses."""
    hidden: int = 4
    """Hidden sizes beside the feed-forward block."""
    attention_cut: int = 0
    """Hidden sizes in attention that ranks share out: queries, keys and values, their rotated copies, and outputs."""
    attention_whole: int = 0
    """Hidden sizes beside them."""
    gathered: int = 0
    """Hidden sizes more where several ranks gather queries, keys and values before they are rotated (Qwen2-VL)."""
    has_mask: bool = False
    """True where attention reads a mask over all patches of all pictures (Pixtral without xFormers)."""
    table_bytes: int = 0
    """Bytes of a table of rotations that the first picture makes (MoonViT)."""
    copies_inputs: bool = False
    """True where the pictures are joined into one tensor first (Gemma 4)."""


class Encoder(Struct, frozen=True, kw_only=True):
    """A vision or audio tower and its projector, which every pipeline stage holds."""

    matrices: tuple[tuple[Matrix, int], ...]
    """(weight, how many of them)."""
    hidden_size: int
    intermediate_size: int
    items: tuple[MediaItem, ...]
    """Items that the encoder reads, by modality."""
    patches_per_token: int = 1
    """Positions of the tower behind one embedding."""
    embedding_parts: int = 1
    """Hidden sizes of the language model in one embedding: several where layers inside the model see the picture too (Qwen3-VL)."""
    block: TowerBlock | None = None
    """Widest moments of a layer; None: nobody ran the class, and blocks of SigLIP's kind stand for its own."""
    num_heads: int = 0
    """Heads of a tower that every rank holds whole if tensor parallelism does not divide them; 0: the tower has no such way out."""
    whole_with_heads: frozenset[str] = frozenset()
    """Names of the weights that are then whole, where others stay cut (InternViT's attention); empty: all of them."""
    chunk_patch_bytes: int = 0
    """Bytes that the class reckons for a patch where it divides pictures and frames into chunks (Gemma 4); 0: it encodes all at once."""
    max_picture_patches: int = 0
    """Patches of the largest picture or frame, where `chunk_patch_bytes` is set."""
    is_unlisted: bool = False
    """True for a tower that the published checkpoints hold and this config leaves out."""

    @property
    def max_item_tokens(self) -> int:
        """Embeddings of the largest item, if the context is long enough for it."""
        return max((item.tokens for item in self.items), default=0)


MROPE_POSITIONS = 4
"""Positions of a rotary table per position of the context: vLLM makes room for those of pictures and videos too (`MRotaryEmbedding`)."""


class RotaryCache(Struct, frozen=True, kw_only=True):
    """One table of cosines and sines, which every rank keeps whole."""

    max_position: int
    rotary_dim: int
    element_bytes: int | None = None
    """Bytes of an element where they are not the model dtype's."""
    is_interleaved: bool = False
    """True where several sections are interleaved (Qwen3-VL and after); older releases kept four times as many positions for them."""


UNREAD_ENCODER = "multimodal encoder"
"""The kind of towers that nobody read."""


class ModelShape(Struct, frozen=True, kw_only=True, eq=False, weakref=True, dict=True):
    """Everything that the budget needs to know about a model; equal means the same object, so that results can be cached by it."""

    name: str
    architecture: str
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerShape, ...]
    dtype: str
    """The checkpoint's dtype as vLLM runs it: float32 checkpoints are served in bfloat16 or float16."""
    max_model_len: int
    """The longest context that vLLM accepts without an override; 0: the config names none, and vLLM accepts any."""
    earlier_max_model_lens: tuple[tuple[str, int], ...] = ()
    """The same under the rules of earlier releases (`Accounting.length_rule`), where they give another length."""
    published_max_model_len: int = 0
    """Longer context that the catalogue has under the same name, where a config that somebody gave says less; 0: they agree."""
    default_max_model_len: int = 0
    """Length that vLLM takes where the user sets none, if it is less (LongRoPE); 0: the longest, or 2048 where any is accepted."""
    tie_word_embeddings: bool = False
    lm_head_bias: bool = False
    ends_everywhere: frozenset[End] = frozenset()
    """Ends that every pipeline stage holds, and not only the first or the last stage."""
    first: tuple[Matrix, ...] = ()
    """Weights that stand beside the token embedding (learned positions)."""
    last: tuple[Matrix, ...] = ()
    """Weights of the last pipeline stage beside the head (the final norm)."""
    everywhere: tuple[Matrix, ...] = ()
    """Weights that every pipeline stage holds beside its layers."""
    encoders: tuple[Encoder, ...] = ()
    tied_by_wrapper: bool = False
    """True where the multimodal config sets `tie_word_embeddings` by default, whatever the language model's own config says."""
    rotary: tuple[RotaryCache, ...] = ()
    quantization: WeightFormat | None = None
    """Format of most linear layers; each matrix has its own."""
    embedding_format: WeightFormat | None = None
    """Format of the token embedding, which only GGUF files convert; None: plain elements."""
    head_format: WeightFormat | None = None
    """Format of the output head, which few quantised checkpoints convert; None: plain elements."""
    source_tests: frozenset[str] = frozenset()
    """Tests in the source of the model's class that hold for this config, as `release_tables` writes them."""
    kv_cache_scheme: str | None = None
    """KV cache dtype that the checkpoint states (`fp8`), which vLLM takes where the user sets `auto`."""
    checkpoint_bytes: int = 0
    """Bytes of all tensors of the checkpoint, as its safetensors index states; 0: not known."""
    checkpoint_source: str = "the checkpoint"
    """Words for the source of those bytes."""
    contradictions: tuple[Contradiction, ...] = ()
    """Facts that two sources state differently; `contradictions_of` adds what the shape itself shows."""
    origin: ModelOrigin | None = None
    """The source of all this; None where nobody said."""
    format_kinds: tuple[str, ...] = ()
    """Method of quantisation by vLLM's name, and its variants that not every release reads (`gptq with desc_act`)."""
    assumed: Assumption | None = None
    """Set where the shape is that of a sibling by name."""
    requested_format: str = ""
    """Value of `--quantization`; empty where the user sets none."""
    lacks_requested_format: bool = False
    """True where `--quantization` names a method whose config the published checkpoint is known not to have."""
    has_unread_encoder: bool = False
    """True where towers stand beside the language model that nobody read: its caches are known, and its memory is not."""
    unmodelled: tuple[str, ...] = ()
    """Parts of the weights that have no formula here (a quantisation format); known `checkpoint_bytes` stand for them."""
    num_heads: int = 0
    """Attention heads that tensor parallelism must divide."""
    state_chunk_tokens: int = 2048
    """Tokens that the kernel of a recurrent state computes at once (vLLM 0.30, `ModelConfig.get_mamba_chunk_size`)."""
    draft_layers: tuple[LayerShape, ...] = ()
    """Layers of a draft model or of multi-token prediction, which the last pipeline stage holds."""
    supports_pipeline: bool = True
    """False for model classes that vLLM cannot cut into stages (Whisper, Codestral-Mamba)."""
    own_ends: bool = False
    """True where embedding and head stand in `first` and `last`: Whisper keeps them whole."""
    pools: bool = False
    """True for a class that returns vectors or scores: it has neither an output head nor a sampler."""

    @cached_property
    def is_sparse(self) -> bool:
        return has_experts(self, 0, len(self.layers))

    def has(self, kind: type | UnionType, fact: str = "") -> bool:
        """True where a mixer is of a kind, and has a fact (`is_sparse`) if one is named."""
        return any(isinstance(mixer, kind) and (not fact or getattr(mixer, fact)) for mixer in self.mixers)

    @cached_property
    def is_hybrid(self) -> bool:
        """True for a model with recurrent states, beside attention or alone."""
        return self.has(RecurrentState)

    @cached_property
    def keeps_caches(self) -> bool:
        """True where requests take blocks; an encoder alone keeps nothing between steps."""
        return any(not isinstance(mixer, EncoderAttention | SharedCache) for mixer in self.mixers)

    @cached_property
    def is_dense(self) -> bool:
        """True for a model with neither experts nor recurrent states."""
        return not (self.is_sparse or self.is_hybrid)

    @cached_property
    def mixers(self) -> tuple[Mixer, ...]:
        """Every different mixer once, in order of appearance."""
        return tuple(dict.fromkeys(mixer for layer, _ in self.distinct_layers for mixer in layer.mixers))

    @cached_property
    def distinct_layers(self) -> tuple[tuple[LayerShape, int], ...]:
        """(layer, how many of them) over the whole model."""
        return distinct_layers(self, 0, len(self.layers))

    @cached_property
    def stored_formats(self) -> frozenset[str]:
        """Names of the formats in which matrices of the layers are stored; empty where all are plain."""
        matrices = (matrix for layer, _ in self.distinct_layers for matrix in layer.matrices)
        return frozenset(matrix.format.format for matrix in matrices if matrix.format)

    @cached_property
    def unmodelled_kinds(self) -> tuple[str, ...]:
        """Every kind without a formula once, in order of appearance; weights whose bytes are known need none."""
        kinds = (mixer.kind for mixer in self.mixers if isinstance(mixer, UnmodelledLayer))
        encoder = (UNREAD_ENCODER,) if self.has_unread_encoder else ()
        return tuple(dict.fromkeys((*kinds, *encoder, *(() if self.checkpoint_bytes else self.unmodelled))))


@lru_cache(maxsize=4096)
def distinct_layers(shape: ModelShape, first: int, last: int) -> tuple[tuple[LayerShape, int], ...]:
    """Count the layers first ≤ i < last as (layer, how many of them), in order of appearance; equal layers are one object."""
    part = shape.layers[first:last]
    by_identity, counts = {id(layer): layer for layer in part}, Counter(map(id, part))
    return tuple((by_identity[key], count) for key, count in counts.items())


@lru_cache(maxsize=4096)
def different_layers(shape: ModelShape, first: int, last: int) -> tuple[LayerShape, ...]:
    """Return every different layer of the layers first ≤ i < last once."""
    return tuple(layer for layer, _ in distinct_layers(shape, first, last))


@lru_cache(maxsize=4096)
def has_experts(shape: ModelShape, first: int, last: int) -> bool:
    """True where one of the layers first ≤ i < last is a mixture of experts."""
    return any(isinstance(mlp, SparseMlp) for layer in different_layers(shape, first, last) for mlp in layer.mlps)
