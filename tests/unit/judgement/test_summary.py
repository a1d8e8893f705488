"""An assessment in words: short enough for kubectl, one line each, with the numbers."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate.api.conditions import Reason
from kvgate.budget import Guarantee, Verdict, plan
from kvgate.budget.answers.changes import Alternative
from kvgate.budget.ground.units import GIB
from kvgate.findings.finding import Finding, Rule, Severity, words
from kvgate.judgement.assess import field_name, judge
from kvgate.judgement.assessment import Assessment, Decision
from kvgate.judgement.summary import (
    MAX_REFUSAL,
    MAX_WARNING,
    accepted,
    alternatives_text,
    changes_text,
    refusal,
    shortened,
    verdict_text,
    warnings,
)
from kvgate.rules.memory import KV_CACHE_TOO_SMALL
from support.builders import catalogue_shape, new_accelerator, new_document, new_request, new_workload
from support.tables import table
from unit.judgement.test_assess import FITS, MAYBE, REFUSED, TOO_LARGE, UNKNOWN, assessed

NO_CONFIG = {"name": "m", "configFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}

STARTS = Guarantee.STARTUP


def finding(
    rule: Rule = KV_CACHE_TOO_SMALL, *, size: int = 10, severity: Severity = Severity.ERROR, fix: int = 0
) -> Finding:
    return rule.finding("max_model_len", "m" * size, "r" * fix, severity=severity)


def refused(*findings: Finding, alternatives: tuple[Alternative, ...] = ()) -> Assessment:
    return Assessment(
        verdict=Verdict.DOES_NOT_FIT,
        guarantee=STARTS,
        decision=Decision.REFUSE,
        findings=findings,
        alternatives=alternatives,
    )


def test_a_fruitless_search_says_what_it_was_allowed_to_turn() -> None:
    limits = {"adjust": {"knobs": ["MaxNumSeqs"], "minMaxNumSeqs": 250}}
    found_none = assessed({"maxModelLen": 40960, "maxNumSeqs": 256}, policy="Adjust", admission=limits)
    assert "no change of MaxNumSeqs within your floors fits" in refusal(found_none)
    assert len(refusal(found_none)) <= MAX_REFUSAL


@table("size", [0, 1, 400, 500, 501, 10_000])
@table("fix", [0, 1, 249, 250, 499, 500, 10_000])
@table("count", [1, 3])
def test_a_refusal_has_at_most_500_characters(size: int, fix: int, count: int) -> None:
    assert len(refusal(refused(*[finding(size=size, fix=fix)] * count))) <= MAX_REFUSAL == 500


def test_the_way_out_survives_a_long_reason() -> None:
    text = refusal(refused(finding(size=10_000), alternatives=(Alternative(field="max_model_len", value=512),)))
    assert text.endswith(". Would fit: maxModelLen 512")


def test_a_refusal_tells_errors_only_and_the_numbers() -> None:
    text = refusal(assessed(TOO_LARGE))
    assert "needs 5.62 GiB" in text
    assert "Would fit: any one of: " in text
    assert "maxModelLen" in text.partition("Would fit")[2]
    assert "\n" not in text
    assert refusal(assessed(REFUSED)).endswith(". To fix it: set spec.vllm.tensorParallelSize to one of 1, 2, 4, 8, 16")


def test_warnings_have_at_most_120_characters_and_one_line() -> None:
    long = [finding(size=size, fix=size, severity=Severity.WARNING) for size in (1, 119, 120, 121, 5000)]
    lines = warnings(
        Assessment(
            verdict=Verdict.UNKNOWN,
            guarantee=STARTS,
            decision=Decision.ADMIT_WITH_WARNING,
            findings=tuple(long),
        )
    )
    assert len(lines) == 5
    assert max(map(len, lines)) == MAX_WARNING == 120


@pytest.mark.parametrize(
    ("decision", "severity", "count"),
    [
        (Decision.ADMIT, Severity.WARNING, 1), (Decision.ADMIT, Severity.INFO, 0), (Decision.ADMIT_WITH_WARNING, Severity.ERROR, 1),
        (Decision.ADMIT_WITH_WARNING, Severity.INFO, 0), (Decision.REFUSE, Severity.ERROR, 0),
    ],
)  # fmt: skip
def test_what_is_admitted_is_warned_about(decision: Decision, severity: Severity, count: int) -> None:
    """Also where it fits: requests beyond max_num_seqs wait, and nobody else says so."""
    assert (
        len(
            warnings(
                Assessment(
                    verdict=Verdict.FITS,
                    guarantee=STARTS,
                    decision=decision,
                    findings=(finding(severity=severity),),
                )
            )
        )
        == count
    )


def test_break_glass_and_adjusting_are_told_first() -> None:
    assert warnings(assessed(TOO_LARGE, skip="why"))[0].endswith("does not fit: why")
    assert warnings(assessed(TOO_LARGE, policy="Adjust"))[0].startswith("adjusted: maxModelLen 40960 → ")
    assert warnings(assessed(FITS, skip="why")) == []


def test_what_adjusting_does_not_mend_is_told_beside_it() -> None:
    vllm = {**TOO_LARGE, "extraArgs": ["--seed=1", "--seed=2"]}
    adjusted, *others = warnings(assessed(vllm, policy="Adjust"))
    assert adjusted.startswith("adjusted: ")
    assert [line for line in others if "seed is set to 1 here and again later" in line] == others != []


def test_a_reason_with_line_breaks_stays_one_line() -> None:
    from kvgate.api.validation import parse_document

    document = new_document()
    document["metadata"]["annotations"] = {"kvgate.io/skip-budget": "one\r\n two\tthree"}
    assert parse_document(document).skip_reason == "one two three"


@pytest.mark.parametrize(
    ("alternative", "text"),
    [
        (Alternative(field="max_model_len", value=512), "maxModelLen 512"),
        (Alternative(field="kv_cache_dtype", value="fp8"), "kvCacheDtype fp8"),
        (Alternative(field="accelerator", value="H100-SXM-80GB"), "accelerator H100-SXM-80GB"),
    ],
)
def test_an_alternative_is_written_as_the_spec_writes_it(alternative: Alternative, text: str) -> None:
    assert alternatives_text([alternative]) == text


def test_several_alternatives_are_marked_as_such() -> None:
    several = [Alternative(field="max_model_len", value=512), Alternative(field="max_num_seqs", value=2)]
    assert alternatives_text(several) == "any one of: maxModelLen 512, maxNumSeqs 2"


def test_without_an_adjustment_there_are_no_changes() -> None:
    assert changes_text(assessed(FITS)) == ""


@pytest.mark.parametrize(
    ("text", "limit", "short"), [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("", 3, ""), ("abc", 1, "…")]
)
def test_text_is_shortened_with_an_ellipsis(text: str, limit: int, short: str) -> None:
    assert shortened(text, limit) == short


@pytest.mark.parametrize(
    ("assessment", "status", "reason"),
    [
        (assessed(FITS), True, Reason.FITS),
        (assessed(MAYBE), True, Reason.MAY_NOT_FIT),
        (assessed(MAYBE, policy="Adjust"), True, Reason.ADJUSTED),
        (assessed(TOO_LARGE), False, Reason.BUDGET_EXCEEDED),
        (assessed(TOO_LARGE, policy="Adjust"), True, Reason.ADJUSTED),
        (assessed(TOO_LARGE, policy="Warn"), True, Reason.POLICY_WARN),
        (assessed(TOO_LARGE, skip="why"), True, Reason.BUDGET_SKIPPED),
        (assessed(REFUSED), False, Reason.SETTING_REFUSED),
        (assessed(UNKNOWN), None, Reason.UNMODELLED_KIND),
        (assessed({"version": "0.5.0"}), None, Reason.UNKNOWN_VERSION),
        (assessed(FITS, model="nobody/knows"), None, Reason.UNKNOWN_MODEL),
        (assessed(FITS, gpu="nothing"), None, Reason.UNKNOWN_ACCELERATOR),
        (assessed(FITS, model=NO_CONFIG), None, Reason.INVALID_MODEL_CONFIG),
    ],
    ids=lambda value: value.name if isinstance(value, Reason) else "",
)  # fmt: skip
def test_the_condition_accepted_is(assessment: Assessment, status: bool | None, reason: Reason) -> None:  # noqa: FBT001
    told_status, told_reason, message = accepted(assessment)
    assert (told_status, told_reason) == (status, reason)
    assert message


def test_a_verdict_that_nobody_can_decide_names_its_reason() -> None:
    judged = judge(new_request(unmodelled_settings=("LoRA",)))
    assert "LoRA is not modelled" in accepted(judged)[2]


def test_a_warning_that_is_too_long_has_the_short_names_of_its_fields() -> None:
    told = words("{max_num_seqs} {x} {max_model_len}", x="x" * 80)
    by_path = replace(finding(severity=Severity.WARNING), words=told, naming=field_name)
    admitted = Assessment(
        verdict=Verdict.MAY_NOT_FIT,
        guarantee=STARTS,
        decision=Decision.ADMIT_WITH_WARNING,
        findings=(by_path,),
    )
    assert by_path.message.startswith("spec.vllm.maxNumSeqs ")
    assert warnings(admitted) == [f"maxNumSeqs {'x' * 80} maxModelLen"]


@pytest.mark.parametrize(
    ("guarantee", "asked", "judged", "requests", "left"),
    [
        ("STARTUP", {}, "starts", "4.0 requests of 16384 tokens at once", "headroom 74 %"),
        ("STARTUP", {"data": 2}, "starts", "4.0 requests of 16384 tokens at once on each data-parallel rank", "headroom 74 %"),
        ("STARTUP", {"max_model_len": 40960}, "starts", "1.6 requests of 40960 tokens at once", "headroom 37 %"),
        ("FULL_CONTEXT", {"max_num_seqs": 3}, "holds full context (3 requests of 16384 tokens)", "4.0 requests of 16384 tokens at once",
         "headroom 24 %"),
        ("FULL_CONTEXT", {"max_num_seqs": 5}, "does not hold full context (5 requests of 16384 tokens)",
         "4.0 requests of 16384 tokens at once", "lacks 2.25 GiB"),
        ("WORKLOAD", {"concurrency": 8}, "holds the workload (8 requests of 6500 tokens)", "4.0 requests of 16384 tokens at once",
         "headroom 20 %"),
    ],
    ids=["startup", "ranks", "longer", "full context", "not full context", "workload"],
)  # fmt: skip
def test_a_verdict_says_what_was_judged_and_how_much_is_left(
    guarantee: str, asked: dict[str, Any], judged: str, requests: str, left: str
) -> None:
    """Qwen3-8B keeps 147,456 bytes a token: 36 layers × 2 × 8 heads × 128 × 2 bytes; 2.25 GiB for 16,384 tokens, one block is vLLM's."""
    values = {"max_model_len": 16_384, "kv_cache_memory_bytes": 9 * GIB, "guarantee": Guarantee[guarantee], **asked}
    workload = new_workload(values.pop("concurrency", 1), 6000, 500)
    found = judge(new_request(shape=catalogue_shape("Qwen/Qwen3-8B"), workload=workload, **values))
    size = "9.00 GiB of KV cache per GPU" if "data" in asked else "9.00 GiB of KV cache"
    figures = f"{requests}, {size} ({left})"
    told = {"starts": f"starts; holds {figures}; no load is promised", "does not": f"{judged}; starts; {figures}"}
    of_kind = next((text for start, text in told.items() if judged.startswith(start)), f"{judged}; {figures}")
    assert verdict_text(found.verdict, found.budget) == of_kind


def test_the_figures_are_the_interval_where_it_decides_and_the_most_where_nothing_fits() -> None:
    tight = plan(new_request(shape=catalogue_shape("Qwen/Qwen3-8B"), accelerator=new_accelerator(memory_gib=22)))
    pool = tight.usable_blocks
    assert pool is not None
    may = plan(tight.request.with_settings(max_model_len=(pool.low + pool.high) // 2 * 16))
    assert verdict_text(may.verdict, may).startswith("may not start; holds 0.")
    assert re.search(
        r" to 1\.\d requests of .* GiB of KV cache \(headroom -\d+ % to \d+ %\)", verdict_text(may.verdict, may)
    )
    none = plan(tight.request.with_settings(max_model_len=(pool.high + 100) * 16))
    assert re.fullmatch(
        r"does not start; holds at most 0\.\d requests .* \(expected to lack 0\.\d\d GiB\)",
        verdict_text(none.verdict, none),
    )


def test_memory_is_not_blamed_for_a_setting_that_is_refused_and_nothing_is_said_of_what_is_not_known() -> None:
    fits = plan(new_request(shape=catalogue_shape("Qwen/Qwen3-8B")))
    assert verdict_text(Verdict.DOES_NOT_FIT, fits).startswith("does not start; not for lack of GPU memory; ")
    assert verdict_text(Verdict.UNKNOWN, None) == "not decided"
    without = plan(new_request(shape=catalogue_shape("BAAI/bge-m3")))
    assert verdict_text(Verdict.FITS, without) == "starts; the model keeps no KV cache"
