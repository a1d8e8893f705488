"""What an object is told and what is rendered while the hub is asked about its model, and afterwards. Pure."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.api.base import Document, KeyRef
from kvgate.api.conditions import Reason
from kvgate.api.validation import parse_document
from kvgate.checkpoint.published import ModelName, Published
from kvgate.checkpoint.stored import StoredModels, entry_key, packed
from kvgate.controller.decision import NO_CONFIG, Intent, Situation, assess_owner, config_text, decide, status_after
from kvgate.controller.fetches import Failure
from kvgate.controller.resolution import Origin, Resolution, Waiting, resolution, waiting_since
from kvgate.judgement.facts import ConfigMissing
from kvgate.rendering.status import previous_status
from support.admissions import kept, standing_of
from support.builders import new_llama_config
from support.manifests import a_deployment, a_document

NAME = ModelName("mine/small")
SMALL = new_llama_config()
LARGE = new_llama_config(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64)
ORIGIN = Origin(name=NAME.name, commit="0a1b", source="hub.example.org")
GATED = Failure(reason=Reason.GATED, message="mine/small is gated")
AWAY = Failure(reason=Reason.HUB_UNREACHABLE, message="no answer", is_temporary=True)
WAITING = Waiting(since=1000.0, seconds=60.0)


def found(config: dict[str, Any]) -> Resolution:
    models = StoredModels({entry_key(NAME.key): packed(Published(name=NAME.name, config=config))})
    return resolution({NAME: ORIGIN}, {}, models, waiting=WAITING, now=1001.0)


def open_still(answer: Failure | None = None, *, now: float = 1001.0, waiting: Waiting = WAITING) -> Resolution:
    return resolution({}, {NAME: answer}, StoredModels({}), waiting=waiting, now=now)


def run(document: Document, state: Resolution | None) -> tuple[Intent, Document]:
    """Decide once, and write the status into the object."""
    owner = parse_document(document)
    situation = Situation(document=document, owner=owner, resolution=state, standing=standing_of(document))
    intent = decide(
        situation, assess_owner(situation.judged_owner, NO_CONFIG, models=situation.models, skip=situation.skip)
    )
    kept(intent.admitted, document)
    before = previous_status(document, "2026-11-23T01:00:00Z")
    status = status_after(intent, name=owner.name, deployment=None, before=before, observation=None)
    document["status"] = status
    return intent, status


def told(status: Document) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}


def an_object(**spec: Any) -> Document:
    document: Document = a_document(**({"model": {"name": NAME.name}} | spec))
    document["metadata"]["generation"] = 1
    return document


def edited(document: Document, **vllm: Any) -> Document:
    document["spec"]["vllm"] = {**document["spec"].get("vllm", {}), **vllm}
    document["metadata"]["generation"] += 1
    return document


@pytest.mark.parametrize("policy", ["Reject", "Adjust", "Warn"])
def test_nothing_is_rendered_while_the_hub_is_asked_and_nothing_is_stalled(policy: str) -> None:
    intent, status = run(an_object(admission={"policy": policy}), open_still())
    assert intent.deployment is None
    assert intent.admitted is None
    assert {kind: told(status)[kind] for kind in ("Accepted", "Reconciling", "Stalled", "ModelResolved", "Ready")} == {
        "Accepted": ("Unknown", "Resolving"),
        "Reconciling": ("True", "Resolving"),
        "Stalled": ("False", "Resolving"),
        "ModelResolved": ("Unknown", "Resolving"),
        "Ready": ("False", "NotRendered"),
    }


@pytest.mark.parametrize(
    ("config", "accepted", "is_rendered"),
    [(SMALL, ("True", "Fits"), True), (LARGE, ("False", "BudgetExceeded"), False)],
)
def test_what_is_found_decides(config: dict[str, Any], accepted: tuple[str, str], *, is_rendered: bool) -> None:
    document = an_object()
    run(document, open_still())
    intent, status = run(document, found(config))
    assert told(status)["Accepted"] == accepted
    assert told(status)["ModelResolved"] == ("True", "Found")
    assert (intent.deployment is not None) == is_rendered
    source = intent.admitted.record.model_source if intent.admitted else None
    assert source == ("mine/small at commit 0a1b from hub.example.org" if is_rendered else None)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (open_still(GATED), "Gated"),
        (open_still(AWAY, now=1061.0), "HubUnreachable"),
        (open_still(now=1061.0), "TimeOver"),
    ],
)
def test_without_an_answer_the_object_is_rendered_as_if_nobody_had_asked(state: Resolution, reason: str) -> None:
    document = an_object()
    run(document, open_still())
    intent, status = run(document, state)
    assert intent.deployment is not None
    assert told(status)["Accepted"] == ("Unknown", "UnknownModel")
    assert told(status)["ModelResolved"] == ("False", reason)


def test_a_verdict_that_stands_is_not_changed_by_what_is_found_later() -> None:
    document = an_object()
    run(document, open_still(GATED))
    before = document["status"]
    intent, after = run(document, found(LARGE))
    assert intent.is_kept
    assert (after["recalibrated"]["verdict"], after["recalibrated"]["accepted"]) == ("DoesNotFit", "False")
    assert told(after).pop("PredictionOutdated") == ("True", "VerdictMoved")
    conditions = [each for each in after["conditions"] if each["type"] != "PredictionOutdated"]
    assert {**after, "conditions": conditions} == {**before, "recalibrated": after["recalibrated"]}
    edited(document, maxNumSeqs=8)
    intent, status = run(document, found(LARGE))
    assert told(status)["Accepted"] == ("False", "BudgetExceeded")
    assert intent.admitted is not None, "the admitted spec keeps running"
    assert intent.admitted.record.generation == 1


ASSUMED = ModelName("my-org/Qwen3-8B-AWQ")
"""A name that is in no catalogue, and whose facts are assumed from another model."""


def known_as(config: dict[str, Any]) -> Resolution:
    quantised = {**config, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    models = StoredModels({entry_key(ASSUMED.key): packed(Published(name=ASSUMED.name, config=quantised))})
    origin = Origin(name=ASSUMED.name, commit="0a1b", source="hub.example.org")
    return resolution({ASSUMED: origin}, {}, models, waiting=WAITING, now=1001.0)


def admitted_on_an_assumption(**spec: Any) -> Document:
    document = an_object(model={"name": ASSUMED.name}, **spec)
    intent, _ = run(document, resolution({}, {ASSUMED: GATED}, StoredModels({}), waiting=WAITING, now=1001.0))
    assert intent.admitted is not None
    assert intent.admitted.record.model_assumed is True
    return document


@pytest.mark.parametrize("sequences", [{"maxNumSeqs": 64}, {}], ids=["stated", "chosen"])
@pytest.mark.parametrize(
    ("config", "accepted"),
    [(SMALL, ("True", "Fits")), (LARGE, ("False", "BudgetExceeded"))],
    ids=["smaller", "larger"],
)
def test_what_was_admitted_on_an_assumption_is_judged_anew_and_its_pods_stay(
    config: dict[str, Any], accepted: tuple[str, str], sequences: dict[str, int]
) -> None:
    document = admitted_on_an_assumption(vllm={"maxModelLen": 4096, **sequences})
    before = document["status"]
    assert told(before)["Accepted"] == ("True", "Fits")
    pods = run(document, None)[0].template_hash
    for _ in range(2):
        intent, status = run(document, known_as(config))
        assert told(status)["Accepted"] == accepted
        assert told(status)["ModelResolved"] == ("True", "Found")
        assert (intent.template_hash, status["effective"]) == (pods, before["effective"])
    assert status["budget"] != before["budget"]


def test_adjusting_what_was_assumed_moves_no_pod_by_itself() -> None:
    vllm = {"maxModelLen": 4096, "maxNumSeqs": 256}
    document = admitted_on_an_assumption(vllm=vllm, accelerator={"type": "L4-24GB"}, admission={"policy": "Adjust"})
    before = document["status"]
    assert told(before)["Accepted"] == ("True", "ModelAssumed")
    intent, status = run(document, known_as(SMALL))
    assert (intent.is_kept, status["effective"]) == (True, before["effective"])
    assert told(status)["PredictionOutdated"] == ("True", "VerdictMoved")


def test_an_admitted_spec_keeps_running_while_the_model_of_the_next_one_is_fetched() -> None:
    document = an_object(model={"name": "Qwen/Qwen3-8B"})
    run(document, None)
    document["spec"]["model"] = {"name": NAME.name}
    intent, status = run(edited(document), open_still())
    assert intent.admitted is not None
    assert intent.deployment is not None
    assert "Qwen/Qwen3-8B" in str(intent.deployment.wanted)
    assert told(status)["Accepted"] == ("Unknown", "Resolving")
    ready = next(each for each in status["conditions"] if each["type"] == "Ready")
    assert "this one is not judged yet" in ready["message"]


def test_a_spec_of_the_catalogue_is_told_that_nobody_asks_for_it_any_more() -> None:
    document = an_object()
    run(document, open_still())
    document["spec"]["model"] = {"name": "Qwen/Qwen3-8B"}
    _, status = run(edited(document), None)
    assert told(status)["ModelResolved"] == ("Unknown", "NotAsked")


def test_without_a_hub_there_is_no_such_condition() -> None:
    _, status = run(an_object(), None)
    assert "ModelResolved" not in told(status)


def test_who_skips_the_budget_does_not_wait() -> None:
    document = an_object()
    document["metadata"]["annotations"] = {"kvgate.io/skip-budget": "on call"}
    intent, _ = run(document, open_still())
    assert intent.deployment is not None


def test_a_spec_that_vllm_refuses_in_any_case_is_refused_without_a_wait() -> None:
    _, status = run(an_object(vllm={"extraArgs": ["--no-such-option"]}), open_still())
    assert told(status)["Accepted"] == ("False", "SettingRefused")


def test_what_was_refused_by_numbers_that_are_lost_waits_for_them_whatever_the_hub_says() -> None:
    refused = replace(WAITING, was_found=True)
    for answer in (None, AWAY, GATED):
        state = open_still(answer, now=9999.0, waiting=refused)
        assert (state.is_held, state.reason) == (True, Reason.RESOLVING)
        assert "no longer stored" in state.message
        intent, status = run(an_object(), state)
        assert intent.deployment is None
        assert told(status)["Accepted"] == ("False", "Resolving"), "the alert about refused objects sees it"
        assert told(status)["Stalled"] == ("True", "Resolving")


def test_of_two_models_both_must_be_found() -> None:
    draft = ModelName("mine/draft", "v2")
    state = resolution({NAME: ORIGIN}, {draft: None}, StoredModels({}), waiting=WAITING, now=1001.0)
    assert state.is_held
    assert "mine/draft@v2" in state.message
    failed = replace(GATED, message="mine/draft is gated")
    state = resolution({NAME: ORIGIN}, {draft: failed}, StoredModels({}), waiting=WAITING, now=1001.0)
    assert (state.reason, state.is_held) == (Reason.GATED, False)


def test_a_fetched_draft_gives_a_verdict() -> None:
    small = catalogue.find_model("Qwen/Qwen3-0.6B")
    assert small is not None
    speculation = {"method": "draft_model", "model": "mine/draft", "num_speculative_tokens": 3}
    spec = {
        "model": {"name": "Qwen/Qwen3-8B"},
        "vllm": {"extraArgs": [f"--speculative-config={json.dumps(speculation)}"]},
    }
    draft = ModelName("mine/draft")
    models = StoredModels({entry_key(draft.key): packed(Published(name=draft.name, config=small.config))})
    document = an_object(**spec)
    _, status = run(document, resolution({}, {draft: None}, StoredModels({}), waiting=WAITING, now=1001.0))
    assert told(status)["Accepted"] == ("Unknown", "Resolving")
    _, status = run(document, resolution({draft: ORIGIN}, {}, models, waiting=WAITING, now=1002.0))
    assert told(status)["Accepted"] == ("True", "Fits")


def test_the_text_of_a_hub_reaches_no_terminal() -> None:
    origin = Origin.of(NAME, commit="\x1b[2J" + "x" * 500, source="hub\nAccepted=True")
    assert str(origin).isprintable()
    assert len(str(origin)) < 500


@pytest.mark.parametrize(("now", "reason"), [(1059.9, Reason.RESOLVING), (1060.0, Reason.TIME_OVER)])
def test_the_wait_is_over_at_its_end(now: float, reason: Reason) -> None:
    assert open_still(now=now).reason is reason


@pytest.mark.parametrize(("generation", "since"), [(2, 1795431600.0), (3, 1795431700.0)])
def test_a_new_process_goes_on_with_the_wait_of_this_generation_alone(generation: int, since: float) -> None:
    document = an_object()
    document["metadata"]["generation"] = generation
    condition = {"type": "ModelResolved", "status": "Unknown", "reason": "Resolving", "observedGeneration": 2}
    document["status"] = {"conditions": [{**condition, "lastTransitionTime": "2026-11-23T11:00:00Z"}]}
    assert waiting_since(document, 1795431700.0) == (since, False)


@pytest.mark.parametrize(
    ("data", "words"),
    [(None, "ConfigMap shared does not exist"), ({}, "config.json"), ({"password": "x"}, "config.json")],
    ids=["no ConfigMap", "an empty one", "another key"],
)
def test_a_config_that_is_missing_is_told_without_the_other_keys_of_its_config_map(
    data: dict[str, str] | None, words: str
) -> None:
    missing = config_text(KeyRef(name="shared", key="config.json"), None if data is None else {"data": data})
    assert isinstance(missing, ConfigMissing)
    assert words in missing.message
    assert "password" not in missing.message + missing.remediation


def test_a_reason_that_kvgate_did_not_write_is_no_defect() -> None:
    document = an_object()
    run(document, open_still())
    run(document, open_still(GATED))
    (condition,) = [each for each in document["status"]["conditions"] if each["type"] == "ModelResolved"]
    condition["reason"] = "Whatever"
    intent, _ = run(document, None)
    assert intent.is_kept


@pytest.mark.parametrize("status", ["True", "False", "Unknown"])
def test_a_standing_verdict_keeps_the_condition_that_it_was_made_with(status: str) -> None:
    document = an_object()
    run(document, open_still())
    run(document, open_still(GATED))
    (condition,) = [each for each in document["status"]["conditions"] if each["type"] == "ModelResolved"]
    condition["status"] = status
    _, after = run(document, None)
    assert told(after)["ModelResolved"] == (status, "Gated")


@pytest.mark.parametrize(
    "spec",
    [
        {}, {"vllm": {"maxNumSeqs": 64}, "admission": {"policy": "Adjust"}}, {"vllm": {"maxNumSeqs": 64}, "admission": {"policy": "Warn"}},
        {"admission": {"capacity": "Pinned"}}, {"model": {"name": "nobody/x"}},
    ],
    ids=str,
)  # fmt: skip
def test_a_second_run_of_a_standing_verdict_says_the_same(spec: dict[str, Any]) -> None:
    document = a_document(**spec)
    _, first = run(document, None)
    intent, second = run(document, None)
    assert intent.is_kept
    assert second == first
    assert intent.deployment is not None
    annotations = intent.deployment.wanted["spec"]["template"]["metadata"]["annotations"]
    assert intent.template_hash == annotations["kvgate.io/render-hash"] != ""


@pytest.mark.parametrize("is_going", [False, True])
def test_the_end_of_a_child_is_waited_for(*, is_going: bool) -> None:
    document = a_document()
    live = a_deployment()
    live |= {"kind": "Deployment", "apiVersion": "apps/v1"}
    live["metadata"]["ownerReferences"][0]["controller"] = True
    if is_going:
        live["metadata"]["deletionTimestamp"] = "2026-11-23T01:00:00Z"
    owner = parse_document(document)
    intent = decide(Situation(document=document, owner=owner, deployment=live), assess_owner(owner, NO_CONFIG))
    assert intent.obstacle is None
    assert (intent.deployment is None) is is_going
    assert intent.service is not None
