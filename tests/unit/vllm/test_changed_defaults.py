"""Defaults that a change of release brings: what the parsers state, and what vLLM makes of GPU and model."""

from typing import Any

import pytest

from kvgate.budget.engine.request import BudgetRequest
from kvgate.vllm.options import changed_defaults, options
from support.builders import catalogue_accelerator, catalogue_shape, new_request
from support.tables import table


def told(before: str, after: str, *is_set: str, request: BudgetRequest | None = None) -> dict[str, tuple[Any, Any]]:
    changed = changed_defaults(before, after, is_set=is_set, request=request)
    return {each.flag: (each.before, each.after) for each in changed}


@pytest.mark.parametrize(
    ("before", "after", "flag", "values"),
    [
        ("0.19.1", "0.20.0", "--gpu-memory-utilization", (0.9, 0.92)),
        ("0.20.0", "0.19.1", "--gpu-memory-utilization", (0.92, 0.9)),
        ("0.13.0", "0.14.1", "--async-scheduling", (False, None)),
        ("0.9.2", "0.10.2", "--prefix-caching-hash-algo", ("builtin", "sha256")),
    ],
)
def test_what_the_parsers_state(before: str, after: str, flag: str, values: tuple[Any, Any]) -> None:
    assert told(before, after)[flag] == values


def test_what_is_set_is_not_told() -> None:
    assert "--gpu-memory-utilization" not in told("0.19.1", "0.20.0", "gpu_memory_utilization")


def test_nothing_is_written_in_several_ways_and_is_no_change() -> None:
    assert options()["--additional-config"].defaults == (((0, 8, 5), None), ((0, 9, 2), {}))
    assert "--additional-config" not in told("0.8.5", "0.9.2")


@pytest.mark.parametrize(
    ("before", "after", "flag"),
    [
        ("0.9.2", "0.10.2", "--eplb-step-interval"),  # deprecated in 0.10.2
        ("0.10.2", "0.20.0", "--guided-decoding-backend"),  # gone since 0.12
        ("0.8.5", "0.20.0", "--mamba-cache-mode"),  # not there yet
    ],
)
def test_options_that_one_release_lacks_or_drops_are_others_business(before: str, after: str, flag: str) -> None:
    assert flag in options()
    assert flag not in told(before, after)


@table(
    ("before", "after", "flag", "known"),
    [
        ("0.13.0", "0.14.1", "--async-scheduling", True),
        ("0.13.0", "0.14.0", "--async-scheduling", False),
        ("0.14.0", "0.15.1", "--async-scheduling", False),
        ("0.11.2", "0.12.0", "--seed", False),
        ("0.19.0", "0.21.0", "--gpu-memory-utilization", True),
        ("0.19.1", "0.19.2", "--gpu-memory-utilization", False),
        ("0.24.0", "0.26.0", "--enable-prefix-caching", True),
        ("0.24.0", "0.25.0", "--enable-prefix-caching", False),
        ("0.25.0", "0.26.0", "--enable-prefix-caching", False),
    ],
)
def test_nothing_is_claimed_of_a_release_between_two_that_differ(
    before: str, after: str, flag: str, *, known: bool
) -> None:
    hybrid = new_request(shape=catalogue_shape("Qwen/Qwen3.6-27B"))
    assert (flag in told(before, after, request=hybrid)) is known


def test_the_gpu_decides_defaults_that_no_parser_states() -> None:
    on_b200 = new_request(accelerator=catalogue_accelerator("B200-SXM-180GB"))
    on_l4 = new_request(accelerator=catalogue_accelerator("L4-24GB"))
    assert told("0.27.1", "0.28.0", request=on_b200)["--max-num-batched-tokens"] == (8192, 16384)
    assert "--max-num-batched-tokens" not in told("0.27.1", "0.28.0", request=on_l4)


def test_the_model_decides_too() -> None:
    hybrid = new_request(shape=catalogue_shape("Qwen/Qwen3.6-27B"))
    assert told("0.24.0", "0.26.0", request=hybrid)["--enable-prefix-caching"] == (False, True)
    assert "--enable-prefix-caching" not in told("0.24.0", "0.26.0", request=new_request())


def test_a_setting_that_limits_a_default_does_so_in_both_releases() -> None:
    limits = {"max_num_seqs": 4, "max_model_len": 1024}
    short = new_request(accelerator=catalogue_accelerator("B200-SXM-180GB"), **limits)
    assert "--max-num-batched-tokens" not in told("0.27.1", "0.28.0", *limits, request=short)


def test_those_that_move_memory_come_first() -> None:
    flags = list(told("0.11.0", "0.20.0"))
    assert flags[:3] == ["--async-scheduling", "--disable-hybrid-kv-cache-manager", "--gpu-memory-utilization"]
    assert "--seed" in flags[3:]


def test_the_same_release_changes_nothing() -> None:
    assert told("0.20.0", "0.20.0") == {}
