"""Attention layers that a class builds without the settings of the cache, in a made-up tree."""

import pytest

from support.vllm_source import new_source
from vllm_release.plain_caches import read_plain_caches
from vllm_release.source import NotRead, Source


def test_the_argument_is_lost_in_a_branch_in_all_branches_or_by_the_class_that_builds_the_layer() -> None:
    """C names A's class by its architecture; its own layer is given what it needs, and an encoder keeps nothing."""
    assert read_plain_caches(new_source()) == {
        ("AForCausalLM", "config.rotates"), ("BModel", ""), ("C", "config.rotates"),
    }  # fmt: skip


def test_a_layer_that_is_given_the_argument_is_no_finding() -> None:
    mended = new_source(a=("Attention(config.heads)", "Attention(config.heads, cache_config)"))
    assert {name for name, _ in read_plain_caches(mended)} == {"BModel"}


def test_a_private_class_is_followed_too() -> None:
    broken = new_source(
        a=("config, cache_config=vllm_config.cache_config)\n        self.text", "config)\n        self.text")
    )
    assert ("C", "") in read_plain_caches(broken)


def test_one_branch_of_two_has_its_test() -> None:
    mended = new_source(a=("Whole(vllm_config.config, None)", "Whole(vllm_config.config, vllm_config.cache_config)"))
    assert ("BModel", "vllm_config.drafts") in read_plain_caches(mended)


def test_what_a_call_hands_over_by_stars_may_hold_the_argument() -> None:
    mended = new_source(a=("Attention(config.heads)", "Attention(**kwargs)"))
    assert {name for name, _ in read_plain_caches(mended)} == {"BModel"}


def test_a_registry_without_classes_is_told() -> None:
    with pytest.raises(NotRead, match="names no class"):
        read_plain_caches(Source("0.34.0", {"vllm/model_executor/models/registry.py": "_VLLM_MODELS = {}\n"}))
