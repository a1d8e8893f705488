"""The values that pods are rendered from: what was judged, and the spec's own where nothing could be."""

from typing import Any

import pytest

from kvgate.judgement.assess import chosen_settings, effective_values
from support.admissions import assessment_of
from support.manifests import an_owner

LARGE = {"vllm": {"maxNumSeqs": 64}}


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ({}, (40960, 4, "auto")),
        ({**LARGE, "admission": {"policy": "Adjust"}}, (40960, 9, "auto")),
        ({**LARGE, "admission": {"policy": "Warn"}}, (40960, 64, "auto")),
        ({"model": {"name": "nobody/novel-7b"}}, (None, 4, "auto")),
        ({"model": {"name": "nobody/novel-7b"}, "vllm": {"maxModelLen": "auto"}}, (None, None, "auto")),
        (
            {"accelerator": {"type": "H900-1TB"}, "vllm": {"maxModelLen": 8192, "kvCacheDtype": "fp8"}},
            (8192, None, "fp8"),
        ),
    ],
    ids=["as written", "adjusted", "warned", "unknown model", "unknown model, auto", "unknown GPU"],
)
def test_values_are_those_of_the_judgement_or_of_the_spec(spec: dict[str, Any], values: tuple[Any, ...]) -> None:
    effective = effective_values(an_owner(**spec).spec, assessment_of(**spec))
    assert (effective.max_model_len, effective.max_num_seqs, effective.kv_cache_dtype) == values


@pytest.mark.parametrize(
    ("spec", "field"),
    [({"admission": {"capacity": "Pinned"}}, "kv_cache_memory_bytes"), ({}, None)],
)
def test_a_pinned_size_is_a_value_and_a_measured_one_is_none(spec: dict[str, Any], field: str | None) -> None:
    effective = effective_values(an_owner(**spec).spec, assessment_of(**spec))
    sizes = {name: getattr(effective, name) for name in ("kv_cache_memory_bytes", "num_gpu_blocks_override")}
    assert [name for name, size in sizes.items() if size] == ([field] if field else [])


def test_a_number_of_sequences_that_the_spec_leaves_out_is_chosen() -> None:
    left_out: dict[str, Any] = {"vllm": {"maxModelLen": 8192}}
    effective = effective_values(an_owner(**left_out).spec, assessment_of(**left_out))
    assert effective.max_num_seqs
    assert chosen_settings(an_owner(**left_out).spec, effective.max_num_seqs) == ("max_num_seqs",)
    assert chosen_settings(an_owner().spec, 4) == ()
    unknown: dict[str, Any] = {**left_out, "model": {"name": "nobody/novel-7b"}}
    assert chosen_settings(an_owner(**unknown).spec, None) == ()
