"""Settings that vLLM 0.32.0 refuses whatever the memory, and neighbours of each that it starts; refusals.csv lists them."""

from parity.comparison import PLENTY_BYTES, answer_to
from parity.tables import Row, rows_of, setting_of
from support.tables import table

ROWS = rows_of("refusals.csv")
REASONS = sorted({row["reason"] for row in ROWS if row["starts"] == "no"})
STARTING_MODELS = sorted({row["model"] for row in ROWS if row["starts"] == "yes"})


def wrongly_judged(rows: list[Row], verdict: str) -> list[str]:
    """Rows with another verdict although there is memory in plenty: only the setting counts."""
    judged = [(row, answer_to(row, kv_cache_memory_bytes=PLENTY_BYTES)["verdict"]) for row in rows]
    return [f"{setting_of(row)}: {found}" for row, found in judged if found != verdict]


@table("reason", REASONS)
def test_what_vllm_refuses_is_refused(reason: str) -> None:
    assert wrongly_judged([row for row in ROWS if row["reason"] == reason], "DoesNotFit") == []


@table("model", STARTING_MODELS)
def test_what_vllm_starts_beside_it_is_not(model: str) -> None:
    assert wrongly_judged([row for row in ROWS if row["model"] == model and row["starts"] == "yes"], "Fits") == []
