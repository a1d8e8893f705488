"""One table of settings: everything else derives from its rows, or is held against them here."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import fields

from kvgate.api.crd import structural_schema
from kvgate.api.v1alpha1 import Vllm
from kvgate.budget import accounting_of
from kvgate.budget.engine.circumstances import Circumstances
from kvgate.budget.engine.request import EngineSettings, LoraSettings, OffloadSettings
from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.host.settings import HostSettings
from kvgate.vllm.given_settings import engine_settings, unmodelled_kinds
from kvgate.vllm.options import Option, options
from kvgate.vllm.pod_options import owned_flag
from kvgate.vllm.settings import SETTINGS, SPEC_SETTINGS, SWEPT, WHAT_IFS, Owner, Setting
from kvgate.vllm.values import UnusableValue, truth
from support.tables import table

FACTS = {
    "capacity",
    "checkpoint_bytes",
    "chunks_beside_manager",
    "compile_cache",
    "draft_config",
    "estimates_graphs",
    "expandable_segments",
    "gpu",
    "gpu_memory_bytes",
    "host_memory_limit_bytes",
    "installed_by",
    "links",
    "lmcache_max_local_cpu_size",
    "model_config",
    "node_memory_bytes",
    "sampler",
    "shared_by",
    "shm_bytes",
    "simple_kv_offload",
    "usage_context",
    "use_flashinfer_sampler",
    "use_v1",
    "use_v2_model_runner",
    "vllm_version",
    "weights_bytes",
}
"""Rows that are no options of vLLM."""
CRD = structural_schema(Vllm)["properties"]


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def named(setting: Setting) -> str:
    return setting.name


def test_no_two_rows_share_a_name_or_a_flag() -> None:
    shared = Counter(flag for setting in SETTINGS for flag in (setting.name, *setting.flags))
    assert [flag for flag, count in shared.items() if count > 1] == []


def test_every_field_of_the_budget_has_one_row() -> None:
    groups = {
        "parallelism": Parallelism,
        "lora": LoraSettings,
        "offload": OffloadSettings,
        "circumstances": Circumstances,
        "host": HostSettings,
    }
    written = {f"{name}.{each.name}" for name, record in groups.items() for each in fields(record)}
    written |= {each.name for each in fields(EngineSettings)} - set(groups)
    assert sorted(setting.budget for setting in SETTINGS if setting.budget) == sorted(written)


def test_every_field_of_the_spec_has_one_row() -> None:
    own = {"version", "image", "extra_args"}
    assert {each.name for each in SPEC_SETTINGS} - {
        "model",
        "revision",
        "served_model_name",
    } == Vllm.model_fields.keys() - own


@pytest.mark.parametrize(
    "setting", [each for each in SPEC_SETTINGS if "maximum" in CRD.get(camel(each.name), {})], ids=named
)
def test_the_spec_and_a_what_if_have_the_same_limits(setting: Setting) -> None:
    field = CRD[camel(setting.name)]
    assert [setting.read(field[end]) for end in ("minimum", "maximum")] == [field["minimum"], field["maximum"]]
    for beyond in (field["minimum"] - 1, field["maximum"] + 1):
        with pytest.raises(UnusableValue, match="it must be"):
            setting.read(beyond)


@table("setting", [each for each in SETTINGS if each.name not in {*FACTS, "lora_config"}], ids=named)
def test_a_row_has_the_names_that_some_release_of_vllm_has(setting: Setting) -> None:
    option = options()[setting.flag]
    assert option.dest == setting.name
    known = {option.flag, *(alias for _, names in option.aliases for alias in names), *negated(option)}
    abbreviations = {spelling for spelling in setting.spellings if option.flag.startswith(spelling)}
    assert set(setting.flags) <= known | abbreviations


def negated(option: Option) -> set[str]:
    return {f"--no-{option.flag[2:]}"} if any(is_there for _, is_there in option.negatable) else set()


@table("setting", WHAT_IFS, ids=named)
def test_a_switch_is_read_as_a_truth_value_and_nothing_else_is(setting: Setting) -> None:
    assert setting.is_switch is (setting.read is truth)
    assert setting.help.endswith((".", "…"))


@pytest.mark.parametrize("value", [{}, [], {"a": 1}])
def test_an_axis_is_neither_an_object_nor_a_list(value: Any) -> None:
    taken = set()
    for name, setting in SWEPT.items():
        try:
            setting.read(value)
        except UnusableValue:
            continue
        taken.add(name)
    assert taken <= {"optimization_level"}  # `-O.mode` once meant a key of the compilation config


def test_extra_args_may_hold_what_nobody_else_owns() -> None:
    for setting in (each for each in SETTINGS if each.name not in FACTS):
        assert owned_flag(setting.flag) is (setting.owner is not Owner.USER)


def test_settings_that_are_not_given_are_vllms_defaults() -> None:
    assert engine_settings({}) == EngineSettings()
    assert engine_settings({"tensor_parallel_size": 2, "gpu": "L4"}).parallelism == Parallelism(tensor=2)


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        ({"load_format": "bitsandbytes", "quantization": "bitsandbytes"}, ()),
        ({"load_format": "bitsandbytes"}, ("a load format of its own",)),
        ({"load_format": "sharded_state", "quantization": "bitsandbytes"}, ("a load format of its own",)),
    ],
)
def test_bitsandbytes_loads_what_that_quantization_says(given: dict[str, str], kinds: tuple[str, ...]) -> None:
    assert unmodelled_kinds(given, accounting_of("0.20.0")) == kinds
