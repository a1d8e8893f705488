"""The pods of our engines, the causes for which one ended, and the nodes that they run on.

A watch keeps the pods up to date, and only what the observation needs is stored. The cause of an end stands in the termination message, or
else in the log. A log may hold prompts, so no line of it is logged, stored or reported: only the sentence in which vLLM states the cause
is kept. Nodes are read only where somebody allows it.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from msgspec import Struct

from kvgate.api.base import Document
from kvgate.api.conditions import Reason
from kvgate.cluster.client import NODES, PODS, REPLICA_SETS, Cluster
from kvgate.cluster.errors import ApiError
from kvgate.metrics.samples import PodSample
from kvgate.rendering.hindrances import Hindrance, hindrance_of
from kvgate.rendering.labels import HASH_ANNOTATION, OWNER_LABEL
from kvgate.rendering.observation import Crash
from kvgate.rendering.workload import CONTAINER
from kvgate.sources.start_failure import FailureKind, StartFailure, recognise


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
    started_at: str = ""
    """RFC 3339: the start of the engine's container, or that of the pod while the container does not run."""
    label: str = ""
    """Value of our label, which its ReplicaSet has too."""

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
        started_at=container.get("state", {}).get("running", {}).get("startedAt") or status.get("startTime", ""),
        label=metadata.get("labels", {}).get(OWNER_LABEL, ""),
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
    """The pods that the watch has reported; used in the working thread's event loop only."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._deployments: dict[str, str | None] = {}
        """Uid of the Deployment by the uid of its ReplicaSet; that never changes."""
        self.hindered = asyncio.Event()
        """Set where a pod's hindrance changed."""

    def __len__(self) -> int:
        return len(self._pods)

    def put(self, body: Mapping[str, Any]) -> None:
        pod = pod_of(body)
        before = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        if pod.hindrance != (before.hindrance if before else None):
            self.hindered.set()

    def forget(self, uid: str) -> None:
        gone = self._pods.pop(uid, None)
        if gone is not None and gone.hindrance is not None:
            self.hindered.set()

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
        """Return pods by the uid of their Deployment; ReplicaSets are requested once, those of a namespace with several at a time."""
        pods = sorted(self._pods.values(), key=lambda pod: (pod.namespace, pod.name))
        alive = {pod.replica_set[1]: pod for pod in pods if pod.replica_set}
        self._deployments = {uid: owner for uid, owner in self._deployments.items() if uid in alive}
        unknown: dict[str, dict[str, Pod]] = {}
        for uid in alive.keys() - self._deployments.keys():
            unknown.setdefault(alive[uid].namespace, {})[uid] = alive[uid]
        for namespace, asked in unknown.items():
            found = await _replica_sets(cluster, namespace, asked.values())
            owners = {uid: controller_of(found[uid], "Deployment") if uid in found else None for uid in asked}
            self._deployments |= {uid: owner[1] if owner else None for uid, owner in owners.items()}
        owned: dict[str, list[Pod]] = {}
        for pod in pods:
            if pod.replica_set and (deployment := self._deployments[pod.replica_set[1]]) is not None:
                owned.setdefault(deployment, []).append(pod)
        return owned


_MOST_SINGLE = 3
"""ReplicaSets of a namespace that are requested one by one; more are listed by the labels of their pods."""
_MOST_LABELS = 50
"""Labels in one request: with 63 characters each it stays below the length of a URL that proxies accept."""


async def _replica_sets(cluster: Cluster, namespace: str, pods: Collection[Pod]) -> dict[str, Document]:
    """Return what there is of the ReplicaSets of these pods, by their uids."""
    if len(pods) <= _MOST_SINGLE:
        single = [await cluster.find(REPLICA_SETS, namespace, pod.replica_set[0]) for pod in pods if pod.replica_set]
        return {body["metadata"]["uid"]: body for body in single if body}
    labels, found = sorted({pod.label for pod in pods}), dict[str, Document]()
    for start in range(0, len(labels), _MOST_LABELS):
        chosen = f"{OWNER_LABEL} in ({','.join(labels[start : start + _MOST_LABELS])})"
        async for body in cluster.list_metadata(REPLICA_SETS, namespace, label_selector=chosen):
            found[body["metadata"]["uid"]] = body
    return found


UNKNOWN_RESTARTS = 2
"""Restarts after which an end with an unknown cause is reported."""
MAX_QUOTED = 300

_REASONS = {
    FailureKind.KV_CACHE_TOO_SMALL: Reason.KV_CACHE_TOO_SMALL,
    FailureKind.NO_MEMORY_FOR_KV_CACHE: Reason.KV_CACHE_TOO_SMALL,
    FailureKind.MAMBA_BLOCKS: Reason.KV_CACHE_TOO_SMALL,
    FailureKind.GPU_MEMORY_TAKEN: Reason.OUT_OF_MEMORY,
    FailureKind.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    FailureKind.INVALID_SETTING: Reason.ENGINE_REFUSED_TO_START,
    FailureKind.ENVIRONMENT: Reason.ENGINE_CRASHED,
}


def cause_in(text: str) -> StartFailure | None:
    """Return the cause that a text states; None where it has none, such as the end of a traceback whose cause was printed before."""
    failure = recognise(text)
    return failure if failure and failure.kind in _REASONS else None


def wants_log(pod: Pod) -> bool:
    """Return True where the termination message has no cause; with V1 the traceback of vLLM's API server alone fills it."""
    ended = pod.ended
    return ended is not None and not pod.is_ready and ended.reason != "OOMKilled" and cause_in(ended.message) is None


def crash_of(pod: Pod, logged: StartFailure | None = None) -> Crash | None:
    """Return the crash of a pod, if it is to be reported; `logged` is the cause in its log."""
    ended = pod.ended
    if (
        pod.is_ready or ended is None or ended.reason == "OOMKilled"
    ):  # that is a hindrance, which Kubernetes states at once
        return None
    failure = cause_in(ended.message) or logged
    is_passing = failure is not None and failure.kind is FailureKind.ENVIRONMENT  # a hub or a network may be well again
    if failure and not (is_passing and pod.restarts < UNKNOWN_RESTARTS):
        # lines about tokens, paths and addresses are nobody's to read in a status: the table's own words stand for them
        words = (
            f"{failure.row.cause} {failure.row.do}" if is_passing else f"vLLM reports: {failure.sentence.rstrip('.')}"
        )
        return Crash(
            pod=pod.name,
            template_hash=pod.template_hash,
            reason=_REASONS[failure.kind],
            message=words,
            available_kv_cache_bytes=failure.available_kv_cache_bytes,
            declared_image=pod.declared_image,
            image=pod.image,
            node=pod.node,
        )
    if pod.restarts < UNKNOWN_RESTARTS:
        return None
    last = next((line.strip() for line in reversed(ended.message.splitlines()) if line.strip()), "")
    end = f"with {last[:MAX_QUOTED]!r}" if last else f"without a message ({ended.reason})"
    message = f"the engine ended {end}; see `kubectl logs -n {pod.namespace} {pod.name} --previous`"
    return Crash(pod=pod.name, template_hash=pod.template_hash, reason=Reason.ENGINE_CRASHED, message=message)


MAX_READS = 8
"""Logs that one round reads at the same time; the others wait for the next round. So nodes that hang cost a round one time limit."""

_OF_REQUESTS = re.compile(r"^.*(?:prompt|message|received request|generated response).*$", re.IGNORECASE | re.MULTILINE)
"""Lines that quote users, who could write a sentence that looks like a cause."""

_log = logging.getLogger(__name__)


class CrashLogs:
    """The causes in the logs of containers that ended; one per process. Each log is read once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._causes: dict[tuple[str, str], StartFailure | None] = {}
        """Causes by the pod's uid and its run; None where the log has no known cause, or cannot be read."""
        self._logged: set[str] = set()
        """Kinds of errors that were logged."""

    def cause(self, pod: Pod) -> StartFailure | None:
        return self._causes.get(_run(pod))

    async def read(self, pods: Iterable[Pod]) -> None:
        """Read the logs that are due among these pods, and forget all other pods."""
        runs = {_run(pod): pod for pod in pods if pod.ended}
        self._causes = {run: cause for run, cause in self._causes.items() if run in runs}
        due = [(run, pod) for run, pod in runs.items() if run not in self._causes and wants_log(pod)][:MAX_READS]
        causes = await asyncio.gather(*(self._cause(pod) for _, pod in due))
        self._causes |= {run: cause for (run, _), cause in zip(due, causes, strict=True)}

    async def _cause(self, pod: Pod) -> StartFailure | None:
        previous = pod.ended is not None and pod.ended.has_restarted
        try:
            log = await self._cluster.log(pod.namespace, pod.name, CONTAINER, of_previous=previous)
        except ApiError as error:
            kind = type(error).__name__  # the node's own words are not logged: they might quote the container's log
            if kind not in self._logged:
                self._logged.add(kind)
                fields = {"namespace": pod.namespace, "pod": pod.name, "verb": error.verb, "resource": error.resource}
                text = "the log of the crashed pod %s/%s cannot be read: %s"
                _log.warning(text, pod.namespace, pod.name, kind, extra={"fields": fields})
            return None
        return cause_in(_OF_REQUESTS.sub("", log))


def _run(pod: Pod) -> tuple[str, str]:
    return pod.uid, pod.ended.container_id if pod.ended else ""


KEPT_SECONDS = 600.0
"""Time for which a node's labels are believed; a driver changes with a restart of the node."""
MAX_NODES = 5000
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
