"""PodDisruptionBudgets of others: an API server refuses every eviction of a pod that two of them select."""

from typing import Any

from kvgate.controller.decision import Situation, assess_owner, decide
from kvgate.controller.disruption import selects
from support.manifests import a_document, an_owner
from support.tables import table

LABELS = {"app.kubernetes.io/name": "vllm", "kvgate.io/inferencedeployment": "qwen", "team": "a"}


@table(
    ("selector", "expected"),
    [
        (None, False), ({}, True), ({"matchLabels": {"team": "a"}}, True), ({"matchLabels": {"team": "b"}}, False),
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "kvgate.io/inferencedeployment", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, False),
        ({"matchLabels": {"team": "a"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]}, False),
    ],
)  # fmt: skip
def test_a_selector_selects_as_in_kubernetes(selector: Any, *, expected: bool) -> None:
    assert selects(selector, LABELS) is expected


def decided(budget: dict[str, Any] | None, **spec: Any) -> Any:
    owner = an_owner(**spec)
    return decide(Situation(document=a_document(), owner=owner, budget=budget), assess_owner(owner, ""))


def test_a_budget_is_made_corrected_and_dropped() -> None:
    made = decided(None, replicas=2).budget
    assert made.differs == ("all of it",)
    assert decided(made.wanted, replicas=2).budget is None, "as it should be"
    edited = {**made.wanted, "spec": {**made.wanted["spec"], "maxUnavailable": 5}}
    assert decided(edited, replicas=2).budget.differs == ("spec.maxUnavailable",)
    for spec in (
        {"replicas": 1},
        {"replicas": 2, "suspend": True},
        {"replicas": 2, "podDisruptionBudget": {"enabled": False}},
    ):
        intent = decided(made.wanted, **spec)
        assert (intent.drops_budget, intent.pending) == (True, True)


def test_a_budget_of_this_name_that_is_not_ours_is_left_alone() -> None:
    foreign = {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "qwen", "namespace": "serving"},
        "spec": {"minAvailable": 1},
    }
    for spec in ({"replicas": 2}, {"replicas": 1}):
        intent = decided(foreign, **spec)
        assert (intent.budget, intent.drops_budget) == (None, False)


def test_a_spec_that_is_refused_leaves_the_budget_of_what_runs() -> None:
    made = decided(None, replicas=2).budget.wanted
    owner = an_owner(replicas=2, vllm={"maxNumSeqs": 4096})
    refused = decide(Situation(document=a_document(), owner=owner, budget=made), assess_owner(owner, ""))
    assert (refused.budget, refused.drops_budget) == (None, False)
