"""Layers that ignore `--kv-cache-dtype`, and indexers that layers share: both by release, from vLLM's source."""

from typing import Any

import pytest

from kvgate.budget.answers.advice import alternatives
from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.answers.changes import Scope
from kvgate.budget.answers.support import kv_cache_dtype_refusal
from kvgate.budget.engine.request import Speculation
from kvgate.budget.kv_cache.dtype import takes_cache_dtype
from kvgate.budget.releases.tables import PLAIN_CACHES
from kvgate.budget.releases.versions import accounting_of
from kvgate.hf_config import read_config
from kvgate.hf_config.architectures import classes_read
from kvgate.hf_config.layers.attention import TESTS_OF_CLASSES
from kvgate.rules.memory import weights_do_not_choose_kv_cache
from support.builders import catalogue_accelerator, catalogue_shape, known_draft, new_llama_config, new_request
from support.tables import table

FALCON = {
    "architectures": ["FalconForCausalLM"],
    "model_type": "falcon",
    "num_kv_heads": 8,
    "new_decoder_architecture": True,
}
BAICHUAN = {"architectures": ["BaichuanForCausalLM"], "model_type": "baichuan"}


def budget(shape: str | dict[str, Any], version: str, **settings: Any) -> Budget:
    read = catalogue_shape(shape) if isinstance(shape, str) else read_config(new_llama_config(**shape))
    settings = {"max_model_len": 2048, "max_num_seqs": 16, **settings}
    return plan(
        new_request(shape=read, accelerator=catalogue_accelerator("H200-SXM-141GB"), vllm_version=version, **settings)
    )


def block_bytes(shape: str | dict[str, Any], version: str, **settings: Any) -> int:
    kv_cache = budget(shape, version, **settings).kv_cache
    assert kv_cache is not None
    return kv_cache.bytes_per_block


@table(
    ("shape", "version", "is_halved"),
    [
        ("tiiuae/falcon-7b", "0.11.0", True), ("tiiuae/falcon-7b", "0.11.1", False), ("tiiuae/falcon-7b", "0.33.0", False),
        (FALCON, "0.33.0", False), ({**FALCON, "alibi": True}, "0.33.0", False),
        ({**BAICHUAN, "hidden_size": 5120, "num_attention_heads": 40}, "0.24.0", False), ("baichuan-inc/Baichuan2-7B-Chat", "0.24.0", True),
        ("XiaomiMiMo/MiMo-V2-Flash", "0.31.0", False), ("XiaomiMiMo/MiMo-V2-Flash", "0.32.0", True),
        ("Qwen/Qwen3-8B", "0.33.0", True),
    ],
)  # fmt: skip
def test_an_fp8_cache_halves_a_block_unless_the_class_hides_the_setting_from_its_layers(
    shape: str | dict[str, Any],
    version: str,
    is_halved: bool,  # noqa: FBT001
) -> None:
    """`Attention.__init__` takes `auto` without `cache_config`; until 0.11.0 the runner had one dtype for all layers."""
    whole, quantised = (block_bytes(shape, version, kv_cache_dtype=dtype, tensor=4) for dtype in ("auto", "fp8"))
    assert quantised * (2 if is_halved else 1) == whole


def test_a_scheme_of_compressed_tensors_reaches_such_layers_all_the_same() -> None:
    """0.16 to 0.33: the layer reads it from its quantisation config."""
    scheme = {"num_bits": 8, "type": "float", "dynamic": False}
    stored = {"quant_method": "compressed-tensors", "format": "float-quantized", "kv_cache_scheme": scheme}
    stored["config_groups"] = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}}
    shape = {**FALCON, "quantization_config": stored}
    assert 2 * block_bytes(shape, "0.33.0") == block_bytes(FALCON, "0.33.0")
    assert 2 * block_bytes(shape, "0.33.0", kv_cache_dtype="bfloat16") == block_bytes(FALCON, "0.33.0")


def test_nothing_refuses_or_proposes_a_format_that_no_layer_takes() -> None:
    """Falcon starts with any format, on every GPU: its layers do not see it."""
    old, accounting = catalogue_accelerator("T4-16GB"), accounting_of("0.33.0")
    assert kv_cache_dtype_refusal("fp8", catalogue_shape("Qwen/Qwen3-8B"), old, accounting)
    assert kv_cache_dtype_refusal("fp8", catalogue_shape("tiiuae/falcon-7b"), old, accounting) is None
    tight = budget("tiiuae/falcon-40b", "0.33.0", max_model_len=10_000_000).request
    assert "kv_cache_dtype" not in {each.field for each in alternatives(tight, Scope())}
    found = [
        list(weights_do_not_choose_kv_cache(budget("XiaomiMiMo/MiMo-V2-Flash", version, tensor=8)))
        for version in ("0.31.0", "0.32.0")
    ]
    assert [len(findings) for findings in found] == [0, 1]


def test_layers_of_multi_token_prediction_may_ignore_it_beside_a_model_that_does_not() -> None:
    drafts = {"speculation": Speculation(method="mtp", num_speculative_tokens=1), "kv_cache_dtype": "fp8"}
    groups = [budget("LGAI-EXAONE/EXAONE-4.5-33B", version, **drafts).kv_cache for version in ("0.32.0", "0.33.0")]
    dtypes = [{group.spec.dtype.name for group in cache.groups} for cache in groups if cache]  # type: ignore[union-attr]
    assert dtypes == [{"fp8", "bfloat16"}, {"fp8"}]


def test_a_draft_by_dflash_took_no_format_at_first() -> None:
    draft = known_draft("z-lab/Qwen3-8B-DFlash-b16")
    asked = {
        "draft": draft,
        "speculation": Speculation(model="d", method="dflash", num_speculative_tokens=4),
        "kv_cache_dtype": "fp8",
    }
    first, later = (block_bytes("Qwen/Qwen3-8B", version, **asked) for version in ("0.21.0", "0.22.0"))
    assert first > later
    assert not takes_cache_dtype(draft.shape, accounting_of("0.21.0"))


def test_every_test_of_a_class_that_is_read_is_decided() -> None:
    rows = {(name, test) for name, test, _, gone in PLAIN_CACHES if test and (gone is None or gone > (0, 11))}
    decided = {(name, test) for name, tests in TESTS_OF_CLASSES.items() for test in tests}
    assert {row for row in rows if row[0] in classes_read()} == decided


@pytest.mark.parametrize(("version", "indexed"), [("0.16.0", 78), ("0.23.0", 78), ("0.24.0", 21), ("0.33.0", 21)])
def test_layers_that_share_an_index_keep_their_own_before_0_24(version: str, indexed: int) -> None:
    """GLM-5.2: 0.21 to 0.23 build every indexer and skip some, 0.24 builds 21 of 78 (`DeepseekV2MLAAttention.__init__`)."""
    settings = {"tensor": 8, "max_model_len": 65_536}
    assert block_bytes("zai-org/GLM-5.2-FP8", version, **settings) == 64 * (78 * 576 * 2 + indexed * (128 + 4))


def test_indexers_that_nobody_runs_are_loaded_all_the_same() -> None:
    """57 more of them: 32 heads of queries, and one matrix of keys and head weights, whole on every rank."""
    settings = {"tensor": 8, "max_model_len": 65_536}
    ledgers = [budget("zai-org/GLM-5.2-FP8", version, **settings).stages[0].ledger for version in ("0.23.0", "0.24.0")]
    every, shared = (ledger.parameter_bytes or 0 for ledger in ledgers if ledger)
    queries, keys, norms = 32 * 128 * 2048, 2 * (128 + 32) * 6144, 2 * 128 * 4
    assert (every - shared) / 57 == pytest.approx(queries + keys + norms, rel=0.001)
