"""The plain-HTTP side of a process: /metrics, /livez, /readyz, and the runbooks that the alerts lead to."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted

from kvgate.metrics.exporter import DeploymentSnapshot

Probe = Callable[[], tuple[bool, str]]
"""Returns whether all is well, and if not a short reason."""


_OPENMETRICS = "application/openmetrics-text"
_EOF = b"# EOF\n"
"""The last line of OpenMetrics."""
_GZIP_LEVEL = 1
"""Names repeat so often that a higher level saves a few percent for three times the work."""


def endpoint_app(
    registry: CollectorRegistry, *, livez: Probe, readyz: Probe, deployments: DeploymentSnapshot | None = None
) -> web.Application:
    """Return the application for metrics and probes; the process defines what alive and ready mean."""

    async def metrics(request: web.Request) -> web.Response:
        """Answer from a thread, because thousands of series take a while; so does their compression."""
        body, headers = await asyncio.to_thread(_response, request.headers, registry, deployments)
        return web.Response(body=body, headers=headers)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/livez", _probe_handler(livez))
    app.router.add_get("/readyz", _probe_handler(readyz))
    app.router.add_get("/runbooks/{name}", _runbook)
    return app


def _response(
    query: Mapping[str, str], registry: CollectorRegistry, deployments: DeploymentSnapshot | None
) -> tuple[bytes, dict[str, str]]:
    body, content_type = metrics_answer(query.get("Accept", ""), registry, deployments)
    headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
    if not gzip_accepted(query.get("Accept-Encoding", "")):
        return body, headers
    return gzip.compress(body, compresslevel=_GZIP_LEVEL, mtime=0), {**headers, "Content-Encoding": "gzip"}


def metrics_answer(
    accept: str, registry: CollectorRegistry, deployments: DeploymentSnapshot | None
) -> tuple[bytes, str]:
    """Return the body and its content type, in the format that the scraper requests."""
    encode, content_type = choose_encoder(accept)
    body = encode(registry)
    if deployments is not None:
        is_openmetrics = content_type.startswith(_OPENMETRICS)
        end = _EOF if is_openmetrics else b""
        body = body.removesuffix(end) + deployments.text(units=is_openmetrics) + end
    return body, content_type


def _probe_handler(probe: Probe) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        fine, reason = probe()
        return web.Response(status=200 if fine else 503, text=f"{reason}\n")

    return answer


@lru_cache(maxsize=1)
def _runbooks() -> Mapping[str, str]:
    """Return the runbooks by the names of their files: as they are installed with kvgate, or from the repository."""
    package = Path(__file__).parents[1]
    return {
        page.name: page.read_text(encoding="utf-8")
        for docs in (package.parents[1] / "docs", package / "docs")
        for page in (docs / "runbooks").glob("Kvgate*.md")
    }


async def _runbook(request: web.Request) -> web.Response:
    """Answer with a runbook as it is written; a browser shows plain text where it would store Markdown as a file."""
    page = _runbooks().get(request.match_info["name"])
    if page is None:
        return web.Response(status=404, text=f"there is no such runbook; there are {', '.join(sorted(_runbooks()))}\n")
    return web.Response(text=page, content_type="text/plain", charset="utf-8")
