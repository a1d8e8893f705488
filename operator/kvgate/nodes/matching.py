"""Which nodes can take a pod: node selector, required node affinity, taints and tolerations, as the scheduler reads them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from kvgate.nodes.node import Node, Taint

_PASSING = "node.kubernetes.io/"
"""Taints that come and go with the node's state (cordoned, not ready, under pressure): they change no verdict."""


class Expression(Struct, frozen=True):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class Requirement(Struct, frozen=True, kw_only=True):
    """What a pod asks of its node, but for the number of GPUs."""

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
        Expression(prefix + str(each.get("key")), str(each.get("operator")), tuple(map(str, each.get("values") or ())))
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
    return bool(term) and all(_matches(each, node) for each in term)


def _matches(expression: Expression, node: Node) -> bool:
    found = node.name if expression.key == "\0metadata.name" else node.labels.get(expression.key)
    match expression.operator:
        case "In":
            return found in expression.values
        case "NotIn":
            return found not in expression.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt" if found is not None and len(expression.values) == 1:
            try:
                difference = int(found) - int(expression.values[0])
            except ValueError:
                return False
            return difference > 0 if expression.operator == "Gt" else difference < 0
    return False


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
