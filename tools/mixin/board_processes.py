"""The dashboard of kvgate's own processes shows whether they run, answer and keep up, and what they learn."""

from collections.abc import Iterable

from grafana_foundation_sdk.builders import stat, timeseries

from kvgate.budget.observed.calibration import StartState
from kvgate.judgement.assessment import Decision
from kvgate.metrics import registry
from kvgate.metrics.registry import Metric
from mixin import expressions as ask
from mixin.looks import (
    BAD_ABOVE_ZERO,
    BLUE,
    BROWN,
    DAYS,
    EXACTLY_ONE,
    EXPIRING,
    FEW,
    FROM_ZERO,
    GREEN,
    GREY,
    ODD_ABOVE_ZERO,
    ORANGE,
    PINK,
    PLAIN,
    PURPLE,
    RED,
    REVIEW,
    SECOND,
    TEAL,
    YELLOW,
    Axis,
    Thresholds,
)
from mixin.panels import About, Figure, Query, figures, lines, words
from mixin.queries import equals, unlike

NOTHING = "nothing is scraped"
NO_WEBHOOK = "no webhook is scraped"
NO_CONTROLLER = "no controller is scraped"
QUANTILES = (("p99", 0.99, ORANGE), ("p50", 0.5, BLUE))

DECISIONS = (
    ("Invalid", RED), (Decision.REFUSE.value, ORANGE), (Decision.WOULD_REFUSE.value, PINK), (Decision.ADMIT_ADJUSTED.value, BLUE),
    (Decision.SKIPPED.value, PURPLE), (Decision.ADMIT_WITH_WARNING.value, YELLOW), (Decision.ADMIT.value, GREEN),
)  # fmt: skip
RECONCILE_RESULTS = (
    ("failed", RED), ("forbidden", PURPLE), ("unavailable", ORANGE), ("conflict", YELLOW), ("gone", BLUE), ("unchanged", GREY),
    ("written", GREEN),
)  # fmt: skip
SCRAPE_RESULTS = (
    ("unreachable", RED), ("timeout", ORANGE), ("http_error", PURPLE), ("too_large", YELLOW), ("not_vllm", BLUE), ("unreadable", GREY),
    ("cut", BROWN), ("unknown_names", TEAL), ("changed", PINK), ("read", GREEN),
)  # fmt: skip
START_STATES = (
    (StartState.IMPOSSIBLE.value, PINK), (StartState.IMPLAUSIBLE.value, RED), (StartState.CONTRADICTORY.value, ORANGE),
    ("untrusted", PURPLE), ("unreadable", YELLOW), (StartState.SHARED.value, TEAL), (StartState.OUTDATED.value, GREY),
    (StartState.EXPIRED.value, BLUE), (StartState.DROPPED.value, BROWN), (StartState.USED.value, GREEN),
)  # fmt: skip
"""Values of the labels `decision`, `result` and `state` that the code emits, each with its colour. Each has a series of its own, which is 0
as long as it was never counted; a test holds them against the code. The usual one is drawn last, over the zeros of the others."""


def numbers() -> list[stat.Panel]:
    """Return the line of figures, with the release as text."""
    release = About(
        title="Release", unit="", width=3, height=3, no_value=NOTHING,
        description="Releases that run. There is more than one during an upgrade.",
    )  # fmt: skip
    failed = ask.or_zero(ask.process_count(registry.RECONCILES, equals("result", "failed")), ask.CONTROLLER)
    unread = ask.or_zero(ask.process_count(registry.POD_SCRAPES, unlike("result", "read")), ask.CONTROLLER)
    return [
        words(release, Query(expr=ask.process_worst(registry.BUILD_INFO, by=("version",)), legend="{{version}}")),
        *figures(
            3,
            Figure(
                title="Leaders", unit="none", expr=ask.LEADERS, no_value=NO_CONTROLLER, thresholds=EXACTLY_ONE,
                description="Controllers that hold a Lease, counted by pod. There must be exactly one in a cluster.",
            ),
            Figure(
                title="Certificate", unit=DAYS, expr=ask.CERTIFICATE_DAYS, no_value=NO_WEBHOOK, decimals=0, thresholds=EXPIRING,
                description="Time until the certificate of the webhook expires, on the replica where it expires first.",
            ),
            Figure(
                title="No verdict", unit="none", expr=ask.process_count(registry.ADMISSION_ERRORS), no_value=NO_WEBHOOK,
                decimals=0, thresholds=BAD_ABOVE_ZERO,
                description="Admission reviews in the time range that ended without a verdict (HTTP 429, 500 or 503).",
            ),
            Figure(
                title="Failed reconciles", unit="none", expr=failed, no_value=NO_CONTROLLER, decimals=0, thresholds=BAD_ABOVE_ZERO,
                description="Reconciles in the time range that ended in a defect of kvgate. They are tried again.",
            ),
            Figure(
                title="Pods not read", unit="none", expr=unread, no_value=NO_CONTROLLER, decimals=0, thresholds=ODD_ABOVE_ZERO,
                description="Scrapes of vLLM pods in the time range that brought no figures.",
            ),
            *(
                Figure(
                    title=f"{kind.capitalize()} known", unit="none", no_value=NOTHING,
                    expr=ask.process_worst(registry.CATALOGUE_ENTRIES, equals("catalogue", kind)),
                    description=f"Entries of the catalogue of {kind}.",
                )
                for kind in ("models", "accelerators")
            ),
        ),
    ]  # fmt: skip


def _by_value(
    metric: Metric, label: str, values: Iterable[tuple[str, str]], of_process: str
) -> list[tuple[str, str, str]]:
    """Return one rate per value that the code emits; 0 for a value that was never counted."""
    return [
        (value, ask.or_zero(ask.process_rate(metric, equals(label, value)), of_process), colour)
        for value, colour in values
    ]


def _latency(title: str, description: str, none: str, metric: Metric, limits: Thresholds = PLAIN) -> timeseries.Panel:
    """Return a panel with the median and the 99th percentile of a histogram."""
    series = [(name, ask.process_quantile(metric, share), colour) for name, share, colour in QUANTILES]
    return lines(title, "s", none, description, Axis(0, 0.1), *series, limits=limits)


def admission() -> list[timeseries.Panel]:
    """Return the panels of the webhook."""
    return [
        lines(
            "Admission reviews", "reqps", NO_WEBHOOK,
            "Answered reviews per second, by decision. Invalid means that the schema refused the object.",
            SECOND, *_by_value(registry.ADMISSION_REVIEWS, "decision", DECISIONS, ask.WEBHOOK),
        ),
        _latency(
            "Time of a review", "Time from the first byte of a review's body to its answer. The API server waits for the answer.",
            "no review in this time", registry.ADMISSION_REVIEW_DURATION, REVIEW,
        ),
        lines(
            "Reviews without verdict", "reqps", NO_WEBHOOK, "Reviews per second that ended without a verdict (HTTP 429, 500 or 503).",
            SECOND, ("without verdict", ask.process_rate(registry.ADMISSION_ERRORS), BLUE),
        ),
    ]  # fmt: skip


def reconciling() -> list[timeseries.Panel]:
    """Return the panels of the controller and its API requests."""
    requests = ask.process_rate(registry.API_REQUESTS, by=("verb", "code"))
    return [
        lines(
            "Reconciles", "ops", NO_CONTROLLER,
            "Finished reconciles per second, by result. Failed is a defect of kvgate; conflict and unavailable are tried "
            "again; forbidden lacks a rule of RBAC.",
            SECOND, *_by_value(registry.RECONCILES, "result", RECONCILE_RESULTS, ask.CONTROLLER),
        ),
        _latency(
            "Time of a reconcile", "Time of one reconcile, its API requests included.", "no reconcile in this time",
            registry.RECONCILE_DURATION,
        ),
        lines(
            "Reconciles that wait", "none", NO_CONTROLLER,
            "InferenceDeployments whose reconcile is due and has not begun. If it does not come back to 0, the controller "
            "does not keep up.",
            FEW, ("waiting", ask.process_worst(registry.QUEUE_DEPTH), BLUE),
        ),
        lines(
            "API requests", "reqps", "no request to the API in this time",
            "Requests per second to the Kubernetes API, by verb and HTTP status.",
            SECOND, ("{{verb}} {{code}}", requests, ""), width=24, height=7,
        ),
    ]  # fmt: skip


def observing() -> list[timeseries.Panel]:
    """Return the panels of the reads of vLLM's metrics, and of what is learnt from them."""
    states = [
        (
            state,
            ask.or_zero(ask.process_worst(registry.CALIBRATION_STARTS, equals("state", state)), ask.CONTROLLER),
            colour,
        )
        for state, colour in START_STATES
    ]
    return [
        lines(
            "Pod scrapes", "ops", NO_CONTROLLER, "Scrapes of vLLM pods per second, by result: `read`, or the kind of failure.",
            SECOND, *_by_value(registry.POD_SCRAPES, "result", SCRAPE_RESULTS, ask.CONTROLLER),
        ),
        _latency(
            "Time of a scrape", "Time of one scrape of a vLLM pod, the parsing included.", "no pod is scraped",
            registry.POD_SCRAPE_DURATION,
        ),
        lines(
            "Starts that calibrate", "none", NO_CONTROLLER,
            "Observed starts by state: those that correct predictions (used), and those that are stored but not used.", FEW, *states,
        ),
    ]  # fmt: skip


def processes() -> list[timeseries.Panel]:
    """Return the panels of kvgate's own pods."""
    return [
        lines(
            "Event-loop lag", "s", NO_CONTROLLER, "Delay with which the reconciling event loop last woke up. Above one second, something "
                "blocks it.", SECOND, ("{{pod}}", ask.process_worst(registry.EVENT_LOOP_LAG, by=("pod",)), ""),
        ),
        lines("CPU", "none", NOTHING, "Cores that each pod of kvgate uses.", SECOND, ("{{pod}}", ask.CPU_CORES, "")),
        lines("Memory", "bytes", NOTHING, "Resident memory of each pod of kvgate.", FROM_ZERO, ("{{pod}}", ask.MEMORY_BYTES, "")),
    ]  # fmt: skip
