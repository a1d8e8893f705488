"""One GPU as a process of vLLM sees it, and the parallel sizes by which a model is cut over several of them."""

from msgspec import Struct


class Accelerator(Struct, frozen=True, kw_only=True):
    """A GPU type, or a MIG slice of one; its memory is what the driver reports to the process, not what is on the box."""

    name: str
    """Our short name, such as `H100-SXM-80GB`."""
    product: str
    """The driver's product name, such as `NVIDIA H100 80GB HBM3`."""
    memory_bytes: int
    """Total memory of the device: the second value of cudaMemGetInfo."""
    memory_low_bytes: int
    """The least that other drivers and boards of this product report."""
    memory_high_bytes: int
    """The most that other drivers and boards of this product report."""
    compute_capability: tuple[int, int] | None
    """CUDA compute capability; None for accelerators that have none."""
    vendor: str
    unified_memory: bool = False
    """True where CPU and GPU share the memory: other processes count, and predictions are wide."""
    nvlink: bool = False
    nvlink_is_told: bool = False
    """True where the machine says so, as a label of its node does; else it is how the product is sold."""
    multiprocessors: int = 0
    """Streaming multiprocessors or compute units, for each of which kernels keep scratch memory; 0: not known."""
    memory_bandwidth_bytes_per_second: int | None = None
    """Peak bandwidth of the memory by the vendor's data sheet; None: not known."""
    peak_bf16_flops: int | None = None
    """Peak arithmetic on dense matrices of bfloat16 or float16, by the vendor's data sheet; None: not known."""
    peak_fp8_flops: int | None = None
    """The same of fp8; None where the board multiplies none, or it is not known."""
    is_slice: bool = False
    """True for a MIG slice, which has memory of its own and no links to its neighbours."""
    gpu_labels: tuple[str, ...] = ()
    """Values of the vendor's product label on a node that mean this accelerator."""
    likely_vendor: str = ""
    """Vendor of all known GPUs with so much memory, where only the memory is stated; nothing is refused because of it."""
    likely_capability: tuple[int, int] | None = None
    """Compute capability of all of them; None where they differ."""
    resource: str = "nvidia.com/gpu"
    """Extended resource that a pod requests."""

    @property
    def has_multicast(self) -> bool:
        """True where NVSwitches send to several GPUs at once: Hopper and Blackwell boards with NVLink, but not GH200, which has no
        switches."""
        return self.nvlink and self.capability_major in (9, 10) and "GH200" not in self.product

    @property
    def capability_major(self) -> int | None:
        """Major number of the compute capability: 9 is Hopper, 10 Blackwell for data centres; None where there is none."""
        return self.compute_capability[0] if self.compute_capability else None


class Parallelism(Struct, frozen=True, kw_only=True):
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False
    """True where each expert stays whole on one rank instead of being cut over all of them."""
    redundant_experts: int = 0
    """Copies of experts that every layer holds beside its own, where vLLM balances the load (`--eplb-config`)."""
    balances_experts: bool = False
    """True where vLLM moves experts between ranks while it serves (`--enable-eplb`)."""
    elastic: bool = False
    """True where data parallel ranks may be added later; each keeps as many experts as at the start (`--enable-elastic-ep`)."""
    all_to_all: str = ""
    """The way in which experts on several ranks get their tokens (`--all2all-backend`); empty: gather and scatter."""
    decode_context: int = 1
    """Tensor-parallel ranks that divide a request's cache between them; they are no further GPUs."""
    prefill_context: int = 1
    """Ranks that share a prompt, each with GPUs of its own (vLLM 0.33, `ParallelConfig.world_size`)."""

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor * self.pipeline * self.prefill_context * self.data

    @property
    def _ranks_of_a_stage(self) -> int:
        return self.tensor * self.prefill_context * self.data

    @property
    def dispatches_batches(self) -> bool:
        """True where ranks exchange tokens in batches of a fixed size (0.20 to 0.33, `use_batched_dp_moe`)."""
        return self.all_to_all in ("deepep_low_latency", "nixl_ep") and self.expert and self.data > 1

    @property
    def num_expert_ranks(self) -> int:
        """Ranks over which the experts of a layer are distributed; 1 where experts are cut instead."""
        return self._ranks_of_a_stage if self.expert else 1

    @property
    def expert_tensor(self) -> int:
        """Ranks that cut the width of every expert: all that share a layer (0.8.5 to 0.33, `flatten_tp_across_dp_and_pcp`); 1 where
        experts stay whole."""
        return 1 if self.expert else self._ranks_of_a_stage

    def num_experts_per_rank(self, num_experts: int) -> int:
        """Experts on the fullest rank: the first E mod ranks hold one more than the others (vLLM 0.32, `determine_expert_map`)."""
        redundant = self.redundant_experts if self.balances_experts else 0
        return -(-(num_experts + redundant) // self.num_expert_ranks)


SINGLE_GPU = Parallelism()
"""One rank that holds everything."""


def stage_sizes(num_layers: int, pipeline: int) -> tuple[int, ...]:
    """Layers of each pipeline stage (vLLM 0.32, `get_pp_indices`).

    The layers that are left over go one each to the last stage but one and to those before it. The last stage gets none of them,
    because it holds the head.
    """
    sizes = [num_layers // pipeline] * pipeline
    for i in range(num_layers % pipeline):
        sizes[-(2 + i) % pipeline] += 1
    return tuple(sizes)


def local_heads(num_heads: int, tensor: int) -> int:
    """KV heads of a rank; where there are fewer heads than ranks, heads are replicated (vLLM 0.32, `get_num_kv_heads`)."""
    return max(1, num_heads // tensor)
