"""A DCGM exporter that has no GPU: one process that reports what it is given, with the labels of NVIDIA's exporter on Kubernetes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily, Metric

MEBIBYTE = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU, and the pod that has it."""

    namespace: str
    pod: str
    index: int
    used_bytes: int
    busy_percent: float = 0
    last_xid: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class _Collector:
    gpus: Callable[[], Iterable[Gpu]]

    def collect(self) -> Iterator[Metric]:
        names = ("namespace", "pod", "container", "gpu", "UUID", "modelName")
        values: dict[str, Callable[[Gpu], float]] = {
            "DCGM_FI_DEV_FB_USED": lambda gpu: gpu.used_bytes / MEBIBYTE,
            "DCGM_FI_DEV_GPU_UTIL": lambda gpu: gpu.busy_percent,
            "DCGM_FI_DEV_XID_ERRORS": lambda gpu: gpu.last_xid,
        }
        found = list(self.gpus())
        for name, value in values.items():
            family = GaugeMetricFamily(name, "As NVIDIA's exporter has it.", labels=names)
            for gpu in found:
                labels = (gpu.namespace, gpu.pod, "vllm", str(gpu.index), f"GPU-{gpu.pod}-{gpu.index}", "NVIDIA GPU")
                family.add_metric(labels, value(gpu))
            yield family


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@contextmanager
def serving_gpus(gpus: Callable[[], Iterable[Gpu]]) -> Iterator[int]:
    """Answer /metrics on the loopback. Yields the port."""
    registry = CollectorRegistry()
    registry.register(_Collector(gpus=gpus))
    with make_server("127.0.0.1", 0, make_wsgi_app(registry), handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
