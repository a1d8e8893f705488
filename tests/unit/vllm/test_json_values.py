"""Readers of objects: every form that vLLM takes is read, and all problems are told at once."""

import pytest

from kvgate.budget.engine.request import Speculation
from kvgate.vllm.json_values import graph_settings, item_limits, speculation
from kvgate.vllm.values import UnusableValue
from support.tables import table


@pytest.mark.parametrize("value", ["mtp", "[1]", 3, {"num_speculative_tokens": -1}, {"num_speculative_tokens": True}])
def test_what_is_no_speculation_is_told_so(value: object) -> None:
    with pytest.raises(UnusableValue):
        speculation(value)


@pytest.mark.parametrize(
    ("config", "read"),
    [
        ({"model": "x/y", "num_speculative_tokens": 3}, Speculation(model="x/y", num_speculative_tokens=3)),
        ({"model": "[ngram]", "num_speculative_tokens": 3}, Speculation(method="ngram", num_speculative_tokens=3)),
        ({"model": "team.drafts.Mine", "num_speculative_tokens": "2"},
         Speculation(method="custom_class", model="team.drafts.Mine", num_speculative_tokens=2)),
        ({"method": "deepseek_mtp", "num_speculative_tokens": 1}, Speculation(method="mtp", num_speculative_tokens=1)),
        ({"method": "eagle3", "model": "a/b", "num-speculative-tokens": 5, "draft_tensor_parallel_size": 1, "quantization": "fp8",
          "max_model_len": 4096, "revision": "v2", "kv_cache_dtype": "fp8", "parallel_drafting": "true",
          "draft_sample_method": "probabilistic"},
         Speculation(method="eagle3", model="a/b", num_speculative_tokens=5, draft_tensor_parallel_size=1, quantization="fp8",
                     max_model_len=4096, revision="v2", kv_cache_dtype="fp8", parallel_drafting=True, draws_probabilities=True)),
    ],
)  # fmt: skip
def test_a_speculative_config_is_read_with_the_method_that_its_name_decides(
    config: dict[str, object], read: Speculation
) -> None:
    assert speculation(config) == read


@pytest.mark.parametrize(
    ("inductor", "tries"),
    [
        (None, None),
        ({"max_autotune": True}, None),
        ({"combo_kernels": False}, False),
        ({"benchmark_combo_kernel": False}, False),
        ({"combo_kernels": True}, False),
        ({"combo_kernels": True, "benchmark_combo_kernel": True}, True),
        ("text", None),
    ],
)
def test_a_compiler_tries_kernels_as_the_user_says(inductor: object, *, tries: bool | None) -> None:
    assert graph_settings({"inductor_compile_config": inductor}).tries_kernels is tries


@pytest.mark.parametrize(
    "value", [{"image": 2, "video": 0}, '{"image": 2, "video": 0}', "image=2,video=0", "{'image': 2, 'video': 0}"]
)
def test_limits_of_items_are_read_in_every_form_that_vllm_takes_or_prints(value: object) -> None:
    assert item_limits(value) == (("image", 2), ("video", 0))


@pytest.mark.parametrize("value", ["{'image': many}", "'", "image", 7])
def test_what_is_no_limit_of_items_is_told_so(value: object) -> None:
    with pytest.raises(UnusableValue):
        item_limits(value)


def test_every_problem_of_a_speculative_config_is_told_at_once() -> None:
    wrong = {
        "method": "eagel", "model": 7, "num_speculative_tokens": 0, "draft_tensor_parallel_size": "two", "parallel_drafting": "maybe",
        "tensor_parallel_size": 2, "quantization": "x" * 501,
    }  # fmt: skip
    with pytest.raises(UnusableValue) as raised:
        speculation(wrong)
    for part in ("method 'eagel'", "model must be a text", "num_speculative_tokens must be at least 1",
                 "draft_tensor_parallel_size must be",
                 "parallel_drafting must be true or false", "it must be draft_tensor_parallel_size",
                 "quantization must be a text"):  # fmt: skip
        assert part in str(raised.value)


@pytest.mark.parametrize("method", ["eagle", "eagle3", "draft_model", "medusa"])
def test_a_method_of_another_model_needs_its_name(method: str) -> None:
    with pytest.raises(UnusableValue, match="needs the name of a model"):
        speculation({"method": method, "num_speculative_tokens": 3})


@table(
    ("config", "compiles"),
    [
        ({"mode": 0}, False),
        ({"level": 0}, False),
        ({"mode": "none"}, False),
        ({"mode": 3}, True),
        ({"mode": "VLLM_COMPILE"}, True),
        ({"mode": 1}, None),
        ({"mode": None}, None),
        ({}, None),
    ],
)
def test_a_mode_of_compilation_is_certain_or_left_open(config: dict[str, object], compiles: bool | None) -> None:  # noqa: FBT001
    assert graph_settings(config).compiles is compiles
