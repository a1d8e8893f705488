"""Weights that stay in host memory: which of them vLLM moves there, what their buffers take on the GPU, and the host memory of a rank.

Only layers move, parameter by parameter in the order of the layers (`UVAOffloader.wrap_modules`, up to 0.14 `maybe_offload_to_cpu`), or
the last layers of every group (`PrefetchOffloader`, 0.17+). Embedding, head and norms after the layers stay on the GPU.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from msgspec import Struct

from kvgate.budget.engine.request import OffloadSettings
from kvgate.budget.engine.run import Run
from kvgate.budget.ground import fitted
from kvgate.budget.ground.interval import Interval
from kvgate.budget.model.matrix import Matrix
from kvgate.budget.model.weights import Storage, allocated_bytes, tensor_sizes

_SEGMENTS = {
    "experts": ("experts", "w13_weight", "w2_weight", "experts.w13_weight", "experts.w2_weight", "mlp", "mlp.experts", "block_sparse_moe"),
    "shared_experts": ("shared_experts", "shared_expert", "mlp"),
    "router": ("gate", "router", "mlp"),
    "gate_up_proj": ("gate_up_proj", "mlp"),
    "down_proj": ("down_proj", "mlp"),
    "qkv_proj": ("qkv_proj", "self_attn"),
    "o_proj": ("o_proj", "self_attn"),
}  # fmt: skip
"""Segments of vLLM's parameter names by the names of matrices."""
_REPACKED = frozenset({"int4-awq", "int4-gptq", "int8-gptq", "int4-packed", "int8-packed"})
"""Formats that Marlin repacks into new tensors (0.11.0, `process_weights_after_loading` and `replace_parameter`). A server whose 15 GiB of
AWQ experts were to move kept all 16.9 GiB of weights on the GPU (jomcgi/homelab, overlays/prod/vllm, 493f5c5f85 and 8d1685985)."""
_TOWERS = frozenset({"visual", "vision_tower", "vision_model", "audio_tower"})


class Offloaded(Struct, frozen=True, kw_only=True):
    """Weights of one rank that are in host memory."""

    gpu_bytes: Interval
    """Bytes that the GPU does not hold, less the buffers that it holds instead."""
    host_bytes: Interval
    """Pinned memory of the process."""


NOTHING = Offloaded(gpu_bytes=Interval.exactly(0), host_bytes=Interval.exactly(0))


def offloaded(run: Run) -> Offloaded:
    offload = run.offload
    if offload.group_size and offload.backend != "uva":
        return _fetched_ahead(run, offload)
    if offload.cpu_bytes and offload.backend != "prefetch":
        return _read_in_place(run, offload)
    return NOTHING


def _read_in_place(run: Run, offload: OffloadSettings) -> Offloaded:
    """Parameters move until `cpu_offload_gb` is reached, so that the last one goes beyond it."""
    matrices = [matrix for layer in run.shape.layers[slice(*run.stage)] for matrix in layer.matrices]
    moved: list[int] = []
    total = 0
    for size in _sizes(matrices, run, offload.cpu_params):
        if total >= offload.cpu_bytes:
            break
        moved.append(size)
        total += size
    # the order within a layer differs between classes, so that another parameter may be the last
    largest = max(moved, default=0)
    low, high = max(0, total - largest), total + largest if total >= offload.cpu_bytes else total
    if unknown := _unknown_names(offload.cpu_params):
        reachable = offload.cpu_bytes if _TOWERS.intersection(unknown) else sum(_sizes(matrices, run, ()))
        high = max(high, min(offload.cpu_bytes, reachable))
    expected = total
    if (stored := run.shape.quantization) is not None and not run.accounting.offloads_after_loading:
        low = 0  # kernels that repack a matrix put it back on the GPU
        stays = stored.format in _REPACKED and run.accelerator.vendor == "nvidia" and run.accounting.v1_engine
        expected = 0 if stays else total  # the old engine moved it back (0.6.6, `device_loading_context`)
    return Offloaded(
        gpu_bytes=Interval(low=low, expected=expected, high=high), host_bytes=_pinned(moved, low=low, high=high)
    )


def _fetched_ahead(run: Run, offload: OffloadSettings) -> Offloaded:
    """The last layers of every group move, and `prefetch_step` buffers hold the parameters that are needed next."""
    layers = run.shape.layers[slice(*run.stage)]
    kept = offload.group_size - offload.num_in_group
    chosen = [layer for index, layer in enumerate(layers) if index % offload.group_size >= kept]
    matrices = [matrix for layer in chosen for matrix in layer.matrices]
    moved = list(_sizes(matrices, run, offload.params))
    # layers share a buffer where their parameters are equal
    saved = sum(moved) - offload.prefetch_step * sum(_sizes(dict.fromkeys(matrices), run, offload.params))
    error = fitted.OFFLOADED_SHARE.of(sum(moved))
    low, high = saved + error.low, saved + error.high
    if _unknown_names(offload.params):
        low, high = min(low, 0), max(high, sum(_sizes(matrices, run, ())))
    return Offloaded(
        gpu_bytes=Interval(low=low, expected=saved, high=high), host_bytes=_pinned(moved, low=0, high=high)
    )


def _sizes(matrices: Iterable[Matrix], run: Run, names: tuple[str, ...]) -> Iterator[int]:
    """Bytes of the parameters that may move, as the allocator holds them."""
    storage = Storage(
        parallelism=run.parallelism,
        element_bytes=run.element_bytes,
        compute_capability=run.accelerator.compute_capability,
        loaded=True,
        pads_experts=run.pads_experts,
    )
    for matrix in matrices:
        if not names or not {matrix.name, *_SEGMENTS.get(matrix.name, ())}.isdisjoint(names):
            for size in tensor_sizes((matrix,), storage):
                yield allocated_bytes(size, unsplit_large_blocks=run.accounting.unsplit_large_blocks)


def _unknown_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that no matrix is known by."""
    known = set(chain.from_iterable(_SEGMENTS.values()))
    return tuple(name for name in names if name not in known)


def _pinned(sizes: list[int], *, low: int, high: int) -> Interval:
    """Return pinned host memory: torch's allocator takes the next power of two for each tensor (`CachingHostAllocatorImpl`)."""
    expected = sum(1 << (size - 1).bit_length() for size in sizes if size)
    return Interval(low=min(low, expected), expected=expected, high=max(expected, high))


def offload_refusals(offload: OffloadSettings) -> Iterator[tuple[str, str]]:
    """(setting, reason) for groups that vLLM refuses (0.17+, `OffloadConfig.validate_offload_config`)."""
    if not offload.group_size and offload.backend != "prefetch":
        return
    if offload.num_in_group > offload.group_size:
        yield "offload_num_in_group", f"is {offload.num_in_group}, and a group has {offload.group_size} layers"
    if offload.prefetch_step < 1:
        yield "offload_prefetch_step", "is 0, and at least one layer must be fetched ahead"
