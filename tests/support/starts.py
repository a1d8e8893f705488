"""Observed starts that left so much more than was predicted, or less."""

from msgspec.structs import replace

from kvgate.budget.answers.answer import plan
from kvgate.budget.ground.units import gib
from kvgate.budget.observed.starts import GpuAtStart, ObservedStart, Origin
from kvgate.calibration.observed import start_of_bytes
from kvgate.judgement.what_if import read_request

ASKED = {"model": "Qwen/Qwen3-8B", "gpu": "H100-SXM-80GB", "vllm_version": "0.33.0", "max_num_seqs": 64}


def a_start(error_gib: float = -0.5, **changes: object) -> ObservedStart:
    """Of a setting that the changes make of ASKED."""
    request, _ = read_request({**ASKED, **changes})
    assert request is not None
    budget = plan(request)
    assert budget.tightest is not None
    start = start_of_bytes(budget, budget.tightest.available.expected + gib(error_gib), source="serving/a")
    assert start is not None
    return start


IMAGE = "docker.io/vllm/vllm-openai@sha256:" + "1" * 64


def a_pods_start(
    error_gib: float,
    pod: str,
    *,
    owner: str | None = None,
    namespace: str = "serving",
    image: str = IMAGE,
    gpu_at_start: GpuAtStart = GpuAtStart.EMPTY,
    node: str | None = None,
    **changes: object,
) -> ObservedStart:
    """As the controller records what a pod reported; each has an owner and a node of its own unless one is given."""
    return replace(
        a_start(error_gib, **changes), origin=Origin.POD, namespace=namespace, pod=pod, image=image, gpu_at_start=gpu_at_start,
        owner=f"owner-of-{pod}" if owner is None else owner, node=f"node-of-{pod}" if node is None else node,
    )  # fmt: skip
