"""Judging beside the controller's event loop: no object waits for another namespace's, whatever that one asks for."""

import asyncio
import json
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.api.validation import parse_document
from kvgate.budget.ground.interval import Verdict
from kvgate.budget.model.shape import ModelShape
from kvgate.budget.observed.calibration import NOTHING_OBSERVED
from kvgate.controller import judging
from kvgate.controller.decision import NO_CONFIG, Judged, assess_owner
from kvgate.controller.judging import judge_in_worker
from kvgate.controller.starts import ObservedStarts
from kvgate.judgement.assessment import Decision
from kvgate.runtime.pool import Pool
from kvgate.runtime.worker import NoAnswer, Outcome, OutOfTime, TurnedAway, WorkerLost
from support.builders import new_llama_config
from support.manifests import a_document
from support.waiting import turns

CONFIG_FROM = {"configMapKeyRef": {"name": "x", "key": "config.json"}}


def an_owner(namespace: str, **spec: Any) -> InferenceDeployment:
    document = a_document()
    document["metadata"]["namespace"] = namespace
    document["spec"].update(spec)
    return parse_document(document)


async def test_a_judgement_of_a_worker_is_the_engines() -> None:
    owner, starts = an_owner("serving"), ObservedStarts(None)
    async with Pool(judging.LIMITS, by_content=(ModelShape,)) as pool:
        judged = await judge_in_worker(pool, starts, owner, NO_CONFIG, starts.calibration)
    here = assess_owner(owner, NO_CONFIG)
    assert judged.assessment.findings == here.assessment.findings
    assert judged.assessment.decision is here.assessment.decision
    assert judged.accelerator == here.accelerator
    assert judged.assessment.budget is not None
    assert here.assessment.budget is not None
    assert judged.assessment.budget.tightest == here.assessment.budget.tightest
    assert judged.assessment.budget.request.calibration is starts.calibration


@pytest.mark.slow
async def test_what_takes_too_long_is_unknown_with_a_reason_and_no_other_namespace_waits() -> None:
    slow = an_owner("tenant", model={"name": "nobody/x", "configFrom": CONFIG_FROM})
    globs = [f"model.layers.{layer}.{'a*' * 180}{number}*" for layer in range(1024) for number in range(9)]
    config = new_llama_config(
        num_hidden_layers=1024, quantization_config={"quant_method": "fp8", "ignored_layers": globs}
    )
    text = json.dumps(config)
    async with Pool(judging.LIMITS, by_content=(ModelShape,)) as pool:
        judge = partial(judge_in_worker, pool, ObservedStarts(None))
        await asyncio.gather(*(judge(an_owner(name), NO_CONFIG, NOTHING_OBSERVED) for name in ("a", "b")))  # imports
        pool._limits = replace(judging.LIMITS, budget_seconds=0.08)
        waiting = [asyncio.create_task(judge(slow, text, NOTHING_OBSERVED)) for _ in range(4)]
        await turns()
        victim = await judge(an_owner("victim"), NO_CONFIG, NOTHING_OBSERVED)
        assert victim.assessment.verdict is not Verdict.UNKNOWN
        assert sum(task.done() for task in waiting) < 4
        for judged in await asyncio.gather(*waiting):
            assert judged.assessment.verdict is Verdict.UNKNOWN
            assert judged.assessment.decision is Decision.ADMIT_WITH_WARNING
            assert [finding.rule.id for finding in judged.assessment.findings] == ["AssessmentStopped"]


class LosingPool:
    """Loses the worker of so many tasks."""

    def __init__(self, *outcomes: Outcome[Judged] | NoAnswer) -> None:
        self._outcomes = list(outcomes)

    def share(self, _: object) -> None:
        return None

    async def run(self, *_: object) -> Outcome[Judged]:
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, NoAnswer):
            raise outcome
        return outcome


async def test_a_worker_may_be_lost_once_before_the_object_is_unknown() -> None:
    owner = an_owner("serving")
    good, half = assess_owner(owner, NO_CONFIG), assess_owner(an_owner("other"), NO_CONFIG)
    lost = Outcome(value=half, is_final=False, is_lost=True)

    async def judged_with(*outcomes: Outcome[Judged] | NoAnswer) -> Judged:
        judge = partial(judge_in_worker, LosingPool(*outcomes), ObservedStarts(None))  # type: ignore[arg-type]
        return await judge(owner, NO_CONFIG, NOTHING_OBSERVED)

    assert await judged_with(lost, Outcome(value=good)) is good
    assert await judged_with(WorkerLost(), Outcome(value=good)) is good
    starved = Outcome(value=half, is_final=False, is_starved=True)
    with pytest.raises(TurnedAway, match="too busy to judge serving/"):
        await judged_with(starved)
    for outcomes in ((lost, lost), (WorkerLost(), WorkerLost()), (OutOfTime(),)):
        judged = await judged_with(*outcomes)
        assert [finding.rule.id for finding in judged.assessment.findings] == ["AssessmentStopped"]
