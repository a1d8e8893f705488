"""The end of a break glass, on a cluster in memory: what was admitted keeps running, and the next change is judged without it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from integration.test_standing_verdicts import World, events
from kvgate.controller import reconcile
from support.reconciling import KEY, message, told

UNTIL = "2026-12-24T18:00:00Z"
BEFORE, AFTER = datetime(2026, 12, 24, 17, tzinfo=UTC), datetime(2026, 12, 24, 19, tzinfo=UTC)
TOO_MANY = {"maxNumSeqs": 64}


class Time:
    """Stands for `datetime` in the reconciler."""

    def __init__(self) -> None:
        self.time = BEFORE

    def now(self, _: object) -> datetime:
        return self.time


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr(reconcile, "datetime", found)
    return found


def skipping(until: str | None = UNTIL, **admission: Any) -> World:
    world = World(vllm=TOO_MANY, admission={"policy": "Reject", **admission})
    annotate(world, until)
    return world


def annotate(world: World, until: str | None) -> None:
    ends = {"kvgate.io/skip-budget-until": until} if until else {}
    world.document["metadata"]["annotations"] = {"kvgate.io/skip-budget": "load test", **ends}


def series(world: World) -> tuple[float | None, ...]:
    skip = world.memory._samples[KEY].skip
    return () if skip is None else (1, skip.until_seconds)


@pytest.mark.parametrize("recalibrate", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_the_pods_stay_when_it_ends_and_the_condition_says_so(
    time: Time, *, is_restarted: bool, recalibrate: bool
) -> None:
    world = await skipping(recalibrate=recalibrate).start()
    assert told(world.cluster)["Accepted"] == ("True", "BudgetSkipped")
    assert world.status["admission"]["decision"] == "Skipped"
    assert series(world) == (1, datetime.fromisoformat(UNTIL).timestamp())
    pods, budget, time.time = world.template, world.status["budget"], AFTER
    for _ in range(2):
        await (world.start() if is_restarted else world.resync())
        assert told(world.cluster)["Accepted"] == ("True", "BudgetSkipEnded")
        assert message(world.cluster, "Accepted").startswith(
            f"kvgate.io/skip-budget ended at {UNTIL}; what was admitted"
        )
        assert (world.template, world.status["budget"]) == (pods, budget)
        assert "PredictionOutdated" not in told(world.cluster)
        assert series(world) == (1, datetime.fromisoformat(UNTIL).timestamp())
    assert events(world).count(("Warning", "BudgetSkipEnded")) == 1


async def test_a_change_after_the_end_is_refused_and_what_was_admitted_keeps_running(time: Time) -> None:
    world = await skipping().start()
    pods, time.time = world.template, AFTER
    world.edit(replicas=2)
    await world.resync()
    assert told(world.cluster)["Accepted"] == ("True", "BudgetSkipEnded"), "scaling needs no verdict"
    world.edit(vllm={"maxNumSeqs": 65})
    await world.resync()
    assert told(world.cluster)["Accepted"] == ("False", "BudgetExceeded")
    assert message(world.cluster, "Accepted").startswith(f"kvgate.io/skip-budget ended at {UNTIL}; ")
    assert world.template == pods
    assert series(world) == (1, datetime.fromisoformat(UNTIL).timestamp()), "it still runs"


async def test_a_later_end_admits_again(time: Time) -> None:
    time.time = AFTER
    world = await skipping().start()
    assert told(world.cluster)["Accepted"] == ("False", "BudgetExceeded")
    assert series(world) == ()
    for until, end in (("2026-12-25T18:00:00Z", "2026-12-25T18:00:00Z"), (None, None)):
        annotate(world, until)
        await world.resync()
        assert told(world.cluster)["Accepted"] == ("True", "BudgetSkipped")
        assert series(world) == (1, end and datetime.fromisoformat(end).timestamp())


async def test_what_fits_has_nothing_to_skip(time: Time) -> None:
    world = skipping()
    world.document["spec"]["vllm"] = {"maxNumSeqs": 4}
    await world.start()
    before = world.stands()
    time.time = AFTER
    await world.resync()
    assert world.stands() == before
    assert told(world.cluster)["Accepted"] == ("True", "Fits")
    assert series(world) == ()
