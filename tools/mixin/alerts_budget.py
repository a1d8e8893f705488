"""Alerts about predictions: the guarantee does not fit, or engines report something else."""

from kvgate.api.conditions import ConditionType
from kvgate.metrics import registry
from kvgate.vllm import metric_names
from mixin import queries
from mixin.alert import COUNT, DESCRIBE, OWNER, PERCENT, SAME_OWNER, SCALE, THRESHOLD, Alert
from mixin.queries import (
    HEADROOM_LOW,
    LONG_WINDOW,
    OWNED_BY,
    POD,
    PREDICTION_ERROR_MAX,
    RESTARTED_AGAIN,
    aggregate,
    condition,
    equals,
    on,
    owned,
    owned_over,
    select,
    summed_over,
)  # fmt: skip

_HEADROOM, _ERROR = queries.HEADROOM.name, queries.PREDICTION_ERROR.name
_BYTES = "{{ $value | humanize1024 }}B"
_REFUSED = condition(ConditionType.ACCEPTED, "False")
_WITHOUT_REPLICAS = f"{owned(registry.GPUS)} == 0"
"""InferenceDeployments without replicas: they are Ready although nothing runs."""
_SYMPTOM = (
    f"({aggregate('max', OWNED_BY, queries.PREEMPTED_LONG.name)} > 0.02"
    f" and {summed_over('increase', metric_names.PREEMPTIONS, LONG_WINDOW, OWNED_BY)} >= {queries.PREEMPTIONS_MIN}"
    f" or {RESTARTED_AGAIN})"
)
"""Many preemptions, or engines that end again and again: what a KV cache that is too small does."""

_WRONG_STARTS = 'state=~"contradictory|implausible|impossible|untrusted|unreadable"'
"""Not those that widen predictions, that newer starts have replaced, that have expired, or that somebody has dropped."""


def _headroom(bound: str) -> str:
    return owned(registry.KV_CACHE_HEADROOM_BYTES, equals("bound", bound))


_CAPACITY, _DAY = owned(registry.OBSERVED_KV_CACHE_CAPACITY_TOKENS), "1d"
_CAPACITY_BEFORE = owned_over("max_over_time", registry.OBSERVED_KV_CACHE_CAPACITY_TOKENS, _DAY)
_EXPECTED = equals("bound", "expected")
_SAME_GENERATION = (
    f"{owned_over('max_over_time', registry.KV_CACHE_CAPACITY_TOKENS, _DAY, _EXPECTED)}"
    f" == {owned_over('min_over_time', registry.KV_CACHE_CAPACITY_TOKENS, _DAY, _EXPECTED, pick='min')}"
)
"""A verdict stands for its generation, so a prediction that never moved is one generation."""
_REQUESTED, _TOTAL = owned(registry.GPU_MEMORY_REQUESTED_BYTES), owned(registry.GPU_MEMORY_TOTAL_BYTES)
_POD_OF_OWNER = aggregate("max", (*OWNED_BY, "pod"), registry.POD_INFO.name)


def _fullest(recorded: str) -> str:
    """Return the largest figure of the pods of an InferenceDeployment, from a rule that knows pods only."""
    return aggregate("max", OWNED_BY, f"{_POD_OF_OWNER} * {on(POD)} group_left () {recorded}")


HEADROOM_NEGATIVE = Alert(
    name="KvgateHeadroomNegative",
    when="even the high end of the predicted KV cache is smaller than the guarantee needs, or the expected one is and engines show it by"
    " preemptions or restarts; the InferenceDeployment was admitted",
    query=(
        f"({_headroom('high')} < 0 or {_headroom('expected')} < 0 and {SAME_OWNER} {_SYMPTOM})"
        f" unless {SAME_OWNER} {_REFUSED} unless {SAME_OWNER} {_WITHOUT_REPLICAS}"
    ),
    holds_for="10m",
    severity="critical",
    summary=f"{OWNER} runs with less KV cache than its guarantee needs",
    description=f"The predicted headroom is {_BYTES}, but the InferenceDeployment was admitted. Expect preemptions, or engines that do not"
    " start.",
)
HEADROOM_LOW_ = Alert(
    name="KvgateHeadroomLow",
    when="little of the expected KV cache is left beyond the guarantee, or it may not fit",
    query=(
        f"{_HEADROOM} < {THRESHOLD} unless {SAME_OWNER} {_headroom('high')} < 0"
        f" unless {SAME_OWNER} {_REFUSED} unless {SAME_OWNER} {_WITHOUT_REPLICAS}"
    ),
    threshold=HEADROOM_LOW,
    unit="share of the KV cache",
    holds_for="15m",
    severity="info",
    summary=f"{OWNER} has little KV cache left",
    description=f"The predicted headroom is {PERCENT} of the KV cache. Below 0 the guarantee may not fit."
    " Above 0 it fits, and more or longer requests may not.",
    cause=DESCRIBE,
    remedy=SCALE,
)
PREDICTION_WRONG = Alert(
    name="KvgatePredictionWrong",
    when="observed and predicted KV cache differ",
    query=f"{_ERROR} > {THRESHOLD} or {_ERROR} < -{THRESHOLD}",
    threshold=PREDICTION_ERROR_MAX,
    unit="share of the prediction",
    holds_for="15m",
    severity="warning",
    summary=f"The prediction for {OWNER} is wrong",
    description=f"vLLM's KV cache differs from the prediction by {PERCENT}. Below 0, vLLM has less than kvgate predicted.",
)
PREDICTION_FAR_OFF = Alert(
    name="KvgatePredictionFarOff",
    when="kvgate expected that the guarantee fits, and vLLM reports a KV cache that does not hold it",
    query=(
        f"{_CAPACITY} < {THRESHOLD} * {owned(registry.KV_CACHE_DEMAND_TOKENS)} and {SAME_OWNER} {_HEADROOM} >= 0"
        f" unless {SAME_OWNER} {_WITHOUT_REPLICAS}"
    ),
    threshold=1,
    unit="share of the demand",
    holds_for="10m",
    severity="critical",
    summary=f"The KV cache of {OWNER} does not hold its guarantee",
    description=f"The smallest pod reports {COUNT} tokens of KV cache, less than the guarantee needs, although kvgate expected enough.",
)
CAPACITY_DROPPED = Alert(
    name="KvgateCapacityDropped",
    when="the same generation had a larger KV cache within the last day",
    query=f"1 - {_CAPACITY} / {_CAPACITY_BEFORE} > {THRESHOLD} and {SAME_OWNER} {_SAME_GENERATION}",
    threshold=0.05,
    unit="share of the earlier capacity",
    holds_for="10m",
    severity="warning",
    summary=f"{OWNER} has less KV cache than before",
    description=f"The smallest pod reports {PERCENT} less KV cache than pods of the same generation had within the last day.",
    cause='kvgate_pod_kv_cache_capacity_tokens{namespace="NAMESPACE", inferencedeployment="NAME"}',
    remedy="kubectl delete pod -n NAMESPACE POD    # the smaller one, when nothing else is on its GPU: its successor measures again",
)
LENGTH_BELOW_FLOOR = Alert(
    name="KvgateLengthBelowFloor",
    when="vLLM chose max_model_len, and a ready pod serves shorter requests than admission.adjust.minMaxModelLen",
    query=f"{owned(registry.OBSERVED_MAX_MODEL_LEN_TOKENS)} < {owned(registry.MIN_MAX_MODEL_LEN_TOKENS)}",
    holds_for="10m",
    severity="warning",
    summary=f"{OWNER} serves shorter requests than promised",
    description=f"A pod serves requests of at most {COUNT} tokens, fewer than the floor in the InferenceDeployment. It answers longer ones"
    " with an error.",
    cause='kvgate_pod_max_model_len_tokens{namespace="NAMESPACE", inferencedeployment="NAME"}',
    remedy="kubectl delete pod -n NAMESPACE POD    # the shortest one, when nothing else is on its GPU: its successor measures again",
)
FOREIGN_GPU_MEMORY = Alert(
    name="KvgateForeignGpuMemory",
    when="more memory of a GPU is in use than vLLM may take; needs NVIDIA's dcgm-exporter with pod names",
    query=(
        f"({_fullest(queries.GPU_MEMORY_USED.name)} - {_REQUESTED}) / {_TOTAL} > {THRESHOLD}"
        f" and {SAME_OWNER} {owned(registry.GPUS)} >= {owned(registry.REPLICAS)} * {_fullest(queries.GPUS_OF_POD.name)}"
    ),
    threshold=0.05,
    unit="share of the GPU's memory",
    holds_for="10m",
    severity="warning",
    summary=f"Another process uses the GPU of {OWNER}",
    description=f"The memory in use on the fullest GPU is {PERCENT} of the GPU above what vLLM may take.",
)
CALIBRATION_UNUSED = Alert(
    name="KvgateCalibrationUnused",
    when="observed starts are stored but not used: contradictory, implausible, impossible, untrusted or unreadable",
    query=f"max by (cluster, namespace, state) ({select(registry.CALIBRATION_STARTS.name, _WRONG_STARTS)}) > {THRESHOLD}",
    threshold=0,
    unit="starts",
    holds_for="15m",
    severity="warning",
    summary="Some stored starts correct no prediction",
    description=f"{COUNT} stored starts are {{{{ $labels.state }}}}, so kvgate does not use them.",
)

ALERTS = (
    HEADROOM_NEGATIVE,
    PREDICTION_FAR_OFF,
    PREDICTION_WRONG,
    CAPACITY_DROPPED,
    LENGTH_BELOW_FLOOR,
    FOREIGN_GPU_MEMORY,
    CALIBRATION_UNUSED,
    HEADROOM_LOW_,
)
