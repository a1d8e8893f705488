"""Asks the vLLM that is importable here for the KV cache of models: questions are JSON lines on standard input, answers on standard output.

A question is `{"config": PATH, "arguments": {EngineArgs …}, "available_bytes": [BYTES, …]}`. The answer adds the layers' specs,
and for each amount of memory whether the engine starts, its blocks and groups, and the tokens and the concurrency that vLLM logs.
"""

import os
import sys

ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # what vLLM logs is no answer

import kv_oracle.pretended_gpu  # isort: skip  # noqa: F401 - before any of vLLM
import contextlib
import copy
import functools
import gc
import inspect
import json
import logging
import re
import tempfile
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.core import kv_cache_utils

from kv_oracle.pretended_gpu import on_meta

_LOGGED = {
    "num_tokens": re.compile(r"KV cache size: ([\d,]+) tokens"),
    "max_concurrency": re.compile(r"tokens per request: ([\d.]+)x"),
    "estimated_max_model_len": re.compile(r"estimated maximum model length is (\d+)"),
}


class Ranks:
    """A group of processes of which this one is the first of its stage; nothing is sent."""

    def __init__(self, ranks: list[int], rank: int) -> None:
        self.ranks, self.rank, self.local_rank = ranks, rank, rank
        self.world_size, self.rank_in_group = len(ranks), ranks.index(rank)
        self.unique_name = self.group_name = "pretended"
        self.device_group = self.cpu_group = types.SimpleNamespace(
            size=lambda: self.world_size, rank=lambda: self.rank_in_group, group_name="pretended", world_size=len(ranks)
        )
        self.device = torch.device("meta")
        self.device_communicator = None

    def __getattr__(self, name: str) -> Any:
        where = {"first": 0, "last": self.world_size - 1}.get(name.split("_")[-2] if name.count("_") else "")
        if name.startswith("is_") and where is not None:
            return self.rank_in_group == where
        if name in ("first_rank", "last_rank"):
            return self.ranks[0 if name.startswith("first") else -1]
        if name in ("next_rank", "prev_rank"):
            return self.ranks[(self.rank_in_group + (1 if name.startswith("next") else -1)) % self.world_size]
        if name in ("all_reduce", "broadcast", "broadcast_object"):
            return lambda value=None, *_, **__: value
        if name == "all_gather":
            return lambda value, dim=-1: torch.cat([value] * self.world_size, dim=dim)
        raise AttributeError(name)


def stand_in_stage(stage: int, parallel: Any) -> None:
    """Be the first rank of a stage: vLLM numbers ranks stage by stage."""
    tp, pp = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    rank = parallel.rank = stage * tp
    alone, tensor = [rank], list(range(rank, rank + tp))
    dcp = getattr(parallel, "decode_context_parallel_size", 1)
    groups = {
        "_WORLD": list(range(tp * pp)),
        "_INNER_DP_WORLD": list(range(tp * pp)),
        "_TP": tensor,
        "_PP": list(range(0, tp * pp, tp)),
        "_DP": alone,
        "_EP": tensor,
        "_ETP": tensor,
        "_EPLB": tensor,
        "_PCP": alone,
        "_DCP": tensor[:dcp],
    }
    for name, ranks in groups.items():
        if hasattr(parallel_state, name):
            setattr(parallel_state, name, Ranks(ranks, rank))


def renew_workspace(device: str) -> None:
    with contextlib.suppress(ImportError, AttributeError):
        from vllm.v1.worker import workspace

        workspace._manager = None
        workspace.init_workspace_manager(torch.device(device))


def specs_of_stage(engine: Any, stage: int) -> dict[str, Any]:
    """Specs of the KV cache that the worker of a stage would report, by layer."""
    stand_in_stage(stage, engine.parallel_config)
    compilation = engine.compilation_config
    compilation.static_forward_context.clear()
    with contextlib.suppress(AttributeError):
        compilation.static_all_moe_layers.clear()
    renew_workspace("meta")
    before = torch.get_default_dtype()
    torch.set_default_dtype(engine.model_config.dtype)
    try:
        with on_meta():
            model = initialize_model(vllm_config=engine, model_config=engine.model_config)
    finally:
        torch.set_default_dtype(before)
    if hasattr(type(current_platform), "update_block_size_for_backend"):
        current_platform.update_block_size_for_backend(engine)
    specs = worker_specs(engine)
    del model
    gc.collect()
    return specs


def worker_specs(engine: Any) -> dict[str, Any]:
    """Specs by the runner that this release takes for the engine."""
    if getattr(engine, "use_v2_model_runner", False):
        from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

        return dict(get_kv_cache_spec(engine))
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    runner = types.SimpleNamespace(
        vllm_config=engine,
        model_config=engine.model_config,
        cache_config=engine.cache_config,
        speculative_config=engine.speculative_config,
        shared_kv_cache_layers={},
        attention_chunk_size=engine.model_config.attention_chunk_size,
        kv_cache_dtype=_cache_dtype(engine),
    )
    return dict(GPUModelRunner.get_kv_cache_spec(runner))


def _cache_dtype(engine: Any) -> torch.dtype:
    """The type of an element, as the runner of 0.11 makes it from the cache's name."""
    if engine.cache_config.cache_dtype == "auto":
        return engine.model_config.dtype
    utils = sys.modules.get("vllm.utils.torch_utils") or sys.modules["vllm.utils"]
    return utils.STR_DTYPE_TO_TORCH_DTYPE[engine.cache_config.cache_dtype]


@contextlib.contextmanager
def said_by_vllm() -> Iterator[list[str]]:
    """Every message of vLLM's loggers."""
    said: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with contextlib.suppress(Exception):
                said.append(record.getMessage())

    handler, logger = Kept(), logging.getLogger("vllm")
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


def answer(question: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_bytes(Path(question["config"]).read_bytes())
        arguments = copy.deepcopy(question["arguments"]) | (
            {"swap_space": 0} if hasattr(EngineArgs, "swap_space") else {}
        )
        engine = EngineArgs(
            model=folder, tokenizer=folder, skip_tokenizer_init=True, load_format="dummy", **arguments
        ).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
        with set_current_vllm_config(engine):
            return about(engine, question["available_bytes"])


def about(engine: Any, available: list[int]) -> dict[str, Any]:
    register = getattr(sys.modules.get("vllm.v1.core.single_type_kv_cache_manager"), "register_all_kvcache_specs", None)
    if register:
        register(engine)
    stages = [specs_of_stage(engine, stage) for stage in range(engine.parallel_config.pipeline_parallel_size)]
    model, cache, scheduler = engine.model_config, engine.cache_config, engine.scheduler_config
    _choose_layout(engine, stages)
    length = model.max_model_len
    found: dict[str, Any] = {
        "version": vllm.__version__.partition("+")[0],
        "architecture": model.architecture,
        "max_model_len": length,
        "block_size": cache.block_size,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "cache_dtype": cache.cache_dtype,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "use_v2_model_runner": bool(getattr(engine, "use_v2_model_runner", False)),
        "specs": _counted([spec for specs in stages for spec in specs.values()]),
    }
    for name in ("mamba_block_size", "mamba_cache_mode", "mamba_page_size_padded"):
        if (value := getattr(cache, name, None)) is not None:
            found[name] = value
    found["by_memory"] = []
    for available_bytes in available:
        model.max_model_len = length
        found["by_memory"].append(with_memory(engine, stages, available_bytes))
    return found


def _counted(specs: list[Any]) -> list[dict[str, Any]]:
    """Equal specs once, with their number."""
    counts: dict[str, int] = {}
    for spec in specs:
        said = {"kind": type(spec).__name__, "block_size": spec.block_size, "page_size_bytes": spec.page_size_bytes}
        for name in ("num_kv_heads", "head_size", "sliding_window", "attention_chunk_size", "page_size_padded"):
            if value := getattr(spec, name, None):
                said[name] = value
        counts[key] = counts.get(key := json.dumps(said), 0) + 1
    return [{"layers": count, **json.loads(key)} for key, count in counts.items()]


def _choose_layout(engine: Any, stages: list[dict[str, Any]]) -> None:
    """Newer releases settle the layout of the cache between the workers' specs and the groups."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
        from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
    except ImportError:
        return
    layouts = [layout.name for layout in get_supported_kv_cache_layouts(get_current_attn_backends(engine))]
    engine.cache_config.kv_cache_layout = None
    resolve_kv_cache_layout(engine, [layouts] * len(stages), [spec for specs in stages for spec in specs.values()])


def with_memory(engine: Any, stages: list[dict[str, Any]], available_bytes: int) -> dict[str, Any]:
    """Blocks of the first rank for an amount of memory, or the refusal's words."""
    found: dict[str, Any] = {"available_bytes": available_bytes}
    with said_by_vllm() as said:
        try:
            configs = kv_cache_utils.get_kv_cache_configs(
                engine, copy.deepcopy(stages), [available_bytes] * len(stages)
            )
        except ValueError as error:
            found |= {"starts": False, "refusal": str(error)}
            said.append(str(error))
        else:
            shared = kv_cache_utils.generate_scheduler_kv_cache_config(configs)
            found |= {
                "starts": not _lacks_state_blocks(engine, shared),
                "num_blocks": shared.num_blocks,
                "max_model_len": engine.model_config.max_model_len,
                "groups": [
                    [len(group.layer_names), type(group.kv_cache_spec).__name__, group.kv_cache_spec.block_size]
                    for group in shared.kv_cache_groups
                ],
            }
            capacity = getattr(kv_cache_utils, "get_kv_cache_capacity", None)
            if capacity and shared.kv_cache_groups:
                _settle_block_size(engine, shared)
                found["num_tokens"], found["max_concurrency"] = capacity(engine, shared)
    for name, pattern in _LOGGED.items():
        if matches := [match for text in said if (match := pattern.search(text))]:
            text = matches[-1][1].replace(",", "")
            found.setdefault(name, float(text) if "." in text else int(text))
    return found


def _lacks_state_blocks(engine: Any, shared: Any) -> bool:
    """Whether the runner refuses afterwards, when it records graphs: each sequence of a mamba model needs a block of its own.

    The releases with that check have it in CompilationConfig, for full graphs.
    """
    compilation = inspect.getsource(sys.modules["vllm.config.compilation"])
    is_checked = (
        "exceeds available Mamba cache" in compilation
        and engine.compilation_config.cudagraph_mode.has_full_cudagraphs()
    )
    return is_checked and shared.has_mamba_layers and engine.scheduler_config.max_num_seqs > shared.num_blocks


def _settle_block_size(engine: Any, shared: Any) -> None:
    """The engine core takes the least block of the groups before it counts tokens."""
    groups = shared.kv_cache_groups
    cached = [group for group in groups if getattr(group.kv_cache_spec, "prefix_cacheable", True)]
    engine.cache_config.block_size = min(group.kv_cache_spec.block_size for group in cached or groups)


def forget() -> None:
    """Drop what vLLM keeps from one engine to the next."""
    for module in ("vllm.v1.attention.selector", "vllm.attention.selector"):
        for value in vars(sys.modules.get(module, object)).values():
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()


def main() -> None:
    parallel_state.in_the_same_node_as = lambda group, **_: [True] * group.size()
    for line in sys.stdin:
        question = json.loads(line)
        forget()
        try:
            found = answer(question)
        except Exception as error:  # vLLM may refuse by any of them; the refusal is the answer
            where = traceback.extract_tb(error.__traceback__)[-1]
            found = {
                "version": vllm.__version__.partition("+")[0],
                "error": f"{type(error).__name__}: {error}"[:600],
                "where": f"{Path(where.filename).name}:{where.lineno}",
            }
        print(json.dumps(question | found), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
