"""Settings that vLLM 0.32.0 refuses whatever the memory, and neighbours of each that it starts; refusals.csv lists them."""

import pytest

from parity import not_yet
from parity.comparison import PLENTY_BYTES, answer_to
from parity.tables import Row, rows_of, setting_of

ROWS = rows_of("refusals.csv")
REASONS = sorted({row["reason"] for row in ROWS if row["starts"] == "no"})
STARTING_MODELS = sorted({row["model"] for row in ROWS if row["starts"] == "yes"})


def wrongly_judged(rows: list[Row], verdict: str) -> list[str]:
    """Rows with another verdict although there is memory in plenty: only the setting counts."""
    judged = [(row, answer_to(row, kv_cache_memory_bytes=PLENTY_BYTES)["verdict"]) for row in rows]
    return [f"{setting_of(row)}: {found}" for row, found in judged if found != verdict]


def refused_for(reason: str) -> list[str]:
    return wrongly_judged([row for row in ROWS if row["reason"] == reason], "DoesNotFit")


def starting_of(model: str) -> list[str]:
    return wrongly_judged([row for row in ROWS if row["model"] == model and row["starts"] == "yes"], "Fits")


@pytest.mark.parametrize("reason", [reason for reason in REASONS if reason not in not_yet.REFUSALS])
def test_what_vllm_refuses_is_refused(reason: str) -> None:
    assert refused_for(reason) == []


@pytest.mark.parametrize("model", [model for model in STARTING_MODELS if model not in not_yet.NEIGHBOURS])
def test_what_vllm_starts_beside_it_is_not(model: str) -> None:
    assert starting_of(model) == []


@pytest.mark.parametrize("reason", sorted(not_yet.REFUSALS))
def test_a_reason_that_is_known_leaves_the_list(reason: str) -> None:
    assert refused_for(reason), "strike it from not_yet.REFUSALS"


@pytest.mark.parametrize("model", sorted(not_yet.NEIGHBOURS))
def test_a_model_that_is_judged_right_leaves_the_list(model: str) -> None:
    assert starting_of(model), "strike it from not_yet.NEIGHBOURS"
