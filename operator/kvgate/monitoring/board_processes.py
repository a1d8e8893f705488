"""The dashboard of kvgate's own processes: does it answer, does it keep up, will its certificate last."""

from grafana_foundation_sdk.builders import stat, timeseries

from kvgate.engine import Decision
from kvgate.metrics import registry
from kvgate.metrics.registry import Metric
from kvgate.monitoring import expressions as ask
from kvgate.monitoring.panels import BLUE, DAYS, GREEN, ORANGE, RED, YELLOW, About, Look, Query, figure, graph, words
from kvgate.monitoring.thresholds import CERTIFICATE_MIN_DAYS

INVALID = "Invalid"
"""A decision of the webhook's own: the schema refused."""
NO_WEBHOOK = "no webhook is scraped"
NO_CONTROLLER = "no controller is scraped"
QUANTILES = (("p50", 0.5, BLUE), ("p99", 0.99, ORANGE))


def figures() -> list[stat.Panel]:
    """The line of figures."""
    rows = (
        ("Leaders", "none", ask.summed(registry.LEADER.name), NO_CONTROLLER, ((None, RED), (1, GREEN), (2, RED)),
         "Controllers that act: exactly one."),
        ("Certificate", DAYS, ask.CERTIFICATE_DAYS, NO_WEBHOOK, ((None, RED), (CERTIFICATE_MIN_DAYS, GREEN)),
         "Until the certificate that the webhook serves ends, on the replica where it ends first."),
        ("Defects", "none", f"sum(increase({registry.ADMISSION_ERRORS.name}[{ask.RANGE}]))", NO_WEBHOOK,
         ((None, GREEN), (1, RED)), "Admission reviews in the time range that were answered with HTTP 500."),
        ("Models", "none", _catalogue("models"), "nothing is scraped", ((None, BLUE),), "Entries of the catalogue of models."),
        ("Accelerators", "none", _catalogue("accelerators"), "nothing is scraped", ((None, BLUE),),
         "Entries of the catalogue of accelerators."),
    )  # fmt: skip
    release = About(
        title="Release", unit="", width=4, height=3, no_value="nothing is scraped",
        description="Releases that run; more than one while an upgrade is under way.",
    )  # fmt: skip
    return [
        words(release, Query(expr=ask.process_worst(registry.BUILD_INFO, "version"), legend="{{version}}")),
        *(
            figure(
                About(title=title, description=text, unit=unit, width=4, height=3, no_value=none, thresholds=steps, decimals=0),
                Query(expr=expr),
            )
            for title, unit, expr, none, steps, text in rows
        ),
    ]  # fmt: skip


def _catalogue(name: str) -> str:
    return f'max({registry.CATALOGUE_ENTRIES.name}{{catalogue="{name}"}})'


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
            "CPU", "Cores that each pod of kvgate uses.", "none", "nothing is scraped", Query(expr=ask.CPU_CORES, legend="{{pod}}"),
        ),
        _over_time(
            "Memory", "Resident memory of each pod of kvgate.", "bytes", "nothing is scraped",
            Query(expr=ask.MEMORY_BYTES, legend="{{pod}}"),
        ),
    ]  # fmt: skip
