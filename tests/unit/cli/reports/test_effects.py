"""Each setting that differs is applied alone to the engine before the change."""

import pytest

from kvgate.budget import plan
from kvgate.budget.ground.hardware import Parallelism
from kvgate.cli.reports.difference import effects_between
from kvgate.cli.reports.records import EffectRecord
from support.builders import new_request

BASE = new_request()


def effects(**changes: object) -> dict[str, EffectRecord]:
    return {each.setting: each for each in effects_between(plan(BASE), plan(BASE.with_settings(**changes)))}


def test_equal_engines_have_no_effects() -> None:
    assert effects() == {}
    assert effects_between(plan(BASE), None) == ()


def test_each_of_several_settings_is_judged_alone() -> None:
    found = effects(kv_cache_dtype="fp8", max_num_seqs=512, parallelism=Parallelism(tensor=2))
    assert set(found) == {"kv_cache_dtype", "max_num_seqs", "tensor_parallel_size"}
    base = plan(BASE).figures.num_tokens
    assert base
    cache = found["kv_cache_dtype"]
    assert (cache.before, cache.after) == ("auto", "fp8")
    assert cache.tokens == plan(BASE.with_settings(kv_cache_dtype="fp8")).figures.num_tokens
    assert cache.tokens == pytest.approx(2 * base, rel=0.01)
    for each in found.values():
        assert each.tokens is not None
        assert each.change_tokens == each.tokens - base


def test_one_setting_alone_explains_all_of_the_change() -> None:
    (only,) = effects(gpu_memory_utilization=BASE.settings.gpu_memory_utilization, enforce_eager=True).values()
    assert only.setting == "enforce_eager"
    assert only.tokens == plan(BASE.with_settings(enforce_eager=True)).figures.num_tokens
