"""What the recording rules make of vLLM's metrics under every name, and of pods with and without an InferenceDeployment."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from kvgate.vllm.metric_names import KV_CACHE_USAGE
from mixin import queries
from mixin.queries import RECORDING_RULES
from observability.rule_tests import run, situation
from observability.scenes import ERRORS, REVIEWS
from support.chart import ROOT

OWNER = 'namespace="serving",inferencedeployment="chat"'
OTHER = 'namespace="legacy",workload="qwen"'
NEW, OLD = (name.name for name in KV_CACHE_USAGE.names)
USAGE, PREEMPTIONS = queries.USAGE.name, queries.PREEMPTIONS.name


@pytest.mark.parametrize(
    ("rule", "series", "samples"),
    [
        pytest.param(
            USAGE,
            {f'{NEW}{{{OWNER},pod="a"}}': "0.25x20", f'{NEW}{{{OWNER},pod="b"}}': "0.5x20"},
            {f"{{{OWNER}}}": 0.5},
            id="the fullest pod counts",
        ),
        pytest.param(USAGE, {f'{OLD}{{{OWNER},pod="a"}}': "0.25x20"}, {f"{{{OWNER}}}": 0.25}, id="an old release"),
        pytest.param(
            USAGE,
            {f'{OLD}{{{OWNER},pod="a"}}': "0.75x20", f'{NEW}{{{OWNER},pod="a"}}': "0.25x20"},
            {f"{{{OWNER}}}": 0.25},
            id="a release with both names: the new one counts",
        ),
        pytest.param(
            USAGE,
            {f'{OLD}{{{OWNER},pod="a"}}': "0.75x20", f'{NEW}{{{OWNER},pod="b"}}': "0.25x20"},
            {f"{{{OWNER}}}": 0.75},
            id="two releases at once",
        ),
        pytest.param(
            USAGE,
            {f'{NEW}{{{OWNER},pod="a"}}': "0.25x20", f'{NEW}{{{OTHER},pod="b"}}': "0.5x20"},
            {f"{{{OWNER}}}": 0.25, f"{{{OTHER}}}": 0.5},
            id="pods without an InferenceDeployment",
        ),
        pytest.param(
            PREEMPTIONS,
            {f'vllm:num_preemptions_total{{{OWNER},pod="{pod}"}}': "0+30x20" for pod in "ab"},
            {f"{{{OWNER}}}": 1},
            id="preemptions of all pods",
        ),
        pytest.param(
            queries.POD_OBSERVED_HEADROOM.name,
            {
                f'kvgate_pod_kv_cache_headroom_tokens{{{OWNER},pod="a"}}': "512x20",
                f'kvgate_pod_kv_cache_headroom_tokens{{{OWNER},pod="b"}}': "2048x20",
                f'kvgate_kv_cache_capacity_tokens{{{OWNER},bound="low"}}': "512x20",
                **{
                    f'kvgate_kv_cache_capacity_tokens{{{OWNER},bound="expected",instance="{instance}"}}': "1024x20"
                    for instance in "12"
                },
            },
            {f'{{{OWNER},pod="a"}}': 0.5, f'{{{OWNER},pod="b"}}': 2},
            id="a pod's headroom is a share of what was expected",
        ),
        pytest.param(
            queries.POD_OBSERVED_HEADROOM.name,
            {
                f'kvgate_pod_kv_cache_headroom_tokens{{{OWNER},pod="a"}}': "512x20",
                f'kvgate_kv_cache_capacity_tokens{{{OWNER},bound="expected"}}': "0x20",
            },
            {},
            id="nothing is a share of nothing",
        ),
        pytest.param(
            queries.OBSERVED_HEADROOM.name,
            {
                f'kvgate_observed_kv_cache_headroom_ratio{{{OWNER},instance="{instance}"}}': f"{ratio}x20"
                for instance, ratio in (("1", 0.5), ("2", 0.25))
            },
            {f"{{{OWNER}}}": 0.25},
            id="of two controllers the one that sees less counts",
        ),
        pytest.param(
            queries.PREEMPTED_LONG.name,
            {
                f'vllm:num_preemptions_total{{{OWNER},pod="a"}}': "7x30",
                f'vllm:request_success_total{{{OWNER},pod="a"}}': "9x30",
                f'vllm:num_requests_running{{{OWNER},pod="a"}}': "0x30",
            },
            {},
            id="no share of no requests",
        ),
        pytest.param(
            queries.PREEMPTED_SHORT.name,
            {
                f'vllm:num_preemptions_total{{{OWNER},pod="a"}}': "0 0 64 4+4x30",  # the container began anew
                f'vllm:request_success_total{{{OWNER},pod="a"}}': "0 0 64 4+4x30",
                f'vllm:num_requests_running{{{OWNER},pod="a"}}': "0x30",
            },
            {f"{{{OWNER}}}": 1},
            id="a counter that begins anew",
        ),
        pytest.param(
            queries.FIRST_TOKEN_LONG.name,
            {f'vllm:time_to_first_token_seconds_bucket{{{OWNER},pod="a",le="{le}"}}': "7x30" for le in ("1.0", "+Inf")},
            {},
            id="first tokens of nobody",
        ),
        pytest.param(
            queries.GPU_MEMORY_USED.name,
            {
                'DCGM_FI_DEV_FB_USED{namespace="serving",pod="chat-0",gpu="0"}': "1024x20",
                'DCGM_FI_DEV_FB_USED{namespace="serving",pod="chat-0",gpu="1"}': "2048x20",
                'DCGM_FI_DEV_FB_USED{namespace="dcgm",pod="dcgm-x",exported_namespace="legacy",exported_pod="qwen-0",gpu="2"}': "4x20",
            },
            {'{namespace="serving",pod="chat-0"}': 2 << 30, '{namespace="legacy",pod="qwen-0"}': 4 << 20},
            id="the fullest GPU of a pod, whichever labels name it",
        ),
        pytest.param(queries.ADMISSION_ERRORS.name, {ERRORS: "0x20"}, {}, id="nobody asked"),
        pytest.param(queries.ADMISSION_ERRORS.name, {ERRORS: "0+60x20"}, {"{}": 1}, id="nothing but errors"),
        pytest.param(
            queries.ADMISSION_ERRORS.name, {ERRORS: "0+30x20", REVIEWS: "0+30x20"}, {"{}": 0.5}, id="half of them"
        ),
        pytest.param(
            queries.ADMISSION_P99.name,
            {f'kvgate_admission_review_duration_seconds_bucket{{le="{le}"}}': "7x20" for le in ("0.5", "+Inf")},
            {},
            id="a quantile of nothing",
        ),
    ],
)
def test_a_rule_records(
    prometheus_assets: Path, tmp_path: Path, rule: str, series: Mapping[str, str], samples: Mapping[str, float]
) -> None:
    expected = [{"labels": rule + labels, "value": value} for labels, value in samples.items()]
    test = situation(series) | {"promql_expr_test": [{"expr": rule, "eval_time": "15m", "exp_samples": expected}]}
    run(prometheus_assets, tmp_path, [test])


@pytest.mark.parametrize(("headroom", "answers"), [(0.5, [1.5]), (-0.5, [])])
def test_keda_is_told_nothing_where_the_guarantee_does_not_fit(
    prometheus_assets: Path, tmp_path: Path, headroom: float, answers: list[float]
) -> None:
    scaled = yaml.safe_load((ROOT / "deploy" / "keda" / "scaledobject.yaml").read_text(encoding="utf-8"))
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    owner = 'namespace="serving",inferencedeployment="llama-3-1-8b"'
    series = {
        f'vllm:num_requests_running{{{owner},pod="a"}}': "2x20",
        f'vllm:num_requests_waiting{{{owner},pod="a"}}': "4x20",
        f'kvgate_max_num_seqs{{{owner},instance="1"}}': "4x20",
        f'kvgate_max_num_seqs{{{owner},instance="2"}}': "4x20",
        f'kvgate_kv_cache_headroom_ratio{{{owner},bound="expected"}}': f"{headroom}x20",
    }
    expected = [{"labels": f"{{{owner}}}", "value": value} for value in answers]
    test = situation(series) | {"promql_expr_test": [{"expr": query, "eval_time": "15m", "exp_samples": expected}]}
    run(prometheus_assets, tmp_path, [test])


@pytest.mark.parametrize("rule", RECORDING_RULES, ids=lambda rule: rule.name)
def test_a_rule_keeps_the_cluster(rule: queries.RecordingRule) -> None:
    """One Prometheus may see several; where it does not, the label is absent and the words do nothing."""
    kept = re.findall(r"(?:by|on) \(([^)]*)\)", rule.expression)
    assert kept
    assert all("cluster" in labels.split(", ") for labels in kept)


@pytest.mark.parametrize("rule", [*queries.HEADROOM_RULES, queries.ADMISSION_ERRORS], ids=lambda rule: rule.name)
def test_two_clusters_are_two_series(prometheus_assets: Path, tmp_path: Path, rule: queries.RecordingRule) -> None:
    series = {
        f'{metric}{{cluster="{cluster}",{labels}}}': values
        for cluster in ("east", "west")
        for metric, labels, values in (
            ("kvgate_kv_cache_headroom_ratio", f'{OWNER},bound="expected"', "0.5x20"),
            ("kvgate_observed_kv_cache_headroom_ratio", OWNER, "0.5x20"),
            ("kvgate_kv_cache_capacity_tokens", f'{OWNER},bound="expected"', "1024x20"),
            ("kvgate_pod_kv_cache_headroom_tokens", f'{OWNER},pod="a"', "512x20"),
            (ERRORS, 'pod="w"', "0+60x20"),
        )
    }
    query = f"count by (cluster) ({rule.name})"
    expected = [{"labels": f'{{cluster="{name}"}}', "value": 1} for name in ("east", "west")]
    test = situation(series) | {"promql_expr_test": [{"expr": query, "eval_time": "15m", "exp_samples": expected}]}
    run(prometheus_assets, tmp_path, [test])


def test_every_rule_has_a_name_of_its_own() -> None:
    assert len({rule.name for rule in RECORDING_RULES}) == len(RECORDING_RULES)
