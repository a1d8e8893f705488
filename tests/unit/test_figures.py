"""The table of figures: each is shown where its row says, with the same value, and what a door shows is a row."""

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from kvgate.api.crd import custom_resource_definition
from kvgate.api.status import BudgetStatus, HostMemoryStatus, LedgerStatus, PinnedStatus
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.api.validation import parse_document
from kvgate.budget import CacheFigures, Interval
from kvgate.budget.answers.figure_values import Bounds, FiguresOfBudget
from kvgate.budget.answers.figures import FIGURES, figures_of
from kvgate.cli.explain.report import answer
from kvgate.cli.reports.engine_records import CacheRecord, HostRecord, PinnedRecord, RequestLedger
from kvgate.judgement.assess import assess
from kvgate.judgement.assessment import Assessment
from kvgate.judgement.facts import gather
from kvgate.metrics.registry import GPU_MEMORY_TERMS, PER_DEPLOYMENT
from kvgate.metrics.samples import sample_of, series_of
from kvgate.rendering.admission import budget_status, prediction_of
from kvgate.statement.deployment import statement_of
from support.command_line import invoked
from support.json_schemas import checked_report

CAPACITIES = ("Profiled", "Pinned")
NO_VALUES = {"starts.requests", "ledger.calibration.starts"}
"""Paths that these questions have no value at: the answer on the load counts requests of its own, and nothing was observed."""


def deployment(capacity: str, *, max_num_seqs: int = 4, max_model_len: int | str = 4096) -> InferenceDeployment:
    extra = ["--enable-lora"]
    spec = {
        "model": {"name": "Qwen/Qwen3-8B"}, "accelerator": {"type": "L4-24GB"}, "admission": {"capacity": capacity},
        "vllm": {"version": "0.19.1", "maxModelLen": max_model_len, "maxNumSeqs": max_num_seqs, "extraArgs": extra},
    }  # fmt: skip
    head = {"apiVersion": "kvgate.io/v1alpha1", "kind": "InferenceDeployment"}
    return parse_document({**head, "metadata": {"name": "a", "namespace": "b"}, "spec": spec})


def judged(owner: InferenceDeployment) -> Assessment:
    return assess(owner.spec, gather(statement_of(owner.spec)))


def at(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = (document or {}).get(key)  # null, or absent
    return document


def shown(of: FiguresOfBudget, name: str) -> list[Any]:
    """Return the forms that a figure may have: the interval, its expected value, and this as a text."""
    value, expected = to_builtins(of[name]), of.expected(name)
    return [value, expected, *([f"{expected:.2f}"] if name == "full_length_requests" else [])]


@pytest.mark.parametrize(("capacity", "max_model_len"), list(product(CAPACITIES, (4096, "auto"))))
def test_json_status_and_metrics_show_each_figure_where_its_row_says(capacity: str, max_model_len: int | str) -> None:
    owner = deployment(capacity, max_model_len=max_model_len)
    assessment = judged(owner)
    assert assessment.budget is not None
    of = figures_of(assessment.budget)
    explained = checked_report(answer(assessment, "json", why=None, lengths=None))
    status = {"budget": budget_status(prediction_of(assessment))}
    series = {(metric.name, labels): value for metric, labels, value in series_of(sample_of(owner, assessment, ()))}
    for name, row in FIGURES.items():
        for path in set(row.json) - NO_VALUES if of[name] is not None else ():
            assert at(explained, path) in shown(of, name), (name, path)
        if row.status and of[name] is not None:
            assert at(status, row.status) in shown(of, name), name
        if row.metric and of[name] is not None:
            labels = (name.removesuffix("_bytes"),) if row.metric == "kvgate_gpu_memory_bytes" else ()
            bound = ("expected",) if isinstance(of[name], Interval | Bounds) and not labels else labels
            found = series[row.metric, bound if (row.metric, bound) in series else ()]
            assert found == of.expected(name), name
    of_pod = {f"host_{line.name}_bytes" for line in of.host.lines}
    assert of_pod <= FIGURES.keys()
    absent = {
        name for name, row in FIGURES.items() if any(path.startswith("host.terms.") for path in row.json)
    } - of_pod
    pinned = {name for name, row in FIGURES.items() if ".pinned." in "".join(row.json)}
    assert {name for name in FIGURES if of[name] is None} == {"observed_starts"} | absent | (
        set() if capacity == "Pinned" else pinned
    ) | (set() if max_model_len == "auto" else {"auto_max_model_len"})


def test_every_term_of_the_host_has_a_row() -> None:
    flags = (
        "--model",
        "Qwen/Qwen3-8B",
        "--gpu",
        "L4-24GB",
        "--cpu-offload-gb",
        "4",
        "--kv-offloading-size",
        "8",
        "--enable-sleep-mode",
    )
    explained = checked_report(invoked("explain", *flags, "-o", "json").stdout)
    terms = explained["host"]["terms"]
    assert {"offloaded_weights", "kv_offload", "sleep"} <= {name for name, term in terms.items() if term["high"]}
    assert {f"host_{name}_bytes" for name in terms} <= FIGURES.keys()


@pytest.mark.parametrize("length", ["4096", "auto"])
def test_what_size_and_sweep_show_is_the_figure(length: str) -> None:
    flags = ("--model", "Qwen/Qwen3-8B", "--max-model-len", length, "--max-num-seqs", "4", "--vllm-version", "0.19.1")
    sized = checked_report(invoked("size", *flags, "--gpus", "L4", "-o", "json").stdout)["candidates"][0]
    swept = checked_report(
        invoked("sweep", *flags[:2], *flags[6:], "--gpu", "L4-24GB", "--x", f"max_model_len={length}", "--y", "max_num_seqs=4",
                "-o", "json").stdout
    )["cells"][0][0]  # fmt: skip
    explained = checked_report(invoked("explain", *flags, "--gpu", "L4-24GB", "-o", "json").stdout)
    for name, row in FIGURES.items():
        told = at(explained, row.json[0]) if row.json else None
        if row.sweep:
            assert swept[row.sweep] == told, name
        if row.size:
            assert expected(sized[row.size]) == expected(told), name


def expected(value: Any) -> Any:
    return value["expected"] if isinstance(value, dict) else value


def rows_of(paths: Iterator[str]) -> set[str]:
    return {path.rpartition(".")[2] for path in paths}


def test_every_figure_that_a_door_shows_is_a_row() -> None:
    of_json = rows_of(path for row in FIGURES.values() for path in row.json)
    parts = (CacheRecord, RequestLedger, HostRecord, PinnedRecord)
    others = {"groups", "pinned", "circumstances", "calibration", "terms", "option", "safety_bytes"}
    assert {field for part in parts for field in part.__struct_fields__} - others <= of_json
    of_status = rows_of(row.status for row in FIGURES.values())
    models = (BudgetStatus, LedgerStatus, PinnedStatus, HostMemoryStatus)
    aliases = {field.alias for model in models for field in model.model_fields.values()}
    assert aliases - {"verdict", "guarantee", "ledger", "pinned", "hostMemory"} == of_status - {""}
    predicted = re.compile("kvgate_(kv_cache|gpu_memory|pinned|forgone|full|host|auto)_")
    metrics = {metric.name for metric in PER_DEPLOYMENT if predicted.match(metric.name)}
    assert metrics == {row.metric for row in FIGURES.values() if row.metric}
    terms = {name.removesuffix("_bytes") for name, row in FIGURES.items() if row.metric == "kvgate_gpu_memory_bytes"}
    assert terms == GPU_MEMORY_TERMS.keys() - {"correction", "kv_cache", "not_requested"}


def test_the_words_of_a_figure_are_the_same_in_the_status_the_metric_and_the_json() -> None:
    helps = {metric.name: metric.help for metric in PER_DEPLOYMENT}
    crd = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    status = crd["properties"]["status"]["properties"]
    for name, row in FIGURES.items():
        assert row.help.endswith("."), name
        if row.metric and row.metric != "kvgate_gpu_memory_bytes":
            assert helps[row.metric] == row.help
        if row.status:
            path = row.status.replace(".", ".properties.")
            assert at(status, f"{path}.description") == row.help


@pytest.mark.parametrize(("capacity", "max_num_seqs"), list(product(CAPACITIES, (1, 4, 64))))
def test_the_expected_figures_are_those_of_the_table(capacity: str, max_num_seqs: int) -> None:
    """Text reports take them from the budget itself."""
    budget = judged(deployment(capacity, max_num_seqs=max_num_seqs)).budget
    assert budget is not None
    of = figures_of(budget)
    assert budget.figures == CacheFigures(
        num_tokens=of.expected("capacity_tokens"),
        num_blocks=of.expected("num_blocks"),
        kv_cache_bytes=of.expected("capacity_bytes"),
        max_concurrency=of.expected("full_length_requests"),
        headroom_bytes=of.expected("headroom_bytes"),
        headroom_ratio=of.expected("headroom_ratio"),
        headroom_percent=of.expected("headroom_percent"),
    )


def test_a_percent_is_of_the_bytes_and_not_of_a_rounded_share() -> None:
    """29 % of 100 blocks: the share as a float times 100 is below 29, and `kvgate diff` showed 28 % where kubectl showed 29."""
    budget = judged(deployment("Profiled")).budget
    assert budget is not None
    assert budget.tightest is not None
    assert budget.demand is not None
    stage = replace(budget.tightest, available=Interval.exactly(100 * budget.tightest.bytes_per_block))
    budget = replace(budget, tightest=stage, usable_blocks=Interval.exactly(budget.demand.blocks + 29))
    assert budget.figures.headroom_percent == figures_of(budget).expected("headroom_percent") == 29
    assert int((budget.figures.headroom_ratio or 0) * 100) == 28
