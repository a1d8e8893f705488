"""What the recording rules make of vLLM's metrics under every name, and of pods with and without an InferenceDeployment."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from kvgate.monitoring import queries
from kvgate.monitoring.queries import RECORDING_RULES
from kvgate.vllm.metric_names import KV_CACHE_USAGE
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


def test_every_rule_has_a_name_of_its_own() -> None:
    assert len({rule.name for rule in RECORDING_RULES}) == len(RECORDING_RULES)
