"""The break-glass annotation: when it counts, and what it never changes or excuses."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kvgate.api.validation import parse_document
from kvgate.judgement.assess import assess
from kvgate.judgement.assessment import Assessment, Decision
from kvgate.judgement.facts import ConfigMissing, gather
from kvgate.judgement.skipping import Skip, skip_of
from kvgate.judgement.summary import accepted, refusal, warnings
from kvgate.rules.pinned import BUDGET_NOT_SKIPPED, BUDGET_SKIPPED
from kvgate.statement.deployment import statement_of
from support.builders import new_document

NOW = datetime(2026, 12, 24, 18, 0, tzinfo=UTC)
TOO_LARGE: dict[str, Any] = {"maxModelLen": 40_960, "maxNumSeqs": 8}
REFUSED: dict[str, Any] = {**TOO_LARGE, "tensorParallelSize": 3}
FITS: dict[str, Any] = {"maxModelLen": 4096, "maxNumSeqs": 1}
OVER, MALFORMED = "2026-12-24T18:00:00Z", "2027-12-24"


def skip(until: str | None = None) -> Skip | None:
    document = new_document()
    document["metadata"]["annotations"] = {"kvgate.io/skip-budget": "load test"} | (
        {} if until is None else {"kvgate.io/skip-budget-until": until}
    )
    return skip_of(parse_document(document), NOW)


def assessed(vllm: dict[str, Any], given: Skip | None, policy: str = "Reject") -> Assessment:
    spec = parse_document(new_document(accelerator="L4-24GB", vllm=vllm, admission={"policy": policy})).spec
    return assess(spec, gather(statement_of(spec), lambda _: ConfigMissing(message="none", remediation="")), skip=given)


@pytest.mark.parametrize(
    ("until", "end", "counts"),
    [
        (None, "", True),
        ("2026-12-24T18:00:01Z", "2026-12-24T18:00:01Z", True),
        ("2026-12-24T18:00:00Z", "2026-12-24T18:00:00Z", False),
        ("2026-12-24t19:00:01+01:00", "2026-12-24T18:00:01Z", True),
        ("2026-12-24T18:30:00+01:00", "2026-12-24T17:30:00Z", False),
        (" 2026-12-24T18:00:01.5z ", "2026-12-24T18:00:01Z", True),
    ],
)
def test_it_counts_until_its_end(until: str | None, end: str, *, counts: bool) -> None:
    found = skip(until)
    assert found is not None
    assert (found.end, found.counts, found.unread) == (end, counts, None)


@pytest.mark.parametrize(
    "until",
    [
        "",
        "soon",
        "2027-12-24",
        "2027-12-24T18:00:00",
        "2027-02-30T18:00:00Z",
        "9999-12-31T23:59:59-14:00",
        "9" * 500,
    ],
)
def test_an_end_that_cannot_be_read_admits_nothing_and_says_what_to_write(until: str) -> None:
    found = skip(until)
    assert found is not None
    assert not found.counts
    result = assessed(TOO_LARGE, found)
    assert result.decision is Decision.REFUSE
    (told,) = (each for each in result.findings if each.rule == BUDGET_NOT_SKIPPED)
    assert told.message.startswith(f"kvgate.io/skip-budget-until is {until[:64]!r}")
    assert "2026-12-24T18:00:00Z" in told.remediation


@pytest.mark.parametrize(
    ("until", "excess"),
    [
        ((NOW + timedelta(days=7)).isoformat(), ""),
        ((NOW + timedelta(days=8)).isoformat(), "ends at"),
        (None, "has no end"),
    ],
)
def test_an_administrator_limits_its_length(until: str | None, excess: str) -> None:
    document = new_document()
    end = {"kvgate.io/skip-budget-until": until} if until else {}
    document["metadata"]["annotations"] = {"kvgate.io/skip-budget": "load test", **end}
    found = skip_of(parse_document(document), NOW, 7)
    assert found is not None
    assert found.counts == (not excess)
    assert excess in found.problem
    assert found.as_admitted().counts, "what was admitted keeps running"
    result = assessed(TOO_LARGE, found)
    assert (result.decision is Decision.REFUSE) == bool(excess)
    if excess:
        assert "here it may last for 7 days at most" in refusal(result)


def test_without_a_reason_there_is_no_break_glass() -> None:
    document = new_document()
    document["metadata"]["annotations"] = {"kvgate.io/skip-budget-until": "soon", "kvgate.io/skip-budget": " "}
    assert skip_of(parse_document(document), NOW) is None


@pytest.mark.parametrize("policy", ["Reject", "Adjust"])
@pytest.mark.parametrize("vllm", [TOO_LARGE, REFUSED, FITS])
def test_it_changes_no_figure(vllm: dict[str, Any], policy: str) -> None:
    without, skipped = assessed(vllm, None, policy), assessed(vllm, skip(), policy)
    assert (skipped.verdict, skipped.starts, skipped.holds, skipped.budget) == (
        without.verdict, without.starts, without.holds, without.budget,
    )  # fmt: skip


def test_a_warning_says_the_end_or_that_there_is_none() -> None:
    ended, endless = assessed(TOO_LARGE, skip("2026-12-31T18:00:00Z")), assessed(TOO_LARGE, skip())
    assert warnings(ended)[0].startswith("kvgate.io/skip-budget: admitted until 2026-12-31T18:00:00Z although")
    assert warnings(endless)[0].startswith("kvgate.io/skip-budget: admitted without an end although")
    (told,) = (each for each in endless.findings if each.rule == BUDGET_SKIPPED)
    assert "set kvgate.io/skip-budget-until to a date" in told.remediation
    assert accepted(ended)[2].count("load test") == 1


def test_an_end_that_is_over_is_said_where_it_is_refused_and_where_it_is_adjusted() -> None:
    assert refusal(assessed(TOO_LARGE, skip(OVER))).startswith(f"kvgate.io/skip-budget ended at {OVER}; ")
    adjusted = assessed(TOO_LARGE, skip(OVER), "Adjust")
    assert adjusted.decision is Decision.ADMIT_ADJUSTED
    assert any(f"kvgate.io/skip-budget ended at {OVER}" in line for line in warnings(adjusted))


def test_what_vllm_refuses_is_refused_beside_a_budget_that_is_skipped() -> None:
    """The spec lacks memory too: one of two errors is excused, which is not enough."""
    result = assessed({**TOO_LARGE, "extraArgs": ["--no-such-option"]}, skip())
    assert {each.rule.id for each in result.findings} >= {"KVCacheTooSmall", "OptionUnknown", "BudgetNotSkipped"}
    assert result.decision is Decision.REFUSE
    assert "skips the budget, not what vLLM refuses (OptionUnknown)" in refusal(result)


@pytest.mark.parametrize("until", [None, OVER])
def test_what_fits_is_plainly_admitted(until: str | None) -> None:
    result = assessed(FITS, skip(until))
    assert (result.decision, result.findings, result.skip) == (Decision.ADMIT, assessed(FITS, None).findings, None)


def test_a_wrong_end_is_said_before_it_is_needed() -> None:
    result = assessed(FITS, skip(MALFORMED))
    assert result.decision is Decision.ADMIT
    assert any(MALFORMED in line for line in warnings(result))
