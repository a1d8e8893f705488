"""spec.template: the part of the pod template that is the user's to choose."""

import re
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kvgate.api.base import ApiModel, CelRule, Distinct, DnsName, KeyRef, Quantity
from kvgate.vllm.variables import RESERVED, ReservedVariables


class Toleration(ApiModel):
    """A toleration of the pods, as in a pod spec."""

    key: Annotated[str, Field(max_length=317)] | None = None
    """Taint key."""
    operator: Literal["Exists", "Equal"] | None = None
    """Relation to the value."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """Taint value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Taint effect."""
    toleration_seconds: Annotated[int, Field(strict=True)] | None = None
    """Seconds that the pod stays after a NoExecute taint."""


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
    """Its value, which the process gets as it is written: `$(NAME)` is not replaced."""
    secret_key_ref: KeyRef | None = None
    """Key of a Secret in the same namespace, instead of a value."""


RESERVED_KEY = r"^([-a-z0-9.]*[.])?(kubernetes[.]io|k8s[.]io|kvgate[.]io)/"
"""Label and annotation keys that are not a user's to set on pods; RE2 syntax, so that CEL and Python agree."""


def _sets_reserved_key(keys: Iterable[str] | None) -> bool:
    return any(re.match(RESERVED_KEY, key) for key in keys or ())


Labels = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=64)]


class Amounts(ApiModel):
    """Quantities of what a container may ask for beside GPUs."""

    cpu: Quantity | None = None
    """Cores."""
    memory: Quantity | None = None
    """Bytes; /dev/shm comes on top."""
    ephemeral_storage: Annotated[Quantity | None, Field(alias="ephemeral-storage")] = None
    """Bytes on the node's disk."""


class Resources(ApiModel):
    """CPU and memory of the vLLM container; GPUs follow from the parallel sizes."""

    requests: Amounts | None = None
    """Amounts that the scheduler sets aside."""
    limits: Amounts | None = None
    """Amounts that the container may use."""


class Template(ApiModel):
    """The part of the pod template that is the user's to choose; everything else is rendered by kvgate."""

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
    """Further labels of the pods."""
    annotations: Labels | None = None
    """Further annotations of the pods."""
    resources: Resources | None = None
    """CPU and memory."""
    node_selector: Labels | None = None
    """Further node labels that are required."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] | None = None
    """Further tolerations."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64, json_schema_extra={
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
    }), Distinct] | None = None  # fmt: skip
    """Further environment variables; those that choose other GPUs, libraries, programs or weights are refused."""
    image_pull_secrets: Annotated[tuple[DnsName, ...], Field(max_length=8)] | None = None
    """Names of Secrets for the image registry."""
    cache_claim_name: DnsName | None = None
    """PersistentVolumeClaim for downloads and compiled kernels; omitted: an empty folder per pod."""
    priority_class_name: DnsName | None = None
    """PriorityClass of the pods."""
