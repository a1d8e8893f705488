"""The dashboard Deployment: one InferenceDeployment, predicted against observed."""

from grafana_foundation_sdk.builders import stat, statetimeline, timeseries

from kvgate.api.conditions import ConditionType
from kvgate.metrics import registry
from kvgate.monitoring import expressions as ask
from kvgate.monitoring.panels import (
    A_MINUTE,
    BLUE,
    FULL,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    TIGHT,
    WRONG,
    YELLOW,
    About,
    Figure,
    Look,
    Query,
    figures,
    graph,
    stacked,
    states,
    texts,
    words,
)
from kvgate.monitoring.queries import equals, quantile
from kvgate.vllm import metric_names

BOUNDS = (
    Look(series="high", colour=BLUE, width=1, fill_down_to="low"),
    Look(series="expected", colour=BLUE, dashed=True),
    Look(series="low", colour=BLUE, width=1),
    Look(series="observed", colour=GREEN, width=3),
)
TERMS = (
    ("weights", "weights", BLUE),
    ("peak_activation", "peak activation", YELLOW),
    ("non_torch", "non-torch", RED),
    ("cuda_graph", "CUDA graphs", PURPLE),
    ("lora", "LoRA adapters", ORANGE),
)
"""(term of the ledger, its name, colour), from bottom to top; the KV cache is above them."""
NOT_PREDICTED = "not predicted"
NOT_OBSERVED = "not observed"
NO_VLLM = "no vLLM metrics"
BY_VLLM = "vLLM decides"


def _interval(metric: registry.Metric) -> list[Query]:
    return [Query(expr=ask.bound(metric, name), legend=name) for name in ("high", "expected", "low")]


def header() -> stat.Panel:
    """Return the panel that names the deployment and its settings."""
    about = About(
        title="", unit="", width=24, height=2, no_value="no such InferenceDeployment",
        description="Model, accelerator, format of the KV cache and policy of the InferenceDeployment.",
    )  # fmt: skip
    legend = "{{model}} on {{accelerator}}, KV cache {{kv_cache_dtype}}, policy {{policy}}"
    return words(about, Query(expr=ask.INFO, legend=legend))


def numbers() -> list[stat.Panel]:
    """Return the figures: the largest workload that fits, and the error of the prediction."""
    return figures(
        3,
        Figure(
            title="Headroom", unit="percentunit", expr=ask.HEADROOM, no_value=NOT_PREDICTED,
            thresholds=TIGHT,
            description="Expected KV cache beyond what the guarantee needs, as a share of the expected KV cache.",
        ),
        Figure(
            title="Prediction error", unit="percentunit", expr=ask.PREDICTION_ERROR, no_value=NOT_OBSERVED,
            thresholds=WRONG,
            description="Observed / expected KV cache − 1; below 0 where vLLM has less than kvgate predicted.",
        ),
        Figure(
            title="Full-length requests", unit="none", expr=ask.bound(registry.FULL_LENGTH_REQUESTS, "low"),
            no_value=NOT_PREDICTED,
            description="Requests of max_model_len tokens that one engine holds at once, at the low end of the prediction.",
        ),
        Figure(
            title="Longest request", unit="locale", expr=ask.chosen(registry.MAX_MODEL_LEN_TOKENS), no_value=BY_VLLM,
            description="max_model_len in tokens, as rendered.",
        ),
        Figure(
            title="max_num_seqs", unit="none", expr=ask.chosen(registry.MAX_NUM_SEQS), no_value=BY_VLLM,
            description="Requests that one engine runs at the same time, as rendered.",
        ),
        Figure(
            title="GPUs", unit="none", expr=ask.GPUS, no_value=NOT_PREDICTED,
            description="GPUs that all wanted replicas need together.",
        ),
        Figure(
            title="Pods observed", unit="none", expr=ask.chosen(registry.OBSERVED_PODS), no_value=NOT_OBSERVED,
            thresholds=((None, ORANGE), (1, GREEN)), description="Ready pods whose KV cache capacity is known.",
        ),
        Figure(
            title="KV cache in use", unit="percentunit", expr=ask.USAGE, no_value=NOT_OBSERVED,
            thresholds=FULL,
            description="Share of the KV cache that requests hold on the fullest pod, as the controller reads it.",
        ),
    )  # fmt: skip


def term_queries() -> list[Query]:
    """Return the query of each term of the ledger."""
    return [
        Query(expr=ask.chosen(registry.GPU_MEMORY_BYTES, equals("term", term)), legend=name) for term, name, _ in TERMS
    ]


def ledger() -> timeseries.Panel:
    """Return the ledger: its terms and the KV cache as bars, the requested memory as a line."""
    about = About(
        title="Memory of one GPU", unit="bytes", width=12, height=10, no_value=NOT_PREDICTED,
        description="The predicted ledger of the tightest rank. Weights, peak activation, non-torch memory, CUDA graphs, LoRA adapters and "
        "KV cache together are the requested memory: total × gpu_memory_utilization. Where the bars are above that line, it does not fit.",
    )  # fmt: skip
    lines = (
        (registry.GPU_MEMORY_REQUESTED_BYTES, "requested", False),
        (registry.GPU_MEMORY_TOTAL_BYTES, "whole GPU", True),
    )
    whole = [Query(expr=ask.chosen(metric), legend=name) for metric, name, _ in lines]
    queries = [*term_queries(), Query(expr=ask.CAPACITY_BYTES, legend="KV cache"), *whole]
    looks = [Look(series=name, colour=colour) for _, name, colour in TERMS]
    above = [Look(series=name, colour=GREY, line=True, width=2, dashed=dashed) for _, name, dashed in lines]
    return stacked(about, queries, *looks, Look(series="KV cache", colour=GREEN), *above, most_bars=40)


def capacity() -> timeseries.Panel:
    """Return the predicted interval of the KV cache, with the observed size."""
    about = About(
        title="KV cache: predicted and observed", unit="short", width=12, height=10, no_value=NOT_PREDICTED,
        description="Tokens that one engine's KV cache holds. The band is the predicted interval. Observed is the smallest KV cache of "
        "all ready pods, as vLLM reports it.",
    )  # fmt: skip
    observed = Query(expr=ask.chosen(registry.OBSERVED_KV_CACHE_CAPACITY_TOKENS), legend="observed")
    return graph(about, [*_interval(registry.KV_CACHE_CAPACITY_TOKENS), observed], *BOUNDS, least=None)


def usage() -> timeseries.Panel:
    """Return the share of the KV cache that each pod uses, beside the share that the guarantee needs."""
    about = About(
        title="KV cache in use, and demand", unit="percentunit", width=12, height=9, no_value=NO_VLLM,
        description="Share of its KV cache that requests hold, per pod. Demand is what the guarantee needs, as a share of the expected KV "
        "cache; above 100 % it does not fit. vLLM preempts requests of a pod that reaches 100 %.",
    )  # fmt: skip
    used = f"max by (pod) ({ask.gauge(metric_names.KV_CACHE_USAGE)})"
    queries = [Query(expr=used, legend="{{pod}}"), Query(expr=ask.DEMAND_SHARE, legend="demand")]
    return graph(about, queries, Look(series="demand", colour=PURPLE, dashed=True))


def headroom() -> timeseries.Panel:
    """Return the headroom in bytes, with its interval."""
    about = About(
        title="Headroom", unit="bytes", width=12, height=9, no_value=NOT_PREDICTED,
        description="Predicted KV cache per GPU beyond what the guarantee needs. It certainly fits where the low end is at least 0.",
        thresholds=((None, RED), (0, GREEN)),
    )  # fmt: skip
    return graph(about, _interval(registry.KV_CACHE_HEADROOM_BYTES), *BOUNDS[:3])


def load() -> list[timeseries.Panel]:
    """Return the panels about requests, preemptions and the prefix cache."""
    owners = ", ".join(registry.OWNER_LABELS)
    num_engines = f"count by ({owners}) ({ask.gauge(metric_names.REQUESTS_RUNNING)})"
    slots = f"{ask.chosen(registry.MAX_NUM_SEQS)} * {num_engines}"
    return [
        graph(
            About(
                title="Requests", unit="none", width=8, height=8, no_value=NO_VLLM,
                description="Running and waiting requests of all pods. Slots are max_num_seqs × engines: requests that wait although "
                    "fewer run "
                "than there are slots wait for KV cache.",
            ),
            [
                Query(expr=ask.summed(ask.gauge(metric_names.REQUESTS_RUNNING)), legend="running"),
                Query(expr=ask.summed(ask.gauge(metric_names.REQUESTS_WAITING)), legend="waiting"),
                Query(expr=slots, legend="slots"),
            ],
            Look(series="running", colour=GREEN), Look(series="waiting", colour=RED),
            Look(series="slots", colour=GREY, dashed=True, width=1),
        ),
        graph(
            About(
                title="Preemptions", unit=A_MINUTE, width=8, height=8, no_value=NO_VLLM,
                description="Requests per minute that lost their KV cache and will be computed again, per pod.",
            ),
            [Query(expr=f"{ask.PER_MINUTE} * {ask.summed(ask.per_second(metric_names.PREEMPTIONS), 'pod')}", legend="{{pod}}")],
        ),
        graph(
            About(
                title="Prefix cache", unit="percentunit", width=8, height=8, no_value="no request looked for a prefix",
                description="Share of the tokens that vLLM looked up in its prefix cache and found there, for all pods together.",
            ),
            [Query(expr=ask.PREFIX_HIT_RATIO, legend="hit ratio")], Look(series="hit ratio", colour=PURPLE), legend=False,
        ),
    ]  # fmt: skip


def users() -> list[timeseries.Panel]:
    """Return the panels about what users notice."""
    waits = ask.per_second(metric_names.TIME_TO_FIRST_TOKEN, suffix="_bucket")
    tokens = (("prompt", metric_names.PROMPT_TOKENS, BLUE), ("generated", metric_names.GENERATION_TOKENS, GREEN))
    return [
        graph(
            About(
                title="Time to first token", unit="s", width=8, height=8, no_value="no request was answered",
                description="Time from the arrival of a request to its first token: median and 99th percentile of all pods together.",
            ),
            [Query(expr=quantile(share, (), waits), legend=name) for name, share in (("p50", 0.5), ("p99", 0.99))],
            Look(series="p50", colour=BLUE), Look(series="p99", colour=ORANGE),
        ),
        graph(
            About(
                title="Tokens per second", unit="short", width=8, height=8, no_value=NO_VLLM,
                description="Prompt tokens that were computed and tokens that were generated per second, for all pods together. "
                "If none are generated while requests wait, vLLM hangs.",
            ),
            [Query(expr=ask.summed(ask.per_second(metric)), legend=name) for name, metric, _ in tokens],
            *(Look(series=name, colour=colour) for name, _, colour in tokens),
        ),
    ]  # fmt: skip


def conditions() -> statetimeline.Panel:
    """Return all conditions over time."""
    about = About(
        title="Conditions", unit="", width=8, height=8, no_value="no such InferenceDeployment",
        description="Conditions in the status of the InferenceDeployment, and whether each is true, false or unknown.",
    )  # fmt: skip
    neutral = texts({"1": ("True", BLUE), "0": ("False", GREY), "-1": ("Unknown", ORANGE)})
    good = texts({"1": ("True", GREEN), "0": ("False", RED), "-1": ("Unknown", ORANGE)})
    bad = texts({"1": ("True", RED), "0": ("False", GREEN), "-1": ("Unknown", ORANGE)})
    warns = texts({"1": ("True", ORANGE), "0": ("False", GREEN), "-1": ("Unknown", GREY)})
    desired = (ConditionType.ACCEPTED, ConditionType.PREDICTED, ConditionType.READY, ConditionType.OBSERVED)
    exceptions = [
        *((type_, good) for type_ in desired),
        (ConditionType.STALLED, bad),
        (ConditionType.PREDICTION_DRIFT, warns),
    ]
    return states(about, Query(expr=ask.CONDITIONS, legend="{{type}}"), neutral, exceptions)
