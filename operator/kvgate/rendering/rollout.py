"""Availability of the pods: how a rollout replaces them, how many may be evicted at a time, and how they are spread. Pure."""

from kvgate.api.base import Document
from kvgate.api.template import Template
from kvgate.api.v1alpha1 import InferenceDeployment, InferenceDeploymentSpec
from kvgate.judgement.replicas import pace_of
from kvgate.rendering.labels import hashed, metadata, selector

SPREAD_OVER = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
"""Labels of nodes. The scheduler's own default has both, and a pod that states one of them loses the other."""


def strategy_of(spec: InferenceDeploymentSpec) -> Document:
    """Return the strategy of the Deployment."""
    pace = pace_of(spec)
    if pace is None:
        return {"type": "Recreate"}
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": pace.surge, "maxUnavailable": pace.unavailable}}


def spread_of(template: Template, name: str) -> list[Document]:
    """Return the constraints of the template, or the default, which is the same for any number of replicas: scaling restarts no pod."""
    stated = template.topology_spread_constraints
    default = ({"maxSkew": 1, "topologyKey": label, "whenUnsatisfiable": "ScheduleAnyway"} for label in SPREAD_OVER)
    chosen = default if stated is None else stated
    return [{**each, "labelSelector": each.get("labelSelector", {"matchLabels": selector(name)})} for each in chosen]


def disruption_budget(owner: InferenceDeployment, needed: int, pods_of: Document) -> Document | None:
    """Return the PodDisruptionBudget; None where at most one replica runs, or where the spec wants none.

    `needed` is the number of replicas that the promise needs: by default no more are evicted than are left. `pods_of` is the selector.
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
            "selector": pods_of,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",  # a pod that is not ready serves nobody
        },
    })  # fmt: skip
