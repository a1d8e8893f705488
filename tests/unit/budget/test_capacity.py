"""What a pool of blocks holds: the longest request is found in a few steps, and no longer one would fit."""

import pytest
from msgspec.structs import replace

from kvgate.budget.answers.answer import Budget, CacheFigures, plan
from kvgate.budget.engine.request import Guarantee
from kvgate.budget.ground.interval import Verdict
from kvgate.budget.ground.units import GIB
from kvgate.budget.kv_cache import capacity
from kvgate.budget.kv_cache.capacity import KVCache, largest
from kvgate.budget.kv_cache.groups import Groups
from kvgate.budget.kv_cache.spec import Reach
from support.builders import catalogue_shape, new_request, new_workload
from support.tables import table

MODELS = {
    "full attention": "Qwen/Qwen3-8B",
    "windows beside full attention": "openai/gpt-oss-20b",
    "recurrent states beside full attention": "Qwen/Qwen3.5-27B",
}


def cache_of(model: str, **settings: object) -> tuple[KVCache, Budget]:
    budget = plan(new_request(**{"shape": catalogue_shape(model), "kv_cache_memory_bytes": 2 * GIB, **settings}))
    assert budget.kv_cache is not None
    return budget.kv_cache, budget


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("share", [0.03, 0.2, 0.9])
def test_the_longest_request_is_found_in_a_few_steps(model: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, _ = cache_of(model, max_model_len=131_072)
    num_blocks = max(12, int(share * cache.request_blocks))
    lengths: list[int] = []
    count = capacity.request_blocks

    def counted(groups: Groups, reach: Reach) -> int:
        lengths.append(reach.max_model_len)
        return count(groups, reach)

    monkeypatch.setattr(capacity, "request_blocks", counted)
    found = cache.max_model_len_that_fits(num_blocks, at_most=131_072)
    assert len(lengths) <= 16  # bisection alone takes 18 after both ends
    usable = num_blocks - cache.null_blocks
    assert found == 0 or cache.blocks_of(found) <= usable < cache.blocks_of(found + 1)


@table("guess", [0, 1, 500, 637, 638, 639, 1000, 5000])
@table("most", [0, 1, 7, 638, 999, 1000])
def test_the_largest_that_fits_does_not_depend_on_the_guess(most: int, guess: int) -> None:
    assert largest(1000, lambda number: number <= most, guess=guess) == most
    assert largest(1000, lambda number: number <= most, at_least=5, guess=guess) == (most if most >= 5 else 0)
    assert largest(4, lambda _: True, at_least=5, guess=guess) == 0


def test_the_size_of_the_cache_is_concurrency_times_length_rounded_down() -> None:
    cache, _ = cache_of("Qwen/Qwen3-8B", max_model_len=4096)
    assert cache.request_blocks == 256
    assert cache.num_tokens(1000) == 16_000
    odd, _ = cache_of("Qwen/Qwen3-8B", max_model_len=1000)  # 63 blocks of 16 tokens
    assert odd.num_tokens(100) == 1587  # 100 / 63 × 1000
    assert odd.max_concurrency(126) == 2


@pytest.mark.parametrize(("release", "stages"), [("0.13.0", 1), ("0.14.0", 4), ("0.16.0", 4), ("0.17.0", 1)])
def test_from_0_14_to_0_16_the_start_check_wants_the_caches_of_all_stages_on_one_rank(
    release: str, stages: int
) -> None:
    """`get_kv_cache_configs` of these releases; Qwen3-8B has 36 layers, so four stages have 9 each."""
    cache, budget = cache_of("Qwen/Qwen3-8B", max_model_len=32768, vllm_version=release, pipeline=4)
    assert budget.demand is not None
    assert cache.request_blocks == 2048
    assert budget.demand.startup_blocks == 2048 * stages
    assert budget.verdict is (Verdict.FITS if stages == 1 else Verdict.DOES_NOT_FIT)  # 1.125 or 4.5 GiB of 2 GiB
    longest = cache.max_model_len_that_fits(1820 * 2, at_most=32768)
    assert longest == (32768 if stages == 1 else 1820 * 2 // 4 * 16)


def test_one_stage_is_checked_alike_in_every_release() -> None:
    cache, budget = cache_of("Qwen/Qwen3-8B", max_model_len=8192, vllm_version="0.16.0")
    assert budget.demand is not None
    assert budget.demand.startup_blocks == cache.request_blocks == 512


@pytest.mark.parametrize(
    ("shared", "settings", "blocks"),
    [
        # 1000 tokens of the prompt and 24 of the output are 64 blocks of 16
        (0, {}, 4 * 64),
        (15, {}, 4 * 64),
        (16, {}, 4 * 63 + 1),
        (500, {}, 4 * (64 - 31) + 31),
        (2000, {}, 4 * (64 - 62) + 62),  # no more than the prompt
        (500, {"enable_prefix_caching": False}, 4 * 64),
    ],
)
def test_whole_blocks_of_a_shared_prefix_are_held_once(shared: int, settings: dict[str, bool], blocks: int) -> None:
    """`HybridKVCacheCoordinator`: a prefix is found again in whole blocks."""
    _, budget = cache_of(
        "Qwen/Qwen3-8B", max_model_len=1024, guarantee=Guarantee.WORKLOAD, workload=new_workload(shared_prefix_tokens=shared),
        **settings,
    )  # fmt: skip
    assert budget.demand is not None
    assert (budget.demand.requests, budget.demand.blocks) == (4, blocks)


def test_guarantees_demand_one_request_or_all() -> None:
    def demand(guarantee: Guarantee, **more: object) -> tuple[int, int]:
        _, budget = cache_of("Qwen/Qwen3-8B", max_model_len=1000, max_num_seqs=8, guarantee=guarantee, **more)
        assert budget.demand is not None
        return budget.demand.requests, budget.demand.blocks

    assert demand(Guarantee.STARTUP) == (1, 63)
    assert demand(Guarantee.FULL_CONTEXT) == (8, 8 * 63)
    assert demand(Guarantee.WORKLOAD) == (1, 63)  # nobody says what the load is
    small = new_workload(peak_concurrency=2, prompt_tokens=100, output_tokens=12)
    assert demand(Guarantee.WORKLOAD, workload=small) == (2, 63)  # vLLM checks one request of the full length


def test_the_figures_of_a_report_follow_from_blocks_and_the_guarantee() -> None:
    """Headroom is (capacity − demand of the guarantee) / capacity: one request at Startup, max_num_seqs of them at FullContext."""
    asked = {"kv_cache_memory_bytes": 8 * GIB, "max_model_len": 16_384, "max_num_seqs": 3}
    cache, starts = cache_of("Qwen/Qwen3-8B", **asked, guarantee=Guarantee.STARTUP)
    full = plan(replace(starts.request, guarantee=Guarantee.FULL_CONTEXT)).figures
    assert starts.figures.kv_cache_bytes == 8 * GIB
    assert starts.figures.max_concurrency == pytest.approx(8 * GIB / cache.request_bytes, rel=1e-3)
    for figures, requests in ((starts.figures, 1), (full, 3)):
        assert figures.headroom_bytes is not None
        assert figures.headroom_ratio == pytest.approx(1 - requests * cache.request_bytes / (8 * GIB), abs=1e-3)
    assert full.headroom_bytes == (starts.figures.headroom_bytes or 0) - 2 * cache.request_bytes


def test_figures_that_are_not_known_are_none_and_a_model_without_a_cache_has_no_requests() -> None:
    assert (
        plan(new_request(shape=replace(catalogue_shape("Qwen/Qwen3-8B"), unmodelled=("a part",)))).figures
        == CacheFigures()
    )
    assert plan(new_request(shape=catalogue_shape("BAAI/bge-m3"))).figures.max_concurrency is None
