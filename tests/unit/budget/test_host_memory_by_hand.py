"""Terms of the host's ledger worked out by hand, on both sides of the releases and settings that change them."""

from typing import Any

import pytest
from msgspec.structs import replace

from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.ground.interval import Interval
from kvgate.budget.ground.units import GIB, MIB
from kvgate.budget.host.memory import HostLedger, HostQuestion, ModelOnHost, host_ledger
from kvgate.budget.host.settings import HostSettings, KVConnector, PodMemory
from support.tables import table

MODEL = ModelOnHost(
    kept_bytes=Interval(low=0, expected=8 * GIB, high=12 * GIB), weights_bytes=64 * GIB, checkpoint_bytes=60 * GIB,
    cache_bytes=40 * GIB, block_bytes=2 * MIB, token_ids_bytes=300 * MIB, takes_media=True,
)  # fmt: skip
NODE, TWO_PODS = PodMemory(), PodMemory(num_pods=2)


def ledger(
    release: tuple[int, int] = (0, 33), model: ModelOnHost | None = None, pod: PodMemory = NODE,
    question: dict[str, Any] | None = None, settings: dict[str, Any] | None = None, **cut: Any,
) -> HostLedger:  # fmt: skip
    return host_ledger(
        HostQuestion(
            settings=HostSettings(**settings or {}), parallelism=Parallelism(**cut), release=release, pod=pod, model=model,
            **question or {},
        )
    )  # fmt: skip


def between(low: int, expected: int, high: int) -> Interval:
    return Interval(low=low, expected=expected, high=high)


def term(found: HostLedger, name: str) -> Interval:
    return next((line.amount for line in found.lines if line.name == name), Interval.exactly(0))


def shared(found: HostLedger) -> list[str]:
    return [line.name for line in found.shared]


@table(
    ("cut", "pod", "settings", "expected"),
    [
        # (servers, engines, ranks, ranks of every pod, ranks of an engine, queues, certain)
        ({}, NODE, {}, (1, 1, 1, 1, 1, False, True)),
        ({"tensor": 4}, NODE, {}, (1, 1, 4, 4, 4, True, True)),
        ({"tensor": 2, "data": 3}, NODE, {}, (3, 3, 6, 6, 2, True, True)),
        ({"tensor": 2, "prefill_context": 2}, NODE, {}, (1, 1, 4, 4, 4, True, True)),
        ({"data": 2}, NODE, {}, (2, 2, 2, 2, 1, False, True)),
        ({"tensor": 4}, NODE, {"distributed_executor_backend": "ray"}, (1, 1, 4, 4, 4, False, True)),
        ({"tensor": 4}, TWO_PODS, {}, (1, 1, 2, 4, 4, True, False)),
        ({"tensor": 3}, TWO_PODS, {}, (1, 1, 2, 3, 3, True, False)),  # one pod has two of three
        ({"tensor": 2}, TWO_PODS, {}, (1, 1, 1, 2, 2, False, False)),
        ({"data": 4, "tensor": 2}, TWO_PODS, {}, (2, 2, 4, 8, 2, True, False)),
        ({"data": 4}, PodMemory(num_pods=8), {}, (1, 1, 1, 4, 1, False, False)),
        ({"data": 4}, NODE, {"data_parallel_size_local": 2}, (1, 2, 2, 4, 1, False, True)),
        ({"data": 4}, NODE, {"data_parallel_size_local": 0}, (1, 1, 1, 4, 1, False, False)),
        ({"tensor": 4}, PodMemory(num_gpus=2), {}, (1, 1, 2, 4, 4, True, False)),
        ({"tensor": 4}, PodMemory(num_gpus=8), {}, (1, 1, 4, 4, 4, True, True)),
    ],
)
def test_who_runs_in_a_pod(
    cut: dict[str, int], pod: PodMemory, settings: dict[str, Any], expected: tuple[int, int, int, int, int, bool, bool]
) -> None:
    found = ledger(pod=pod, settings=settings, **cut).processes
    assert (
        found.servers, found.engines, found.ranks, found.all_ranks, found.ranks_of_engine, found.uses_queues, found.is_certain,
    ) == expected  # fmt: skip


@pytest.mark.parametrize(("release", "servers"), [((0, 15), 1), ((0, 16), 3)])
def test_servers_follow_the_copies_since_0_16(release: tuple[int, int], servers: int) -> None:
    assert ledger(release, data=3).processes.servers == servers


@pytest.mark.parametrize(
    ("cut", "low_mib", "expected_gib", "high_gib"),
    [
        ({}, 2 * 256, 1 + 2, 3 + 6),  # a server, and a rank that schedules
        ({"tensor": 2}, 4 * 256, 1 + 1 + 2 * 2, 3 + 2 + 2 * 6),
        ({"data": 2}, 4 * 256, 2 * 1 + 2 * 2, 2 * 3 + 2 * 6),
    ],
)
def test_processes_add_up(cut: dict[str, int], low_mib: int, expected_gib: int, high_gib: int) -> None:
    assert term(ledger(**cut), "processes") == between(low_mib * MIB, expected_gib * GIB, high_gib * GIB)


@pytest.mark.parametrize(
    ("each", "high"), [(0, 0), (1, 1), (256 * MIB, 256 * MIB), (256 * MIB + 1, 512 * MIB), (300 * MIB, 512 * MIB)]
)
def test_torch_pins_the_next_power_of_two(each: int, high: int) -> None:
    """`CachingHostAllocator` rounds an allocation up to a power of two."""
    found = term(ledger(model=replace(MODEL, token_ids_bytes=each), tensor=2), "token_ids")
    assert found == between(0, 2 * each, 2 * high)


def test_a_pod_has_its_ranks_part_of_what_is_kept() -> None:
    assert term(ledger(model=MODEL, tensor=4), "offloaded_weights") == between(0, 8 * GIB, 12 * GIB)
    half = ledger(model=MODEL, pod=TWO_PODS, settings={"sleep_mode": True}, tensor=4)
    assert term(half, "offloaded_weights") == between(0, 4 * GIB, 6 * GIB)
    assert term(half, "sleep") == between(0, 32 * GIB, 64 * GIB)
    without_model = ledger(question={"offloaded_weights_bytes": GIB}, tensor=4)
    assert term(without_model, "offloaded_weights") == between(0, 4 * GIB, 8 * GIB)
    assert term(ledger(settings={"sleep_mode": True}), "sleep").high == 0


OFFLOADING, SIMPLE, LMCACHE = "OffloadingConnector", "SimpleCPUOffloadConnector", "LMCacheConnectorV1"


@table(
    ("connector", "release", "pod", "low", "expected", "high"),
    [
        (KVConnector(name=OFFLOADING, cpu_blocks=1024), (0, 13), NODE, 0, 2, 4),
        (KVConnector(name=OFFLOADING, cpu_blocks=1024), (0, 13), TWO_PODS, 0, 1, 2),
        (KVConnector(name=OFFLOADING, cpu_bytes=8 * GIB), (0, 13), NODE, 0, 0, 16),
        (KVConnector(name=OFFLOADING, cpu_bytes=8 * GIB), (0, 14), NODE, 0, 8, 16),
        (KVConnector(name=OFFLOADING, cpu_bytes=8 * GIB), (0, 26), TWO_PODS, 0, 4, 8),
        (KVConnector(name=OFFLOADING, cpu_bytes=8 * GIB), (0, 27), NODE, 7, 8, 8),
        (KVConnector(name=OFFLOADING, cpu_bytes=GIB // 2), (0, 27), NODE, 0, 0.5, 0.5),
        (KVConnector(name=OFFLOADING), (0, 27), NODE, 0, 0, 0),
        (KVConnector(name=SIMPLE), (0, 33), NODE, 4, 8, 8),
        (KVConnector(name=SIMPLE), (0, 33), TWO_PODS, 2, 4, 4),
        (KVConnector(name=SIMPLE, cpu_bytes=2 * GIB), (0, 33), NODE, 0, 2, 2),
        (KVConnector(name=SIMPLE, cpu_bytes_per_rank=3 * GIB), (0, 33), TWO_PODS, 4, 6, 6),
        (KVConnector(name=LMCACHE), (0, 33), NODE, 0, 20, 40),
        (KVConnector(name=LMCACHE, cpu_bytes=8 * GIB), (0, 33), TWO_PODS, 0, 4, 8),
        (KVConnector(name=LMCACHE, cpu_bytes_per_rank=GIB), (0, 33), TWO_PODS, 0, 2, 4),
        (KVConnector(name="NixlConnector", cpu_bytes=GIB), (0, 33), NODE, 0, 0, 0),
    ],
)
def test_a_connector_of_four_ranks(
    connector: KVConnector, release: tuple[int, int], pod: PodMemory, low: float, expected: float, high: float
) -> None:
    found = ledger(release, MODEL, pod, settings={"kv_connectors": (connector,)}, tensor=4)
    assert term(found, "kv_offload") == between(round(low * GIB), round(expected * GIB), round(high * GIB))
    assert ("kv_offload" in shared(found)) is (connector.name == OFFLOADING and release >= (0, 27))


def test_several_connectors_add_up_and_one_may_be_in_shared_memory() -> None:
    both = (KVConnector(name=LMCACHE), KVConnector(name=OFFLOADING, cpu_bytes=8 * GIB))
    found = ledger(settings={"kv_connectors": both})
    assert term(found, "kv_offload") == between(7 * GIB, 13 * GIB, 18 * GIB)
    assert "kv_offload" in shared(found)


@pytest.mark.parametrize(
    ("vendor", "low_gib", "high_gib", "is_shared"), [("nvidia", 7, 8, True), ("", 7, 8, False), ("amd", 0, 16, False)]
)
def test_the_buffer_lies_in_shared_memory_on_gpus_of_nvidia(
    vendor: str, low_gib: int, high_gib: int, *, is_shared: bool
) -> None:
    found = ledger(question={"vendor": vendor}, settings={"kv_offloading_bytes": 8 * GIB})
    assert term(found, "kv_offload") == between(low_gib * GIB, 8 * GIB, high_gib * GIB)
    assert ("kv_offload" in shared(found)) is is_shared


@pytest.mark.parametrize("vendor", ["nvidia", "amd", ""])
def test_tiers_share_their_buffer_on_any_gpu(vendor: str) -> None:
    """Every process maps one file, also the scheduler's (0.27, `TieringOffloadingSpec.get_manager`)."""
    tiered = KVConnector(name=OFFLOADING, cpu_bytes=8 * GIB, has_tiers=True)
    found = ledger((0, 27), question={"vendor": vendor}, settings={"kv_connectors": (tiered,)})
    assert term(found, "kv_offload") == between(7 * GIB, 8 * GIB, 8 * GIB)
    assert "kv_offload" in shared(found)


@table(
    ("release", "runs_v0", "expected", "high"),
    [
        ((0, 7), True, 8, 16), ((0, 7), False, 0, 16), ((0, 8), False, 0, 16), ((0, 8), True, 8, 16), ((0, 10), False, 0, 16),
        ((0, 11), False, 0, 0), ((0, 11), True, 8, 16), ((0, 17), True, 8, 16), ((0, 18), True, 0, 0),
    ],
)  # fmt: skip
def test_v0_pins_its_swap_space_in_every_rank(
    release: tuple[int, int], runs_v0: bool, expected: int, high: int  # noqa: FBT001
) -> None:  # fmt: skip
    """4 GiB by default; stages divide it (`Worker.determine_num_available_blocks`)."""
    found = term(ledger(release, question={"runs_v0": runs_v0}, tensor=2), "swap_space")
    assert found == between(0, expected * GIB, high * GIB)
    stages = term(ledger(release, question={"runs_v0": runs_v0}, tensor=2, pipeline=2), "swap_space")
    assert stages == found  # four ranks of half as much


def test_only_a_buffer_on_the_host_holds_the_caches_once() -> None:
    through, past = (KVConnector(name="NixlConnector", buffer_on_host=flag) for flag in (True, False))
    found = ledger(model=MODEL, pod=TWO_PODS, settings={"kv_connectors": (past, through)}, tensor=4)
    assert term(found, "transfer_buffers") == between(0, 20 * GIB, 20 * GIB)
    assert term(ledger(model=MODEL, settings={"kv_connectors": (past,)}), "transfer_buffers").high == 0
    assert term(ledger(settings={"kv_connectors": (through,)}), "transfer_buffers").high == 0


@table(
    ("settings", "checkpoint_gib", "expected", "high"),
    [
        ({}, 60, 0, 0),
        ({"load_format": "pt"}, 60, 5 * GIB, 60 * GIB),
        ({"load_format": "npcache"}, 8, 5 * GIB, 10 * GIB),
        ({"load_format": "pt"}, 0, 5 * GIB, 10 * GIB),
        ({"load_format": "pt"}, 3, 3 * GIB, 6 * GIB),
        ({"safetensors_load_strategy": "eager"}, 60, 5 * GIB, 60 * GIB),
        ({"safetensors_load_strategy": "torchao"}, 60, 5 * GIB, 60 * GIB),
        ({"load_format": "runai_streamer"}, 60, 5 * GIB, 40 * 10**9),
        ({"load_format": "runai_streamer_sharded"}, 20, 5 * GIB, 20 * GIB),
        ({"load_format": "runai_streamer"}, 0, 5 * GIB, 40 * 10**9),
        ({"load_format": "fastsafetensors"}, 60, 512 * MIB, 5 * GIB),
        ({"load_format": "tensorizer"}, 60, 512 * MIB, 5 * GIB),
        ({"load_format": "bitsandbytes"}, 60, 512 * MIB, 5 * GIB),
        ({"load_format": "gguf"}, 0, 512 * MIB, 5 * GIB),
        ({"load_format": "dummy"}, 60, 0, 0),
    ],
)
def test_what_a_loader_has_read_and_not_yet_moved(
    settings: dict[str, str], checkpoint_gib: int, expected: int, high: int
) -> None:
    model = replace(MODEL, checkpoint_bytes=checkpoint_gib * GIB)
    assert term(ledger(model=model, settings=settings), "loading") == between(0, expected, high)
    assert term(ledger(model=model, settings=settings, tensor=2), "loading") == between(0, 2 * expected, 2 * high)


@table(
    ("release", "settings", "cut", "caches", "in_shm"),
    [
        ((0, 10), {}, {}, 2 + 1, False),  # two caches of the server, and one of the engine
        ((0, 10), {}, {"data": 3}, 2 + 3, False),
        ((0, 11), {}, {}, 1, False),
        ((0, 33), {}, {"data": 3}, 3, False),
        ((0, 33), {"api_server_count": 1}, {"data": 3}, 1, False),
        ((0, 33), {"api_server_count": 2}, {}, 2, False),
        ((0, 33), {"mm_processor_cache_type": "shm"}, {}, 1, True),
        ((0, 33), {"mm_processor_cache_type": "shm"}, {"data": 3}, 3, False),
        ((0, 33), {"mm_processor_cache_type": "shm", "api_server_count": 2}, {}, 2, False),
        ((0, 33), {"mm_processor_cache_type": "shm", "mm_processor_cache_bytes": 0}, {}, 0, False),
    ],
)
def test_prepared_images_are_kept_by_servers_and_engines(
    release: tuple[int, int], settings: dict[str, Any], cut: dict[str, int], caches: int, *, in_shm: bool
) -> None:
    found = ledger(release, MODEL, settings=settings, **cut)
    assert term(found, "mm_cache") == between(0, caches * 4 * GIB, caches * 4 * GIB)
    assert ("mm_cache" in shared(found)) is in_shm
    texts = ledger(release, replace(MODEL, takes_media=False), settings=settings, **cut)
    assert (term(texts, "mm_cache").high, "mm_cache" in shared(texts)) == (0, False)
    unknown = ledger(release, settings=settings, **cut)
    assert (term(unknown, "mm_cache").high, "mm_cache" in shared(unknown)) == (0, False)


def queue(message_mib: int, readers: int) -> int:
    """Ten messages, each with a flag and one for every reader (`ShmRingBuffer.__init__`)."""
    return 10 * (message_mib * MIB + 1 + readers)


@pytest.mark.parametrize(
    ("release", "settings", "cut", "queues"),
    [
        ((0, 8), {}, {"tensor": 2}, queue(10, 2) + 2 * queue(10, 1)),
        ((0, 9), {}, {"tensor": 2}, queue(16, 2) + 2 * queue(10, 1)),
        ((0, 11), {}, {"tensor": 2}, queue(16, 2) + 2 * queue(10, 1)),
        ((0, 12), {}, {"tensor": 2}, queue(16, 2) + 2 * queue(24, 1)),
        ((0, 33), {}, {"tensor": 4, "data": 2}, 2 * queue(16, 4) + 8 * queue(24, 1)),
        ((0, 33), {"distributed_executor_backend": "ray"}, {"tensor": 2}, 0),
    ],
)
def test_queues_are_written_as_messages_come(
    release: tuple[int, int], settings: dict[str, Any], cut: dict[str, int], queues: int
) -> None:
    found = ledger(release, settings=settings, **cut)
    ranks = found.processes.ranks
    assert term(found, "messages") == between(0, ranks * 64 * MIB, ranks * 512 * MIB + queues)
    assert shared(found) == ["messages"]


def test_a_rank_alone_sends_no_messages() -> None:
    for found in (ledger(), ledger(data=2)):
        assert term(found, "messages").high == 0
        assert shared(found) == []
        assert found.shared_needs == Interval.exactly(0)


@table(
    ("release", "settings", "pod", "segment", "what"),
    [
        ((0, 26), {}, NODE, (0, 0, 0), "none"),
        ((0, 27), {}, NODE, (queue(24, 1), queue(24, 1), queue(24, 1)), "replies"),
        ((0, 27), {}, PodMemory(num_gpus=2), (0, queue(24, 1), queue(24, 1)), "replies"),
        ((0, 33), {"shm_tensor_arena": True}, NODE, (2 * GIB, 2 * GIB, 2 * GIB), "tensor arena"),
        ((0, 33), {"distributed_executor_backend": "ray", "shm_tensor_arena": True}, NODE, (0, 0, 0), "none"),
        ((0, 33), {"kv_offloading_bytes": 8 * GIB}, NODE, (7 * GIB, 8 * GIB, 8 * GIB), "KV offload"),
        ((0, 33), {"kv_offloading_bytes": GIB}, NODE, (queue(24, 1), GIB, GIB), "KV offload"),
        ((0, 33), {"kv_offloading_bytes": GIB, "shm_tensor_arena": True}, NODE, (2 * GIB, 2 * GIB, 2 * GIB), "tensor arena"),
    ],
)  # fmt: skip
def test_the_largest_segment_of_four_ranks(
    release: tuple[int, int], settings: dict[str, Any], pod: PodMemory, segment: tuple[int, int, int], what: str
) -> None:
    found = ledger(release, pod=pod, settings=settings, tensor=4)
    assert found.segment.amount == between(*segment)
    assert dict(found.segment.inputs)["segment"] == what


def test_shared_memory_has_room_for_what_is_written_and_for_the_largest_segment() -> None:
    alone = ledger(settings={"kv_offloading_bytes": 8 * GIB})
    assert alone.shared_needs == between(7 * GIB, 8 * GIB, 8 * GIB)
    two = ledger(tensor=2)
    assert two.shared_needs.low == queue(24, 1)
    assert two.shared_needs.expected == queue(24, 1)  # more than 2 × 64 MiB
    assert two.shared_needs.high == 2 * 512 * MIB + queue(16, 2) + 2 * queue(24, 1)
    both = ledger(tensor=8, settings={"kv_offloading_bytes": 8 * GIB})
    assert both.shared_needs.expected == 8 * GIB + 8 * 64 * MIB


def test_the_largest_lines_come_first() -> None:
    found = ledger(model=MODEL, settings={"kv_offloading_bytes": 8 * GIB, "load_format": "gguf"})
    assert [line.name for line in found.largest] == [
        "kv_offload", "processes", "offloaded_weights", "mm_cache", "loading", "token_ids",
    ]  # fmt: skip
    assert found.needs == sum((line.amount for line in found.lines), Interval.exactly(0))


@pytest.mark.parametrize(
    ("load_format", "checkpoint", "wanted"), [("auto", GIB, [GIB]), ("dummy", GIB, []), ("auto", 0, [])]
)
def test_files_that_are_read_may_stay_in_the_page_cache(load_format: str, checkpoint: int, wanted: list[int]) -> None:
    model = replace(MODEL, checkpoint_bytes=checkpoint)
    found = ledger(model=model, settings={"load_format": load_format}, tensor=2)
    assert [line.amount for line in found.wanted] == [between(0, size, size) for size in wanted]
    assert ledger().wanted == ()
