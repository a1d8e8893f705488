"""Whether vLLM's hybrid KV cache manager runs, by release and connector, and what an engine keeps without it."""

from typing import Any

import pytest

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.engine.settings import accounting_for
from kvgate.budget.ground.interval import Verdict
from kvgate.budget.ground.units import GIB
from kvgate.budget.host.settings import HostSettings, KVConnector
from kvgate.budget.kv_cache.hybrid_manager import hybrid_manager, manager_refusals
from kvgate.budget.model.shape import ModelShape
from support import kinds
from support.builders import new_request
from support.tables import table

GEMMA, QWEN = kinds.gemma_3_27b(), kinds.qwen_35_27b()


def connected(*names: str, **host: Any) -> HostSettings:
    return HostSettings(kv_connectors=tuple(KVConnector(name=name) for name in names), **host)


def runs(version: str, host: HostSettings, shape: ModelShape = GEMMA, **settings: Any) -> bool | None:
    """True, False, or None where it is not certain."""
    request = new_request(shape=shape, vllm_version=version, host=host, **settings)
    found = hybrid_manager(request, accounting_for(request))
    return found.runs if found.is_certain else None


@table(
    ("connector", "supports"),
    [
        ("DecodeBenchConnector", True), ("ExampleConnector", False), ("ExampleHiddenStatesConnector", True),
        ("FlexKVConnectorV1", False), ("HF3FSKVConnector", False), ("HiSparseConnector", True), ("LMCacheConnectorV1", False),
        ("MooncakeConnector", True), ("MooncakeStoreConnector", True), ("NixlConnector", True), ("NixlPullConnector", True),
        ("NixlPushConnector", True), ("OffloadingConnector", True), ("SimpleCPUOffloadConnector", True),
    ],
)  # fmt: skip
def test_connectors_are_those_of_vllm(connector: str, *, supports: bool) -> None:
    """As `KVConnectorFactory.supports_hma_config` of vLLM 0.32.0 answered for every connector that it could import."""
    assert runs("0.32.0", connected(connector)) is supports


@table(
    ("version", "names", "expected"),
    [
        ("0.9.2", ("NixlConnector",), False),
        ("0.11.0", ("NixlConnector",), False),
        ("0.12.0", ("SomebodysConnector",), False),
        ("0.21.0", ("NixlConnector",), False),
        ("0.22.0", ("NixlConnector",), True),
        ("0.22.0", ("LMCacheConnectorV1",), False),
        ("0.22.0", ("LMCacheMPConnector",), None),
        ("0.33.0", ("SomebodysConnector",), None),
        ("0.27.1", ("MoRIIOConnector",), False),
        ("0.29.0", ("MoRIIOConnector",), None),
        ("0.30.0", ("MoRIIOConnector",), True),
        ("0.32.0", ("NixlConnector", "OffloadingConnector"), True),
        ("0.32.0", ("NixlConnector", "LMCacheConnectorV1"), False),
        ("0.32.0", ("SomebodysConnector", "LMCacheConnectorV1"), False),
        ("0.32.0", (), True),
    ],
)
def test_the_release_and_the_connectors_decide(version: str, names: tuple[str, ...], *, expected: bool | None) -> None:
    assert runs(version, connected(*names)) is expected


def test_a_class_of_somebody_else_is_not_known_by_its_name() -> None:
    host = HostSettings(kv_connectors=(KVConnector(name="NixlConnector", is_plug_in=True),))
    assert (runs("0.32.0", host), runs("0.20.0", host)) == (None, False)


@pytest.mark.parametrize(
    ("version", "wish", "expected"),
    [("0.11.0", False, False), ("0.12.0", False, False), ("0.13.0", False, True), ("0.33.0", False, True),
     ("0.13.0", None, False), ("0.33.0", True, False)],
)  # fmt: skip
def test_a_wish_for_the_manager_counts_since_0_13(version: str, *, wish: bool | None, expected: bool) -> None:
    host = connected("LMCacheConnectorV1")
    assert runs(version, host, disable_hybrid_kv_cache_manager=wish) is expected


@pytest.mark.parametrize(("version", "expected"), [("0.9.2", False), ("0.19.0", False), ("0.20.0", True)])
def test_events_switch_it_off_before_0_20(version: str, *, expected: bool) -> None:
    assert runs(version, HostSettings(kv_events=True)) is expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.9.2", False), ("0.10.0", True), ("0.10.2", False), ("0.13.0", False), ("0.14.0", True), ("0.33.0", True)],
)
def test_chunks_are_kept_whole_in_some_releases(version: str, *, expected: bool) -> None:
    assert runs(version, HostSettings(), shape=kinds.llama_4_scout()) is expected
    assert runs(version, HostSettings()) is True


def engine(shape: ModelShape, version: str, host: HostSettings, gib: int = 20, **settings: Any) -> Budget:
    values = {"max_num_seqs": 16, "max_num_batched_tokens": 8192, "kv_cache_memory_bytes": gib * GIB, **settings}
    return plan(new_request(shape=shape, vllm_version=version, host=host, unmodelled_settings=("weights",), **values))


@pytest.mark.parametrize(
    ("version", "names", "gib"), [("0.11.0", ("NixlConnector",), 62.0), ("0.22.0", ("LMCacheConnectorV1",), 62.0)]
)
def test_windows_keep_the_whole_context(version: str, names: tuple[str, ...], gib: float) -> None:
    """62 layers × 2 × 16 KV heads × 128 × 2 bytes × 131,072 tokens = 62 GiB."""
    budget = engine(GEMMA, version, connected(*names), max_model_len=131_072)
    assert budget.demand_bytes == gib * GIB
    assert budget.verdict is Verdict.DOES_NOT_FIT


def test_windows_stay_windows_beside_a_connector_that_goes_with_the_manager() -> None:
    with_it, alone = (
        engine(GEMMA, "0.22.0", host, max_model_len=131_072) for host in (connected("NixlConnector"), HostSettings())
    )
    assert with_it.demand_bytes == alone.demand_bytes
    assert with_it.verdict is Verdict.FITS


def test_deepseek_v4_keeps_its_windows_and_rings_whole() -> None:
    """A user's start of V4-Flash with 128,000 tokens needed 38.87 GiB (issue 41830 of vLLM)."""
    host = connected("SimpleCPUOffloadConnector")
    budget = engine(kinds.deepseek_v4_flash(), "0.20.0", host, max_model_len=128_000, kv_cache_dtype="fp8", tensor=2)
    assert round(budget.demand_bytes / GIB, 2) == 38.87


@pytest.mark.parametrize(
    ("gib", "expected"), [(10, Verdict.DOES_NOT_FIT), (20, Verdict.MAY_NOT_FIT), (70, Verdict.FITS)]
)
def test_a_connector_that_nobody_has_read_leaves_both_open(gib: int, expected: Verdict) -> None:
    budget = engine(GEMMA, "0.33.0", connected("SomebodysConnector"), gib=gib, max_model_len=131_072)
    assert budget.verdict is expected
    assert budget.fits_only_with_manager is (expected is Verdict.MAY_NOT_FIT) or gib == 10


def test_recurrent_states_may_not_start_beside_a_connector_that_nobody_has_read() -> None:
    unknown = engine(QWEN, "0.33.0", connected("SomebodysConnector"), max_model_len=4096)
    alone = engine(QWEN, "0.33.0", HostSettings(), max_model_len=4096)
    assert (unknown.verdict, alone.verdict) == (Verdict.MAY_NOT_FIT, Verdict.FITS)


def refused(version: str, host: HostSettings, shape: ModelShape = QWEN, **settings: Any) -> list[str]:
    request = new_request(shape=shape, vllm_version=version, host=host, **settings)
    return [setting for setting, _ in manager_refusals(request, accounting_for(request))]


OFFLOADS = HostSettings(kv_offloading_bytes=4 * GIB)
LMCACHE = HostSettings(kv_offloading_bytes=4 * GIB, kv_offloading_backend="lmcache")
WISH, OFF = {"disable_hybrid_kv_cache_manager": False}, {"disable_hybrid_kv_cache_manager": True}
DENSE = kinds.mistral_7b()


@table(
    ("version", "host", "shape", "settings", "expected"),
    [
        ("0.21.0", connected("LMCacheConnectorV1"), QWEN, {}, ["kv_transfer_config"]),
        ("0.21.0", connected("NixlConnector"), QWEN, {}, ["kv_transfer_config"]),
        ("0.21.0", connected("NixlConnector"), QWEN, WISH, []),
        ("0.22.0", connected("NixlConnector"), QWEN, {}, []),
        ("0.33.0", connected("SomebodysConnector"), QWEN, {}, []),
        ("0.33.0", HostSettings(), QWEN, OFF, ["disable_hybrid_kv_cache_manager"]),
        ("0.19.0", HostSettings(kv_events=True), QWEN, {}, ["kv_events_config"]),
        ("0.33.0", connected("LMCacheConnectorV1"), kinds.pure_mamba(), {}, []),
        ("0.21.0", connected("LMCacheConnectorV1"), GEMMA, {}, []),
        ("0.10.0", connected("NixlConnector"), QWEN, {}, []),
        ("0.17.0", connected("NixlConnector"), DENSE, WISH, ["disable_hybrid_kv_cache_manager"]),
        ("0.18.0", connected("NixlConnector"), DENSE, WISH, []),
        ("0.12.0", connected("NixlConnector"), DENSE, WISH, []),
        ("0.33.0", connected("LMCacheConnectorV1"), DENSE, WISH, ["disable_hybrid_kv_cache_manager"]),
        ("0.33.0", connected("SomebodysConnector"), DENSE, WISH, []),
        ("0.17.0", connected("NixlConnector", "OffloadingConnector"), DENSE, WISH, []),
        ("0.16.0", OFFLOADS, DENSE, {}, ["kv_offloading_size"]),
        ("0.16.0", OFFLOADS, DENSE, OFF, []),
        ("0.13.0", OFFLOADS, DENSE, {}, []),
        ("0.21.0", OFFLOADS, DENSE, {}, []),
        ("0.21.0", LMCACHE, DENSE, {}, ["kv_offloading_size"]),
        ("0.22.0", LMCACHE, QWEN, {}, ["kv_offloading_size"]),
        ("0.23.0", LMCACHE, QWEN, {}, []),
    ],
)  # fmt: skip
def test_what_vllm_refuses(
    version: str, host: HostSettings, shape: ModelShape, settings: dict[str, Any], expected: list[str]
) -> None:
    assert refused(version, host, shape, **settings) == expected
