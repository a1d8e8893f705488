"""The functions of vLLM that the budget follows, and a fingerprint of each: where one differs, a person has to read it.

A fingerprint is a hash of the syntax tree: comments, docstrings, annotations and layout do not count.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping

from vllm_release.source import Source

FOLLOWED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "ledger, paging, non_torch: what is taken from the budget": (
        ("vllm/v1/worker/gpu_worker.py", "Worker.init_device"),
        ("vllm/v1/worker/gpu_worker.py", "Worker.load_model"),
        ("vllm/v1/worker/gpu_worker.py", "Worker.determine_available_memory"),
        ("vllm/v1/worker/gpu_worker.py", "Worker.compile_or_warm_up_model"),
        ("vllm/v1/worker/gpu_worker.py", "Worker._compile_or_warm_up_model"),
        ("vllm/v1/worker/utils.py", "request_memory"),
        ("vllm/utils/mem_utils.py", "MemorySnapshot"),
        ("vllm/utils/mem_utils.py", "MemoryProfilingResult"),
        ("vllm/utils/mem_utils.py", "memory_profiling"),
    ),
    "activation, layer_activation: the profile run": (
        ("vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner.profile_run"),
        ("vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner._dummy_run"),
        ("vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner._dummy_sampler_run"),
        ("vllm/v1/worker/gpu/model_runner.py", "GPUModelRunner.profile_run"),
        ("vllm/v1/worker/gpu/model_runner.py", "GPUModelRunner._dummy_run"),
        ("vllm/v1/worker/gpu/model_runner.py", "GPUModelRunner._dummy_sampler_run"),
        ("vllm/v1/worker/workspace.py", "WorkspaceManager"),
        ("vllm/v1/sample/ops/topk_topp_sampler.py", "TopKTopPSampler"),
        ("vllm/v1/core/encoder_cache_manager.py", "compute_mm_encoder_budget"),
        ("vllm/multimodal/encoder_budget.py", "MultiModalBudget"),
        ("vllm/v1/attention/backends/mla/indexer.py", "get_max_prefill_buffer_size"),
    ),
    "cuda_graphs, activation: graphs and what compiling allocates": (
        ("vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner.profile_cudagraph_memory"),
        ("vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner.capture_model"),
        ("vllm/v1/worker/gpu/model_runner.py", "GPUModelRunner.profile_cudagraph_memory"),
        ("vllm/v1/worker/gpu/model_runner.py", "GPUModelRunner.capture_model"),
        ("vllm/config/vllm.py", "VllmConfig._set_cudagraph_sizes"),
    ),
    "settings: defaults that are made at start": (
        ("vllm/engine/arg_utils.py", "EngineArgs.get_batch_defaults"),
        ("vllm/engine/arg_utils.py", "EngineArgs._set_default_max_num_seqs_and_batched_tokens_args"),
        ("vllm/config/vllm.py", "VllmConfig.__post_init__"),
        ("vllm/config/scheduler.py", "SchedulerConfig.__post_init__"),
        ("vllm/config/model.py", "ModelConfig.get_and_verify_max_len"),
        ("vllm/config/model.py", "_resolve_auto_dtype"),
        ("vllm/platforms/interface.py", "Platform._align_hybrid_block_size"),
        ("vllm/platforms/cuda.py", "CudaPlatformBase.check_and_update_config"),
    ),
    "kv_cache_groups, paging, capacity: layers to groups, pages, blocks and tokens": (
        ("vllm/v1/core/kv_cache_planning.py", "_check_enough_kv_cache_memory"),
        ("vllm/v1/core/kv_cache_planning.py", "unify_kv_cache_spec_page_size"),
        ("vllm/v1/core/kv_cache_planning.py", "get_kv_cache_groups"),
        ("vllm/v1/core/kv_cache_planning.py", "get_kv_cache_config_from_groups"),
        ("vllm/v1/core/kv_cache_planning.py", "_estimate_max_model_len_from_groups"),
        ("vllm/v1/core/kv_cache_planning.py", "_auto_fit_max_model_len"),
        ("vllm/v1/core/kv_cache_planning.py", "get_kv_cache_configs"),
        ("vllm/v1/core/kv_cache_utils.py", "get_max_concurrency_for_kv_cache_config"),
        ("vllm/v1/core/kv_cache_utils.py", "get_kv_cache_capacity"),
    ),
    "kv_cache_spec, kv_cache_dtype: bytes of a block on a layer": (
        ("vllm/v1/kv_cache_interface.py", "AttentionSpec"),
        ("vllm/v1/kv_cache_interface.py", "FullAttentionSpec"),
        ("vllm/v1/kv_cache_interface.py", "MLAAttentionSpec"),
        ("vllm/v1/kv_cache_interface.py", "ChunkedLocalAttentionSpec"),
        ("vllm/v1/kv_cache_interface.py", "SlidingWindowSpec"),
        ("vllm/v1/kv_cache_interface.py", "SlidingWindowMLASpec"),
        ("vllm/v1/kv_cache_interface.py", "MambaSpec"),
        ("vllm/v1/kv_cache_interface.py", "CrossAttentionSpec"),
        ("vllm/v1/kv_cache_interface.py", "UniformTypeKVCacheSpecs"),
    ),
    "hardware: shares of a rank": (("vllm/distributed/utils.py", "get_pp_indices"),),
    "tools/vllm_release: how options are made of fields": (
        ("vllm/engine/arg_utils.py", "_compute_kwargs"),
        ("vllm/engine/arg_utils.py", "get_kwargs"),
        ("vllm/engine/arg_utils.py", "literal_to_kwargs"),
        ("vllm/engine/arg_utils.py", "collection_to_kwargs"),
    ),
}
"""By what of kvgate follows them; `budget/` where nothing else is said. A class counts with all its methods."""

GONE = "gone"
"""In place of a fingerprint where the release has no such function."""
_UNSEEN = frozenset({"annotation", "returns", "type_comment", "type_params", "kind", "ctx"})


def read_fingerprints(source: Source) -> dict[str, str]:
    """By `path:name`; GONE where the release has no function of that name, or several outside of that file."""
    return {f"{path}:{name}": _read(source, path, name) for functions in FOLLOWED.values() for path, name in functions}


def _read(source: Source, path: str, name: str) -> str:
    node = source.definition(path, name)
    if node is None and len(elsewhere := source.paths_of(name)) == 1:
        node = source.definition(elsewhere[0], name)
    return fingerprint(node) if node else GONE


def fingerprint(node: ast.AST) -> str:
    """16 hexadecimal digits."""
    return hashlib.sha256("\n".join(_lines(node)).encode()).hexdigest()[:16]


def _lines(node: ast.AST) -> Iterator[str]:
    """The tree in a form of our own: that of `ast.dump` changes with releases of Python."""
    yield type(node).__name__
    for name, value in ast.iter_fields(node):
        if name not in _UNSEEN and value not in (None, []):
            yield f".{name}"
            values = value if isinstance(value, list) else [value]
            for each in _without_docstring(values) if name == "body" else values:
                if isinstance(each, ast.AST):
                    yield from _lines(each)
                else:
                    yield repr(each)
    yield "end"


def _without_docstring(body: list[ast.AST]) -> list[ast.AST]:
    """Texts on their own, below the fields of a class too, say nothing that is run."""
    return [each for each in body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
