"""A process's metrics, pushed to an OpenTelemetry receiver (OTLP over HTTP with protobuf) under the names that /metrics has.

One thread reads what /metrics serves and sends it in small requests, with pauses as long as its work took. It keeps nothing that it could
not send: the next push has newer figures. Needs the extra `otlp`.
"""

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import chain, groupby, pairwise
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample
from requests.adapters import HTTPAdapter

from kvgate import __version__
from kvgate.metrics.exporter import DeploymentSnapshot
from kvgate.metrics.registry import OWNER_LABELS, Metric, MetricType
from kvgate.metrics.samples import DeploymentSample, label, series_of
from kvgate.runtime.background import Troubles
from kvgate.runtime.service import OtlpOptions

LOOP = "otlp"
"""Name in kvgate_background_errors_total."""
MOST_POINTS = 1000
"""Data points of one request: about 200 KiB, and 30 ms of work."""
REQUEST_SECONDS = 10.0
"""Time for one request with its retries, unless the interval is shorter."""
STOP_SECONDS = 1.0
"""Time in which a stopping process waits for the thread, which may hang in a request; it ends with the process."""
_PATH = "/v1/metrics"
_MOST_ANSWER_BYTES = 4096
_CUMULATIVE = sdk.AggregationTemporality.CUMULATIVE
_UNITS = {"bytes": "By", "seconds": "s", "ratio": "1", "tokens": "{token}"}
"""OpenTelemetry's units (UCUM) by the last word of a name."""


class PushFailed(Exception):
    """The receiver did not take the metrics; the message says why."""


@contextlib.asynccontextmanager
async def pushing(
    options: OtlpOptions, service: str, registry: CollectorRegistry, troubles: Troubles,
    deployments: DeploymentSnapshot | None = None,
) -> AsyncIterator[None]:  # fmt: skip
    """Push until the block ends, which then waits for STOP_SECONDS at most."""
    pusher = Pusher(options, service, registry, troubles, deployments)
    pusher.start()
    try:
        yield
    finally:
        await asyncio.to_thread(pusher.stop)


class Pusher:
    """The thread and its connection. `service` is the name of the process."""

    def __init__(
        self, options: OtlpOptions, service: str, registry: CollectorRegistry, troubles: Troubles,
        deployments: DeploymentSnapshot | None = None,
    ) -> None:  # fmt: skip
        self._options = options
        self._registry = registry
        self._deployments = deployments
        self._troubles = troubles
        self._stopping = threading.Event()
        self._since_ns = time.time_ns()
        """Beginning of all counters."""
        self._resource = resource_of(service)
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # each cause is logged once, by us
        self._connection, session = _Connection(), requests.Session()
        session.stream = True  # the connection reads the answer, if anything of it
        for scheme in ("http://", "https://"):
            session.mount(scheme, self._connection)
        self._exporter = OTLPMetricExporter(
            endpoint=endpoint_of(options.endpoint), session=session,
            timeout=min(REQUEST_SECONDS, options.interval_seconds),
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, or leave it behind where it hangs."""
        self._stopping.set()
        self._exporter.shutdown()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._options.interval_seconds
            try:
                self.push(until=due)
            except Exception as error:  # noqa: BLE001 - the thread must outlive whatever it is
                if not self._stopping.is_set():
                    self._troubles.note(LOOP, error, expected=PushFailed)
            else:
                self._troubles.over(LOOP)

    def push(self, *, until: float) -> None:
        """Send all series as of now. Raises PushFailed."""
        now_ns, worked = time.time_ns(), time.thread_time()
        own = [_own_metric(family, self._since_ns, now_ns) for family in self._registry.collect() if family.samples]
        samples = self._deployments.samples.values() if self._deployments else ()
        for metrics in chain([own], _deployment_metrics(samples, self._since_ns, now_ns)):
            scope = sdk.ScopeMetrics(scope=InstrumentationScope("kvgate", __version__), metrics=metrics, schema_url="")
            whole = sdk.ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")
            self._connection.problem = "the metrics cannot be encoded"
            result = self._exporter.export(sdk.MetricsData(resource_metrics=[whole]))
            if self._connection.problem or result is not sdk.MetricExportResult.SUCCESS:
                raise PushFailed(f"{self._options.endpoint}: {self._connection.problem}")
            if self._stopping.wait(time.thread_time() - worked):  # the other threads get at least as much
                return
            worked = time.thread_time()
            if time.monotonic() > until:
                raise PushFailed(
                    f"the receiver needs more than the {self._options.interval_seconds:g} s between two pushes"
                )


class _Connection(HTTPAdapter):
    """A connection that knows what became of the last request, which the SDK tells its log only."""

    problem = ""
    """Empty where all was taken."""

    def send(self, *arguments: Any, **options: Any) -> requests.Response:
        """Judge the answer and hang up: a redirect is no success, and nobody can make us read for ever."""
        try:
            response = super().send(*arguments, **options)
        except OSError as error:
            self.problem = f"{type(error).__name__}: {error}"
            raise
        self.problem = _rejected(response) if response.status_code == 200 else f"HTTP {response.status_code}"
        response.close()
        return response


def _rejected(response: requests.Response) -> str:
    """Return how many points the receiver says that it did not take; empty where it took all or says nothing."""
    length, body = int(response.headers.get("Content-Length") or 0), b""
    deadline = time.monotonic() + REQUEST_SECONDS
    if not 0 < length <= _MOST_ANSWER_BYTES:
        return ""
    while len(body) < length and time.monotonic() < deadline and (byte := response.raw.read(1)):
        body += byte
    try:
        partial = ExportMetricsServiceResponse.FromString(body).partial_success
    except Exception:  # noqa: BLE001 - protobuf's own class lies in the implementation; a receiver may answer with JSON
        return ""
    return f"{partial.rejected_data_points} data points were rejected" if partial.rejected_data_points else ""


def endpoint_of(address: str) -> str:
    """Return the address of the metrics: OTLP's path is added to a base address."""
    base = address.rstrip("/")
    return base if base.endswith(_PATH) else base + _PATH


def resource_of(service: str) -> Resource:
    """Return what identifies the process; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win."""
    ours = {"service.name": service, "service.version": __version__, "service.instance.id": socket.gethostname()}
    return Resource.create({**ours, **OTELResourceDetector().detect().attributes})


def unit_of(name: str) -> str:
    """Return OpenTelemetry's unit of a metric; empty for counts and flags."""
    return _UNITS.get(name.removesuffix("_total").rpartition("_")[2], "")


def _deployment_metrics(samples: Iterable[DeploymentSample], since_ns: int, now_ns: int) -> Iterator[list[sdk.Metric]]:
    """Yield the series of the InferenceDeployments in parts of about MOST_POINTS."""
    points: dict[Metric, list[sdk.NumberDataPoint]] = defaultdict(list)

    def taken() -> list[sdk.Metric]:
        metrics = [_metric(metric.name, metric.help, metric.kind, found) for metric, found in points.items()]
        points.clear()
        return metrics

    size = 0
    for sample in samples:
        owner = dict(zip(OWNER_LABELS, (label(sample.namespace), label(sample.name)), strict=True))
        for metric, values, figure in series_of(sample):
            labels = owner | dict(zip(metric.labels[2:], values, strict=True))
            points[metric].append(_number(labels, figure, since_ns, now_ns))
            size += 1
        if size >= MOST_POINTS:
            yield taken()
            size = 0
    if points:
        yield taken()


def _own_metric(family: Family, since_ns: int, now_ns: int) -> sdk.Metric:
    """Return a family of prometheus_client, which takes _total from the name of a counter."""
    if family.type == MetricType.HISTOGRAM:
        ordered = sorted(family.samples, key=_labels_but_bound)
        points = [_histogram(list(lines), since_ns, now_ns) for _, lines in groupby(ordered, key=_labels_but_bound)]
        data = sdk.Histogram(data_points=points, aggregation_temporality=_CUMULATIVE)
        return sdk.Metric(name=family.name, description=family.documentation, unit=unit_of(family.name), data=data)
    numbers = [_number(sample.labels, sample.value, since_ns, now_ns) for sample in family.samples]
    return _metric(family.samples[0].name, family.documentation, family.type, numbers)


def _metric(name: str, help_: str, kind: str, points: list[sdk.NumberDataPoint]) -> sdk.Metric:
    if kind == MetricType.COUNTER:
        data = sdk.Sum(data_points=points, aggregation_temporality=_CUMULATIVE, is_monotonic=True)
    else:
        data = sdk.Gauge(data_points=points)
    return sdk.Metric(name=name, description=help_, unit=unit_of(name), data=data)


def _number(labels: Mapping[str, str], value: float, since_ns: int, now_ns: int) -> sdk.NumberDataPoint:
    return sdk.NumberDataPoint(
        attributes=labels, start_time_unix_nano=since_ns, time_unix_nano=now_ns, value=float(value)
    )


def _labels_but_bound(line: Sample) -> list[tuple[str, str]]:
    return sorted((name, value) for name, value in line.labels.items() if name != "le")


def _histogram(lines: list[Sample], since_ns: int, now_ns: int) -> sdk.HistogramDataPoint:
    """Return one histogram; Prometheus' buckets count what is below them as well, OpenTelemetry's do not."""
    buckets = [(line.labels["le"], int(line.value)) for line in lines if line.name.endswith("_bucket")]
    below = [0, *(count for _, count in buckets)]
    return sdk.HistogramDataPoint(
        attributes=dict(_labels_but_bound(lines[0])),
        start_time_unix_nano=since_ns,
        time_unix_nano=now_ns,
        count=below[-1],
        sum=next(line.value for line in lines if line.name.endswith("_sum")),
        bucket_counts=[count - before for before, count in pairwise(below)],
        explicit_bounds=[float(bound) for bound, _ in buckets[:-1]],
        min=None,  # nobody measures it
        max=None,
    )
