"""The dashboard Fleet: which InferenceDeployments are tight, wrong, refused or idle."""

from grafana_foundation_sdk.builders import bargauge, stat, table, timeseries

from kvgate.api.conditions import ConditionType
from kvgate.metrics import registry
from kvgate.metrics.registry import OWNER_LABELS
from kvgate.monitoring import expressions as ask
from kvgate.monitoring.panels import (
    A_MINUTE,
    BLUE,
    FULL,
    GREEN,
    GREY,
    OF_ROW,
    OF_SERIES,
    ORANGE,
    RED,
    TIGHT,
    WRONG,
    About,
    Column,
    Figure,
    Query,
    Thresholds,
    bars,
    deployment_url,
    figure,
    figures,
    graph,
    rows,
)
from kvgate.monitoring.queries import PREDICTION_ERROR_MAX
from kvgate.rendering.observation import DRIFT_PERCENT

OWNER = " / ".join(f"{{{{{label}}}}}" for label in OWNER_LABELS)
BAD_ABOVE_ZERO: Thresholds = ((None, GREEN), (1, RED))
ODD_ABOVE_ZERO: Thresholds = ((None, GREEN), (1, ORANGE))
NO_DEPLOYMENT = "no InferenceDeployment"
NOT_OBSERVED = "nothing observed yet"
NO_VLLM = "no vLLM metrics"
UNUSED = (
    "GPUs × (1 − the highest share of the KV cache that requests held at once in the time range, on the fullest pod). "
    "A share of the KV cache of all replicas is the same share of the replicas: that many GPUs were not needed for memory. "
    "It says nothing about computing power, and cached prefixes that no request holds count as unused. "
    "Choose a time range that contains the peak of the week before you remove GPUs."
)


def overview() -> list[stat.Panel]:
    """Return the line of figures."""
    return figures(
        4,
        Figure(
            title="Deployments", unit="none", expr=ask.DEPLOYMENTS, no_value=NO_DEPLOYMENT,
            description="InferenceDeployments that the controller knows.",
        ),
        Figure(
            title="Refused", unit="none", expr=ask.REFUSED, no_value=NO_DEPLOYMENT, thresholds=BAD_ABOVE_ZERO,
            description="InferenceDeployments with Accepted=False. Their present spec is not rendered until it fits.",
        ),
        Figure(
            title="Drifting", unit="none", expr=ask.DRIFTING, no_value=NO_DEPLOYMENT, thresholds=ODD_ABOVE_ZERO,
            description="InferenceDeployments with PredictionDrift=True: vLLM's KV cache differs from the expected one by more than "
            f"{DRIFT_PERCENT} %.",
        ),
        Figure(
            title="GPUs", unit="none", expr=ask.summed(ask.GPUS), no_value=NO_DEPLOYMENT,
            description="GPUs that all wanted replicas need together.",
        ),
        Figure(
            title="GPUs with unused KV cache", unit="none", expr=ask.summed(ask.UNUSED_GPUS), no_value=NOT_OBSERVED,
            decimals=1, description=UNUSED,
        ),
        Figure(
            title="Preemptions", unit=A_MINUTE, expr=ask.summed(ask.PREEMPTIONS), no_value=NO_VLLM, decimals=1,
            thresholds=((None, GREEN), (1, ORANGE), (10, RED)),
            description="Requests per minute that lost their KV cache and will be computed again.",
        ),
    )  # fmt: skip


def every_deployment() -> table.Panel:
    """Return the table of all deployments; each row links to the dashboard of its deployment."""
    namespace, name = OWNER_LABELS
    link = deployment_url(OF_ROW)
    columns = (
        Column(name=namespace, title="namespace", width=150),
        Column(name=name, title="InferenceDeployment", link=link, width=210),
        Column(name="model", title="model"),
        Column(name="accelerator", title="accelerator", width=180),
        Column(
            name="status", title="accepted", width=100,
            colours=(("True", GREEN), ("False", RED), ("Unknown", ORANGE)),
        ),
        Column(name="Value #C", title="headroom", unit="percentunit", thresholds=TIGHT, width=110),
        Column(name="Value #D", title="prediction error", unit="percentunit", thresholds=WRONG, width=140),
        Column(name="Value #E", title="KV cache in use", unit="percentunit", thresholds=FULL, width=140),
        Column(name="Value #F", title="GPUs", unit="none", width=80),
    )  # fmt: skip
    accepted = f'type="{ConditionType.ACCEPTED}"'
    queries = (
        Query(expr=ask.chosen(registry.DEPLOYMENT_INFO, by=(*OWNER_LABELS, "model", "accelerator"))),
        Query(expr=ask.chosen(registry.CONDITION, accepted, by=(*OWNER_LABELS, "status"))),
        Query(expr=ask.HEADROOM),
        Query(expr=ask.PREDICTION_ERROR),
        Query(expr=ask.USAGE),
        Query(expr=ask.GPUS),
    )
    about = About(
        title="All deployments", unit="", width=24, height=9, no_value=NO_DEPLOYMENT,
        description="One row per InferenceDeployment. Headroom is the expected KV cache beyond what the guarantee needs, as a share of the "
            "expected "
        "KV cache. Prediction error is observed / expected KV cache − 1. KV cache in use is that of the fullest pod. A field is "
            "empty where "
        "nothing was predicted or observed.",
    )  # fmt: skip
    return rows(about, queries, columns, hidden=("Value #A", "Value #B"))


def predictions() -> list[timeseries.Panel]:
    """Return the panels of the headroom and of the prediction's error."""
    link = deployment_url(OF_SERIES)
    return [
        graph(
            About(
                title="Headroom", unit="percentunit", width=12, height=8, thresholds=TIGHT, no_value="nothing predicted",
                description="Expected KV cache beyond what the guarantee needs, as a share of the expected KV cache; below 0 it does "
                    "not fit. "
                "Refused InferenceDeployments are left out.",
            ),
            [Query(expr=ask.HEADROOM_OF_ACCEPTED, legend=OWNER)], link=link,
        ),
        graph(
            About(
                title="Prediction error", unit="percentunit", width=12, height=8, thresholds=WRONG, no_value=NOT_OBSERVED,
                description="Observed / expected KV cache − 1. Below 0, vLLM has less than kvgate predicted. "
                f"Beyond ±{PREDICTION_ERROR_MAX:.0%} an alert fires.",
            ),
            [Query(expr=ask.PREDICTION_ERROR, legend=OWNER)], link=link, least=None,
        ),
    ]  # fmt: skip


def pressure() -> list[timeseries.Panel | bargauge.Panel]:
    """Return the panels about deployments that are full, and about GPUs that are not needed."""
    link = deployment_url(OF_SERIES)
    return [
        graph(
            About(
                title="KV cache in use", unit="percentunit", width=8, height=8, thresholds=FULL, no_value=NOT_OBSERVED,
                description="Share of the KV cache that requests hold, on the fullest pod of each deployment, as the controller reads it.",
            ),
            [Query(expr=ask.USAGE, legend=OWNER)], link=link,
        ),
        graph(
            About(
                title="Preemptions", unit=A_MINUTE, width=8, height=8, no_value=NO_VLLM,
                description="Requests per minute that lost their KV cache and will be computed again, for all pods together.",
            ),
            [Query(expr=ask.PREEMPTIONS, legend=OWNER)], link=link,
        ),
        bars(
            About(
                title="GPUs with unused KV cache", unit="none", width=8, height=8, no_value=NOT_OBSERVED, decimals=1,
                description=UNUSED, thresholds=((None, GREY), (1, BLUE)),
            ),
            Query(expr=ask.UNUSED_GPUS, legend=OWNER), link=link,
        ),
    ]  # fmt: skip


def without_owner() -> list[stat.Panel | timeseries.Panel]:
    """Return the panels about vLLM pods that are scraped and belong to no InferenceDeployment."""
    workload = "{{namespace}} / {{workload}} {{model_name}}"
    all_owned = "every vLLM pod belongs to an InferenceDeployment"
    joined = "They are recognised by their labels: the pods of an InferenceDeployment have its name in a label, these do not."
    return [
        figure(
            About(
                title="Pods of others", unit="none", width=4, height=7, no_value="none",
                description=f"vLLM pods without an InferenceDeployment. {joined}",
            ),
            Query(expr=ask.OWNERLESS_PODS),
        ),
        graph(
            About(
                title="KV cache in use by others", unit="percentunit", width=10, height=7, thresholds=FULL, no_value=all_owned,
                description=f"Share of the KV cache that requests hold. {joined}",
            ),
            [Query(expr=ask.OWNERLESS_USAGE, legend=workload)],
        ),
        graph(
            About(
                title="Preemptions of others", unit=A_MINUTE, width=10, height=7, no_value=all_owned,
                description=f"Requests per minute that lost their KV cache. {joined}",
            ),
            [Query(expr=ask.OWNERLESS_PREEMPTIONS, legend=workload)],
        ),
    ]  # fmt: skip
