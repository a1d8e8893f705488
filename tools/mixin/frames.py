"""The frame of each dashboard: its variables, links and annotations."""

from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import (
    AnnotationQuery,
    DashboardLink,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from kvgate.metrics import registry
from mixin import DASHBOARDS, DEPLOYMENT, FLEET, PROCESSES
from mixin import expressions as ask
from mixin.alerts import RUNBOOKS
from mixin.expressions import CLUSTER, NAMESPACE, OWNER
from mixin.looks import BLUE, ORANGE, PURPLE
from mixin.panels import DATASOURCE
from mixin.queries import select

TITLES = {FLEET: "kvgate / Fleet", DEPLOYMENT: "kvgate / Deployment", PROCESSES: "kvgate / kvgate itself"}
EVERYTHING = dict(zip(OWNER, (".*", ".*", ".+"), strict=True))
"""Patterns for all values. Engines without a namespace are included; those without an InferenceDeployment have queries of their own."""
OF_ROW = "${{__data.fields.{}}}"
OF_SERIES = "${{__field.labels.{}}}"
RUNBOOK = "${runbooks}/${__data.fields.alertname}.md"


def variables(*, owners: bool, many: bool = False) -> list[Builder[Any]]:
    """Return the variables: Prometheus, cluster, and filters of any label; for `owners` the namespace and the InferenceDeployment too."""
    cluster, namespace, name = OWNER
    found: list[Builder[Any]] = [
        dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"),
        _with_all(_values(cluster, registry.BUILD_INFO.name if not owners else registry.DEPLOYMENT_INFO.name), cluster),
    ]
    if owners:
        one = _values(namespace, registry.DEPLOYMENT_INFO.name, CLUSTER)
        other = _values(name, registry.DEPLOYMENT_INFO.name, CLUSTER, NAMESPACE)
        found += [_with_all(one, namespace), _with_all(other, name)] if many else [one, other]
    return [
        *found,
        dashboard.AdHocVariable("filters").label("filters").datasource(DATASOURCE),
        dashboard.TextBoxVariable("runbooks").label("runbooks at").default_value(RUNBOOKS),
    ]


def _values(label: str, metric: str, *matchers: str) -> dashboard.QueryVariable:
    variable = dashboard.QueryVariable(label).label(label).query(f"label_values({select(metric, *matchers)}, {label})")
    return (
        variable.datasource(DATASOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )


def _with_all(variable: dashboard.QueryVariable, label: str) -> dashboard.QueryVariable:
    """Several values may be chosen, and all of them at first."""
    variable.multi(multi=True).include_all(include_all=True).all_value(EVERYTHING[label])
    return variable.current(VariableOption(selected=True, text=["All"], value=["$__all"]))


def deployment_url(form: str) -> str:
    """Return the link to the dashboard of one InferenceDeployment; `form` is Grafana's syntax for a label of the row or series."""
    chosen = "&".join(f"var-{label}={form.format(label)}" for label in OWNER)
    return f"/d/{DEPLOYMENT}?${{datasource:queryparam}}&{chosen}&${{__url_time_range}}"


def links(uid: str) -> list[Builder[DashboardLink]]:
    """Return the links to the other dashboards, with the data source and the time range; `All` of one is no value of another."""
    return [
        dashboard.DashboardLink(TITLES[other].removeprefix("kvgate / "))
        .type(DashboardLinkType.LINK).icon("dashboard").url(f"/d/{other}?${{datasource:queryparam}}")
        .keep_time(keep_time=True)
        for other in DASHBOARDS if other != uid
    ]  # fmt: skip


class _OnGraphs(AnnotationQuery):
    """An annotation of Prometheus, with those of its fields that the SDK does not know."""

    text: str
    at_value: bool

    def to_json(self) -> dict[str, object]:
        fields = {"titleFormat": self.name, "textFormat": self.text, "useValueForTime": self.at_value, "step": "60s"}
        return {**super().to_json(), **fields}


class Mark(Builder[AnnotationQuery]):
    """An annotation: a line on all graphs; `at_value` where the value of the series is its time in milliseconds."""

    def __init__(self, name: str, expr: str, colour: str, text: str, *, at_value: bool = False) -> None:
        self._query = _OnGraphs(name=name, datasource=DATASOURCE, enable=True, icon_color=colour, expr=expr)
        self._query.text, self._query.at_value = text, at_value

    def build(self) -> AnnotationQuery:
        return self._query


MARKS = (
    Mark("Start of an engine", ask.STARTED_AT, BLUE, "{{pod}}", at_value=True),
    Mark("Rollout", ask.ROLLOUT, PURPLE, "not all replicas have the present template"),
    Mark("Alert", ask.ALERT_MARKS, ORANGE, "{{alertname}}"),
)
"""Annotations of one InferenceDeployment."""
