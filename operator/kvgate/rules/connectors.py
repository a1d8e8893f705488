"""Rules about KV connectors: those that a release does not have or refuses beside other settings, and roles whose caches do not match."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from kvgate.budget import Budget, parse_release
from kvgate.findings.finding import (
    Action,
    Finding,
    Remedy,
    Rule,
    Scope,
    SettingName,
    Severity,
    any_one,
    do,
    leave_out,
    words,
)

_Minor = tuple[int, int]
_RELEASES: dict[str, tuple[_Minor | None, _Minor | None]] = {
    "DecodeBenchConnector": ((0, 11), None),
    "ExampleConnector": ((0, 11), None),
    "ExampleHiddenStatesConnector": ((0, 14), None),
    "FlexKVConnectorV1": ((0, 17), None),
    "HF3FSKVConnector": ((0, 17), None),
    "HiSparseConnector": ((0, 29), None),
    "LMCacheConnectorV1": (None, None),
    "LMCacheMPConnector": ((0, 11), None),
    "MoRIIOConnector": ((0, 11), None),
    "MooncakeConnector": ((0, 11), None),
    "MooncakeStoreConnector": ((0, 20), None),
    "MultiConnector": (None, None),
    "NixlConnector": (None, None),
    "NixlPullConnector": ((0, 23), None),
    "NixlPushConnector": ((0, 23), None),
    "OffloadingConnector": ((0, 10), None),
    "P2pNcclConnector": (None, (0, 25)),
    "PyNcclConnector": (None, (0, 11)),
    "SharedStorageConnector": (None, (0, 14)),
    "SimpleCPUOffloadConnector": ((0, 17), None),
}
"""Connector → (the last minor release before it that was read, the first one without it that was read); None: there is none.

By `KVConnectorFactory.register_connector` of 0.10.2, 0.11, 0.14, 0.17, 0.20 to 0.23, 0.25, 0.27, 0.29 to 0.31 and 0.33.
"""
_OLDEST_READ: _Minor = (0, 10)
_REFUSES_EXPANDABLE_SEGMENTS: _Minor = (0, 21)
"""First release whose `VllmConfig._verify_kv_transfer_compat` refuses them (0.21 to 0.33; 0.20 has no such check)."""
_ASKS_ABOUT_SLEEP: _Minor = (0, 33)
_NEVER_SLEEP = frozenset({"NixlPushConnector", "MoRIIOConnector", "MooncakeStoreConnector"})
"""Connectors whose `supports_sleep_mode` is False whatever their settings (0.33; 0.31 does not ask)."""

KV_CONNECTOR_REFUSED = Rule(
    id="KVConnectorRefused",
    severities=(Severity.ERROR, Severity.WARNING),
    scope=Scope.SETTINGS,
    title="The release does not have the KV connector, or does not take it beside another setting.",
    explanation=(
        "vLLM does not start. It is a warning where a name is much like that of a connector, because a plug-in may have it, and where vLLM "
        "starts and uses the connector for nothing."
    ),
)


def connectors_are_taken(budget: Budget) -> Iterable[Finding]:
    """`Unsupported connector type`, `incompatible with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, `does not support sleep mode`."""
    request, release = budget.request, parse_release(budget.request.vllm_version)[:2]
    host = request.settings.host
    names = [each.name for each in host.kv_connectors if not each.is_plug_in]
    for name in names if release >= _OLDEST_READ else ():
        if reason := _not_in_release(name, release, request.vllm_version):
            yield _refused(
                "kv_transfer_config", reason, any_one("use a release that has it", do("choose another connector"))
            )
        elif name not in _RELEASES and (near := _nearest(name)):
            message = words("{kv_transfer_config}: {name} is no connector of vLLM", name=name)
            yield KV_CONNECTOR_REFUSED.finding(
                "kv_transfer_config", message, f"did you mean {near}?", severity=Severity.WARNING
            )
    setting = "kv_offloading_size" if host.kv_offloading_bytes else "kv_transfer_config"
    is_used = bool(host.kv_connectors or host.kv_offloading_bytes)
    is_expandable = request.circumstances.expandable_segments and not (host.sleep_mode or host.cumem_allocator)
    if is_used and is_expandable and release >= _REFUSES_EXPANDABLE_SEGMENTS:
        reason = "a KV connector registers memory that PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may move"
        yield _refused(setting, reason, any_one("leave PYTORCH_CUDA_ALLOC_CONF out", do("add {enable_sleep_mode}")))
    awake = [name for name in names if name in _NEVER_SLEEP and host.sleep_mode and release >= _ASKS_ABOUT_SLEEP]
    for name in awake:
        yield _refused("kv_transfer_config", f"{name} does not go with sleep mode", leave_out("enable_sleep_mode"))
    is_simple = "SimpleCPUOffloadConnector" in names or (host.simple_kv_offload and host.kv_offloading_bytes)
    if is_simple and request.settings.enable_prefix_caching is False:
        message = words(
            "{setting} offloads nothing: this connector needs prefix caching, which is off",
            setting=SettingName(setting),
        )
        remedy = leave_out("enable_prefix_caching")
        yield KV_CONNECTOR_REFUSED.finding(setting, message, remedy, severity=Severity.WARNING)


def _refused(setting: str, reason: str, remedy: Action | Remedy) -> Finding:
    message = words("{setting}: {reason}; vLLM does not start", setting=SettingName(setting), reason=reason)
    return KV_CONNECTOR_REFUSED.finding(setting, message, remedy)


def _not_in_release(name: str, release: _Minor, version: str) -> str:
    before, gone = _RELEASES.get(name, (None, None))
    if before and release <= before:
        return f"vLLM {version} does not have {name} yet"
    return f"vLLM {version} no longer has {name}" if gone and release >= gone else ""


def _nearest(name: str) -> str | None:
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, _RELEASES, n=1, cutoff=0.85)), None)


ROLES_DO_NOT_MATCH = Rule(
    id="RolesDoNotMatch",
    severities=(Severity.WARNING,),
    scope=Scope.MANIFESTS,
    title="Prefill and decode of one service cannot pass the KV cache from one to the other.",
    explanation=(
        "Both start. Decode then computes every prompt again, or the transfers fail: one of them has no connector, or they differ in what "
        "the connector compares (NIXL: model, cache dtype, block size, tensor parallel sizes that do not divide one another)."
    ),
)
_NIXL = frozenset({"NixlConnector", "NixlPullConnector", "NixlPushConnector"})
_COMPARES_DTYPES: _Minor = (0, 14)
"""First release that was read whose handshake compares a hash of model and cache dtype, and takes block sizes that divide one another."""


class Role(Struct, frozen=True, kw_only=True):
    """The settings of the KV cache that prefill or decode states."""

    connectors: frozenset[str]
    """Empty where none is stated, and nothing else may state one."""
    model: str
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    """None where the attention backend chooses it."""
    tensor_parallel_size: int | None = 1
    """None where it is not known."""
    kv_roles: frozenset[str] = frozenset()


def mismatches_of_roles(prefill: Role, decode: Role, version: str) -> Iterator[tuple[str, str]]:
    """Yield (setting, reason) of what keeps the cache from passing."""
    both = (("prefill", prefill, "kv_consumer"), ("decode", decode, "kv_producer"))
    if not prefill.connectors and not decode.connectors:
        yield "kv_transfer_config", "neither has a KV connector"
    for role, given, wrong in both:
        if not given.connectors and (prefill.connectors or decode.connectors):
            yield "kv_transfer_config", f"{role} has no KV connector, and the other role has one"
        if given.kv_roles == {wrong}:
            yield "kv_transfer_config", f"kv_role of {role} is {wrong}"
    if prefill.connectors & _NIXL and decode.connectors & _NIXL:
        is_hashed = parse_release(version)[:2] >= _COMPARES_DTYPES
        yield from _refused_by_nixl(prefill, decode, is_hashed=is_hashed)


def _refused_by_nixl(prefill: Role, decode: Role, *, is_hashed: bool) -> Iterator[tuple[str, str]]:
    """Yield what NIXL compares before the first transfer (vLLM 0.11 to 0.33: `compute_nixl_compatibility_hash`,
    `TransferTopology.tp_ratio`, `block_size_ratio`)."""
    if is_hashed and prefill.kv_cache_dtype != decode.kv_cache_dtype:
        dtypes = f"{prefill.kv_cache_dtype}, and that of decode {decode.kv_cache_dtype}"
        yield "kv_cache_dtype", f"the KV cache of prefill is {dtypes}"
    if is_hashed and prefill.model != decode.model and prefill.model and decode.model:
        yield "model", f"prefill serves {prefill.model}, and decode {decode.model}"
    small, large = prefill.block_size, decode.block_size
    if small and large and (large % small if is_hashed else large != small):
        yield "block_size", f"blocks of decode ({large} tokens) are no multiple of those of prefill ({small})"
    sizes = sorted(size for size in (prefill.tensor_parallel_size, decode.tensor_parallel_size) if size)
    if len(sizes) == 2 and sizes[1] % sizes[0]:
        yield "tensor_parallel_size", f"tensor parallel sizes {sizes[0]} and {sizes[1]} do not divide one another"
