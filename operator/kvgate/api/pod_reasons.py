"""Why a pod is not ready: the table of reasons, with the condition that has each of them beside Ready."""

from collections.abc import Mapping
from typing import NamedTuple

from kvgate.api.conditions import ConditionType, Reason


class PodReason(NamedTuple):
    """A reason of the API: which condition has it, with which status, and what ends it."""

    condition: ConditionType
    status: bool
    passes: bool
    """True where a free GPU, another node or time ends it. Stalled is True with all others."""


_UNSCHEDULED = (
    Reason.NO_MATCHING_NODE, Reason.VOLUME_CLAIM_MISSING,
    Reason.QUOTA_EXCEEDED, Reason.PRIORITY_CLASS_MISSING, Reason.POD_SECURITY_DENIED, Reason.SERVICE_ACCOUNT_MISSING,
    Reason.ADMISSION_DENIED, Reason.PODS_REFUSED,
)  # fmt: skip
_NOT_SCHEDULED_YET = (
    Reason.NOT_ENOUGH_GPUS, Reason.NOT_ENOUGH_RESOURCES, Reason.NODES_TAINTED, Reason.UNSCHEDULABLE,
    Reason.SCHEDULING_GATED, Reason.VOLUME_CLAIM_PENDING,
)  # fmt: skip
_NOT_LOADING = (
    Reason.IMAGE_NOT_FOUND, Reason.IMAGE_UNAUTHORIZED, Reason.IMAGE_WRONG_PLATFORM, Reason.IMAGE_NOT_PULLED,
    Reason.SECRET_MISSING, Reason.CONFIG_MAP_MISSING, Reason.KEY_MISSING, Reason.DRIVER_TOO_OLD,
    Reason.CONTAINER_NOT_CREATED, Reason.NODE_REFUSED_POD, Reason.HOST_MEMORY_EXCEEDED,
    Reason.VOLUME_NOT_ATTACHED, Reason.VOLUME_NOT_MOUNTED, Reason.VOLUME_FULL,
    Reason.KV_CACHE_TOO_SMALL, Reason.OUT_OF_MEMORY, Reason.ENGINE_REFUSED_TO_START, Reason.ENGINE_CRASHED,
)  # fmt: skip
_NOT_LOADING_YET = (
    Reason.CONTAINER_CREATING, Reason.IMAGE_RATE_LIMITED, Reason.VOLUME_IN_USE, Reason.EVICTED, Reason.NODE_LOST,
    Reason.NOT_ANSWERING,
)  # fmt: skip

POD_REASONS: Mapping[Reason, PodReason] = {
    **dict.fromkeys(_UNSCHEDULED, PodReason(ConditionType.SCHEDULED, status=False, passes=False)),
    **dict.fromkeys(_NOT_SCHEDULED_YET, PodReason(ConditionType.SCHEDULED, status=False, passes=True)),
    **dict.fromkeys(_NOT_LOADING, PodReason(ConditionType.LOADING, status=False, passes=False)),
    **dict.fromkeys(_NOT_LOADING_YET, PodReason(ConditionType.LOADING, status=False, passes=True)),
    Reason.LOADING: PodReason(ConditionType.LOADING, status=True, passes=True),
    Reason.LOADING_SLOWLY: PodReason(ConditionType.LOADING, status=True, passes=True),
    Reason.REPLICA_LOST: PodReason(ConditionType.DEGRADED, status=True, passes=True),
}
"""Ready is False with each of them, and Degraded is True with it where all replicas were ready before. An engine that ends because of
something around it has the name of its row in the table of failed starts as reason (docs/reference/failures.md)."""
