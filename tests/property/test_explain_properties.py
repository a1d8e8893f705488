"""What holds for every model and workload: nothing is wasted below zero, pages give no less than slots, every byte is explained."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.ground.units import GIB
from kvgate.explained.explanations import TERMS, explain_term
from kvgate.explained.paging import default_lengths, paging_of
from kvgate.explained.textbook import textbook_of
from support.builders import catalogue_accelerator, catalogue_shape, new_request

pytestmark = pytest.mark.slow

settings.register_profile("kvgate", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("kvgate")

MODELS = (
    "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-70B-Instruct", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "ai21labs/Jamba-v0.1", "google/gemma-2-27b-it", "openai/gpt-oss-20b", "state-spaces/mamba-2.8b-hf",
    "LiquidAI/LFM2-1.2B", "deepseek-ai/DeepSeek-V3.2",
)  # fmt: skip


@st.composite
def budgets(draw: st.DrawFn) -> Budget:
    """Of cache memory that is given, so that small pools are met as well."""
    return plan(
        new_request(
            shape=catalogue_shape(draw(st.sampled_from(MODELS))),
            accelerator=catalogue_accelerator(draw(st.sampled_from(["H100-SXM-80GB", "B200-SXM-180GB", "L40S-48GB"]))),
            max_model_len=draw(st.integers(1, 131_072)),
            kv_cache_memory_bytes=draw(st.integers(1, 64)) * GIB,
            block_size=draw(st.sampled_from([None, 16, 64, 256])),
            kv_cache_dtype=draw(st.sampled_from(["auto", "fp8"])),
            tensor=draw(st.sampled_from([1, 2])),
            pipeline=draw(st.sampled_from([1, 2])),
        )
    )


@given(budget=budgets(), share=st.integers(1, 1000))
def test_blocks_hold_what_a_request_needs_and_pages_give_no_less_than_slots(budget: Budget, share: int) -> None:
    longest = budget.resolved.max_model_len
    sizes = paging_of(budget, (max(1, longest * share // 1000), longest))
    assert sum(size.in_use for size in sizes) == bool(sizes)
    for size in sizes:
        short, whole = size.requests
        for request in size.requests:
            assert request.wasted_bytes >= 0
            assert 0 <= request.wasted_tokens < max(1, size.block_size)
        assert short.held_bytes <= whole.held_bytes
        assert size.static_slots is not None
        assert short.requests is not None
        assert whole.requests is not None
        assert size.static_slots <= whole.requests <= short.requests
        assert whole.held_bytes + whole.wasted_bytes == size.slot_bytes


@given(budget=budgets())
def test_the_textbook_holds_or_there_is_a_reason(budget: Budget) -> None:
    textbook, kv_cache = textbook_of(budget), budget.kv_cache
    if textbook is None or textbook.reasons or kv_cache is None:
        return
    assert 0 <= kv_cache.request_bytes - textbook.request_bytes < kv_cache.bytes_per_block


LINES_OF_SOME = {"lora"}
"""Terms of the ledger that only some engines have."""


@given(budget=budgets(), term=st.sampled_from(sorted(TERMS)))
def test_every_figure_can_be_explained_or_is_not_known(budget: Budget, term: str) -> None:
    told = explain_term(budget, term)
    if told is None:
        assert term in LINES_OF_SOME or budget.unmodelled or budget.kv_cache is None
        return
    assert told.amount.low <= told.amount.expected <= told.amount.high
    assert not told.parts or sum(part.size_bytes for part in told.parts) == told.amount.expected


@given(longest=st.integers(1, 10_000_000))
def test_lengths_that_nobody_names_are_possible_ones(longest: int) -> None:
    lengths = default_lengths(longest)
    assert list(lengths) == sorted(set(lengths))
    assert lengths[0] >= 1
    assert lengths[-1] == longest
