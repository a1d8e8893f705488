"""Weight bytes of every rank against vLLM's own model classes; parameter_bytes.csv says where the figures come from."""

from itertools import groupby

from parity.comparison import stage_bytes
from parity.tables import rows_of
from support.tables import table

ROWS_OF_MODEL = {model: list(rows) for model, rows in groupby(rows_of("parameter_bytes.csv"), lambda row: row["model"])}


def wrong_rows(model: str) -> list[str]:
    return [
        f"tp{row['tensor']} pp{row['pipeline']} {row['gpu']}: {ours} for {theirs}"
        for row in ROWS_OF_MODEL[model]
        if (ours := stage_bytes(row)) != (theirs := [int(size) for size in row["stage_bytes"].split()])
    ]


@table("model", ROWS_OF_MODEL)
def test_a_rank_holds_the_bytes_that_vllm_allocates(model: str) -> None:
    assert wrong_rows(model) == []
