"""What is stored of vLLM: everything, or what our rules and dashboards read, and then exactly that."""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from fleet.exposition import exposition, families
from kvgate.vllm.metric_names import CACHE_CONFIG_INFO, E2E_LATENCY, INTER_TOKEN_LATENCY, OPTIONAL_METRICS, QUEUE_TIME
from mixin import DASHBOARDS
from mixin.alerts import rule_groups
from mixin.dashboards import dashboard_json
from mixin.scraping import HTTP_REQUESTS, KEEP_USED, in_kubernetes, scrape_configuration
from pictures.grafana import target_expressions, variable_queries
from support.chart import ROOT
from support.tables import table

NAME = re.compile(r"vllm:\w+|http_requests_\w+")
NOT_READ = (CACHE_CONFIG_INFO, *OPTIONAL_METRICS, INTER_TOKEN_LATENCY, E2E_LATENCY, QUEUE_TIME)
"""Metrics that may be kept although nothing reads them: the capacity, what only some engines export, and latencies that users feel."""


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for group in rule_groups()["groups"] for rule in group["rules"])
    for uid in DASHBOARDS:
        board: dict[str, Any] = json.loads(dashboard_json(uid))
        yield from target_expressions(board)
        yield from (selector for _, selector in variable_queries(board))
    for path in sorted((ROOT / "deploy" / "keda").glob("*.yaml")):
        yield path.read_text(encoding="utf-8")


def is_kept(name: str) -> bool:
    return re.fullmatch(KEEP_USED.regex, name) is not None


def read_by_us() -> set[str]:
    return {name for expression in expressions() for name in NAME.findall(expression)}


def alternatives() -> set[str]:
    """The names in the expression, a histogram's under its own."""
    inside = KEEP_USED.regex.removeprefix("vllm:(").removesuffix(f")|{HTTP_REQUESTS}")
    return {f"vllm:{name}" for name in inside.replace("_(bucket|sum|count)", "").split("|")}


def test_every_series_that_a_rule_or_a_dashboard_reads_is_kept() -> None:
    assert len(read_by_us()) > 10
    assert {name for name in read_by_us() if not is_kept(name)} == set()


def test_nothing_else_is_kept() -> None:
    read = {re.sub("_(bucket|sum|count)$", "", name) for name in read_by_us()} | read_by_us()
    assert alternatives() - read <= {name.name for metric in NOT_READ for name in metric.names}


@table(
    "name",
    ["up", "vllm:num_requests_waiting_by_reason", "vllm:num_preemptions_created", "vllm:e2e_request_latency_seconds_created",
     "vllm:kv_cache_usage_perc_max", "xvllm:num_requests_running", "python_gc_objects_collected_total",
     "http_requests_created", "http_request_duration_seconds_bucket"],
)  # fmt: skip
def test_a_name_that_is_alike_is_not_kept(name: str) -> None:
    assert not is_kept(name)


def test_most_series_of_a_recorded_engine_are_left_out() -> None:
    lines = exposition(seconds=60).decode().splitlines()
    names = [re.split("[ {]", line)[0] for line in lines if not line.startswith("#")]
    of_vllm = [name for name in names if name.startswith("vllm:")]
    kept = [name for name in names if is_kept(name)]
    assert (len(names), len(of_vllm)) == (430, 374)
    assert 20 < len(kept) < 150
    assert {"counter", "gauge", "histogram"} <= {family.kind for family in families()}


def test_the_configuration_that_keeps_less_differs_in_nothing_else() -> None:
    whole, used = (scrape_configuration(in_kubernetes, keeps_used=keeps_used) for keeps_used in (False, True))
    kept = KEEP_USED.fields()
    for job, other in zip(whole["scrape_configs"], used["scrape_configs"], strict=True):
        rules = job.get("metric_relabel_configs", [])
        is_vllms = job["job_name"].startswith("vllm")
        assert other == (job | {"metric_relabel_configs": [*rules, kept]} if is_vllms else job)
    shipped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "scrape-used.yaml").read_text(encoding="utf-8"))
    assert shipped["scrape_configs"] == used["scrape_configs"]
