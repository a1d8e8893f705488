"""Our answer to a row held against vLLM's: which figures are not equal."""

from math import isclose
from typing import Any

from kvgate.cli.assessment_json import to_json
from kvgate.judgement.what_if import assess_request
from parity.tables import Row, request_of, weights_request

PLENTY_BYTES = 200 * 2**30
"""KV memory that no setting of the table of refusals lacks."""
Pairs = dict[str, tuple[object, object]]
"""Figure → (ours, vLLM's)."""
_FIGURES = {
    "bytes_per_block": "bytes_per_block",
    "request_blocks": "request_blocks",
    "num_blocks": "num_blocks",
    "num_tokens": "num_tokens",
    "longest": "max_model_len_that_fits",
}
"""Column → key of the answer."""


def answer_to(row: Row, **more: Any) -> dict[str, Any]:
    return to_json(assess_request({**request_of(row), **more}))


def stage_bytes(row: Row) -> list[int | None]:
    """Parameter bytes of a rank, stage by stage, for a row of parameter_bytes.csv; None where we have no answer."""
    budget = assess_request(weights_request(row)).budget
    return [stage.ledger.parameter_bytes if stage.ledger else None for stage in budget.stages] if budget else []


def differences(row: Row) -> Pairs:
    """Where they are not equal; vLLM does not say how many blocks there are where it refuses."""
    answer = answer_to(row)
    kv_cache = answer["kv_cache"] or {}
    pairs: Pairs = {
        column: (kv_cache.get(key), int(row[column])) for column, key in _FIGURES.items() if row.get(column)
    }
    if row["max_concurrency"]:
        pairs["max_concurrency"] = _concurrency(kv_cache.get("max_concurrency"), row["max_concurrency"])
    pairs["verdict"] = (answer["verdict"], "Fits" if row["starts"] == "yes" else "DoesNotFit")
    return {column: pair for column, pair in pairs.items() if pair[0] != pair[1]}


def _concurrency(ours: float | None, stated: str) -> tuple[float | None, float]:
    """The tables have nine digits of it, or the two decimals that a release logs."""
    theirs = float(stated)
    rounding = 0.005 if len(stated.partition(".")[2]) <= 2 else 0
    return (theirs if ours is not None and isclose(ours, theirs, rel_tol=1e-6, abs_tol=rounding) else ours), theirs
