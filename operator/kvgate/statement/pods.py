"""The pods that are rendered from a spec: memory of the host, circumstances of their starts, and the GPUs that they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvgate.api.quantity import parse_quantity
from kvgate.budget.ground.units import GIB, MIB, cdiv, round_up
from kvgate.budget.host.memory import HostLedger
from kvgate.budget.host.settings import UNKNOWN_POD, PodMemory
from kvgate.vllm.images import is_own_image

if TYPE_CHECKING:
    from kvgate.api.v1alpha1 import InferenceDeploymentSpec


def links_bytes(spec: InferenceDeploymentSpec) -> int:
    """Return the part of /dev/shm for queues and NCCL, whose buffers grow with the ranks that share a pod. kvgate adds it to the limit."""
    ranks = spec.vllm.num_gpus
    return GIB if ranks == 1 else max(10, 2 * ranks) * GIB


def pod_of(spec: InferenceDeploymentSpec) -> PodMemory:
    """Return the memory of a pod. /dev/shm is rendered as large as it must be, so that only the limit of the container is compared."""
    limits = spec.template.resources.limits if spec.template.resources else None
    limit = parse_quantity(limits.memory) if limits and limits.memory is not None else None
    return PodMemory(limit_bytes=int(limit), added_bytes=links_bytes(spec)) if limit else UNKNOWN_POD


def shared_memory_bytes(spec: InferenceDeploymentSpec, ledger: HostLedger | None) -> int:
    """Return the size of /dev/shm: the part for queues and NCCL, and what the engine keeps there beside them."""
    kept = sum(line.amount.high for line in ledger.shared if line.name != "messages") if ledger else 0
    return links_bytes(spec) + round_up(kept, MIB)


def memory_request_bytes(ledger: HostLedger) -> int:
    """Return what a pod requests where its spec states neither request nor limit: what it is expected to take, in whole GiB.

    It is a request alone. It finds a node that has the memory, and a prediction that is too small kills nothing.
    """
    return cdiv(ledger.needs.expected, GIB) * GIB


def circumstances_of_rendering(spec: InferenceDeploymentSpec) -> dict[str, Any]:
    """Return the circumstances of the pods that are rendered from a spec.

    An emptyDir is empty when a pod starts for the first time, and what is promised must hold then. A claim may hold what an earlier
    pod has compiled, or nothing.
    """
    found: dict[str, Any] = {"usage_context": "server"}
    if spec.vllm.image is None or is_own_image(spec.vllm.image):
        found["installed_by"] = "image"
    if spec.template.cache_claim_name is None:
        found["compile_cache"] = "cold"
    return found
