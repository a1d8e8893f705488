"""The generated files of the monitoring: rules for Prometheus and for its operator, scrape configuration, reference page."""

from collections.abc import Iterable
from typing import Any

import yaml

from kvgate.cli.generate.chart_files import literal
from kvgate.monitoring.alerts import rule_groups
from kvgate.monitoring.scraping import ENGINES, OTHER_ENGINES, Relabeling, in_kubernetes, scrape_configuration

RULE_FILE = "deploy/prometheus/rules.yaml"
SCRAPE_FILE = "deploy/prometheus/scrape.yaml"
RULE_TEMPLATE = "charts/kvgate/templates/prometheusrule.yaml"
RELABELING_TEMPLATE = "charts/kvgate/templates/_relabelings.tpl"

_HEAD = "# Generated from operator/kvgate/monitoring by `make generate`.\n"
_SCRAPE_HEAD = """\
# Prometheus, 2 or 3, inside the cluster: its ServiceAccount needs get, list and watch of pods.
"""
_TEMPLATE_HEAD = "{{- /* Generated from operator/kvgate/monitoring: change it there, then make generate. */ -}}\n"
_RUNBOOKS = "RUNBOOKS"
_RULE_HEAD = """\
{{- if and .Values.monitoring.enabled .Values.monitoring.prometheusRule.enabled -}}
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {{ include "kvgate.fullname" . }}
  namespace: {{ .Release.Namespace }}
  labels: {{- include "kvgate.monitoringLabels" . | nindent 4 }}
spec:
"""


def rules_yaml() -> str:
    """Write the rules for `rule_files` of Prometheus."""
    return _HEAD + _dumped(rule_groups())


def scrape_yaml() -> str:
    """Write the scrape configuration for a Prometheus without its operator."""
    return _HEAD + _SCRAPE_HEAD + _dumped(scrape_configuration(in_kubernetes, rule_files=("rules.yaml",)))


def relabeling_template() -> str:
    """Write the relabelings that the PodMonitors of the chart include."""
    parts = (
        ("kvgate.engineRelabelings", ENGINES.relabelings),
        ("kvgate.otherEngineRelabelings", OTHER_ENGINES.relabelings),
        ("kvgate.engineMetricRelabelings", ENGINES.metric_relabelings),
    )
    return _TEMPLATE_HEAD + "".join(_define(name, rules) for name, rules in parts)


def _define(name: str, rules: Iterable[Relabeling]) -> str:
    return f'{{{{- define "{name}" -}}}}\n{_dumped([rule.camel_case() for rule in rules])}{{{{- end }}}}\n'


def prometheus_rule_template() -> str:
    """Write the rules for the operator of Prometheus; the braces of the annotations are not Helm's."""
    body = literal(_dumped(rule_groups(_RUNBOOKS)))
    lines = "".join(
        f"  {line}\n"
        for line in body.replace(_RUNBOOKS, "{{ $.Values.monitoring.prometheusRule.runbooks }}").splitlines()
    )
    return _TEMPLATE_HEAD + _RULE_HEAD + lines + "{{- end }}\n"


def _dumped(value: Any) -> str:
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120))
