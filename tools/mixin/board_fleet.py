"""The dashboard Fleet shows the InferenceDeployments that suffer, since when, why, and the runbook that says what to do."""

from string import ascii_uppercase

from grafana_foundation_sdk.builders import bargauge, stat, table, timeseries

from kvgate.api.conditions import ConditionType
from kvgate.metrics import registry
from kvgate.rendering.observation import DRIFT_PERCENT
from mixin import expressions as ask
from mixin.expressions import CLUSTER, NAMESPACE, OWNER
from mixin.frames import OF_ROW, OF_SERIES, RUNBOOK, deployment_url
from mixin.looks import (
    A_MINUTE,
    AROUND_NOTHING,
    BAD_ABOVE_ZERO,
    BETWEEN_TOKENS,
    BLUE,
    FEW,
    FIRST_TOKEN,
    FROM_ZERO,
    FULL,
    GREEN,
    GREY,
    ODD_ABOVE_ZERO,
    ORANGE,
    PERCENT,
    PLAIN,
    PREEMPTING,
    RED,
    SECOND,
    SEVERITIES,
    SHARE,
    SINCE,
    TIGHT,
    WRONG,
    Axis,
    Thresholds,
)
from mixin.panels import About, Column, Figure, Query, bars, figure, figures, graph, rows
from mixin.queries import PREDICTION_ERROR_MAX, equals

_CLUSTER, _NAMESPACE, _NAME = OWNER
SERIES = f"{{{{{_CLUSTER}}}}} {{{{{_NAMESPACE}}}}} / {{{{{_NAME}}}}}"
NO_DEPLOYMENT = "no InferenceDeployment"
NOT_OBSERVED = "nothing observed yet"
NO_VLLM = "no vLLM metrics"
NO_REQUEST = "no request in this time"
NO_RULES = "the rules of kvgate are not evaluated"
WORST = f"The {ask.TOP} largest at each moment."
UNUSED = (
    "GPUs × (1 − the highest share of the KV cache that requests held at once in the time range, on the fullest pod). A "
    "share of the KV cache of all replicas is the same share of the replicas: that many GPUs were not needed for memory. It"
    " says nothing about computing power, and cached prefixes that no request holds count as unused. Choose a time range "
    "that contains the peak of the week before you remove GPUs."
)


def now() -> list[stat.Panel]:
    """Return the line of figures: how many suffer at this moment."""
    full = ask.deployments_where(f"{ask.USAGE} > {FULL[-1][0]}")
    refused = ask.deployments_where(ask.condition(ConditionType.ACCEPTED, "False"))
    return figures(
        3,
        Figure(
            title="Critical alerts", unit="none", expr=ask.alerts_firing(CLUSTER, NAMESPACE, equals("severity", "critical")),
            no_value=NO_RULES, thresholds=BAD_ABOVE_ZERO, description="Alerts of kvgate that fire and cannot wait for the morning.",
        ),
        Figure(
            title="Not all replicas ready", unit="none", expr=ask.deployments_where(f"({ask.NOT_READY}) > 0"), no_value=NO_DEPLOYMENT,
            thresholds=ODD_ABOVE_ZERO, description="InferenceDeployments with fewer ready replicas than wanted.",
        ),
        Figure(
            title="Requests that wait", unit="none", expr=ask.summed(ask.WAITING), no_value=NO_VLLM, thresholds=ODD_ABOVE_ZERO,
            description="Requests that no engine has begun, or that were preempted, on all pods together.",
        ),
        Figure(
            title="Slowest first token", unit="s", expr=f"max({ask.FIRST_TOKEN})", no_value=NO_REQUEST, thresholds=FIRST_TOKEN,
            description="Time to the first token that 95 of 100 requests stay below, of the slowest InferenceDeployment.",
        ),
        Figure(
            title="KV cache full", unit="none", expr=full, no_value=NO_DEPLOYMENT, thresholds=BAD_ABOVE_ZERO,
            description=f"InferenceDeployments with a pod whose requests hold more than {FULL[-1][0]:.0%} of its KV cache.",
        ),
        Figure(
            title="Preemptions", unit=A_MINUTE, expr=ask.summed(ask.PREEMPTIONS), no_value=NO_VLLM, decimals=1, thresholds=PREEMPTING,
            description="Requests per minute that lost their KV cache and will be computed again.",
        ),
        Figure(
            title="Refused", unit="none", expr=refused, no_value=NO_DEPLOYMENT, thresholds=ODD_ABOVE_ZERO,
            description="InferenceDeployments with Accepted=False. Their present spec is not rendered; what was admitted before runs on.",
        ),
        Figure(
            title="Drifting", unit="none", expr=ask.deployments_where(ask.condition(ConditionType.PREDICTION_DRIFT, "True")),
            no_value=NO_DEPLOYMENT, thresholds=ODD_ABOVE_ZERO,
            description="InferenceDeployments with PredictionDrift=True: vLLM's KV cache differs from the expected one by more than "
            f"{DRIFT_PERCENT} %.",
        ),
    )  # fmt: skip


def alerts(width: int, height: int, *matchers: str, is_fleet: bool = True) -> table.Panel:
    """Return the table of firing alerts; each links to its runbook."""
    owner = (
        Column(name=_CLUSTER, title="cluster", width=110),
        Column(name=_NAMESPACE, title="namespace", width=150),
        Column(name=_NAME, title="InferenceDeployment", link=deployment_url(OF_ROW)),
        Column(name="workload", title="workload of others"),
    )
    columns = (
        Column(name="Value", title="since", unit=SINCE, width=160),
        Column(name="severity", title="severity", colours=tuple((name, name, colour) for name, colour in SEVERITIES), width=110),
        Column(name="alertname", title="alert", link=RUNBOOK, link_title="Open the runbook", width=260),
        *(owner if is_fleet else ()),
    )  # fmt: skip
    about = About(
        title="Alerts that fire: open the runbook", unit="", width=width, height=height, no_value="no alert of kvgate fires",
        description="Alerts of kvgate that fire now, critical ones first, and since when their condition holds. The name of an "
            "alert opens its "
        "runbook. Alerts of severity info, which nobody has to act on, are left out.",
    )  # fmt: skip
    hidden = () if is_fleet else (*OWNER, "workload")
    return rows(
        about,
        [Query(expr=ask.alerts_since(*matchers))],
        columns,
        hidden=hidden,
        order=(("severity", False), ("since", True)),
    )


def every_deployment() -> table.Panel:
    """Return the table of all deployments; each row links to the dashboard of its deployment."""
    verdicts = (("True", "yes", GREEN), ("False", "refused", RED), ("Unknown", "unknown", ORANGE))
    accepted = ask.chosen(registry.CONDITION, equals("type", ConditionType.ACCEPTED), by=(*OWNER, "status"))
    cells = (
        (ask.chosen(registry.DEPLOYMENT_INFO, by=(*OWNER, "model")), None),
        (accepted, None),
        (ask.NOT_READY, Column(name="", title="not ready", unit="none", thresholds=BAD_ABOVE_ZERO, width=90)),
        (ask.WAITING, Column(name="", title="waiting", unit="none", thresholds=ODD_ABOVE_ZERO, width=80)),
        (ask.FIRST_TOKEN, Column(name="", title="first token", unit="s", thresholds=FIRST_TOKEN, width=100)),
        (ask.BETWEEN_TOKENS, Column(name="", title="between tokens", unit="s", thresholds=BETWEEN_TOKENS, width=120)),
        (ask.PREEMPTIONS, Column(name="", title="preemptions / min", unit="none", decimals=1, thresholds=PREEMPTING, width=140)),
        (ask.USAGE, Column(name="", title="KV cache in use", unit=PERCENT, decimals=0, thresholds=FULL, width=120)),
        (ask.HEADROOM, Column(name="", title="predicted headroom", unit=PERCENT, decimals=1, thresholds=TIGHT, width=150)),
        (ask.PREDICTION_ERROR, Column(name="", title="prediction error", unit=PERCENT, decimals=1, thresholds=WRONG, width=120)),
        (
            ask.chosen(registry.BUDGET_SKIPPED, by=OWNER),
            Column(name="", title="budget skipped", unit="none", thresholds=ODD_ABOVE_ZERO, width=110),
        ),
    )  # fmt: skip
    numbers = tuple(
        Column(
            name=f"Value #{letter}", title=column.title, unit=column.unit, decimals=column.decimals,
            thresholds=column.thresholds, width=column.width,
        )
        for letter, (_, column) in zip(ascii_uppercase, cells, strict=False) if column
    )  # fmt: skip
    columns = (
        Column(name=_CLUSTER, title="cluster", width=90),
        Column(name=_NAMESPACE, title="namespace", width=110),
        Column(name=_NAME, title="InferenceDeployment", link=deployment_url(OF_ROW), width=190),
        *numbers,
        Column(name="status", title="accepted", width=90, colours=verdicts),
        Column(name="model", title="model"),
    )
    about = About(
        title="All deployments, those with most waiting requests first", unit="", width=24, height=9, no_value=NO_DEPLOYMENT,
        description="One row per InferenceDeployment. First token and between tokens: times that 95 of 100 requests stay below. KV "
        "cache in use is that of the fullest pod. Predicted headroom is the expected KV cache beyond what the guarantee "
        "needs, as a share of the expected KV cache. Prediction error is observed / expected KV cache − 1. Budget skipped is 1 "
        "where the annotation kvgate.io/skip-budget admitted what does not fit. A field is empty where nothing was measured.",
    )  # fmt: skip
    queries = [Query(expr=expression) for expression, _ in cells]
    return rows(about, queries, columns, hidden=("Value #A", "Value #B"), order=(("waiting", True),))


def _worst(
    title: str, expression: str, unit: str, none: str, description: str, axis: Axis = FROM_ZERO, thresholds: Thresholds = PLAIN
) -> timeseries.Panel:  # fmt: skip
    about = About(
        title=title, unit=unit, width=8, height=8, no_value=none, description=description, axis=axis, thresholds=thresholds
    )  # fmt: skip
    return graph(about, [Query(expr=expression, legend=SERIES)], link=deployment_url(OF_SERIES))


def since_when() -> list[timeseries.Panel]:
    """Return the graphs of what users feel."""
    below = f"95 of 100 requests stay below it. {WORST}"
    return [
        _worst("Requests that wait", ask.top(ask.WAITING), "none", NO_VLLM, f"Waiting requests of all pods. {WORST}", FEW),
        _worst(
            "Time to first token", ask.top(ask.FIRST_TOKEN), "s", NO_REQUEST, f"From a request's arrival to its first token: {below}",
            SECOND, FIRST_TOKEN,
        ),
        _worst(
            "Time between tokens", ask.top(ask.BETWEEN_TOKENS), "s", NO_REQUEST, f"Between two tokens of a request: {below}",
            Axis(0, 0.1), BETWEEN_TOKENS,
        ),
        _worst(
            "Time of a whole request", ask.top(ask.END_TO_END), "s", NO_REQUEST,
            f"From a request's arrival to its last token: {below}", SECOND,
        ),
        _worst(
            "Replicas that are not ready", ask.top(f"({ask.NOT_READY})"), "none", NO_DEPLOYMENT,
            f"Wanted less ready replicas. {WORST}", FEW,
        ),
        _worst(
            "Preemptions", ask.top(f"({ask.PREEMPTIONS})"), A_MINUTE, NO_VLLM,
            f"Requests per minute that lost their KV cache and will be computed again, for all pods together. {WORST}", FEW,
        ),
    ]  # fmt: skip


def why() -> list[timeseries.Panel]:
    """Return the graphs of the KV cache, predicted and used."""
    tightest = f"bottomk({ask.TOP}, {ask.HEADROOM_OF_ACCEPTED})"
    furthest = f"{ask.PREDICTION_ERROR} and topk({ask.TOP}, abs({ask.PREDICTION_ERROR}))"
    return [
        _worst(
            "KV cache in use", ask.top(ask.USAGE), PERCENT, NOT_OBSERVED,
            f"Share of the KV cache that requests hold on the fullest pod of each deployment. {WORST}", SHARE, FULL,
        ),
        _worst(
            "Predicted headroom", tightest, PERCENT, "nothing predicted",
            "Expected KV cache beyond what the guarantee needs, as a share of the expected KV cache; below 0 the guarantee does not fit. "
            f"Running requests do not change it. Refused InferenceDeployments are left out. The {ask.TOP} smallest.", SHARE, TIGHT,
        ),
        _worst(
            "Prediction error", furthest, PERCENT, NOT_OBSERVED,
            "Observed / expected KV cache − 1. Below 0, vLLM has less than kvgate predicted. "
            f"Beyond ±{PREDICTION_ERROR_MAX:.0%} an alert fires. The {ask.TOP} furthest from 0.", AROUND_NOTHING, WRONG,
        ),
    ]  # fmt: skip


def capacity() -> list[stat.Panel | bargauge.Panel]:
    """Return the panels about GPUs that memory does not need; nobody is woken for them."""
    gpus = About(
        title="GPUs", unit="none", width=4, height=7, no_value=NO_DEPLOYMENT,
        description="GPUs that all wanted replicas need together.",
    )  # fmt: skip
    unused = About(
        title="GPUs with unused KV cache", unit="none", width=20, height=7, no_value=NOT_OBSERVED, decimals=1, description=UNUSED,
        thresholds=((None, GREY), (1, BLUE)),
    )  # fmt: skip
    return [
        figure(gpus, Query(expr=ask.summed(ask.GPUS))),
        bars(unused, Query(expr=ask.top(f"({ask.UNUSED_GPUS})"), legend=SERIES), link=deployment_url(OF_SERIES)),
    ]


def without_owner() -> list[stat.Panel | timeseries.Panel]:
    """Return the panels about vLLM pods that are scraped and belong to no InferenceDeployment."""
    workload = "{{cluster}} {{namespace}} / {{workload}} {{model_name}}"
    all_owned = "every vLLM pod belongs to an InferenceDeployment"
    joined = "They are recognised by their labels: the pods of an InferenceDeployment have its name in a label, these do not."
    pods = About(
        title="Pods of others", unit="none", width=3, height=7, no_value="none",
        description=f"vLLM pods without an InferenceDeployment. {joined}",
    )  # fmt: skip
    graphs = (
        ("Requests of others that wait", "none", FEW, PLAIN, ask.OWNERLESS_WAITING, "Waiting requests."),
        (
            "KV cache in use by others",
            PERCENT,
            SHARE,
            FULL,
            ask.OWNERLESS_USAGE,
            "Share of the KV cache that requests hold.",
        ),
        (
            "Preemptions of others",
            A_MINUTE,
            FEW,
            PLAIN,
            ask.OWNERLESS_PREEMPTIONS,
            "Requests per minute that lost their KV cache.",
        ),
    )
    return [
        figure(pods, Query(expr=ask.OWNERLESS_PODS)),
        *(
            graph(
                About(
                    title=title, unit=unit, width=7, height=7, axis=axis, thresholds=thresholds, no_value=all_owned,
                    description=f"{description} {joined}",
                ),
                [Query(expr=ask.top(f"({expression})"), legend=workload)],
            )
            for title, unit, axis, thresholds, expression, description in graphs
        ),
    ]  # fmt: skip
