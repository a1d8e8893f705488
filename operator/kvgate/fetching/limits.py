"""The limits of a fetch, and the account of what it has used."""

from collections.abc import Callable
from threading import Event, Lock
from time import monotonic

from msgspec import Struct

from kvgate.checkpoint.not_fetched import Reason


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of one fetch; everything that a hub can choose is bounded by them."""

    max_seconds: float = 60
    """Seconds for everything, waiting included."""
    max_bytes: int = 192 << 20
    """Bytes of all answers together; the headers and the index of the largest published checkpoint have 50 MB."""
    max_requests: int = 4000
    """Requests, redirects included; the largest published checkpoints have 300 files."""
    max_redirects: int = 5
    """Redirects of one file; the hub needs two for a renamed repository."""
    request_seconds: float = 10
    """Seconds that a server may be silent."""
    retries: int = 2
    """Further tries where the connection broke, or the server had an error of its own."""
    pause_seconds: float = 0.5
    """Seconds before another try; twice as many before the next one."""
    max_retry_after_seconds: float = 10
    """Longest wait that a server may ask for; with a longer one the fetch ends."""
    num_parallel: int = 8
    """Files of one checkpoint that are read at once."""


LIMITS = Limits()


class CouldNotFetch(Exception):
    """The fetch ends without a checkpoint."""

    def __init__(self, reason: Reason, message: str, *remedies: str) -> None:
        super().__init__(message)
        self.reason, self.message, self.remedies = reason, message, remedies


class Spending:
    """Account of one fetch: its time, bytes and requests. Threads share it."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._end = clock() + limits.max_seconds
        self._bytes = self._requests = 0
        self._lock = Lock()

    @property
    def left_seconds(self) -> float:
        return self._end - self._clock()

    def check_time(self) -> None:
        """Raise CouldNotFetch where the time is over."""
        if self.left_seconds <= 0:
            raise CouldNotFetch(
                Reason.TIME_OVER,
                f"it was not fetched within {self.limits.max_seconds:g} seconds",
                "try again",
                "allow more time for it",
            )

    def take(self, *, requests: int = 0, num_bytes: int = 0) -> None:
        """Count requests and bytes of answers. Raises CouldNotFetch where there were too many, or the time is over."""
        self.check_time()
        with self._lock:
            self._requests += requests
            self._bytes += num_bytes
        limits = self.limits
        for used, most, what in (
            (self._requests, limits.max_requests, f"{limits.max_requests} requests"),
            (self._bytes, limits.max_bytes, f"{limits.max_bytes >> 20} MiB of answers"),
        ):
            if used > most:
                raise CouldNotFetch(Reason.TOO_LARGE, f"it needs more than {what}, the limit of a fetch")

    def pause(self, seconds: float) -> None:
        """Wait before another try. Raises CouldNotFetch where that takes longer than there is time."""
        if seconds >= self.left_seconds:
            Event().wait(max(self.left_seconds, 0))
            self.check_time()
        Event().wait(seconds)
