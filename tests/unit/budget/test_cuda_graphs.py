"""The reserve for CUDA graphs: how many are captured, and vLLM's estimate against logs."""

import pytest

from kvgate.budget.answers.answer import plan
from kvgate.budget.engine.request import GraphSettings
from kvgate.budget.gpu.cuda_graphs import num_capture_sizes
from kvgate.budget.gpu.ledger import Ledger
from kvgate.budget.ground import fitted
from kvgate.budget.ground.units import gib
from support.builders import catalogue_accelerator, catalogue_shape, new_accelerator, new_request
from support.tables import table

RTX6K = "https://github.com/local-inference-lab/rtx6kpro/tree/e2c2b957/models/glm5.1/benchmarks"


@table(("limit", "count"), [(1, 1), (2, 2), (8, 4), (32, 7), (128, 19), (256, 35), (512, 51), (1024, 83)])
def test_capture_sizes(limit: int, count: int) -> None:
    assert num_capture_sizes(limit) == count


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (5, 5), (32, 32), (39, 32), (40, 33), (256, 60), (512, 76)])
def test_capture_sizes_for_interactivity(limit: int, count: int) -> None:
    """1 to 32, then as always: 28 more than without at most."""
    sizes = {*range(1, min(limit, 32) + 1), *range(8, min(limit + 1, 256), 8), *range(256, limit + 1, 16)}
    assert num_capture_sizes(limit, every_small_size=True) == len(sizes) == count


def inputs(ledger: Ledger | None) -> dict[str, int | str]:
    assert ledger is not None
    return dict(ledger.lines[3].inputs)


@pytest.mark.parametrize(
    ("max_num_seqs", "batched", "capability", "version", "piecewise", "full"),
    [
        (1024, 8192, (9, 0), "0.33.0", 51, 51),
        (256, 2048, (8, 0), "0.33.0", 51, 35),
        (128, 2048, (8, 6), "0.33.0", 35, 19),
        (8, 2048, (8, 6), "0.33.0", 5, 4),
        (1024, 16384, (10, 0), "0.33.0", 83, 83),
        (1024, 16384, (10, 0), "0.27.1", 51, 51),
    ],
)
def test_how_many_are_captured(
    max_num_seqs: int, batched: int, capability: tuple[int, int], version: str, piecewise: int, full: int
) -> None:
    request = new_request(
        accelerator=new_accelerator(compute_capability=capability), vllm_version=version, max_num_seqs=max_num_seqs,
        max_num_batched_tokens=batched,
    )  # fmt: skip
    found = inputs(plan(request).stages[0].ledger)
    assert (found["piecewise_graphs"], found["full_graphs"], found["layers"]) == (piecewise, full, 32)


@table(
    ("model", "gpu", "version", "settings", "estimate_gib", "source"),
    [
        ("Qwen/Qwen3-8B", "RTX-4090-24GB", "0.21.0", {}, 0.52, "https://github.com/LMCache/LMCache/issues/3430"),
        ("Qwen/Qwen2.5-7B-Instruct", "A10G-24GB", "0.24.0", {}, 0.63, "public log, index id 62752965317"),
        ("meta-llama/Llama-3.1-8B-Instruct", "A100-SXM-80GB", "0.31.0", {}, 0.46, "public log, index id 70682754770"),
        (
            "Qwen/Qwen2.5-Coder-7B-Instruct",
            "RTX-4090-24GB",
            "0.23.0",
            {"max_num_seqs": 32},
            0.13,
            "StellaLee/vllm-experiment",
        ),
        ("google/gemma-4-E4B-it", "RTX-3090-24GB", "0.22.1", {}, 0.79, "public log, index id 54492899325"),
        (
            "Qwen/Qwen3-30B-A3B-Instruct-2507",
            "H100-SXM-80GB",
            "0.22.1",
            {"max_num_seqs": 64},
            0.14,
            "NnamdiOdozi/mlops-assignment",
        ),
        ("nvidia/GLM-5.2-NVFP4", "GB200-192GB", "0.26.0", {"tensor": 4}, 4.99, "public log, index id 61511710941"),
        ("nvidia/GLM-5.1-NVFP4", "RTX-PRO-6000-Server-96GB", "0.20.2", {"tensor": 8, "max_num_seqs": 64}, 5.10, RTX6K),
    ],
)
def test_the_logged_estimate_lies_in_the_interval(
    model: str, gpu: str, version: str, settings: dict[str, int], estimate_gib: float, source: str
) -> None:
    """What 0.31 logs as peak activation holds the estimate: 1.44 less the embedding table of 0.98 GiB."""
    assert source
    request = new_request(
        shape=catalogue_shape(model), accelerator=catalogue_accelerator(gpu), vllm_version=version, **settings
    )
    ledger = plan(request).stages[0].ledger
    assert ledger is not None
    assert ledger.cuda_graphs.low <= gib(estimate_gib) <= ledger.cuda_graphs.high


@pytest.mark.parametrize(
    ("gpu", "version", "is_deducted"),
    [
        ("MI300X-192GB", "0.25.0", False),
        ("MI300X-192GB", "0.26.0", True),
        ("Arc-Pro-B60-24GB", "0.30.0", False),
        ("Arc-Pro-B60-24GB", "0.31.0", True),
        ("L40S-48GB", "0.20.0", True),
    ],
)
def test_a_vendor_may_have_no_estimate(gpu: str, version: str, *, is_deducted: bool) -> None:
    hybrid = catalogue_shape("Qwen/Qwen3-30B-A3B-Instruct-2507")
    request = new_request(shape=hybrid, accelerator=catalogue_accelerator(gpu), vllm_version=version)
    ledger = plan(request).stages[0].ledger
    assert ledger is not None
    assert (ledger.cuda_graphs.expected > 0) is is_deducted


@pytest.mark.parametrize(
    ("model", "gpu", "first"),
    [
        ("Qwen/Qwen3-8B", "H100-SXM-80GB", None),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", "H100-SXM-80GB", fitted.FIRST_GRAPHS),
        ("nvidia/Qwen3-30B-A3B-NVFP4", "RTX-5090-32GB", fitted.FIRST_GRAPHS_NVFP4),
        ("nvidia/Qwen3-30B-A3B-NVFP4", "B200-SXM-180GB", fitted.FIRST_GRAPHS_BLACKWELL),
    ],
)
def test_first_graphs_take_the_workspaces_of_kernels(model: str, gpu: str, first: fitted.Fitted | None) -> None:
    request = new_request(shape=catalogue_shape(model), accelerator=catalogue_accelerator(gpu), vllm_version="0.20.0")
    assert inputs(plan(request).stages[0].ledger)["first_bytes"] == (first.interval.expected if first else 0)


@pytest.mark.parametrize(
    ("graphs", "piecewise", "full"),
    [
        (GraphSettings(), 51, 35),
        (GraphSettings(mode="PIECEWISE"), 51, 0),
        (GraphSettings(mode="FULL_DECODE_ONLY"), 0, 35),
        (GraphSettings(capture_sizes=(1, 2, 4, 8, 512)), 5, 4),
        (GraphSettings(max_capture_size=64), 11, 11),
        (GraphSettings(mode="NONE"), 0, 0),
    ],
)
def test_a_compilation_config_decides(graphs: GraphSettings, piecewise: int, full: int) -> None:
    ledger = plan(new_request(max_num_seqs=256, graphs=graphs)).stages[0].ledger
    assert ledger is not None
    found = inputs(ledger)
    assert (found["piecewise_graphs"], found["full_graphs"]) == (piecewise, full)
    assert (ledger.cuda_graphs.expected > 0) is (piecewise + full > 0)


@pytest.mark.parametrize(("version", "piecewise", "full"), [("0.17.1", 76, 60), ("0.16.0", 51, 35)])
def test_interactivity_captures_more_of_small_batches(version: str, piecewise: int, full: int) -> None:
    request = new_request(vllm_version=version, max_num_seqs=256, performance_mode="interactivity")
    found = inputs(plan(request).stages[0].ledger)
    assert (found["piecewise_graphs"], found["full_graphs"]) == (piecewise, full)


PIECES, DECODE = GraphSettings(mode="PIECEWISE"), GraphSettings(mode="FULL_DECODE_ONLY")


@table(
    ("level", "version", "graphs", "piecewise", "full"),
    [
        (0, "0.33.0", GraphSettings(), 0, 0),
        (0, "0.12.0", GraphSettings(), 0, 0),
        (0, "0.11.0", GraphSettings(), 0, 0),
        (1, "0.33.0", GraphSettings(), 51, 0),
        (1, "0.11.0", GraphSettings(), 51, 35),  # a level of compilation still
        (2, "0.33.0", GraphSettings(), 51, 35),
        (3, "0.33.0", GraphSettings(), 51, 35),
        (0, "0.33.0", DECODE, 0, 35),
        (1, "0.33.0", DECODE, 0, 35),
        (0, "0.33.0", PIECES, 0, 0),  # pieces need compilation
        (0, "0.33.0", GraphSettings(mode="FULL_AND_PIECEWISE", compiles=True), 51, 35),
        (0, "0.33.0", GraphSettings(compiles=True), 0, 0),
    ],
)
def test_an_optimisation_level_fills_in_what_the_compilation_config_leaves_open(
    level: int, version: str, graphs: GraphSettings, piecewise: int, full: int
) -> None:
    request = new_request(vllm_version=version, max_num_seqs=256, graphs=graphs, optimization_level=level)
    ledger = plan(request).stages[0].ledger
    found = inputs(ledger)
    assert (found["piecewise_graphs"], found["full_graphs"]) == (piecewise, full)


def test_recurrent_states_are_not_checked_without_graphs_of_whole_steps() -> None:
    hybrid = new_request(shape=catalogue_shape("Qwen/Qwen3.5-27B"), accelerator=catalogue_accelerator("H100-SXM-80GB"))
    checked = {
        level: plan(hybrid.with_settings(optimization_level=level)).resolved.graphs_hold_states for level in (0, 1, 2)
    }
    assert checked == {0: False, 1: False, 2: True}
