"""Generated files of deploy/, crds/ and charts/: the CRD, the rules of the controller's roles, and the files for Prometheus."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kvgate.cluster.permissions import Permission
from mixin.alert import THRESHOLD, Alert
from mixin.alerts import ALERTS, alert_groups, alerting_rule, recording_groups, rule_groups
from mixin.scraping import (
    ENGINES,
    KEEP_USED,
    LIMITS,
    OTHER_ENGINES,
    camel_case,
    collector,
    in_kubernetes,
    scrape_configuration,
)

CRD_TEMPLATES = "charts/kvgate/templates/crds"
RULES_TEMPLATE = "charts/kvgate/templates/_controller_rules.tpl"
RULE_FILE = "deploy/prometheus/rules.yaml"
SCRAPE_FILE = "deploy/prometheus/scrape.yaml"
COLLECTOR_FILE = "docs/stacks/collector.yaml"
SCRAPE_USED_FILE = "deploy/prometheus/scrape-used.yaml"
RULE_TEMPLATE = "charts/kvgate/templates/prometheusrule.yaml"
VALUES_FILE = "charts/kvgate/values.yaml"
SCHEMA_FILE = "charts/kvgate/values.schema.json"
ROOT = Path(__file__).resolve().parents[2]
RELABELING_TEMPLATE = "charts/kvgate/templates/_relabelings.tpl"

_END = "{{- end }}\n"

# ── the CRD and the roles ─────────────────────────────────────────────────────────────────────────────────────────

_CRD_HEAD = """\
{{{{- /* Generated from operator/kvgate/api: change it there, then make generate. */ -}}}}
{{{{- if .Values.crds.enabled -}}}}
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: {name}
  labels: {{{{- include "kvgate.labels" (list . "crds") | nindent 4 }}}}
  {{{{- if .Values.crds.keep }}}}
  annotations:
    helm.sh/resource-policy: keep
  {{{{- end }}}}
"""
_OWN_LEASE = '  resourceNames: [{{ include "kvgate.leaseName" . }}]\n'
_RULES_HEAD = """\
{{- /* Generated from operator/kvgate/cluster/permissions.py: change it there, then make generate. */ -}}
"""


def crd_yaml(definition: Mapping[str, Any]) -> str:
    """Write a CustomResourceDefinition for `kubectl apply -f crds/`."""
    crd = yaml.safe_dump(definition, sort_keys=False, allow_unicode=True, width=120)
    return f"# Generated from operator/kvgate/api by `make generate`.\n{crd}"


def crd_template(crd: Mapping[str, Any]) -> str:
    """Write the CRD for the chart: installed with `crds.enabled`, and kept by Helm with `crds.keep`."""
    body = yaml.safe_dump({"spec": crd["spec"]}, sort_keys=False, allow_unicode=True, width=120)
    return _CRD_HEAD.format(name=crd["metadata"]["name"]) + _literal(body) + _END


def rules_template(**roles: Iterable[Permission]) -> str:
    """Write the rules of the controller's roles, each below the reason for it, by the name of their template."""
    return _RULES_HEAD + "".join(_defined(name, "".join(map(_rule, rules))) for name, rules in roles.items())


def _rule(permission: Permission) -> str:
    rule = {
        "apiGroups": [permission.group],
        "resources": list(permission.resources),
        "verbs": list(permission.verbs),
    }
    text = f"# {permission.why}\n" + _literal(yaml.safe_dump([rule], sort_keys=False, default_flow_style=None))
    name = permission.object_name
    names = [
        f'{{{{ include "kvgate.fullname" . }}}}-{each}'
        for each in (name, *(f"{name}-{n}" for n in range(permission.shards)))
    ]
    if permission.in_cluster:
        names = [f'{{{{ include "kvgate.clusterName" (list . "{name}") }}}}']
    named = f"  resourceNames: [{', '.join(names)}]\n" if name else ""
    return text + (_OWN_LEASE if permission.on_own_lease else named)


def _defined(name: str, body: str) -> str:
    """A named template of the chart."""
    return f'{{{{- define "kvgate.{name}" -}}}}\n{body}{_END}'


def _literal(text: str) -> str:
    """Escape the braces that Helm would take for a template."""
    return text.replace("{{", '{{ "{{" }}')


# ── Prometheus ────────────────────────────────────────────────────────────────────────────────────────────────────

_HEAD = "# Generated from tools/mixin by `make generate`.\n"
_SCRAPE_HEAD = """\
# Prometheus, 2 or 3, inside the cluster: its ServiceAccount needs get, list and watch of pods.
"""
_USED_HEAD = """\
# As scrape.yaml, but of vLLM it stores only the series that kvgate's rules and dashboards read.
"""
_TEMPLATE_HEAD = "{{- /* Generated from tools/mixin: change it there, then make generate. */ -}}\n"
_ALERTS_HEAD = """\
          "type": "object",
          "additionalProperties": false,
          "properties": {
"""
_COLLECTOR_HEAD = """\
# The OpenTelemetry Collector, in the cluster: its ServiceAccount needs get, list and watch of pods. docs/stacks/opentelemetry.md
# Put your own exporter and its name at the end. The jobs are those of deploy/prometheus/scrape.yaml.
"""
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


def scrape_yaml(*, keeps_used: bool = False) -> str:
    """Write the scrape configuration for a Prometheus without its operator; `keeps_used` leaves out what nothing of kvgate's reads."""
    configuration = scrape_configuration(in_kubernetes, rule_files=("rules.yaml",), keeps_used=keeps_used)
    return _HEAD + _SCRAPE_HEAD + (_USED_HEAD if keeps_used else "") + _dumped(configuration)


def collector_yaml() -> str:
    """Write a configuration of the OpenTelemetry Collector, which takes $1 for a variable of the environment unless it is $$1."""
    return _HEAD + _COLLECTOR_HEAD + _dumped(collector(in_kubernetes)).replace("$", "$$")


def relabeling_template() -> str:
    """Write the relabelings and the bounds that the PodMonitors of the chart include."""
    parts = {
        "engineRelabelings": ENGINES.relabelings,
        "otherEngineRelabelings": OTHER_ENGINES.relabelings,
        "engineMetricRelabelings": ENGINES.metric_relabelings,
    }
    bodies = {name: _dumped([rule.camel_case() for rule in rules]) for name, rules in parts.items()}
    used = (
        f'{{{{- if eq .Values.monitoring.engineMetrics "used" }}}}\n{_dumped([KEEP_USED.camel_case()])}{{{{- end }}}}\n'
    )
    bodies["engineMetricRelabelings"] += used
    bodies["engineLimits"] = "".join(f"{camel_case(name)}: {bound}\n" for name, bound in LIMITS.items() if bound)
    return _TEMPLATE_HEAD + "".join(_defined(name, body) for name, body in bodies.items())


def prometheus_rule_template() -> str:
    """Write the rules for the operator of Prometheus, each alert with its values; the braces of the annotations are not Helm's."""
    groups = "".join(_group_template(name, alerts) for name, alerts in alert_groups())
    head = _dumped({"groups": recording_groups()})
    body = "".join(f"  {line}\n" for line in _literal(head).splitlines())
    return _TEMPLATE_HEAD + _RULE_HEAD + body + groups + _END


def _group_template(name: str, alerts: Sequence[Alert]) -> str:
    """Write a group; without any alert it would be invalid."""
    switches = " ".join(f".Values.monitoring.alerts.{alert.key}.enabled" for alert in alerts)
    head = f"  {{{{- if or {switches} }}}}\n  - name: {name}\n    rules:\n"
    return head + "".join(map(_alert_template, alerts)) + "  {{- end }}\n"


def _alert_template(alert: Alert) -> str:
    """Write one alert."""
    rule = alerting_rule(alert, "RUNBOOKS")
    rule |= {"expr": alert.query, "for": "HOLDS", "labels": {"severity": "SEVERITY"}}
    text = _literal(_dumped([rule]))
    for name, value in (("HOLDS", "for"), ("SEVERITY", "severity"), (THRESHOLD, "threshold")):
        text = text.replace(name, f"{{{{ $alert.{value} }}}}")
    text = text.replace("RUNBOOKS", '{{ include "kvgate.runbooks" $ }}')
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    open_ = f"    {{{{- with $alert := .Values.monitoring.alerts.{alert.key} }}}}\n    {{{{- if $alert.enabled }}}}\n"
    return open_ + lines + "    {{- end }}\n    {{- end }}\n"


def chart_values() -> str:
    """Write the part of the chart's values that switches and changes alerts; the rest of the file is written by hand."""
    lines = [
        f"    {alert.key}: {{{', '.join(_value(*item) for item in alert_values(alert).items())}}}\n" for alert in ALERTS
    ]
    return _between(VALUES_FILE, "  alerts:\n", lines, "  # end of alerts")


def chart_schema() -> str:
    """Write the part of the schema of the chart's values that names the alerts."""
    rows = [f'            "{alert.key}": {{"$ref": "#/$defs/{_definition(alert)}"}}' for alert in ALERTS]
    return _between(
        SCHEMA_FILE, '        "alerts": {\n', [_ALERTS_HEAD, ",\n".join(rows) + "\n"], "          }\n        },"
    )


def alert_values(alert: Alert) -> dict[str, Any]:
    """Return the defaults of an alert in the chart's values."""
    threshold = {} if alert.threshold is None else {"threshold": alert.threshold}
    return {"enabled": True, "severity": alert.severity, "for": alert.holds_for, **threshold}


def _value(name: str, value: object) -> str:
    return f"{name}: {str(value).lower() if isinstance(value, bool) else f'{value:g}' if isinstance(value, float) else value}"


def _definition(alert: Alert) -> str:
    return "alert" if alert.threshold is None else "alertWithThreshold"


def _between(path: str, start: str, lines: list[str], end: str) -> str:
    """Return a file of the chart with other lines between two lines of it."""
    text = (ROOT / path).read_text(encoding="utf-8")
    before, _, rest = text.partition(start)
    return before + start + "".join(lines) + end + rest.partition(end)[2]


def _dumped(value: Any) -> str:
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120))
