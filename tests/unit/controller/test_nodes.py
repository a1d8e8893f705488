"""Labels of nodes: those of several GPU operators, and none at all."""

import pytest

from kvgate.cluster.client import NODES, Cluster, Kind
from kvgate.cluster.errors import Forbidden
from kvgate.controller.pods import KEPT_SECONDS, NodeFacts, Nodes


@pytest.mark.parametrize(
    ("labels", "facts"),
    [
        ({}, NodeFacts()),
        (
            {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/cuda.driver-version.full": "570.86.15"},
            NodeFacts(product="NVIDIA-L4", driver="570.86.15"),
        ),
        (
            {
                f"nvidia.com/cuda.driver.{part}": number
                for part, number in (("major", "535"), ("minor", "104"), ("rev", "05"))
            },
            NodeFacts(driver="535.104.05"),
        ),
        ({"nvidia.com/gpu.product": "Tesla-T4-SHARED"}, NodeFacts(product="Tesla-T4", is_shared=True)),
        ({"nvidia.com/gpu.sharing-strategy": "mps"}, NodeFacts(is_shared=True)),
        ({"nvidia.com/gpu.sharing-strategy": "none"}, NodeFacts()),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, NodeFacts(product="AMD_Instinct_MI300X_OAM")),
        ({"amd.com/gpu.driver-version": "6.10.5"}, NodeFacts(driver="6.10.5")),
    ],
    ids=str,
)
def test_labels_are_those_that_gpu_operators_set(labels: dict[str, str], facts: NodeFacts) -> None:
    assert NodeFacts.of(labels) == facts


class OneNode(Cluster):
    def __init__(self, *, is_forbidden: bool = False, is_gone: bool = False) -> None:
        self.reads, self.is_forbidden, self.is_gone = 0, is_forbidden, is_gone

    async def find(self, kind: Kind, namespace: str | None, name: str) -> dict[str, object] | None:
        assert (kind, namespace, name) == (NODES, None, "n")
        self.reads += 1
        if self.is_forbidden:
            raise Forbidden("get", "nodes", "no")
        if self.is_gone:
            return None
        return {"metadata": {"labels": {"nvidia.com/gpu.product": "NVIDIA-L4"}}}


async def test_a_node_is_read_once_in_a_while() -> None:
    now = 0.0
    cluster, nodes = OneNode(), Nodes(clock=lambda: now)
    for _ in range(3):
        assert (await nodes.of(cluster, "n")).product == "NVIDIA-L4"
    now = KEPT_SECONDS
    await nodes.of(cluster, "n")
    assert cluster.reads == 2
    assert await nodes.of(cluster, "") == NodeFacts()


async def test_a_node_that_is_gone_may_come_back_at_any_time() -> None:
    cluster, nodes = OneNode(is_gone=True), Nodes(clock=lambda: 0.0)
    assert (await nodes.of(cluster, "n")).is_gone
    cluster.is_gone = False
    assert await nodes.of(cluster, "n") == NodeFacts(product="NVIDIA-L4")


async def test_a_right_that_is_missing_is_told_once_and_costs_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    cluster, nodes = OneNode(is_forbidden=True), Nodes(clock=lambda: now)
    for _ in range(2):
        assert await nodes.of(cluster, "n") == NodeFacts()
        now += KEPT_SECONDS
    assert len(caplog.records) == 1
