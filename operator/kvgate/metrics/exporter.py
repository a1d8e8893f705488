"""The instruments of a process, the text of the metrics of InferenceDeployments, and the endpoint that serves both.

The text is written here, because prometheus_client takes three times as long, and what did not change since the last scrape is kept.
The names can be carried by every format, so the formats differ by the line with the unit, and by the name of a counter's family.
"""

import asyncio
import contextlib
import gzip
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import lru_cache
from math import isfinite
from pathlib import Path
from types import MappingProxyType

from aiohttp import web
from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.utils import floatToGoString

from kvgate import __version__, catalogue
from kvgate.metrics import registry
from kvgate.metrics.registry import OWNER_LABELS, Metric, MetricType
from kvgate.metrics.samples import PARTS, DeploymentSample, Part, label

_MAX_EXEMPLAR_CHARACTERS = 128
"""All names and values of an exemplar's labels together: OpenMetrics 1.0."""
_PLAIN = re.compile("[A-Za-z0-9._:-]*")
"""Texts that need no escape: not every reader of exemplars takes one."""
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


def new_registry() -> CollectorRegistry:
    """Return a registry with what both processes serve: the build, the catalogues, and the process's CPU and memory."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # they would be a second series per counter
    into = CollectorRegistry()
    ProcessCollector(registry=into)
    gauge(registry.BUILD_INFO, into).labels(__version__).set(1)
    entries = gauge(registry.CATALOGUE_ENTRIES, into)
    entries.labels("models").set(len(catalogue.model_names()))
    entries.labels("accelerators").set(len(catalogue.accelerators()))
    return into


def counter(metric: Metric, into: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=into)


def gauge(metric: Metric, into: CollectorRegistry) -> Gauge:
    return Gauge(metric.name, metric.help, metric.labels, unit=metric.unit, registry=into)


def histogram(metric: Metric, into: CollectorRegistry) -> Histogram:
    return Histogram(metric.name, metric.help, metric.labels, unit=metric.unit, buckets=metric.buckets, registry=into)


@contextlib.contextmanager
def timed(durations: Histogram, about: dict[str, str]) -> Iterator[None]:
    """Record how long the block takes, with an exemplar that says which run it was; the block may add to `about`.

    Only OpenMetrics shows exemplars. One that OpenMetrics does not allow, or whose text is not plain, is left out.
    """
    began = time.perf_counter()
    try:
        yield
    finally:
        texts = [*about, *about.values()]
        fits = sum(map(len, texts)) <= _MAX_EXEMPLAR_CHARACTERS and all(map(_PLAIN.fullmatch, texts))
        durations.observe(time.perf_counter() - began, about if about and fits else None)


Samples = Mapping[tuple[str, str], DeploymentSample]
"""Samples by (namespace, name)."""


class _Written(Struct, frozen=True, kw_only=True):
    """The lines of one object, by part and family."""

    sample: DeploymentSample
    bases: tuple[object, ...]
    parts: tuple[tuple[bytes, ...], ...]

    @classmethod
    def of(cls, sample: DeploymentSample, before: "_Written | None") -> "_Written":
        """Write only the parts that differ from `before`: usage changes with every look at the pods, and a verdict hardly ever."""
        if before is not None and before.sample is sample:
            return before
        bases = tuple(part.basis(sample) for part in PARTS)
        known = before or cls(sample=sample, bases=(None,) * len(PARTS), parts=((),) * len(PARTS))
        parts = (
            lines if basis == was else _lines(sample, part)
            for part, basis, was, lines in zip(PARTS, bases, known.bases, known.parts, strict=True)
        )
        return cls(sample=sample, bases=bases, parts=tuple(parts))


class DeploymentSnapshot:
    """The samples that were published last; an object without a sample has no series in the next scrape."""

    def __init__(self) -> None:
        self.samples: Samples = MappingProxyType({})
        """The samples of one publication."""
        self._written: Mapping[tuple[str, str], _Written] = {}

    def publish(self, samples: Samples) -> None:
        """Replace all samples; a scrape sees the old ones or the new ones, never a mixture."""
        self.samples = MappingProxyType(dict(samples))

    def text(self, *, units: bool) -> bytes:
        """Return the text of all series, family by family, each in the order of the keys; `units` is for OpenMetrics.

        Two threads may write at once; each leaves what it wrote to the next.
        """
        before = self._written
        written = {key: _Written.of(sample, before.get(key)) for key, sample in sorted(self.samples.items())}
        self._written = written
        families: dict[str, list[bytes]] = {}
        for metric in registry.PER_DEPLOYMENT:  # OpenMetrics names a counter's family without its last word
            name = metric.name.removesuffix("_total") if units and metric.kind is MetricType.COUNTER else metric.name
            unit = f"# UNIT {name} {metric.unit}\n" if units and metric.unit else ""
            families[metric.name] = [f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n{unit}".encode()]
        for number, part in enumerate(PARTS):
            columns = zip(*(each.parts[number] for each in written.values()), strict=True)
            for metric, column in zip(part.metrics, columns, strict=False):  # no column where there is no object
                families[metric.name].extend(column)
        return b"".join(line for family in families.values() for line in family)


def _lines(sample: DeploymentSample, part: Part) -> tuple[bytes, ...]:
    found = dict.fromkeys([metric.name for metric in part.metrics], "")
    owner = _pairs(OWNER_LABELS, (label(sample.namespace), label(sample.name)))
    for metric, values, figure in part.series(sample):
        name = metric.name
        more = "," + _pairs(metric.labels[2:], values) if values else ""
        number = repr(figure) if isfinite(figure) else floatToGoString(figure)  # type: ignore[no-untyped-call]
        found[name] += f"{name}{{{owner}{more}}} {number}\n"
    return tuple(lines.encode(errors="replace") for lines in found.values())


@lru_cache(maxsize=1 << 14)
def _pairs(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Return the labels as text. Bounds, terms, conditions and pods are the same at every scrape, and are most of the work."""
    return ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True)])


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
