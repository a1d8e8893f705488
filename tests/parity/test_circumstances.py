"""One start of a public log for every mode of a circumstance: told the mode, the ledger has the logged figure."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from kvgate.budget import plan
from kvgate.budget.ground.units import GIB
from kvgate.judgement.what_if import read_request

FILE = Path(__file__).with_name("circumstances.csv")
ROWS = list(csv.DictReader(line for line in FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")))


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['mode']}: {row['model']} on {row['gpu']}" for row in ROWS])
def test_the_ledger_of_a_mode_has_the_logged_figure(row: Mapping[str, str]) -> None:
    values = {key: row[key] for key in ("model", "gpu", "vllm_version")}
    request, findings = read_request(
        {**values, **json.loads(row["settings"]), **json.loads(row["told"])}, is_whole=True
    )
    assert request is not None, findings
    stage = plan(request).tightest
    assert stage is not None
    assert stage.ledger is not None
    amounts = dict(stage.ledger.terms) | {"available_kv_cache": stage.available}
    amount, logged = amounts[row["term"]], float(row["logged_gib"])
    assert abs(amount.expected / GIB - logged) <= float(row["within_gib"])
    assert amount.low <= logged * GIB <= amount.high


def test_every_figure_has_a_source() -> None:
    assert [row["mode"] for row in ROWS if not row["source"]] == []
