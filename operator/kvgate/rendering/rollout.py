"""Availability of the pods: how a rollout replaces them, how many may be evicted at a time, and how they are spread. Pure."""

from fractions import Fraction

from kvgate.api.base import Document
from kvgate.api.template import Template
from kvgate.api.v1alpha1 import InferenceDeployment, InferenceDeploymentSpec, RollingUpdate
from kvgate.rendering.labels import hashed, metadata, selector

SPREAD_OVER = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
"""Labels of nodes. The scheduler's own default has both, and a pod that states one of them loses the other."""


def strategy_of(spec: InferenceDeploymentSpec) -> Document:
    """Return the strategy of the Deployment. By default an old pod ends first: there are no spare GPUs for a surge."""
    given = spec.strategy
    if given is not None and given.type == "Recreate":
        return {"type": "Recreate"}
    update = (given.rolling_update if given else None) or RollingUpdate()
    surge = 0 if update.max_surge is None else update.max_surge
    unavailable = update.max_unavailable
    if unavailable is None:
        unavailable = 0 if pods(surge, 100, is_surge=True) else 1
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


def pods(amount: int | str, replicas: int, *, is_surge: bool = False) -> int:
    """Return a number of pods, or a percentage of the replicas as Kubernetes rounds it: a surge up, missing replicas down."""
    if isinstance(amount, int):
        return amount
    share = Fraction(int(amount[:-1]) * replicas, 100)
    return -(-share.numerator // share.denominator) if is_surge else int(share)


def missing_in_rollout(spec: InferenceDeploymentSpec) -> int:
    """Return how many replicas a rollout takes away at a time; a Deployment that could replace none takes one."""
    strategy = strategy_of(spec)
    if strategy["type"] == "Recreate":
        return spec.replicas
    update = strategy["rollingUpdate"]
    missing = pods(update["maxUnavailable"], spec.replicas)
    return min(missing or int(not pods(update["maxSurge"], spec.replicas, is_surge=True)), spec.replicas)


def spread_of(template: Template, name: str) -> list[Document]:
    """Return the constraints of the template, or the default, which is the same for any number of replicas: scaling restarts no pod."""
    stated = template.topology_spread_constraints
    default = ({"maxSkew": 1, "topologyKey": label, "whenUnsatisfiable": "ScheduleAnyway"} for label in SPREAD_OVER)
    chosen = default if stated is None else stated
    return [{**each, "labelSelector": each.get("labelSelector", {"matchLabels": selector(name)})} for each in chosen]


def disruption_budget(owner: InferenceDeployment, needed: int) -> Document | None:
    """Return the PodDisruptionBudget; None where at most one replica runs, or where the spec wants none.

    `needed` is the number of replicas that the promise needs: by default no more are evicted than are left.
    """
    given, replicas = owner.spec.pod_disruption_budget, owner.spec.wanted_replicas
    if replicas <= 1 or (given is not None and given.enabled is False):
        return None
    stated = given.max_unavailable if given else None
    return hashed({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(owner),
        "spec": {
            "maxUnavailable": max(0, min(1, replicas - needed)) if stated is None else stated,
            "selector": {"matchLabels": selector(owner.name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",  # a pod that is not ready serves nobody
        },
    })  # fmt: skip
