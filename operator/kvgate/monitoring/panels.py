"""The kinds of panels, and the variables and links of the dashboards; grafana-foundation-sdk writes Grafana's JSON."""

from collections.abc import Iterable
from typing import TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    GraphDrawStyle,
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLink,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMapping,
    ValueMappingResult,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from msgspec import Struct

from kvgate.metrics import registry
from kvgate.metrics.registry import OWNER_LABELS
from kvgate.monitoring import DASHBOARDS, DEPLOYMENT, FLEET, PROCESSES, queries
from kvgate.monitoring.expressions import NAMESPACE
from kvgate.monitoring.queries import select

GREEN, ORANGE, RED, BLUE, GREY, PURPLE, YELLOW = (
    "#2f9e44", "#e8890c", "#d6336c", "#4269d0", "#8c959f", "#9467bd", "#d9b310",
)  # fmt: skip
A_MINUTE, DAYS = "suffix: / min", "suffix: days"
"""Units of our own, because Grafana's would turn a hundred of them into hours or weeks."""
DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

AnyPanel = TypeVar("AnyPanel", timeseries.Panel, stat.Panel, bargauge.Panel, table.Panel, statetimeline.Panel)
Thresholds = tuple[tuple[float | None, str], ...]
"""(lower bound, colour) of each step; the lowest bound is None."""


TIGHT: Thresholds = ((None, RED), (0, ORANGE), (queries.HEADROOM_LOW, GREEN))
WRONG: Thresholds = (
    (None, ORANGE),
    (-queries.PREDICTION_ERROR_MAX, GREEN),
    (queries.PREDICTION_ERROR_MAX, ORANGE),
)
FULL: Thresholds = ((None, GREEN), (0.8, ORANGE), (0.95, RED))
"""Thresholds of headroom, of the prediction's error, and of the KV cache in use."""


class About(Struct, frozen=True, kw_only=True):
    """Texts that every panel has."""

    title: str
    description: str
    unit: str
    """Grafana's name of it; empty for a panel without numbers."""
    width: int
    height: int
    no_value: str = "no data"
    decimals: int | None = None
    thresholds: Thresholds = ((None, BLUE),)


class Query(Struct, frozen=True, kw_only=True):
    """One expression, and the name of its series."""

    expr: str
    legend: str = ""


class Look(Struct, frozen=True, kw_only=True):
    """The look of one series, given by its name, where it differs from that of all others."""

    series: str
    colour: str
    dashed: bool = False
    line: bool = False
    """A line over stacked bars."""
    width: int | None = None
    fill_down_to: str = ""
    """The series at which its area ends."""


class Column(Struct, frozen=True, kw_only=True):
    """A column of a table: a label, or the value of a query."""

    name: str
    """Grafana's name of the field: a label, or `Value #A`."""
    title: str
    unit: str = ""
    thresholds: Thresholds = ()
    colours: tuple[tuple[str, str], ...] = ()
    """(text, its colour)."""
    link: str = ""
    width: int | None = None


def described(panel: AnyPanel, about: About) -> AnyPanel:
    """Set title, description, unit, size, thresholds, and the text without data."""
    panel.title(about.title).description(about.description).span(about.width).height(about.height)
    panel.no_value(about.no_value).datasource(DATASOURCE).thresholds(_thresholds(about.thresholds))
    if about.unit:
        panel.unit(about.unit)
    if about.decimals is not None:
        panel.decimals(about.decimals)
    return panel


def asking(panel: AnyPanel, queries: Iterable[Query], *, instant: bool = False) -> AnyPanel:
    """Add the queries under the letters A, B, …: over the time range, or at its end."""
    for letter, query in zip("ABCDEFGHIJ", queries, strict=False):
        target = prometheus.Dataquery().expr(query.expr).ref_id(letter).datasource(DATASOURCE)
        target.legend_format(query.legend or "__auto")
        panel.with_target(target.instant() if instant else target.range())
    return panel


def figure(about: About, query: Query, *, colour: BigValueColorMode = BigValueColorMode.VALUE) -> stat.Panel:
    """Return a panel with one number, coloured by its thresholds."""
    panel = asking(described(stat.Panel(), about), [query], instant=True)
    panel.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    return panel.reduce_options(_last()).graph_mode(BigValueGraphMode.NONE).color_mode(colour)


class Figure(Struct, frozen=True, kw_only=True):
    """One of several numbers in a line."""

    title: str
    unit: str
    expr: str
    description: str
    no_value: str
    thresholds: Thresholds = ((None, BLUE),)
    decimals: int | None = None


def figures(width: int, *wanted: Figure) -> list[stat.Panel]:
    """Return a line of numbers, each with this width."""
    return [
        figure(
            About(
                title=one.title, description=one.description, unit=one.unit, width=width, height=3,
                no_value=one.no_value, thresholds=one.thresholds, decimals=one.decimals,
            ),
            Query(expr=one.expr),
        )
        for one in wanted
    ]  # fmt: skip


def words(about: About, query: Query) -> stat.Panel:
    """Return a panel that shows the legend of a series as text and not its value."""
    return figure(about, query, colour=BigValueColorMode.NONE).text_mode(BigValueTextMode.NAME)


def bars(about: About, query: Query, *, link: str = "") -> bargauge.Panel:
    """Return a panel with one horizontal bar per series."""
    panel = asking(described(bargauge.Panel(), about), [query], instant=True)
    panel.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    panel.reduce_options(_last()).orientation(VizOrientation.HORIZONTAL).display_mode(BarGaugeDisplayMode.BASIC).min(0)
    return panel.data_links([_link(link)]) if link else panel


def graph(
    about: About, queries: Iterable[Query], *looks: Look, legend: bool = True, link: str = "", least: float | None = 0
) -> timeseries.Panel:
    """Return a panel of lines over time; thresholds other than the lowest are dashed lines."""
    panel = asking(described(timeseries.Panel(), about), queries)
    panel.line_width(2).fill_opacity(6).show_points(VisibilityMode.NEVER).span_nulls(span_nulls=False)
    panel.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    panel.legend(
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(legend)
    )
    if len(about.thresholds) > 1:
        style = common.GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.DASHED)
        panel.thresholds_style(style)
    if least is not None:
        panel.axis_soft_min(least)
    for look in looks:
        panel.override_by_name(look.series, _properties(look))
    return panel.data_links([_link(link)]) if link else panel


def stacked(about: About, queries: Iterable[Query], *looks: Look, most_bars: int) -> timeseries.Panel:
    """Return a panel of stacked bars over time; the legend is a table of the last values."""
    panel = graph(about, queries, *looks)
    panel.draw_style(GraphDrawStyle.BARS).fill_opacity(85).line_width(0).max_data_points(most_bars)
    panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A")).bar_width_factor(0.9)
    return panel.legend(
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.RIGHT)
        .calcs(["lastNotNull"])
        .show_legend(show_legend=True)
    )


def states(
    about: About, query: Query, meanings: ValueMap, exceptions: Iterable[tuple[str, ValueMap]]
) -> statetimeline.Panel:
    """Return a panel with one band per series, coloured by the meaning of its values; `exceptions` have meanings of their own."""
    panel = asking(described(statetimeline.Panel(), about), [query]).mappings([meanings])
    panel.merge_values(merge_values=True).show_value(VisibilityMode.AUTO).row_height(0.8)
    panel.legend(common.VizLegendOptions().show_legend(show_legend=False))
    for series, meant in exceptions:
        mappings: list[ValueMapping] = [meant]
        panel.override_by_name(series, [DynamicConfigValue("mappings", mappings)])
    return panel


def rows(about: About, queries: Iterable[Query], columns: tuple[Column, ...], *, hidden: Iterable[str]) -> table.Panel:
    """Return a table with one row per set of labels that the queries share."""
    panel = asking(described(table.Panel(), about), queries, instant=True).show_header(show_header=True)
    for target in panel.build().targets or []:
        target.format_val = PromQueryFormat.TABLE  # type: ignore[attr-defined]
    order = {column.name: index for index, column in enumerate(columns)}
    panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(
        DataTransformerConfig(
            id_val="organize",
            options={"excludeByName": dict.fromkeys(("Time", *hidden), True), "indexByName": order, "renameByName": {}},
        )
    )
    for column in columns:
        panel.override_by_name(column.name, list(_column(column)))
    return panel


def texts(named: dict[str, tuple[str, str]]) -> ValueMap:
    """Return the mapping from values to (text, colour)."""
    return ValueMap(
        options={
            value: ValueMappingResult(text=text, color=colour, index=index)
            for index, (value, (text, colour)) in enumerate(named.items())
        }
    )


def _column(column: Column) -> Iterable[DynamicConfigValue]:
    yield DynamicConfigValue("displayName", column.title)
    if column.unit:
        yield DynamicConfigValue("unit", column.unit)
    if column.width:
        yield DynamicConfigValue("custom.width", column.width)
    if column.thresholds:
        yield DynamicConfigValue("thresholds", _thresholds(column.thresholds).build())
    if column.colours:
        yield DynamicConfigValue("mappings", [texts({text: (text, colour) for text, colour in column.colours})])
    if column.thresholds or column.colours:
        yield DynamicConfigValue("custom.cellOptions", {"type": "color-text"})
    if column.link:
        yield DynamicConfigValue("links", [_link(column.link).build()])


def _properties(look: Look) -> list[DynamicConfigValue]:
    found = [DynamicConfigValue("color", {"mode": FieldColorModeId.FIXED, "fixedColor": look.colour})]
    if look.dashed:
        found.append(DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}))
    if look.width is not None:
        found.append(DynamicConfigValue("custom.lineWidth", look.width))
    if look.line:
        found += [
            DynamicConfigValue("custom.drawStyle", "line"),
            DynamicConfigValue("custom.stacking", {"mode": "none", "group": "A"}),
            DynamicConfigValue("custom.fillOpacity", 0),
        ]
    if look.fill_down_to:
        found += [
            DynamicConfigValue("custom.fillBelowTo", look.fill_down_to),
            DynamicConfigValue("custom.fillOpacity", 12),
        ]
    return found


def _thresholds(steps: Thresholds) -> dashboard.ThresholdsConfig:
    found = [Threshold(value=value, color=colour) for value, colour in steps]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(found)


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(values=False)


def _link(url: str) -> dashboard.DashboardLink:
    return dashboard.DashboardLink("Open the deployment").url(url)


TITLES = {FLEET: "kvgate / Fleet", DEPLOYMENT: "kvgate / Deployment", PROCESSES: "kvgate / kvgate itself"}
EVERYTHING = dict(zip(OWNER_LABELS, (".*", ".+"), strict=True))
"""Patterns for all values. Engines without a namespace are included; those without an InferenceDeployment have queries of their own."""
OF_ROW = "${{__data.fields.{}}}"
OF_SERIES = "${{__field.labels.{}}}"


def datasource() -> dashboard.DatasourceVariable:
    """Return the variable that chooses the Prometheus."""
    return dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def owner_variables(*, many: bool) -> tuple[dashboard.QueryVariable, dashboard.QueryVariable]:
    """Return the variables for the namespace and for an InferenceDeployment in it; with `many`, several or all may be chosen."""
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
    """Return the link to the dashboard of one InferenceDeployment; `form` is Grafana's syntax for a label of the row or series."""
    chosen = "&".join(f"var-{label}={form.format(label)}" for label in OWNER_LABELS)
    return f"/d/{DEPLOYMENT}?${{datasource:queryparam}}&{chosen}&${{__url_time_range}}"


def links(uid: str) -> list[Builder[DashboardLink]]:
    """Return the links to the other dashboards, with the data source and the time range; `All` of one is no value of another."""
    return [
        dashboard.DashboardLink(TITLES[other].removeprefix("kvgate / "))
        .type(DashboardLinkType.LINK).icon("dashboard").url(f"/d/{other}?${{datasource:queryparam}}")
        .keep_time(keep_time=True)
        for other in DASHBOARDS if other != uid
    ]  # fmt: skip
