"""vLLM's hybrid KV cache manager: whether a start runs it.

Without it windows and chunks beside full attention keep the whole context, and recurrent states beside attention have no place
(`unify_hybrid_kv_cache_specs`). The release, the model and KV connectors decide it (0.9.2 to 0.33, `VllmConfig.__post_init__`).
"""

from collections.abc import Iterator

from msgspec import Struct

from kvgate.budget.engine.request import BudgetRequest
from kvgate.budget.model.shape import FullAttention, LatentAttention, ModelShape
from kvgate.budget.releases.accounting import Accounting
from kvgate.budget.releases.versions import Release, host_accounting, parse_release

_NEVER: Release = (99, 0)
_SUPPORT: dict[str, tuple[Release, Release]] = {
    "NixlConnector": ((0, 18), (0, 18)),
    "NixlPullConnector": ((0, 24), (0, 24)),
    "NixlPushConnector": ((0, 24), (0, 24)),
    "SimpleCPUOffloadConnector": ((0, 19), (0, 19)),
    "MooncakeConnector": ((0, 20), (0, 20)),
    "MooncakeStoreConnector": ((0, 22), (0, 22)),
    "OffloadingConnector": ((0, 21), (0, 21)),
    "DecodeBenchConnector": ((0, 21), (0, 21)),
    "ExampleHiddenStatesConnector": ((0, 22), (0, 22)),
    "MoRIIOConnector": ((0, 28), (0, 30)),
    "HiSparseConnector": ((0, 28), (0, 30)),
    "ExampleConnector": (_NEVER, _NEVER),
    "SharedStorageConnector": (_NEVER, _NEVER),
    "P2pNcclConnector": (_NEVER, _NEVER),
    "LMCacheConnectorV1": (_NEVER, _NEVER),
    "FlexKVConnectorV1": (_NEVER, _NEVER),
    "HF3FSKVConnector": (_NEVER, _NEVER),
}
"""Connectors of vLLM: (first release that may subclass `SupportsHMA`, first one that does). LMCacheMPConnector is LMCache's own class
where that package has one (0.22), so that it is not here; nor is MultiConnector, which is what its children are."""


class Manager(Struct, frozen=True, kw_only=True):
    """The answer whether the manager runs, with what decided it."""

    runs: bool
    """False where it is surely off."""
    is_certain: bool = True
    """False where a connector decides it whose class nobody has read."""
    setting: str = ""
    """Setting that switches it off, or may do so; empty where it runs, and where the release or the model decides."""
    connectors: tuple[str, ...] = ()
    """Connectors that do it."""


def hybrid_manager(request: BudgetRequest, accounting: Accounting) -> Manager:
    """Return whether the manager runs; an unknown connector counts as one that goes with it, and the answer says so."""
    settings, host = request.settings, request.settings.host
    if not accounting.hybrid_kv_cache_manager:
        return Manager(runs=False)
    if settings.disable_hybrid_kv_cache_manager:
        return Manager(runs=False, setting="disable_hybrid_kv_cache_manager")
    if host.kv_events and accounting.kv_events_exclude_manager:
        return Manager(runs=False, setting="kv_events_config")
    # chunks are kept as full attention by default, and beside EAGLE
    by_default = accounting.keeps_chunks_whole and not request.circumstances.chunks_beside_manager
    keeps_chunks_whole = by_default or request.draft_method in ("eagle", "eagle3")
    if keeps_chunks_whole and request.shape.has(FullAttention, "chunk_size"):
        return Manager(runs=False)
    is_wanted = settings.disable_hybrid_kv_cache_manager is False and accounting.takes_wish_for_manager
    if is_wanted or not (host.kv_connectors or (accounting.asks_connectors and host.kv_offloading_bytes)):
        return Manager(runs=True)
    setting, supporting = _stated_by_connectors(request, with_size=accounting.asks_connectors)
    if not accounting.asks_connectors:
        return Manager(runs=False, setting=setting, connectors=tuple(supporting))
    without = tuple(name for name, support in supporting.items() if support is False)
    unknown = tuple(name for name, support in supporting.items() if support is None)
    if without:
        return Manager(runs=False, setting=setting, connectors=without)
    return Manager(runs=True, is_certain=not unknown, setting=setting if unknown else "", connectors=unknown)


def _stated_by_connectors(request: BudgetRequest, *, with_size: bool) -> tuple[str, dict[str, bool | None]]:
    """(setting, whether each of its connectors goes with the manager); `--kv-offloading-size` puts its own in the place of others."""
    host, release = request.settings.host, parse_release(request.vllm_version)
    releases = host_accounting(release)
    if with_size and host.kv_offloading_bytes and releases.sizes_cache_offload:
        name = "SimpleCPUOffloadConnector" if host.simple_kv_offload else "OffloadingConnector"
        if host.kv_offloading_backend == "lmcache":
            name = "LMCacheConnectorV1" if releases.lmcache_in_process else "LMCacheMPConnector"
        return "kv_offloading_size", {name: _supports_manager(name, release)}
    return "kv_transfer_config", {
        each.name: None if each.is_plug_in else _supports_manager(each.name, release) for each in host.kv_connectors
    }


def _supports_manager(connector: str, release: Release) -> bool | None:
    """True where a connector goes with the manager, False where it surely does not; None: it is not known."""
    if connector not in _SUPPORT:
        return None
    possible, certain = _SUPPORT[connector]
    return True if release >= certain else None if release >= possible else False


def needs_manager(shape: ModelShape) -> bool:
    """True for recurrent states beside attention, which cannot become one kind of cache."""
    return shape.is_hybrid and shape.has(FullAttention | LatentAttention)


def manager_refusals(request: BudgetRequest, accounting: Accounting) -> Iterator[tuple[str, str]]:
    """(setting, reason) where vLLM does not start because of the manager; only what is certain."""
    manager, settings = hybrid_manager(request, accounting), request.settings
    names = " and ".join(manager.connectors)
    if not manager.runs and manager.setting and needs_manager(request.shape):
        who = (
            f"{names} switches vLLM's hybrid KV cache manager off" if names else "vLLM's hybrid KV cache manager is off"
        )
        yield (
            manager.setting,
            f"{who}, and {request.shape.name} needs it: its recurrent states and its attention have no common cache",
        )
    is_wanted = settings.disable_hybrid_kv_cache_manager is False and accounting.takes_wish_for_manager
    if is_wanted and manager.setting == "kv_events_config":
        yield manager.setting, "vLLM's hybrid KV cache manager is requested, and this release has none beside KV events"
    if not manager.runs or not accounting.takes_wish_for_manager:
        return
    setting, supporting = _stated_by_connectors(request, with_size=True)
    without = " and ".join(name for name, support in supporting.items() if support is False)
    # before 0.22 the class of a MultiConnector is asked, and not its children
    is_multiple = len(supporting) > 1 and not accounting.asks_connectors
    if without and not is_multiple:
        yield (
            "disable_hybrid_kv_cache_manager" if is_wanted else setting,
            f"{without} does not go with vLLM's hybrid KV cache manager in this release, and the manager is on",
        )
