"""Weights and caches of drafts against vLLM's own model classes; draft_bytes.csv says where the figures come from."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget.ground.hardware import SINGLE_GPU
from kvgate.budget.kv_cache.dtype import plain
from kvgate.budget.kv_cache.layer_specs import CacheSettings, specs_of
from kvgate.budget.model.draft import Draft
from kvgate.budget.model.weights import rank_weights
from kvgate.hf_config import read_config
from kvgate.hf_config.drafts.reader import read_draft
from parity.tables import HERE, Row, rows_of

MADE: Mapping[str, Any] = json.loads((HERE / "draft_configs.json").read_text(encoding="utf-8"))
ROWS = rows_of("draft_bytes.csv")
DRAFTED_TOKENS = 3
"""Tokens for which the rows were computed; Medusa has a head for each."""


def draft_of(row: Row) -> Draft:
    name = row["draft"]
    entry = None if name in MADE else catalogue.find_draft(name)
    config = MADE[name] if entry is None else entry.config
    return read_draft(config, name=name, method=row["method"])


def held_bytes(draft: Draft, *, with_ends: bool) -> int:
    ends = (*draft.embedding, *draft.head) if with_ends else ()
    last = (*draft.shape.last, *ends, *draft.per_token * DRAFTED_TOKENS)
    shape = replace(draft.shape, dtype="bfloat16", last=last)
    return rank_weights(shape, SINGLE_GPU, (0, len(shape.layers)), unsplit_large_blocks=True).parameter_bytes


@pytest.mark.parametrize("row", ROWS, ids=[row["draft"] for row in ROWS])
def test_a_draft_holds_the_bytes_that_vllm_allocates(row: Row) -> None:
    draft = draft_of(row)
    assert draft.method == row["method"]
    assert held_bytes(draft, with_ends=True) == int(row["bytes"])
    if draft.embedding:
        ends = int(row["embedding_bytes"]) + (int(row["head_bytes"]) if draft.head else 0)
        assert held_bytes(draft, with_ends=False) == int(row["bytes"]) - ends


@pytest.mark.parametrize("row", ROWS, ids=[row["draft"] for row in ROWS])
def test_the_layers_of_a_draft_keep_the_cache_that_vllm_gives_them(row: Row) -> None:
    settings = CacheSettings(model_dtype="bfloat16", dtype=plain("bfloat16"), block_size=16)
    specs = [spec for layer in draft_of(row).layers for mixer in layer.mixers for spec in specs_of(mixer, 0, settings)]
    assert [spec.page_size_bytes // 16 for spec in specs] == [
        int(size) for size in row["cache_bytes_per_token"].split()
    ]


OWN_LAYERS = rows_of("mtp_bytes.csv")


@pytest.mark.parametrize("row", OWN_LAYERS, ids=[row["model"] for row in OWN_LAYERS])
def test_layers_of_multi_token_prediction_hold_the_bytes_that_vllm_allocates(row: Row) -> None:
    entry = catalogue.find_model(row["model"])
    assert entry is not None
    shape = read_config(catalogue.with_quantization(entry.config, None), name=entry.name)
    whole = (0, len(shape.layers))
    alone, both = (
        rank_weights(shape, SINGLE_GPU, whole, unsplit_large_blocks=True, with_drafts=with_drafts).parameter_bytes
        for with_drafts in (False, True)
    )
    assert both - alone == int(row["bytes"])
