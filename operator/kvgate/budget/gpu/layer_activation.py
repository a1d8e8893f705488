"""Activation of the parts of a model in the profile run: the widest moment of a layer, workspaces, and encoders."""

from msgspec import Struct

from kvgate.budget.engine.run import MAX_CONTEXT_CHUNK_TOKENS, Run, inputs_by_layer_bytes
from kvgate.budget.ground import fitted
from kvgate.budget.ground.units import MIB, cdiv, round_up
from kvgate.budget.model.matrix import GGUF_METHOD, Cut
from kvgate.budget.model.shape import (
    CompressedAttention,
    DenseMlp,
    Encoder,
    LatentAttention,
    LayerShape,
    MediaItem,
    Mixer,
    RecurrentState,
    SparseMlp,
    TowerBlock,
)

INT8_ACTIVATIONS = "int8-channel"
"""W8A8: one start, Mistral Small 3.1 with 0.19 on H100, agrees to 0.01 GiB. Formats that Inductor fuses (fp8) need no copy."""
INDEXER_LOGITS_BYTES = 512 * MIB
"""`VLLM_SPARSE_INDEXER_MAX_LOGITS_MB`; the profile run allocates all of it."""
LATENT_BLOCK_SIZE = 64
"""Tokens of a block of MLA's kernels on Hopper and Blackwell (FlashMLA, FlashInfer)."""
GATHERED_REQUESTS = 4
"""Requests whose cache DeepSeek-V4 gathers at once (`PREFILL_CHUNK_SIZE`)."""
INDEXER_CONTEXTS = 40
"""Contexts of max_model_len that the indexer of sparse MLA can gather (`get_max_prefill_buffer_size`)."""


def layer_bytes(run: Run) -> int:
    """Return the most that a layer has alive at once, above what it keeps."""
    # attention output, residual before and after, and the normed input; a rank that sums over others holds one more
    residual = (5 if run.parallelism.tensor > 1 else 4) * run.token_bytes + inputs_by_layer_bytes(run)
    steps = (
        max(_feed_forward_bytes(layer, run), *(_mixer_bytes(mixer, run) for mixer in layer.mixers), 0)
        for layer in run.layers
    )
    return max((residual + step for step in steps), default=0)


def _feed_forward_bytes(layer: LayerShape, run: Run) -> int:
    """Return the bytes of gate and up (2 I) together with their product (I), which a kernel of its own may make in 8 bits as well."""
    elements, quantized, experts = 0, 0, 0
    stored = run.shape.quantization
    # the outputs of gate and up are concatenated, and both stay alive for it (vLLM 0.22, `GGUFLinearMethod.apply`)
    gated = 4 if stored is not None and stored.method == GGUF_METHOD else 3
    for mlp in layer.mlps:
        if isinstance(mlp, DenseMlp):
            elements += (gated if mlp.gated else 2) * mlp.intermediate_size // run.parallelism.tensor
            quantized += mlp.intermediate_size // run.parallelism.tensor
        else:
            shared = run.max_num_batched_tokens * 3 * mlp.shared_intermediate_size // run.parallelism.tensor
            own = 0 if run.accounting.expert_workspace_persists else _products(mlp, run)
            experts += max(shared, own + _shuffled_elements(mlp, run))
            if run.parallelism.data > 1 and run.gathers_tokens:
                # the gathered hidden states, and the experts' outputs before they are scattered; by rule, no start is known
                experts += 2 * _expert_tokens(run) * run.shape.hidden_size
    if stored is None or stored.format != INT8_ACTIVATIONS:
        quantized = 0
    return run.max_num_batched_tokens * (run.element_bytes * elements + quantized) + run.element_bytes * experts


def _expert_tokens(run: Run) -> int:
    """Tokens that reach the experts of a rank: data-parallel ranks gather the tokens of all of them (0.33, `AgRsAll2AllManager`)."""
    return run.max_num_batched_tokens * (run.parallelism.data if run.gathers_tokens else 1)


def unpacked_bytes(run: Run) -> int:
    """Return the bytes of the largest single matrix in the model dtype, to which a GGUF file's I-quants are unpacked; 0 for others.

    Other types are multiplied as they are (vLLM 0.22, `_fused_mul_mat_gguf`), so these bytes belong to the high end only.
    """
    stored = run.shape.quantization
    if stored is None or stored.method != GGUF_METHOD:
        return 0
    matrices = (matrix for layer in run.layers for matrix in layer.matrices if matrix.format and not matrix.experts)
    elements = (max(part.elements for part in each.rows) * each.columns for each in matrices)
    return max(elements, default=0) // run.parallelism.tensor * run.element_bytes


def _mixer_bytes(mixer: Mixer, run: Run) -> int:
    tensor, size = run.parallelism.tensor, run.max_num_batched_tokens * run.element_bytes
    if isinstance(mixer, RecurrentState):
        # projected channels before and after the convolution, and the output of the states
        return 3 * size * sum(units.on_rank(tensor) for units in mixer.conv)
    if isinstance(mixer, CompressedAttention):
        # queries, their padded copy, padded outputs and further residual streams (0.25, `DeepseekV4Attention.forward`); by rule, no log
        # prints this peak
        padded = (1 if run.accounting.pools_compressed_queries else 2) * padded_heads(mixer, run)
        streams = (mixer.residual_streams - 1) * run.shape.hidden_size
        return size * ((mixer.num_heads // tensor + padded) * mixer.head_dim + streams)
    if not isinstance(mixer, LatentAttention):
        return 0
    # queries and outputs, and the up-projected context that the profile run allocates in place of attention
    heads = max(1, mixer.num_heads // tensor)
    query = heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim) + mixer.width
    beside = 0
    if run.accounting.latent_context_in_profile:
        # MLA up-projects so many tokens of context at a time: `determine_chunked_prefill_workspace_size` (0.11 to 0.33)
        block_size = LATENT_BLOCK_SIZE if run.accelerator.capability_major in (9, 10) else 16
        one_block_each = run.max_num_seqs * block_size
        tokens = max(one_block_each, min(max(8 * run.max_model_len, 4 * one_block_each), MAX_CONTEXT_CHUNK_TOKENS))
        beside = tokens * heads * (mixer.qk_nope_head_dim + mixer.v_head_dim) * run.element_bytes
    if mixer.is_sparse and run.accounting.indexer_logits_in_profile:
        beside = max(beside, INDEXER_LOGITS_BYTES)
    return size * query + beside


def padded_heads(mixer: CompressedAttention, run: Run) -> int:
    """Heads for which DeepSeek-V4's kernels have room: 64 or 128 on NVIDIA (`get_padded_num_q_heads`)."""
    heads = mixer.num_heads // run.parallelism.tensor
    if run.accelerator.vendor == "amd":
        return heads
    return 64 if heads <= 64 else 128


def workspace_bytes(run: Run) -> int:
    """Return the one buffer for all layers that stays after the profile run (0.13+, `WorkspaceManager`): the largest request counts."""
    largest = 0
    for layer in run.layers:
        for mixer in layer.mixers:
            if isinstance(mixer, LatentAttention) and mixer.is_sparse and mixer.index_head_dim:
                largest = max(largest, INDEXER_CONTEXTS * run.max_model_len * (mixer.index_head_dim + 4))
            if isinstance(mixer, CompressedAttention):
                largest = max(largest, _gathered_bytes(mixer, run))
        for mlp in layer.mlps:
            if isinstance(mlp, SparseMlp) and run.accounting.expert_workspace_persists:
                largest = max(largest, run.element_bytes * _products(mlp, run))
    return largest


def _gathered_bytes(mixer: CompressedAttention, run: Run) -> int:
    """Return the cache that DeepSeek-V4's prefill gathers for four requests at once, and what it picked for each token (0.27.1,
    `DeepseekV4FlashMLAAttention.forward_mqa`)."""
    states = cdiv(run.max_model_len, mixer.ratio) if mixer.ratio else 0
    context = states + mixer.sliding_window + run.max_num_batched_tokens
    picked = round_up((mixer.index_topk if mixer.ratio else 0) + mixer.sliding_window, 128)
    return GATHERED_REQUESTS * context * mixer.head_dim * run.element_bytes + 4 * run.max_num_batched_tokens * picked


def loaded_buffer_bytes(run: Run) -> int:
    """Return the bytes of buffers for a batch that a model class allocates while it loads.

    The multimodal classes of Gemma 3n and 4 keep the inputs of every layer (0.19 to 0.32, `per_layer_embeddings`), and Qwen3-VL what its
    first layers add (0.11 to 0.33, `deepstack_input_embeds`). DeepSeek-V4 keeps its
    queries (0.27.1, `DeepseekV4EagerScratchPool`): Flash on two H200 logged 74.34 GiB with 8192 tokens.
    """
    inputs = 0
    if run.stage[0] == 0 and run.shape.encoders:
        deep = max(encoder.embedding_parts - 1 for encoder in run.shape.encoders)
        inputs = inputs_by_layer_bytes(run) + deep * run.token_bytes
    if not run.accounting.pools_compressed_queries:
        return inputs
    pools = (
        run.max_num_batched_tokens * padded_heads(mixer, run) * mixer.head_dim * run.element_bytes
        for layer in run.layers
        for mixer in layer.mixers
        if isinstance(mixer, CompressedAttention)
    )
    return inputs + max(pools, default=0)


def _products(mlp: SparseMlp, run: Run) -> int:
    """Elements of both matrix products of the k experts of each token (`TritonExperts.workspace_shapes`).

    The kernels that compute gpt-oss on Hopper and Blackwell need none.
    """
    quantization = run.shape.quantization
    has_kernels = run.accelerator.capability_major in (9, 10) and run.accounting.bundles_triton_kernels
    if quantization and quantization.method == "mxfp4" and has_kernels:
        return 0
    size = mlp.intermediate_size // run.parallelism.expert_tensor
    hidden = mlp.hidden_size or run.shape.hidden_size
    widths = size if _is_cutlass_fp4(run) else max(size, hidden)
    return _chunk(run) * mlp.num_experts_per_token * (widths + max(2 * size, hidden))


def _chunk(run: Run) -> int:
    """Tokens that the experts compute at a time."""
    tokens = _expert_tokens(run)
    return min(tokens, run.accounting.expert_chunk_tokens or tokens)


def _is_cutlass_fp4(run: Run) -> bool:
    """True where vLLM's own CUTLASS kernels compute 4-bit experts, or experts of an unknown format."""
    stored = run.shape.quantization
    return run.moe_backend == "cutlass" and (stored is None or "fp4" in stored.format)


def _shuffled_elements(mlp: SparseMlp, run: Run) -> int:
    """Elements of the inputs and outputs of all experts, in their order, and of the weighted outputs (0.20, `run_cutlass_moe_fp4`).

    Gemma-4-26B-A4B in NVFP4 on RTX 5090 (0.19.2, 16,384 tokens) left 7.15 GiB.
    """
    if not _is_cutlass_fp4(run):
        return 0
    return 3 * _chunk(run) * mlp.num_experts_per_token * (mlp.hidden_size or run.shape.hidden_size)


_ITEMS_OF_PROMPT = 999
"""Items of a modality that a prompt may hold where the user sets no limit (V1, `MultiModalConfig.get_limit_per_prompt`)."""


class EncoderProfile(Struct, frozen=True, kw_only=True):
    """Bytes of one rank for the largest images or sounds that one step may hold."""

    item_tokens: int = 0
    """Embeddings of the largest item, as vLLM counts them."""
    peak_bytes: int = 0
    """Peak while the encoder runs; the language model runs after it."""
    least_bytes: int = 0
    """The same at its lowest."""
    worst_bytes: int = 0
    """The same at its highest."""
    kept_bytes: int = 0
    """Bytes that stay alive while the language model runs."""


def encoder_profile(run: Run) -> EncoderProfile:
    """Profile the modality with the largest item; as many items as the budget holds are encoded at once (`MultiModalBudget`)."""
    if not run.has_encoder or (run.v2_runner and not run.accounting.v2_profiles_encoders):
        return EncoderProfile()
    profiles = [
        _profile(encoder, item, run)
        for encoder in run.shape.encoders
        for item in encoder.items
        if item.modality in run.modalities
    ]
    return max(profiles, key=lambda profile: profile.item_tokens, default=EncoderProfile())


def _count_of_items(run: Run, modality: str, budget: int, item_tokens: int) -> int:
    """Count the items that the profile run encodes at once: those that the budget holds, and the prompts of a batch may bring."""
    limits = dict(run.items_of_prompt)
    if not run.accounting.v1_engine:
        # V0 profiles whole prompts, each with as many items as a prompt may hold (0.8.5, `GPUModelRunnerBase._dummy_run`)
        items = limits.get(modality, 1)
        return items * max(1, min(run.max_num_seqs, budget // (items * item_tokens)))
    held = cdiv(budget, item_tokens) if run.accounting.begins_last_media_item else budget // item_tokens
    return max(1, min(held, run.max_num_seqs * limits.get(modality, _ITEMS_OF_PROMPT)))


def _profile(encoder: Encoder, item: MediaItem, run: Run) -> EncoderProfile:
    """Return the profile of one modality: its inputs, the widest moment of a block, and embeddings.

    Kept are the embeddings of all items, and with the V1 runner their pixels (0.11 to 0.33, `profile_run`). Qwen3.8-27B-FP8 took 1.59 GiB
    on two RTX 5090 (0.27), between this formula and one that divides nothing; that is the high end.
    """
    one = item.tokens_within(run.max_model_len)
    reckoned = max(one, item.reckoned_tokens) if run.accounting.pads_encoder_outputs else one
    budget = max(run.max_num_batched_tokens, reckoned)
    count = _count_of_items(run, item.modality, budget, max(1, reckoned))
    positions = count * (item.encoded_tokens or one) * encoder.patches_per_token
    patch_bytes = positions * run.element_bytes
    is_cut = any(matrix.cut is not Cut.WHOLE for matrix, _ in encoder.matrices)
    input_elements = max((matrix.columns for matrix, _ in encoder.matrices if "patch_embed" in matrix.name), default=0)
    inputs = patch_bytes * input_elements
    kept_tokens = {"budget": budget, "item": reckoned}.get(run.accounting.pads_encoder_outputs, one)
    embeddings = count * kept_tokens * encoder.embedding_parts * run.shape.hidden_size * run.element_bytes
    block = encoder.block or _SIGLIP
    beside = block.table_bytes
    if encoder.chunk_patch_bytes:
        beside += patch_bytes * encoder.hidden_size  # what the tower made of earlier chunks
        # Gemma 4 encodes as many at once as a tenth of the GPU's memory holds (0.22, `_encoder_chunk`); before, one picture
        held = run.accelerator.memory_bytes // 10 // encoder.chunk_patch_bytes if run.accounting.chunks_pictures else 0
        patch_bytes = min(patch_bytes, max(encoder.max_picture_patches, held) * run.element_bytes)
    if block.has_mask and run.accounting.masks_pictures:
        beside += positions * patch_bytes
    copied = input_elements if block.copies_inputs else 0
    width, uncut = (
        copied + _block_width(encoder, block, run, ranks) for ranks in (run.parallelism.tensor if is_cut else 1, 1)
    )
    # earlier embeddings of layers inside the tower are complete when its last block runs
    deep = embeddings * (encoder.embedding_parts - 1) // encoder.embedding_parts
    peak = inputs + beside + max(patch_bytes * width + deep, embeddings)
    is_run = encoder.block is not None and run.accounting.towers_run
    error = (fitted.TOWER_ERROR if is_run else fitted.UNREAD_TOWER_ERROR).of(peak)
    return EncoderProfile(
        item_tokens=reckoned,
        peak_bytes=peak,
        least_bytes=peak + error.low,
        worst_bytes=max(peak + error.high, inputs + beside + patch_bytes * uncut),
        kept_bytes=embeddings if run.v2_runner else inputs + embeddings,
    )


_SIGLIP = TowerBlock()
"""Blocks of towers that nobody ran."""


def _block_width(encoder: Encoder, block: TowerBlock, run: Run, ranks: int) -> int:
    """Elements of a patch in the widest moment of a layer, on a rank."""
    is_fused = run.enforce_eager or run.accounting.fuses_tower_gates
    products = {
        "gelu": 2,
        "quick_gelu": 2 if run.enforce_eager else 3,
        "gated": 3 if is_fused else 4,
        "two_gates": 3,
    }[block.feed_forward]
    feed_forward = products * encoder.intermediate_size // ranks + block.hidden * encoder.hidden_size
    whole = block.attention_whole + (block.gathered if ranks > 1 else 0)
    attention = (block.attention_cut * encoder.hidden_size) // ranks + whole * encoder.hidden_size
    return max(feed_forward, attention)
