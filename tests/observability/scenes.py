"""What alerts are tested on: an hour of made-up series for each, that goes well, badly, well again, and then says nothing.

Minutes 0 to 9 are good, 10 to 39 bad, 40 to 59 good; at 60 every series is gone. Numbers are sums of powers of two where an
expectation contains them: promtool compares floats exactly.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

OWNER = {"namespace": "serving", "inferencedeployment": "chat"}
OTHER = {"namespace": "legacy", "workload": "qwen"}
_O = 'namespace="serving",inferencedeployment="chat"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """One alert in one situation."""

    alert: str
    series: Mapping[str, str]
    labels: Mapping[str, str]
    """Of the alert, besides its severity."""
    summary: str
    description: str
    bad_minutes: int = 30
    settles_minutes: int = 0
    """Until a rate over a window shows the change."""
    needs: frozenset[str] = frozenset()
    """Series without which it cannot tell and stays silent; by default the first one."""
    fires_without_all: bool = False
    """Silence itself is what it tells."""
    innocent: tuple[Mapping[str, str], ...] = field(default=())
    """Series in place of some of these, with which it stays silent."""

    @property
    def needed(self) -> frozenset[str]:
        return self.needs or (frozenset() if self.fires_without_all else frozenset({next(iter(self.series))}))


def changing(good: str, bad: str) -> str:
    """A gauge: good, bad, good, gone."""
    return f"{good}x9 {bad}x29 {good}x19 stale"


def always(value: str) -> str:
    return f"{value}x59 stale"


HEADROOM = f'kvgate_kv_cache_headroom_ratio{{{_O},bound="expected"}}'
REFUSED = f'kvgate_condition{{{_O},type="Accepted",status="False"}}'
GPUS = f"kvgate_gpus{{{_O}}}"
READY = f'kvgate_condition{{{_O},type="Ready",status="True"}}'
ERROR = f"kvgate_prediction_error_ratio{{{_O}}}"
PREEMPTIONS = f'vllm:num_preemptions_total{{{_O},pod="chat-0",engine="0"}}'
EXPIRY = 'kvgate_webhook_certificate_expiry_timestamp_seconds{instance="a"}'
ERRORS = "kvgate_admission_errors_total"
REVIEWS = 'kvgate_admission_reviews_total{decision="Admit",policy="Reject",operation="CREATE"}'
BUCKET = "kvgate_admission_review_duration_seconds_bucket"
UP = f'up{{{_O},pod="chat-0",instance="10.0.0.7:8000",job="vllm"}}'
OBSERVED = f"kvgate_observed_pods{{{_O}}}"
SCRAPES = 'kvgate_pod_scrapes_total{result="timeout"}'
CONTRADICTORY = 'kvgate_calibration_starts{state="contradictory"}'


def waiting(labels: str) -> str:
    return f'vllm:num_requests_waiting{{{labels},pod="chat-0",engine="0"}}'


def generated(labels: str) -> str:
    return f'vllm:generation_tokens_total{{{labels},pod="chat-0",engine="0"}}'


def prompted(labels: str) -> str:
    """Of an engine for embeddings, which generates nothing, all that counts up."""
    return f'vllm:prompt_tokens_total{{{labels},pod="chat-0",engine="0"}}'


def stuck(labels: str, owner: Mapping[str, str], name: str) -> Scene:
    return Scene(
        alert="KvgateEngineStuck",
        series={waiting(labels): changing("0", "4"), generated(labels): "0+60x9 540x29 600+60x19 stale"},
        settles_minutes=5,
        needs=frozenset({waiting(labels), generated(labels)}),
        innocent=(
            {waiting(labels): always("0")},
            {generated(labels): "0+60x59 stale"},
            {prompted(labels): "0+60x59 stale"},
        ),
        labels={**owner, "pod": "chat-0", "engine": "0"},
        summary=f"An engine of {name} generates nothing while requests wait",
        description="In pod chat-0 4 requests wait. For 10 minutes it has read no prompt and generated no token.",
    )


SCENES = (
    Scene(
        alert="KvgateHeadroomNegative",
        series={HEADROOM: changing("0.5", "-0.25")},
        innocent=({HEADROOM: always("0")}, {REFUSED: always("1")}, {GPUS: always("0")}),
        labels=OWNER,
        summary="serving/chat runs with less KV cache than its guarantee needs",
        description="The predicted headroom is -25% of the KV cache, but the InferenceDeployment was admitted."
        " Expect preemptions, or engines that do not start.",
    ),
    Scene(
        alert="KvgateHeadroomLow",
        series={HEADROOM: changing("0.5", "0.0625")},
        innocent=({HEADROOM: always("-0.25")}, {HEADROOM: always("0.125")}),
        labels=OWNER,
        summary="serving/chat has little KV cache left",
        description="The predicted headroom is 6.25% of the KV cache. The guarantee fits; more requests or longer ones do not.",
    ),
    *(
        Scene(
            alert="KvgatePredictionWrong",
            series={ERROR: changing("0.0625", ratio)},
            innocent=({ERROR: always("-0.0625")},),
            labels=OWNER,
            summary="The prediction for serving/chat is wrong",
            description=f"vLLM's KV cache differs from the prediction by {percent}. Below 0, vLLM has less than kvgate predicted.",
        )
        for ratio, percent in (("-0.25", "-25%"), ("0.125", "12.5%"))
    ),
    Scene(
        alert="KvgateUnexpectedPreemptions",
        series={PREEMPTIONS: "0x9 30+30x29 900x19 stale", HEADROOM: always("0.5")},
        settles_minutes=5,
        needs=frozenset({PREEMPTIONS, HEADROOM}),
        innocent=({HEADROOM: always("0.125")}, {PREEMPTIONS: always("900")}),
        labels=OWNER,
        summary="serving/chat preempts requests although KV cache should be left",
        description="30 requests per minute lose their KV cache and are computed again, although the predicted headroom is above 20%.",
    ),
    Scene(
        alert="KvgateNotAccepted",
        series={REFUSED: "_x10 1x29 stale"},
        labels=OWNER,
        summary="serving/chat is refused and not rendered",
        description="Its condition Accepted is False. Nothing runs for the current spec; the spec that was admitted before keeps running.",
    ),
    Scene(
        alert="KvgateNoLeader",
        series={"kvgate_leader": changing("1", "0")},
        fires_without_all=True,
        innocent=({'kvgate_leader{instance="b"}': always("1")},),
        labels={},
        summary="No kvgate controller is the leader",
        description="InferenceDeployments are not reconciled, and the alerts about them have no data.",
    ),
    Scene(
        alert="KvgateNoWebhook",
        series={EXPIRY: "9000000x9 stale _x29 9000000x19 stale"},
        fires_without_all=True,
        labels={},
        summary="No kvgate webhook answers",
        description="No webhook is scraped. While none runs, InferenceDeployments cannot be created and their specs cannot be changed.",
    ),
    Scene(
        alert="KvgateWebhookErrors",
        series={ERRORS: "0x9 6+6x29 180x19 stale", REVIEWS: "0+18x59 stale"},
        settles_minutes=5,
        innocent=({ERRORS: always("0")},),
        labels={},
        summary="The kvgate webhook fails to judge InferenceDeployments",
        description="25% of the admission reviews end without a verdict (HTTP 429, 500 or 503), and the API server refuses their objects.",
    ),
    Scene(
        alert="KvgateWebhookSlow",
        series={
            f'{BUCKET}{{le="+Inf"}}': "0+60x59 stale",
            f'{BUCKET}{{le="1.0"}}': "0+60x59 stale",
            f'{BUCKET}{{le="0.5"}}': "0+60x9 540x29 600+60x19 stale",
        },
        settles_minutes=5,
        needs=frozenset({f'{BUCKET}{{le="+Inf"}}', f'{BUCKET}{{le="1.0"}}'}),
        innocent=({f'{BUCKET}{{le="0.5"}}': "0+60x59 stale"},),
        labels={},
        summary="The kvgate webhook is slow",
        description="One admission review in a hundred takes 995ms or longer. The API server waits 5 s.",
    ),
    Scene(
        alert="KvgateCertificateExpiring",
        series={EXPIRY: "9000000x9 600600+60x89 9000000x19 stale"},
        bad_minutes=90,
        labels={},
        summary="The certificate of the kvgate webhook expires soon",
        description="It expires in 6d 22h 40m 0s. After that InferenceDeployments cannot be created and their specs cannot be changed.",
    ),
    stuck(_O, OWNER, "serving/chat"),
    stuck('namespace="legacy",workload="qwen"', OTHER, "legacy/qwen"),
    stuck('namespace="legacy"', {"namespace": "legacy"}, "legacy/chat-0"),
    Scene(
        alert="KvgatePodsNotScraped",
        series={UP: changing("1", "0"), READY: always("1")},
        needs=frozenset({UP, READY}),
        innocent=({READY: "_x60"},),
        labels={**OWNER, "pod": "chat-0", "instance": "10.0.0.7:8000", "job": "vllm"},
        summary="Prometheus cannot scrape pods of serving/chat",
        description="10.0.0.7:8000 does not answer Prometheus although all replicas are ready. Its usage, waiting requests and"
        " preemptions are unknown.",
    ),
    Scene(
        alert="KvgatePodsNotObserved",
        series={READY: always("1"), OBSERVED: changing("2", "0"), SCRAPES: "0+1x59 stale"},
        needs=frozenset({READY, SCRAPES}),
        innocent=({OBSERVED: always("1")}, {GPUS: always("0")}),
        labels=OWNER,
        summary="The controller cannot observe serving/chat",
        description="All replicas are ready, but the KV cache of none is known, so the prediction is not compared with reality.",
    ),
    Scene(
        alert="KvgateCalibrationUnused",
        series={CONTRADICTORY: changing("0", "2")},
        labels={"state": "contradictory"},
        summary="Some stored starts correct no prediction",
        description="2 stored starts are contradictory, so kvgate does not use them.",
    ),
)
