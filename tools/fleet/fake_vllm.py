#!/usr/bin/env python3
"""A vLLM that answers /health, /v1/models and /metrics, and serves nothing: it replays a recorded run of a real one.

    with serving(Engine(vllm_version="0.28.0", num_gpu_blocks=4096, block_size=16), ("127.77.0.1", 8000)) as replay:
        replay.begin(speed=2)

Names and labels are those of the release (kvgate.vllm.metric_names), formats are negotiated by prometheus_client as in vLLM itself,
its faults included. One process can be many pods: it binds the addresses it is given, all on the loopback. From a shell:
`python tools/fleet/fake_vllm.py 127.0.0.1:8000 --vllm-version 0.28.0 --speed 2 --loop` until Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import ipaddress
import json
import math
import signal
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kvgate.budget.releases.versions import parse_patch
from kvgate.vllm import metric_names
from kvgate.vllm.metric_names import CACHE_CONFIG_INFO, ENGINE_METRICS, REQUEST_SUCCESS, EngineMetric

RECORDED = Path(__file__).resolve().parent / "data" / "pressure_run.csv"
BUCKET = "_le_"


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """Settings of the server that is imitated; the defaults are those of the recorded run."""

    vllm_version: str = "0.32.0"
    model_name: str = "tiny-llama"
    num_gpu_blocks: int | None = 64
    """Blocks of each engine; None while vLLM does not report them yet."""
    block_size: int = 128
    kv_cache_size_tokens: int | None = None
    """Tokens of each engine; None stands for blocks × block_size."""
    data_parallel_size: int = 1
    gpu_memory_utilization: float | None = None
    """Share of the GPU that it reports; none where it is None."""
    max_model_len: int = 2048
    """Longest request that it tells at /v1/models."""
    kv_cache_usage: float | None = None
    """Usage that replaces the recorded one."""
    is_vllm: bool = True
    api_key: str = ""
    """Key that paths such as /v1 require; none where it is empty."""
    parts: frozenset[str] = frozenset()
    """Optional parts with metrics of their own: the names in PARTS. Nobody recorded these: they follow the recorded tokens."""

    @property
    def size_tokens(self) -> int | None:
        blocks = self.num_gpu_blocks
        return self.kv_cache_size_tokens or (None if blocks is None else blocks * self.block_size)


@lru_cache(maxsize=1)
def recorded_run() -> tuple[Mapping[str, float], ...]:
    """One row a second, under the keys of kvgate.vllm.metric_names; the file's first lines say what ran."""
    with RECORDED.open(encoding="utf-8") as lines:
        rows = csv.DictReader(line for line in lines if not line.startswith("#"))
        return tuple({name: float(value) for name, value in row.items()} for row in rows)


@dataclass(kw_only=True)
class Replay:
    """Position in the run: its first row until it begins, then the row of the moment, in the end its last row."""

    rows: Sequence[Mapping[str, float]] = field(default_factory=recorded_run)
    now: Callable[[], float] = time.monotonic
    _began_at: float | None = None
    speed: float = 1.0
    """Seconds of the recording in one second of the clock."""
    _loops: bool = False

    def begin(self, *, speed: float = 1.0, loops: bool = False) -> None:
        """Start the run at its first row."""
        self.speed, self._loops, self._began_at = speed, loops, self.now()

    @property
    def seconds(self) -> float:
        """Seconds of the recording, not of the clock."""
        return 0.0 if self._began_at is None else (self.now() - self._began_at) * self.speed

    @property
    def length_seconds(self) -> float:
        return self.rows[-1]["t_seconds"]

    @property
    def is_over(self) -> bool:
        return not self._loops and self.seconds >= self.length_seconds

    def row(self) -> Mapping[str, float]:
        """In a loop, counters continue from their last values: a reset would look like a restart."""
        laps, seconds = divmod(self.seconds, self.length_seconds + 1) if self._loops else (0, self.seconds)
        row = self.rows[bisect_right(self.rows, seconds, key=lambda row: row["t_seconds"]) - 1]
        last = self.rows[-1]
        return {name: value + laps * last[name] * (name not in GAUGES) for name, value in row.items()}


GAUGES = frozenset({"t_seconds", *(metric.key for metric in ENGINE_METRICS if metric.kind == "gauge")})


def names_in(metric: EngineMetric, vllm_version: str) -> list[str]:
    """Under which names this release exports it; more than one while an old one is still there."""
    release = parse_patch(vllm_version)
    return [
        name.name
        for name in metric.names
        if parse_patch(name.since) <= release and (name.removed_in is None or release < parse_patch(name.removed_in))
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineCollector:
    """Metrics that /metrics shows at this moment."""

    engine: Engine
    replay: Replay

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("http_requests", "Of any server; no metric of vLLM.", value=1)
        if not self.engine.is_vllm:
            return
        row = self.replay.row()
        for metric in sorted(
            ENGINE_METRICS, key=lambda metric: metric is CACHE_CONFIG_INFO
        ):  # last, as vLLM registers it
            for name in names_in(metric, self.engine.vllm_version):
                family = FAMILIES[metric.kind](name)
                for labels in self._labels():
                    if metric is CACHE_CONFIG_INFO:
                        family.add_sample(name, {**self._cache_config(), **labels}, 1.0)
                    else:
                        self._add(family, metric, {"model_name": self.engine.model_name, **labels}, row)
                yield family
        yield from self._of_parts(row)

    def _of_parts(self, row: Mapping[str, float]) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for metric, labels, value in chain.from_iterable(PARTS[part](row) for part in sorted(self.engine.parts)):
            own = {"model_name": self.engine.model_name, "engine": "0", **labels}
            suffix = own.pop(SUFFIX, "")
            for name in names_in(metric, self.engine.vllm_version):
                families.setdefault(name, FAMILIES[metric.kind](name)).add_sample(name + suffix, own, value)
        yield from families.values()

    def _labels(self) -> Iterable[dict[str, str]]:
        """V0 has no label `engine`."""
        if parse_patch(self.engine.vllm_version) < (0, 8, 5):
            return [{}]
        return [{"engine": str(index)} for index in range(self.engine.data_parallel_size)]

    def _cache_config(self) -> dict[str, str]:
        """Return those of the forty labels that a reader may need; num_gpu_blocks is the sum over all engines."""
        engine = self.engine
        blocks = None if engine.num_gpu_blocks is None else engine.num_gpu_blocks * engine.data_parallel_size
        labels = {"block_size": engine.block_size, "num_gpu_blocks": blocks}
        if engine.gpu_memory_utilization is not None:
            labels["gpu_memory_utilization"] = engine.gpu_memory_utilization
        if parse_patch(engine.vllm_version) >= (0, 24, 0):
            labels["kv_cache_size_tokens"] = engine.size_tokens
        return {name: str(value) for name, value in labels.items()}

    def _add(self, family: Metric, metric: EngineMetric, labels: dict[str, str], row: Mapping[str, float]) -> None:
        if metric.kind == "histogram":
            prefix = metric.key + BUCKET
            counts = [(name, value) for name, value in row.items() if name.startswith(prefix)]
            for name, count in counts:
                family.add_sample(f"{family.name}_bucket", {**labels, "le": name.removeprefix(prefix)}, count)
            family.add_sample(f"{family.name}_count", labels, counts[-1][1])
            family.add_sample(f"{family.name}_sum", labels, row[f"{metric.key}_sum"])
            return
        override = self.engine.kv_cache_usage if metric.key == "kv_cache_usage" else None
        name = f"{family.name}_total" if metric.kind == "counter" else family.name
        value = row[metric.key] if override is None else override
        if metric is REQUEST_SUCCESS:
            for reason in FINISHED:
                family.add_sample(name, {**labels, "finished_reason": reason}, value * (reason == FINISHED[0]))
            return
        family.add_sample(name, labels, value)


FINISHED = ("length", "stop", "abort", "error")
"""Reasons for which a request ends; every recorded one came to its limit."""

Part = Iterable[tuple[EngineMetric, dict[str, str], float]]


def _offloading(row: Mapping[str, float]) -> Part:
    """Half of the prompt's tokens are found on the host, and a tenth of the others in the tier behind it."""
    tokens, tier = row["prompt_tokens"], {"tier": "fs"}
    yield metric_names.EXTERNAL_PREFIX_CACHE_QUERIES, {}, tokens
    yield metric_names.EXTERNAL_PREFIX_CACHE_HITS, {}, tokens / 2
    yield metric_names.KV_OFFLOAD_LOADED, {}, tokens / 2 * 131072
    yield metric_names.KV_OFFLOAD_STORED, {}, tokens * 131072
    yield metric_names.KV_OFFLOAD_HOST_USAGE, {}, min(tokens / 80_000, 1)
    yield metric_names.KV_OFFLOAD_FAILURES, {}, 0
    yield metric_names.KV_OFFLOAD_TIER_QUERIES, tier, tokens / 32
    yield metric_names.KV_OFFLOAD_TIER_HITS, tier, tokens / 320


def _transfers(row: Mapping[str, float]) -> Part:
    """Every request's KV cache comes from a prefill pod; two were late."""
    requests = row["time_to_first_token_le_+Inf"]
    for metric, mean in ((metric_names.KV_TRANSFER_SECONDS, 0.012), (metric_names.KV_TRANSFER_BYTES, 6e7)):
        yield metric, {SUFFIX: "_bucket", "le": str(mean)}, requests / 2
        yield metric, {SUFFIX: "_bucket", "le": str(mean * 4)}, requests
        yield metric, {SUFFIX: "_bucket", "le": "+Inf"}, requests
        yield metric, {SUFFIX: "_sum"}, requests * mean
        yield metric, {SUFFIX: "_count"}, requests
    yield metric_names.KV_TRANSFER_FAILURES, {}, 0
    yield metric_names.KV_TRANSFER_EXPIRED, {}, min(requests, 2)


def _adapters(_: Mapping[str, float]) -> Part:
    names = {"max_lora": "2", "running_lora_adapters": "legal,support", "waiting_lora_adapters": "french"}
    yield metric_names.LORA_INFO, names, time.time()


PARTS: Mapping[str, Callable[[Mapping[str, float]], Part]] = {
    "adapters": _adapters,
    "offloading": _offloading,
    "transfers": _transfers,
}
SUFFIX = "suffix"
"""No label: the end of the name of a histogram's series."""

FAMILIES: Mapping[str, Callable[[str], Metric]] = {
    "gauge": lambda name: GaugeMetricFamily(name, "As vLLM exports it."),
    "counter": lambda name: CounterMetricFamily(name, "As vLLM exports it."),
    "histogram": lambda name: HistogramMetricFamily(name, "As vLLM exports it."),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Faults of an engine in its answer for /metrics: another form, or other figures."""

    status: str = ""
    """Empty: as a good one does."""
    headers: Sequence[tuple[str, str]] = ()
    body: Callable[[], bytes] = bytes
    hangs: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the engine that differ from the default."""


GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""vLLM 0.33, `AuthenticationMiddleware`; up to 0.11 only /v1. Neither /health nor /metrics ever was."""
TEXT = ("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
HUGE_BYTES = 64 * 2**20
FAULTS = {
    "hang": Fault(hangs=True),
    "not-found": Fault(status="404 Not Found"),
    "error": Fault(status="500 Internal Server Error"),
    "huge": Fault(status="200 OK", headers=[TEXT], body=lambda: b"# a comment of some length\n" * (HUGE_BYTES // 27)),
    "gzip-bomb": Fault(
        status="200 OK", headers=[TEXT, ("Content-Encoding", "gzip")], body=lambda: gzip.compress(bytes(HUGE_BYTES))
    ),
    "html": Fault(status="200 OK", headers=[("Content-Type", "text/html")], body=lambda: b"<html>welcome</html>"),
    "nan": Fault(changes={"kv_cache_usage": math.nan}),
    "no-capacity": Fault(changes={"num_gpu_blocks": None}),
    "zero-capacity": Fault(changes={"num_gpu_blocks": 0}),
    "another-program": Fault(changes={"is_vllm": False}),
}

Answer = Iterable[bytes]
StartResponse = Callable[[str, list[tuple[str, str]]], Any]


def application(engine: Engine, replay: Replay, fault: Fault, stopped: threading.Event) -> Callable[..., Answer]:
    """The three routes, as WSGI; with an API key, those that vLLM guards want it."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(EngineCollector(engine=replace(engine, **fault.changes), replay=replay))
    metrics = make_wsgi_app(registry)
    card = {
        "id": engine.model_name, "object": "model", "created": 1_795_000_000, "owned_by": "vllm", "root": engine.model_name,
        "parent": None, "max_model_len": engine.max_model_len, "permission": [],
    }  # fmt: skip
    adapter = {**card, "id": "legal", "parent": engine.model_name, "max_model_len": None}
    cards = [card, *([adapter] if "adapters" in engine.parts else [])]
    models = json.dumps({"object": "list", "data": cards})

    def answer(environment: dict[str, Any], start: StartResponse) -> Answer:
        path = environment["PATH_INFO"]
        is_open = not engine.api_key or not path.startswith(GUARDED)
        if not is_open and environment.get("HTTP_AUTHORIZATION") != f"Bearer {engine.api_key}":
            start("401 Unauthorized", [("Content-Type", "application/json")])
            return [b'{"error":"Unauthorized"}']
        if path == "/metrics":
            return faulty(start) if fault.status or fault.hangs else metrics(environment, start)
        known = {"/health": b"", "/v1/models": models.encode()}
        start("200 OK" if path in known else "404 Not Found", [("Content-Type", "application/json")])
        return [known.get(path, b'{"detail":"Not Found"}')]

    def faulty(start: StartResponse) -> Answer:
        if fault.hangs:
            stopped.wait()
        start(fault.status or "200 OK", list(fault.headers))
        return [fault.body()]

    return answer


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without a request to DNS for the name of the address, which takes seconds where there is no DNS."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]
        self.setup_environ()

    def handle_error(self, *_: object) -> None:
        """A client that went away is no error."""


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


class NotLoopback(ValueError):
    """An address that others could reach."""


@contextmanager
def serving(engine: Engine, *addresses: tuple[str, int], fault: str = "") -> Iterator[Replay]:
    """One engine on each address, all at the same second of the run; OSError where one is taken."""
    replay, stopped = Replay(), threading.Event()
    app = application(engine, replay, FAULTS[fault] if fault else Fault(), stopped)
    with contextlib.ExitStack() as stack:
        for host, port in addresses:
            if not ipaddress.ip_address(host).is_loopback:
                raise NotLoopback(f"{host}: a fake engine listens on the loopback only; give an address in 127.0.0.0/8")
            server = stack.enter_context(_Server((host, port), _Quiet))
            server.set_app(app)
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
        stack.callback(stopped.set)
        yield replay


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return str(ipaddress.ip_address(host)), int(port)


def main() -> int:
    parser = argparse.ArgumentParser(description="Play a vLLM server until Ctrl-C: a recorded run, replayed.")
    parser.add_argument("addresses", nargs="+", type=_address, metavar="HOST:PORT", help="on the loopback")
    parser.add_argument("--vllm-version", default=Engine().vllm_version)
    parser.add_argument("--model-name", default=Engine().model_name)
    parser.add_argument("--num-gpu-blocks", type=int, default=Engine().num_gpu_blocks, help="of each engine")
    parser.add_argument("--block-size", type=int, default=Engine().block_size)
    parser.add_argument("--capacity-tokens", type=int, help="of each engine; else blocks times their size")
    parser.add_argument("--data-parallel-size", type=int, default=1)
    parser.add_argument("--api-key", default="", help="answer 401 on /v1 without it; for tests, so no secret")
    parser.add_argument("--speed", type=float, default=1.0, help="2: twice as fast as it was recorded")
    parser.add_argument("--loop", action="store_true", help="again from the start; counters go on")
    parser.add_argument("--fault", choices=sorted(FAULTS), default="", help="answer /metrics as a bad engine does")
    options = parser.parse_args()
    engine = Engine(
        vllm_version=options.vllm_version,
        model_name=options.model_name,
        num_gpu_blocks=options.num_gpu_blocks,
        block_size=options.block_size,
        kv_cache_size_tokens=options.capacity_tokens,
        data_parallel_size=options.data_parallel_size,
        api_key=options.api_key,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with serving(engine, *options.addresses, fault=options.fault) as replay, contextlib.suppress(KeyboardInterrupt):
            replay.begin(speed=options.speed, loops=options.loop)
            print("serving; Ctrl-C stops it", flush=True)
            signal.pause()
    except (NotLoopback, OSError) as error:
        print(f"fake_vllm: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
