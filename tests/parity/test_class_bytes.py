"""Weight bytes of model classes of which no published config is at hand, against vLLM's own classes.

class_bytes.jsonl holds configs, many of them as transformers' config classes give them, and the parameter bytes of every pipeline
stage that vLLM 0.32.0's class allocates for them on a CPU.
"""

import json
from pathlib import Path
from typing import Any

from kvgate.budget.engine.request import EngineSettings
from kvgate.budget.engine.run import built_shape
from kvgate.budget.ground.hardware import Parallelism, stage_sizes
from kvgate.budget.model.weights import rank_weights
from kvgate.budget.releases.versions import accounting_of
from kvgate.hf_config import read_config
from support.tables import table

ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in Path(__file__).with_name("class_bytes.jsonl").read_text(encoding="utf-8").splitlines()
]
HOPPER = (9, 0)


def stage_bytes(config: dict[str, Any], tensor: int, pipeline: int) -> list[int]:
    cut, first, found = Parallelism(tensor=tensor, pipeline=pipeline), 0, []
    shape = built_shape(read_config(config), accounting_of("0.32.0"), EngineSettings(parallelism=cut))
    for size in stage_sizes(len(shape.layers), pipeline):
        weights = rank_weights(
            shape,
            cut,
            (first, first + size),
            unsplit_large_blocks=False,
            compute_capability=HOPPER,
        )
        found.append(weights.parameter_bytes)
        first += size
    return found


@table("row", ROWS, ids=[row["config"]["architectures"][0] for row in ROWS])
def test_a_class_allocates_what_vllm_allocates(row: dict[str, Any]) -> None:
    sizes = [tuple(int(part[2:]) for part in parallel.split()) for parallel in row["stage_bytes"]]
    assert [stage_bytes(row["config"], *size) for size in sizes] == list(row["stage_bytes"].values())


def test_numbers_that_differ_by_layer_are_unknown() -> None:
    (row,) = [row for row in ROWS if row["config"]["architectures"] == ["HunYuanMoEV1ForCausalLM"]]
    experts = {"num_experts": [16] * 4, "moe_topk": [8] * 4, "num_shared_expert": [1] * 4}
    assert stage_bytes({**row["config"], **experts}, 1, 1) == row["stage_bytes"]["tp1 pp1"]
    shape = read_config({**row["config"], "num_shared_expert": [1, 1, 2, 2]})
    assert shape.unmodelled_kinds == ("num_shared_expert by layer",)
