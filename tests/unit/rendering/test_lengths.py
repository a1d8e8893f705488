"""The longest requests that pods serve where vLLM chose max_model_len: the status, and the condition about the floor."""

from typing import Any

import pytest

from kvgate.api.conditions import Reason
from kvgate.api.status import MAX_LENGTHS
from kvgate.budget import Budget
from kvgate.judgement.assess import assess
from kvgate.judgement.facts import gather
from kvgate.rendering.lengths import Lengths, length_statement, lengths_of
from kvgate.rendering.observation import Observation, RunningEngine, ToldLength
from kvgate.statement.deployment import statement_of
from kvgate.vllm.metric_names import EngineReading
from support.manifests import an_owner

NOW = "template of now"


def budget(version: str = "0.33.0", length: int | str = "auto", least: int = 16_384) -> Budget:
    """Qwen3-8B on an L4, where auto finds 25,360 to 34,320 tokens of the model's 40,960."""
    spec = an_owner(
        accelerator={"type": "L4-24GB"},
        vllm={"version": version, "maxModelLen": length, "maxNumSeqs": 1},
        admission={"policy": "Warn", "adjust": {"minMaxModelLen": least}},
    ).spec
    found = assess(spec, gather(statement_of(spec))).effective
    assert found is not None
    return found


def told(*answers: ToldLength, blocks: int = 1600, template: str = NOW) -> Observation:
    reading = EngineReading(num_gpu_blocks=blocks, block_size=16)
    engines = tuple(RunningEngine(pod=each.pod, template_hash=template, reading=reading) for each in answers)
    return Observation(engines=engines, lengths=answers)


def length(pod: str, tokens: int | None) -> ToldLength:
    return ToldLength(pod=pod, tokens=tokens) if tokens else ToldLength(
        pod=pod, reason=Reason.API_KEY_REQUIRED, message="wants a key"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "status", "reason", "words"),
    [
        ((("a", 20_000), ("b", 16_384)), False, "LengthHeld", "every pod serves requests of 16,384 tokens, and the floor is 16,384"),
        ((("a", 20_000), ("b", 16_383)), True, "LengthTooShort", "pod b serves requests of at most 16,383 tokens, 1 fewer than the floor"),
        ((("a", 9_000), ("b", 8_000), ("c", None)), True, "LengthTooShort", "pod b serves requests of at most 8,000 tokens, 8,384 fewer"),
        ((("a", 20_000), ("b", None)), None, "ApiKeyRequired", "pod b wants a key"),
        ((), None, "NotObserved", "no pod of the current spec has told its longest request"),
    ],
)  # fmt: skip
def test_one_pod_below_the_floor_decides_and_one_that_tells_nothing_leaves_it_open(
    answers: Any, status: Any, reason: str, words: str
) -> None:
    seen = told(*(length(*each) for each in answers))
    ((kind, found, why, message),) = length_statement(lengths_of(seen, budget(), NOW), existed=False)
    assert (kind, found, why) == ("LengthBelowFloor", status, reason)
    assert message.startswith(words)


def test_the_shortest_come_first_and_only_pods_of_the_current_spec_count() -> None:
    seen = told(*(length(f"pod-{number:03}", 20_000 + number) for number in range(MAX_LENGTHS, -1, -1)))
    document = lengths_of(seen, budget(), NOW).document
    assert document is not None
    assert len(document) == MAX_LENGTHS
    assert document[0] == {"pod": "pod-000", "maxModelLen": 20_000}
    assert lengths_of(seen, budget(), "another") == Lengths(floor=16_384)


def test_before_0_20_the_front_end_tells_the_models_own_length_and_the_blocks_decide() -> None:
    """vLLM 0.19.1 has no `_apply_ready_response`: /v1/models shows 40,960 whatever the engine found."""
    seen = told(length("a", 40_960), blocks=1000)
    assert lengths_of(seen, budget("0.19.1"), NOW).tokens == ((1000 * 16, "a"),)
    assert lengths_of(seen, budget("0.20.1"), NOW).tokens == ((40_960, "a"),)


def test_a_given_length_is_nobodys_choice_and_without_a_floor_there_is_no_condition() -> None:
    seen = told(length("a", 4096))
    assert lengths_of(seen, budget(length=4096), NOW) == Lengths()
    without = lengths_of(seen, budget(least=1), NOW)
    assert without.tokens == ((4096, "a"),)
    assert length_statement(without, existed=False) == []
    ((_, status, reason, _),) = length_statement(without, existed=True)
    assert (status, reason) == (False, "LengthHeld")


def test_a_floor_above_the_models_own_length_is_that_length() -> None:
    found = lengths_of(told(length("a", 40_960)), budget(least=1_000_000), NOW)
    assert found.floor == 40_960
    ((_, status, _, _),) = length_statement(found, existed=False)
    assert status is False
