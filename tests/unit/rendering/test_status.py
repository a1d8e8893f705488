"""The status document, from an assessment and what is seen of the pods."""

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate.api.conditions import Reason
from kvgate.api.status import InferenceDeploymentStatus
from kvgate.api.validation import InvalidDocument, parse_document
from kvgate.controller.decision import assess_owner
from kvgate.judgement.skipping import skip_of
from kvgate.rendering.observation import Crash, Observation, Obstacle, PodTrouble, RunningEngine
from kvgate.rendering.status import failed_status, halted_status, invalid_status, is_changed, previous_status, status_of
from kvgate.rendering.workload import NotRendered, render
from kvgate.vllm.metric_names import EngineReading
from support.manifests import NOW, a_deployment, a_document, an_owner
from support.tables import table

LATER = "2026-11-21T13:00:00Z"
TOO_MANY = {"maxNumSeqs": 64}
CURRENT = "0123456789abcdef"
"""The hash of what is rendered."""


def status(
    deployment: dict[str, Any] | None = None, *, previous: dict[str, Any] | None = None, now: str = NOW,
    obstacle: Obstacle | None = None, observation: Observation | None = None, **spec: Any,
) -> dict[str, Any]:  # fmt: skip
    document = a_document(**spec) | ({"status": previous} if previous else {})
    owner = an_owner(**spec)
    judged = assess_owner(owner, "", skip=skip_of(owner, datetime.now(UTC)))
    rendered = render(owner, judged.assessment, judged.accelerator)
    found = status_of(
        owner, judged.assessment, left_out=rendered if isinstance(rendered, NotRendered) else None, obstacle=obstacle,
        deployment=deployment, before=previous_status(document, now), observation=observation, template_hash=CURRENT,
    )  # fmt: skip
    InferenceDeploymentStatus.model_validate(found)
    assert [each["type"] for each in found["conditions"] if not each["message"]] == [], "each says why"
    return found


def conditions(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in found["conditions"]}


@table(
    ("deployment", "ready", "reconciling", "stalled"),
    [
        (None, ("False", "ReplicasNotReady"), ("True", "RollingOut"), "False"),
        (a_deployment(), ("True", "ReplicasReady"), ("False", "UpToDate"), "False"),
        (a_deployment(available=1), ("False", "ReplicasNotReady"), ("True", "RollingOut"), "False"),
        (a_deployment(updated=1), ("False", "ReplicasNotReady"), ("True", "RollingOut"), "False"),
        (a_deployment(observed=0), ("False", "ReplicasNotReady"), ("True", "RollingOut"), "False"),
        (a_deployment(existing=3), ("False", "ReplicasNotReady"), ("True", "RollingOut"), "False"),
        (
            a_deployment(available=0, stuck="has timed out"),
            ("False", "ReplicasNotReady"),
            ("False", "ProgressDeadlineExceeded"),
            "True",
        ),
        (
            a_deployment(wanted=0, existing=0, available=0, updated=0),
            ("True", "ScaledToZero"),
            ("False", "UpToDate"),
            "False",
        ),
    ],
)
def test_the_rollout_is_told_in_three_conditions(
    deployment: dict[str, Any] | None, ready: tuple[str, str], reconciling: tuple[str, str], stalled: str
) -> None:
    told = conditions(status(deployment, replicas=2))
    assert (told["Ready"], told["Reconciling"], told["Stalled"][0]) == (ready, reconciling, stalled)


def test_the_scale_subresource_finds_the_pods_by_the_selector_of_the_status() -> None:
    found = status(a_deployment(existing=3, available=1))
    assert (found["replicas"], found["readyReplicas"]) == (3, 1)
    assert found["selector"] == "kvgate.io/inferencedeployment=qwen"


def test_a_refusal_keeps_the_effective_values_of_what_still_runs() -> None:
    old = status(a_deployment())
    refused = status(a_deployment(), previous=old, vllm=TOO_MANY)
    told = conditions(refused)
    assert told["Accepted"] == ("False", "BudgetExceeded")
    assert told["Stalled"] == ("True", "BudgetExceeded")
    assert told["Ready"] == ("False", "NotRendered")
    assert told["Adjusted"] == ("False", "NotRendered")
    assert refused["effective"] == old["effective"]
    assert refused["budget"]["verdict"] == "DoesNotFit"
    assert refused["budget"]["headroomBytes"]["high"] < 0


def test_an_adjustment_shows_the_budget_of_what_is_rendered() -> None:
    adjusted = status(vllm=TOO_MANY, admission={"policy": "Adjust"})
    assert conditions(adjusted)["Adjusted"] == ("True", "Adjusted")
    assert adjusted["effective"]["maxNumSeqs"] == 9
    assert adjusted["budget"]["verdict"] == "Fits"


def test_the_break_glass_reason_is_a_condition() -> None:
    found = status(vllm=TOO_MANY, annotations={"kvgate.io/skip-budget": "because"})
    assert conditions(found)["Accepted"] == ("True", "BudgetSkipped")
    assert found["effective"]["maxNumSeqs"] == 64


def test_an_unknown_model_has_no_budget_and_says_why() -> None:
    found = status(model={"name": "nobody/x"})
    assert conditions(found)["Accepted"] == ("Unknown", "UnknownModel")
    assert conditions(found)["Predicted"] == ("False", "UnknownModel")
    assert "budget" not in found


def test_an_obstacle_stalls_without_changing_the_verdict() -> None:
    told = conditions(status(obstacle=Obstacle(reason=Reason.API_FORBIDDEN, message="no")))
    assert told["Accepted"] == ("True", "Fits")
    assert told["Stalled"] == ("True", "ApiForbidden")


def test_seeing_the_same_again_changes_nothing() -> None:
    first = status(a_deployment(), replicas=2)
    again = status(a_deployment(), replicas=2, previous=first, now=LATER)
    assert again == first
    assert not is_changed(
        previous_status({"metadata": {}, "status": first | {"later": {"by": "others"}}}, LATER), again
    )


def test_a_transition_time_moves_with_the_status_alone() -> None:
    first = status(replicas=2)
    second = status(a_deployment(available=1), replicas=2, previous=first, now=LATER)
    third = status(a_deployment(), replicas=2, previous=second, now=LATER)
    times = [{c["type"]: c["lastTransitionTime"] for c in found["conditions"]} for found in (second, third)]
    assert times[0]["Ready"] == NOW
    assert times[1]["Ready"] == LATER
    assert times[1]["Accepted"] == NOW
    assert is_changed(previous_status({"metadata": {}, "status": first}, LATER), second)


def test_an_object_that_cannot_be_read_is_told_every_finding() -> None:
    document = a_document(vllm={"maxModelLen": "x", "maxNumSeqs": "y"})
    with pytest.raises(InvalidDocument) as invalid:
        parse_document(document)
    found = invalid_status(
        "qwen", invalid.value.findings, deployment=a_deployment(), before=previous_status(document, NOW)
    )
    InferenceDeploymentStatus.model_validate(found)
    accepted = next(c for c in found["conditions"] if c["type"] == "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
    assert "maxModelLen" in accepted["message"]
    assert "maxNumSeqs" in accepted["message"]
    assert found["readyReplicas"] == 2


def test_a_halt_keeps_what_was_said_before() -> None:
    first = status(a_deployment(), replicas=2)
    state = previous_status(a_document() | {"status": first}, LATER)
    halted = halted_status(Obstacle(reason=Reason.API_FORBIDDEN, message="no"), state)
    assert conditions(halted)["Stalled"] == ("True", "ApiForbidden")
    assert conditions(halted)["Accepted"] == ("True", "Fits")
    assert halted["budget"] == first["budget"]


def test_conditions_that_cannot_be_read_are_written_anew() -> None:
    found = status(previous={"conditions": [{"type": "Accepted"}]})
    assert conditions(found)["Accepted"] == ("True", "Fits")


# ── what running pods say ─────────────────────────────────────────────────────────────────────────────────────────


def engine(tokens: int | None, *, pod: str = "a", template: str = CURRENT, blocks: int = 0) -> RunningEngine:
    """Qwen3-8B on an H100 is expected to hold 409,404 tokens in 25,587 blocks of 16."""
    reading = EngineReading(num_gpu_blocks=blocks or (tokens or 0) // 16, block_size=16, kv_cache_size_tokens=tokens)
    return RunningEngine(pod=pod, template_hash=template, reading=reading)


def expected_tokens() -> int:
    found: int = status()["budget"]["capacityTokens"]
    return found


def seen(*engines: RunningEngine, **options: Any) -> dict[str, Any]:
    return status(a_deployment(), observation=Observation(engines=engines), replicas=2, **options)


def test_until_somebody_has_looked_nothing_is_known_and_what_was_said_stays() -> None:
    fresh = status(a_deployment())
    assert conditions(fresh)["Observed"] == ("Unknown", "NoReadyPods")
    assert conditions(fresh)["PredictionDrift"] == ("Unknown", "NotObserved")
    assert "observed" not in fresh
    told = seen(engine(expected_tokens()))
    restarted = status(a_deployment(), previous=told, now=LATER, replicas=2)
    assert restarted == told


def test_the_smallest_of_all_pods_is_told_with_the_error_of_the_prediction() -> None:
    expected = expected_tokens()
    smaller = expected - expected // 50
    found = seen(engine(expected), engine(smaller, pod="b"))
    assert found["observed"] == {
        "kvCacheCapacityTokens": smaller, "numGpuBlocks": smaller // 16, "blockSize": 16, "pods": 2,
        "predictionErrorPercent": "-2.0", "observedTime": NOW,
    }  # fmt: skip
    assert conditions(found)["Observed"] == ("True", "CapacityReported")
    assert conditions(found)["PredictionDrift"] == ("False", "WithinTolerance")


RIGHT, WRONG = ("False", "WithinTolerance"), ("True", "CapacityDiffers")
LIE = ("True", "CapacityImpossible")


@pytest.mark.parametrize(("percent", "drift"), [(-6, WRONG), (-5, RIGHT), (5, RIGHT), (6, WRONG), (900, LIE)])
def test_beyond_five_percent_either_way_the_prediction_has_drifted(percent: int, drift: tuple[str, str]) -> None:
    expected = expected_tokens()
    rounded_up = percent < 0
    found = seen(engine(expected * (100 + percent) // 100 + rounded_up))
    assert conditions(found)["PredictionDrift"] == drift
    (message,) = [c["message"] for c in found["conditions"] if c["type"] == "PredictionDrift"]
    assert f"kvgate expects {expected:,}: {percent:+d}.0 %" in message


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "google/gemma-3-27b-it"])
@pytest.mark.parametrize(("share", "drift"), [(0.9, WRONG), (1.1, LIE), (1e6, LIE)])
def test_more_than_the_whole_gpu_would_hold_is_called_impossible(
    model: str, share: float, drift: tuple[str, str]
) -> None:
    spec = {"model": {"name": model}, "vllm": {"maxNumSeqs": 1}}
    budget = assess_owner(an_owner(**spec), "").assessment.effective
    assert budget is not None
    assert budget.kv_cache is not None
    assert budget.tightest is not None
    assert budget.tightest.ledger is not None
    whole = budget.kv_cache.num_tokens(budget.tightest.ledger.total_bytes // budget.tightest.bytes_per_block)
    found = seen(engine(int(whole * share)), **spec)
    assert conditions(found)["PredictionDrift"] == drift
    (message,) = [c["message"] for c in found["conditions"] if c["type"] == "PredictionDrift"]
    assert (f"its whole GPU would hold {whole:,} in the expected layout" in message) == (drift == LIE)


PINNED = {"admission": {"capacity": "Pinned"}}


def test_a_pinned_size_is_in_the_status_with_what_it_gives_away() -> None:
    profiled, found = status()["budget"], status(**PINNED)["budget"]
    pinned = found["pinned"]
    assert pinned["profiledKvCacheBytes"] == profiled["availableKvCacheBytes"]
    assert pinned["kvCacheBytes"] <= profiled["availableKvCacheBytes"]["low"] - 150 * 2**20
    assert found["availableKvCacheBytes"] == dict.fromkeys(("low", "expected", "high"), pinned["kvCacheBytes"])
    assert pinned["capacityTokens"] == found["capacityTokens"] == 16 * pinned["numBlocks"]
    assert pinned["forgoneTokens"] == profiled["capacityTokens"] - found["capacityTokens"] > 0
    assert pinned["forgoneBytes"] > 0
    assert found["ledger"] == profiled["ledger"]
    assert status(**PINNED)["effective"]["kvCacheMemoryBytes"] == pinned["kvCacheBytes"]
    assert "pinned" not in profiled
    assert "kvCacheMemoryBytes" not in status()["effective"]


def pinned_blocks() -> int:
    found: int = status(**PINNED)["budget"]["pinned"]["numBlocks"]
    return found


@pytest.mark.parametrize(
    ("blocks", "block_size", "drift"),
    [(0, 16, RIGHT), (-1, 16, WRONG), (1, 16, WRONG), (0, 32, RIGHT)],
    ids=["as pinned", "one less", "one more", "as many tokens in blocks of another size"],
)
def test_an_engine_has_what_was_pinned_to_the_block(blocks: int, block_size: int, drift: tuple[str, str]) -> None:
    size = pinned_blocks() * 16 // block_size + blocks
    reading = EngineReading(num_gpu_blocks=size, block_size=block_size, kv_cache_size_tokens=size * block_size)
    right = engine(pinned_blocks() * 16, pod="a")
    found = seen(right, RunningEngine(pod="b", template_hash=CURRENT, reading=reading), **PINNED)
    assert conditions(found)["PredictionDrift"] == drift
    (message,) = [c["message"] for c in found["conditions"] if c["type"] == "PredictionDrift"]
    assert (f"vLLM reports {size:,} blocks of {block_size} tokens, and {pinned_blocks():,} are pinned" in message) == (
        drift == WRONG
    )


def test_a_pinned_start_that_runs_out_of_memory_says_what_was_pinned() -> None:
    crash = Crash(pod="a", template_hash=CURRENT, reason=Reason.OUT_OF_MEMORY, message="vLLM reports: no")
    found = status(a_deployment(available=1), observation=Observation(crashes=(crash,)), replicas=2, **PINNED)
    (message,) = [c["message"] for c in found["conditions"] if c["type"] == "Stalled"]
    assert "are pinned for the KV cache, and the start took more than predicted" in message
    assert "set spec.admission.capacity to Profiled" in message


def test_pods_of_an_earlier_spec_have_a_capacity_and_no_error() -> None:
    found = seen(engine(1000, template="earlier"))
    assert found["observed"]["kvCacheCapacityTokens"] == 1000
    assert "predictionErrorPercent" not in found["observed"]
    assert conditions(found)["PredictionDrift"] == ("Unknown", "NotObserved")
    assert said(found, "PredictionDrift") == "no pod of the current spec has reported its capacity"


def test_where_nothing_was_predicted_no_pod_is_missing() -> None:
    found = seen(engine(1000), model={"name": "nobody/x"})
    assert said(found, "PredictionDrift") == "nothing was predicted"


def said(found: dict[str, Any], kind: str) -> str:
    """The message of one condition."""
    return next(str(each["message"]) for each in found["conditions"] if each["type"] == kind)


@pytest.mark.parametrize(
    ("model", "told"),
    [({"name": "Qwen/Qwen3-8B"}, 16_000), ({"name": "nobody/x"}, None)],
)
def test_before_0_24_tokens_follow_from_blocks_if_the_model_is_known(model: dict[str, str], told: int | None) -> None:
    found = seen(engine(None, blocks=1000), model=model)
    assert found["observed"].get("kvCacheCapacityTokens") == told
    assert found["observed"]["numGpuBlocks"] == 1000
    (message,) = [c["message"] for c in found["conditions"] if c["type"] == "Observed"]
    assert "1,000 blocks of 16 tokens" in message


def test_blocks_of_ranks_that_share_the_cache_of_a_request_are_counted_together() -> None:
    found = seen(engine(None, blocks=1000), vllm={"tensorParallelSize": 16, "decodeContextParallelSize": 2})
    assert found["observed"]["kvCacheCapacityTokens"] == 2 * 16_000


def test_a_cache_of_several_groups_is_counted_as_its_release_does_and_not_by_blocks() -> None:
    found = seen(engine(None, blocks=1000), model={"name": "google/gemma-3-27b-it"}, vllm={"maxNumSeqs": 1})
    assert 0 < found["observed"]["kvCacheCapacityTokens"] != 16_000


def test_the_time_moves_with_the_size_alone() -> None:
    first = seen(engine(1600))
    more_pods = seen(engine(1600), engine(1600, pod="b"), previous=first, now=LATER)
    assert (more_pods["observed"]["observedTime"], more_pods["observed"]["pods"]) == (NOW, 2)
    smaller = seen(engine(1584), previous=first, now=LATER)
    assert smaller["observed"]["observedTime"] == LATER


def test_when_no_pod_is_ready_the_last_size_goes() -> None:
    gone = status(a_deployment(), previous=seen(engine(1600)), observation=Observation(), replicas=2)
    assert "observed" not in gone
    assert conditions(gone)["Observed"] == ("Unknown", "NoReadyPods")


def test_a_pod_that_cannot_be_read_is_told_beside_those_that_can() -> None:
    troubles = tuple(PodTrouble(pod=pod, reason=Reason.NOT_VLLM, message="is nginx; do this") for pod in ("b", "c"))
    found = status(a_deployment(), observation=Observation(engines=(engine(1600),), troubles=troubles))
    assert conditions(found)["Observed"] == ("False", "NotVLLM")
    assert found["observed"]["pods"] == 1
    (message,) = [c["message"] for c in found["conditions"] if c["type"] == "Observed"]
    assert message == "pod b is nginx; do this; 1 more pods cannot be read"


@pytest.mark.parametrize("reason", [Reason.KV_CACHE_TOO_SMALL, Reason.OUT_OF_MEMORY, Reason.ENGINE_REFUSED_TO_START])
def test_a_crash_stalls_with_vllms_words_and_the_prediction_beside_them(reason: Reason) -> None:
    crash = Crash(pod="a", template_hash=CURRENT, reason=reason, message="vLLM reports: no")
    found = status(a_deployment(available=1), observation=Observation(crashes=(crash,)), replicas=2)
    told = conditions(found)
    assert (told["Ready"], told["Stalled"]) == (("False", reason), ("True", reason))
    assert told["Reconciling"][0] == "False"
    (message,) = [c["message"] for c in found["conditions"] if c["type"] == "Stalled"]
    assert message.startswith("pod a: vLLM reports: no")
    assert ("kvgate expects 56.2" in message) == (reason is not Reason.ENGINE_REFUSED_TO_START)


def test_a_crash_of_an_earlier_spec_or_of_a_complete_rollout_stalls_nothing() -> None:
    crash = Crash(pod="a", template_hash="earlier", reason=Reason.OUT_OF_MEMORY, message="")
    old = status(a_deployment(available=1), observation=Observation(crashes=(crash,)), replicas=2)
    assert conditions(old)["Stalled"][0] == "False"
    current = Observation(crashes=(replace(crash, template_hash=CURRENT),))
    assert conditions(status(a_deployment(), observation=current, replicas=2))["Ready"][0] == "True"


@pytest.mark.parametrize("generation", [1, 2])
def test_a_defect_keeps_what_was_known_of_this_generation(generation: int) -> None:
    document = a_document(generation=generation) | {"status": status(a_deployment(), replicas=2)}
    found = failed_status(previous_status(document, LATER), ValueError("x"))
    told = conditions(found)
    assert found["observedGeneration"] == generation
    assert told["Accepted"] == (("True", "Fits") if generation == 1 else ("Unknown", "CannotBeJudged"))
    assert (told["Reconciling"], told["Stalled"]) == (("False", "CannotBeJudged"), ("True", "CannotBeJudged"))
    assert found["effective"]["maxNumSeqs"] == 4


def test_observations_are_equal_by_what_they_report_and_not_by_remarks() -> None:
    one = Observation(engines=(engine(1600),), remark="x")
    assert one == Observation(engines=(engine(1600),))
    assert not one != Observation(engines=(engine(1600),))  # noqa: SIM202 - the operator itself
    assert one != Observation(engines=(engine(1616),))
    assert one != Observation()
    assert hash(one) == hash(Observation(engines=(engine(1600),)))
