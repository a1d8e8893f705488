"""The targets of Prometheus and the origin of their labels, for a plain Prometheus and for its operator.

Pods are discovered with the labels of `kubernetes_sd_configs` (role pod). Another kind of discovery must give its targets the same labels.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from kvgate.api import GROUP
from kvgate.metrics.registry import OWNER_LABELS
from kvgate.vllm.metric_names import ENGINE_METRICS, OPTIONAL_METRICS

Discovery = Callable[[str], Mapping[str, Any]]
"""Returns the discovery of a job's targets, in the form of the configuration file."""

OWNER_POD_LABEL = f"{GROUP}/{OWNER_LABELS[1]}"
"""Label of every pod that kvgate renders."""
OTHER_PORT = 8000
"""vLLM's default port."""
HTTP_REQUESTS = "http_requests_total"
"""Requests that vLLM's HTTP server has answered, which show that some arrive although the engine makes no step."""


_DEFAULTS = {"regex": "(.*)", "target_label": "", "replacement": "$1", "action": "replace"}


class Relabeling(Struct, frozen=True, kw_only=True):
    """One relabeling rule, with Prometheus' own defaults."""

    source: tuple[str, ...]
    regex: str = "(.*)"
    target: str = ""
    replacement: str = "$1"
    action: str = "replace"

    def fields(self) -> dict[str, Any]:
        """Return the fields in the spelling of the configuration file, without those that have their default."""
        values = {
            "regex": self.regex,
            "target_label": self.target,
            "replacement": self.replacement,
            "action": self.action,
        }
        return {
            "source_labels": list(self.source),
            **{name: value for name, value in values.items() if value != _DEFAULTS[name]},
        }

    def camel_case(self) -> dict[str, Any]:
        """Return the fields in the spelling of the operator's resources."""
        return {camel_case(name): value for name, value in self.fields().items()}


def camel_case(name: str) -> str:
    """Return a field of Prometheus's configuration as the operator's resources spell it."""
    return re.sub("_(.)", lambda letter: letter[1].upper(), name)


class Job(Struct, frozen=True, kw_only=True):
    """A scrape job; the operator makes the rules of `chosen` itself, from the selectors of its resources."""

    name: str
    chosen: tuple[Relabeling, ...]
    relabelings: tuple[Relabeling, ...] = ()
    metric_relabelings: tuple[Relabeling, ...] = ()
    honor_labels: bool = False
    is_bounded: bool = False
    """True where anybody may answer: LIMITS hold."""


LIMITS: Mapping[str, int | bool] = {
    "honor_timestamps": False,
    "sample_limit": 200_000,
    "label_limit": 128,
    "label_name_length_limit": 1024,
    "label_value_length_limit": 1 << 16,
}
"""Bounds of what a pod may serve. vLLM has 1,500 samples of an engine with up to 45 labels, and its clock counts for nothing.

A scrape beyond a bound is no scrape: the pod counts as down, and Prometheus names the bound among its targets.
"""


def _meta(name: str) -> str:
    return f"__meta_kubernetes_{name}"


def _pod_label(name: str, kind: str = "label") -> str:
    """Return the name that the discovery gives to a label of a pod."""
    return _meta(f"pod_{kind}_{re.sub('[^a-zA-Z0-9_]', '_', name)}")


def _keep(source: str, regex: str) -> Relabeling:
    return Relabeling(source=(source,), regex=regex, action="keep")


def _drop(source: str, regex: str) -> Relabeling:
    return Relabeling(source=(source,), regex=regex, action="drop")


_PORT_NAME, _PORT_NUMBER = _meta("pod_container_port_name"), _meta("pod_container_port_number")
_OWNER_PRESENT = _pod_label(OWNER_POD_LABEL, "labelpresent")
_POD = (
    _drop(_meta("pod_phase"), "Succeeded|Failed"),
    Relabeling(source=(_meta("namespace"),), target="namespace"),
    Relabeling(source=(_meta("pod_name"),), target="pod"),
)
_WITH_COLONS = Relabeling(source=("__name__",), regex="vllm_(.+)", target="__name__", replacement="vllm:$1")
"""vLLM's names, where prometheus-client 0.23 and later answers OpenMetrics 1.0 with underscores (Prometheus 2, agents)."""


_PREFIX = "vllm:"
_USED = [
    name.name.removeprefix(_PREFIX) + ("_(bucket|sum|count)" if metric.kind == "histogram" else "")
    for metric in (*ENGINE_METRICS, *OPTIONAL_METRICS)
    for name in metric.names
]
KEEP_USED = Relabeling(source=("__name__",), regex=f"{_PREFIX}({'|'.join(_USED)})|{HTTP_REQUESTS}", action="keep")
"""Drops every series of an engine that no rule and no dashboard reads; a test holds the names against their queries."""

KVGATE = Job(
    name="kvgate",
    chosen=(
        _keep(_pod_label("app.kubernetes.io/name"), "kvgate"),
        _keep(_PORT_NAME, "metrics"),
        *_POD,
        Relabeling(source=(_pod_label("app.kubernetes.io/component"),), target="job", replacement="kvgate-$1"),
    ),
    honor_labels=True,
)
"""kvgate's two processes. Labels in their metrics are kept: `namespace` is that of the InferenceDeployment, not of the controller."""
ENGINES = Job(
    name="vllm",
    chosen=(_keep(_OWNER_PRESENT, "true"), _keep(_PORT_NAME, "http"), *_POD),
    relabelings=(Relabeling(source=(_pod_label(OWNER_POD_LABEL),), target=OWNER_LABELS[1]),),
    metric_relabelings=(_WITH_COLONS,),
    is_bounded=True,
)
"""The pods of InferenceDeployments."""
OTHER_ENGINES = Job(
    name="vllm-others",
    chosen=(_drop(_OWNER_PRESENT, "true"), *_POD),
    relabelings=(
        _keep(_meta("pod_container_image"), ".*vllm.*"),
        _keep(_PORT_NUMBER, str(OTHER_PORT)),
        Relabeling(
            source=(
                *map(_pod_label, ("app.kubernetes.io/instance", "app.kubernetes.io/name", "app")),
                _meta("pod_name"),
            ),
            regex=";*([^;]+).*",
            target="workload",
        ),
    ),
    metric_relabelings=(_WITH_COLONS,),
    is_bounded=True,
)
"""Pods of vLLM without an InferenceDeployment. Their workload is the first of these labels that they have, else the name of the pod."""

JOBS = (KVGATE, ENGINES, OTHER_ENGINES)


def in_kubernetes(_job: str) -> Mapping[str, Any]:
    """Return the discovery by the API server; Prometheus needs get, list and watch of pods."""
    return {"kubernetes_sd_configs": [{"role": "pod"}]}


def scrape_configuration(
    discovery: Discovery, *, interval: str = "30s", rule_files: tuple[str, ...] = (), keeps_used: bool = False
) -> dict[str, Any]:
    """Return a whole configuration of Prometheus 2 or 3; with `keeps_used` it stores only what rules and dashboards read of vLLM."""
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": list(rule_files),
        "scrape_configs": [_scrape(job, discovery, keeps_used=keeps_used) for job in JOBS],
    }


def _scrape(job: Job, discovery: Discovery, *, keeps_used: bool) -> dict[str, Any]:
    kept = (KEEP_USED,) if keeps_used and job is not KVGATE else ()
    relabelings = {
        "relabel_configs": [rule.fields() for rule in (*job.chosen, *job.relabelings)],
        "metric_relabel_configs": [rule.fields() for rule in (*job.metric_relabelings, *kept)],
    }
    return {
        "job_name": job.name,
        **({"honor_labels": True} if job.honor_labels else {}),
        **(LIMITS if job.is_bounded else {}),
        **discovery(job.name),
        **{key: rules for key, rules in relabelings.items() if rules},
    }


def collector(discovery: Discovery, *, endpoint: str = "http://backend:4318") -> dict[str, Any]:
    """Return a whole configuration of the OpenTelemetry Collector, but for its $, which stands for a variable there."""
    jobs = scrape_configuration(discovery)
    return {
        "receivers": {"prometheus": {"config": {key: jobs[key] for key in ("global", "scrape_configs")}}},
        "exporters": {"otlphttp": {"endpoint": endpoint}},
        "service": {"pipelines": {"metrics": {"receivers": ["prometheus"], "exporters": ["otlphttp"]}}},
    }
