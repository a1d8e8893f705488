"""Changes of vLLM releases in the memory of the host: one table beside that of the GPU in `versions`, and no comparison elsewhere.

The facts were read in the source of 0.6.6 to 0.33.0. A row such as 0.27 means: absent in 0.26.0 and present in 0.27.0.
"""

from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.ground.units import MIB
from kvgate.budget.releases.versions import Release


class HostAccounting(Struct, frozen=True, kw_only=True, eq=False):
    """The way in which one release uses memory of the host; one object per release, compared by identity."""

    has_swap_space: bool = True
    """True where `--swap-space` exists; V0 alone uses it (absent in 0.18.0)."""
    may_run_v0: bool = True
    """True while the release has V0, whose GPU caches `--swap-space` swaps out (up to 0.10)."""
    message_bytes: int = 10 * MIB
    """Largest message from the engine to its ranks; the queue in /dev/shm has room for ten (`MultiprocExecutor._init_executor`)."""
    reply_bytes: int = 10 * MIB
    """The same for the replies of each rank (`MessageQueue.__init__`, its default)."""
    checks_shared_memory: bool = False
    """True where vLLM does not start if a segment is larger than what is free in /dev/shm (0.27, `check_shm_free_space`). Before, the
    segment is made whatever its size, because its pages are taken when they are first written."""
    offloads_cache_to_shared_memory: bool = False
    """True where offloaded blocks lie in one file in /dev/shm, all of which is written at the start (0.27, `SharedOffloadRegion`).
    Before, each rank has pinned tensors of its own."""
    sizes_cache_offload: bool = False
    """True where `--kv-offloading-size` sizes that buffer (0.14, `cpu_bytes_to_use`); 0.12 and 0.13 pass it on, and nothing reads it."""
    lmcache_in_process: bool = True
    """True where `--kv-offloading-backend lmcache` keeps blocks in the ranks; since 0.23 a server of LMCache's own has them."""
    api_servers_follow_copies: bool = False
    """True where there is an API server for every data parallel rank by default (0.16, `ServeSubcommand.cmd`)."""
    media_caches_of_server: int = 2
    """Caches in which the API server keeps prepared images (`ProcessingCache`, `MirroredProcessingCache`); since 0.10.2 it keeps only
    their sizes where one engine keeps the images (`MultiModalProcessorSenderCache`)."""


_CHANGES: tuple[tuple[Release, dict[str, object]], ...] = (
    ((0, 9), {"message_bytes": 16 * MIB}),
    ((0, 11), {"media_caches_of_server": 0, "may_run_v0": False}),
    ((0, 12), {"reply_bytes": 24 * MIB}),
    ((0, 14), {"sizes_cache_offload": True}),
    ((0, 16), {"api_servers_follow_copies": True}),
    ((0, 18), {"has_swap_space": False}),
    ((0, 23), {"lmcache_in_process": False}),
    ((0, 27), {"checks_shared_memory": True, "offloads_cache_to_shared_memory": True}),
)


@lru_cache(maxsize=256)
def host_accounting(release: Release) -> HostAccounting:
    """Return how a release uses the host; a release newer than the table counts as the newest."""
    facts = HostAccounting()
    for since, changes in _CHANGES:
        if since <= release:
            facts = replace(facts, **changes)
    return facts
