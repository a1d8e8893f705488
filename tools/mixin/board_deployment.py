"""The dashboard Deployment shows one InferenceDeployment: what its users feel, since when, why, and what runs."""

from grafana_foundation_sdk.builders import stat, statetimeline, timeseries

from kvgate.api.conditions import ConditionType
from kvgate.metrics import registry
from kvgate.vllm import metric_names
from mixin import expressions as ask
from mixin.looks import (
    A_MINUTE,
    AROUND_ALL,
    BETWEEN_TOKENS,
    BLUE,
    BROWN,
    FEW,
    FIRST_TOKEN,
    GREEN,
    GREY,
    LEFT,
    ODD_ABOVE_ZERO,
    ORANGE,
    PERCENT,
    PLAIN,
    PREEMPTING,
    PURPLE,
    RED,
    SECOND,
    SHARE,
    WRONG,
    YELLOW,
    Axis,
    Thresholds,
)
from mixin.panels import About, Figure, Look, Query, figures, lines, stacked, states, texts, words
from mixin.queries import equals

TERMS = (
    ("weights", "weights", BLUE),
    ("peak_activation", "peak activation", YELLOW),
    ("non_torch", "non-torch", RED),
    ("cuda_graph", "CUDA graphs", PURPLE),
    ("lora", "LoRA adapters", ORANGE),
    ("correction", "learnt correction", BROWN),
    ("kv_cache", "KV cache", GREEN),
    ("not_requested", "not requested", "#d0d5dc"),
)
"""(term of the ledger, its name, colour), from bottom to top; together they are the memory of the GPU."""
QUANTILES = (("p99", 0.99, ORANGE), ("p95", 0.95, PURPLE), ("p50", 0.5, BLUE))
NOT_PREDICTED = "not predicted"
NOT_OBSERVED = "not observed"
NO_VLLM = "no vLLM metrics"
NO_REQUEST = "no request in this time"
BY_VLLM = "vLLM decides"
NO_DEPLOYMENT = "no such InferenceDeployment"


def header() -> stat.Panel:
    """Return the panel that names the deployment and its settings."""
    about = About(
        title="", unit="", width=24, height=2, no_value=NO_DEPLOYMENT,
        description="Model, accelerator, format of the KV cache and policy of the InferenceDeployment.",
    )  # fmt: skip
    legend = "{{model}} on {{accelerator}}, KV cache {{kv_cache_dtype}}, policy {{policy}}"
    return words(about, Query(expr=ask.INFO, legend=legend))


def now() -> list[stat.Panel]:
    """Return the line of figures: what users feel at this moment, and the first reasons."""
    return figures(
        3,
        Figure(
            title="Replicas not ready", unit="none", expr=ask.NOT_READY, no_value="no Deployment", thresholds=ODD_ABOVE_ZERO,
            description="Wanted less ready replicas.",
        ),
        Figure(
            title="Requests that wait", unit="none", expr=ask.summed(ask.gauge(metric_names.REQUESTS_WAITING)), no_value=NO_VLLM,
            thresholds=ODD_ABOVE_ZERO, description="Requests that no engine has begun, or that were preempted, on all pods together.",
        ),
        Figure(
            title="First token, p95", unit="s", expr=ask.latency(metric_names.TIME_TO_FIRST_TOKEN, 0.95), no_value=NO_REQUEST,
            thresholds=FIRST_TOKEN, description="95 of 100 requests have their first token within this time.",
        ),
        Figure(
            title="Between tokens, p95", unit="s", expr=ask.latency(metric_names.INTER_TOKEN_LATENCY, 0.95), no_value=NO_REQUEST,
            thresholds=BETWEEN_TOKENS, description="95 of 100 tokens follow the token before them within this time.",
        ),
        Figure(
            title="Preemptions", unit=A_MINUTE, expr=ask.PREEMPTIONS, no_value=NO_VLLM, thresholds=PREEMPTING, decimals=1,
            description="Requests per minute that lost their KV cache and will be computed again.",
        ),
        Figure(
            title="KV cache left", unit=PERCENT, expr=ask.chosen(registry.OBSERVED_KV_CACHE_HEADROOM_RATIO),
            no_value=NOT_OBSERVED, thresholds=LEFT, decimals=0,
            description="Observed headroom: KV cache that no request holds, on the pod with least, as a share of the expected KV cache.",
        ),
        Figure(
            title="Prediction error", unit=PERCENT, expr=ask.PREDICTION_ERROR, no_value=NOT_OBSERVED, thresholds=WRONG, decimals=1,
            description="Observed / expected KV cache − 1; below 0 where vLLM has less than kvgate predicted.",
        ),
        Figure(
            title="Restarts", unit="none", expr=ask.RESTARTS, no_value="no pod", thresholds=ODD_ABOVE_ZERO, decimals=0,
            description="Restarts of engines in the time range, as the kubelet counts them.",
        ),
    )  # fmt: skip


def conditions() -> statetimeline.Panel:
    """Return all conditions over time."""
    about = About(
        title="Conditions", unit="", width=12, height=8, no_value=NO_DEPLOYMENT,
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
        (ConditionType.DRIFTED, warns),
        (ConditionType.PREDICTION_DRIFT, warns),
    ]
    return states(about, Query(expr=ask.CONDITIONS, legend="{{type}}"), neutral, exceptions)


def _percentiles(
    title: str, metric: metric_names.EngineMetric, description: str, axis: Axis, limits: Thresholds = PLAIN
) -> timeseries.Panel:
    series = [(name, ask.latency(metric, share), colour) for name, share, colour in QUANTILES]
    return lines(
        title, "s", NO_REQUEST, f"{description} The median, and the times that 95 and 99 of 100 stay below, of all pods together.",
        axis, *series, limits=limits,
    )  # fmt: skip


def users() -> list[timeseries.Panel]:
    """Return the graphs of what users feel."""
    finished = f"sum by (finished_reason) ({ask.per_second(metric_names.REQUEST_SUCCESS)})"
    tokens = (("generated", metric_names.GENERATION_TOKENS, GREEN), ("prompt", metric_names.PROMPT_TOKENS, BLUE))
    return [
        _percentiles(
            "Time to first token", metric_names.TIME_TO_FIRST_TOKEN, "From a request's arrival to its first token.", SECOND, FIRST_TOKEN
        ),
        _percentiles(
            "Time between tokens", metric_names.INTER_TOKEN_LATENCY, "Between two tokens of a request.", Axis(0, 0.1), BETWEEN_TOKENS
        ),
        _percentiles("Time of a whole request", metric_names.E2E_LATENCY, "From a request's arrival to its last token.", SECOND),
        lines(
            "Requests", "none", NO_VLLM,
            "Running and waiting requests of all pods. Slots are max_num_seqs × engines: requests that wait although fewer run than there "
            "are slots wait for KV cache.",
            FEW,
            ("waiting", ask.summed(ask.gauge(metric_names.REQUESTS_WAITING)), RED),
            ("running", ask.summed(ask.gauge(metric_names.REQUESTS_RUNNING)), GREEN),
            ("slots", ask.SLOTS, Look(series="slots", colour=GREY, dashed=True, width=1)),
        ),
        lines(
            "Finished requests", "reqps", NO_VLLM,
            "Requests that ended per second, by reason: stop and length are answers; abort is a client that left; error is a failure.",
            SECOND, ("{{finished_reason}}", finished, ""),
        ),
        lines(
            "Tokens per second", "short", NO_VLLM,
            "Prompt tokens that were computed and tokens that were generated per second, for all pods together. If none are"
            " generated while requests wait, vLLM hangs.",
            Axis(0, 100), *((name, ask.summed(ask.per_second(metric)), colour) for name, metric, colour in tokens),
        ),
    ]  # fmt: skip


def kv_cache() -> list[timeseries.Panel]:
    """Return the graphs of the KV cache; 100 % is the expected predicted capacity on each of them."""
    share = "100 % is the expected predicted capacity of one engine."

    def of_bound(metric: registry.Metric, name: str) -> str:
        return (
            ask.bound(metric, name)
            if metric is registry.KV_CACHE_HEADROOM_RATIO
            else ask.share_of_expected(ask.bound(metric, name))
        )

    def band(metric: registry.Metric) -> list[tuple[str, str, Look]]:
        """One entry of the legend for the whole interval."""
        looks = (
            Look(
                series="predicted, high end", colour=BLUE, width=1, fill_down_to="predicted, low end", in_legend=False
            ),
            Look(series="predicted", colour=BLUE, dashed=True),
            Look(series="predicted, low end", colour=BLUE, width=1, in_legend=False),
        )
        return [
            (look.series, of_bound(metric, name), look)
            for look, name in zip(looks, ("high", "expected", "low"), strict=True)
        ]

    recalibrated = ask.share_of_expected(ask.bound(registry.RECALIBRATED_KV_CACHE_CAPACITY_TOKENS, "expected"))
    return [
        lines(
            "KV cache of each pod: predicted and observed", PERCENT, NOT_PREDICTED,
            f"{share} The band is the predicted interval, and each line is the KV cache that the vLLM of a pod reports. A "
            "line below the band is a pod with less KV cache than predicted. `as predicted now` is there where kvgate has "
            "learnt since the admission.",
            AROUND_ALL, *band(registry.KV_CACHE_CAPACITY_TOKENS),
            ("as predicted now", recalibrated, Look(series="as predicted now", colour=PURPLE, dashed=True)),
            ("{{pod}}", ask.POD_CAPACITY, ""), width=12, height=9,
        ),
        lines(
            "KV cache in use by each pod", PERCENT, NOT_OBSERVED,
            f"{share} KV cache that requests hold. vLLM preempts requests of a pod that reaches its capacity; the grey line "
            "is the smallest one. Demand is what the guarantee needs: below it nobody uses more than was promised.",
            SHARE, ("{{pod}}", ask.POD_USED, ""),
            ("demand", ask.DEMAND, Look(series="demand", colour=PURPLE, dashed=True)),
            ("capacity", ask.SMALLEST_CAPACITY, Look(series="capacity", colour=GREY, width=1)), width=12, height=9,
        ),
        lines(
            "Headroom: predicted and observed", PERCENT, NOT_PREDICTED,
            f"{share} Predicted: capacity less what the guarantee needs, whatever runs. Observed: capacity of the worst pod "
            "less what requests hold now. At 0 observed, vLLM preempts; below 0 predicted, the guarantee does not fit.",
            SHARE, *band(registry.KV_CACHE_HEADROOM_RATIO),
            (
                "observed, worst pod", ask.chosen(registry.OBSERVED_KV_CACHE_HEADROOM_RATIO),
                Look(series="observed, worst pod", colour=GREEN, width=3),
            ),
            width=12, height=9,
        ),
        ledger(),
    ]  # fmt: skip


def term_queries() -> list[Query]:
    """Return the query of each term of the ledger."""
    return [
        Query(expr=ask.chosen(registry.GPU_MEMORY_BYTES, equals("term", term)), legend=name) for term, name, _ in TERMS
    ]


def ledger() -> timeseries.Panel:
    """Return the ledger: its terms as bars that sum to the GPU, the requested memory as a line."""
    about = About(
        title="Memory of one GPU, as predicted", unit="bytes", width=12, height=9, no_value=NOT_PREDICTED,
        description="The predicted ledger of the tightest rank; its terms sum to the memory of the GPU. vLLM may use what lies below "
        "the line `requested`: total × gpu_memory_utilization. Terms that leave no room for the KV cache do not fit.",
    )  # fmt: skip
    requested = Query(expr=ask.chosen(registry.GPU_MEMORY_REQUESTED_BYTES), legend="requested")
    looks = [Look(series=name, colour=colour) for _, name, colour in TERMS]
    line = Look(series="requested", colour="#1f2328", line=True, width=2, dashed=True)
    return stacked(about, [*term_queries(), requested], *looks, line, most_bars=40)


def pods() -> list[timeseries.Panel]:
    """Return the graphs of replicas and preemptions."""
    preempted = f"{ask.PER_MINUTE} * {ask.summed(ask.per_second(metric_names.PREEMPTIONS), 'pod')}"
    counts = (
        ("wanted", registry.REPLICAS, Look(series="wanted", colour=GREY, dashed=True)),
        ("ready", registry.READY_REPLICAS, Look(series="ready", colour=GREEN, width=3)),
        ("KV cache known", registry.OBSERVED_PODS, Look(series="KV cache known", colour=BLUE, width=1)),
        ("present template", registry.UPDATED_REPLICAS, Look(series="present template", colour=PURPLE, width=1)),
    )
    return [
        lines(
            "Replicas", "none", "no Deployment",
            "Replicas that the Deployment wants, that are ready, whose KV cache is known, and that have its present template.",
            FEW, *((name, ask.chosen(metric), look) for name, metric, look in counts),
        ),
        lines(
            "Restarts of each pod", "none", "no pod",
            "Restarts of the engine's container since the pod was made, as the kubelet counts them.",
            FEW, ("{{pod}}", ask.POD_RESTARTS, ""),
        ),
        lines(
            "Preemptions of each pod", A_MINUTE, NO_VLLM,
            "Requests per minute that lost their KV cache and will be computed again, per pod.", FEW, ("{{pod}}", preempted, ""),
        ),
    ]  # fmt: skip


def fits() -> list[stat.Panel]:
    """Return the figures of the largest load that fits."""
    return figures(
        4,
        Figure(
            title="Full-length requests", unit="none", expr=ask.bound(registry.FULL_LENGTH_REQUESTS, "low"), no_value=NOT_PREDICTED,
            description="Requests of max_model_len tokens that one engine holds at once, at the low end of the prediction.",
        ),
        Figure(
            title="Longest request", unit="locale", expr=ask.LONGEST_REQUEST, no_value=BY_VLLM,
            description="max_model_len in tokens: as rendered, or with auto the shortest that a pod serves.",
        ),
        Figure(
            title="max_num_seqs", unit="none", expr=ask.chosen(registry.MAX_NUM_SEQS), no_value=BY_VLLM,
            description="Requests that one engine runs at the same time, as rendered.",
        ),
        Figure(
            title="GPUs", unit="none", expr=ask.GPUS, no_value=NOT_PREDICTED, description="GPUs that all wanted replicas need together."
        ),
        Figure(
            title="Predicted headroom", unit="bytes", expr=ask.bound(registry.KV_CACHE_HEADROOM_BYTES, "low"), no_value=NOT_PREDICTED,
            thresholds=((None, RED), (0, GREEN)),
            description="KV cache per GPU beyond what the guarantee needs, at the low end of the prediction. At 0 or more it certainly "
            "fits.",
        ),
        Figure(
            title="Time that a start may take", unit="s", expr=ask.chosen(registry.LOAD_BUDGET_SECONDS), no_value="not rendered",
            description="The kubelet restarts an engine that is not ready after this time.",
        ),
    )  # fmt: skip
