"""Ways in which recurrent states are kept for cached prefixes (`mamba_cache_mode`), by release and by kernel."""

from typing import Any

import pytest

from kvgate.budget.answers.answer import Budget
from kvgate.findings.finding import Severity
from kvgate.judgement.what_if import assess_request
from support.tables import table

NANO = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
GRANITE = "ibm-granite/granite-4.0-h-small"
QWEN = "Qwen/Qwen3.5-27B"


def budget_of(model: str, version: str, **settings: Any) -> Budget:
    common = {"gpu": "NVIDIA H100 80GB HBM3", "kv_cache_memory_bytes": 20 * 2**30, "max_model_len": 32_768}
    budget = assess_request({**common, "model": model, "vllm_version": version, **settings}).budget
    assert budget is not None
    return budget


def pages(budget: Budget) -> set[tuple[int, int]]:
    """(tokens, bytes) of a page of each group."""
    assert budget.kv_cache is not None
    return {(group.spec.block_size, group.spec.page_size_bytes) for group in budget.kv_cache.groups}


@table(
    ("model", "tensor", "mode", "page"),
    [
        (NANO, 1, "all", (2176, 2_228_224)),
        (NANO, 1, "align", (2096, 2_146_304)),
        (NANO, 2, "all", (2176, 1_114_112)),
        (NANO, 2, "align", (2096, 1_073_152)),
        (GRANITE, 1, "all", (768, 3_145_728)),
        (GRANITE, 1, "align", (528, 2_162_688)),
        (GRANITE, 2, "all", (768, 1_572_864)),
        (GRANITE, 2, "align", (528, 1_081_344)),
    ],
)
def test_a_block_is_a_multiple_of_the_kernels_chunk_where_every_block_keeps_a_state(
    model: str, tensor: int, mode: str, page: tuple[int, int]
) -> None:
    """Pages as vLLM 0.30.0's own `Platform._align_hybrid_block_size` computes them."""
    budget = budget_of(model, "0.30.0", mamba_cache_mode=mode, tensor_parallel_size=tensor)
    assert pages(budget) == {page}


@table(
    ("model", "version", "settings", "mode"),
    [
        (NANO, "0.11.0", {"enable_prefix_caching": True}, "none"),
        (NANO, "0.14.0", {"enable_prefix_caching": True}, "all"),
        (QWEN, "0.14.0", {"enable_prefix_caching": True}, "none"),
        (NANO, "0.25.0", {}, "none"),
        (NANO, "0.25.0", {"enable_prefix_caching": True}, "all"),
        (NANO, "0.27.1", {}, "all"),
        (NANO, "0.27.1", {"mamba_cache_mode": "none"}, "all"),
        (NANO, "0.27.1", {"mamba_cache_mode": "align"}, "align"),
        (NANO, "0.27.1", {"enable_prefix_caching": False, "mamba_cache_mode": "all"}, "none"),
        (QWEN, "0.27.1", {"mamba_cache_mode": "all"}, "align"),
        (NANO, "0.28.0", {}, "align"),
        (NANO, "0.31.0", {"mamba_cache_mode": "all"}, "all"),
        (NANO, "0.32.0", {}, "align"),
        (NANO, "0.33.0", {"mamba_cache_mode": "none"}, "align"),
    ],
)
def test_the_mode_that_a_release_takes(model: str, version: str, settings: dict[str, Any], mode: str) -> None:
    assert budget_of(model, version, **settings).resolved.state_mode == mode


@pytest.mark.parametrize(("max_model_len", "states"), [(2176, 1), (2177, 2), (32_768, 16)])
def test_a_request_holds_one_state_for_every_block(max_model_len: int, states: int) -> None:
    """vLLM 0.27.1 and 0.30.0, `MambaSpec.max_memory_usage_bytes`: max_model_len ÷ block size, rounded up."""
    budget = budget_of(NANO, "0.27.1", max_model_len=max_model_len)
    assert budget.kv_cache is not None
    assert {group.spec.blocks(budget.kv_cache.reach) for group in budget.kv_cache.groups} == {states}


def test_releases_that_no_longer_have_the_mode_refuse_it() -> None:
    answer = assess_request(
        {"model": NANO, "gpu": "H100-SXM-80GB", "vllm_version": "0.32.0", "mamba_cache_mode": "all"}
    )
    assert {each.rule.id for each in answer.findings if each.severity is Severity.ERROR} == {"OptionValue"}
