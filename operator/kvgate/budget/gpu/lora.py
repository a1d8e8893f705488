"""LoRA: the matrices that vLLM allocates for every adapter slot while it loads the model, and the CUDA graphs that it captures twice.

A slot has room for the largest rank in every module that an adapter may change, whichever adapters come. Read in vLLM 0.32
(`LoRAModelManager._create_lora_modules`, `create_lora_weights` of each layer), and held against its own classes in tests/parity.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain

from msgspec.structs import replace

from kvgate.budget.engine.request import BudgetRequest, LoraSettings
from kvgate.budget.engine.run import Run
from kvgate.budget.ground import fitted
from kvgate.budget.ground.hardware import SINGLE_GPU, Accelerator
from kvgate.budget.ground.interval import Interval, Term
from kvgate.budget.model.matrix import Cut, Matrix
from kvgate.budget.model.shape import DTYPE_BYTES, End, distinct_layers
from kvgate.budget.model.weights import Storage, allocated_bytes, local_expert, local_matrix
from kvgate.budget.releases.accounting import Accounting
from kvgate.budget.releases.lora_classes import (
    has_embeddings,
    holds_experts_as_one,
    is_one_module,
    takes_no_adapters,
    wraps_embedding_twice,
)
from kvgate.budget.releases.versions import parse_release

_MAPPINGS_BYTES_PER_TOKEN = 4 * 8 + 2 * 2 * 4
"""Four tables of 64-bit indices, and for each of two kernels a mapping and a sorted one in 32 bits (`PunicaWrapperGPU`)."""
_NO_LINEAR_LAYERS = frozenset({"A", "tid2eid", "embed_tokens_per_layer", "compressor_wkv_wgate"})
"""Matrices that are parameters or embeddings; every linear layer has slots (`get_supported_lora_modules`)."""
_GATE = "shared_expert_gate"
"""A linear layer of one output feature, which stands as a vector among the weights."""
_ANY_GPU = Accelerator(
    name="", product="", memory_bytes=0, memory_low_bytes=0, memory_high_bytes=0, compute_capability=None, vendor="",
)  # fmt: skip
_CHILDREN = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj", "query_key_value", "W_pack", "c_attn", "wqkv"),
    "gate_up_proj": ("gate_proj", "up_proj", "fc1", "dense_h_to_4h", "w1", "w3", "c_fc"),
    "down_proj": ("fc2", "dense_4h_to_h", "w2", "c_proj"),
    "o_proj": ("out_proj", "dense", "wo", "attention.wo", "c_proj"),
    "router": ("gate", "router"),
    "kv_a_proj": ("kv_a_proj_with_mqa", "fused_qkv_a_proj"),
    "q_a_proj": ("q_a_proj", "fused_qkv_a_proj"),
    "q_b_proj": ("q_b_proj", "q_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
    "shared_experts": ("gate_up_proj", "gate_proj", "up_proj", "down_proj"),
}
"""Further names by which `--lora-target-modules` may mean a matrix."""


def lora_term(run: Run) -> Term | None:
    """Return the bytes of all adapter slots on a rank; None where LoRA is off."""
    if not run.lora.enabled:
        return None
    sizes = list(slot_tensors(run))
    slots = sum(allocated_bytes(size, unsplit_large_blocks=run.accounting.unsplit_large_blocks) for size in sizes)
    expected = slots + run.max_num_batched_tokens * _MAPPINGS_BYTES_PER_TOKEN
    in_towers = (
        count * sum(_elements(matrix, run))
        for encoder in run.shape.encoders
        for matrix, count in encoder.matrices
        if matrix.columns > 1
    )
    towers = sum(in_towers) * run.lora.max_loras * _element_bytes(run) if run.lora.tower_connector else 0
    # a checkpoint's class may name its modules otherwise, and old releases keep rows for tokens that adapters add
    margin = (
        fitted.ADAPTERS_ERROR.interval.high + fitted.ADAPTERS_SHARE.of(expected).high + _added_vocabulary_bytes(run)
    )
    below = margin + (expected // 2 if run.lora.target_modules else 0)
    return Term(
        name="lora",
        amount=Interval.around(expected, below=below, above=margin + towers),
        formula="max_loras × max_lora_rank × Σ (inputs + outputs of each module on the rank) × bytes",
        source="vLLM 0.32, create_lora_weights; byte by byte for the classes in tests/parity; Gemma-4-26B-A4B with 0.25.0 within 0.01 GiB",
        inputs=(
            ("max_loras", run.lora.max_loras),
            ("max_lora_rank", run.lora.max_rank),
            ("tensor_parallel_size", run.parallelism.tensor),
            ("fully_sharded_loras", "yes" if run.lora.fully_sharded else "no"),
        ),
    )


def graph_cases(lora: LoraSettings, *, specializes: bool) -> int:
    """Return how often each CUDA graph is captured: with adapters and without (0.12+, `CudagraphDispatcher._get_lora_cases`)."""
    if not lora.enabled or not specializes:
        return 1
    if not lora.specializes_active:
        return 2
    most = lora.max_loras + 1  # 0, the powers of two up to it, and itself
    return 1 + most.bit_length() + (1 if most & (most - 1) else 0)


def adapters_in_host_memory(run: Run) -> Interval:
    """Return the bytes of the adapters that a rank keeps in host memory, uncut: none before the first, and at most `max_cpu_loras`."""
    lora = run.lora
    if not lora.enabled:
        return Interval.exactly(0)
    slot = sum(slot_tensors(replace(run, parallelism=SINGLE_GPU))) // lora.max_loras
    return Interval(low=0, expected=slot, high=slot * max(lora.max_cpu_loras or 0, lora.max_loras))


def _element_bytes(run: Run) -> int:
    return DTYPE_BYTES.get(run.lora.dtype, run.element_bytes)


def slot_tensors(run: Run) -> tuple[int, ...]:
    """Bytes of every stacked tensor of the rank, which are the same on every GPU."""
    return _slot_tensors(replace(run, accelerator=_ANY_GPU))


@lru_cache(maxsize=256)
def _slot_tensors(run: Run) -> tuple[int, ...]:
    matrices = [matrix for matrix in run.shape.everywhere if _is_adapted(matrix, run.lora)]
    for layer, count in distinct_layers(run.shape, *run.stage):
        matrices += [matrix for matrix in layer.matrices if _is_adapted(matrix, run.lora)] * count
    elements = chain(*(_elements(matrix, run) for matrix in matrices), _end_elements(run))
    return tuple(run.lora.max_loras * _element_bytes(run) * count for count in elements)


def _is_adapted(matrix: Matrix, lora: LoraSettings) -> bool:
    if (matrix.columns == 1 and matrix.name != _GATE) or matrix.name in _NO_LINEAR_LAYERS:
        return False
    return not lora.target_modules or not {matrix.name, *_CHILDREN.get(matrix.name, ())}.isdisjoint(lora.target_modules)


def _elements(matrix: Matrix, run: Run) -> Iterator[int]:
    """Elements of the A and B matrices of one adapter in one module, tensor by tensor."""
    if matrix.experts:
        yield from _expert_elements(matrix, run)
        return
    lora, tensor = run.lora, run.parallelism.tensor
    if matrix.name == _GATE:
        yield matrix.rows[0].elements * lora.max_rank
        yield lora.max_rank
        return
    sharded = tensor if lora.fully_sharded else 1
    local = local_matrix(matrix, _storage(run))
    parts = (local.rows,) if is_one_module(run.shape.architecture, matrix.name) else local.parts
    inner_rank = lora.max_rank // sharded if matrix.cut is Cut.ROWS else lora.max_rank
    for part in parts:
        yield inner_rank * local.columns
        yield (part // sharded if matrix.cut is Cut.COLUMNS else part) * lora.max_rank


def _expert_elements(matrix: Matrix, run: Run) -> Iterator[int]:
    """A and B of all experts of the rank (0.12+, `FusedMoEWithLoRA`); before, experts have no slots."""
    lora = run.lora
    if not run.accounting.lora_in_experts:
        return
    experts = run.parallelism.num_experts_per_rank(matrix.experts)
    sharded = run.parallelism.expert_tensor if lora.fully_sharded else 1
    outer = 1 if lora.moe_shared else experts
    local = local_expert(matrix, _storage(run))
    if matrix.cut is Cut.COLUMNS:
        yield experts * lora.max_rank * local.columns
        yield outer * (local.rows // sharded) * lora.max_rank
        return
    is_one = holds_experts_as_one(run.shape.architecture) and not (lora.mixed_moe_format or lora.moe_shared)
    for part in (local.rows,) if is_one else local.parts:
        yield outer * (lora.max_rank // sharded) * local.columns
        yield experts * part * lora.max_rank


def _storage(run: Run) -> Storage:
    # with adapters vLLM pads MXFP4 experts as Marlin does, whatever the GPU
    return Storage(parallelism=run.parallelism, element_bytes=run.element_bytes, compute_capability=None, loaded=True)


def _end_elements(run: Run) -> Iterator[int]:
    """A and B of embedding and head, which no rank cuts; only some classes offer them to adapters (`embedding_modules`)."""
    lora, shape = run.lora, run.shape
    both = (shape.vocab_size * lora.max_rank, shape.hidden_size * lora.max_rank)
    if _adapts_end(run, "embed_tokens") and (run.stage[0] == 0 or End.EMBEDDING in shape.ends_everywhere):
        yield from both
    if _adapts_end(run, "lm_head") and (run.has_sampler or End.HEAD in shape.ends_everywhere):
        yield from both
        if shape.tie_word_embeddings and wraps_embedding_twice(shape.architecture, run.release):
            yield from both


def _adapts_end(run: Run, name: str) -> bool:
    lora = run.lora
    return name in lora.target_modules if lora.target_modules else has_embeddings(run.shape.architecture, run.release)


def embedding_table_bytes(run: Run) -> int:
    """Return the A matrices of the embedding in all slots, which one gather reads as one table; 0 where adapters leave it alone."""
    if not run.lora.enabled or not _adapts_end(run, "embed_tokens"):
        return 0
    return run.lora.max_loras * run.shape.vocab_size * run.lora.max_rank * _element_bytes(run)


def _added_vocabulary_bytes(run: Run) -> int:
    """Rows of tokens that adapters add: in the embedding, in A, in B and as plain rows (before 0.12)."""
    if not run.accounting.lora_adds_vocabulary:
        return 0
    lora = run.lora
    return lora.max_loras * lora.extra_vocab_size * (run.shape.hidden_size + 2 * lora.max_rank) * _element_bytes(run)


def lora_refusals(request: BudgetRequest, accounting: Accounting) -> Iterator[tuple[str, str]]:
    """(setting, reason) for every setting of LoRA that vLLM refuses (`LoRAConfig._validate_lora_config`, `create_lora_manager`)."""
    lora, shape, parallelism = request.settings.lora, request.shape, request.settings.parallelism
    if not lora.enabled:
        return
    release = parse_release(request.vllm_version)
    if takes_no_adapters(shape.architecture, release):
        yield (
            "enable_lora",
            f"does not go with {shape.architecture}: vLLM {request.vllm_version} has no adapters for this model class",
        )
    ranks = accounting.lora_ranks
    if lora.max_rank not in ranks:
        yield "max_lora_rank", f"is {lora.max_rank}, and vLLM {request.vllm_version} takes {', '.join(map(str, ranks))}"
    if lora.max_cpu_loras is not None and lora.max_cpu_loras < lora.max_loras:
        yield "max_cpu_loras", f"is {lora.max_cpu_loras}, and must be at least the {lora.max_loras} adapters of a batch"
    if lora.fully_sharded and lora.max_rank % parallelism.tensor:
        yield "max_lora_rank", f"is {lora.max_rank}, which {parallelism.tensor} ranks cannot divide between them"
    if shape.is_sparse and parallelism.num_expert_ranks > 1 and accounting.lora_in_experts and not lora.target_modules:
        if not accounting.lora_with_expert_parallelism:
            yield "enable_lora", "does not go with expert parallelism before vLLM 0.21"
        elif lora.fully_sharded:
            yield "fully_sharded_loras", "does not go with expert parallelism"
    most = accounting.lora_max_vocabulary
    if has_embeddings(shape.architecture, release) and shape.vocab_size > most and not lora.target_modules:
        yield "enable_lora", f"does not go with a vocabulary of {shape.vocab_size} tokens: vLLM takes up to {most}"
