"""Memory outside torch, term by term: each fitted constant for the releases, GPUs and stages that it belongs to."""

from typing import Any

from kvgate.budget.engine.circumstances import Circumstances
from kvgate.budget.engine.request import GraphSettings
from kvgate.budget.gpu.non_torch import non_torch, startup_slack
from kvgate.budget.ground import fitted
from kvgate.budget.ground.fitted import Fitted
from kvgate.budget.ground.hardware import Accelerator, Parallelism
from kvgate.budget.ground.interval import Interval
from kvgate.budget.ground.units import GIB
from kvgate.budget.model.shape import LayerShape, SparseMlp
from kvgate.budget.releases.versions import accounting_of
from support.builders import new_accelerator, new_model_shape, new_run
from support.tables import table

HOPPER, LINKLESS = new_accelerator(), new_accelerator(nvlink=False)
AMPERE, B200 = new_accelerator(compute_capability=(8, 0)), new_accelerator(compute_capability=(10, 0))
AMD = new_accelerator(vendor="amd", compute_capability=None, nvlink=False)
INTEL = new_accelerator(vendor="intel", compute_capability=None, nvlink=False)
WIDE = new_model_shape(hidden_size=4096)
SPARSE = LayerShape(mlps=(SparseMlp(num_experts=64, num_experts_per_token=2, intermediate_size=64),))
EXPERTS = new_model_shape(hidden_size=4096, layers=(SPARSE,) * 2)


def plus(*parts: Fitted) -> Interval:
    return sum((each.interval for each in parts), Interval.exactly(0))


ALIGNED = new_model_shape(hidden_size=100, vocab_size=128_256)


@table(
    ("version", "more", "expected"),
    [
        ("0.10.2", {}, plus(fitted.KERNELS_EARLY)),
        ("0.11.0", {}, plus(fitted.KERNELS)),
        ("0.17.0", {}, plus(fitted.KERNELS)),
        ("0.18.0", {}, plus(fitted.KERNELS_AND_GRAPHS)),  # graphs are captured before vLLM reads the figure
        ("0.26.0", {"shape": new_model_shape(hidden_size=100, architecture="GemmaForCausalLM", layers=(SPARSE,))},
         plus(fitted.KERNELS_AND_GRAPHS)),
        ("0.27.0", {"shape": new_model_shape(hidden_size=100, architecture="GemmaForCausalLM", layers=(SPARSE,))},
         plus(fitted.KERNELS)),
        ("0.18.0", {"accelerator": AMPERE}, plus(fitted.KERNELS_AND_GRAPHS_SMALL)),
        ("0.18.0", {"accelerator": B200}, plus(fitted.KERNELS_AND_GRAPHS)),
        ("0.18.0", {"accelerator": new_accelerator(compute_capability=(12, 0))}, plus(fitted.KERNELS_AND_GRAPHS_SMALL)),
        ("0.18.0", {"enforce_eager": True}, plus(fitted.KERNELS)),
        ("0.18.0", {"graphs": GraphSettings(mode="NONE")}, plus(fitted.KERNELS)),
        ("0.18.0", {"stage": (0, 16)}, plus(fitted.KERNELS)),  # no sampler
        ("0.18.0", {"accelerator": AMD}, plus(fitted.KERNELS_ROCM)),
        ("0.33.0", {"accelerator": INTEL}, plus(fitted.KERNELS_XPU)),
        ("0.9.0", {}, plus(fitted.KERNELS_EARLY, fitted.CONTEXT)),
        ("0.9.1", {}, plus(fitted.KERNELS_EARLY)),
        ("0.33.0", {"accelerator": new_accelerator(unified_memory=True)}, plus(fitted.KERNELS, fitted.UNIFIED)),
        ("0.11.0", {"shape": new_model_shape(vocab_size=128_255)}, plus(fitted.KERNELS, fitted.UNALIGNED)),
        ("0.11.0", {"shape": new_model_shape(vocab_size=128_264)}, plus(fitted.KERNELS, fitted.UNALIGNED)),
        ("0.11.0", {"shape": new_model_shape(vocab_size=128_272)}, plus(fitted.KERNELS)),
    ],
)  # fmt: skip
def test_kernels_by_release_gpu_and_stage(version: str, more: dict[str, Any], expected: Interval) -> None:
    assert non_torch(new_run(version=version, **{"shape": ALIGNED, **more})).amount == expected


def test_the_term_adds_its_parts_and_names_the_links_of_several_ranks() -> None:
    alone, two, foreign = (
        non_torch(new_run(version="0.22.0", shape=WIDE, **more))
        for more in ({}, {"tensor": 2}, {"tensor": 2, "accelerator": AMD})
    )
    assert alone.facts == ()
    assert [fact.value for fact in two.facts] == ["NVLink"]
    told = dict(two.inputs)
    parts = (told[f"{name}_bytes"] for name in ("kernels", "links", "all_reduce_workspace"))
    assert two.amount.expected == sum(int(part) for part in parts)
    assert (told["tensor_parallel_size"], told["links"], told["nccl"]) == (2, "NVLink", "before the snapshot")
    assert dict(foreign.inputs)["links"] == "not known"
    stated = new_run(accelerator=AMD, tensor=2, circumstances=Circumstances(links="pcie"))
    assert dict(non_torch(stated).inputs)["links"] == "PCIe"
    assert dict(non_torch(new_run(version="0.10.2")).inputs)["nccl"] == "counted"
    experts = {"shape": EXPERTS, "data": 8, "expert": True, "all_to_all": "deepep_high_throughput"}
    exchange = non_torch(new_run(**experts))
    assert exchange.formula.endswith(" + all_to_all")
    assert dict(exchange.inputs)["all_to_all_bytes"] == GIB
    assert "all_to_all" not in two.formula


@table(
    ("accelerator", "version", "cut", "expected"),
    [
        (HOPPER, "0.33.0", {}, plus(fitted.SLACK_CONTEXT)),
        (HOPPER, "0.33.0", {"tensor": 2}, plus(fitted.SLACK_CONTEXT, fitted.SLACK_NVLINK)),
        (HOPPER, "0.33.0", {"pipeline": 2}, plus(fitted.SLACK_CONTEXT, fitted.SLACK_NVLINK)),
        (LINKLESS, "0.33.0", {"tensor": 2}, plus(fitted.SLACK_CONTEXT, fitted.SLACK_PCIE)),
        (HOPPER, "0.33.0", {"data": 2}, plus(fitted.SLACK_CONTEXT)),
        (HOPPER, "0.10.2", {"tensor": 2}, plus(fitted.SLACK_CONTEXT)),  # NCCL starts after the snapshot
        (HOPPER, "0.11.0", {"tensor": 2}, plus(fitted.SLACK_CONTEXT, fitted.SLACK_NVLINK)),
        (AMD, "0.33.0", {"tensor": 2}, plus(fitted.SLACK_ELSEWHERE)),
        (INTEL, "0.33.0", {}, plus(fitted.SLACK_ELSEWHERE)),
        (new_accelerator(unified_memory=True), "0.33.0", {"tensor": 2}, plus(fitted.SLACK_UNIFIED)),
    ],
)
def test_what_is_gone_before_the_start(
    accelerator: Accelerator, version: str, cut: dict[str, int], expected: Interval
) -> None:
    assert startup_slack(accelerator, accounting_of(version), Parallelism(**cut)) == expected
