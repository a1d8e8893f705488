"""Parallel sizes by which a model is cut over ranks."""

from kvgate.record import record


@record
class Parallelism:
    """Sizes of the parallel groups of one engine."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False
    """Experts are dealt out whole over tensor × data ranks instead of being cut."""
    decode_context: int = 1
    """Tensor ranks that deal out a request's cache: no GPUs of their own."""
    prefill_context: int = 1
    """Ranks that share a prompt, each with GPUs of its own (vLLM 0.33, `ParallelConfig.world_size`)."""

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor * self.pipeline * self.prefill_context * self.data

    @property
    def num_expert_ranks(self) -> int:
        """Ranks that share the experts of a layer when they are dealt out whole."""
        return self.tensor * self.data if self.expert else 1

    def num_experts_per_rank(self, num_experts: int) -> int:
        """Experts that the fullest rank holds: the first E mod ranks hold one more (vLLM 0.32, `determine_expert_map`)."""
        return -(-num_experts // self.num_expert_ranks)


SINGLE_GPU = Parallelism()
"""One rank that holds everything."""


def stage_sizes(num_layers: int, pipeline: int) -> tuple[int, ...]:
    """Layers of each pipeline stage (vLLM 0.32, `get_pp_indices`).

    The remainder goes one each to stages counted from the last but one backwards: the last has the head to carry.
    """
    sizes = [num_layers // pipeline] * pipeline
    for i in range(num_layers % pipeline):
        sizes[-(2 + i) % pipeline] += 1
    return tuple(sizes)


def local_heads(num_heads: int, tensor: int) -> int:
    """KV heads of a rank; beyond the number of heads they are replicated (vLLM 0.32, `get_num_kv_heads`)."""
    return max(1, num_heads // tensor)


@record
class Accelerator:
    """A GPU type, or a MIG slice of one; memory is what the driver reports to the process, not what is on the box."""

    name: str
    """Our short name, such as `H100-SXM-80GB`."""
    product: str
    """The driver's product name, such as `NVIDIA H100 80GB HBM3`."""
    memory_bytes: int
    """Total memory of the device: the second value of cudaMemGetInfo."""
    memory_low_bytes: int
    memory_high_bytes: int
    """The most that other drivers and boards of this product report."""
    compute_capability: tuple[int, int] | None
    """CUDA compute capability; None for accelerators that have none."""
    vendor: str
    unified_memory: bool = False
    """CPU and GPU share the memory: neighbours count, predictions are wide."""
    nvlink: bool = False
    multiprocessors: int = 0
    """Streaming multiprocessors or compute units: kernels keep scratch memory for each; 0: not known."""
    is_slice: bool = False
    """A MIG slice: memory of its own, and no links to its neighbours."""
    gpu_labels: tuple[str, ...] = ()
    """Values of the vendor's product label on a node that mean this accelerator."""
    resource: str = "nvidia.com/gpu"
    """Extended resource that a pod asks for."""

    @property
    def is_a100(self) -> bool:
        """vLLM's default batch limits look for `a100` in the device name (0.9+, `EngineArgs.get_batch_defaults`)."""
        return "a100" in self.product.lower()
