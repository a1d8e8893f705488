"""PromQL out of metrics: the words that rules, alerts and dashboards share; no name of a metric is written here."""

from collections.abc import Callable

from kvgate.api.conditions import ConditionType
from kvgate.metrics import registry
from kvgate.metrics.registry import OWNER_LABELS, Metric
from kvgate.vllm.metric_names import EngineMetric


def select(name: str, *matchers: str) -> str:
    """A selector; without matchers the bare name."""
    return f"{name}{{{','.join(matchers)}}}" if matchers else name


def equals(label: str, value: str) -> str:
    """A matcher."""
    return f'{label}="{value}"'


def unlike(label: str, value: str) -> str:
    """A matcher: anything else, or nothing."""
    return f'{label}!="{value}"'


def present(label: str) -> str:
    """A matcher: the series has this label."""
    return f'{label}!=""'


def aggregate(operator: str, by: tuple[str, ...], expression: str) -> str:
    """`max by (a, b) (…)`; without labels one series of all."""
    return f"{operator} by ({', '.join(by)}) ({expression})" if by else f"{operator}({expression})"


def owned(metric: Metric, *matchers: str, by: tuple[str, ...] = OWNER_LABELS) -> str:
    """One series per InferenceDeployment, however many controllers answer while one replaces another."""
    return aggregate("max", by, select(metric.name, *matchers))


def condition(type_: ConditionType, status: str, *matchers: str) -> str:
    """1 where the condition has this status."""
    return owned(registry.CONDITION, *matchers, equals("type", type_), equals("status", status))


def engine(metric: EngineMetric, form: Callable[[str], str]) -> str:
    """The form of each name that releases gave the metric: `or` takes one of them where a release serves two."""
    return " or ".join(form(scraped.name) for scraped in metric.names)


def quantile(share: float, by: tuple[str, ...], bucket_rates: str) -> str:
    """Return a quantile of a histogram, over rates of its buckets."""
    return f"histogram_quantile({share:g}, {aggregate('sum', (*by, 'le'), bucket_rates)})"


def rate(selector: str, window: str) -> str:
    """Return the rate of a counter per second."""
    return f"rate({selector}[{window}])"
