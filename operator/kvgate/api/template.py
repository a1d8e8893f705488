"""spec.template: the part of the pod template that is the user's to choose. kvgate renders everything else."""

import re
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kvgate.api.base import ApiModel, CelRule, Distinct, DnsName, KeyRef, Quantity
from kvgate.vllm.variables import RESERVED, ReservedVariables


class Toleration(ApiModel):
    """A toleration of the pods, as in a pod spec."""

    key: Annotated[str, Field(max_length=317)] | None = None
    """Key of the taint. Default: every key."""
    operator: Literal["Exists", "Equal"] | None = None
    """Equal compares the value, Exists takes any. Default: Equal."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Default: every effect."""
    toleration_seconds: Annotated[int, Field(strict=True)] | None = None
    """Seconds that the pod stays after a NoExecute taint. Default: for ever."""


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
    )

    labels: Labels | None = None
    """Labels of the pods, beside those of kvgate."""
    annotations: Labels | None = None
    """Annotations of the pods, beside those of kvgate."""
    resources: Resources | None = None
    """CPU and memory of the vLLM container."""
    node_selector: Labels | None = None
    """Labels that a node must have, beside those for the GPU."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] | None = None
    """Tolerations of the pods, beside the one for the GPU."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64, json_schema_extra={
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
    }), Distinct] | None = None  # fmt: skip
    """Environment variables of the vLLM container. kvgate refuses those that choose other GPUs, libraries, programs or weights."""
    image_pull_secrets: Annotated[tuple[DnsName, ...], Field(max_length=8)] | None = None
    """Names of Secrets with the credentials of the image registry."""
    cache_claim_name: DnsName | None = None
    """PersistentVolumeClaim for downloads and compiled kernels. Default: an empty folder for each pod."""
    priority_class_name: DnsName | None = None
    """Name of the PriorityClass of the pods."""
