"""PodDisruptionBudgets of others that select the pods of an object.

An API server refuses every eviction of a pod that two of them select, so where there is another one kvgate makes none.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from kvgate.api.base import Document
from kvgate.cluster.client import DISRUPTION_BUDGETS, Cluster
from kvgate.controller.decision import Key
from kvgate.nodes.matching import Expression


class OtherBudgets(Struct, kw_only=True):
    """PodDisruptionBudgets of others that select an object's pods, by the object; looked for before kvgate makes its own."""

    found: dict[Key, tuple[str, object]] = {}
    """(name of the budget, generation of the object): an edited object is looked at anew."""

    def of(self, key: Key, document: Document) -> str:
        """Return the name of the budget that was found; empty where none was."""
        name, generation = self.found.get(key, ("", None))
        return name if generation == document["metadata"].get("generation") else ""

    async def look(self, cluster: Cluster, key: Key, document: Document, deployment: Document) -> str:
        """List the budgets of the namespace, and return the name of one that selects these pods."""
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        name = ""
        async for budget in cluster.list(DISRUPTION_BUDGETS, key[0]):
            if budget["metadata"]["name"] != key[1] and selects(budget.get("spec", {}).get("selector"), labels):
                name = str(budget["metadata"]["name"])
        self.found[key] = name, document["metadata"].get("generation")
        return name


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector selects pods with these labels; an empty one selects all, one that is missing none."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    expressions = map(Expression.read, selector.get("matchExpressions") or ())
    return all(each.holds(labels.get(each.key)) for each in expressions)
