"""Alerts about what users of an engine feel, read from vLLM's own metrics; all but one also cover pods without an InferenceDeployment.

vLLM sets its gauges when the engine makes a step. They freeze where the engine hangs, and also where clients abort the last requests of an
engine that then has nothing to do. So no gauge alone is a symptom here: tokens that flow, or requests that arrive, are asked for too.
"""

from kvgate.vllm import metric_names
from mixin import queries
from mixin.alert import COUNT, DURATION, FEWER_SEQUENCES, OWNER, PERCENT, SAME_OWNER, SCALE, SERVER, THRESHOLD, Alert
from mixin.queries import (
    HEADROOM_AMPLE,
    LONG_WINDOW,
    POD,
    SERVED_BY,
    WINDOW,
    aggregate,
    any_name,
    on,
    over,
    summed_over,
)  # fmt: skip
from mixin.scraping import HTTP_REQUESTS

_ENGINE = (*SERVED_BY, "pod", "engine")
_SERVED_POD = (*SERVED_BY, "pod")
_TOKENS = (metric_names.GENERATION_TOKENS, metric_names.PROMPT_TOKENS)
"""An engine for embeddings generates nothing, and a prefill engine next to nothing."""
_LONG_ENOUGH = "10m"
_SINCE_THEN = "8m"
"""It begins after the tokens have stopped: clients that abort all at once count when they leave, and not as arrivals after that."""
_REQUESTS_MIN = 20
"""Requests in LONG_WINDOW below which no quantile counts."""
_QUERIED_TOKENS_MIN = 100_000
_SAME_TRAFFIC = 0.25
"""Share of the earlier traffic below which it may be another one, as at night, with prompts of its own."""
_HITS_MIN = 0.2
"""Share of hits in the past below which nobody relies on the prefix cache."""
_JUDGED = (
    'method="POST",status!="4xx",'
    'handler=~".*(completions|responses|messages|embed|pooling|score|rank|classify|generate|invocations|transcriptions|translations).*"'
)
"""Requests that vLLM did not refuse by itself, to paths that need the engine; a client that gave up counts when it leaves."""


def _moved(window: str, by: tuple[str, ...]) -> str:
    """Return the tokens that were read or generated in the window."""
    return " + ".join(summed_over("increase", metric, window, by) for metric in _TOKENS)


def _gauge(function: str, metric: metric_names.EngineMetric, window: str, by: tuple[str, ...]) -> str:
    return aggregate("max", by, any_name(metric, lambda name: over(function, name, window)))


def _lasting(long: str, short: str, counted: str) -> str:
    """Return what is above the threshold in the long window, unless the short one says that it is over; a gap says nothing.

    A share of nothing is no number: `counted` is 0 where nothing happened in the short window.
    """
    return f"({long} > {THRESHOLD} unless {short} <= {THRESHOLD} unless {counted} == 0)"


_FULL_ENGINE = (
    f"{_gauge('avg_over_time', metric_names.KV_CACHE_USAGE, WINDOW, _ENGINE)} > {THRESHOLD}"
    f" and {_gauge('avg_over_time', metric_names.REQUESTS_WAITING, WINDOW, _ENGINE)} >= 1"
    f" and ({_moved(WINDOW, _ENGINE)}) > 0"
)
_HELD = (
    f"{_gauge('max_over_time', metric_names.REQUESTS_WAITING, WINDOW, _SERVED_POD)}"
    f" + {_gauge('max_over_time', metric_names.REQUESTS_RUNNING, WINDOW, _SERVED_POD)} > 0"
)
_ARRIVES = (
    f"(sum by ({', '.join(POD)}) (increase({HTTP_REQUESTS}{{{_JUDGED}}}[{_SINCE_THEN}])) > 0"
    f" or {summed_over('changes', metric_names.REQUESTS_WAITING, _LONG_ENOUGH, POD)} > 0)"
)
_STUCK_POD = (
    f"{_HELD} and ({_moved(_LONG_ENOUGH, _SERVED_POD)}) == 0"
    f" and {summed_over('last_over_time', metric_names.PROMPT_TOKENS, WINDOW, _SERVED_POD, offset=_LONG_ENOUGH)} >= 0"
    f" and {on(POD)} {_ARRIVES}"
)
_MANY_PREEMPTED = (
    f"{summed_over('increase', metric_names.PREEMPTIONS, LONG_WINDOW, SERVED_BY)} >= {queries.PREEMPTIONS_MIN}"
)
_PREEMPTED_NOW = summed_over("increase", metric_names.PREEMPTIONS, WINDOW, SERVED_BY)
_PREEMPTED = (
    f"{_lasting(queries.PREEMPTED_LONG.name, queries.PREEMPTED_SHORT.name, _PREEMPTED_NOW)} and {_MANY_PREEMPTED}"
)
_FIRST_TOKENS_LONG, _FIRST_TOKENS_NOW = (
    summed_over("increase", metric_names.TIME_TO_FIRST_TOKEN, window, SERVED_BY, suffix="_count")
    for window in (LONG_WINDOW, WINDOW)
)
_HITS = queries.PREFIX_HITS.name
_HITS_BEFORE = over("avg_over_time", _HITS, "6h", offset="1h")
_QUERIED = summed_over("rate", metric_names.PREFIX_CACHE_QUERIES, "1h", SERVED_BY)
_QUERIED_BEFORE = summed_over("rate", metric_names.PREFIX_CACHE_QUERIES, "6h", SERVED_BY, offset="1h")

ENGINE_FULL = Alert(
    name="KvgateEngineFull",
    when="an engine's KV cache is full, requests wait for it, and the engine works",
    query=aggregate("max", SERVED_BY, _FULL_ENGINE),
    threshold=0.95,
    unit="share of the KV cache",
    holds_for="10m",
    severity="warning",
    summary=f"The KV cache of {SERVER} is full and requests wait",
    description=f"Requests hold {PERCENT} of the KV cache of the fullest engine, and others wait until one of them ends.",
)
PREEMPTION_STORM = Alert(
    name="KvgatePreemptionStorm",
    when="many of the requests are preempted, whatever the prediction says; at least ten in 15 minutes",
    query=_PREEMPTED,
    threshold=0.1,
    unit="preemptions per request",
    holds_for="10m",
    severity="warning",
    summary=f"{SERVER} computes many requests twice",
    description=f"There are preemptions for {PERCENT} of the requests of the last 15 minutes. A preempted request loses its KV cache and is"
    " computed again.",
    cause='max by (pod) (vllm:kv_cache_usage_perc{namespace="NAMESPACE"})    # full everywhere, or on one pod',
    remedy=f"{FEWER_SEQUENCES}    # or more replicas",
)
UNEXPECTED_PREEMPTIONS = Alert(
    name="KvgateUnexpectedPreemptions",
    when="requests are preempted although 20 % of the KV cache should be left; at least ten in 15 minutes",
    query=f"{_PREEMPTED} and {SAME_OWNER} {queries.HEADROOM.name} > {HEADROOM_AMPLE}",
    threshold=0.02,
    unit="preemptions per request",
    holds_for="10m",
    severity="warning",
    summary=f"{OWNER} preempts requests although KV cache should be left",
    description=f"There are preemptions for {PERCENT} of the requests of the last 15 minutes, although the predicted headroom is above"
    f" {HEADROOM_AMPLE:.0%}.",
)
QUEUE_GROWING = Alert(
    name="KvgateQueueGrowing",
    when="more requests wait than run, and the queue grows",
    query=(
        f"avg_over_time({queries.WAITING.name}[{WINDOW}]) > {THRESHOLD} * avg_over_time({queries.RUNNING.name}[{WINDOW}])"
        f" and deriv({queries.WAITING.name}[20m]) > 0 unless deriv({queries.WAITING.name}[{_LONG_ENOUGH}]) <= 0"
    ),
    threshold=1,
    unit="waiting requests per running one",
    holds_for="10m",
    severity="warning",
    summary=f"The queue of {SERVER} grows",
    description=f"{COUNT} requests wait, which is more than run, and the queue has grown for 20 minutes.",
    cause='max by (pod) (vllm:num_requests_running{namespace="NAMESPACE"})    # a pod at 0 gets no requests, or hangs',
    remedy=f"{SCALE}    # or a higher maxNumSeqs, where the KV cache is not full",
)
TIME_TO_FIRST_TOKEN = Alert(
    name="KvgateTimeToFirstToken",
    when="one request in twenty waits longer for its first token; at least 20 requests in 15 minutes",
    query=(
        f"{_lasting(queries.FIRST_TOKEN_LONG.name, queries.FIRST_TOKEN_SHORT.name, _FIRST_TOKENS_NOW)}"
        f" and {_FIRST_TOKENS_LONG} >= {_REQUESTS_MIN}"
    ),
    threshold=10,
    unit="seconds",
    holds_for="10m",
    severity="critical",
    summary=f"Users of {SERVER} wait long for the first token",
    description=f"One request in twenty of the last 15 minutes waited {DURATION} or longer for its first token.",
)
ENGINE_STUCK = Alert(
    name="KvgateEngineStuck",
    when="requests arrive and are held, but no prompt is read and no token generated for 10 minutes; also where vLLM still answers /health",
    query=aggregate("count", SERVED_BY, _STUCK_POD),
    holds_for="2m",
    severity="critical",
    summary=f"Engines of {SERVER} hold requests and generate nothing",
    description=f"Requests arrive, but {COUNT} of its pods read no prompt and generated no token for 10 minutes.",
)
PREFIX_HITS_COLLAPSED = Alert(
    name="KvgatePrefixHitsCollapsed",
    when="the prefix cache finds much less than in the six hours before, and than a day ago, at a quarter of their traffic or more",
    query=(
        f"{_HITS} < {THRESHOLD} * {_HITS_BEFORE} and {_HITS_BEFORE} > {_HITS_MIN}"
        f" and {summed_over('increase', metric_names.PREFIX_CACHE_QUERIES, '1h', SERVED_BY)} > {_QUERIED_TOKENS_MIN}"
        f" and {_QUERIED} > {_SAME_TRAFFIC} * {_QUERIED_BEFORE}"
        f" unless {_HITS} >= {THRESHOLD} * {over('avg_over_time', _HITS, '2h', offset='23h')}"
    ),
    threshold=0.5,
    unit="share of the earlier hits",
    holds_for="30m",
    severity="warning",
    summary=f"The prefix cache of {SERVER} finds much less than before",
    description=f"{PERCENT} of the prompt tokens of the last hour were in the prefix cache, far less than before, so more is computed.",
)

ALERTS = (
    ENGINE_STUCK,
    TIME_TO_FIRST_TOKEN,
    ENGINE_FULL,
    QUEUE_GROWING,
    PREEMPTION_STORM,
    UNEXPECTED_PREEMPTIONS,
    PREFIX_HITS_COLLAPSED,
)
