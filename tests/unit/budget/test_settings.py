"""Defaults that a model's media raise."""

import pytest

from kvgate.budget.settings import resolve_settings
from kvgate.budget.versions import accounting_of
from support.builders import catalogue_accelerator, catalogue_shape, new_request


@pytest.mark.parametrize(
    ("model", "version", "batched"),
    [
        ("google/gemma-4-26B-A4B-it", "0.25.1", 2496),  # as its concurrency in a public log says
        ("google/gemma-4-26B-A4B-it", "0.24.0", 2048),
        ("google/gemma-4-E4B-it", "0.25.1", 2048),  # its images do not attend both ways
    ],
)
def test_a_defaulted_batch_holds_an_item_that_nobody_may_cut(model: str, version: str, batched: int) -> None:
    request = new_request(
        shape=catalogue_shape(model), accelerator=catalogue_accelerator("L40S-48GB"), vllm_version=version
    )
    assert resolve_settings(request, accounting_of(version)).max_num_batched_tokens == batched
