"""One GPU as a process of vLLM sees it."""

from kvgate.record import record


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
