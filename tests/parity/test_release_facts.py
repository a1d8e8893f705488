"""Where a fact of a release begins or ends, against the source of the releases on both sides.

`release_facts.csv` names a text of vLLM's source that one release has and the other has not.
"""

import pytest

from kvgate.budget.releases.versions import accounting_of, parse_patch
from kvgate.vllm.options import options
from parity.tables import rows_of
from support.tables import table

ROWS = rows_of("release_facts.csv")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["fact"]))
def test_a_fact_holds_from_the_release_that_has_its_source(row: dict[str, str]) -> None:
    absent, present = (getattr(accounting_of(row[side]), row["fact"]) for side in ("absent", "present"))
    assert present
    assert not absent


@table(
    "version",
    [
        "0.6.6",
        "0.7.3",
        "0.8.5",
        "0.9.2",
        "0.10.2",
        "0.11.0",
        "0.13.0",
        "0.14.0",
        "0.17.0",
        "0.18.0",
        "0.20.0",
        "0.22.0",
        "0.33.0",
    ],
)
def test_switches_exist_where_the_parser_has_them(version: str) -> None:
    release, facts = parse_patch(version), accounting_of(version)
    for flag, is_there in (
        ("--shutdown-timeout", facts.shutdown_timeout),
        ("--performance-mode", facts.performance_modes),
        ("--allow-deprecated-quantization", bool(facts.deprecated_quantizations)),
        ("--optimization-level", facts.graphs_by_level),
    ):
        assert options()[flag].is_in(release) in (is_there, None), flag
