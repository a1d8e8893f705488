"""What the process remembers of an object: a child is corrected as long as that helps, and what comes back is left for a while."""

import asyncio
import gc
from typing import Any

import pytest

from kvgate.api.conditions import Reason
from kvgate.cluster.client import Kind
from kvgate.controller.decision import Judged, Situation
from kvgate.controller.judging import judge_here
from kvgate.controller.memory import MAX_CORRECTIONS, REFUSED_SECONDS, WINDOW_SECONDS, Corrections, Memory
from kvgate.controller.records import pointers
from kvgate.controller.starts import ObservedStarts
from kvgate.metrics.exporter import DeploymentSnapshot
from kvgate.metrics.samples import PodSample
from kvgate.rendering.observation import Obstacle
from support.manifests import a_document, an_owner
from support.reconciling import FakeCluster, new
from support.waiting import Clock

KEY = ("serving", "qwen")
ENV, IMAGE = ("hash-1", "/spec/env/0"), ("hash-1", "spec.image")


@pytest.fixture
def corrections(clock: Clock) -> Corrections:
    return Corrections(clock)


def test_the_same_difference_is_corrected_a_few_times_in_an_hour(corrections: Corrections, clock: Clock) -> None:
    for _ in range(MAX_CORRECTIONS):
        assert corrections.may_try("Deployment", ENV)
        corrections.note("Deployment", ENV)
        clock.now += 60
    assert not corrections.may_try("Deployment", ENV)
    assert corrections.may_try("Deployment", IMAGE), "another difference is another matter"
    assert corrections.may_try("Service", ENV)
    assert corrections.may_try("Deployment", ("hash-2", *ENV[1:])), "and so is another rendering"
    clock.now = WINDOW_SECONDS + 1
    assert corrections.may_try("Deployment", ENV)


def test_what_a_webhook_changes_on_its_way_is_not_written_again(corrections: Corrections, clock: Clock) -> None:
    corrections.note("Deployment", ("hash-1", "all of it"), left=IMAGE)
    assert not corrections.may_try("Deployment", IMAGE)
    corrections.note("Deployment", ENV, left=ENV)
    assert not corrections.may_try("Deployment", ENV)
    clock.now = 3599
    assert not corrections.may_try("Deployment", IMAGE)
    clock.now = 3601
    assert corrections.may_try("Deployment", IMAGE)


@pytest.mark.parametrize(
    ("reason", "seconds"),
    [
        (Reason.API_REJECTED, WINDOW_SECONDS),
        (Reason.QUOTA_EXCEEDED, REFUSED_SECONDS),
        (Reason.ADMISSION_DENIED, REFUSED_SECONDS),
    ],
)
def test_what_is_refused_is_told_and_tried_again_later(
    corrections: Corrections, clock: Clock, reason: Reason, seconds: float
) -> None:
    obstacle = Obstacle(reason=reason, message="no")
    corrections.note("Deployment", ENV, obstacle=obstacle)
    clock.now = seconds - 1
    assert not corrections.may_try("Deployment", ENV)
    assert corrections.obstacle("Deployment", ENV) == obstacle
    clock.now = seconds + 1
    assert corrections.may_try("Deployment", ENV)
    assert corrections.obstacle("Deployment", ENV) is None


def test_pods_of_an_object_that_no_reconcile_has_shown_are_not_shown() -> None:
    memory = Memory(DeploymentSnapshot(), ObservedStarts(None))
    memory.see_pods({KEY: (PodSample(name="qwen-1-a", node="gpu-1", is_ready=True, restarts=0),)})
    assert memory.keys() == frozenset()


@pytest.mark.parametrize(
    ("record", "found"),
    [
        ({"record": "qwen-1", "digest": "ab"}, (("qwen-1", "ab"),)),
        ({"record": "qwen-1", "digest": "no name!"}, (("qwen-1", "no name!"),)),
        ({"record": "../secrets/a", "digest": "ab"}, ()),
        ({"record": "", "digest": "ab"}, ()),
        ("qwen-1", ()),
    ],
)
def test_a_status_names_a_record_only_where_the_name_may_be_asked_for(record: object, found: object) -> None:
    assert pointers({"status": {"admission": record}}, None) == found


async def test_the_deployment_that_a_run_has_made_is_observed_from_then_on() -> None:
    class Numbering(FakeCluster):
        async def apply(self, kind: Kind, body: dict[str, Any], *, is_first: bool = False) -> dict[str, Any]:
            applied = await super().apply(kind, body, is_first=is_first)
            applied["metadata"]["uid"] = f"uid of {kind.plural}"
            return applied

    memory = Memory(DeploymentSnapshot(), ObservedStarts(None))
    await new(Numbering(a_document()), memory)[0](KEY)
    assert memory.deployments() == {"uid of deployments": KEY}


async def test_equal_specs_are_judged_once_while_an_object_has_the_judgement() -> None:
    judged = list[str]()

    async def judge(owner: Any, *facts: Any) -> Judged:
        judged.append(owner.name)
        await asyncio.sleep(0)  # as a worker process would take a while
        return await judge_here(owner, *facts)

    memory = Memory(DeploymentSnapshot(), ObservedStarts(None), judge)

    def ask(name: str, **spec: Any) -> Any:
        return memory.judge(("serving", name), Situation(document=a_document(name), owner=an_owner(name, **spec)))

    await ask("a")
    memory.forget(("serving", "a"))
    gc.collect()
    found = [*await asyncio.gather(ask("b"), ask("c"), ask("d", replicas=2)), await ask("e")]
    assert len(set(map(id, found))) == 2
    assert judged == ["a", "b", "d"]
