"""HTTPS around the review: POST /validate. The caller's mistakes are 400 and 413; ours are 500, and failurePolicy decides."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, Counter, Histogram

from kvgate import catalogue
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.facts import look_up_model
from kvgate.inert import inert_line
from kvgate.metrics import exporter, registry
from kvgate.unicode_text import NOT_UNICODE, parsed_has_lone_surrogate
from kvgate.webhook.review import Answer, ReviewError, review

MAX_BODY_BYTES = 8 << 20
"""An API server sends the object twice, each at most 1.5 MiB in etcd; JSON may double that."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruments:
    """What the door counts."""

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
        """From the last header of a review to its answer."""
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


def validation_app(
    instruments: Instruments, traffic: Traffic, decide: Callable[[Any], Answer] = review
) -> web.Application:
    """The application; `decide` is the review, and something else only where a test wants it to fail."""

    async def validate(request: web.Request) -> web.Response:
        with instruments.duration.time():
            try:
                text = (await request.read()).decode()
                body = json.loads(text)
            except web.HTTPRequestEntityTooLarge:
                return _problem(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
            except (OSError, web.RequestPayloadError) as error:
                return _problem(400, f"the body ended early: {error}")
            except (ValueError, RecursionError) as error:
                return _problem(400, f"the body is not JSON: {error}")
            if parsed_has_lone_surrogate(text, body):
                return _problem(400, f"the body is not text: {NOT_UNICODE}")
            return _decided(body, instruments, decide)

    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[traffic.track])
    app.router.add_post("/validate", validate)
    return app


def _decided(body: Any, instruments: Instruments, decide: Callable[[Any], Answer]) -> web.Response:
    """Runs in the event loop: it never waits, and a thread would only add the hand-over."""
    try:
        answer = decide(body)
    except ReviewError as error:
        return _problem(400, str(error))
    except Exception:  # noqa: BLE001 - whatever it is, the API server must learn that there is no verdict
        instruments.errors.inc()
        _log.exception("review failed")
        return _problem(500, "kvgate failed to judge this object; its log has the traceback")
    instruments.count(answer)
    _log.info("review", extra={"fields": _fields(answer)})
    return web.json_response(answer.body)


def _fields(answer: Answer) -> dict[str, object]:
    """For the log: enough to find the object and the audit entry."""
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
    return web.json_response({"error": inert_line(message)}, status=status)


def warm_up() -> None:
    """Build the API types and read every model once (half a second), so that no review waits for it."""
    InferenceDeployment.model_rebuild()
    catalogue.accelerators()
    for name in catalogue.model_names():
        look_up_model(name)
    catalogue.nearest_models("")
    catalogue.nearest_accelerators("")
