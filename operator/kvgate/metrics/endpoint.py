"""The plain-HTTP side of a process: /metrics, /livez, /readyz."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from kvgate.metrics.exporter import DeploymentSnapshot

Probe = Callable[[], tuple[bool, str]]
"""Returns whether all is well, and if not a short reason."""


_OPENMETRICS = "application/openmetrics-text"
_EOF = b"# EOF\n"
"""The last line of OpenMetrics."""


def endpoint_app(
    registry: CollectorRegistry, *, livez: Probe, readyz: Probe, deployments: DeploymentSnapshot | None = None
) -> web.Application:
    """Return the application for metrics and probes; the process defines what alive and ready mean."""
    app = web.Application()
    app.router.add_get("/metrics", _metrics_handler(registry, deployments))
    app.router.add_get("/livez", _probe_handler(livez))
    app.router.add_get("/readyz", _probe_handler(readyz))
    return app


def _metrics_handler(
    registry: CollectorRegistry, deployments: DeploymentSnapshot | None
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def metrics(request: web.Request) -> web.Response:
        """Answer from a thread, because thousands of series take a while."""
        body, content_type = await asyncio.to_thread(
            metrics_answer, request.headers.get("Accept", ""), registry, deployments
        )
        response = web.Response(body=body, headers={"Content-Type": content_type})
        response.enable_compression()
        return response

    return metrics


def metrics_answer(
    accept: str, registry: CollectorRegistry, deployments: DeploymentSnapshot | None
) -> tuple[bytes, str]:
    """Return the body and its content type, in the format that the scraper requests."""
    encode, content_type = choose_encoder(accept)
    body = encode(registry)
    if deployments is not None:
        is_openmetrics = content_type.startswith(_OPENMETRICS)
        end = _EOF if is_openmetrics else b""
        body = body.removesuffix(end) + deployments.text(units=is_openmetrics).encode(errors="replace") + end
    return body, content_type


def _probe_handler(probe: Probe) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        fine, reason = probe()
        return web.Response(status=200 if fine else 503, text=f"{reason}\n")

    return answer
