"""Blocks for recurrent states beside sequences: what servers refused, and which releases and graphs ask for them."""

from typing import Any

import pytest

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.engine.request import GraphSettings
from support.builders import catalogue_accelerator, catalogue_shape, new_request

RECIPE = "https://github.com/vllm-project/recipes/pull/551"
DEFAULTS = "public log, index id 68750912884"


def budget(model: str, gpu: str, version: str, **settings: Any) -> Budget:
    return plan(
        new_request(
            shape=catalogue_shape(model), accelerator=catalogue_accelerator(gpu), vllm_version=version, **settings
        )
    )


@pytest.mark.parametrize(
    ("model", "gpu", "version", "settings", "logged", "source"),
    [
        ("Qwen/Qwen3.6-27B-FP8", "H100-SXM-80GB", "0.23.0", {"utilization": "0.95"}, 856, RECIPE),
        ("Qwen/Qwen3.8-27B", "RTX-PRO-6000-Server-96GB", "0.27.1", {}, 630, DEFAULTS),
    ],
)
def test_blocks_that_vllm_counted_when_it_refused(
    model: str, gpu: str, version: str, settings: dict[str, Any], logged: int, source: str
) -> None:
    """Starts that no formula was made for: all arguments default, and the count is the available memory over a block."""
    assert source
    found = budget(model, gpu, version, **settings)
    assert found.num_blocks is not None
    assert found.num_blocks.expected == pytest.approx(logged, rel=0.02)
    assert found.num_blocks.low <= logged <= found.num_blocks.high


@pytest.mark.parametrize(
    ("version", "settings", "asks"),
    [
        pytest.param("0.19.0", {}, False, id="0.19 captured fewer sizes instead"),
        pytest.param("0.20.0", {}, True, id="0.20 refuses"),
        pytest.param("0.33.0", {"enforce_eager": True}, False, id="no graphs"),
        pytest.param("0.33.0", {"graphs": "PIECEWISE"}, False, id="states are computed between pieces"),
        pytest.param("0.33.0", {"graphs": "FULL_DECODE_ONLY"}, True, id="whole steps"),
    ],
)
def test_only_graphs_of_whole_steps_need_a_block_per_sequence(
    version: str,
    settings: dict[str, Any],
    asks: bool,  # noqa: FBT001
) -> None:
    if mode := settings.pop("graphs", None):
        settings["graphs"] = GraphSettings(mode=mode)
    found = budget("Qwen/Qwen3.6-27B-FP8", "H100-SXM-80GB", version, max_num_seqs=64, **settings)
    assert found.resolved.graphs_hold_states is asks


@pytest.mark.parametrize(
    ("version", "seqs", "settings", "blocks"),
    [
        ("0.28.0", 64, {}, 64), ("0.29.0", 64, {}, 63),  # the null block serves one of them
        ("0.33.0", 512, {}, 511), ("0.33.0", 64, {"enforce_eager": True}, 0),
    ],
)  # fmt: skip
def test_a_block_for_every_sequence_is_demanded(version: str, seqs: int, settings: dict[str, Any], blocks: int) -> None:
    demand = budget(
        "Qwen/Qwen3.6-27B-FP8", "H100-SXM-80GB", version, max_num_seqs=seqs, max_model_len=1024, **settings
    ).demand
    assert demand is not None
    assert demand.sequence_blocks == blocks
    assert demand.blocks == max(demand.startup_blocks, blocks)
    assert demand.is_for_sequences is (blocks > demand.startup_blocks)
