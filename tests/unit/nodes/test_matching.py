"""Selectors, affinity and taints, as the scheduler reads them."""

from typing import Any

import pytest

from kvgate.nodes.matching import can_take, requirement_of
from support.nodes import a_node

NODE = a_node("gpu-7", {"zone": "a", "rank": "3"})


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def expressed(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("pod", "is_taken"),
    [
        ({}, True),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        ({"nodeSelector": {"missing": ""}}, False),
        (affinity(expressed("zone", "In", "a", "b")), True),
        (affinity(expressed("zone", "NotIn", "a")), False),
        (affinity(expressed("other", "NotIn", "a")), True),
        (affinity(expressed("zone", "Exists")), True),
        (affinity(expressed("zone", "DoesNotExist")), False),
        (affinity(expressed("rank", "Gt", "2")), True),
        (affinity(expressed("rank", "Lt", "3")), False),
        (affinity(expressed("zone", "Gt", "2")), False),
        (affinity(expressed("zone", "Near", "a")), False),
        (affinity(expressed("zone", "In", "b"), expressed("rank", "In", "3")), True),
        (affinity({}), False),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-7"]}]}), True),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-8"]}]}), False),
    ],
)
def test_a_node_is_selected_as_the_scheduler_does_it(pod: dict[str, Any], *, is_taken: bool) -> None:
    assert can_take(NODE, requirement_of(pod)) is is_taken


@pytest.mark.parametrize(
    ("taint", "tolerations", "is_taken"),
    [
        ({"key": "team", "value": "a", "effect": "NoSchedule"}, [], False),
        ({"key": "team", "value": "a", "effect": "PreferNoSchedule"}, [], True),
        ({"key": "team", "value": "a", "effect": "NoSchedule"}, [{"key": "team", "value": "a"}], True),
        ({"key": "team", "value": "a", "effect": "NoSchedule"}, [{"key": "team", "value": "b"}], False),
        ({"key": "team", "value": "a", "effect": "NoExecute"}, [{"key": "team", "operator": "Exists", "effect": "NoSchedule"}], False),
        ({"key": "team", "value": "a", "effect": "NoExecute"}, [{"operator": "Exists"}], True),
        ({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}, [], True),
        ({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}, [], True),
        ({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}, [], True),
    ],
)  # fmt: skip
def test_taints_that_last_must_be_tolerated(
    taint: dict[str, str], tolerations: list[dict[str, str]], *, is_taken: bool
) -> None:
    node = a_node("gpu-7", {}, taints=[taint])
    assert can_take(node, requirement_of({"tolerations": tolerations}, tolerates=["nvidia.com/gpu"])) is is_taken
