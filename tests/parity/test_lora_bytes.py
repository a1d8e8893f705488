"""Bytes of the LoRA slots of a rank against vLLM's own classes; lora_bytes.csv says where the figures come from."""

import pytest

from kvgate.budget.engine.run import run_of
from kvgate.budget.gpu.lora import slot_tensors
from kvgate.judgement.what_if import assess_request
from parity.tables import VERSION, Row, rows_of

ROWS = rows_of("lora_bytes.csv")


def slots_of(row: Row) -> int:
    budget = assess_request({
        "model": row["model"], "gpu": "B200-SXM-180GB", "vllm_version": VERSION, "enable_lora": True, "max_loras": 2,
        "tensor_parallel_size": int(row["tensor"]), "enable_expert_parallel": bool(row["expert_parallel"]),
        "fully_sharded_loras": bool(row["fully_sharded"]),
    }).budget  # fmt: skip
    assert budget is not None
    stage = (0, len(budget.request.shape.layers))
    return sum(slot_tensors(run_of(budget.request, budget.resolved, budget.accounting, stage)))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-tp{row['tensor']}{row['fully_sharded']}")
def test_a_rank_holds_the_slots_that_vllm_allocates(row: Row) -> None:
    assert slots_of(row) == int(row["lora_bytes"])
