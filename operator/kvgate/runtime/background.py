"""Loops in the background of a process: no exception ends one, each exception is counted, and each cause is logged once."""

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from traceback import extract_tb

FIRST_RETRY_SECONDS = 1.0
"""Pause after a first failure; each further failure doubles it, up to the interval of the loop."""
MAX_REMEMBERED = 4096
"""Causes that are remembered as logged; the oldest are forgotten, and would be logged again."""

_log = logging.getLogger(__name__)
_Cause = tuple[str, str, str]
"""Loop, object, and the exception's type with the file and line that raised it."""


class Troubles:
    """Failures in the loops of one process. Used in one thread, or in several whose loops have different names."""

    def __init__(self, count: Callable[[str], object]) -> None:
        """`count` is called with the loop's name, once per exception."""
        self._count = count
        self._logged: OrderedDict[_Cause, None] = OrderedDict()

    def note(self, loop: str, error: Exception, *, about: str = "", expected: type[Exception] | tuple[()] = ()) -> None:
        """Count an exception, and log it unless the same was logged since the loop (or this object of it) last worked.

        An expected kind of exception is logged without its traceback.
        """
        self._count(loop)
        frames = extract_tb(error.__traceback__, limit=-1)
        line = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "nowhere"
        cause = (loop, about, f"{type(error).__name__} at {line}")
        if cause in self._logged:
            return
        self._logged[cause] = None
        while len(self._logged) > MAX_REMEMBERED:
            self._logged.popitem(last=False)
        is_expected = isinstance(error, expected)
        of = f" of {about}" if about else ""
        _log.log(
            logging.WARNING if is_expected else logging.ERROR, "%s%s failed: %s: %s", loop, of, type(error).__name__, error,
            exc_info=None if is_expected else error, extra={"fields": {"loop": loop}},
        )  # fmt: skip

    def over(self, loop: str, *, about: str = "") -> None:
        """Note that the loop works, so that a failure from now on is logged again."""
        if self._logged:
            for cause in [cause for cause in self._logged if cause[:2] == (loop, about)]:
                del self._logged[cause]


async def repeat(
    loop: str, step: Callable[[], Awaitable[object]], *, interval_seconds: float, troubles: Troubles, spread: float = 0.0,
    pauses_first: bool = False, expected: type[Exception] | tuple[()] = (),
) -> None:  # fmt: skip
    """Run the step for ever, every `interval_seconds` (± the share `spread`). After a failure the pause is shorter, and then doubles."""
    failures = 0
    if pauses_first:
        await asyncio.sleep(_spread(interval_seconds, spread))
    while True:
        try:
            await step()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next step must come
            troubles.note(loop, error, expected=expected)
            pause_seconds = min(interval_seconds, FIRST_RETRY_SECONDS * 2.0 ** min(failures, 16))
            failures += 1
        else:
            troubles.over(loop)
            pause_seconds, failures = interval_seconds, 0
        await asyncio.sleep(_spread(pause_seconds, spread))


def _spread(seconds: float, share: float) -> float:
    return seconds * random.uniform(1 - share, 1 + share)  # noqa: S311 - so that replicas and clusters do not march in step
