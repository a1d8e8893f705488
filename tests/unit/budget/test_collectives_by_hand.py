"""What ranks exchange tensors through, term by term: each fitted constant where it belongs, and buffers worked out by hand."""

from typing import Any

import pytest
from msgspec.structs import replace

from kvgate.budget.engine.circumstances import Circumstances, Links
from kvgate.budget.engine.request import GraphSettings
from kvgate.budget.gpu.non_torch import all_reduce_workspace_bytes, all_to_all_bytes, communicators, links_of
from kvgate.budget.ground import fitted
from kvgate.budget.ground.fitted import Fitted
from kvgate.budget.ground.hardware import Accelerator
from kvgate.budget.ground.interval import Interval
from kvgate.budget.ground.units import GIB, KIB, MIB
from kvgate.budget.model.shape import LayerShape, SparseMlp
from support.builders import new_accelerator, new_model_shape, new_run
from support.tables import table

RING = 24 * 12 * MIB
"""A connection of each of NCCL's 24 channels."""
HOPPER, LINKLESS = new_accelerator(), new_accelerator(nvlink=False)
AMPERE = new_accelerator(compute_capability=(8, 0))
B200, B300 = new_accelerator(compute_capability=(10, 0)), new_accelerator(compute_capability=(10, 3))
AMD = new_accelerator(vendor="amd", compute_capability=None, nvlink=False)


def nameless(memory_gib: float) -> Accelerator:
    return new_accelerator(vendor="unknown", nvlink=False, compute_capability=None, memory_gib=memory_gib)


@table(
    ("accelerator", "told", "value", "other"),
    [
        (HOPPER, None, "NVLink", "PCIe"),
        (replace(HOPPER, nvlink_is_told=True), None, "NVLink", ""),
        (HOPPER, "host", "host memory", ""),
        (LINKLESS, None, "PCIe", ""),
        (HOPPER, "nvlink", "NVLink", ""),
        (LINKLESS, "pcie", "PCIe", ""),
        (AMD, None, "of its vendor", ""),
        (AMD, "pcie", "PCIe", ""),
        (nameless(79.2), None, "NVLink", "PCIe"),
        (nameless(79.2), "pcie", "PCIe", ""),
        (nameless(39.4), None, "NVLink", "PCIe"),
        (nameless(276.9), None, "NVLink", "PCIe"),
        (nameless(23.5), None, "PCIe", ""),  # no GPU of this size has them
        (nameless(80.0), None, "PCIe", ""),
    ],
)
def test_links_are_told_or_the_products_or_guessed_by_the_size(
    accelerator: Accelerator, told: Links | None, value: str, other: str
) -> None:
    fact = links_of(new_run(accelerator=accelerator, tensor=2, circumstances=Circumstances(links=told)))
    assert (fact.value, fact.other) == (value, other)
    assert ("stated" in fact.why) is (told is not None)


@table("memory_gib", [39, 79, 93, 94, 139, 178, 184, 267, 276])
def test_the_sizes_that_are_sold_with_nvlink(memory_gib: int) -> None:
    """A100, H100, H20, GH200, H200, B200, GB200, B300 and GB300, as their drivers report them."""
    assert not links_of(new_run(accelerator=nameless(memory_gib + 0.5))).is_known


def plus(ring: int, *more: Fitted) -> Interval:
    return sum((each.interval for each in more), Interval.exactly(ring))


@table(
    ("version", "accelerator", "cut", "expected"),
    [
        ("0.33.0", HOPPER, {}, plus(0)),
        ("0.33.0", HOPPER, {"pipeline": 2}, plus(0, fitted.STAGES)),
        ("0.33.0", HOPPER, {"data": 2}, plus(0)),
        ("0.33.0", AMD, {"tensor": 2}, plus(0, fitted.RCCL)),
        ("0.33.0", AMD, {"pipeline": 2}, plus(0, fitted.STAGES)),
        ("0.10.2", LINKLESS, {"tensor": 2}, plus(0, fitted.NCCL_PCIE)),
        ("0.11.0", LINKLESS, {"tensor": 2}, plus(0, fitted.NCCL_PCIE_FIRST_USE)),
        ("0.11.0", HOPPER, {"tensor": 2}, plus(RING, fitted.NCCL_GATHER)),  # torch's ring alone
        ("0.25.0", HOPPER, {"tensor": 8}, plus(RING, fitted.NCCL_GATHER)),
        ("0.26.0", HOPPER, {"tensor": 8}, plus(0, fitted.NCCL_LATER)),  # PyNccl gathers, before the snapshot
        ("0.8.5", HOPPER, {"tensor": 2}, plus(0, fitted.NCCL_HOPPER_AT_ONCE)),
        ("0.9.0", HOPPER, {"tensor": 2}, plus(0, fitted.NCCL_HOPPER)),
        ("0.9.0", B200, {"tensor": 2}, plus(0, fitted.NCCL_HOPPER)),
        ("0.9.0", HOPPER, {"tensor": 4}, plus(fitted.NCCL_HOPPER_DOUBLING.interval.expected, fitted.NCCL_HOPPER)),
        ("0.9.0", HOPPER, {"tensor": 8}, plus(2 * fitted.NCCL_HOPPER_DOUBLING.interval.expected, fitted.NCCL_HOPPER)),
        # a ring, and the tree of vLLM's own communicator with one neighbour or two; torch's tree too before NCCL 2.22
        ("0.8.5", AMPERE, {"tensor": 2}, plus(4 * RING, fitted.NCCL_REST)),
        ("0.8.5", AMPERE, {"tensor": 3}, plus(6 * RING, fitted.NCCL_REST)),
        ("0.8.5", AMPERE, {"tensor": 8}, plus(6 * RING, fitted.NCCL_REST)),
        ("0.9.0", AMPERE, {"tensor": 2}, plus(3 * RING, fitted.NCCL_REST)),
        ("0.10.2", AMPERE, {"tensor": 4}, plus(4 * RING, fitted.NCCL_REST)),
    ],
)  # fmt: skip
def test_communicators_by_release_links_and_ranks(
    version: str, accelerator: Accelerator, cut: dict[str, int], expected: Interval
) -> None:
    told = replace(accelerator, nvlink_is_told=True)
    assert communicators(new_run(version=version, accelerator=told, **cut)) == expected


def test_a_gpu_without_a_name_expects_nvlink_and_may_have_none() -> None:
    found = communicators(new_run(version="0.19.0", accelerator=nameless(79.2), tensor=2))
    linked, pcie = plus(RING, fitted.NCCL_GATHER), fitted.NCCL_PCIE_FIRST_USE.interval
    assert (found.expected, found.high) == (linked.expected, linked.high)
    assert found.low == pcie.low < linked.low
    told = new_run(version="0.19.0", accelerator=nameless(79.2), tensor=2, circumstances=Circumstances(links="pcie"))
    assert communicators(told) == pcie


WIDE = new_model_shape(hidden_size=4096)
"""A row of 8 KiB."""


def workspace(version: str, accelerator: Accelerator, tensor: int, tokens: int = 8192, **more: Any) -> int:
    shape = more.pop("shape", WIDE)
    return all_reduce_workspace_bytes(
        new_run(version=version, accelerator=accelerator, shape=shape, tensor=tensor, max_num_batched_tokens=tokens, **more)
    )  # fmt: skip


def in_steps(*sizes: int) -> int:
    """Each with 2 KiB for signals, in steps of 2 MiB."""
    return sum(-(-(size + 2 * KIB) // (2 * MIB)) * 2 * MIB for size in sizes)


@table(
    ("accelerator", "tensor", "largest"),
    [
        (HOPPER, 2, 64 * MIB), (HOPPER, 4, 2 * MIB), (HOPPER, 8, MIB // 2),
        (B200, 2, 64 * MIB), (B200, 4, 32 * MIB), (B200, 8, MIB),
        (B300, 2, 64 * MIB), (B300, 4, 64 * MIB), (B300, 8, 2 * MIB),
    ],
)  # fmt: skip
def test_flashinfer_fuses_tensors_up_to_a_size(accelerator: Accelerator, tensor: int, largest: int) -> None:
    """FI_ALLREDUCE_FUSION_MAX_SIZE_MB; 0.22 to 0.24 exchange one buffer, flags of 1 KiB a rank, and three more (`trtllm`)."""
    expected = in_steps(tensor * largest, tensor * KIB, 3 * tensor * largest)
    assert workspace("0.22.0", accelerator, tensor) == expected
    few = 10 * tensor * 8 * KIB
    assert workspace("0.22.0", accelerator, tensor, tokens=10) == in_steps(few, tensor * KIB, 3 * few)


@table(
    ("version", "expected"),
    [
        ("0.16.0", 0),
        ("0.17.0", 3 * 512 * MIB),
        ("0.21.0", 3 * 512 * MIB),
        ("0.22.0", in_steps(2 * MIB, 2 * KIB, 6 * MIB)),
        ("0.24.0", in_steps(2 * MIB, 2 * KIB, 6 * MIB)),
        ("0.25.0", in_steps(6 * MIB)),  # `mnnvl`: three buffers for two steps of 128 rows
        ("0.26.0", in_steps(6 * MIB)),
        ("0.27.0", 512 * MIB),
    ],
)
def test_the_workspace_of_128_tokens_by_release(version: str, expected: int) -> None:
    assert workspace(version, HOPPER, 2, tokens=128) == expected


def test_rows_are_divided_among_the_ranks() -> None:
    """`get_required_buffer_size_bytes`: 129 tokens are 132 on four ranks."""
    assert workspace("0.25.0", B300, 4, tokens=129) == in_steps(3 * 2 * 132 * 8 * KIB)
    assert workspace("0.25.0", B300, 4, tokens=256) == in_steps(3 * 2 * 256 * 8 * KIB)


@table(
    ("version", "data", "pipeline", "fuses"),
    [
        ("0.20.0", 2, 1, False), ("0.20.0", 1, 2, False), ("0.21.0", 2, 1, True), ("0.21.0", 1, 2, True),
        ("0.22.0", 2, 2, True), ("0.23.0", 1, 2, False), ("0.23.0", 2, 1, True), ("0.24.0", 2, 2, True), ("0.20.0", 1, 1, True),
    ],
)  # fmt: skip
def test_other_kinds_of_parallelism_forbid_it_in_some_releases(
    version: str, data: int, pipeline: int, *, fuses: bool
) -> None:
    assert (workspace(version, HOPPER, 2, data=data, pipeline=pipeline) > 0) is fuses


@pytest.mark.parametrize(
    ("more", "fuses"),
    [
        ({}, True), ({"enforce_eager": True}, False), ({"fuses_kernels": False}, False),
        ({"graphs": GraphSettings(compiles=False)}, False), ({"graphs": GraphSettings(compiles=True)}, True),
        ({"enforce_eager": True, "graphs": GraphSettings(compiles=True)}, False),
    ],
)  # fmt: skip
def test_a_pass_of_the_compiler_fuses_all_reduce(more: dict[str, Any], *, fuses: bool) -> None:
    assert (workspace("0.22.0", HOPPER, 2, **more) > 0) is fuses


@pytest.mark.parametrize(
    ("version", "tokens", "expected"),
    [
        ("0.28.0", 64, 0),
        ("0.29.0", 64, 512 * MIB),  # 64 × 8 KiB is just half a MiB
        ("0.29.0", 65, 0),
    ],
)
def test_without_a_compiler_flashinfer_reduces_what_it_may_since_0_29(version: str, tokens: int, expected: int) -> None:
    assert workspace(version, HOPPER, 8, tokens=tokens, enforce_eager=True) == expected


@table(
    ("version", "accelerator", "tensor", "alone_mib"),
    [
        ("0.29.0", B300, 4, 0), ("0.30.0", B300, 4, 80), ("0.32.0", B300, 8, 64), ("0.33.0", B300, 8, 128), ("0.33.0", B300, 4, 80),
        ("0.32.0", B200, 8, 0), ("0.33.0", B200, 8, 128), ("0.33.0", B200, 4, 0),
    ],
)  # fmt: skip
def test_the_largest_tensor_without_a_norm(version: str, accelerator: Accelerator, tensor: int, alone_mib: int) -> None:
    """`FI_MNNVL_ALLREDUCE_MAX_SIZE_MB` of 0.30 to 0.33 on one node; with one token, six such tensors and the signals."""
    size = 6 * max(alone_mib * MIB, tensor * 8 * KIB) + 2 * KIB
    assert workspace(version, accelerator, tensor, tokens=1) == -(-size // (512 * MIB)) * 512 * MIB


def test_only_boards_with_switches_have_the_workspace() -> None:
    without_switches = new_accelerator(product="NVIDIA GH200 480GB")
    for accelerator in (LINKLESS, AMPERE, without_switches, new_accelerator(compute_capability=(12, 0)), AMD):
        assert workspace("0.33.0", accelerator, 2) == 0
    assert workspace("0.33.0", HOPPER, 3) == 0  # a number of ranks without a size


EXPERTS = new_model_shape(
    hidden_size=4096, layers=tuple(
        LayerShape(mlps=(SparseMlp(num_experts=count, num_experts_per_token=2, intermediate_size=64),)) for count in (32, 64)
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("version", "cut", "beyond_node"),
    [
        ("0.33.0", {"data": 8, "all_to_all": "deepep_high_throughput"}, 0),
        ("0.33.0", {"data": 9, "all_to_all": "deepep_high_throughput"}, GIB),
        ("0.33.0", {"data": 4, "tensor": 2, "all_to_all": "deepep_high_throughput"}, 0),
        ("0.33.0", {"data": 8, "tensor": 2, "all_to_all": "deepep_high_throughput"}, GIB),
        # a token: 4096 16-bit channels and a scale for each 128; two buffers to send and two to receive, for the most experts
        ("0.33.0", {"data": 2, "all_to_all": "deepep_low_latency"}, 4 * 64 * 1000 * (8192 + 128)),
        ("0.19.0", {"data": 2, "all_to_all": "deepep_low_latency"}, 4 * 64 * 256 * (8192 + 128)),
        ("0.20.0", {"data": 2, "all_to_all": "deepep_low_latency"}, 4 * 64 * 1000 * (8192 + 128)),
    ],
)
def test_deepep_has_a_gib_for_the_node_and_more_beyond(version: str, cut: dict[str, Any], beyond_node: int) -> None:
    found = all_to_all_bytes(new_run(version=version, shape=EXPERTS, max_num_batched_tokens=1000, expert=True, **cut))
    assert found.expected == GIB + beyond_node
    assert found.low == min(GIB, beyond_node)
    assert found.high == 2 * GIB + max(GIB, beyond_node)


def test_a_short_hidden_state_still_has_sixteen_bytes_of_scales() -> None:
    small = new_model_shape(hidden_size=256, layers=EXPERTS.layers)
    cut = {"data": 2, "all_to_all": "deepep_low_latency", "expert": True}
    found = all_to_all_bytes(new_run(shape=small, max_num_batched_tokens=1000, **cut))
    assert found.expected == GIB + 4 * 64 * 1000 * (512 + 16)


@pytest.mark.parametrize(
    "cut",
    [
        {"data": 1, "expert": True, "all_to_all": "deepep_high_throughput"},
        {"data": 2, "expert": False, "all_to_all": "deepep_high_throughput"},
        {"data": 2, "expert": True, "all_to_all": "pplx"},
        {"data": 2, "expert": True},
    ],
)
def test_deepep_is_for_whole_experts_on_several_data_parallel_ranks(cut: dict[str, Any]) -> None:
    assert all_to_all_bytes(new_run(shape=EXPERTS, **cut)) == Interval.exactly(0)
    dense = new_run(data=2, expert=True, all_to_all="deepep_high_throughput")
    assert all_to_all_bytes(dense) == Interval.exactly(0)
