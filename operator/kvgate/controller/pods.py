"""The pods of our engines, and the nodes that they run on.

A watch keeps the pods up to date, and only what the observation needs is stored. Nodes are read only where somebody allows it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate.api.base import Document
from kvgate.api.conditions import Reason
from kvgate.cluster.client import NODES, PODS, REPLICA_SETS, Cluster
from kvgate.cluster.errors import ApiError
from kvgate.metrics.samples import PodSample
from kvgate.rendering.hindrances import Hindrance, hindrance_of
from kvgate.rendering.labels import HASH_ANNOTATION, OWNER_LABEL
from kvgate.rendering.workload import CONTAINER


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
    hindrance: Hindrance | None = None
    """Why it is not ready, as far as Kubernetes says that."""
    gpus: tuple[tuple[str, int], ...] = ()
    """GPUs that the engine's container requests, by resource."""
    started_at: str = ""
    """RFC 3339: the start of the engine's container, or that of the pod while the container does not run."""
    claims: tuple[str, ...] = ()
    """Names of the PersistentVolumeClaims that it mounts."""
    label: str = ""
    """Value of our label, which its ReplicaSet has too."""

    @property
    def is_quiet(self) -> bool:
        """True where it is not ready, and its status does not say why: only events do."""
        waits_on_node = bool(self.node) and self.hindrance is None and self.ended is None
        return not (self.is_over or self.is_ready) and (waits_on_node or self.waits_for_claim)

    @property
    def waits_for_claim(self) -> bool:
        return self.hindrance is not None and self.hindrance.reason is Reason.VOLUME_CLAIM_PENDING

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
        hindrance=hindrance_of(body),
        gpus=_gpus(body),
        started_at=container.get("state", {}).get("running", {}).get("startedAt") or status.get("startTime", ""),
        claims=_claims(body.get("spec", {}).get("volumes") or ()),
        label=metadata.get("labels", {}).get(OWNER_LABEL, ""),
    )


def _gpus(body: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    limits = (
        (container.get("resources") or {}).get("limits") or {}
        for container in body.get("spec", {}).get("containers", ())
        if container.get("name") == CONTAINER
    )
    return tuple(
        (name, int(str(amount)))
        for each in limits
        for name, amount in each.items()
        if "/" in name and str(amount).isdecimal()
    )


def _claims(volumes: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    claims = (
        each["persistentVolumeClaim"].get("claimName", "") for each in volumes if each.get("persistentVolumeClaim")
    )
    return tuple(filter(None, claims))


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


_PULLS = (
    Reason.IMAGE_NOT_FOUND, Reason.IMAGE_UNAUTHORIZED, Reason.IMAGE_RATE_LIMITED, Reason.IMAGE_WRONG_PLATFORM,
)  # fmt: skip


def _says_less(now: Hindrance, before: Hindrance) -> bool:
    """Return True where the kubelet waits before it pulls again: it repeats the cause, or leaves it out."""
    return before.reason in _PULLS and now.reason in (before.reason, Reason.IMAGE_NOT_PULLED)


class KnownPods:
    """The pods that the watch has reported; used in the working thread's event loop only."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._deployments: dict[str, str | None] = {}
        """Uid of the Deployment by the uid of its ReplicaSet; None, which is looked at again with each list, for a ReplicaSet without
        one: its pods are not kept."""
        self._asking = asyncio.Lock()
        """Held while ReplicaSets are requested, so that two looks at once do not request the same ones."""
        self.hindered = asyncio.Event()
        """Set where a pod's hindrance changed, or where an engine ended."""
        self.ended_anew: set[str] = set()
        """Uids of pods whose engine ended since the last look."""
        self.quiet: set[str] = set()
        """Uids of pods that wait without a reason in their status; those of others are among them."""

    def __len__(self) -> int:
        return len(self._pods)

    def put(self, body: Mapping[str, Any]) -> None:
        replica_set = controller_of(body, "ReplicaSet")
        if replica_set is None or self._deployments.get(replica_set[1], "") is None:
            self.forget(body["metadata"]["uid"])  # it has our label, and is somebody else's
            return
        pod = pod_of(body)
        before = self._pods.get(pod.uid)
        if before is not None and before.hindrance and pod.hindrance and _says_less(pod.hindrance, before.hindrance):
            pod = replace(pod, hindrance=before.hindrance)
        self._pods[pod.uid] = pod
        (self.quiet.add if pod.is_quiet else self.quiet.discard)(pod.uid)
        end, last_end = ((each.ended, each.restarts) if each and each.ended else None for each in (pod, before))
        if end is not None and end != last_end:
            self.ended_anew.add(pod.uid)
        if end != last_end or pod.hindrance != (before.hindrance if before else None):
            self.hindered.set()

    def forget(self, uid: str) -> None:
        gone = self._pods.pop(uid, None)
        self.quiet.discard(uid)
        self.ended_anew.discard(uid)
        if gone is not None and (gone.hindrance is not None or gone.ended is not None):
            self.hindered.set()

    def gpus_by_node(self, resource: str) -> dict[str, int]:
        """Return how many GPUs of a resource the pods hold that are on a node and have not ended."""
        held = dict[str, int]()
        for pod in self._pods.values():
            for name, count in pod.gpus if pod.node and not pod.is_over else ():
                if name == resource:
                    held[pod.node] = held.get(pod.node, 0) + count
        return held

    async def relist(self, cluster: Cluster, namespaces: Iterable[str | None]) -> None:
        """Add pods that the watch has not reported yet, and forget those that went while it was broken."""
        known, listed = set(self._pods), set()
        self._deployments = {uid: owner for uid, owner in self._deployments.items() if owner is not None}
        for namespace in namespaces:
            async for body in cluster.list(PODS, namespace, label_selector=OWNER_LABEL):
                uid = body["metadata"]["uid"]
                listed.add(uid)
                if uid not in self._pods:
                    self.put(body)
        for uid in known - listed:
            self.forget(uid)

    async def by_deployment(self, cluster: Cluster) -> dict[str, list[Pod]]:
        """Return pods by the uid of their Deployment; ReplicaSets are requested once, those of a namespace with several at a time."""
        async with self._asking:
            return await self._by_deployment(cluster)

    async def _by_deployment(self, cluster: Cluster) -> dict[str, list[Pod]]:
        pods = sorted(self._pods.values(), key=lambda pod: (pod.namespace, pod.name))
        alive = {pod.replica_set[1]: pod for pod in pods if pod.replica_set}
        known = self._deployments.items()
        self._deployments = {uid: owner for uid, owner in known if uid in alive or owner is None}
        unknown: dict[str, dict[str, Pod]] = {}
        for uid in alive.keys() - self._deployments.keys():
            unknown.setdefault(alive[uid].namespace, {})[uid] = alive[uid]
        for namespace, asked in unknown.items():
            found = await _replica_sets(cluster, namespace, asked.values())
            owners = {uid: controller_of(found[uid], "Deployment") if uid in found else None for uid in asked}
            self._deployments |= {uid: owner[1] if owner else None for uid, owner in owners.items()}
        owned: dict[str, list[Pod]] = {}
        for pod in pods:
            deployment = self._deployments[pod.replica_set[1]] if pod.replica_set else None
            if deployment is not None:
                owned.setdefault(deployment, []).append(pod)
            else:
                self.forget(pod.uid)
        return owned


_MOST_SINGLE = 3
"""ReplicaSets of a namespace that are requested one by one; more are listed at once."""
_MOST_LABELS = 50
"""Labels in one request: with 63 characters each it stays below the length of a URL that proxies accept. Beyond it all that have our label
are listed."""


async def _replica_sets(cluster: Cluster, namespace: str, pods: Collection[Pod]) -> dict[str, Document]:
    """Return what there is of the ReplicaSets of these pods, by their uids."""
    if len(pods) <= _MOST_SINGLE:
        single = [await cluster.find(REPLICA_SETS, namespace, pod.replica_set[0]) for pod in pods if pod.replica_set]
        return {body["metadata"]["uid"]: body for body in single if body}
    wanted, labels = {pod.replica_set[1] for pod in pods if pod.replica_set}, sorted({pod.label for pod in pods})
    chosen = f"{OWNER_LABEL} in ({','.join(labels)})" if len(labels) <= _MOST_LABELS else OWNER_LABEL
    listed = cluster.list_metadata(REPLICA_SETS, namespace, label_selector=chosen)
    return {uid: body async for body in listed if (uid := body["metadata"]["uid"]) in wanted}


KEPT_SECONDS = 600.0
"""Time for which a node's labels are believed; a driver changes with a restart of the node."""
MAX_NODES = 5000
_log = logging.getLogger(__name__)
_DRIVERS = ("nvidia.com/cuda.driver-version.full", "amd.com/gpu.driver-version")
_PARTS = tuple(f"nvidia.com/cuda.driver.{part}" for part in ("major", "minor", "rev"))
"""Labels of GPU feature discovery before 0.16; later releases have them beside the whole text."""
_PRODUCTS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
_SHARED_SUFFIX = "-SHARED"
"""GPU feature discovery adds it to the product where pods share a GPU in time slices."""


class NodeFacts(Struct, frozen=True, kw_only=True):
    """The part of a node's labels that decides about starts; empty where it is not known."""

    driver: str = ""
    product: str = ""
    is_shared: bool = False
    is_gone: bool = False
    """True where the cluster has no such node any more."""

    @classmethod
    def of(cls, labels: dict[str, str]) -> "NodeFacts":
        parts = [labels.get(name, "") for name in _PARTS]
        driver = next((labels[name] for name in _DRIVERS if labels.get(name)), ".".join(filter(None, parts)))
        product = next((labels[name] for name in _PRODUCTS if labels.get(name)), "")
        strategy = labels.get("nvidia.com/gpu.sharing-strategy", "none")
        is_shared = strategy not in ("none", "") or product.endswith(_SHARED_SUFFIX)
        return cls(driver=driver, product=product.removesuffix(_SHARED_SUFFIX), is_shared=is_shared)


class Nodes:
    """The nodes that were read, each again after a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, NodeFacts]] = {}
        self._has_told = False

    async def of(self, cluster: Cluster, name: str) -> NodeFacts:
        """Return a node's facts; none where it has no name or cannot be read, which is logged once."""
        if not name:
            return NodeFacts()
        now = self._clock()
        at, facts = self._known.get(name, (float("-inf"), NodeFacts()))
        if now - at < KEPT_SECONDS:
            return facts
        facts = NodeFacts()
        try:
            found = await cluster.find(NODES, None, name)
            if not found:
                return NodeFacts(is_gone=True)  # one of the same name may come at any time
            facts = NodeFacts.of(found["metadata"].get("labels") or {})
        except ApiError as error:
            if not self._has_told:
                _log.warning("nodes cannot be read, so starts are kept without driver and product: %s", error)
                self._has_told = True
        if len(self._known) >= MAX_NODES:
            self._known.clear()
        self._known[name] = now, facts
        return facts
