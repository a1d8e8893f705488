"""The ledger of the host: each term by release, by process and by rank, and what of it is certain."""

from typing import Any

import pytest
from msgspec.structs import replace

from kvgate.budget.answers.answer import plan
from kvgate.budget.answers.pod_ledger import pod_ledger, pod_ledger_without_model
from kvgate.budget.engine.request import EngineSettings, OffloadSettings
from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.ground.interval import Interval
from kvgate.budget.ground.units import GIB, MIB
from kvgate.budget.host.memory import HostLedger, host_ledger
from kvgate.budget.host.processes import HostQuestion, ModelOnHost
from kvgate.budget.host.settings import HostSettings, KVConnector, PodMemory
from support.builders import catalogue_shape, new_accelerator, new_request
from support.tables import table

MODEL = ModelOnHost(
    kept_bytes=Interval.exactly(8 * GIB), weights_bytes=64 * GIB, checkpoint_bytes=60 * GIB, cache_bytes=40 * GIB,
    block_bytes=2 * MIB, token_ids_bytes=300 * MIB, takes_media=True,
)  # fmt: skip


def ledger(
    release: tuple[int, int] = (0, 33), model: ModelOnHost | None = None, pod: PodMemory | None = None,
    cut: Parallelism | None = None, **settings: Any,
) -> HostLedger:  # fmt: skip
    return host_ledger(
        HostQuestion(
            settings=HostSettings(**settings),
            parallelism=cut or Parallelism(),
            release=release,
            pod=pod or PodMemory(),
            model=model,
            runs_v0=release < (0, 8),
        )
    )


def term(found: HostLedger, name: str) -> Interval:
    return next((line.amount for line in found.lines if line.name == name), Interval.exactly(0))


@table(
    ("cut", "pod", "settings", "expected"),
    [
        ({}, {}, {}, (1, 1, 1)),
        ({"tensor": 8}, {}, {}, (1, 1, 8)),
        ({"data": 4}, {}, {}, (4, 4, 4)),
        ({"data": 4}, {}, {"api_server_count": 2}, (2, 4, 4)),
        ({"data": 16, "tensor": 2}, {"num_pods": 4}, {}, (4, 4, 8)),
        ({"data": 16}, {}, {"data_parallel_size_local": 1}, (1, 1, 1)),
        ({"data": 16}, {}, {"data_parallel_size_local": 0}, (1, 1, 1)),
        ({"tensor": 8, "pipeline": 2}, {"num_pods": 2}, {}, (1, 1, 8)),
        ({"tensor": 8}, {"num_gpus": 4}, {}, (1, 1, 4)),
    ],
)
def test_processes_of_one_pod_are_counted(
    cut: dict[str, int], pod: dict[str, int], settings: dict[str, int], expected: tuple[int, int, int]
) -> None:
    found = ledger(cut=Parallelism(**cut), pod=PodMemory(**pod), **settings).processes
    assert (found.servers, found.engines, found.ranks) == expected


def test_before_0_16_one_server_takes_the_requests_of_all_copies() -> None:
    assert ledger((0, 15), cut=Parallelism(data=4)).processes.servers == 1


def test_every_process_has_a_floor_and_the_low_end_is_their_sum() -> None:
    alone, eight = ledger(), ledger(cut=Parallelism(tensor=8))
    assert alone.needs.low == 2 * 256 * MIB
    assert eight.needs.low == 10 * 256 * MIB  # a server, a scheduler and eight ranks


@pytest.mark.parametrize(
    ("release", "low", "expected", "is_shared"),
    [
        ((0, 33), 199, 200, True),
        ((0, 27), 199, 200, True),
        ((0, 26), 0, 200, False),
        ((0, 14), 0, 200, False),
        ((0, 13), 0, 0, False),
    ],
)
def test_the_size_of_offloaded_caches_counts_by_release(
    release: tuple[int, int],
    low: int,
    expected: int,
    is_shared: bool,  # noqa: FBT001
) -> None:
    found = ledger(release, kv_offloading_bytes=200 * GIB)
    amount = term(found, "kv_offload")
    assert (amount.low, amount.expected) == (low * GIB, expected * GIB)
    assert ("kv_offload" in [line.name for line in found.shared]) is is_shared
    assert (found.segment.amount.low == 199 * GIB) is is_shared


def test_every_copy_has_a_buffer_and_all_ranks_of_a_copy_share_it() -> None:
    assert term(ledger(cut=Parallelism(tensor=4), kv_offloading_bytes=80 * GIB), "kv_offload").expected == 80 * GIB
    assert term(ledger(cut=Parallelism(data=4), kv_offloading_bytes=80 * GIB), "kv_offload").expected == 320 * GIB
    two = ledger(cut=Parallelism(tensor=8), pod=PodMemory(num_pods=2), kv_offloading_bytes=80 * GIB)
    assert term(two, "kv_offload").expected == 40 * GIB


@table(
    ("connector", "release", "expected", "low"),
    [
        (KVConnector(name="OffloadingConnector", cpu_bytes=40 * GIB), (0, 33), 40, 39),
        (KVConnector(name="OffloadingConnector", cpu_blocks=1024), (0, 12), 2, 0),
        (KVConnector(name="SimpleCPUOffloadConnector"), (0, 33), 8, 6),
        (KVConnector(name="SimpleCPUOffloadConnector", cpu_bytes_per_rank=10 * GIB), (0, 33), 20, 18),
        (KVConnector(name="LMCacheConnectorV1"), (0, 33), 10, 0),
        (KVConnector(name="LMCacheConnectorV1", cpu_bytes_per_rank=30 * GIB), (0, 33), 60, 0),
        (KVConnector(name="LMCacheMPConnector"), (0, 33), 0, 0),
        (KVConnector(name="NixlConnector"), (0, 33), 0, 0),
    ],
)
def test_connectors_have_settings_of_their_own(
    connector: KVConnector, release: tuple[int, int], expected: int, low: int
) -> None:
    found = term(ledger(release, MODEL, cut=Parallelism(tensor=2), kv_connectors=(connector,)), "kv_offload")
    assert (found.expected, found.low) == (expected * GIB, low * GIB)


def test_lmcache_takes_the_size_of_its_own_setting_in_every_rank() -> None:
    given = {"kv_connectors": (KVConnector(name="LMCacheConnectorV1"),), "lmcache_bytes": 20 * GIB}
    assert term(ledger(cut=Parallelism(tensor=4), **given), "kv_offload").expected == 80 * GIB
    assert term(ledger(lmcache_bytes=20 * GIB), "kv_offload").expected == 0  # no connector uses it


def test_the_option_puts_its_connector_in_the_place_of_the_given_one() -> None:
    given = {"kv_connectors": (KVConnector(name="LMCacheConnectorV1"),), "kv_offloading_bytes": 12 * GIB}
    assert term(ledger(**given), "kv_offload").expected == 12 * GIB
    by_lmcache = {"kv_offloading_bytes": 12 * GIB, "kv_offloading_backend": "lmcache"}
    assert term(ledger((0, 22), cut=Parallelism(tensor=2), **by_lmcache), "kv_offload").expected == 12 * GIB
    assert term(ledger((0, 23), **by_lmcache), "kv_offload").expected == 0  # a server of LMCache's has it


def test_blocks_of_the_simple_connector_are_not_in_shared_memory() -> None:
    found = ledger(kv_offloading_bytes=40 * GIB, simple_kv_offload=True)
    assert found.shared == ()
    assert term(found, "kv_offload").low == 39 * GIB


@pytest.mark.parametrize(
    ("release", "settings", "expected"),
    [
        ((0, 7), {}, 4 * 4),
        ((0, 7), {"swap_space_bytes": 0}, 0),
        ((0, 7), {"swap_space_bytes": 10 * GIB}, 40),
        ((0, 8), {"swap_space_bytes": 10 * GIB}, 0),
        ((0, 17), {}, 0),
    ],
)
def test_only_v0_takes_swap_space(release: tuple[int, int], settings: dict[str, int], expected: int) -> None:
    assert term(ledger(release, cut=Parallelism(tensor=4), **settings), "swap_space").expected == expected * GIB


def test_sleep_keeps_weights_on_the_host_and_nothing_is_certain_before_somebody_asks() -> None:
    assert term(ledger(model=MODEL), "sleep").high == 0
    assert term(ledger(model=MODEL, sleep_mode=True), "sleep") == Interval(low=0, expected=64 * GIB, high=128 * GIB)


def test_weights_and_tokens_that_the_driver_pins_are_expected_and_not_certain() -> None:
    found = ledger(model=MODEL, cut=Parallelism(tensor=2))
    assert term(found, "offloaded_weights") == Interval(low=0, expected=8 * GIB, high=8 * GIB)
    assert term(found, "token_ids") == Interval(low=0, expected=600 * MIB, high=1024 * MIB)


@table(
    ("settings", "low", "expected"),
    [
        ({}, 0, 0),
        ({"safetensors_load_strategy": "lazy"}, 0, 0),
        ({"safetensors_load_strategy": "prefetch"}, 0, 0),
        ({"safetensors_load_strategy": "eager"}, 0, 10),
        ({"load_format": "pt"}, 0, 10),
        ({"load_format": "runai_streamer"}, 0, 10),
        ({"load_format": "fastsafetensors"}, 0, 1),
        ({"load_format": "gguf"}, 0, 1),
    ],
)
def test_staging_depends_on_the_loader(settings: dict[str, str], low: int, expected: int) -> None:
    found = term(ledger(model=MODEL, cut=Parallelism(tensor=2), **settings), "loading")
    assert (found.low, found.expected) == (low * GIB, expected * GIB)


def test_files_of_a_small_checkpoint_are_no_larger_than_the_checkpoint() -> None:
    small = replace(MODEL, checkpoint_bytes=GIB)
    assert term(ledger(model=small, safetensors_load_strategy="eager"), "loading").expected == GIB


def test_the_page_cache_is_wanted_and_not_needed() -> None:
    found = ledger(model=MODEL)
    assert [line.amount.expected for line in found.wanted] == [60 * GIB]
    assert "page_cache" not in [line.name for line in found.lines]
    assert ledger(model=MODEL, load_format="dummy").wanted == ()


@pytest.mark.parametrize(
    ("release", "cut", "settings", "caches"),
    [
        ((0, 33), {}, {}, 1),
        ((0, 33), {"data": 4}, {}, 4),
        ((0, 33), {}, {"api_server_count": 3}, 3),
        ((0, 10), {}, {}, 3),
        ((0, 33), {}, {"mm_processor_cache_bytes": 0}, 0),
        ((0, 33), {}, {"mm_processor_cache_type": "shm"}, 1),
    ],
)
def test_prepared_images_are_kept_by_process(
    release: tuple[int, int], cut: dict[str, int], settings: dict[str, Any], caches: int
) -> None:
    found = ledger(release, MODEL, cut=Parallelism(**cut), **settings)
    assert term(found, "mm_cache") == Interval(low=0, expected=4 * caches * GIB, high=4 * caches * GIB)
    is_shared = "mm_cache" in [line.name for line in found.shared]
    assert is_shared is (settings.get("mm_processor_cache_type") == "shm")


def test_a_model_of_texts_keeps_no_images() -> None:
    assert term(ledger(model=replace(MODEL, takes_media=False)), "mm_cache").high == 0


def test_caches_pass_through_the_host_where_their_buffer_is_there() -> None:
    through = (KVConnector(name="NixlConnector", buffer_on_host=True),)
    assert term(ledger(model=MODEL, kv_connectors=through), "transfer_buffers").expected == 40 * GIB


@table(
    ("release", "cut", "settings", "expected"),
    [
        ((0, 33), {"tensor": 2}, {}, 251_658_260),
        ((0, 27), {"tensor": 2}, {}, 251_658_260),
        ((0, 26), {"tensor": 2}, {}, 0),
        ((0, 33), {}, {}, 0),
        ((0, 33), {"data": 2}, {}, 0),
        ((0, 33), {"tensor": 2}, {"distributed_executor_backend": "ray"}, 0),
        ((0, 33), {"tensor": 2}, {"distributed_executor_backend": "mp"}, 251_658_260),
        ((0, 33), {"tensor": 2}, {"shm_tensor_arena": True}, 2 * GIB),
    ],
)
def test_the_largest_segment_decides_whether_vllm_starts(
    release: tuple[int, int], cut: dict[str, int], settings: dict[str, Any], expected: int
) -> None:
    found = ledger(release, cut=Parallelism(**cut), **settings)
    assert found.segment.amount.low == expected


def test_ranks_of_several_pods_reply_through_smaller_queues() -> None:
    found = ledger(cut=Parallelism(tensor=16), pod=PodMemory(num_pods=2))
    assert found.segment.amount.low == 0
    assert found.segment.amount.expected > 0


def test_the_ledger_of_a_budget_knows_its_model() -> None:
    request = new_request(offload=OffloadSettings(cpu_bytes=4 * GIB), tensor=2, max_num_seqs=256, max_model_len=4096)
    found = pod_ledger(plan(request))
    kept = plan(request).stages[0].ledger
    assert kept is not None
    assert term(found, "offloaded_weights").expected == 2 * kept.host_bytes.expected
    assert term(found, "token_ids").expected == 2 * 256 * 4096 * 4
    old = pod_ledger(plan(replace(request, vllm_version="0.20.0")))
    assert term(old, "token_ids").expected == 0


def test_a_model_with_images_and_one_whose_images_are_refused() -> None:
    shape = catalogue_shape("google/gemma-3-4b-it")
    assert term(pod_ledger(plan(new_request(shape=shape))), "mm_cache").expected == 4 * GIB
    assert term(pod_ledger(plan(new_request(shape=shape, language_model_only=True))), "mm_cache").expected == 0


def test_without_a_model_the_settings_alone_are_counted() -> None:
    settings = EngineSettings(
        offload=OffloadSettings(cpu_bytes=10 * GIB), host=HostSettings(kv_offloading_bytes=20 * GIB)
    )
    found = pod_ledger_without_model(settings, "0.33.0", PodMemory())
    assert term(found, "offloaded_weights") == Interval(low=0, expected=10 * GIB, high=20 * GIB)
    assert term(found, "kv_offload").low == 19 * GIB


def test_on_another_vendors_gpu_the_place_of_the_buffer_is_another() -> None:
    request = new_request(accelerator=new_accelerator(vendor="amd"), host=HostSettings(kv_offloading_bytes=20 * GIB))
    found = pod_ledger(plan(request))
    assert found.shared == ()
    assert term(found, "kv_offload").expected == 20 * GIB


def test_the_same_question_has_the_same_answer() -> None:
    assert ledger(kv_offloading_bytes=GIB) is ledger(kv_offloading_bytes=GIB)
