"""Options that shape the cache: what vLLM's parser would read from a command line, and what a what-if may say."""

from typing import Any

import pytest

from kvgate.budget.request import EngineSettings, GraphSettings, Speculation
from kvgate.cache_flags import CACHE_FLAGS, cache_settings, speculation
from kvgate.vllm_flags import owned_flag
from kvgate.vllm_values import Unusable


def test_every_flag_sets_a_field_of_the_engine() -> None:
    assert {flag.setting for flag in CACHE_FLAGS} <= set(EngineSettings.__slots__)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {}),
        (["--seed=1", "--max-logprobs", "3"], {}),
        (["--disable-hybrid-kv-cache-manager"], {"disable_hybrid_kv_cache_manager": True}),
        (["--no-async-scheduling"], {"async_scheduling": False}),
        (["--async_scheduling", "--seed=1"], {"async_scheduling": True}),
        (["--mamba-ssm-cache-dtype=float32"], {"mamba_ssm_cache_dtype": "float32"}),
        (["--mamba_cache_dtype", "bfloat16"], {"mamba_cache_dtype": "bfloat16"}),
        (["--mamba-cache-dtype", "fp9"], {}),
        (["--mm-encoder-tp-mode=data"], {"mm_encoder_tp_mode": "data"}),
        (["--mamba-cache-dtype"], {}),
        (["--mamba-block-size", "1024", "--mamba-cache-mode=none"], {"mamba_block_size": 1024, "mamba_cache_mode": "none"}),
        (["--kv-cache-dtype-skip-layers", "0", "1", "--seed=1"], {"kv_cache_dtype_skip_layers": ("0", "1")}),
        (["--kv-cache-dtype-skip-layers=sliding_window"], {"kv_cache_dtype_skip_layers": ("sliding_window",)}),
        (
            ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}'],
            {"speculation": Speculation(method="mtp", num_speculative_tokens=2)},
        ),
        (
            ["--spec-method=mtp", "--spec-tokens", "2"],
            {"speculation": Speculation(method="mtp", num_speculative_tokens=2)},
        ),
        (
            ["--spec-method=mtp", '--speculative-config={"method": "ngram"}'],
            {"speculation": Speculation(method="ngram", num_speculative_tokens=0)},
        ),
        (["--language-model-only"], {"language_model_only": True}),
        (["--skip-mm-profiling", "--seed=1"], {"skip_mm_profiling": True}),
        (["--limit-mm-per-prompt", '{"image": 2, "video": {"count": 0}}'], {"limit_mm_per_prompt": (("image", 2), ("video", 0))}),
        (["--limit-mm-per-prompt=image=0,video=1"], {"limit_mm_per_prompt": (("image", 0), ("video", 1))}),
        (["--limit-mm-per-prompt", "image=many"], {}),
        (["--compilation-config", '{"cudagraph_mode": "piecewise"}'], {"graphs": GraphSettings(mode="PIECEWISE")}),
        (["--compilation-config=0"], {"graphs": GraphSettings(mode="NONE")}),
        (['--compilation-config={"cudagraph_capture_sizes": ["1", "2"]}'], {"graphs": GraphSettings(capture_sizes=(1, 2))}),
        (["--compilation-config=3"], {"graphs": GraphSettings()}),
        (["--compilation-config", '{"cudagraph_capture_sizes": [1, 2], "max_cudagraph_capture_size": 2}'],
         {"graphs": GraphSettings(capture_sizes=(1, 2), max_capture_size=2)}),
        (["--compilation-config", '{"cudagraph_mode": "SOMETIMES"}'], {}),
        (["--compilation-config", '{"cudagraph_capture_sizes": 8}'], {}),
    ],
)  # fmt: skip
def test_arguments_are_read_as_vllm_reads_them(arguments: list[str], expected: dict[str, Any]) -> None:
    assert cache_settings(arguments) == expected


@pytest.mark.parametrize("value", ["mtp", "[1]", 3, {"num_speculative_tokens": -1}, {"num_speculative_tokens": True}])
def test_what_is_no_speculation_is_told_so(value: object) -> None:
    with pytest.raises(Unusable):
        speculation(value)


def test_a_draft_without_a_method_is_a_model() -> None:
    assert speculation({"model": "x", "num_speculative_tokens": 3}) == Speculation(
        method="draft_model", num_speculative_tokens=3
    )


@pytest.mark.parametrize("value", ["first", [1.5], {"0": 1}, [["0"]]])
def test_what_is_no_list_of_layers_is_told_so(value: object) -> None:
    flag = next(flag for flag in CACHE_FLAGS if flag.name == "kv_cache_dtype_skip_layers")
    with pytest.raises(Unusable, match="list of layers"):
        flag.read(value)


def test_a_spec_may_carry_them_in_extra_arguments_but_for_the_number_of_blocks() -> None:
    owned = {flag.name for flag in CACHE_FLAGS if owned_flag("--" + flag.name.replace("_", "-"))}
    assert owned == {"num_gpu_blocks_override"}
