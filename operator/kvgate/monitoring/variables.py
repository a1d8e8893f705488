"""The variables of the dashboards, and the links from one to another that hand them on."""

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import (
    DashboardLink,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from kvgate.metrics import registry
from kvgate.metrics.registry import OWNER_LABELS
from kvgate.monitoring import DASHBOARDS, DEPLOYMENT, FLEET, PROCESSES
from kvgate.monitoring.expressions import NAMESPACE
from kvgate.monitoring.panels import DATASOURCE
from kvgate.monitoring.queries import select

TITLES = {FLEET: "kvgate / Fleet", DEPLOYMENT: "kvgate / Deployment", PROCESSES: "kvgate / kvgate itself"}
EVERYTHING = dict(zip(OWNER_LABELS, (".*", ".+"), strict=True))
"""Patterns that stand for all values: engines without a namespace count, those without an owner have queries of their own."""
OF_ROW = "${{__data.fields.{}}}"
OF_SERIES = "${{__field.labels.{}}}"


def datasource() -> dashboard.DatasourceVariable:
    """Variable that chooses the Prometheus."""
    return dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def owner_variables(*, many: bool) -> tuple[dashboard.QueryVariable, dashboard.QueryVariable]:
    """Namespace, and InferenceDeployment out of it; `many`: several or all may be chosen."""
    first, second = OWNER_LABELS
    return _values(first, many=many), _values(second, NAMESPACE, many=many)


def _values(label: str, *matchers: str, many: bool) -> dashboard.QueryVariable:
    values = f"label_values({select(registry.DEPLOYMENT_INFO.name, *matchers)}, {label})"
    variable = dashboard.QueryVariable(label).label(label).query(values).datasource(DATASOURCE)
    variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    if many:
        variable.multi(multi=True).include_all(include_all=True).all_value(EVERYTHING[label])
        variable.current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    return variable


def deployment_url(form: str) -> str:
    """To the Deployment dashboard of one InferenceDeployment; `form` says where a label of the row or series stands."""
    chosen = "&".join(f"var-{label}={form.format(label)}" for label in OWNER_LABELS)
    return f"/d/{DEPLOYMENT}?${{datasource:queryparam}}&{chosen}&${{__url_time_range}}"


def links(uid: str) -> list[Builder[DashboardLink]]:
    """To the other dashboards, with the data source and the time range; `All` of one is no value of another."""
    return [
        dashboard.DashboardLink(TITLES[other].removeprefix("kvgate / "))
        .type(DashboardLinkType.LINK).icon("dashboard").url(f"/d/{other}?${{datasource:queryparam}}")
        .keep_time(keep_time=True)
        for other in DASHBOARDS if other != uid
    ]  # fmt: skip
