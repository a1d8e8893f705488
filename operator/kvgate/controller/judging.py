"""Judging in worker processes: one object's verdict holds up neither the event loop nor the objects of other namespaces."""

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget import Calibration
from kvgate.checkpoint.published import NO_MODELS, PublishedModels
from kvgate.controller.decision import Judged, assess_owner, judgements
from kvgate.controller.starts import ObservedStarts
from kvgate.judgement.facts import ConfigMissing
from kvgate.judgement.skipping import Skip
from kvgate.nodes.offer import Offer
from kvgate.runtime.pool import Pool
from kvgate.runtime.worker import Limits, OutOfTime, TurnedAway, WorkerLost

LIMITS = Limits(workers=2, budget_seconds=10.0, max_waiting=256, memory_bytes=128 << 20)
"""The slowest InferenceDeployment of the catalogue takes a tenth of a second; a config.json that somebody wrote to be slow may take any
time. The number of objects of one namespace that may wait is what is read in a few seconds."""

_ATTEMPTS = 2
"""A node without memory may end a worker because of another task. Where the worker is lost twice, the object itself is the cause."""

Judge = Callable[
    [InferenceDeployment, str | ConfigMissing, Calibration, PublishedModels, Skip | None, Offer | None],
    Awaitable[Judged],
]
"""Judges an object with the text behind configFrom, the observed starts, what was fetched about its models, its break glass, and what the
nodes have."""


async def judge_here(
    owner: InferenceDeployment,
    config: str | ConfigMissing,
    calibration: Calibration,
    models: PublishedModels = NO_MODELS,
    skip: Skip | None = None,
    offer: Offer | None = None,
) -> Judged:
    """Judge in the event loop, for callers without other work in it."""
    return assess_owner(owner, config, calibration, models, skip, offer)


async def judge_in_worker(
    pool: Pool, starts: ObservedStarts, owner: InferenceDeployment, config: str | ConfigMissing, calibration: Calibration,
    models: PublishedModels = NO_MODELS, skip: Skip | None = None, offer: Offer | None = None, *, audits: bool = False,
) -> Judged:  # fmt: skip
    """Judge in a worker process, where no namespace waits for another one's judgements, as far as the time allows.

    Raises TurnedAway, or TaskFailed for a defect of kvgate.
    """
    pool.share(starts.calibration)
    judge, task = partial(judgements, audits=audits), (owner, config, calibration, models, skip, offer)
    with contextlib.suppress(OutOfTime):
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(WorkerLost):
                outcome = await pool.run(owner.namespace, judge, *task)
                if outcome.is_starved:
                    raise TurnedAway(f"the machine was too busy to judge {owner.namespace}/{owner.name}")
                if not outcome.is_lost:
                    return outcome.value
    return next(judge(*task))
