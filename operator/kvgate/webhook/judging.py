"""Reviews in worker processes: the event loop never judges, and one namespace's reviews do not hold up another's."""

import logging
import re
from collections.abc import Callable
from pathlib import Path

from kvgate.budget import Calibration
from kvgate.calibration.records import Trust, read_records
from kvgate.rendering.pod import VLLM_ALONE
from kvgate.runtime.pool import Pool
from kvgate.runtime.worker import Limits, WorkerLost
from kvgate.webhook.review import Answer, Mistake, answers

WORKERS = 2
LIMITS = Limits(workers=WORKERS, budget_seconds=2.0, max_waiting=64, memory_bytes=128 << 20)
"""The slowest InferenceDeployment of the catalogue takes a twentieth of a second; so does the largest body that can be sent."""
WAIT_SECONDS = 2.5
"""Longest wait for a worker. Together with the budget it is less than the 5 s that an API server waits."""

_NAMESPACE = re.compile(rb'"namespace"\s*:\s*"([-a-z0-9]{1,63})"')
_HEAD_BYTES = 4096
"""Bytes that are searched for the namespace. An API server writes it before the object, after a few hundred bytes."""

_log = logging.getLogger(__name__)


def reviewing_pool(limits: Limits = LIMITS) -> Pool:
    """Return the webhook's workers."""
    return Pool(limits, preload=("kvgate.judge.warm",))


def namespace_in(text: bytes) -> str:
    """Return the namespace whose turn a review takes. It is searched without parsing, because it decides the order only.

    In a string JSON escapes the quotation mark, so only a key can look like this.
    """
    found = _NAMESPACE.search(text, 0, _HEAD_BYTES)
    return found[1].decode() if found else ""


class ReviewWorkers:
    """Answers bodies in worker processes, with the newest calibration."""

    def __init__(self, pool: Pool, calibration: Callable[[], Calibration]) -> None:
        self._pool = pool
        self._calibration = calibration

    async def __call__(self, text: bytes) -> Answer | Mistake:
        """Answer a body. Raises NoAnswer."""
        calibration = self._calibration()
        self._pool.share(calibration)
        task = (namespace_in(text), answers, text, calibration)
        try:
            return (await self._pool.run(*task, wait_seconds=WAIT_SECONDS)).value
        except WorkerLost:  # a node without memory may end a worker because of another review: try once more
            return (await self._pool.run(*task, wait_seconds=WAIT_SECONDS)).value


class StartsFile:
    """The observed starts of a mounted file, which may be missing: without it nothing was observed."""

    def __init__(self, path: Path | None, trust: Trust = VLLM_ALONE) -> None:
        self._path = path
        self._trust = trust
        self._text = ""
        self.calibration: Calibration = trust.calibration(())
        self.reload()

    def reload(self) -> None:
        """Read the file again if it changed, and log the lines that cannot be read."""
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace") if self._path else ""
        except OSError:
            text = ""
        if text == self._text:
            return
        self._text, records = text, read_records(text)
        for problem in records.problems:
            _log.warning("calibration: %s: %s", self._path, problem)
        self.calibration = self._trust.calibration(records.starts)
        _log.info("observed starts read", extra={"fields": {"starts": len(records.starts)}})
