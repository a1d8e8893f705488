"""Memory of the host of an InferenceDeployment: what is compared, what is rendered, and what is requested."""

from typing import Any

import pytest

from kvgate.api.v1alpha1 import InferenceDeploymentSpec
from kvgate.api.validation import parse_document
from kvgate.budget.ground.units import GIB
from kvgate.judgement.assess import host_ledger_of
from kvgate.statement.deployment import memory_request_bytes, pod_of, shared_memory_bytes, statement_of
from support.builders import new_document


def spec_of(**spec: Any) -> InferenceDeploymentSpec:
    return parse_document(new_document(**spec)).spec


def shared(spec: InferenceDeploymentSpec, vendor: str = "nvidia") -> int:
    return shared_memory_bytes(spec, host_ledger_of(statement_of(spec), vendor))


@pytest.mark.parametrize(
    ("vllm", "expected"),
    [
        ({}, 1),
        ({"tensorParallelSize": 2}, 10),
        ({"tensorParallelSize": 8}, 16),
        ({"extraArgs": ["--kv-offloading-size=40"]}, 41),
        ({"extraArgs": ["--kv-offloading-size=40"], "version": "0.26.0"}, 1),
        ({"extraArgs": ["--kv-offloading-size=40"], "dataParallelSize": 2}, 90),
    ],
)
def test_shared_memory_is_as_large_as_what_is_kept_there(vllm: dict[str, Any], expected: int) -> None:
    assert shared(spec_of(vllm=vllm)) == expected * GIB


def test_the_pod_of_another_vendor_keeps_blocks_in_the_ranks() -> None:
    assert shared(spec_of(vllm={"extraArgs": ["--kv-offloading-size=40"]}), "amd") == GIB


def test_a_variable_moves_blocks_out_of_shared_memory() -> None:
    env = [{"name": "VLLM_USE_SIMPLE_KV_OFFLOAD", "value": "1"}]
    assert shared(spec_of(vllm={"extraArgs": ["--kv-offloading-size=40"]}, template={"env": env})) == GIB


@pytest.mark.parametrize(
    ("arguments", "expected"), [([], 3), (["--kv-offloading-size=40"], 43), (["--cpu-offload-gb=7.5"], 11)]
)
def test_a_pod_requests_what_it_is_expected_to_take_in_whole_gib(arguments: list[str], expected: int) -> None:
    ledger = host_ledger_of(statement_of(spec_of(vllm={"extraArgs": arguments})), "nvidia")
    assert ledger is not None
    assert memory_request_bytes(ledger) == expected * GIB


def test_lmcache_of_the_spec_counts_in_every_rank() -> None:
    env = [{"name": "LMCACHE_MAX_LOCAL_CPU_SIZE", "value": "20"}]
    connector = '--kv-transfer-config={"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
    vllm = {"tensorParallelSize": 2, "extraArgs": [connector]}
    ledger = host_ledger_of(statement_of(spec_of(vllm=vllm, template={"env": env})), "nvidia")
    assert ledger is not None
    assert next(line.amount.expected for line in ledger.lines if line.name == "kv_offload") == 40 * GIB


@pytest.mark.parametrize(("ranks", "links"), [(1, 1), (2, 10), (4, 10), (5, 10), (6, 12), (8, 16)])
def test_links_grow_with_the_ranks_of_a_pod(ranks: int, links: int) -> None:
    spec = spec_of(vllm={"tensorParallelSize": ranks}, template={"resources": {"limits": {"memory": "64Gi"}}})
    assert pod_of(spec).added_bytes == links * GIB == shared_memory_bytes(spec, None)


def test_the_limit_of_the_spec_and_what_kvgate_adds_to_it() -> None:
    limits = {"resources": {"limits": {"memory": "64Gi"}}}
    pod = pod_of(spec_of(template=limits, vllm={"tensorParallelSize": 4}))
    assert (pod.limit_bytes, pod.added_bytes, pod.shm_bytes) == (64 * GIB, 10 * GIB, None)
    assert pod_of(spec_of(template={"resources": {"requests": {"memory": "64Gi"}}})).limit_bytes is None


def test_a_release_that_is_not_known_has_no_ledger() -> None:
    assert host_ledger_of(statement_of(spec_of(vllm={"version": "12345678901.1"})), "nvidia") is None
