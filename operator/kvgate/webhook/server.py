"""HTTPS around the review: POST /validate. Each body has a limit of size and time, and all bodies together have a limit of bytes.

Mistakes of the caller are answered with 400, 408 or 413. Where there is no verdict, the answer is 429 or 503 if a later try or the other
replica may succeed (an API server asks again after `Retry-After`, within its own timeout), and 500 for a defect of kvgate. Then the
failurePolicy decides.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Histogram

from kvgate.metrics import exporter, registry
from kvgate.runtime.worker import NoAnswer, TaskFailed, TurnedAway
from kvgate.text.inert import inert_line
from kvgate.webhook.review import Answer, Mistake

MAX_BODY_BYTES = 8 << 20
"""Largest body. An API server sends the object twice, each is at most 1.5 MiB in etcd, and JSON may double that."""
MAX_BYTES_IN_FLIGHT = 24 << 20
"""Bytes of all bodies that were received and are not answered yet; a copy of each is sent to a worker."""
BODY_SECONDS = 5.0
"""Time from the last header to the last byte of the body; an API server sends both at once."""


_TOO_LARGE = f"the body is larger than {MAX_BODY_BYTES} bytes"
_DEFECT = "kvgate failed to judge this object; the log of the webhook has the traceback"


class BodyError(Exception):
    """The body was not received; the message says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(eq=False, slots=True)
class _Body:
    received: bytearray
    deadline: asyncio.Timeout | None = None
    """Set while the rest of the body is awaited."""
    is_shed: bool = False


class Bodies:
    """Bodies in flight. Beyond the limit the largest body that is not complete is refused; small ones never are."""

    def __init__(self, *, most_bytes: int = MAX_BYTES_IN_FLIGHT, seconds: float = BODY_SECONDS) -> None:
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._bodies: set[_Body] = set()
        self.bytes_in_flight = 0

    @contextlib.asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytes]:
        """Read the whole body, which counts as in flight until the block ends. Raises BodyError."""
        body = _Body(bytearray())
        self._bodies.add(body)
        try:
            yield await self._received(request, body)
        finally:
            self._bodies.discard(body)
            self.bytes_in_flight -= len(body.received)

    async def _received(self, request: web.Request, body: _Body) -> bytes:
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise BodyError(413, _TOO_LARGE)
        try:
            async with asyncio.timeout(self._seconds) as body.deadline:
                async for chunk in request.content.iter_any():
                    self._add(body, chunk)
        except TimeoutError:
            if body.is_shed:
                raise BodyError(
                    503, f"more than {self._most_bytes} bytes of requests are in flight; send it again"
                ) from None
            raise BodyError(408, f"the body was not complete within {self._seconds:g} s") from None
        except (OSError, web.RequestPayloadError) as error:
            raise BodyError(400, f"the body ended early: {error}") from None
        finally:
            body.deadline = None
        return bytes(body.received)

    def _add(self, body: _Body, chunk: bytes) -> None:
        body.received += chunk
        self.bytes_in_flight += len(chunk)
        if len(body.received) > MAX_BODY_BYTES:
            raise BodyError(413, _TOO_LARGE)
        leaving = sum(len(each.received) for each in self._bodies if each.is_shed)
        if body.is_shed or self.bytes_in_flight - leaving <= self._most_bytes:
            return
        unfinished = [(each, each.deadline) for each in self._bodies if each.deadline and not each.is_shed]
        largest, deadline = max(unfinished, key=lambda found: len(found[0].received))
        largest.is_shed = True
        deadline.reschedule(asyncio.get_running_loop().time())


RETRY_AFTER_SECONDS = 1
"""Pause before a review that found no room is sent again; an API server waits 5 s in all, unless its configuration has another limit."""

_log = logging.getLogger(__name__)


class ReviewInstruments(Struct, frozen=True, kw_only=True):
    reviews: Counter
    errors: Counter
    duration: Histogram

    @classmethod
    def registered(cls, into: CollectorRegistry) -> "ReviewInstruments":
        return cls(
            reviews=exporter.counter(registry.ADMISSION_REVIEWS, into),
            errors=exporter.counter(registry.ADMISSION_ERRORS, into),
            duration=exporter.histogram(registry.ADMISSION_REVIEW_DURATION, into),
        )


class Traffic:
    """Reviews under way. Once the process leaves, every answer closes its connection, so that the next review goes to the other replica."""

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
        """Return when nothing is under way, or when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()


Decide = Callable[[bytes], Awaitable[Answer | Mistake]]
"""Judges the body of a request. Raises NoAnswer."""


def validation_app(instruments: ReviewInstruments, traffic: Traffic, decide: Decide, bodies: Bodies) -> web.Application:
    async def validate(request: web.Request) -> web.Response:
        about: dict[str, str] = {}
        with exporter.timed(instruments.duration, about):
            try:
                async with bodies.read(request) as text:
                    return await _decided(text, instruments, decide, about)
            except BodyError as error:
                if error.status == web.HTTPServiceUnavailable.status_code:
                    instruments.errors.inc()
                return _problem(error.status, str(error))

    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[traffic.track])
    app.router.add_post("/validate", validate)
    return app


async def _decided(text: bytes, instruments: ReviewInstruments, decide: Decide, about: dict[str, str]) -> web.Response:
    """Judge a body, count, log, and translate the outcome into a response; the review's uid, by which the log has it, goes to `about`."""
    try:
        answer = await decide(text)
    except TaskFailed as error:
        instruments.errors.inc()
        _log.error("a review failed", extra={"fields": {"traceback": str(error)}})
        return _problem(500, _DEFECT)
    except NoAnswer as error:  # too many reviews, or a lost worker: the next try may succeed
        instruments.errors.inc()
        return _problem(429 if isinstance(error, TurnedAway) else 503, str(error))
    except Exception:  # noqa: BLE001 - whatever it is, the API server must learn that there is no verdict
        instruments.errors.inc()
        _log.exception("a review failed")
        return _problem(500, _DEFECT)
    if isinstance(answer, Mistake):
        return _problem(400, answer.message)
    request, response = answer.request, answer.body["response"]
    instruments.reviews.labels(answer.decision, answer.policy, request.operation).inc()
    about["uid"] = request.uid
    fields = {  # enough to find the object and the entry in the audit log
        "uid": request.uid,
        "operation": request.operation,
        "namespace": request.namespace,
        "name": request.name,
        "decision": answer.decision,
        "policy": answer.policy,
        "said": response.get("status", {}).get("message") or response.get("warnings", []),
    }
    _log.info("review", extra={"fields": fields})
    return web.json_response(answer.body)


def _problem(status: int, message: str) -> web.Response:
    _log.warning("no verdict", extra={"fields": {"status": status, "error": message}})
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status in (429, 503) else None
    response = web.json_response({"error": inert_line(message)}, status=status, headers=headers)
    if status in (408, 413, 503):  # the rest of the body is not wanted
        response.force_close()
    return response
