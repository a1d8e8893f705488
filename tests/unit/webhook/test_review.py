"""AdmissionReview → answer, without a server."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from kvgate.judgement.summary import MAX_REFUSAL, MAX_WARNING
from kvgate.webhook.review import MAX_WARNINGS, Known, ReviewError, review, within_limit
from support.hostile import TEXTS
from support.tables import table

Json = dict[str, Any]
NewReview = Callable[..., Json]

TOO_BIG = {"accelerator": {"type": "L4-24GB"}, "vllm": {"maxNumSeqs": 64}}
SKIP = {"annotations": {"kvgate.io/skip-budget": "load test of 2026-11"}}


def test_what_fits_is_allowed_without_a_word(new_review: NewReview) -> None:
    answer = review(new_review())
    assert answer.body == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True},
    }
    assert (answer.decision, answer.policy, answer.request.operation) == ("Admit", "Reject", "CREATE")


def test_what_does_not_fit_is_refused_with_numbers_and_what_would_fit(new_review: NewReview) -> None:
    response = review(new_review(TOO_BIG)).body["response"]
    status = response["status"]
    assert (response["allowed"], status["code"], status["reason"]) == (False, 403, "Forbidden")
    assert "needs 5.62 GiB of KV cache per GPU" in status["message"]
    assert "is available" in status["message"]
    assert "Would fit: maxModelLen " in status["message"]
    assert len(status["message"]) <= MAX_REFUSAL
    assert "warnings" not in response


@pytest.mark.parametrize(
    ("spec", "metadata", "decision", "words"),
    [
        ({**TOO_BIG, "admission": {"policy": "Adjust"}}, {}, "AdmitAdjusted", "adjusted: max"),
        ({**TOO_BIG, "admission": {"policy": "Warn"}}, {}, "AdmitWithWarning", "one request of maxModelLen"),
        (TOO_BIG, SKIP, "Skipped", "admitted without an end although it does not fit: load test of 2026-11"),
        ({"model": {"name": "nobody/Nothing-1B"}}, {}, "AdmitWithWarning", "model nobody/Nothing-1B is not in the"),
        ({"accelerator": {"type": "Z9"}}, {}, "AdmitWithWarning", "accelerator Z9 is not in the catalogue"),
        (
            {"model": {"name": "a/b", "configFrom": {"configMapKeyRef": {"name": "b", "key": "config.json"}}}},
            {},
            "AdmitWithWarning",
            "spec.model.configFrom is not read at admission: the controller reads it and decides",
        ),
    ],
)
def test_what_is_allowed_with_reservations_says_so(
    new_review: NewReview, spec: Json, metadata: Json, decision: str, words: str
) -> None:
    answer = review(new_review(spec, metadata=metadata))
    response = answer.body["response"]
    assert (response["allowed"], answer.decision) == (True, decision)
    assert any(words in line for line in response["warnings"])
    assert all(0 < len(line) <= MAX_WARNING for line in response["warnings"])


def test_an_empty_skip_annotation_skips_nothing(new_review: NewReview) -> None:
    body = new_review(TOO_BIG, metadata={"annotations": {"kvgate.io/skip-budget": " "}})
    assert review(body).body["response"]["allowed"] is False


def test_a_skip_without_an_end_skips_nothing_where_the_administrator_limits_its_length(new_review: NewReview) -> None:
    body = new_review(TOO_BIG, metadata=SKIP)
    assert review(body).body["response"]["allowed"]
    response = review(body, Known(max_skip_days=7)).body["response"]
    assert not response["allowed"]
    assert "has no end" in response["status"]["message"]


def test_an_invalid_spec_is_refused_with_every_finding(new_review: NewReview) -> None:
    vllm = {"maxModelLen": "32k", "gpuMemoryUtilization": "0,9", "extraArgs": ["--max-model-len=3"]}
    answer = review(new_review({"vllm": vllm, "accelerator": {}}))
    status = answer.body["response"]["status"]
    assert (status["code"], status["reason"], answer.decision, answer.policy) == (422, "Invalid", "Invalid", "None")
    for words in (
        "spec.vllm.maxModelLen is '32k'",
        "spec.vllm.gpuMemoryUtilization is '0,9'",
        "accelerator.type is required",
    ):
        assert words in status["message"]


def test_a_dry_run_is_answered_alike(new_review: NewReview) -> None:
    assert review(new_review(TOO_BIG, request={"dryRun": True})).body == review(new_review(TOO_BIG)).body


def test_an_update_is_judged_by_the_new_object(new_review: NewReview) -> None:
    fits, too_big = new_review(), new_review(TOO_BIG)
    body = new_review(TOO_BIG, request={"operation": "UPDATE", "oldObject": fits["request"]["object"]})
    answer = review(body)
    assert answer.request.operation == "UPDATE"
    assert answer.body == review(too_big).body


def test_a_status_of_another_release_does_not_stop_its_owner(new_review: NewReview) -> None:
    body = new_review()
    body["request"]["object"]["status"] = {"conditions": "was a list"}
    assert review(body).body["response"]["allowed"] is True


def test_a_review_is_left_as_it_came(new_review: NewReview) -> None:
    body = new_review(TOO_BIG)
    before = copy.deepcopy(body)
    review(body)
    assert body == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"uid": ""}, "request.uid is missing or empty"),
        ({"uid": 7}, "request.uid is missing or empty"),
        ({"operation": "DELETE"}, "request.operation is 'DELETE'"),
        ({"operation": ["CREATE"]}, "request.operation is "),
        ({"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}}, "request.kind is {'group': 'apps'"),
        ({"resource": {"group": "kvgate.io", "version": "v1beta1", "resource": "inferencedeployments"}}, "'v1beta1'"),
        ({"kind": "x" * 10_000}, "xx…; this webhook answers for"),
        ({"subResource": "status"}, "request.subResource is 'status'"),
        ({"object": None}, "the request has no object"),
        ({"object": ["x"]}, "the request has no object"),
    ],
)
def test_a_request_that_is_not_ours_is_no_verdict(new_review: NewReview, change: Json, words: str) -> None:
    with pytest.raises(ReviewError) as caught:
        review(new_review(request=change))
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


@table(
    "body",
    [
        None,
        [],
        "text",
        {},
        {"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {}},
        {"apiVersion": "admission.k8s.io/v1", "kind": "Pod"},
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"},
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": "x"},
    ],
)
def test_a_body_that_is_no_review_is_no_verdict(body: Any) -> None:
    with pytest.raises(ReviewError, match=r"AdmissionReview|the review has no request"):
        review(body)


@pytest.mark.parametrize(
    ("name", "value", "is_warned"),
    [
        ("HF_ENDPOINT", "https://hub.example.org", True),
        ("NCCL_TUNER_PLUGIN", "/cache/t.so", True),
        ("NCCL_DEBUG", "INFO", False),
    ],
)
def test_a_variable_that_loads_what_was_not_judged_is_allowed_with_a_warning(
    new_review: NewReview, name: str, value: str, *, is_warned: bool
) -> None:
    response = review(new_review({"template": {"env": [{"name": name, "value": value}]}})).body["response"]
    assert response["allowed"]
    assert any(f"{name}: it loads" in line for line in response.get("warnings", ())) is is_warned


def test_more_warnings_than_the_api_server_passes_on_end_with_their_number() -> None:
    lines = [f"{number:0120d}" for number in range(50)]
    kept = within_limit(lines)
    assert sum(map(len, kept)) <= MAX_WARNINGS
    assert kept[:-1] == lines[:33]
    assert kept[-1] == "and 17 more: see the condition Accepted"
    assert within_limit(lines[:33]) == lines[:33]


@pytest.mark.parametrize("hostile", ["\ud800", "\x00", "\u202e", "x" * 100_000, 10**4000, True, None, 1.5, {}, []])
def test_nothing_in_a_spec_breaks_the_review(new_review: NewReview, hostile: Any) -> None:
    for spec in (
        {"model": hostile},
        {"model": {"name": hostile}},
        {"vllm": {"maxModelLen": hostile}},
        {"replicas": hostile},
    ):
        response = review(new_review(spec)).body["response"]
        assert json.loads(json.dumps(response)) == response
        assert response["allowed"] is True or response["status"]["code"] == 422


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_text_of_a_spec_reaches_the_terminal_of_whoever_applies_it(new_review: NewReview, text: str) -> None:
    """kubectl prints refusals and warnings as they are."""
    skip = {"annotations": {"kvgate.io/skip-budget": text}}
    specs = (
        TOO_BIG,
        {"model": {"name": text[:90]}},
        {"accelerator": {"type": text}},
        {**TOO_BIG, "vllm": {"maxNumSeqs": 64, "version": text, "quantization": text, "kvCacheDtype": text, text: 1}},
        {"vllm": {"extraArgs": [f"--{text}", text]}, "admission": {"policy": text}},
    )
    for spec in specs:
        for metadata in ({}, skip):
            response = review(new_review(spec, metadata=metadata)).body["response"]
            told = [*response.get("warnings", []), response.get("status", {}).get("message", "")]
            assert [
                line for line in told if not line.isprintable() or line.lstrip().startswith("::") or "##[" in line
            ] == []


@pytest.mark.parametrize(("given", "told"), [("chat", "chat"), (None, ""), ("x" * 1000, "x" * 253)])
def test_the_log_names_the_object(new_review: NewReview, given: str | None, told: str) -> None:
    for key in ("name", "namespace"):
        request = review(new_review(request={key: given})).request
        assert getattr(request, key) == told
