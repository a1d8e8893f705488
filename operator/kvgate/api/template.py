"""spec.template: the part of the pod template that is the user's to choose. kvgate renders everything else.

What a pod spec has under the same name has Kubernetes' own type. The volumes, mounts and containers that kvgate renders are its own.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from kvgate.api.base import ApiModel, CelRule, Distinct, DnsName, Document, KeyRef, Quantity
from kvgate.api.kubernetes_types import KubernetesType
from kvgate.vllm.variables import RESERVED, ReservedVariables


def _reserved(variables: ReservedVariables) -> CelRule:
    return CelRule(
        rule=f"!self.name.matches('{variables.pattern}')",
        message=f"the variable is not yours to set: {variables.reason}; {variables.instead}",
        holds=lambda variable: not variables.hold(variable.name),
        field_path=".name",
        culprits=lambda variable: (variable.name,),
    )


class EnvVar(ApiModel):
    """An environment variable of the vLLM container."""

    cel_rules: ClassVar = (
        *map(_reserved, RESERVED),
        CelRule(
            rule="!(has(self.value) && has(self.secretKeyRef))",
            message="set value or secretKeyRef, not both",
            holds=lambda variable: variable.value is None or variable.secret_key_ref is None,
        ),
    )

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=4096)] | None = None
    """Value of the variable. The process gets it as it is written: `$(NAME)` is not replaced."""
    secret_key_ref: KeyRef | None = None
    """Key of a Secret in the same namespace, instead of a value."""


RESERVED_KEY = r"^([-a-z0-9.]*[.])?(kubernetes[.]io|k8s[.]io|kvgate[.]io)/"
"""Keys of labels and annotations that a user must not set on pods; RE2 syntax, so that CEL and Python agree."""


def _sets_reserved_key(keys: Iterable[str] | None) -> bool:
    return any(re.match(RESERVED_KEY, key) for key in keys or ())


ENGINE_CONTAINER = "vllm"
OUR_VOLUMES = ("cache", "shm", "model")
"""Volumes that kvgate renders; containers beside the engine may mount them."""
OUR_FOLDERS = r"^/(cache|(model|dev|proc|sys|usr|opt|bin|sbin|lib|lib64|etc)(/.*)?)?/*$"
"""Folders of the vLLM container in which the verdict relies on what is there: kvgate's volumes, the program and its libraries."""
FREE_IN_ETC = r"^/etc/(ssl|pki|podinfo)(/.*)?$"
"""Folders there that a user may replace: certificates, and facts about the pod."""
MOUNT_PATH = r"^(/[.]?[^/.:][^/:]*)+/?$|^/$"
"""An absolute path without `..`, without empty parts, and without a colon, which Kubernetes refuses."""
VOLUME_KINDS = ("configMap", "csi", "emptyDir", "ephemeral", "hostPath", "persistentVolumeClaim", "projected", "secret")


def _is_free(mount: Mapping[str, Any]) -> bool:
    path = str(mount["mountPath"])
    is_ours = re.match(OUR_FOLDERS, path) and not re.match(FREE_IN_ETC, path)
    return not is_ours and re.match(MOUNT_PATH, path) is not None


def _names(items: Iterable[Mapping[str, Any]] | None) -> list[str]:
    return [str(item["name"]) for item in items or ()]


def _distinct_by(key: str) -> AfterValidator:
    """Refuse repeated items, as the API server does in lists of the type map."""

    def validate(items: tuple[Document, ...]) -> tuple[Document, ...]:
        keys = [item[key] for item in items]
        twice = [str(each) for index, each in enumerate(keys) if each in keys[:index]]
        if twice:
            raise PydanticCustomError("distinct", "{names} stands more than once", {"names": ", ".join(twice)})
        return items

    return AfterValidator(validate)


def _map_by(key: str, most: int) -> Any:
    """Return the limits of a list whose items have a key."""
    more: Any = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    return Field(max_length=most, json_schema_extra=more)


def _all_of(field: str, rule: str, holds: Callable[[Document], bool], message: str, culprit: str = "name") -> CelRule:
    """Return the rule that each item of a list keeps; `self` in it is called `item`."""

    def wrong(template: "Template") -> Iterable[str]:
        return (str(item.get(culprit, ""))[:80] for item in getattr(template, attribute) or () if not holds(item))

    attribute = re.sub("([A-Z])", r"_\1", field).lower()
    return CelRule(
        rule=f"!has(self.{field}) || self.{field}.all(item, {rule})",
        message=message,
        holds=lambda template: not any(True for _ in wrong(template)),
        field_path=f".{field}",
        culprits=wrong,
    )


_OTHER_NAME = (
    "the container vllm is kvgate's: its command, arguments and ports follow from spec.model and spec.vllm, its GPUs from the parallel "
    "sizes, its memory from template.resources, its variables from template.env; give another container another name"
)


Labels = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=64)]


class Amounts(ApiModel):
    """Quantities of the resources of a container, beside GPUs."""

    cpu: Quantity | None = None
    """CPU cores, such as 4 or 500m."""
    memory: Quantity | None = None
    """Memory in bytes, such as 64Gi. kvgate adds the part of /dev/shm for queues and NCCL: 1Gi, or 2Gi per GPU and at least 10Gi. What is
    offloaded there counts in these bytes."""
    ephemeral_storage: Annotated[Quantity | None, Field(alias="ephemeral-storage")] = None
    """Space on the node's disk in bytes, such as 20Gi."""


class Resources(ApiModel):
    """CPU and memory of the vLLM container. The number of GPUs follows from the parallel sizes."""

    requests: Amounts | None = None
    """Amounts that the scheduler reserves on the node."""
    limits: Amounts | None = None
    """Amounts that the container may use at most."""


class Template(ApiModel):
    """Part of the pod template that is yours to choose; kvgate renders everything else."""

    cel_rules: ClassVar = (
        CelRule(
            rule=f"!has(self.labels) || !self.labels.exists(key, key.matches('{RESERVED_KEY}'))",
            message="keys of kubernetes.io, k8s.io and kvgate.io are not yours to set",
            holds=lambda template: not _sets_reserved_key(template.labels),
            field_path=".labels",
        ),
        CelRule(
            rule=f"!has(self.annotations) || !self.annotations.exists(key, key.matches('{RESERVED_KEY}'))",
            message="keys of kubernetes.io, k8s.io and kvgate.io are not yours to set",
            holds=lambda template: not _sets_reserved_key(template.annotations),
            field_path=".annotations",
        ),
        _all_of(
            "volumes",
            f"!(item.name in {list(OUR_VOLUMES)})",
            lambda volume: volume["name"] not in OUR_VOLUMES,
            "the volumes cache, shm and model are kvgate's: template.cacheClaimName and model.source fill them; choose another name",
        ),
        _all_of(
            "volumes",
            "[" + ", ".join(f"has(item.{kind})" for kind in VOLUME_KINDS) + "].filter(one, one).size() == 1",
            lambda volume: sum(kind in volume for kind in VOLUME_KINDS) == 1,
            f"a volume has exactly one source: {', '.join(VOLUME_KINDS)}",
        ),
        _all_of(
            "volumeMounts",
            f"item.mountPath.matches('{MOUNT_PATH}') "
            f"&& (!item.mountPath.matches('{OUR_FOLDERS}') || item.mountPath.matches('{FREE_IN_ETC}'))",
            _is_free,
            "a mount's path is absolute, without .. and colons, and in no folder of the program or of kvgate's volumes: /cache "
            "itself, /model, /dev, /usr, /opt, /etc (but for /etc/ssl and /etc/pki) …; choose another, such as /data or /cache/hub",
            "mountPath",
        ),
        CelRule(
            rule=(
                "!has(self.volumeMounts) || self.volumeMounts.all(item, "
                "has(self.volumes) && self.volumes.exists(volume, volume.name == item.name))"
            ),
            message="a mount names a volume that template.volumes does not have",
            holds=lambda template: set(_names(template.volume_mounts)) <= set(_names(template.volumes)),
            field_path=".volumeMounts",
            culprits=lambda template: sorted(set(_names(template.volume_mounts)) - set(_names(template.volumes))),
        ),
        *(
            _all_of(
                field, f"item.name != '{ENGINE_CONTAINER}'", lambda each: each["name"] != ENGINE_CONTAINER, _OTHER_NAME
            )
            for field in ("initContainers", "containers")
        ),
        CelRule(
            rule=(
                "!has(self.containers) || !has(self.initContainers) || "
                "!self.containers.exists(item, self.initContainers.exists(other, other.name == item.name))"
            ),
            message="a name stands in containers and in initContainers",
            holds=lambda template: not set(_names(template.containers)) & set(_names(template.init_containers)),
            field_path=".containers",
            culprits=lambda template: sorted(set(_names(template.containers)) & set(_names(template.init_containers))),
        ),
    )

    labels: Labels | None = None
    """Labels of the pods, beside those of kvgate."""
    annotations: Labels | None = None
    """Annotations of the pods, beside those of kvgate."""
    resources: Resources | None = None
    """CPU and memory of the vLLM container."""
    node_selector: Labels | None = None
    """Labels that a node must have, beside those for the GPU."""
    tolerations: (
        Annotated[tuple[Annotated[Document, KubernetesType("Toleration")], ...], Field(max_length=32)] | None
    ) = None
    """Tolerations of the pods, beside the one for the GPU."""
    affinity: Annotated[Document, KubernetesType("Affinity")] | None = None
    """Affinity of the pods. The node affinity for the GPU's product is added to each of its required terms."""
    topology_spread_constraints: (
        Annotated[tuple[Annotated[Document, KubernetesType("TopologySpreadConstraint")], ...], Field(max_length=8)]
        | None
    ) = None
    """Spread of the pods. Default: over nodes and zones, where that is possible; an empty list: none. A labelSelector that is not set
    selects the pods of this object. Pods that an earlier kvgate made get the default with the next change of the spec."""
    scheduler_name: DnsName | None = None
    """Scheduler of the pods. Default: the cluster's own."""
    runtime_class_name: DnsName | None = None
    """RuntimeClass of the pods, such as nvidia."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64, json_schema_extra={
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
    }), Distinct] | None = None  # fmt: skip
    """Environment variables of the vLLM container. kvgate refuses those that choose other GPUs, libraries, programs or weights."""
    env_from: (
        Annotated[tuple[Annotated[Document, KubernetesType("EnvFromSource")], ...], Field(max_length=8)] | None
    ) = None
    """ConfigMaps and Secrets whose keys become variables of the vLLM container. kvgate reads neither, so that no verdict counts them; its
    own variables and those of env win."""
    volumes: (
        Annotated[tuple[Annotated[Document, KubernetesType("Volume")], ...], _map_by("name", 32), _distinct_by("name")]
        | None
    ) = None
    """Volumes of the pods, beside cache, shm and model. hostPath needs the administrator (pods.allowHostPath in the chart)."""
    volume_mounts: (
        Annotated[
            tuple[Annotated[Document, KubernetesType("VolumeMount")], ...],
            _map_by("mountPath", 32),
            _distinct_by("mountPath"),
        ]
        | None
    ) = None
    """Mounts of these volumes in the vLLM container."""
    lifecycle: Annotated[Document, KubernetesType("Lifecycle")] | None = None
    """Hooks of the vLLM container. A preStop takes the place of kvgate's pause of 15 s, in which clients learn that the pod leaves; it and
    vLLM's own exit share 120 s."""
    init_containers: (
        Annotated[
            tuple[Annotated[Document, KubernetesType("Container")], ...], _map_by("name", 8), _distinct_by("name")
        ]
        | None
    ) = None
    """Containers that end before vLLM starts, or with restartPolicy Always run beside it. They have kvgate's security context, and may
    mount cache, shm and model. The administrator must allow their images (pods.allowedInitImages in the chart)."""
    containers: (
        Annotated[
            tuple[Annotated[Document, KubernetesType("Container")], ...], _map_by("name", 8), _distinct_by("name")
        ]
        | None
    ) = None
    """Further containers of the pods, with kvgate's security context. The administrator must allow their images
    (pods.allowedSidecarImages in the chart). Where one of them requests a GPU, the verdict is Unknown."""
    service_account_name: DnsName | None = None
    """ServiceAccount of the pods; no token of it is mounted. The administrator must allow it (pods.allowedServiceAccounts in the chart)."""
    image_pull_secrets: Annotated[tuple[DnsName, ...], Field(max_length=8)] | None = None
    """Names of Secrets with the credentials of the image registry."""
    cache_claim_name: DnsName | None = None
    """PersistentVolumeClaim for downloads and compiled kernels. Default: an empty folder for each pod."""
    priority_class_name: DnsName | None = None
    """Name of the PriorityClass of the pods."""
