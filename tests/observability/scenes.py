"""What alerts are tested on: made-up series for each, minute by minute, that go well, badly, well again, and then say nothing.

Numbers are sums of powers of two where an expectation contains them, because promtool compares floats exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, repeat

Values = Sequence[float | None]
"""One value a minute; None where a scrape failed or the series does not exist."""

OWNER = {"namespace": "serving", "inferencedeployment": "chat"}
OTHER = {"namespace": "legacy", "workload": "qwen"}
KVGATE = {"namespace": "kvgate-system"}
GOOD, BAD, AFTER = 10, 30, 60
GIB, MIB = 1 << 30, 1 << 20
_O = 'namespace="serving",inferencedeployment="chat"'
_POD = 'pod="chat-0"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """One alert in one situation."""

    alert: str
    series: Mapping[str, Values]
    labels: Mapping[str, str]
    """Of the alert, besides its severity."""
    summary: str
    description: str
    """At the last bad minute."""
    good_minutes: int = GOOD
    bad_minutes: int = BAD
    settles_minutes: int = 0
    """Until the windows show that it is bad."""
    clears_minutes: int = 0
    """Until they show that it is over."""
    needs: frozenset[str] = frozenset()
    """Series without which it cannot tell and stays silent; by default the first one."""
    fires_without_all: bool = False
    """Silence itself is what it tells."""
    innocent: tuple[Mapping[str, Values], ...] = field(default=())
    """Series in place of some of these, or beside them, with which it stays silent: the look-alikes."""

    @property
    def needed(self) -> frozenset[str]:
        return self.needs or (frozenset() if self.fires_without_all else frozenset({next(iter(self.series))}))


def phases(good: float | None, bad: float | None, *, minutes: tuple[int, int, int] = (GOOD, BAD, AFTER)) -> Values:
    """A gauge: good, bad, good."""
    return list(
        chain.from_iterable(repeat(value, times) for value, times in zip((good, bad, good), minutes, strict=True))
    )


def always(value: float | None, minutes: int = GOOD + BAD + AFTER) -> Values:
    return [value] * minutes


def rising(good: float, bad: float, *, minutes: tuple[int, int, int] = (GOOD, BAD, AFTER)) -> Values:
    """A counter that rises by so much a minute."""
    return list(accumulate(value or 0.0 for value in phases(good, bad, minutes=minutes)))


def every(step: int, *, first: int, last: int, minutes: int) -> Values:
    """A counter that rises by one every so many minutes."""
    return list(
        accumulate(1.0 if first <= now <= last and (now - first) % step == 0 else 0.0 for now in range(minutes))
    )


def owned(name: str, *labels: str) -> str:
    return f"{name}{{{','.join((_O, *labels))}}}"


def condition(kind: str, status: str, reason: str) -> str:
    return owned("kvgate_condition", f'type="{kind}"', f'status="{status}"', f'reason="{reason}"')


def of_pod(name: str, *labels: str, owner: str = _O) -> str:
    return f"{name}{{{','.join((owner, _POD, *labels))}}}"


HEADROOM = owned("kvgate_kv_cache_headroom_ratio", 'bound="expected"')
HEADROOM_HIGH, HEADROOM_BYTES = (
    owned("kvgate_kv_cache_headroom_bytes", f'bound="{bound}"') for bound in ("high", "expected")
)
REFUSED = condition("Accepted", "False", "BudgetExceeded")
READY = condition("Ready", "True", "ReplicasReady")
STALLED = condition("Stalled", "True", "OutOfMemory")
GPUS = owned("kvgate_gpus")
ERROR = owned("kvgate_prediction_error_ratio")
DEMAND = owned("kvgate_kv_cache_demand_tokens")
OBSERVED_LENGTH, FLOOR = owned("kvgate_observed_max_model_len_tokens"), owned("kvgate_min_max_model_len_tokens")
OBSERVED_CAPACITY = owned("kvgate_observed_kv_cache_capacity_tokens")
CAPACITY = owned("kvgate_kv_cache_capacity_tokens", 'bound="expected"')
CAPACITY_LOW = owned("kvgate_kv_cache_capacity_tokens", 'bound="low"')
REPLICAS, READY_REPLICAS = owned("kvgate_replicas"), owned("kvgate_ready_replicas")
LOAD_BUDGET = owned("kvgate_load_budget_seconds")
POD_INFO = of_pod("kvgate_pod_info", 'node="a"')
POD_READY, POD_START, RESTARTS = (
    of_pod(name) for name in ("kvgate_pod_ready", "kvgate_pod_start_time_seconds", "kvgate_pod_restarts_total")
)
OBSERVED = owned("kvgate_observed_pods")
REQUESTED, TOTAL = owned("kvgate_gpu_memory_requested_bytes"), owned("kvgate_gpu_memory_total_bytes")
_GPU = 'gpu="0",UUID="GPU-1",Hostname="a"'
DCGM = f'DCGM_FI_DEV_FB_USED{{namespace="serving",pod="chat-0",container="vllm",{_GPU}}}'
DCGM_EXPORTED = (
    'DCGM_FI_DEV_FB_USED{namespace="gpu-operator",pod="nvidia-dcgm-exporter-x",exported_namespace="serving",exported_pod="chat-0",'
    f"{_GPU}}}"
)
EXPIRY = 'kvgate_webhook_certificate_expiry_timestamp_seconds{namespace="kvgate-system",instance="a"}'
ERRORS = "kvgate_admission_errors_total"
REVIEWS = 'kvgate_admission_reviews_total{decision="Admit",policy="Reject",operation="CREATE"}'
_PROCESS = 'namespace="kvgate-system",pod="kvgate-0",instance="a",job="kvgate"'
REVIEW_ERRORS = f"kvgate_admission_errors_total{{{_PROCESS}}}"
RECONCILES = f'kvgate_reconcile_total{{{_PROCESS},result="forbidden"}}'
REPLACED = f'kvgate_replacements{{{_PROCESS},state="failed"}}'
CONFLICTS = f'kvgate_reconcile_total{{{_PROCESS},result="conflict"}}'
STARTED = f"process_start_time_seconds{{{_PROCESS}}}"
BUCKET = "kvgate_admission_review_duration_seconds_bucket"
UP = of_pod("up", 'instance="10.0.0.7:8000"', 'job="vllm"')
SCRAPES = 'kvgate_pod_scrapes_total{result="timeout"}'
CONTRADICTORY = 'kvgate_calibration_starts{namespace="kvgate-system",state="contradictory"}'


def leader(pod: str, *, lease: str = "kvgate", job: str = "kvgate-controller") -> str:
    return f'kvgate_leader{{namespace="kvgate-system",pod="{pod}",lease="{lease}",job="{job}"}}'


def vllm(name: str, *labels: str, owner: str = _O) -> str:
    return of_pod(f"vllm:{name}", 'engine="0"', *labels, owner=owner)


def http(owner: str = _O, *, handler: str = "/v1/completions", status: str = "2xx") -> str:
    return of_pod("http_requests_total", 'method="POST"', f'handler="{handler}"', f'status="{status}"', owner=owner)


def first_token(le: str) -> str:
    return vllm("time_to_first_token_seconds_bucket", f'le="{le}"')


FIRST_TOKENS = vllm("time_to_first_token_seconds_count")
WAITING, RUNNING = vllm("num_requests_waiting"), vllm("num_requests_running")
USAGE = vllm("kv_cache_usage_perc")
GENERATED, PROMPTED = vllm("generation_tokens_total"), vllm("prompt_tokens_total")
PREEMPTED, FINISHED = vllm("num_preemptions_total"), vllm("request_success_total", 'finished_reason="stop"')
HITS, QUERIES = vllm("prefix_cache_hits_total"), vllm("prefix_cache_queries_total")


def stuck(owner: str, labels: Mapping[str, str], name: str) -> Scene:
    waiting, running = (vllm(f"num_requests_{kind}", owner=owner) for kind in ("waiting", "running"))
    generated, prompted = (vllm(f"{kind}_tokens_total", owner=owner) for kind in ("generation", "prompt"))
    arriving = rising(2, 2)
    return Scene(
        alert="KvgateEngineStuck",
        series={
            waiting: phases(0, 4),
            running: always(8),
            generated: rising(60, 0),
            prompted: rising(600, 0),
            http(owner): arriving,
        },
        settles_minutes=10,
        needs=frozenset({waiting, running, generated, prompted, http(owner)}),
        innocent=(
            {http(owner): always(7)},  # clients aborted, and the gauges stay as they were
            {http(owner): always(7), http(owner, status="4xx"): arriving},
            {http(owner): always(7), http(owner, handler="/tokenize"): arriving},
            {generated: rising(60, 60)},
            {prompted: rising(60, 60)},  # an engine for embeddings
            {waiting: always(0), running: always(0)},
        ),
        labels=labels,
        summary=f"Engines of {name} hold requests and generate nothing",
        description="Requests arrive, but 1 of its pods read no prompt and generated no token for 10 minutes.",
    )


def preemptions(
    alert: str, summary: str, description: str, more: Mapping[str, Values], *innocent: Mapping[str, Values]
) -> Scene:
    return Scene(
        alert=alert,
        series={PREEMPTED: rising(0, 32), FINISHED: rising(64, 64), RUNNING: always(8), **more},
        settles_minutes=3,
        clears_minutes=5,
        needs=frozenset({PREEMPTED, FINISHED, RUNNING, *more}),
        innocent=(
            {PREEMPTED: every(4, first=GOOD, last=GOOD + BAD, minutes=100)},
            {PREEMPTED: rising(0, 0.5), FINISHED: rising(64, 64)},
            *innocent,
        ),
        labels=OWNER,
        summary=summary,
        description=description,
    )


def recurring(
    alert: str, name: str, labels: Mapping[str, str], summary: str, description: str, *, starts: int
) -> Scene:
    """One failure every 15 minutes, of a process that has run for long, or that begins with its first failure."""
    good, bad, after = 100, 90, 60
    failures: Values = every(15, first=good + 5, last=good + bad - 1, minutes=good + bad + after)
    lived = [None if now < starts else value for now, value in enumerate(failures)]
    burst: Values = [None if now < starts else (0 if now <= good + 5 else 9) for now in range(good + bad + after)]
    return Scene(
        alert=alert,
        series={name: lived, STARTED: [None if now < starts else starts * 60 for now in range(good + bad + after)]},
        good_minutes=good,
        bad_minutes=bad,
        settles_minutes=51,
        clears_minutes=11,
        innocent=({name: burst},),
        labels=labels,
        summary=summary,
        description=description,
    )


_HOURS = (600, 150, 120)

SCENES = (
    stuck(_O, OWNER, "serving/chat"),
    stuck('namespace="legacy",workload="qwen"', OTHER, "legacy/qwen"),
    stuck('namespace="legacy"', {"namespace": "legacy"}, "legacy/engines without a label"),
    Scene(
        alert="KvgateTimeToFirstToken",
        series={
            first_token("1.0"): rising(64, 0),
            first_token("10.0"): rising(64, 0),
            first_token("20.0"): rising(64, 64),
            first_token("+Inf"): rising(64, 64),
            FIRST_TOKENS: rising(64, 64),
        },
        settles_minutes=2,
        clears_minutes=5,
        needs=frozenset({first_token("20.0"), first_token("+Inf"), FIRST_TOKENS}),
        innocent=(
            {first_token("10.0"): rising(64, 64), first_token("1.0"): rising(64, 0)},
            {
                **{first_token(le): rising(1, 0) for le in ("1.0", "10.0")},
                **{first_token(le): rising(1, 1) for le in ("20.0", "+Inf")},
                FIRST_TOKENS: rising(1, 1),  # a request a minute
            },
        ),
        labels=OWNER,
        summary="Users of serving/chat wait long for the first token",
        description="One request in twenty of the last 15 minutes waited 19.5s or longer for its first token.",
    ),
    Scene(
        alert="KvgateEngineFull",
        series={USAGE: phases(0.5, 1), WAITING: phases(0, 4), GENERATED: rising(60, 60), PROMPTED: rising(60, 60)},
        settles_minutes=5,
        needs=frozenset({USAGE, WAITING, GENERATED, PROMPTED}),
        innocent=(
            {WAITING: always(0)},
            {USAGE: phases(0.5, 0.875)},
            {GENERATED: rising(60, 0), PROMPTED: rising(60, 0)},  # clients aborted, and the gauges stay as they were
        ),
        labels=OWNER,
        summary="The KV cache of serving/chat is full and requests wait",
        description="Requests hold 100% of the KV cache of the fullest engine, and others wait until one of them ends.",
    ),
    Scene(
        alert="KvgateQueueGrowing",
        series={
            WAITING: [*always(0, GOOD), *(min(4.0 * n, 96.0) for n in range(1, BAD + 1)), *always(0, AFTER)],
            RUNNING: always(4),
        },
        settles_minutes=5,
        clears_minutes=5,
        needs=frozenset({WAITING, RUNNING}),
        innocent=(
            {WAITING: always(60)},
            {WAITING: [*always(0, GOOD), *(400.0 - 4 * n for n in range(BAD + AFTER))]},  # a batch that drains
            {RUNNING: always(256)},
        ),
        labels=OWNER,
        summary="The queue of serving/chat grows",
        description="96 requests wait, which is more than run, and the queue has grown for 20 minutes.",
    ),
    preemptions(
        "KvgatePreemptionStorm",
        "serving/chat computes many requests twice",
        "There are preemptions for 49.59% of the requests of the last 15 minutes. A preempted request loses its KV cache and is"
        " computed again.",
        {},
    ),
    preemptions(
        "KvgateUnexpectedPreemptions",
        "serving/chat preempts requests although KV cache should be left",
        "There are preemptions for 49.59% of the requests of the last 15 minutes, although the predicted headroom is above 20%.",
        {HEADROOM: always(0.5)},
        {HEADROOM: always(0.125)},
    ),
    Scene(
        alert="KvgatePrefixHitsCollapsed",
        series={HITS: rising(4096, 0, minutes=_HOURS), QUERIES: rising(8192, 8192, minutes=_HOURS)},
        good_minutes=600,
        bad_minutes=150,
        settles_minutes=35,
        clears_minutes=35,
        needs=frozenset({HITS, QUERIES}),
        innocent=(
            {HITS: rising(1024, 0, minutes=_HOURS)},  # nobody relied on it
            {HITS: rising(4, 0, minutes=_HOURS), QUERIES: rising(8, 8, minutes=_HOURS)},
            {HITS: rising(4096, 3072, minutes=_HOURS)},
        ),
        labels=OWNER,
        summary="The prefix cache of serving/chat finds much less than before",
        description="0% of the prompt tokens of the last hour were in the prefix cache, far less than before, so more is computed.",
    ),
    Scene(
        alert="KvgateNoReplicaReady",
        series={REPLICAS: always(2), READY_REPLICAS: phases(2, 0)},
        needs=frozenset({REPLICAS, READY_REPLICAS}),
        innocent=(
            {REPLICAS: phases(2, 0)},
            {READY_REPLICAS: phases(2, 1)},
            {READY_REPLICAS: always(0)},  # it never served
            {POD_START: phases(0, 600), LOAD_BUDGET: always(3600), POD_READY: phases(1, 0)},
            {
                REPLICAS: [*always(0, GOOD), *always(2, BAD + AFTER)],
                READY_REPLICAS: always(0),
                POD_START: phases(None, 600),
                LOAD_BUDGET: always(3600),
                POD_READY: always(0),
            },
        ),
        labels=OWNER,
        summary="No replica of serving/chat is ready",
        description="2 replicas are wanted and none is ready, so every request fails.",
    ),
    Scene(
        alert="KvgateReplicasNotReady",
        series={REPLICAS: always(2), READY_REPLICAS: phases(2, 1)},
        needs=frozenset({REPLICAS, READY_REPLICAS}),
        innocent=(
            {REPLICAS: phases(2, 0), READY_REPLICAS: phases(2, 0)},
            {POD_START: phases(0, 600), LOAD_BUDGET: always(3600), POD_READY: phases(1, 0)},
        ),
        labels=OWNER,
        summary="Replicas of serving/chat are not ready",
        description="50% of the wanted replicas are not ready, and none of them is loading within the time that it may take.",
    ),
    Scene(
        alert="KvgateLoadingTooLong",
        series={POD_READY: phases(1, 0), POD_START: always(0), LOAD_BUDGET: always(600)},
        needs=frozenset({POD_READY, POD_START, LOAD_BUDGET}),
        innocent=({LOAD_BUDGET: always(3600)}, {RUNNING: always(0)}),
        labels=OWNER,
        summary="Pods of serving/chat take long to load",
        description="1 of its pods used most of the time that a start may take. After all of it the kubelet begins their start anew.",
    ),
    Scene(
        alert="KvgateStalled",
        series={STALLED: [*always(None, GOOD), *always(1, BAD), *always(None, AFTER)]},
        innocent=({REFUSED: always(1)},),
        labels=OWNER,
        summary="serving/chat does not get to its spec",
        description="Its condition Stalled is True, or its engines end again and again. The condition's message says why, if it is known.",
    ),
    Scene(
        alert="KvgateStalled",
        series={RESTARTS: every(5, first=GOOD, last=GOOD + 25, minutes=130)},
        settles_minutes=15,
        clears_minutes=30,
        innocent=({RESTARTS: every(15, first=GOOD, last=GOOD + 15, minutes=130)},),
        labels=OWNER,
        summary="serving/chat does not get to its spec",
        description="Its condition Stalled is True, or its engines end again and again. The condition's message says why, if it is known.",
    ),
    Scene(
        alert="KvgateNotAccepted",
        series={REFUSED: phases(None, 1)},
        labels=OWNER,
        summary="serving/chat is refused and not rendered",
        description="Its condition Accepted is False. Nothing runs for the current spec; the spec that was admitted before keeps running.",
    ),
    Scene(
        alert="KvgateNoEngineTarget",
        series={
            READY: always(1, 120),
            READY_REPLICAS: always(2, 120),
            RUNNING: phases(0, None, minutes=(GOOD, 50, AFTER)),
        },
        bad_minutes=50,
        settles_minutes=15,
        needs=frozenset({READY, READY_REPLICAS}),
        innocent=({RUNNING: always(0, 120)}, {UP: always(0, 120)}, {READY_REPLICAS: always(0, 120)}),
        labels=OWNER,
        summary="Prometheus has no metrics of the engines of serving/chat",
        description="All replicas are ready, but Prometheus has no series of their vLLM with the label inferencedeployment. No alert about"
        " their requests can fire.",
    ),
    Scene(
        alert="KvgatePodsNotScraped",
        series={UP: phases(1, 0, minutes=(GOOD, 45, AFTER)), READY: always(1, 115)},
        bad_minutes=45,
        settles_minutes=5,
        needs=frozenset({UP, READY}),
        innocent=({READY: always(None)}, {UP: [0.0, 0.0, 0.0, 1.0] * 25}),
        labels=OWNER,
        summary="Prometheus cannot scrape pods of serving/chat",
        description="1 of its pods did not answer Prometheus although all replicas are ready. Their usage, waiting requests and preemptions"
        " are unknown.",
    ),
    Scene(
        alert="KvgatePodsNotObserved",
        series={READY: always(1), OBSERVED: phases(2, 0), SCRAPES: rising(1, 1)},
        needs=frozenset({READY, SCRAPES}),
        innocent=({OBSERVED: always(1)}, {GPUS: always(0)}),
        labels=OWNER,
        summary="The controller cannot observe serving/chat",
        description="All replicas are ready, but the KV cache of none is known, so the prediction is not compared with reality.",
    ),
    Scene(
        alert="KvgateHeadroomNegative",
        series={HEADROOM_HIGH: phases(GIB, -GIB)},
        innocent=(
            {HEADROOM_HIGH: always(0)},
            {
                HEADROOM_HIGH: always(GIB),
                HEADROOM_BYTES: always(-GIB),
                HEADROOM: always(-0.25),
            },  # it may not fit, and runs well
            {REFUSED: always(1)},
            {GPUS: always(0)},
        ),
        labels=OWNER,
        summary="serving/chat runs with less KV cache than its guarantee needs",
        description="The predicted headroom is -1GiB, but the InferenceDeployment was admitted. Expect preemptions, or engines that do not"
        " start.",
    ),
    Scene(
        alert="KvgateHeadroomNegative",
        series={
            HEADROOM_BYTES: always(-GIB),
            PREEMPTED: rising(0, 32),
            FINISHED: rising(64, 64),
            RUNNING: always(8),
        },
        settles_minutes=3,
        clears_minutes=16,
        needs=frozenset({HEADROOM_BYTES, PREEMPTED, FINISHED, RUNNING}),
        innocent=({PREEMPTED: always(900)}, {PREEMPTED: always(900), RESTARTS: always(7)}),
        labels=OWNER,
        summary="serving/chat runs with less KV cache than its guarantee needs",
        description="The predicted headroom is -1GiB, but the InferenceDeployment was admitted. Expect preemptions, or engines that do not"
        " start.",
    ),
    Scene(
        alert="KvgateHeadroomLow",
        series={HEADROOM: phases(0.5, 0.0625)},
        innocent=({HEADROOM_HIGH: always(-GIB)}, {HEADROOM: always(0.125)}, {REFUSED: always(1)}),
        labels=OWNER,
        summary="serving/chat has little KV cache left",
        description="The predicted headroom is 6.25% of the KV cache. Below 0 the guarantee may not fit. Above 0 it fits, and more or"
        " longer requests may not.",
    ),
    *(
        Scene(
            alert="KvgatePredictionWrong",
            series={ERROR: phases(0.0625, ratio)},
            innocent=({ERROR: always(-0.0625)},),
            labels=OWNER,
            summary="The prediction for serving/chat is wrong",
            description=f"vLLM's KV cache differs from the prediction by {percent}. Below 0, vLLM has less than kvgate predicted.",
        )
        for ratio, percent in ((-0.25, "-25%"), (0.125, "12.5%"))
    ),
    Scene(
        alert="KvgatePredictionFarOff",
        series={OBSERVED_CAPACITY: phases(65536, 16384), DEMAND: always(32768), HEADROOM: always(0.25)},
        needs=frozenset({OBSERVED_CAPACITY, DEMAND, HEADROOM}),
        innocent=({OBSERVED_CAPACITY: always(32768)}, {HEADROOM: always(-0.25)}, {GPUS: always(0)}),
        labels=OWNER,
        summary="The KV cache of serving/chat does not hold its guarantee",
        description="The smallest pod reports 16.38k tokens of KV cache, less than the guarantee needs, although kvgate expected enough.",
    ),
    Scene(
        alert="KvgateCapacityDropped",
        series={OBSERVED_CAPACITY: phases(65536, 49152), CAPACITY: always(60000), CAPACITY_LOW: always(50000)},
        needs=frozenset({OBSERVED_CAPACITY, CAPACITY}),
        innocent=(
            {CAPACITY: phases(60000, 45000)},  # another spec
            {OBSERVED_CAPACITY: phases(65536, 64512)},
            {OBSERVED_CAPACITY: [*always(49152, GOOD), *always(65536, BAD + AFTER)]},
        ),
        labels=OWNER,
        summary="serving/chat has less KV cache than before",
        description="The smallest pod reports 25% less KV cache than pods of the same generation had within the last day.",
    ),
    Scene(
        alert="KvgateLengthBelowFloor",
        series={OBSERVED_LENGTH: phases(32768, 16384), FLOOR: always(32768)},
        needs=frozenset({OBSERVED_LENGTH, FLOOR}),
        innocent=({OBSERVED_LENGTH: always(32768)}, {FLOOR: always(16384)}),
        labels=OWNER,
        summary="serving/chat serves shorter requests than promised",
        description="A pod serves requests of at most 16.38k tokens, fewer than the floor in the InferenceDeployment. It answers longer"
        " ones with an error.",
    ),
    *(
        Scene(
            alert="KvgateForeignGpuMemory",
            series={
                dcgm: phases(48 * 1024, 60 * 1024),
                POD_INFO: always(1),
                REQUESTED: always(48 * GIB),
                TOTAL: always(64 * GIB),
                GPUS: always(1),
                REPLICAS: always(1),
            },
            needs=frozenset({dcgm, POD_INFO, REQUESTED, TOTAL, GPUS, REPLICAS}),
            innocent=({REPLICAS: always(2)}, {dcgm: always(50 * 1024)}),
            labels=OWNER,
            summary="Another process uses the GPU of serving/chat",
            description="The memory in use on the fullest GPU is 18.75% of the GPU above what vLLM may take.",
        )
        for dcgm in (DCGM, DCGM_EXPORTED)
    ),
    Scene(
        alert="KvgateCalibrationUnused",
        series={CONTRADICTORY: phases(0, 2)},
        labels={**KVGATE, "state": "contradictory"},
        summary="Some stored starts correct no prediction",
        description="2 stored starts are contradictory, so kvgate does not use them.",
    ),
    Scene(
        alert="KvgateNoLeader",
        series={leader("a"): phases(1, 0)},
        settles_minutes=5,
        fires_without_all=True,
        innocent=({leader("b"): always(1)}, {leader("a"): [1.0, None, None, None] * 25}),
        labels=KVGATE,
        summary="No kvgate controller is the leader",
        description="InferenceDeployments are not reconciled, and the alerts about them have no data.",
    ),
    Scene(
        alert="KvgateTwoLeaders",
        series={leader("a"): always(1), leader("b"): phases(0, 1)},
        needs=frozenset({leader("a"), leader("b")}),
        innocent=(
            {leader("b"): always(0), leader("b", lease="of-another-release"): always(1)},
            {leader("b"): always(0), leader("a", job="scraped-twice"): always(1)},
            {leader("a"): [*always(1, GOOD + 1), *always(None, 89)]},  # one takes over from the other
        ),
        labels={"lease": "kvgate"},
        summary="Several kvgate controllers lead at once",
        description="2 controllers say that they hold the Lease kvgate, and may undo each other's writes.",
    ),
    Scene(
        alert="KvgateNoWebhook",
        series={EXPIRY: phases(9_000_000, None)},
        settles_minutes=5,
        fires_without_all=True,
        innocent=({EXPIRY: always(9_000_000)}, {EXPIRY: [9_000_000, None, None, None] * 25}),
        labels=KVGATE,
        summary="No kvgate webhook answers",
        description="No webhook is scraped. While none runs, InferenceDeployments cannot be created and their specs cannot be changed.",
    ),
    Scene(
        alert="KvgateCertificateExpired",
        series={EXPIRY: phases(9_000_000, 60)},
        innocent=({EXPIRY: always(86_400)},),
        labels=KVGATE,
        summary="The certificate of the kvgate webhook has expired",
        description="The API server does not trust the webhook, so InferenceDeployments cannot be created and their specs cannot be"
        " changed.",
    ),
    Scene(
        alert="KvgateCertificateExpiring",
        series={
            EXPIRY: [*always(9_000_000, GOOD), *(600_600.0 + 60 * n for n in range(140)), *always(9_000_000, AFTER)]
        },
        bad_minutes=140,
        innocent=({EXPIRY: always(60, 210)},),
        labels=KVGATE,
        summary="The certificate of the kvgate webhook expires soon",
        description="It expires in 6d 22h 40m 0s. After that InferenceDeployments cannot be created and their specs cannot be changed.",
    ),
    *(
        recurring(
            "KvgateReviewErrors",
            REVIEW_ERRORS,
            KVGATE,
            "The kvgate webhook fails to judge InferenceDeployments",
            f"{count} reviews of the last hour ended without a verdict (HTTP 429, 500 or 503), so the API server refused objects.",
            starts=starts,
        )
        for starts, count in ((0, "4"), (105, "4"))
    ),
    recurring(
        "KvgateReconcileErrors",
        RECONCILES,
        {**KVGATE, "result": "forbidden"},
        "The kvgate controller fails to reconcile InferenceDeployments",
        "4 reconciles of the last hour ended with the result forbidden.",
        starts=0,
    ),
    Scene(
        alert="KvgateReplacementHalted",
        series={REPLACED: [*always(0, GOOD), *always(2, BAD), *always(0, AFTER)]},
        innocent=({REPLACED: always(0, 60)},),
        labels=KVGATE,
        summary="kvgate has stopped replacing pods",
        description="Of the engines with pods of this release, 2 did not become ready. All others keep the pods that they have.",
    ),
    Scene(
        alert="KvgateWebhookSlow",
        series={
            f'{BUCKET}{{le="+Inf"}}': rising(60, 60),
            f'{BUCKET}{{le="1.0"}}': rising(60, 60),
            f'{BUCKET}{{le="0.5"}}': rising(60, 0),
        },
        settles_minutes=5,
        clears_minutes=5,
        needs=frozenset({f'{BUCKET}{{le="+Inf"}}', f'{BUCKET}{{le="1.0"}}'}),
        innocent=({f'{BUCKET}{{le="0.5"}}': rising(60, 60)},),
        labels={},
        summary="The kvgate webhook is slow",
        description="One admission review in a hundred takes 995ms or longer. The API server waits 5 s.",
    ),
)
