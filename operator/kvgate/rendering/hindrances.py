"""Why a pod is not ready: the words of scheduler, kubelet and container runtime → one reason. Pure.

The phrases are those of Kubernetes 1.28 to 1.36 and of containerd; a text that none of them matches is reported as it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from re import IGNORECASE
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate.api.conditions import Reason
from kvgate.api.pod_reasons import POD_REASONS
from kvgate.rendering.labels import HASH_ANNOTATION
from kvgate.rendering.workload import CONTAINER
from kvgate.text.patterns import pattern
from kvgate.vllm.redacting import redacted

MAX_QUOTED = 400
"""Characters of another program's message that are repeated."""
MAX_READ = 4_000
"""Characters of a message in which a phrase is looked for."""


class Hindrance(Struct, frozen=True, kw_only=True):
    """The reason for which a pod is not ready."""

    pod: str
    template_hash: str
    reason: Reason
    message: str
    """The words of Kubernetes, and the action that helps."""
    since: str = ""
    """RFC 3339: the time at which an engine that loads was started."""

    @property
    def needs_somebody(self) -> bool:
        """True where the cluster does not mend it by itself in its usual course."""
        return not POD_REASONS[self.reason].passes


def with_nodes(hindrance: Hindrance, room: str, taints: str) -> Hindrance:
    """Put what is known of the nodes beside the scheduler's words: it counts each node under the first thing that it lacks, without a name,
    and most clusters have nodes with taints that no engine means.
    """
    if hindrance.reason not in (Reason.NOT_ENOUGH_GPUS, Reason.NO_MATCHING_NODE):
        return hindrance
    if taints and hindrance.reason is Reason.NO_MATCHING_NODE:
        return replace(hindrance, reason=Reason.NODES_TAINTED, message=f"{taints}: {_TOLERATE}; {hindrance.message}")
    return replace(hindrance, message=f"{room}; {hindrance.message}") if room else hindrance


_Phrases = Sequence[tuple[Any, Reason, str]]
"""Text to look for, its reason, and what to do."""


def _phrases(*rows: tuple[str, Reason, str]) -> _Phrases:
    return tuple((pattern(text, IGNORECASE), reason, remedy) for text, reason, remedy in rows)


_TOLERATE = "add the toleration to spec.template.tolerations"
_SCHEDULING = _phrases(
    (r"persistentvolumeclaim \S+ not found", Reason.VOLUME_CLAIM_MISSING, "create the PersistentVolumeClaim"),
    (
        r"bound to non-existent|unbound immediate PersistentVolumeClaims|volume node affinity conflict|available persistent volumes",
        Reason.VOLUME_CLAIM_PENDING, "see `kubectl describe pvc`",
    ),
    (
        r"Insufficient (?:\S*gpu\S*|\S*/mig-\S*)|cannot allocate all claims", Reason.NOT_ENOUGH_GPUS,
        "free GPUs, or let the node pool grow",
    ),
    (r"Insufficient (?:memory|cpu|ephemeral-storage|hugepages\S*)|Too many pods", Reason.NOT_ENOUGH_RESOURCES,
     "lower spec.template.resources, or free a node"),
    (r"untolerated taint\(?s?\)? ?\{(?!node-role\.kubernetes\.io/|node\.|CriticalAddonsOnly)", Reason.NODES_TAINTED, _TOLERATE),
    (
        r"didn't match Pod's node (?:affinity|selector)|didn't match node selector", Reason.NO_MATCHING_NODE,
        "no node that the spec selects has room: compare spec.template.nodeSelector with `kubectl get nodes --show-labels`",
    ),
    (r"untolerated taint|that the pod didn't tolerate", Reason.NODES_TAINTED, _TOLERATE),
)  # fmt: skip
"""The scheduler counts each node under the first thing that it lacks: taints before labels, labels before room. So room is lacking on a
node that would do; a taint counts unless nodes of the control plane or of the platform have it, which no engine means."""
_WAITING = _phrases(
    (r"toomanyrequests|rate limit|429 Too Many", Reason.IMAGE_RATE_LIMITED, "pull with credentials, or by a mirror"),
    (
        r"no match for platform|does not match the specified platform|exec format error", Reason.IMAGE_WRONG_PLATFORM,
        "take an image of the node's architecture",
    ),
    (
        r"unauthorized|authentication required|authorization failed|access denied|denied: |403 Forbidden",
        Reason.IMAGE_UNAUTHORIZED, "name a Secret with credentials in spec.template.imagePullSecrets",
    ),
    (r"InvalidImageName|couldn't parse image|invalid reference format", Reason.IMAGE_NOT_FOUND, "correct spec.vllm.image"),
    (r"manifest unknown|manifest for \S+ not found|: not found|name unknown", Reason.IMAGE_NOT_FOUND, "correct spec.vllm.image"),
    (r"ErrImagePull|ImagePullBackOff|ErrImageNeverPull|RegistryUnavailable", Reason.IMAGE_NOT_PULLED, "see the registry and the node"),
    (r"couldn't find key \S+ in (?:Secret|ConfigMap)", Reason.KEY_MISSING, "add the key"),
    (r"secret \S+ not found", Reason.SECRET_MISSING, "create the Secret in this namespace"),
    (r"configmap \S+ not found", Reason.CONFIG_MAP_MISSING, "create the ConfigMap in this namespace"),
    (
        r"unsatisfied condition: (?:cuda|driver)|driver version is insufficient", Reason.DRIVER_TOO_OLD,
        "upgrade the node's driver, or take an image of an older CUDA",
    ),
    (r"CreateContainer\w*Error|RunContainerError|CreatePodSandboxError|StartError", Reason.CONTAINER_NOT_CREATED, "see the node"),
)  # fmt: skip
_EVENTS = _phrases(
    (
        r"Multi-Attach error", Reason.VOLUME_IN_USE,
        "end the pod on the other node, or use a volume of access mode ReadOnlyMany or ReadWriteMany",
    ),
    (r"^Failed\w*: .*no space left on device", Reason.VOLUME_FULL, "enlarge the volume, or free space on the node"),
    (r"^FailedMount: .*references non-existent (?:secret|config) key", Reason.KEY_MISSING, "add the key"),
    (r"^FailedMount: .*secret \S+ not found", Reason.SECRET_MISSING, "create the Secret in this namespace"),
    (r"^FailedMount: .*configmap \S+ not found", Reason.CONFIG_MAP_MISSING, "create the ConfigMap in this namespace"),
    (r"^FailedAttachVolume: ", Reason.VOLUME_NOT_ATTACHED, "see the PersistentVolume and its driver"),
    (r"^FailedMount: ", Reason.VOLUME_NOT_MOUNTED, "see the PersistentVolume, its driver and the node"),
    (r"^FailedMapVolume: ", Reason.VOLUME_NOT_MOUNTED, "see the PersistentVolume, its driver and the node"),
    (r"^FailedCreatePodSandBox: ", Reason.CONTAINER_NOT_CREATED, "see the node: its network plugin, and the runtime of spec.template"),
)  # fmt: skip
"""Phrases for `REASON: MESSAGE` of an event. Earlier rows say more: a mount that times out follows from an attach that failed."""
_REFUSALS = _phrases(
    (r"exceeded quota", Reason.QUOTA_EXCEEDED, ""),
    (r"no PriorityClass with name", Reason.PRIORITY_CLASS_MISSING, ""),
    (r"violates PodSecurity", Reason.POD_SECURITY_DENIED, ""),
    (r"serviceaccount \S+ not found|error looking up service account", Reason.SERVICE_ACCOUNT_MISSING, ""),
    (r"denied the request|denied request|is forbidden: ValidatingAdmissionPolicy", Reason.ADMISSION_DENIED, ""),
)


def refusal_of(message: str) -> Reason:
    """Return the reason for which the API server refuses pods, from the message that the Deployment repeats."""
    return next((reason for text, reason, _ in _REFUSALS if text.search(message)), Reason.PODS_REFUSED)


def hindrance_of(body: Mapping[str, Any]) -> Hindrance | None:
    """Return why a pod is not ready; None for one that is, that is being deleted, or whose container ended by a fault of its own."""
    status = body.get("status", {})
    found = None if "deletionTimestamp" in body["metadata"] else _found(body, status)
    if found is None:
        return None
    reason, said, remedy = found
    template_hash = (body["metadata"].get("annotations") or {}).get(HASH_ANNOTATION, "")
    engine = _engine(status.get("containerStatuses") or ())
    since = str((engine.get("state", {}).get("running") or {}).get("startedAt") or "")
    return Hindrance(
        pod=body["metadata"]["name"], template_hash=template_hash, reason=reason, message=_worded(said, remedy),
        since=since if reason is Reason.LOADING else "",
    )  # fmt: skip


def hindrance_in_events(pod: str, template_hash: str, events: Sequence[Mapping[str, Any]]) -> Hindrance:
    """Return why a pod waits on its node for so long, from the events about it, of which the last one is the newest.

    Events before the pull of an image are over, because the kubelet mounts the volumes first.
    """
    current: list[str] = []
    for event in events:
        if event.get("reason") in ("Pulling", "Pulled", "Created", "Started"):
            current.clear()
        current.append(f"{event.get('reason')}: {str(event.get('note', ''))[:MAX_READ]}")
    usual = current[-1] if current else "its node creates the containers: it mounts the volumes and pulls the image"
    found = ((reason, each, todo) for text, reason, todo in _EVENTS for each in reversed(current) if text.search(each))
    reason, said, remedy = next(found, (Reason.CONTAINER_CREATING, usual, ""))
    return Hindrance(pod=pod, template_hash=template_hash, reason=reason, message=_worded(said, remedy))


def hindrance_in_claim(hindrance: Hindrance, events: Sequence[Mapping[str, Any]]) -> Hindrance:
    """Add why a volume is not provisioned to the words of the scheduler, which does not know it."""
    failed = next((each for each in reversed(events) if each.get("reason") == "ProvisioningFailed"), None)
    if failed is None:
        return hindrance
    said = _worded(f"{failed['reason']}: {failed.get('note', '')}", "")
    return replace(hindrance, message=f"{said}; {hindrance.message}")


def _worded(said: str, remedy: str) -> str:
    words = redacted(" ".join(said[:MAX_READ].split()))[:MAX_QUOTED].rstrip(".; ")
    return "; ".join(filter(None, (words, remedy)))


def _found(body: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[Reason, str, str] | None:
    """Return the reason, what Kubernetes says, and what to do."""
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        if scheduled.get("reason") == "SchedulingGated":
            return Reason.SCHEDULING_GATED, f"not scheduled: {scheduled.get('message', '')}", "see who removes the gate"
        found = _matched(_SCHEDULING, str(scheduled.get("message", "")), Reason.UNSCHEDULABLE, "not scheduled: ")
        if found[0] is Reason.NOT_ENOUGH_GPUS and (gpus := _gpus(body)):
            return (
                found[0],
                found[1].replace("not scheduled: ", f"not scheduled, needs {gpus} on one node: ", 1),
                found[2],
            )
        return found
    if status.get("phase") == "Failed":
        said = f"{status.get('reason', 'Failed')}: {status.get('message', '')}"
        evicted = status.get("reason") in ("Evicted", "Preempted", "Preempting", "Terminated", "NodeShutdown")
        return (Reason.EVICTED if evicted else Reason.NODE_REFUSED_POD), said, "see `kubectl describe pod`"
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    if (waiting := _waiting(containers)) is not None:
        return waiting
    return _of_engine(body, containers, conditions.get("Ready", {}))


def _matched(phrases: _Phrases, said: str, otherwise: Reason, beginning: str = "") -> tuple[Reason, str, str]:
    said = " ".join(said[:MAX_READ].split())
    for text, reason, remedy in phrases:
        if text.search(said):
            return reason, beginning + said, remedy
    return otherwise, beginning + said, ""


def _waiting(containers: Iterable[Mapping[str, Any]]) -> tuple[Reason, str, str] | None:
    """Return why a container cannot be created; one that waits in its usual course, or after a crash, is none."""
    for container in containers:
        state = container.get("state", {}).get("waiting") or {}
        if state and state.get("reason") not in (None, "ContainerCreating", "PodInitializing", "CrashLoopBackOff"):
            said = f"container {container.get('name')}: {state.get('reason')}: {state.get('message', '')}"
            return _matched(_WAITING, said, Reason.CONTAINER_NOT_CREATED)
    return None


def _of_engine(
    body: Mapping[str, Any], containers: Iterable[Mapping[str, Any]], ready: Mapping[str, Any]
) -> tuple[Reason, str, str] | None:
    """Return what keeps a container that was created from being ready."""
    engine = _engine(containers)
    if not engine:
        return None
    ended = [engine.get(state, {}).get("terminated") or {} for state in ("state", "lastState")]
    if any(each.get("reason") == "OOMKilled" for each in ended) and ready.get("status") != "True":
        limit = _limits(body).get("memory", "no limit of its own")
        said = f"the container was killed at its memory limit ({limit}), which is not the GPU's"
        return Reason.HOST_MEMORY_EXCEEDED, said, "raise spec.template.resources.limits.memory"
    if "running" not in engine.get("state", {}) or ready.get("status") == "True":
        return None
    if engine.get("ready"):
        return (
            Reason.NODE_LOST,
            f"its node {body.get('spec', {}).get('nodeName', '')} does not report any more",
            "see the node",
        )
    if engine.get("started"):
        said = "the engine had started and its readiness probe does not pass any more"
        return Reason.NOT_ANSWERING, said, "see the log and `kubectl kvgate why`"
    return Reason.LOADING, "the engine runs and is not ready yet: it loads the model", ""


def _engine(containers: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((each for each in containers if each.get("name") == CONTAINER), {})


def _limits(body: Mapping[str, Any]) -> Mapping[str, Any]:
    container = _engine(body.get("spec", {}).get("containers") or ())
    return (container.get("resources") or {}).get("limits") or {}


def _gpus(body: Mapping[str, Any]) -> str:
    """Return the extended resources of the engine's container, such as `8 nvidia.com/gpu`."""
    return ", ".join(f"{amount} {name}" for name, amount in _limits(body).items() if "/" in name)
