"""The dashboard of kvgate's own processes: does it answer, does it keep up, will its certificate last."""

from grafana_foundation_sdk.builders import stat, timeseries

from kvgate.judge.assess import Decision
from kvgate.metrics import registry
from kvgate.metrics.registry import Metric
from kvgate.monitoring import expressions as ask
from kvgate.monitoring.panels import (
    BLUE,
    DAYS,
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    About,
    Figure,
    Look,
    Query,
    figures,
    graph,
    words,
)
from kvgate.monitoring.queries import CERTIFICATE_MIN_DAYS

INVALID = "Invalid"
"""The webhook's own decision where the schema refuses."""
NOTHING = "nothing is scraped"
NO_WEBHOOK = "no webhook is scraped"
NO_CONTROLLER = "no controller is scraped"
QUANTILES = (("p50", 0.5, BLUE), ("p99", 0.99, ORANGE))


def numbers() -> list[stat.Panel]:
    """Return the line of figures, with the release as text."""
    release = About(
        title="Release", unit="", width=4, height=3, no_value=NOTHING,
        description="Releases that run. There is more than one during an upgrade.",
    )  # fmt: skip
    return [
        words(release, Query(expr=ask.process_worst(registry.BUILD_INFO, "version"), legend="{{version}}")),
        *figures(
            4,
            Figure(
                title="Leaders", unit="none", expr=ask.summed(ask.process_worst(registry.LEADER, "pod")), no_value=NO_CONTROLLER,
                thresholds=((None, RED), (1, GREEN), (2, RED)), description="Controllers that hold a Lease, counted by pod. There must be "
                    "exactly one.",
            ),
            Figure(
                title="Certificate", unit=DAYS, expr=ask.CERTIFICATE_DAYS, no_value=NO_WEBHOOK, decimals=0,
                thresholds=((None, RED), (CERTIFICATE_MIN_DAYS, GREEN)),
                description="Time until the certificate of the webhook expires, on the replica where it expires first.",
            ),
            Figure(
                title="Defects", unit="none", expr=ask.DEFECTS, no_value=NO_WEBHOOK, decimals=0,
                thresholds=((None, GREEN), (1, RED)),
                description="Admission reviews in the time range that ended without a verdict (HTTP 429, 500 or 503).",
            ),
            *(
                Figure(
                    title=f"{kind.capitalize()} known", unit="none", expr=ask.catalogue(kind), no_value=NOTHING,
                    description=f"Entries of the catalogue of {kind}.",
                )
                for kind in ("models", "accelerators")
            ),
        ),
    ]  # fmt: skip


def _over_time(
    title: str, description: str, unit: str, none: str, *queries: Query, looks: tuple[Look, ...] = ()
) -> timeseries.Panel:
    about = About(title=title, description=description, unit=unit, width=8, height=8, no_value=none)
    return graph(about, queries, *looks)


def _latency(title: str, description: str, none: str, metric: Metric) -> timeseries.Panel:
    """Return a panel with the median and the 99th percentile of a histogram."""
    queries = [Query(expr=ask.process_quantile(metric, share), legend=name) for name, share, _ in QUANTILES]
    looks = tuple(Look(series=name, colour=colour) for name, _, colour in QUANTILES)
    return _over_time(title, description, "s", none, *queries, looks=looks)


def admission() -> list[timeseries.Panel]:
    """Return the panels of the webhook."""
    decisions = (
        (Decision.ADMIT, GREEN), (Decision.ADMIT_WITH_WARNING, YELLOW), (Decision.ADMIT_ADJUSTED, BLUE),
        (Decision.REFUSE, ORANGE), (INVALID, RED),
    )  # fmt: skip
    return [
        _over_time(
            "Admission reviews", "Answered reviews per second, by decision. Invalid means that the schema refused "
                "the object.", "reqps", NO_WEBHOOK,
            Query(expr=ask.process_rate(registry.ADMISSION_REVIEWS, "decision"), legend="{{decision}}"),
            looks=tuple(Look(series=name, colour=colour) for name, colour in decisions),
        ),
        _latency(
            "Time of a review", "Time from the first byte of a review's body to its answer. The API server waits for the answer.",
            "no reviews", registry.ADMISSION_REVIEW_DURATION,
        ),
        _over_time(
            "Defects", "Reviews per second that ended without a verdict (HTTP 429, 500 or 503).", "reqps", NO_WEBHOOK,
            Query(expr=ask.process_rate(registry.ADMISSION_ERRORS), legend="errors"), looks=(Look(series="errors", colour=RED),),
        ),
    ]  # fmt: skip


def reconciling() -> list[timeseries.Panel]:
    """Return the panels of the controller and its API requests."""
    return [
        _over_time(
            "Reconciles", "Finished reconciles per second, by result.", "ops", NO_CONTROLLER,
            Query(expr=ask.process_rate(registry.RECONCILES, "result"), legend="{{result}}"),
        ),
        _latency(
            "Time of a reconcile", "Time of one reconcile, its API requests "
                "included.", "nothing was reconciled", registry.RECONCILE_DURATION,
        ),
        _over_time(
            "API requests", "Requests per second to the Kubernetes API, by verb and HTTP status.", "reqps", NO_CONTROLLER,
            Query(expr=ask.process_rate(registry.API_REQUESTS, "verb", "code"), legend="{{verb}} {{code}}"),
        ),
    ]  # fmt: skip


def observing() -> list[timeseries.Panel]:
    """Return the panels of the reads of vLLM's metrics, and of what is learnt from them."""
    return [
        _over_time(
            "Pod scrapes", "Scrapes of vLLM pods per second, by result: `read`, or the kind of failure.", "ops", "no pod is scraped",
            Query(expr=ask.process_rate(registry.POD_SCRAPES, "result"), legend="{{result}}"),
        ),
        _latency(
            "Time of a scrape", "Time of one scrape of a vLLM pod, the parsing "
                "included.", "no pod is scraped", registry.POD_SCRAPE_DURATION,
        ),
        _over_time(
            "Starts that calibrate", "Observed starts by state: those that correct predictions, and those that are stored but "
                "not used.", "none",
            "nothing observed yet", Query(expr=ask.process_worst(registry.CALIBRATION_STARTS, "state"), legend="{{state}}"),
        ),
    ]  # fmt: skip


def processes() -> list[timeseries.Panel]:
    """Return the panels of kvgate's own pods."""
    return [
        _over_time(
            "Event-loop lag", "Delay with which the reconciling event loop last woke up. Above one second, something "
                "blocks it.", "s", NO_CONTROLLER,
            Query(expr=ask.process_worst(registry.EVENT_LOOP_LAG, "pod"), legend="{{pod}}"),
        ),
        _over_time(
            "CPU", "Cores that each pod of kvgate uses.", "none", NOTHING, Query(expr=ask.CPU_CORES, legend="{{pod}}"),
        ),
        _over_time(
            "Memory", "Resident memory of each pod of kvgate.", "bytes", NOTHING,
            Query(expr=ask.MEMORY_BYTES, legend="{{pod}}"),
        ),
    ]  # fmt: skip
