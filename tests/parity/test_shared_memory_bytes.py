"""The queues in /dev/shm have the bytes of vLLM's own class."""

import pytest

from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.host.memory import host_ledger
from kvgate.budget.host.processes import HostQuestion
from kvgate.budget.host.settings import HostSettings, PodMemory
from parity.tables import Row, rows_of

ROWS = rows_of("shared_memory_bytes.csv")


@pytest.mark.parametrize("row", [row for row in ROWS if int(row["readers"]) > 1 or row["queue"] == "reply"], ids=str)
def test_a_queue_has_the_bytes_that_vllm_gives_it(row: Row) -> None:
    ranks = max(2, int(row["readers"]))
    question = HostQuestion(
        settings=HostSettings(), parallelism=Parallelism(tensor=ranks), release=(0, 32), pod=PodMemory()
    )
    inputs = dict(host_ledger(question).segment.inputs)
    name = "replies_bytes" if row["queue"] == "reply" else "messages_bytes"
    assert inputs[name] == int(row["segment_bytes"])
