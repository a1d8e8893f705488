"""Memory outside torch's allocator: what is in use before vLLM's snapshot, and what kernels and the exchange between ranks take after it:
communicators of NCCL, and FlashInfer's all-reduce workspace."""

from math import log2

from msgspec.structs import replace

from kvgate.budget.engine.run import Run
from kvgate.budget.gpu.cuda_graphs import captures_graphs
from kvgate.budget.ground import fitted
from kvgate.budget.ground.hardware import Accelerator, Parallelism
from kvgate.budget.ground.interval import Fact, Interval, Term
from kvgate.budget.ground.units import GIB, KIB, MIB, round_up
from kvgate.budget.model.shape import SparseMlp
from kvgate.budget.releases.accounting import Accounting

_LARGEST_MIB = {90: {2: 64.0, 4: 2.0, 8: 0.5}, 100: {2: 64.0, 4: 32.0, 8: 1.0}, 103: {2: 64.0, 4: 64.0, 8: 2.0}}
"""Largest tensor that FlashInfer reduces with a norm, by capability and ranks (0.17 to 0.33, FI_ALLREDUCE_FUSION_MAX_SIZE_MB)."""
_FLAG_BYTES = 256 * 4
"""Flags of a rank that waits for others (FlashInfer 0.6, `trtllm_create_ipc_workspace_for_all_reduce_fusion`)."""
_SIGNALS_BYTES = 2 * KIB
"""Room behind each buffer for signals (FlashInfer 0.6, SymmDeviceMemory)."""
_BLOCK_BYTES = 2 * MIB
"""Step of the driver's memory (cuMemGetAllocationGranularity)."""
_MULTICAST_BLOCK_BYTES = 512 * MIB
"""Step of memory that an NVSwitch sends to several GPUs (cuMulticastGetGranularity). Addresses that FlashInfer printed for buffers of
24 MiB on two ranks lie 512 MiB apart (sgl-project/sglang#18341), and three buffers take 1.5 GiB in 11 configurations on H100 (0.19)."""

_CONNECTION_BYTES = 12 * MIB
"""Buffers of one connection of one channel: 4 + 4.7 + 0.5 MiB for NCCL's protocols and two headers, in steps of 2 MiB (NCCL 2.21 to
2.27, `p2pSendSetup` and `p2pRecvSetup`)."""
_CHANNELS = 24
"""Channels of a communicator over NVLink."""


def all_reduce_workspace_bytes(run: Run) -> int:
    """Return FlashInfer's workspace for all-reduce, which stays allocated; 0 where vLLM does not use it, and where links are not NVLink.

    vLLM fuses all-reduce and norm on Hopper and Blackwell since 0.17 (`enable_allreduce_rms_fusion`), and reduces with FlashInfer
    without a norm too since 0.29. Where FlashInfer makes memory for several GPUs at once, it rounds up to 512 MiB: each of three
    buffers in 0.6.4 to 0.6.8 (vLLM 0.17 to 0.21), the only one since 0.6.16 (vLLM 0.27).
    """
    accounting, ranks = run.accounting, run.parallelism.tensor
    major, minor = run.accelerator.compute_capability or (0, 0)
    capability = 10 * major + minor
    largest = int(_LARGEST_MIB.get(capability, {}).get(ranks, 0) * MIB)
    if not (largest and accounting.all_reduce_workspace and run.accelerator.has_multicast):
        return 0
    row_bytes = run.shape.hidden_size * run.element_bytes
    alone_mib = accounting.reduces_alone_mib
    excluded, cut = accounting.all_reduce_excludes, run.parallelism
    beside = ("data" in excluded and cut.data > 1) or ("pipeline" in excluded and cut.pipeline > 1)
    if run.is_compiled and run.fuses_kernels and not beside:
        tokens = min(largest // row_bytes, run.max_num_batched_tokens)
    elif alone_mib is not None and run.token_bytes <= largest:
        tokens = largest // row_bytes
    else:
        return 0
    if alone_mib is not None:
        tokens = max(tokens, alone_mib.get((capability, ranks), 0) * MIB // row_bytes)
    block = _MULTICAST_BLOCK_BYTES if accounting.all_reduce_multicast else _BLOCK_BYTES
    if accounting.all_reduce_workspace == "mnnvl":
        # three buffers for two steps, whose rows are divided among the ranks (FlashInfer 0.6, `get_required_buffer_size_bytes`)
        return round_up(3 * 2 * round_up(tokens, ranks) * row_bytes + _SIGNALS_BYTES, block)
    exchanged = ranks * tokens * row_bytes
    return sum(round_up(size + _SIGNALS_BYTES, block) for size in (exchanged, ranks * _FLAG_BYTES, 3 * exchanged))


def communicators(run: Run) -> Interval:
    """Return what communicators take after vLLM's snapshot.

    Before 0.11 that is all of them; then the one with which torch gathers the logits, until 0.26 gathers with one of its own, which
    exists before the snapshot. Of a GPU without a name only the memory tells whether it may have NVLink.
    """
    accelerator, cut = run.accelerator, run.parallelism
    if cut.tensor == 1:
        return fitted.STAGES.interval if cut.pipeline > 1 else Interval.exactly(0)
    if accelerator.vendor == "amd":
        return fitted.RCCL.interval
    found = links_of(run)
    if not found.is_known:
        with_links = _over_nvlink(replace(run, accelerator=replace(accelerator, nvlink=True)))
        low = min(_over_pcie(run).low, with_links.expected)
        return Interval(low=low, expected=with_links.expected, high=with_links.high)
    return _over_nvlink(run) if accelerator.nvlink else _over_pcie(run)


def links_of(run: Run) -> Fact:
    """Return the links between the GPUs of the engine: as they are told, or as the product has them."""
    accelerator, stated = run.accelerator, run.circumstances.links
    if stated is None and accelerator.vendor == "unknown" and accelerator.memory_bytes // GIB in _SIZES_WITH_NVLINK:
        return Fact(
            name="links", value="NVLink", other="PCIe", why="the GPU has no name, and most of its size have NVLink"
        )
    if stated is None and accelerator.vendor not in ("nvidia", "unknown"):
        return Fact(name="links", value="of its vendor", why="NVLink and its buffers are NVIDIA's")
    if stated is None and accelerator.nvlink and not accelerator.nvlink_is_told:
        return Fact(name="links", value="NVLink", other="PCIe", why=_SOLD_WITH)
    why = "they are stated" if stated else "the machine says so" if accelerator.nvlink else "the product has no NVLink"
    value = "host memory" if stated == "host" else "NVLink" if accelerator.nvlink else "PCIe"
    return Fact(name="links", value=value, why=why)


_SOLD_WITH = (
    "the product is sold with it, and a virtual machine may keep its GPUs from reaching each other (two of nine sources); vLLM's log "
    "then says that custom allreduce is disabled, NCCL_P2P_DISABLE=1 may stand in the pod, and a node's label may tell"
)


_SIZES_WITH_NVLINK = frozenset({39, 79, 93, 94, 139, 178, 184, 267, 276})
"""Whole GiB of GPUs that are mostly sold with NVLink: A100, H100, H20, GH200, H200, Blackwell."""


def _over_pcie(run: Run) -> Interval:
    if run.circumstances.links == "host" and not run.accounting.nccl_in_budget:
        return fitted.NCCL_HOST.interval
    return (fitted.NCCL_PCIE if run.accounting.nccl_in_budget else fitted.NCCL_PCIE_FIRST_USE).interval


def _over_nvlink(run: Run) -> Interval:
    accounting, ranks = run.accounting, run.parallelism.tensor
    ring = _CHANNELS * _CONNECTION_BYTES
    if not accounting.nccl_in_budget:
        opened = Interval.exactly(ring) + fitted.NCCL_GATHER.interval
        return opened if accounting.gathers_with_torch else fitted.NCCL_LATER.interval
    if (run.accelerator.capability_major or 0) >= 9:
        first = fitted.NCCL_HOPPER if accounting.nccl_connects_at_use else fitted.NCCL_HOPPER_AT_ONCE
        more = int(fitted.NCCL_HOPPER_DOUBLING.interval.expected * max(0.0, log2(ranks) - 1))
        return Interval.exactly(more) + first.interval
    # vLLM's communicator opens a ring and a tree, torch's too before NCCL 2.22, and in a tree most ranks have two neighbours
    tree = min(2, ranks - 1)
    rings = 1 + tree + (1 if accounting.nccl_connects_at_use else 1 + tree)
    return Interval.exactly(rings * ring) + fitted.NCCL_REST.interval


def all_to_all_bytes(run: Run) -> Interval:
    """Return DeepEP's buffers, which experts on several data-parallel ranks get tokens through (0.8.5 to 0.33, `all2all.py`).

    Both kinds have 1 GiB for the GPUs of a node. Between nodes, high throughput has as much again; low latency has two buffers to send
    and two to receive, with a place for every token of every expert (DeepEP, `LowLatencyLayout`).
    """
    cut = run.parallelism
    mlps = [mlp for layer in run.layers for mlp in layer.mlps if isinstance(mlp, SparseMlp)]
    if cut.all_to_all not in _DEEPEP or not (cut.expert and cut.data > 1 and mlps):
        return Interval.exactly(0)
    beyond_node = GIB if cut.num_expert_ranks > _GPUS_OF_A_NODE else 0
    if cut.all_to_all == "deepep_low_latency":
        tokens = run.accounting.all_to_all_tokens or run.max_num_batched_tokens
        hidden = run.shape.hidden_size
        message_bytes = 2 * hidden + max(16, hidden // 128 * 4)
        beyond_node = 4 * max(mlp.num_experts for mlp in mlps) * tokens * message_bytes
    # NVSHMEM's own heap is not counted, and a node may have other sizes than eight GPUs
    return Interval(low=min(GIB, beyond_node), expected=GIB + beyond_node, high=2 * GIB + max(GIB, beyond_node))


_DEEPEP = frozenset({"deepep_high_throughput", "deepep_low_latency"})
_GPUS_OF_A_NODE = 8


def non_torch(run: Run) -> Term:
    """Return the memory that loaded kernels, and the exchange between several GPUs, take after the snapshot."""
    # from 0.27 on vLLM reads the figure before it captures graphs, and their part of it is in the estimate of the graphs
    captured = captures_graphs(run) and run.accounting.captures_graphs(run.accelerator.vendor, v2_runner=run.v2_runner)
    kernels = _kernels(run, after_graphs=captured and not run.accounting.consumed_accounting)
    found = links_of(run)
    links, workspace_bytes, exchange = communicators(run), all_reduce_workspace_bytes(run), all_to_all_bytes(run)
    workspace = Interval.exactly(workspace_bytes)
    if not found.is_known:  # it needs links
        workspace = Interval(low=0, expected=workspace_bytes, high=workspace_bytes)
    return Term(
        name="non_torch",
        amount=kernels + links + exchange + workspace,
        formula="kernels + links + all_reduce_workspace" + (" + all_to_all" if exchange.expected else ""),
        facts=(found,) if run.parallelism.tensor > 1 else (),
        source="logged starts; vLLM 0.11 and 0.19, MemorySnapshot; NCCL 2.21 and FlashInfer 0.6, buffers",
        inputs=(
            ("tensor_parallel_size", run.parallelism.tensor),
            ("links", found.value if run.accelerator.vendor == "nvidia" or run.circumstances.links else "not known"),
            ("nccl", "counted" if run.accounting.nccl_in_budget else "before the snapshot"),
            ("kernels_bytes", kernels.expected),
            ("links_bytes", links.expected),
            ("all_reduce_workspace_bytes", workspace_bytes),
            *((("all_to_all_bytes", exchange.expected),) if exchange.expected else ()),
        ),
    )


def _kernels(run: Run, *, after_graphs: bool) -> Interval:
    by_vendor = {"amd": fitted.KERNELS_ROCM, "intel": fitted.KERNELS_XPU}
    is_large = run.accelerator.capability_major in (9, 10)
    graphs = fitted.KERNELS_AND_GRAPHS if is_large else fitted.KERNELS_AND_GRAPHS_SMALL
    alone = fitted.KERNELS_EARLY if run.accounting.nccl_in_budget else fitted.KERNELS
    alike = graphs if after_graphs and run.has_sampler else alone
    kernels = by_vendor.get(run.accelerator.vendor, alike).interval
    if run.accounting.whole_card_non_torch:
        kernels += fitted.CONTEXT.interval
    if run.accelerator.unified_memory:
        kernels += fitted.UNIFIED.interval
    return kernels + fitted.UNALIGNED.interval if run.shape.vocab_size % 16 else kernels


def startup_slack(accelerator: Accelerator, accounting: Accounting, parallelism: Parallelism) -> Interval:
    """Return total − free memory at start-up on a GPU that nobody else uses.

    It must fit into the share that gpu_memory_utilization leaves: vLLM refuses to start if free < total × gpu_memory_utilization.
    """
    if accelerator.unified_memory:
        return fitted.SLACK_UNIFIED.interval
    if accelerator.vendor != "nvidia":
        return fitted.SLACK_ELSEWHERE.interval
    if parallelism.tensor * parallelism.pipeline == 1 or accounting.nccl_in_budget:
        return fitted.SLACK_CONTEXT.interval
    return fitted.SLACK_CONTEXT.interval + (
        fitted.SLACK_NVLINK.interval if accelerator.nvlink else fitted.SLACK_PCIE.interval
    )
