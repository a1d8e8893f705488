"""The nodes that can take a pod: node selector, required node affinity, taints and tolerations, as the scheduler reads them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from msgspec import Struct

from kvgate.nodes.node import Node, Taint

_PASSING = "node.kubernetes.io/"
"""Taints that come and go with the node's state (cordoned, not ready, under pressure): they change no verdict."""


class Expression(Struct, frozen=True):
    """A requirement on the value of one label, as selectors and affinities state it."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    @classmethod
    def read(cls, stated: Mapping[str, Any], prefix: str = "") -> Self:
        values = tuple(map(str, stated.get("values") or ()))
        return cls(prefix + str(stated.get("key")), str(stated.get("operator")), values)

    def holds(self, found: str | None) -> bool:
        """Return True where a value meets it; None: there is no such label."""
        match self.operator:
            case "In":
                return found in self.values
            case "NotIn":
                return found not in self.values
            case "Exists":
                return found is not None
            case "DoesNotExist":
                return found is None
            case "Gt" | "Lt" if found is not None and len(self.values) == 1:
                try:
                    difference = int(found) - int(self.values[0])
                except ValueError:
                    return False
                return difference > 0 if self.operator == "Gt" else difference < 0
        return False


class Requirement(Struct, frozen=True, kw_only=True):
    """The wishes of a pod about its node, but for the number of GPUs."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[tuple[Expression, ...], ...] = ()
    """Terms of the required affinity, one of which must hold; a term without expressions never does."""
    tolerations: tuple[tuple[tuple[str, str], ...], ...] = ()

    @property
    def names_nodes(self) -> bool:
        return bool(self.selector or self.terms)


def requirement_of(pod: Mapping[str, Any], *, tolerates: Iterable[str] = ()) -> Requirement:
    """Read the spec of a pod; `tolerates` are keys of taints with the effect NoSchedule that kvgate's pods tolerate besides."""
    affinity = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    own = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in tolerates]
    tolerations = [*own, *(pod.get("tolerations") or ())]
    return Requirement(
        selector=tuple(sorted((pod.get("nodeSelector") or {}).items())),
        terms=tuple(_term(term) for term in affinity.get("nodeSelectorTerms") or ()),
        tolerations=tuple(tuple(sorted((key, str(value)) for key, value in each.items())) for each in tolerations),
    )


def _term(term: Mapping[str, Any]) -> tuple[Expression, ...]:
    return tuple(
        Expression.read(each, prefix)
        for prefix, field in (("", "matchExpressions"), ("\0", "matchFields"))
        for each in term.get(field) or ()
    )


def can_take(node: Node, requirement: Requirement) -> bool:
    """Return True where the node may run the pod as far as labels and taints say; whether it is cordoned, or full, does not count."""
    return (
        all(node.labels.get(name) == value for name, value in requirement.selector)
        and (not requirement.terms or any(_holds(term, node) for term in requirement.terms))
        and all(_is_tolerated(taint, requirement.tolerations) for taint in node.taints)
    )


def _holds(term: Sequence[Expression], node: Node) -> bool:
    found = ((each, node.name if each.key == "\0metadata.name" else node.labels.get(each.key)) for each in term)
    return bool(term) and all(each.holds(value) for each, value in found)


def _is_tolerated(taint: Taint, tolerations: Sequence[tuple[tuple[str, str], ...]]) -> bool:
    if taint.effect not in ("NoSchedule", "NoExecute") or taint.key.startswith(_PASSING):
        return True
    for toleration in map(dict, tolerations):
        key, operator = toleration.get("key", ""), toleration.get("operator", "Equal")
        is_key = key == taint.key or (not key and operator == "Exists")
        is_value = operator == "Exists" or toleration.get("value", "") == taint.value
        if is_key and is_value and toleration.get("effect", "") in ("", taint.effect):
            return True
    return False
