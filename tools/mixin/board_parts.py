"""Rows of the dashboard Deployment for parts that not every deployment has: caches, transfers, adapters, and GPUs that are measured."""

from grafana_foundation_sdk.builders import table, timeseries

from kvgate.metrics import registry
from kvgate.vllm import metric_names
from mixin import expressions as ask
from mixin.looks import A_MINUTE, BLUE, FEW, GREEN, GREY, ORANGE, PERCENT, PURPLE, RED, SHARE, SINCE, Axis
from mixin.panels import About, Column, Look, Query, lines, rows
from mixin.queries import POD

NO_LOOKUP = "no request looked for a prefix"
NO_OFFLOADING = "no engine offloads KV cache"
NO_TRANSFERS = "no engine receives KV cache from another"
NO_ADAPTERS = "no adapter was used"
NO_DCGM = "no DCGM exporter reports GPUs of these pods"
GIBIBYTE = 2**30


def caches() -> list[timeseries.Panel]:
    """Return the graphs of the prefix cache, and of the tiers behind it."""
    loaded, stored = (
        ask.summed(ask.per_second(metric))
        for metric in (metric_names.KV_OFFLOAD_LOADED, metric_names.KV_OFFLOAD_STORED)
    )
    tier = ask.ratio(metric_names.KV_OFFLOAD_TIER_HITS, metric_names.KV_OFFLOAD_TIER_QUERIES, "tier")
    return [
        lines(
            "Prefix cache", PERCENT, NO_LOOKUP,
            "Share of the tokens that vLLM looked up and found, for all pods together: on the GPU, and, of those that were not there, in "
            "the KV connector (host, disk or another engine).",
            SHARE,
            ("on the GPU", ask.ratio(metric_names.PREFIX_CACHE_HITS, metric_names.PREFIX_CACHE_QUERIES), PURPLE),
            (
                "in the connector",
                ask.ratio(metric_names.EXTERNAL_PREFIX_CACHE_HITS, metric_names.EXTERNAL_PREFIX_CACHE_QUERIES), BLUE,
            ),
        ),
        lines(
            "KV cache moved to and from the host", "binBps", NO_OFFLOADING,
            "Bytes per second that engines loaded from and stored to the tiers behind the GPU. vLLM reports them since 0.24.",
            Axis(0, GIBIBYTE), ("loaded", loaded, BLUE), ("stored", stored, GREEN),
        ),
        lines(
            "Tiers of the KV cache", PERCENT, NO_OFFLOADING,
            "Share of the host's part of the KV cache in use, on the fullest pod, and share of the lookups that each tier "
            "behind it answered.",
            SHARE,
            ("host, in use", f"max({ask.gauge(metric_names.KV_OFFLOAD_HOST_USAGE)})", ORANGE), ("{{tier}}, hits", tier, ""),
        ),
    ]  # fmt: skip


def roles() -> list[timeseries.Panel]:
    """Return the graphs of prefill and decode: who computes prompts, who generates, and the transfers between them."""
    generated, prompt = (
        ask.summed(ask.per_second(metric), *POD)
        for metric in (metric_names.GENERATION_TOKENS, metric_names.PROMPT_TOKENS)
    )
    lost = (
        ("failed", metric_names.KV_TRANSFER_FAILURES, RED),
        ("expired", metric_names.KV_TRANSFER_EXPIRED, ORANGE),
    )
    return [
        lines(
            "Generated share of each pod's tokens", PERCENT, "no request was computed",
            "Generated tokens as a share of all tokens that a pod computes. A prefill pod is near 0, a decode pod near 100 "
            "%, and a pod that does both lies between. A pod that changes its place has taken over the other role.",
            SHARE, ("{{pod}}", f"{generated} / ({generated} + {prompt} > 0)", ""),
        ),
        lines(
            "Time of a KV transfer", "s", "no KV cache was transferred", "Time of one transfer of KV cache from a prefill pod, "
                "over NIXL.", Axis(0, 0.1),
            ("p99", ask.latency(metric_names.KV_TRANSFER_SECONDS, 0.99), ORANGE),
            ("p50", ask.latency(metric_names.KV_TRANSFER_SECONDS, 0.5), BLUE),
        ),
        lines(
            "KV transfers that were lost", A_MINUTE, NO_TRANSFERS,
            "Transfers per minute that failed, and requests whose KV cache a prefill pod dropped because nobody fetched it in time. Their "
            "prompts are computed again.",
            FEW, *((name, f"{ask.PER_MINUTE} * {ask.summed(ask.per_second(metric))}", colour) for name, metric, colour in lost),
        ),
    ]  # fmt: skip


def adapters() -> table.Panel:
    """Return the table of the LoRA adapters of each pod."""
    columns = (
        Column(name="pod", title="pod", width=320),
        Column(name="running_lora_adapters", title="adapters with running requests"),
        Column(name="waiting_lora_adapters", title="adapters with waiting requests"),
        Column(name="max_lora", title="slots (max_loras)", width=150),
        Column(name="Value", title="last change", unit=SINCE, width=160),
    )
    about = About(
        title="LoRA adapters of each pod", unit="", width=24, height=5, no_value=NO_ADAPTERS,
        description="Adapters whose requests run or wait, as vLLM reported them last. Requests wait while all slots hold other adapters.",
    )  # fmt: skip
    hidden = ("__name__", "engine", "instance", "job", "model_name", "container", "endpoint", *ask.OWNER)
    return rows(about, [Query(expr=ask.ADAPTERS)], columns, hidden=hidden)


def measured_gpus() -> list[timeseries.Panel]:
    """Return the graphs of GPUs as NVIDIA's exporter (DCGM) reports them."""
    gpu = "{{pod}}, GPU {{gpu}}"
    requested = ask.chosen(registry.GPU_MEMORY_REQUESTED_BYTES)
    total = ask.chosen(registry.GPU_MEMORY_TOTAL_BYTES)
    busy = f"{ask.of_gpu(ask.GPU_BUSY)} / 100"
    return [
        lines(
            "Memory of each GPU, measured", "bytes", NO_DCGM,
            "Memory in use, whoever uses it, as DCGM reports it. Above the line `requested`, another process uses the GPU, "
            "or vLLM takes more than was predicted.",
            Axis(0, None), (gpu, ask.GPU_MEMORY_USED, ""), ("requested", requested, Look(series="requested", colour=RED, dashed=True)),
            ("whole GPU", total, Look(series="whole GPU", colour=GREY, width=1)), width=12,
        ),
        lines(
            "GPU busy", PERCENT, NO_DCGM, "Share of the time in which any kernel ran on the GPU.", SHARE, (gpu, busy, ""), width=6,
        ),
        lines(
            "Last XID error", "none", NO_DCGM,
            "Number of the last error that the driver reported for the GPU; 0 for none. 48, 63, 64, 74, 79 and 95 are "
            "faults of the hardware.",
            Axis(0, 10), (gpu, ask.of_gpu(ask.LAST_XID), ""), width=6,
        ),
    ]  # fmt: skip
