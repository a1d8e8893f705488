"""Leases of controllers (coordination.k8s.io): who serves which namespaces, and when that was last confirmed.

All Leases are in one namespace to which no tenant writes, so that every controller of a cluster sees every other one: replicas of a
Deployment, releases of the chart, and one on a developer's machine. The client library's elector is not used: it has one Lease and no
overlaps, its requests have no time limit, and it does not release.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from kvgate.api.base import Document
from kvgate.cluster.client import LEASES, Cluster
from kvgate.cluster.events import micro_time

NAMESPACE = "kube-system"
"""Default namespace of the Leases: every cluster has it, and tenants cannot write there."""
NAME = "kvgate-controller"
DURATION_SECONDS = 15
"""Time without a change after which a holder counts as gone; client-go's default."""
MAX_DURATION_SECONDS = 60
"""Longest duration that is believed of a Lease that somebody else wrote, so that a mistake does not block for ever."""
LABEL = "kvgate.io/lease"
NAMESPACES_ANNOTATION = "kvgate.io/namespaces"
INSTANCE_ANNOTATION = "kvgate.io/instance"
ALL = "*"


class Claim(Struct, frozen=True, kw_only=True):
    """The namespaces that a controller wants to serve, and its identity."""

    holder: str
    instance: str
    """The installation that it belongs to, whose replicas wait for each other as intended."""
    namespaces: frozenset[str] = frozenset()
    """Empty: all."""

    @classmethod
    def of(cls, namespaces: Sequence[str], *, holder: str, instance: str) -> "Claim":
        return cls(holder=holder, instance=instance, namespaces=frozenset(namespaces))

    @property
    def lease(self) -> str:
        """Name of its Lease, which depends on the namespaces alone, so that replicas share it."""
        if not self.namespaces:
            return NAME
        return f"{NAME}-{hashlib.sha256(','.join(sorted(self.namespaces)).encode()).hexdigest()[:10]}"

    def overlaps(self, lease: "Lease") -> bool:
        """Return True where it would serve a namespace that the Lease's holder serves as well."""
        return not self.namespaces or not lease.namespaces or bool(self.namespaces & lease.namespaces)


class Lease(Struct, frozen=True, kw_only=True):
    name: str
    holder: str
    """Empty where the Lease was released."""
    instance: str
    namespaces: frozenset[str]
    """Empty for all, and for a Lease that does not state them."""
    duration_seconds: int
    resource_version: str
    spec: Document

    @property
    def served(self) -> str:
        return f"namespaces {', '.join(sorted(self.namespaces))}" if self.namespaces else "all namespaces"


def _lease(body: Document) -> Lease:
    metadata, spec = body["metadata"], body.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    named = annotations.get(NAMESPACES_ANNOTATION, ALL)
    duration: Any = spec.get("leaseDurationSeconds")
    return Lease(
        name=metadata["name"],
        holder=spec.get("holderIdentity") or "",
        instance=annotations.get(INSTANCE_ANNOTATION, ""),
        namespaces=frozenset() if named == ALL else frozenset(filter(None, named.split(","))),
        duration_seconds=min(duration or DURATION_SECONDS, MAX_DURATION_SECONDS),
        resource_version=metadata["resourceVersion"],
        spec=spec,
    )


class Leases:
    """The Leases of one namespace. Every method raises ApiError."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self.namespace = namespace

    async def list(self) -> dict[str, Lease]:
        found = self._cluster.list(LEASES, self.namespace, label_selector=LABEL)
        return {lease.name: lease async for lease in (_lease(body) async for body in found)}

    async def hold(self, claim: Claim, before: Lease | None, *, timeout_seconds: float) -> Lease:
        """Take or confirm the Lease. Raises Conflict where it has changed since `before` was read, NotFound where it is gone."""
        is_ours = before is not None and before.holder == claim.holder
        now, transitions = micro_time(), (before.spec.get("leaseTransitions") or 0) if before else 0
        spec = {
            "holderIdentity": claim.holder,
            "leaseDurationSeconds": DURATION_SECONDS,
            "acquireTime": before.spec.get("acquireTime", now) if before and is_ours else now,
            "renewTime": now,
            "leaseTransitions": transitions if is_ours or before is None else transitions + 1,
        }
        return await self._write(claim, before, spec, timeout_seconds)

    async def release(self, claim: Claim, held: Lease, *, timeout_seconds: float) -> None:
        """Release the Lease, so that a controller that waits may start at once."""
        spec = held.spec | {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": micro_time()}
        await self._write(claim, held, spec, timeout_seconds)

    async def _write(self, claim: Claim, before: Lease | None, spec: Document, timeout_seconds: float) -> Lease:
        metadata: Document = {
            "name": claim.lease,
            "namespace": self.namespace,
            "labels": {LABEL: "controller", "app.kubernetes.io/name": "kvgate"},
            "annotations": {
                NAMESPACES_ANNOTATION: ",".join(sorted(claim.namespaces)) or ALL,
                INSTANCE_ANNOTATION: claim.instance,
            },
        }
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        if before is None:
            return _lease(await self._cluster.create(LEASES, body, timeout_seconds=timeout_seconds))
        metadata["resourceVersion"] = before.resource_version
        return _lease(await self._cluster.update(LEASES, body, timeout_seconds=timeout_seconds))
