"""The reserve for CUDA graphs worked out by hand: how many, how much each, and what is open at the high end."""

from typing import Any

import pytest

from kvgate.budget.engine.circumstances import Circumstances
from kvgate.budget.engine.request import GraphSettings, LoraSettings
from kvgate.budget.gpu.cuda_graphs import captures_graphs, cuda_graphs, num_full_graphs, num_piecewise_graphs
from kvgate.budget.ground import fitted
from kvgate.budget.ground.fitted import Fitted
from kvgate.budget.ground.interval import Interval, Term
from kvgate.budget.model.matrix import WeightFormat
from kvgate.budget.model.shape import LayerShape, ModelShape, SparseMlp
from support import kinds
from support.builders import new_accelerator, new_model_shape, new_run
from support.tables import table

BLACKWELL = new_accelerator(compute_capability=(10, 0))
AMD, INTEL = (new_accelerator(vendor=vendor, compute_capability=None) for vendor in ("amd", "intel"))
SPARSE = SparseMlp(num_experts=8, num_experts_per_token=2, intermediate_size=64)
NVFP4 = WeightFormat(method="modelopt", format="nvfp4")
ON_V1 = "GemmaForCausalLM"
"""A class that stays on the V1 runner up to 0.24."""


def sparse_shape(**more: Any) -> ModelShape:
    return new_model_shape(layers=(LayerShape(mlps=(SPARSE,)),) * 2, architecture=ON_V1, **more)


def dense_shape(num_layers: int = 2) -> ModelShape:
    return new_model_shape(num_layers=num_layers, architecture=ON_V1)


def inputs(term: Term) -> dict[str, int]:
    return {name: value for name, value in term.inputs if isinstance(value, int)}


@table(
    ("seqs", "tokens", "settings", "piecewise", "full"),
    [
        # 1, 2, 4, 8, 16 … 248, 256, 272 … 512, up to two decode steps and the batch
        (1, 8192, {}, 2, 1), (2, 8192, {}, 3, 2), (4, 8192, {}, 4, 3), (16, 8192, {}, 7, 5), (128, 8192, {}, 35, 19),
        (136, 8192, {}, 36, 20), (256, 8192, {}, 51, 35), (300, 8192, {}, 51, 37), (1024, 8192, {}, 51, 51), (1024, 100, {}, 15, 15),
        (4, 8192, {"draft_tokens": 1}, 5, 4),  # a decode step verifies two tokens of each sequence
        (4, 8192, {"draft_tokens": 3}, 7, 5), (4, 12, {"draft_tokens": 3}, 4, 4),
        (4, 8192, {"graphs": GraphSettings(max_capture_size=16)}, 5, 3),
        (256, 8192, {"graphs": GraphSettings(capture_sizes=(1, 256, 257))}, 3, 2),
        (256, 256, {"graphs": GraphSettings(capture_sizes=(1, 256, 257))}, 2, 2),
        (256, 256, {"graphs": GraphSettings(capture_sizes=())}, 0, 0),
        (256, 8192, {"graphs": GraphSettings(mode="FULL")}, 0, 35),
        (256, 8192, {"graphs": GraphSettings(mode="FULL_AND_PIECEWISE")}, 51, 35),
        (256, 8192, {"graphs": GraphSettings(mode="FULL_DECODE_ONLY")}, 0, 35),
        (256, 8192, {"graphs": GraphSettings(mode="PIECEWISE")}, 51, 0),
        (256, 8192, {"graphs": GraphSettings(mode="NONE")}, 0, 0),
        (1024, 8192, {"accelerator": BLACKWELL}, 83, 83),
        (1024, 8192, {"accelerator": BLACKWELL, "version": "0.27.0"}, 51, 51),
        (256, 8192, {"version": "0.10.2"}, 51, 0),  # whole steps are captured since 0.11
        (256, 8192, {"version": "0.11.0"}, 51, 35),
    ],
)  # fmt: skip
def test_so_many_sizes_are_captured(
    seqs: int, tokens: int, settings: dict[str, Any], piecewise: int, full: int
) -> None:
    """`_set_cudagraph_sizes` (0.32)."""
    run = new_run(max_num_seqs=seqs, max_num_batched_tokens=tokens, **settings)
    assert (num_piecewise_graphs(run), num_full_graphs(run)) == (piecewise, full)


@pytest.mark.parametrize(
    ("settings", "captures"),
    [({}, True), ({"enforce_eager": True}, False), ({"graphs": GraphSettings(mode="NONE")}, False),
     ({"graphs": GraphSettings(mode="FULL")}, True)],
)  # fmt: skip
def test_eager_engines_capture_nothing(settings: dict[str, Any], *, captures: bool) -> None:
    run = new_run(**settings)
    assert captures_graphs(run) is captures
    assert (cuda_graphs(run).amount.expected > 0) is captures
    assert (inputs(cuda_graphs(run))["estimate_bytes"] > 0) is captures


def estimate(graph: Fitted, layer: Fitted, layers: int, graphs: int, first: Fitted | None = None) -> Interval:
    each = graph.interval + layer.interval.times(layers)
    return each.times(graphs) + (first.interval if first else Interval.exactly(0))


@table(
    ("version", "settings", "expected"),
    [
        ("0.24.0", {"shape": dense_shape(5)}, estimate(fitted.GRAPH, fitted.GRAPH_LAYER, 5, 5)),
        ("0.24.0", {"shape": dense_shape(5), "stage": (0, 2)}, estimate(fitted.GRAPH, fitted.GRAPH_LAYER, 2, 5)),
        ("0.33.0", {"shape": dense_shape(5)}, estimate(fitted.V2_GRAPH, fitted.V2_GRAPH_LAYER, 5, 5)),
        ("0.24.0", {"shape": sparse_shape()}, estimate(fitted.GRAPH, fitted.GRAPH_COMPLEX_LAYER, 2, 5, fitted.FIRST_GRAPHS)),
        ("0.33.0", {"shape": sparse_shape()}, estimate(fitted.V2_GRAPH, fitted.V2_GRAPH_LAYER, 2, 5)),
        ("0.24.0", {"shape": sparse_shape(quantization=NVFP4)},
         estimate(fitted.GRAPH, fitted.GRAPH_COMPLEX_LAYER, 2, 5, fitted.FIRST_GRAPHS_NVFP4)),
        ("0.24.0", {"shape": sparse_shape(quantization=NVFP4), "accelerator": BLACKWELL},
         estimate(fitted.GRAPH, fitted.GRAPH_COMPLEX_LAYER, 2, 5, fitted.FIRST_GRAPHS_BLACKWELL)),
        ("0.24.0", {"shape": sparse_shape(quantization=WeightFormat(method="fp8", format="fp8-block"))},
         estimate(fitted.GRAPH, fitted.GRAPH_COMPLEX_LAYER, 2, 5, fitted.FIRST_GRAPHS)),
        ("0.24.0", {"shape": kinds.shape_of([kinds.latent()] * 2, architecture=ON_V1)},
         estimate(fitted.GRAPH, fitted.GRAPH_COMPLEX_LAYER, 2, 5, fitted.FIRST_GRAPHS)),
        ("0.24.0", {"shape": kinds.shape_of([kinds.gdn(4, 8), kinds.full()], architecture=ON_V1), "accelerator": BLACKWELL},
         estimate(fitted.GRAPH, fitted.GRAPH_COMPLEX_LAYER, 2, 5, fitted.FIRST_GRAPHS)),
        ("0.24.0", {"shape": sparse_shape(), "graphs": GraphSettings(capture_sizes=())}, Interval.exactly(0)),
    ],
)  # fmt: skip
def test_the_estimate_counts_graphs_and_layers(version: str, settings: dict[str, Any], expected: Interval) -> None:
    """Two sequences: 1, 2 and 4 in pieces, 1 and 2 as whole steps."""
    assert cuda_graphs(new_run(version=version, **settings)).amount == expected


@table(
    ("version", "accelerator", "told", "deducted"),
    [
        ("0.17.0", None, True, False),  # no release before 0.18 captures graphs for an estimate
        ("0.18.0", None, None, False), ("0.18.0", None, True, True), ("0.18.0", None, False, False),
        ("0.20.0", None, None, True), ("0.20.0", None, False, False),
        ("0.25.0", AMD, None, False), ("0.25.0", AMD, True, False), ("0.29.0", AMD, None, True),
        ("0.30.0", INTEL, None, False), ("0.31.0", INTEL, None, True), ("0.25.0", INTEL, True, False),
    ],
)  # fmt: skip
def test_the_estimate_is_deducted_by_release_vendor_and_variable(
    version: str, accelerator: Any, told: bool | None, deducted: bool  # noqa: FBT001
) -> None:  # fmt: skip
    more = {"accelerator": accelerator} if accelerator else {}
    circumstances = Circumstances(estimates_graphs=told)
    term = cuda_graphs(new_run(version=version, shape=sparse_shape(), circumstances=circumstances, **more))
    assert (term.amount.expected > 0) is deducted
    assert term.formula.startswith("0:") is not deducted
    assert [fact.value for fact in term.facts] == ([] if told is None else ["deducted" if deducted else "not deducted"])
    assert inputs(term)["estimate_bytes"] > 0


def test_adapters_and_drafts_are_open_at_the_high_end() -> None:
    plain = cuda_graphs(new_run(version="0.24.0", shape=dense_shape())).amount
    adapters = cuda_graphs(new_run(version="0.24.0", shape=dense_shape(), lora=LoraSettings(enabled=True)))
    assert (inputs(adapters)["piecewise_graphs"], inputs(adapters)["full_graphs"]) == (
        6,
        4,
    )  # with adapters and without
    twice = plain.times(2)
    untried = fitted.UNTRIED_GRAPHS.of(twice.expected).high
    assert adapters.amount == Interval(
        low=twice.low, expected=twice.expected, high=max(twice.high, twice.expected + untried)
    )
    eager = new_run(version="0.24.0", shape=dense_shape(), lora=LoraSettings(enabled=True), enforce_eager=True)
    assert inputs(cuda_graphs(eager))["piecewise_graphs"] == 0
    # 200 layers: what nobody tried is more than the error of a graph; 1, 2, 4 and 8 tokens in pieces and as whole steps
    drafting = cuda_graphs(new_run(version="0.24.0", shape=dense_shape(200), draft_tokens=3)).amount
    counted = estimate(fitted.GRAPH, fitted.GRAPH_LAYER, 200, 8)
    assert (drafting.low, drafting.expected) == (counted.low, counted.expected)
    assert drafting.high == counted.expected + fitted.UNTRIED_GRAPHS.of(counted.expected).high > counted.high


def test_layers_that_pick_tokens_are_open_at_the_high_end_in_the_v1_runner() -> None:
    layers = 40
    for mixer in (kinds.latent(is_sparse=True), kinds.compressed(4)):
        shape = kinds.shape_of([mixer] * layers, architecture=ON_V1)
        found = cuda_graphs(new_run(version="0.24.0", shape=shape)).amount
        counted = estimate(fitted.GRAPH, fitted.GRAPH_COMPLEX_LAYER, layers, 5, fitted.FIRST_GRAPHS)
        assert found.high == counted.expected + layers * fitted.INDEXED_LAYER.interval.high
        assert (found.low, found.expected) == (counted.low, counted.expected)
        v2 = cuda_graphs(new_run(version="0.33.0", shape=shape)).amount
        assert v2 == estimate(fitted.V2_GRAPH, fitted.V2_GRAPH_LAYER, layers, 5)


@pytest.mark.parametrize(("drafts", "is_below"), [(3, True), (0, False)])
def test_the_estimate_of_recurrent_states_with_drafts_may_be_negative(drafts: int, *, is_below: bool) -> None:
    """Qwen3.6 with MTP: -0.81 to -0.9 GiB (0.20 and 0.23)."""
    shape = kinds.shape_of([kinds.gdn(16, 32)] * 4, architecture=ON_V1)
    found = cuda_graphs(new_run(version="0.24.0", shape=shape, draft_tokens=drafts)).amount
    assert (found.low == fitted.UNCLAMPED_GRAPHS.interval.low) is is_below
    assert found.expected > 0
    later = cuda_graphs(new_run(version="0.33.0", shape=shape, draft_tokens=drafts)).amount
    assert later.low > fitted.UNCLAMPED_GRAPHS.interval.low
