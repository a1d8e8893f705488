"""Memory of the host that a container has: its limit, the size of /dev/shm, and what variables say about offloaded caches."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from fractions import Fraction
from typing import Any

from msgspec import Struct

from kvgate.api.quantity import parse_quantity
from kvgate.documents.nodes import YamlError, value_of
from kvgate.documents.written import NOTHING, Written
from kvgate.text.patterns import pattern
from kvgate.vllm.values import UnusableValue, gibibytes
from kvgate.vllm.variables import LMCACHE_SIZE

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the path in the container
RUNTIME_BYTES = 64 << 20
"""Size of /dev/shm where the container asks for no other (containerd and CRI-O; Docker, unless its `default-shm-size` is set)."""
_DOCKER_SIZE = pattern(r"(\d{1,18}(?:\.\d{1,6})?) ?(?:([kmgtp])i?)?b?", re.IGNORECASE)
"""Sizes as Docker reads them (go-units, `RAMInBytes`): every unit is a power of 1024."""
OWN_SHARED_MEMORY = ("", "private", "shareable")
"""Values of `ipc` with which a service has a /dev/shm of its own."""
_FileText = Callable[[str], str | None]
_MAX_FILE = 1 << 16
"""Characters of a file of LMCache's settings."""


class HostRoom(Struct, frozen=True, kw_only=True):
    """Memory of one container, as it is written; a field that is not written has no limit, or is not known."""

    limit: Written = NOTHING
    shm: Written = NOTHING
    """The size that is given to /dev/shm."""
    is_docker: bool = False
    """True where sizes are Docker's and not quantities of Kubernetes."""
    values: Mapping[str, Any] = {}
    """Settings of a what-if that variables of the container state."""

    @property
    def limit_bytes(self) -> int | None:
        return self._bytes(self.limit)

    @property
    def shm_bytes(self) -> int | None:
        return self._bytes(self.shm)

    def _bytes(self, size: Written) -> int | None:
        """Return whole bytes; None where nothing is written, where it is no size, and for 0, which means no limit."""
        amount = None if self.is_docker else parse_quantity(size.text)
        if self.is_docker and len(size.text) < 40 and (match := _DOCKER_SIZE.fullmatch(size.text.strip())):
            amount = Fraction(match[1]) * Fraction(1024) ** " kmgtp".index((match[2] or " ").lower())
        return int(amount) or None if amount is not None else None


NO_ROOM = HostRoom()


def room_of(pod: Written, container: Written, variables: Mapping[str, Written], file_text: _FileText) -> HostRoom:
    """Return the memory of a container of a pod; the pod's own limit counts where the container has none."""
    limit, of_pod = container.get("resources", "limits", "memory"), pod.get("resources", "limits", "memory")
    name = shared_mount(container).get("name").text
    volumes = (volume for volume in pod.get("volumes").items() if name and volume.get("name").text == name)
    shared = next(volumes, NOTHING)
    is_memory = shared.get("emptyDir", "medium").text == "Memory"
    return HostRoom(
        limit=of_pod if of_pod.is_set and not limit.is_set else limit,
        shm=shared.get("emptyDir", "sizeLimit") if is_memory else NOTHING,
        values=values_of(variables, file_text),
    )


def shared_mount(container: Written) -> Written:
    """Return the mount at /dev/shm, else one of all of /dev: with it the container sees what the host has there."""
    mounts = {mount.get("mountPath").text.rstrip("/"): mount for mount in container.get("volumeMounts").items()}
    return mounts.get(SHARED_MEMORY, mounts.get("/dev", NOTHING))


def room_of_service(service: Written, variables: Mapping[str, Written], file_text: _FileText) -> HostRoom:
    limit = service.get("deploy", "resources", "limits", "memory")
    # what is mounted there wins over shm_size
    is_own = service.get("ipc").text in OWN_SHARED_MEMORY and not mounts_shared_memory(service)
    return HostRoom(
        limit=limit if limit.is_set else service.get("mem_limit"),
        shm=service.get("shm_size") if is_own else NOTHING,
        is_docker=True,
        values=values_of(variables, file_text),
    )


def mounts_shared_memory(service: Written) -> bool:
    """Return whether a service of docker-compose mounts something at /dev/shm."""
    return SHARED_MEMORY in str([service.get(field).value for field in ("volumes", "tmpfs")])


def values_of(variables: Mapping[str, Written], file_text: _FileText) -> dict[str, Any]:
    """Return what variables say about host memory; LMCache reads a file instead of them where one is named."""
    size = variables.get(LMCACHE_SIZE, NOTHING).text
    if path := variables.get("LMCACHE_CONFIG_FILE", NOTHING).text:
        text, content = file_text(path), None
        with suppress(YamlError):
            content = value_of(text) if text and len(text) <= _MAX_FILE else None
        size = Written(value=content).get("max_local_cpu_size").text
    try:
        gibibytes(size)
    except UnusableValue:
        return {}
    return {"lmcache_max_local_cpu_size": size}
