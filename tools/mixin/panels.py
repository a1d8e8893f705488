"""The kinds of panels; grafana-foundation-sdk writes Grafana's JSON."""

from collections.abc import Iterable
from string import ascii_uppercase
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
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMapping,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from msgspec import Struct

from mixin.looks import FROM_ZERO, PLAIN, Axis, Thresholds

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

AnyPanel = TypeVar("AnyPanel", timeseries.Panel, stat.Panel, bargauge.Panel, table.Panel, statetimeline.Panel)


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
    thresholds: Thresholds = PLAIN
    axis: Axis = FROM_ZERO
    """Values that a graph shows at least."""


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
    in_legend: bool = True


class Column(Struct, frozen=True, kw_only=True):
    """A column of a table: a label, or the value of a query."""

    name: str
    """Grafana's name of the field: a label, or `Value #A`."""
    title: str
    unit: str = ""
    thresholds: Thresholds = ()
    colours: tuple[tuple[str, str, str], ...] = ()
    """(value, the text that stands for it, its colour)."""
    decimals: int | None = None
    link: str = ""
    link_title: str = "Open the deployment"
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
    for letter, query in zip(ascii_uppercase, queries, strict=False):
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
    thresholds: Thresholds = PLAIN
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
    about: About, queries: Iterable[Query], *looks: Look, legend: bool = True, link: str = ""
) -> timeseries.Panel:
    """Return a panel of lines over time; thresholds other than the lowest are dashed lines. A name has one colour in all graphs."""
    panel = asking(described(timeseries.Panel(), about), queries)
    panel.line_width(2).fill_opacity(6).show_points(VisibilityMode.AUTO).span_nulls(span_nulls=False)
    panel.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
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
    if about.axis.low is not None:
        panel.axis_soft_min(about.axis.low)
    if about.axis.high is not None:
        panel.axis_soft_max(about.axis.high)
    for look in looks:
        panel.override_by_name(look.series, _properties(look))
    return panel.data_links([_link(link)]) if link else panel


def lines(
    title: str, unit: str, none: str, description: str, axis: Axis, *series: tuple[str, str, str | Look],
    width: int = 8, height: int = 8, limits: Thresholds = PLAIN,
) -> timeseries.Panel:  # fmt: skip
    """Return a graph of (name, query, its colour or look); an empty colour is one of the palette."""
    about = About(
        title=title,
        unit=unit,
        no_value=none,
        description=description,
        axis=axis,
        width=width,
        height=height,
        thresholds=limits,
    )
    looks = [look if isinstance(look, Look) else Look(series=name, colour=look) for name, _, look in series if look]
    return graph(about, [Query(expr=expression, legend=name) for name, expression, _ in series], *looks)


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


def rows(
    about: About,
    queries: Iterable[Query],
    columns: tuple[Column, ...],
    *,
    hidden: Iterable[str] = (),
    order: Iterable[tuple[str, bool]] = (),
) -> table.Panel:
    """Return a table with one row per set of labels that the queries share, in the order of these columns: (title, True for downwards)."""
    panel = asking(described(table.Panel(), about), queries, instant=True).show_header(show_header=True)
    for target in panel.build().targets or []:
        target.format_val = PromQueryFormat.TABLE  # type: ignore[attr-defined]
    places = {column.name: index for index, column in enumerate(columns)}
    panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(
        DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": dict.fromkeys(("Time", *hidden), True),
                "indexByName": places,
                "renameByName": {},
            },
        )
    )
    for column in columns:
        panel.override_by_name(column.name, list(_column(column)))
    panel.sort_by(
        [common.TableSortByFieldState().display_name(title).desc(is_downwards) for title, is_downwards in order]
    )
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
    if column.decimals is not None:
        yield DynamicConfigValue("decimals", column.decimals)
    if column.width:
        yield DynamicConfigValue("custom.width", column.width)
    if column.thresholds:
        yield DynamicConfigValue("thresholds", _thresholds(column.thresholds).build())
    if column.colours:
        yield DynamicConfigValue("mappings", [texts({value: (text, colour) for value, text, colour in column.colours})])
    if column.thresholds or column.colours:
        yield DynamicConfigValue("custom.cellOptions", {"type": "color-text"})
    if column.link:
        yield DynamicConfigValue("links", [_link(column.link, column.link_title).build()])


def _properties(look: Look) -> list[DynamicConfigValue]:
    found = [DynamicConfigValue("color", {"mode": FieldColorModeId.FIXED, "fixedColor": look.colour})]
    if look.dashed:
        found.append(DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}))
    if not look.in_legend:
        found.append(DynamicConfigValue("custom.hideFrom", {"legend": True, "tooltip": False, "viz": False}))
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


def _link(url: str, title: str = "Open the deployment") -> dashboard.DashboardLink:
    return dashboard.DashboardLink(title).url(url)
