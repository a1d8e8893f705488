"""The pods of our engines. A watch keeps them up to date, and only what the observation needs is stored."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from msgspec import Struct

from kvgate.cluster.client import PODS, REPLICA_SETS, Cluster
from kvgate.metrics.samples import PodSample
from kvgate.rendering.labels import HASH_ANNOTATION, OWNER_LABEL
from kvgate.rendering.pod import CONTAINER


class Ended(Struct, frozen=True, kw_only=True):
    """The last end of the engine's container, if nobody requested it."""

    reason: str
    """The kubelet's reason: Error, OOMKilled."""
    message: str
    """The termination message: the last 2 KB of the container's log."""
    has_restarted: bool
    """True where the container was started again, so that the log of this end is the previous one's."""
    container_id: str = ""
    """Id of the run that ended; each restart has its own."""


class Pod(Struct, frozen=True, kw_only=True):
    """One pod with our label. Labels can be copied: only the owner of its ReplicaSet decides whose it is."""

    namespace: str
    name: str
    uid: str
    ip: str
    is_ready: bool
    template_hash: str
    replica_set: tuple[str, str] | None
    """(name, uid) of its controller."""
    restarts: int
    ended: Ended | None
    declared_image: str = ""
    """Image of the engine's container, as the pod's spec names it."""
    image: str = ""
    """Image as the container runtime reports it: `docker.io/vllm/vllm-openai@sha256:…`; empty or a bare hash where it does not."""
    is_over: bool = False
    """True where it is being deleted, or has ended for good: an evicted pod stays in the list for days."""
    node: str = ""
    """Empty while it is not scheduled."""
    started_at: str = ""
    """RFC 3339: the start of the engine's container, or that of the pod while the container does not run."""

    @property
    def sample(self) -> PodSample:
        """The figures that the watch reports; a time that cannot be read is left out."""
        started_seconds = None
        with suppress(ValueError):
            started_seconds = datetime.fromisoformat(self.started_at).timestamp()
        return PodSample(
            name=self.name, node=self.node, is_ready=self.is_ready, started_seconds=started_seconds,
            restarts=self.restarts,
        )  # fmt: skip


def pod_of(body: Mapping[str, Any]) -> Pod:
    """Read a pod; one that is being deleted is not ready, whatever its condition states."""
    metadata, status = body["metadata"], body.get("status", {})
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", ())}
    containers = {container["name"]: container for container in status.get("containerStatuses", ())}
    container = containers.get(CONTAINER, {})
    declared = {each["name"]: each.get("image", "") for each in body.get("spec", {}).get("containers", ())}
    is_going = "deletionTimestamp" in metadata
    is_over = is_going or status.get("phase") in ("Failed", "Succeeded")
    return Pod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        ip=status.get("podIP", ""),
        is_ready=not is_going and conditions.get("Ready") == "True" and bool(status.get("podIP")),
        template_hash=metadata.get("annotations", {}).get(HASH_ANNOTATION, ""),
        replica_set=controller_of(body, "ReplicaSet"),
        restarts=container.get("restartCount", 0),
        ended=None if is_over else _ended(container),
        declared_image=declared.get(CONTAINER, ""),
        image=container.get("imageID", ""),
        is_over=is_over,
        node=body.get("spec", {}).get("nodeName", ""),
        started_at=container.get("state", {}).get("running", {}).get("startedAt") or status.get("startTime", ""),
    )


def _ended(container: Mapping[str, Any]) -> Ended | None:
    for state in ("state", "lastState"):
        ended = container.get(state, {}).get("terminated")
        if ended:
            found = Ended(
                reason=ended.get("reason", ""),
                message=ended.get("message", ""),
                has_restarted=state == "lastState",
                container_id=ended.get("containerID", ""),
            )
            return found if ended.get("exitCode", 0) != 0 else None
    return None


def controller_of(body: Mapping[str, Any], kind: str) -> tuple[str, str] | None:
    """Return (name, uid) of the owner that controls the object, if it is of this kind."""
    for owner in body["metadata"].get("ownerReferences", ()):
        if owner.get("controller") and owner.get("kind") == kind:
            return owner["name"], owner["uid"]
    return None


class KnownPods:
    """The pods that the watch has reported; used in kopf's event loop only."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._deployments: dict[str, str | None] = {}
        """Uid of the Deployment by the uid of its ReplicaSet; that never changes."""

    def __len__(self) -> int:
        return len(self._pods)

    def put(self, body: Mapping[str, Any]) -> None:
        pod = pod_of(body)
        self._pods[pod.uid] = pod

    def forget(self, uid: str) -> None:
        self._pods.pop(uid, None)

    async def relist(self, cluster: Cluster, namespaces: Iterable[str | None]) -> None:
        """Add pods that the watch has not reported yet, and forget those that went while it was broken."""
        known, listed = set(self._pods), set()
        for namespace in namespaces:
            async for body in cluster.list(PODS, namespace, label_selector=OWNER_LABEL):
                uid = body["metadata"]["uid"]
                listed.add(uid)
                if uid not in self._pods:
                    self.put(body)
        for uid in known - listed:
            self.forget(uid)

    async def by_deployment(self, cluster: Cluster) -> dict[str, list[Pod]]:
        """Return pods by the uid of their Deployment; each ReplicaSet is requested once."""
        owned: dict[str, list[Pod]] = {}
        for pod in sorted(self._pods.values(), key=lambda pod: (pod.namespace, pod.name)):
            uid = await self._deployment_of(cluster, pod)
            if uid is not None:
                owned.setdefault(uid, []).append(pod)
        alive = {pod.replica_set[1] for pod in self._pods.values() if pod.replica_set}
        self._deployments = {uid: owner for uid, owner in self._deployments.items() if uid in alive}
        return owned

    async def _deployment_of(self, cluster: Cluster, pod: Pod) -> str | None:
        if pod.replica_set is None:
            return None
        name, uid = pod.replica_set
        if uid not in self._deployments:
            body = await cluster.find(REPLICA_SETS, pod.namespace, name)
            owner = controller_of(body, "Deployment") if body and body["metadata"]["uid"] == uid else None
            self._deployments[uid] = owner[1] if owner else None
        return self._deployments[uid]
