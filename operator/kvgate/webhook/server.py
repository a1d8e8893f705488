"""HTTPS around the review: POST /validate.

The caller's mistakes are 400, 408 and 413. Without a verdict the answer is 429 or 503 where another moment, or the other replica, may do
better (an API server asks again after `Retry-After`, within its own timeout), and 500 for a defect of ours; then failurePolicy decides.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, Counter, Histogram

from kvgate.metrics import exporter, registry
from kvgate.runtime.workers import NoAnswer, TaskFailed, TurnedAway
from kvgate.text.inert import inert_line
from kvgate.webhook.bodies import MAX_BODY_BYTES, Bodies, BodyError
from kvgate.webhook.review import Answer, Mistake

RETRY_AFTER_SECONDS = 1
"""Pause for reviews that found no room; an API server waits 5 s in all, unless its configuration has another limit."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruments:
    """Counters of the door."""

    reviews: Counter
    errors: Counter
    duration: Histogram

    @classmethod
    def registered(cls, into: CollectorRegistry) -> "Instruments":
        return cls(
            reviews=exporter.counter(registry.ADMISSION_REVIEWS, into),
            errors=exporter.counter(registry.ADMISSION_ERRORS, into),
            duration=exporter.histogram(registry.ADMISSION_REVIEW_DURATION, into),
        )

    def count(self, answer: Answer) -> None:
        """One answered review."""
        self.reviews.labels(answer.decision, answer.policy, answer.request.operation).inc()


class Traffic:
    """Reviews under way; once it is leaving, every answer closes its connection, so that the next review goes elsewhere."""

    def __init__(self) -> None:
        self.leaving = False
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @web.middleware
    async def track(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count a review from its last header to its answer."""
        self._under_way += 1
        self._idle.clear()
        try:
            response = await handler(request)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
        if self.leaving:
            response.force_close()
        return response

    async def idle(self, timeout_seconds: float) -> None:
        """Return once nothing is under way, or when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()


Decide = Callable[[bytes], Awaitable[Answer | Mistake]]
"""Judges the body of a request. Raises NoAnswer."""


def validation_app(instruments: Instruments, traffic: Traffic, decide: Decide, bodies: Bodies) -> web.Application:
    """The application; `decide` judges in a worker, and something else only where a test wants it to fail."""

    async def validate(request: web.Request) -> web.Response:
        with instruments.duration.time():
            try:
                async with bodies.read(request) as text:
                    return await _decided(text, instruments, decide)
            except BodyError as error:
                if error.status == web.HTTPServiceUnavailable.status_code:
                    instruments.errors.inc()
                return _problem(error.status, str(error))

    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[traffic.track])
    app.router.add_post("/validate", validate)
    return app


async def _decided(text: bytes, instruments: Instruments, decide: Decide) -> web.Response:
    try:
        answer = await decide(text)
    except NoAnswer as error:
        instruments.errors.inc()
        return _no_answer(error)
    except Exception:  # noqa: BLE001 - whatever it is, the API server must learn that there is no verdict
        instruments.errors.inc()
        _log.exception("review failed")
        return _problem(500, _DEFECT)
    if isinstance(answer, Mistake):
        return _problem(400, answer.message)
    instruments.count(answer)
    _log.info("review", extra={"fields": _fields(answer)})
    return web.json_response(answer.body)


_DEFECT = "kvgate failed to judge this object; its log has the traceback"


def _no_answer(error: NoAnswer) -> web.Response:
    """A defect of ours would come again; too many reviews, or a worker that was lost, need not."""
    if isinstance(error, TaskFailed):
        _log.error("review failed", extra={"fields": {"traceback": str(error)}})
        return _problem(500, _DEFECT)
    return _problem(429 if isinstance(error, TurnedAway) else 503, str(error))


def _fields(answer: Answer) -> dict[str, object]:
    """Return fields for the log: enough to find the object and the audit entry."""
    request, response = answer.request, answer.body["response"]
    return {
        "uid": request.uid,
        "operation": request.operation,
        "namespace": request.namespace,
        "name": request.name,
        "decision": answer.decision,
        "policy": answer.policy,
        "said": response.get("status", {}).get("message") or response.get("warnings", []),
    }


def _problem(status: int, message: str) -> web.Response:
    _log.warning("not answered", extra={"fields": {"status": status, "error": message}})
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status in (429, 503) else None
    response = web.json_response({"error": inert_line(message)}, status=status, headers=headers)
    if status in (408, 413, 503):  # the rest of the body is not wanted
        response.force_close()
    return response
