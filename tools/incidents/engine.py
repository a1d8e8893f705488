"""Series of one vLLM pod, minute by minute, as Prometheus stores them.

Counters begin at 0 with each process. Gauges and counters of the engine stand still while its core makes no step. A pod that does not
answer has `up` 0 and no other series; a pod that is gone has none.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from incidents.scene import Deployment, SceneError, attributes, by_minute
from kvgate.vllm import metric_names
from kvgate.vllm.metric_names import ScrapedName

Point = float | str
"""A value, `_` (nothing is written) or `stale` (the series ended)."""
Labels = tuple[tuple[str, str], ...]
Points = dict[tuple[str, Labels], Point]
"""Series of one minute, by name and labels."""

RECORDED = Path(__file__).resolve().parents[1] / "fleet" / "data" / "pressure_run.csv"
LOADS = Path(__file__).with_name("loads.yaml")
FULL_SECONDS = slice(21, 37)
"""Seconds of the recorded run in which requests waited for KV cache."""
BUSY_SECONDS = slice(10, 46)
TTFT_LE = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
REQUEST_LE = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TOKEN_LE = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
"""vLLM's buckets."""
SPREAD = 3.0
"""Exponent of the log-logistic distribution of times: one in a hundred takes 4.6 times the median."""
WAITING_BY_REASON_SINCE = (0, 20)
REJECTIONS_SINCE = (0, 32)
SECONDS_PER_MINUTE = 60
BLOCK_SIZE = 16
GIB = 2**30
GPU_GIB, REQUESTED_GIB = 80, 72


@lru_cache(maxsize=1)
def loads() -> Mapping[str, Mapping[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(LOADS.read_text(encoding="utf-8"))
    return found


@lru_cache(maxsize=1)
def _recorded() -> tuple[Mapping[str, float], ...]:
    lines = (line for line in RECORDED.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return tuple({key: float(value) for key, value in row.items()} for row in csv.DictReader(lines))


@lru_cache(maxsize=1)
def jitter() -> tuple[float, ...]:
    """Return the recorded run's generated tokens of each busy second, as multiples of their mean."""
    totals = [row["generation_tokens"] for row in _recorded()[BUSY_SECONDS]]
    steps = [after - before for before, after in pairwise(totals)]
    mean = sum(steps) / len(steps)
    return tuple(step / mean for step in steps)


class Minute(Struct, frozen=True, kw_only=True):
    """The state of one pod at one minute, from which the series that kvgate and others report about it follow."""

    phase: str
    load: Mapping[str, Any]
    restarts: int
    started_minute: int
    """Start of the present process."""

    @property
    def is_ready(self) -> bool:
        return self.phase in ("serving", "unscraped")

    @property
    def exists(self) -> bool:
        return self.phase != "absent"


STARTED_BEFORE = -1440
"""Pods that serve at the beginning of a scene have run for a day."""
BACKOFF_MINUTES = 5


def life(states: Any, minutes: int, seed: int) -> list[Minute]:
    """Return each minute of a pod. Ramps (`0..40`) are resolved, and recorded gauges are filled in."""
    lived: list[Minute] = []
    timeline = by_minute(states, minutes)
    begun = [0] + [at for at in range(1, minutes + 1) if timeline[at] is not timeline[at - 1]]
    for minute, state in enumerate(timeline):
        since = max(at for at in begun if at <= minute)
        until = min((at for at in begun if at > minute), default=minutes)
        load = attributes(state, loads())
        if unknown := load.keys() - loads()["idle"].keys() - _SWITCHES:
            raise SceneError(f"a load has no {', '.join(sorted(unknown))}")
        share = (minute - since) / max(until - since, 1)
        load = {key: _at(value, share) for key, value in load.items()}
        before = lived[-1] if lived else None
        if load.get("freeze") and before:
            load = {**before.load, **dict.fromkeys(COUNTED, 0), "jitter": False, **load}
        elif load.get("recorded"):
            row = _recorded()[FULL_SECONDS][(minute + seed * 5) % (FULL_SECONDS.stop - FULL_SECONDS.start)]
            scale = load["running"] / 9
            load |= {"usage": row["kv_cache_usage"], "jitter": False}
            load |= {key: round(row[f"requests_{key}"] * scale) for key in ("running", "waiting")}
        elif load.get("jitter", True) and "running" in load:
            factor = jitter()[(minute * 3 + seed * 7) % len(jitter())]
            load |= {"running": round(load["running"] * factor), "requests": load["requests"] * factor}
            load |= {"usage": min(1.0, load["usage"] * (factor if load["usage"] < 0.7 else 1 - abs(factor - 1) / 12))}
        lived.append(_next(before, load, minute, since))
    return lived


def _at(value: Any, share: float) -> Any:
    """Return a ramp's value; anything else is itself."""
    if isinstance(value, str) and ".." in value:
        low, high = map(float, value.split(".."))
        return low + (high - low) * share
    return value


def _next(before: Minute | None, load: Mapping[str, Any], minute: int, since: int) -> Minute:
    phase = load.get("phase", "serving")
    started = before.started_minute if before else STARTED_BEFORE
    restarts = before.restarts if before else 0
    runs_before = before is not None and before.exists
    if phase == "absent":
        return Minute(phase=phase, load=load, restarts=0, started_minute=minute)
    if before is not None and not runs_before:
        return Minute(phase=phase, load=load, restarts=0, started_minute=minute)
    ended = before is not None and before.is_ready and phase in ("starting", "crashing")
    again = phase == "crashing" and minute > since and (minute - since) % BACKOFF_MINUTES == 0
    recovers = before is not None and before.phase == "crashing" and phase == "starting"
    if ended or again or recovers:
        restarts, started = restarts + 1, minute
    if before is None and phase in ("starting", "crashing"):
        started = minute
    return Minute(phase=phase, load=load, restarts=restarts, started_minute=started)


COUNTED = (
    "requests", "preemptions", "errors", "stopped", "rejected", "transfers", "transfer_failures", "transfers_expired",
)  # fmt: skip
"""Attributes that count what an engine does in a minute: nothing while its core makes no step."""
_SWITCHES = frozenset({"freeze", "recorded", "jitter", "iterations", "tokens"})
"""Attributes of a load that the load `idle` lacks."""


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


@lru_cache
def named(metric: metric_names.EngineMetric, version: str) -> tuple[str, ...]:
    """Return the names that this release gives the metric."""
    release = _release(version)

    def has(name: ScrapedName) -> bool:
        removed = _release(name.removed_in) if name.removed_in else None
        return _release(name.since) <= release and (removed is None or release < removed)

    return tuple(name.name for name in metric.names if has(name))


class Engine:
    """Counters of one engine of a vLLM server, and the series that `/metrics` shows of it."""

    def __init__(self, deployment: Deployment, wanted: frozenset[str], rank: str = "0") -> None:
        self._deployment, self._wanted = deployment, wanted
        self._has_reasons = _release(deployment.release) >= WAITING_BY_REASON_SINCE
        self._release = deployment.release
        self._totals: dict[tuple[str, Labels], float] = {}
        self._common: Labels = (("engine", rank), ("model_name", deployment.model))

    def step(self, load: Mapping[str, Any]) -> None:
        """Count one minute."""
        prompt = load["requests"] * load["prompt"] if "prompt" in load else 0.0
        self._http(load)
        finished = {"stop": load.get("requests", 0), "error": load.get("errors", 0), "abort": 0}
        for reason, number in finished.items():
            self._count("request_success_total", number, (("finished_reason", reason),))
        iterations = 0 if load.get("freeze") or not load.get("running") else SECONDS_PER_MINUTE / load["itl"]
        self._count("iteration_tokens_total_count", load.get("iterations", iterations))
        self._count("nixl_xfer_time_seconds_count", load.get("transfers", 0))
        self._count("nixl_num_failed_transfers_total", load.get("transfer_failures", 0))
        self._count("nixl_num_kv_expired_reqs_total", load.get("transfers_expired", 0))
        if _release(self._release) >= REJECTIONS_SINCE:
            model = (("model_name", self._deployment.model), ("reason", "max_num_queued_reqs"))
            self._add("vllm:admission_rejections_total", load.get("rejected", 0), model)
        for metric, amount in (
            (metric_names.PREEMPTIONS, load.get("preemptions", 0)),
            (metric_names.PROMPT_TOKENS, prompt),
            (metric_names.GENERATION_TOKENS, load.get("tokens", load.get("requests", 0) * load.get("output", 0))),
            (metric_names.PREFIX_CACHE_QUERIES, prompt),
            (metric_names.PREFIX_CACHE_HITS, prompt * load.get("hits", 0)),
        ):
            for name in named(metric, self._release):
                self._add(name, amount, self._common)
        if self._deployment.offload:
            missed = prompt * (1 - load.get("hits", 0))
            self._count("external_prefix_cache_queries_total", missed)
            self._count("external_prefix_cache_hits_total", missed * load.get("external_hits", 0))
        requests = 0 if load.get("freeze") else load.get("requests", 0)
        generates = load.get("output", 0) > 0
        self._observe("request_queue_time_seconds", REQUEST_LE, requests, load.get("queue", 1))
        first_tokens = requests + load.get("stopped", 0)
        whole = load.get("ttft", 0) + load.get("itl", 0) * load.get("output", 0)
        self._observe("time_to_first_token_seconds", TTFT_LE, first_tokens if generates else 0, load.get("ttft", 1))
        self._observe(
            "request_time_per_output_token_seconds", TOKEN_LE, requests if generates else 0, load.get("itl", 1)
        )
        self._observe("e2e_request_latency_seconds", REQUEST_LE, requests, whole or 0.1)
        tokens = requests * max(load.get("output", 0) - 1, 0)
        self._observe("inter_token_latency_seconds", TOKEN_LE, tokens, load.get("itl", 1))

    def series(self, load: Mapping[str, Any], capacity_tokens: int) -> Iterator[tuple[str, Labels, Point]]:
        """Yield what one scrape shows."""
        for (name, labels), total in self._totals.items():
            yield name, labels, round(total, 3) if name.endswith("_sum") else round(total)
        running, waiting = round(load.get("running", 0)), round(load.get("waiting", 0))
        yield "vllm:num_requests_running", self._common, running
        yield "vllm:num_requests_waiting", self._common, waiting
        if self._has_reasons:
            deferred = round(waiting * load.get("deferred", 0))
            for reason, number in (("capacity", waiting - deferred), ("deferred", deferred)):
                yield "vllm:num_requests_waiting_by_reason", (*self._common, ("reason", reason)), number
        for name in named(metric_names.KV_CACHE_USAGE, self._release):
            yield name, self._common, round(load.get("usage", 0), 4)
        sizes = {"block_size": str(BLOCK_SIZE), "num_gpu_blocks": str(capacity_tokens // BLOCK_SIZE)}
        yield "vllm:cache_config_info", (self._common[0], *sorted(sizes.items())), 1

    def _http(self, load: Mapping[str, Any]) -> None:
        """Count what the HTTP server answered; a request whose client has left counts as answered."""
        handler = (("handler", "/v1/chat/completions"), ("method", "POST"))
        answered = load.get("requests", 0) + load.get("stopped", 0) + load.get("timeouts", 0)
        statuses = {
            "2xx": answered,
            "5xx": load.get("errors", 0),
            "4xx": load.get("refused", 0) + load.get("rejected", 0),
        }
        for status, number in statuses.items():
            self._add("http_requests_total", number, (*handler, ("status", status)))
        self._add("http_request_duration_seconds_count", sum(statuses.values()), handler)

    def _count(self, name: str, amount: float, extra: Labels = ()) -> None:
        self._add(f"vllm:{name}", amount, (*self._common, *extra))

    def _add(self, name: str, amount: float, labels: Labels) -> None:
        if name in self._wanted:
            self._totals[name, labels] = self._totals.get((name, labels), 0.0) + amount

    def _observe(self, name: str, bounds: tuple[float, ...], number: float, median: float) -> None:
        """Observe times with this median."""
        if f"vllm:{name}_bucket" not in self._wanted:
            return
        for le in bounds:
            self._count(f"{name}_bucket", number / (1 + (median / le) ** SPREAD), (("le", f"{float(le)}"),))
        self._count(f"{name}_bucket", number, (("le", "+Inf"),))
        self._count(f"{name}_count", number)
        self._count(f"{name}_sum", number * median * 1.2)
