"""Judging in worker processes: no object keeps the event loop, or the objects of other namespaces, waiting."""

import contextlib

from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget.calibration import Calibration
from kvgate.budget.model_shape import ModelShape
from kvgate.controller.decision import Judged, judgements
from kvgate.controller.starts import ObservedStarts
from kvgate.judge.facts import ConfigMissing
from kvgate.runtime.workers import Limits, OutOfTime, Pool, WorkerLost

LIMITS = Limits(workers=2, budget_seconds=10.0, max_waiting=256, memory_bytes=128 << 20)
"""The dearest InferenceDeployment of the catalogue takes a tenth of a second; a config.json that somebody wrote for it may take
any time. Of each namespace as many objects may wait as are read in a few seconds."""

_ATTEMPTS = 2
"""A worker may be lost for another's sake, where the node has no memory; a second time it is the object."""


def judging_pool() -> Pool:
    """The controller's workers."""
    return Pool(LIMITS, preload=("kvgate.controller.decision",), by_content=(ModelShape,))


class JudgeWorkers:
    """Asks workers; one judgement of a namespace does not wait for another namespace's."""

    def __init__(self, pool: Pool, starts: ObservedStarts) -> None:
        self._pool = pool
        self._starts = starts

    async def __call__(
        self, owner: InferenceDeployment, config: str | ConfigMissing, calibration: Calibration
    ) -> Judged:
        """The judgement as far as it got within its time. Raises TurnedAway, or TaskFailed for a defect of ours."""
        self._pool.share(self._starts.calibration)
        asked = (owner, config, calibration)
        try:
            for _ in range(_ATTEMPTS):
                with contextlib.suppress(WorkerLost):
                    outcome = await self._pool.run(owner.namespace, judgements, *asked)
                    if not outcome.is_lost:
                        return outcome.value
        except OutOfTime:
            pass
        return next(judgements(*asked))
