"""The metrics of all InferenceDeployments as text: written here, because prometheus_client needs three times as long for it.

All are gauges with names that every format can carry, so the formats differ by the line with the unit only.
"""

from collections.abc import Iterator, Mapping
from math import isfinite
from types import MappingProxyType

from prometheus_client.utils import floatToGoString

from kvgate.metrics import registry
from kvgate.metrics.exporter import DeploymentSample, series_of
from kvgate.metrics.registry import Metric

Samples = Mapping[tuple[str, str], DeploymentSample]
"""Samples by (namespace, name)."""


class DeploymentSnapshot:
    """The samples that were published last; an object that is not among them has no series at the next scrape."""

    def __init__(self) -> None:
        self._samples: Samples = MappingProxyType({})

    def publish(self, samples: Samples) -> None:
        """Swap the whole; a scrape sees the old one or the new one, never a mixture."""
        self._samples = MappingProxyType(dict(samples))

    def text(self, *, units: bool) -> str:
        """Family by family, each in the order of the keys; `units` is OpenMetrics."""
        lines = {metric.name: _head(metric, units=units) for metric in registry.PER_DEPLOYMENT}
        for _, sample in sorted(self._samples.items()):
            for name, line in _lines(sample):
                lines[name].append(line)
        return "".join(line for family in lines.values() for line in family)


def _head(metric: Metric, *, units: bool) -> list[str]:
    unit = [f"# UNIT {metric.name} {metric.unit}\n"] if units and metric.unit else []
    return [f"# HELP {metric.name} {metric.help}\n", f"# TYPE {metric.name} {metric.kind}\n", *unit]


def _lines(sample: DeploymentSample) -> Iterator[tuple[str, str]]:
    owner = f'namespace="{_escaped(sample.namespace)}",inferencedeployment="{_escaped(sample.name)}"'
    for metric, values, figure in series_of(sample):
        more = "".join([f',{name}="{_escaped(value)}"' for name, value in zip(metric.labels[2:], values, strict=True)])
        yield metric.name, f"{metric.name}{{{owner}{more}}} {_number(figure)}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return repr(value) if isfinite(value) else str(floatToGoString(value))  # type: ignore[no-untyped-call]
