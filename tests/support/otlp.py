"""A receiver of OTLP over HTTP on the loopback, which decodes what it is sent; it can also hang, lie, or talk for ever."""

import contextlib
import gzip
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

Answer = Callable[[BaseHTTPRequestHandler], None]


class Receiver:
    """Requests in the order of their arrival, and the answer to each."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.address = ""
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.arrived = threading.Semaphore(0)
        self.released = threading.Event()
        """An answer that hangs waits for it."""

    def wait(self, requests: int = 1) -> None:
        for _ in range(requests):
            assert self.arrived.acquire(timeout=100), "no request arrived"

    @property
    def metrics(self) -> dict[str, Any]:
        """All metrics by name; those of several requests are merged."""
        found: dict[str, Any] = {}
        for request in self.requests:
            for metric in (m for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics):
                found.setdefault(metric.name, type(metric)()).MergeFrom(metric)
        return found

    def points(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Values of a gauge or a sum by its attributes."""
        metric = self.metrics[name]
        return {attributes(point): point.as_double for point in getattr(metric, metric.WhichOneof("data")).data_points}


def attributes(holder: Any) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((pair.key, pair.value.string_value) for pair in holder.attributes))


def answering(status: int = 200, body: bytes = b"", **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def rejecting(points: int) -> Answer:
    response = ExportMetricsServiceResponse()
    response.partial_success.rejected_data_points = points
    return answering(body=response.SerializeToString())


def talking_for_ever(handler: BaseHTTPRequestHandler) -> None:
    """An answer without an end."""
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b"x" * 65536)


@contextlib.contextmanager
def receiving(answer: Answer | None = None) -> Iterator[Receiver]:
    """Listen until the block ends; without an answer it takes requests and never answers."""
    receiver = Receiver(answer or (lambda _: receiver.released.wait(60) and None))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.requests.append(ExportMetricsServiceRequest.FromString(body))
            receiver.headers.append(dict(self.headers.items()))
            receiver.paths.append(self.path)
            receiver.arrived.release()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                receiver.answer(self)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    receiver.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
