"""Permissions of the controller, each with its reason. The chart's roles are made from them, and a test compares them with the audit log.

The controller reads one Secret, that of the webhook's certificate, where it makes it itself: pods, its own one too, get tokens by
reference. It reads nodes only where `nodes.watch` or `calibration.readNodes` is set. It reads pods and never changes them; of a log, which
may hold prompts, it keeps vLLM's message alone. It deletes nothing but its own records of admissions that stand no more, and its own
PodDisruptionBudgets: other children are deleted with their owner.
"""

from msgspec import Struct


class Permission(Struct, frozen=True, kw_only=True):
    group: str
    """API group; empty for the core."""
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    on_own_lease: bool = False
    """The rule is limited to the Lease of the namespaces that are served."""
    object_name: str = ""
    """Last part of the name of the object that the rule is limited to; it begins with the name of the release."""
    shards: int = 0
    """Number of further objects that the rule is limited to, with the same name and a number behind it."""
    in_cluster: bool = False
    """The object that the rule is limited to is outside of all namespaces."""


RULES: tuple[Permission, ...] = (
    Permission(
        group="kvgate.io",
        resources=("inferencedeployments",),
        verbs=("get", "list", "watch"),
        why="the InferenceDeployments; only their status is ever written",
    ),
    Permission(
        group="kvgate.io",
        resources=("inferencedeployments/status",),
        verbs=("patch",),
        why="conditions, effective values and the budget",
    ),
    Permission(
        group="kvgate.io",
        resources=("inferencedeployments/finalizers",),
        verbs=("update",),
        why="children hold their owner in a deletion in the foreground, for which some clusters (OpenShift) want this right",
    ),
    Permission(
        group="kvgate.io",
        resources=("admissionrecords",),
        verbs=("get", "list", "create", "patch", "delete"),
        why="the admissions; patch adopts them after a restore, and one that another takes the place of is deleted",
    ),
    Permission(
        group="apps",
        resources=("deployments",),
        verbs=("get", "list", "watch", "create", "patch"),
        why="the engines; server-side apply of a new object needs create as well",
    ),
    Permission(
        group="",
        resources=("services",),
        verbs=("get", "list", "watch", "create", "patch"),
        why="the address of the engines",
    ),
    Permission(
        group="resource.k8s.io",
        resources=("resourceclaimtemplates",),
        verbs=("list", "create", "patch"),
        why="the devices that the engines claim, by spec.accelerator.resourceClaim",
    ),
    Permission(
        group="policy",
        resources=("poddisruptionbudgets",),
        verbs=("get", "list", "watch", "create", "patch", "delete"),
        why="evictions of engines that run side by side; one is deleted where one replica is left, or the spec wants none",
    ),
    Permission(
        group="",
        resources=("pods",),
        verbs=("list", "watch"),
        why="which engines are ready, at which address, and why one ended",
    ),
    Permission(
        group="",
        resources=("pods/log",),
        verbs=("get",),
        why="the cause for which an engine of ours did not start, where its termination message is too short for it",
    ),
    Permission(
        group="apps",
        resources=("replicasets",),
        verbs=("get", "list"),
        why="the owner of a pod: labels can be copied, but owner references lead from the pod over its ReplicaSet to the Deployment",
    ),
    Permission(
        group="", resources=("configmaps",), verbs=("get",), why="config.json of models, by spec.model.configFrom"
    ),
    Permission(
        group="events.k8s.io",
        resources=("events",),
        verbs=("create", "patch", "list"),
        why="one event per new reason, counted; list, for one pod at a time, why it waits on its node without a word in its status",
    ),
)
"""Permissions of the controller in the namespaces of InferenceDeployments; the webhook needs none."""

OWN_NAMESPACE_RULES: tuple[Permission, ...] = (
    Permission(
        group="",
        resources=("configmaps",),
        verbs=("get", "create", "patch"),
        why="observed starts, which correct predictions, in ConfigMaps; an apply that creates one states its name",
        object_name="calibration",
        shards=16,
    ),
)
"""Permissions in the controller's own namespace."""

NODE_RULES: tuple[Permission, ...] = (
    Permission(
        group="",
        resources=("nodes",),
        verbs=("get",),
        why="labels with the driver and the product of the GPUs that an engine ran on",
    ),
)
"""Permissions in the whole cluster where `calibration.readNodes` is set."""

NODE_WATCH_RULES: tuple[Permission, ...] = (
    Permission(
        group="",
        resources=("nodes",),
        verbs=("list", "watch"),
        why="GPUs, their memory, taints and labels of the nodes that can take an engine",
    ),
    Permission(
        group="resource.k8s.io",
        resources=("resourceslices",),
        verbs=("list", "watch"),
        why="GPUs that drivers of dynamic resource allocation offer",
    ),
)
"""Permissions in the whole cluster where `nodes.watch` is set."""

MODEL_RULES: tuple[Permission, ...] = (
    Permission(
        group="",
        resources=("configmaps",),
        verbs=("get", "create", "patch"),
        why="models that were fetched from the hub, in a ConfigMap",
        object_name="models",
    ),
)
"""Permissions in the controller's own namespace where it asks the hub for models."""

CERTIFICATE_RULES: tuple[Permission, ...] = (
    Permission(
        group="",
        resources=("secrets",),
        verbs=("get", "create", "patch"),
        why="the webhook's certificate, in the one Secret that it is mounted from",
        object_name="webhook-cert",
    ),
)
"""Permissions in the controller's own namespace where it makes the webhook's certificate (`webhook.certs.mode: auto`)."""

WEBHOOK_RULES: tuple[Permission, ...] = (
    Permission(
        group="admissionregistration.k8s.io",
        resources=("validatingwebhookconfigurations",),
        verbs=("get", "patch"),
        why="the CA of that certificate, in the configuration of this release's webhook",
        object_name="webhook",
        in_cluster=True,
    ),
)
"""Permissions in the whole cluster for the same."""

LEASE_RULES: tuple[Permission, ...] = (
    Permission(
        group="coordination.k8s.io",
        resources=("leases",),
        verbs=("list", "create"),
        why="the other controllers of the same namespaces; create cannot be limited to a name",
    ),
    Permission(
        group="coordination.k8s.io",
        resources=("leases",),
        verbs=("update",),
        why="the confirmation, every two seconds, that this controller works",
        on_own_lease=True,
    ),
)
"""Permissions in the namespace of the Leases."""
