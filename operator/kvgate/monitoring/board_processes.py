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
"""A decision of the webhook's own: the schema refused."""
NOTHING = "nothing is scraped"
NO_WEBHOOK = "no webhook is scraped"
NO_CONTROLLER = "no controller is scraped"
QUANTILES = (("p50", 0.5, BLUE), ("p99", 0.99, ORANGE))


def numbers() -> list[stat.Panel]:
    """The line of figures, and the release in words."""
    release = About(
        title="Release", unit="", width=4, height=3, no_value=NOTHING,
        description="Releases that run; more than one while an upgrade is under way.",
    )  # fmt: skip
    return [
        words(release, Query(expr=ask.process_worst(registry.BUILD_INFO, "version"), legend="{{version}}")),
        *figures(
            4,
            Figure(
                title="Leaders", unit="none", expr=ask.summed(ask.process_worst(registry.LEADER, "pod")), no_value=NO_CONTROLLER,
                thresholds=((None, RED), (1, GREEN), (2, RED)), description="Controllers that act, by their pods: exactly one.",
            ),
            Figure(
                title="Certificate", unit=DAYS, expr=ask.CERTIFICATE_DAYS, no_value=NO_WEBHOOK, decimals=0,
                thresholds=((None, RED), (CERTIFICATE_MIN_DAYS, GREEN)),
                description="Until the certificate that the webhook serves ends, on the replica where it ends first.",
            ),
            Figure(
                title="Defects", unit="none", expr=ask.DEFECTS, no_value=NO_WEBHOOK, decimals=0,
                thresholds=((None, GREEN), (1, RED)),
                description="Admission reviews in the time range that were answered with HTTP 500.",
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
    """Median and 99th percentile."""
    queries = [Query(expr=ask.process_quantile(metric, share), legend=name) for name, share, _ in QUANTILES]
    looks = tuple(Look(series=name, colour=colour) for name, _, colour in QUANTILES)
    return _over_time(title, description, "s", none, *queries, looks=looks)


def admission() -> list[timeseries.Panel]:
    """The webhook."""
    decisions = (
        (Decision.ADMIT, GREEN), (Decision.ADMIT_WITH_WARNING, YELLOW), (Decision.ADMIT_ADJUSTED, BLUE),
        (Decision.REFUSE, ORANGE), (INVALID, RED),
    )  # fmt: skip
    return [
        _over_time(
            "Admission reviews", "Answered reviews per second, by decision; Invalid: the schema refused.", "reqps", NO_WEBHOOK,
            Query(expr=ask.process_rate(registry.ADMISSION_REVIEWS, "decision"), legend="{{decision}}"),
            looks=tuple(Look(series=name, colour=colour) for name, colour in decisions),
        ),
        _latency(
            "Time of a review", "From the first byte of a review's body to its answer. The API server waits for it.",
            "no review was asked for", registry.ADMISSION_REVIEW_DURATION,
        ),
        _over_time(
            "Defects", "Reviews per second that were answered with HTTP 500 because of a defect of kvgate.", "reqps", NO_WEBHOOK,
            Query(expr=ask.process_rate(registry.ADMISSION_ERRORS), legend="errors"), looks=(Look(series="errors", colour=RED),),
        ),
    ]  # fmt: skip


def reconciling() -> list[timeseries.Panel]:
    """The controller and the API server."""
    return [
        _over_time(
            "Reconciles", "Finished reconciles per second, by result.", "ops", NO_CONTROLLER,
            Query(expr=ask.process_rate(registry.RECONCILES, "result"), legend="{{result}}"),
        ),
        _latency(
            "Time of a reconcile", "API requests included.", "nothing was reconciled", registry.RECONCILE_DURATION,
        ),
        _over_time(
            "API requests", "Requests per second to the Kubernetes API, by verb and HTTP status.", "reqps", NO_CONTROLLER,
            Query(expr=ask.process_rate(registry.API_REQUESTS, "verb", "code"), legend="{{verb}} {{code}}"),
        ),
    ]  # fmt: skip


def observing() -> list[timeseries.Panel]:
    """The reader of vLLM's metrics, and what it learns."""
    return [
        _over_time(
            "Pod scrapes", "Scrapes of vLLM pods per second, by result: read, or what was wrong.", "ops", "no pod is scraped",
            Query(expr=ask.process_rate(registry.POD_SCRAPES, "result"), legend="{{result}}"),
        ),
        _latency(
            "Time of a scrape", "Of one vLLM pod, its parsing included.", "no pod is scraped", registry.POD_SCRAPE_DURATION,
        ),
        _over_time(
            "Starts that calibrate", "Observed starts that correct predictions, and those that are kept but not used, by state.", "none",
            "nothing observed yet", Query(expr=ask.process_worst(registry.CALIBRATION_STARTS, "state"), legend="{{state}}"),
        ),
    ]  # fmt: skip


def processes() -> list[timeseries.Panel]:
    """Each pod of kvgate."""
    return [
        _over_time(
            "Event-loop lag", "How late the reconciling loop last woke up: above a second something blocks it.", "s", NO_CONTROLLER,
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
