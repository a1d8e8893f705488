"""What the engines of `make observe` report: figures of public logs, and no prediction times a factor."""

import csv
from pathlib import Path

import pytest
import yaml

from fleet.recorded_starts import RecordedStart, recorded_starts
from kvgate.api.validation import parse_document
from kvgate.judgement.assess import assess
from kvgate.judgement.facts import ConfigMissing, gather
from kvgate.statement.deployment import statement_of

ROOT = Path(__file__).resolve().parents[2]
STARTS = [start for starts in recorded_starts().values() for start in starts]


def logged() -> dict[str, dict[str, str]]:
    with (ROOT / "benchmarks" / "accuracy" / "starts.csv").open(encoding="utf-8") as lines:
        return {row["id"]: row for row in csv.DictReader(line for line in lines if not line.startswith("#"))}


def watched() -> dict[str, dict[str, object]]:
    text = (ROOT / "tools" / "fleet" / "data" / "observed.yaml").read_text(encoding="utf-8")
    return {document["metadata"]["name"]: document for document in yaml.safe_load_all(text)}


@pytest.mark.parametrize("start", STARTS, ids=lambda start: f"{start.deployment} {start.available_kv_gib}")
def test_a_figure_is_the_one_that_a_public_log_has(start: RecordedStart) -> None:
    assert start.source.startswith("https://github.com/")
    if start.start:
        row = logged()[start.start]
        shares = (float(row["available_kv_gib"]), float(row["gpu_memory_utilization"]))
        assert (*shares, row["vllm_version"]) == (
            start.available_kv_gib,
            start.gpu_memory_utilization,
            start.vllm_version,
        )
        assert row["source"] == start.source


def test_every_deployment_that_is_watched_has_a_start() -> None:
    assert set(recorded_starts()) == set(watched())


@pytest.mark.parametrize("start", STARTS, ids=lambda start: f"{start.deployment} {start.available_kv_gib}")
def test_blocks_are_those_of_the_models_layout(start: RecordedStart) -> None:
    """The layout stands in the table, and not in kvgate's answer; the two agree."""
    document = watched()[start.deployment]
    document["metadata"] |= {"namespace": "default"}  # type: ignore[operator]
    spec = parse_document(document).spec
    budget = assess(spec, gather(statement_of(spec), lambda _: ConfigMissing(message="", remediation=""))).effective
    assert budget is not None
    assert budget.kv_cache is not None
    blocks = int(start.available_kv_gib * 2**30) // budget.kv_cache.bytes_per_block
    assert start.num_gpu_blocks == start.engine().num_gpu_blocks == blocks
