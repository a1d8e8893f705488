"""Engines of one input that see the same GPU: which ones do, what is said of them, and of claims that limit nothing."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.budget import Verdict
from kvgate.findings.finding import Severity
from kvgate.manifests import read_manifests
from kvgate.manifests.engines import find_engines
from kvgate.manifests.judging.engine_budget import Defaults
from kvgate.manifests.judging.judgement import JudgedEngine, judge_engine
from kvgate.manifests.judging.sharing import judge_together

IMAGE = "vllm/vllm-openai:v0.32.0"
MODEL = "--model=Qwen/Qwen3-0.6B --max-model-len=4096 --max-num-seqs=4"
RULES = ("SharedGpuOverbooked", "SharedGpuStartOrder")


def judged(folder: Path, *documents: Any, gpu: str | None = "L4-24GB") -> list[JudgedEngine]:
    (folder / "x.yaml").write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    engines = find_engines(read_manifests([str(folder)])).engines
    return judge_together([judge_engine(engine, Defaults(accelerator=gpu)) for engine in engines])


def services(folder: Path, gpu: str | None = "L4-24GB", **services: Any) -> dict[str, JudgedEngine]:
    document = {"services": {name: {"image": IMAGE, **service} for name, service in services.items()}}
    return {each.engine.name: each for each in judged(folder, document, gpu=gpu)}


def service(share: str = "", *, ids: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """A small model with this share of the GPUs 0, or of those with these names."""
    command = f"{MODEL} --gpu-memory-utilization={share}" if share else MODEL
    return {"command": command, "gpus": [{"device_ids": ids or ["0"]}], **more}


def told(engine: JudgedEngine) -> list[str]:
    found = [each.finding for each in engine.findings if each.finding.rule.id in RULES]
    return [f"{each.severity.value} {each.rule}" for each in found]


BOOKED, TIGHT, ORDER = "error SharedGpuOverbooked", "warning SharedGpuOverbooked", "warning SharedGpuStartOrder"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (service("0.7"), service("0.7")),
        (service("0.7"), service("0.7", gpus="all")),
        (service("0.7"), service("0.7", gpus=1)),
        (service("0.7"), service("0.7", gpus=[{"count": 2}])),
        (service("0.7"), service("0.7", gpus=[{"count": "all"}])),
        (service("0.7"), service("0.7", gpus=None, runtime="nvidia", environment={"NVIDIA_VISIBLE_DEVICES": "0"})),
        (service("0.7", ids=["3"]), service("0.7", ids=["1", "3"], environment=["CUDA_VISIBLE_DEVICES=1"])),
        (service("0.7", ids=["GPU-ab12"]), service("0.7", ids=["GPU-ab12"])),
        (service("0.7"), service("0.7", gpus=None, runtime="nvidia")),  # the image says that all GPUs are visible
        (service("0.7", ids=["0,1"], environment=["CUDA_VISIBLE_DEVICES=1"]), service("0.7", ids=["1"])),
        (service(), service()),
    ],
)  # fmt: skip
def test_services_that_see_the_same_gpu_of_the_host_are_judged_together(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    found = services(tmp_path, first=first, second=second)
    for engine in found.values():
        assert told(engine) == [BOOKED]
        assert engine.verdict is Verdict.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (service("0.7"), service("0.7", ids=["1"])),
        (service("0.7"), service("0.7", gpus=[{"count": 2}], environment=["CUDA_VISIBLE_DEVICES=1"])),
        (service("0.7"), service("0.7", ids=["GPU-ab12"])),  # nobody knows whether that is GPU 0
        (service("0.7"), service("0.7", ids=["${GPU}"])),
        (service("0.7"), service("0.7", gpus=[{"count": 2}], environment=["CUDA_VISIBLE_DEVICES=7"])),
        (service("0.7"), {"command": MODEL}),
        (
            service("0.7"),
            {"command": MODEL, "environment": {"NVIDIA_VISIBLE_DEVICES": "0"}},
        ),  # another runtime shows it nothing
        (service("0.7", profiles=["a"]), service("0.7", profiles=["b"])),
        (service("0.7"), service("0.7", scale=0)),
    ],
)
def test_services_on_other_gpus_or_never_at_the_same_time_are_not(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    assert [told(engine) for engine in services(tmp_path, first=first, second=second).values()] == [[], []]


def test_a_service_that_only_a_profile_starts_is_no_certain_neighbour(tmp_path: Path) -> None:
    found = services(tmp_path, always=service("0.7"), sometimes=service("0.7", profiles=["a"]))
    assert told(found["always"]) == told(found["sometimes"]) == [TIGHT]
    assert found["always"].verdict is Verdict.MAY_NOT_FIT


def test_replicas_of_a_service_are_neighbours(tmp_path: Path) -> None:
    (found,) = services(tmp_path, twin=service("0.7", deploy={"replicas": 2})).values()
    assert told(found) == [BOOKED]
    (alone,) = services(tmp_path, twin=service("0.7", deploy={"replicas": 1})).values()
    assert told(alone) == []


def test_two_engines_on_the_same_pair_of_gpus_are_told_once(tmp_path: Path) -> None:
    command = f"{MODEL} -tp 2 --gpu-memory-utilization=0.7"
    pair = {"command": command, "gpus": [{"device_ids": ["0", "1"]}], "ipc": "host"}
    found = services(tmp_path, first=pair, second=pair)
    assert [told(engine) for engine in found.values()] == [[BOOKED], [BOOKED]]


def test_one_of_several_gpus_is_enough(tmp_path: Path) -> None:
    pair = {
        "command": f"{MODEL} -tp 2 --gpu-memory-utilization=0.7",
        "gpus": [{"device_ids": ["1", "2"]}],
        "ipc": "host",
    }
    found = services(tmp_path, first=service("0.7"), second=service("0.7", ids=["2"]), pair=pair)
    assert told(found["first"]) == []
    assert told(found["second"]) == told(found["pair"]) == [BOOKED]


HEALTHY = {"healthcheck": {"test": ["CMD", "true"]}}


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({}, [ORDER]),
        ({"depends_on": ["first"]}, [ORDER]),
        ({"depends_on": {"first": {"condition": "service_started"}}}, [ORDER]),
        ({"depends_on": {"first": {"condition": "service_healthy"}}}, []),
    ],
)
def test_services_that_start_at_the_same_time_disturb_each_other(
    tmp_path: Path, second: dict[str, Any], expected: list[str]
) -> None:
    found = services(tmp_path, first=service("0.4", **HEALTHY), second=service("0.4", **second))
    assert told(found["first"]) == expected
    assert told(found["second"]) == []
    assert found["second"].verdict is Verdict.FITS


@pytest.mark.parametrize(("waits", "expected"), [("chat", []), ("embed", [ORDER])])
def test_an_order_that_works_and_is_declared_is_not_told(tmp_path: Path, waits: str, expected: list[str]) -> None:
    """A model without caches wants its share free at the start, and then holds little: it has to go first."""
    command = "--model=BAAI/bge-m3 --gpu-memory-utilization=0.5"
    healthy = {"healthcheck": {"test": ["CMD", "true"]}}
    both = {"chat": {**service("0.5"), **healthy}, "embed": {**service("0.5"), "command": command, **healthy}}
    other = "embed" if waits == "chat" else "chat"
    both[waits]["depends_on"] = {other: {"condition": "service_healthy"}}
    found = services(tmp_path, **both)
    assert [*told(found["chat"]), *told(found["embed"])] == expected


def test_a_wait_through_others_counts_and_two_that_wait_for_one_start_together(tmp_path: Path) -> None:
    def after(name: str) -> dict[str, Any]:
        return {"depends_on": {name: {"condition": "service_healthy"}}, **HEALTHY}

    chain = services(
        tmp_path, a=service("0.25", **HEALTHY), b=service("0.25", **after("a")), c=service("0.25", **after("b"))
    )
    assert [told(each) for each in chain.values()] == [[], [], []]
    fork = services(
        tmp_path, a=service("0.25", **HEALTHY), b=service("0.25", **after("a")), c=service("0.25", **after("a"))
    )
    assert told(fork["a"]) == [ORDER]


def test_without_a_gpu_the_shares_alone_are_told(tmp_path: Path) -> None:
    found = services(tmp_path, None, first=service("0.7"), second=service())  # vLLM's default is 0.92
    assert [told(engine) for engine in found.values()] == [[TIGHT], [TIGHT]]
    message = next(each.finding.message for each in found["first"].findings if each.finding.rule.id == RULES[0])
    assert "add up to 1.62" in message
    assert all(
        told(engine) == [] for engine in services(tmp_path, None, first=service("0.5"), second=service("0.4")).values()
    )


def test_options_that_nobody_sees_make_it_a_warning(tmp_path: Path) -> None:
    open_one = service(
        "0.7", entrypoint=["sh", "-c"], command=[f"vllm serve {MODEL[8:]} --gpu-memory-utilization=0.7 $$MORE"]
    )
    found = services(tmp_path, first=open_one, second=service("0.7"))
    assert told(found["second"]) == [TIGHT]


# ── pods ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def container(name: str, share: str, **more: Any) -> dict[str, Any]:
    args = [*MODEL.split(), f"--gpu-memory-utilization={share}"]
    return {"name": name, "image": IMAGE, "args": args, "resources": {"claims": [{"name": "gpu"}]}, **more}


def pod(name: str, *containers: Any, claim: str = "", **spec: Any) -> dict[str, Any]:
    reference = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": "template"}
    spec = {"containers": list(containers), "resourceClaims": [{"name": "gpu", **reference}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "serving"}, "spec": spec}


def test_containers_of_a_pod_share_its_claim(tmp_path: Path) -> None:
    found = judged(tmp_path, pod("x", container("a", "0.7"), container("b", "0.7")))
    assert [told(each) for each in found] == [[BOOKED], [BOOKED]]
    other = pod("x", container("a", "0.7"), container("b", "0.7", resources={"claims": [{"name": "own"}]}))
    other["spec"]["resourceClaims"].append({"name": "own", "resourceClaimTemplateName": "template"})
    assert [told(each) for each in judged(tmp_path, other)] == [[], []]


def test_a_claim_is_shared_between_pods_and_a_template_is_not(tmp_path: Path) -> None:
    shared = [pod(name, container("a", "0.7"), claim="one") for name in ("x", "y")]
    assert [told(each) for each in judged(tmp_path, *shared)] == [[BOOKED], [BOOKED]]
    apart = [pod(name, container("a", "0.7")) for name in ("x", "y")]
    assert [told(each) for each in judged(tmp_path, *apart)] == [[], []]
    shared[1]["metadata"]["namespace"] = "other"
    assert [told(each) for each in judged(tmp_path, *shared)] == [[], []]


def test_versions_of_one_object_never_meet(tmp_path: Path) -> None:
    def pod(name: str, share: str) -> dict[str, Any]:
        container = {
            "name": "vllm", "image": IMAGE, "args": [*MODEL.split(), f"--gpu-memory-utilization={share}"],
            "resources": {"claims": [{"name": "gpu"}]},
        }  # fmt: skip
        claims = [{"name": "gpu", "resourceClaimName": "one"}]
        spec = {"resourceClaims": claims, "containers": [container]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}

    assert [told(each) for each in judged(tmp_path, pod("chat", "0.9"), pod("chat", "0.8"))] == [[], []]
    with_another = judged(tmp_path, pod("chat", "0.9"), pod("chat", "0.8"), pod("embed", "0.9"))
    assert [told(each) for each in with_another] == [[TIGHT], [], [TIGHT]]


def test_services_that_may_be_on_other_hosts_or_gpus_are_no_certain_neighbours(tmp_path: Path) -> None:
    placed = {"deploy": {"placement": {"constraints": ["node.hostname == a"]}}}
    found = services(tmp_path, chat=service("0.7", **placed), embed=service("0.7"))
    assert told(found["embed"])[0] == TIGHT
    chat = service("0.7", gpus="all", environment=["NVIDIA_VISIBLE_DEVICES=0"])
    embed = service("0.7", gpus="all", environment=["NVIDIA_VISIBLE_DEVICES=1"])
    assert told(services(tmp_path, chat=chat, embed=embed)["chat"])[0] == TIGHT
    everything = service("0.7", gpus="all", environment=["NVIDIA_VISIBLE_DEVICES=all"])
    assert told(services(tmp_path, chat=everything, embed=service("0.7"))["chat"])[0] == BOOKED


def test_requests_of_one_claim_are_gpus_of_their_own(tmp_path: Path) -> None:
    def with_request(name: str) -> dict[str, Any]:
        return container(name, "0.7", resources={"claims": [{"name": "gpu", "request": name}]})

    assert [told(each) for each in judged(tmp_path, pod("x", with_request("a"), with_request("b")))] == [[], []]


def test_nobody_says_when_pods_start(tmp_path: Path) -> None:
    found = judged(tmp_path, *(pod(name, container("a", "0.4"), claim="one") for name in ("x", "y")))
    assert [told(each) for each in found] == [["info SharedGpuStartOrder"], []]
    together = judged(tmp_path, pod("x", container("a", "0.4"), container("b", "0.4")))
    assert told(together[0]) == [ORDER]


def test_a_sidecar_with_a_startup_probe_starts_before_the_others(tmp_path: Path) -> None:
    sidecar = container(
        "a", "0.4", restartPolicy="Always", startupProbe={"httpGet": {"port": 8000}, "failureThreshold": 200}
    )
    found = judged(tmp_path, pod("x", container("b", "0.4"), initContainers=[sidecar]))
    assert [told(each) for each in found] == [[], []]
    del sidecar["startupProbe"]
    assert told(judged(tmp_path, pod("x", container("b", "0.4"), initContainers=[sidecar]))[0]) == [ORDER]


def test_gpus_that_a_device_plugin_hands_out_are_each_containers_own(tmp_path: Path) -> None:
    own = {"limits": {"nvidia.com/gpu": 1}}
    found = judged(tmp_path, pod("x", container("a", "0.7", resources=own), container("b", "0.7", resources=own)))
    assert [told(each) for each in found] == [[], []]


def test_gpus_that_the_runtime_shows_are_shared_by_the_containers_of_a_pod(tmp_path: Path) -> None:
    shown = {"resources": {}, "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    found = judged(tmp_path, pod("x", container("a", "0.7", **shown), container("b", "0.7", **shown)))
    assert [told(each) for each in found] == [[BOOKED], [BOOKED]]


@pytest.mark.parametrize(
    ("annotations", "limits", "share", "expected"),
    [
        ({"gpu-fraction": "0.5"}, {}, "0.7", [TIGHT]),
        ({"gpu-fraction": "0.5"}, {}, "0.4", []),
        ({"gpu-memory": "8000"}, {}, "0.7", [TIGHT]),
        ({}, {"aliyun.com/gpu-mem": 10}, "0.7", [TIGHT]),
        ({}, {"aliyun.com/gpu-mem": 18}, "0.7", []),
        ({}, {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000}, "0.7", []),  # CUDA shows no more than that
        ({"gpu-fraction": "2"}, {}, "0.7", []),  # two whole GPUs
        ({"gpu-fraction": "half"}, {}, "0.7", []),
        ({"gpu-fraction": "1" * 40}, {}, "0.7", []),
    ],
)
def test_a_claim_that_limits_nothing_is_held_against_what_vllm_takes(
    tmp_path: Path, annotations: dict[str, str], limits: dict[str, Any], share: str, expected: list[str]
) -> None:
    document = pod("x", container("a", share, resources={"limits": limits}))
    document["metadata"]["annotations"] = annotations
    (found,) = judged(tmp_path, document)
    assert told(found) == expected
    assert found.verdict is (Verdict.MAY_NOT_FIT if expected else Verdict.FITS)


@pytest.mark.parametrize(
    ("limits", "memory_gib"),
    [
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}, 8),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}, 11.02),
        ({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 8192}, 8),
        ({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory-percentage": 50}, 11.02),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 81920}, 22.04),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": "many"}, 22.04),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 0}, 22.04),
    ],
)
def test_a_claim_that_cuda_shows_is_all_the_memory_there_is(
    tmp_path: Path, limits: dict[str, Any], memory_gib: float
) -> None:
    document = pod(
        "x", container("a", "0.9", resources={"limits": limits}), nodeSelector={"nvidia.com/gpu.product": "NVIDIA-L4"}
    )
    (found,) = judged(tmp_path, document)
    assert found.assessment is not None
    assert found.assessment.budget is not None
    assert found.assessment.budget.request.accelerator.memory_bytes / 2**30 == pytest.approx(memory_gib, abs=0.02)


def test_errors_name_both_engines_and_shares_that_would_work(tmp_path: Path) -> None:
    found = services(tmp_path, chat=service("0.7"), embed=service("0.7"))
    (finding,) = (each.finding for each in found["chat"].findings if each.finding.severity is Severity.ERROR)
    assert "chat (15.43 GiB requested) and embed (15.43 GiB requested) share GPU 0 of the host" in finding.message
    assert re.search(r"set --gpu-memory-utilization to 0\.4[0-9] for each", finding.remediation)


def test_engines_that_can_sleep_may_take_turns(tmp_path: Path) -> None:
    sleeper = service("0.7", command=f"{MODEL} --gpu-memory-utilization=0.7 --enable-sleep-mode")
    assert told(services(tmp_path, first=sleeper, second=service("0.7"))["second"]) == [TIGHT]


def test_a_file_with_very_many_services_is_judged_as_fast_as_it_is_read(tmp_path: Path) -> None:
    waits = {f"s{i}": {"depends_on": {f"s{i - 1}": {"condition": "service_healthy"}}, **HEALTHY} for i in range(1, 400)}
    many = {name: service("0.7", profiles=[name], **more) for name, more in {"s0": HEALTHY, **waits}.items()}
    found = services(tmp_path, always=service("0.7"), **many)
    messages = [each.finding.message for engine in found.values() for each in engine.findings]
    assert len(messages) < 4000
    assert max(map(len, messages)) < 1000


SCRIPT = "CUDA_VISIBLE_DEVICES={first} vllm serve Qwen/Qwen3-0.6B {more} & CUDA_VISIBLE_DEVICES={second} vllm serve Qwen/Qwen3-4B {more}"


@pytest.mark.parametrize(
    ("first", "second", "background", "expected"),
    [("0", "0", "&", [TIGHT]), ("0", "1", "&", []), ("0", "0", ";", []), ("0", "0", "&&", []), ("0", "0", "||", [])],
)
def test_several_starts_of_a_script_share_a_gpu_where_they_run_in_the_background(
    tmp_path: Path, first: str, second: str, background: str, expected: list[str]
) -> None:
    more = "--max-model-len=4096 --max-num-seqs=4 --gpu-memory-utilization=0.7"
    script = SCRIPT.format(first=first, second=second, more=more).replace(" & ", f" {background} ")
    resources = {"limits": {"nvidia.com/gpu": 2}}
    found = judged(
        tmp_path, pod("x", container("a", "0.7", command=["sh", "-c", script], args=[], resources=resources))
    )
    assert [told(each) for each in found] == [expected] * len(found)
    compose = {"x": {"entrypoint": ["sh", "-c"], "command": [script], "gpus": "all"}}
    both = judged(tmp_path, {"services": {name: {"image": IMAGE, **each} for name, each in compose.items()}})
    assert [told(each) for each in both] == [expected] * len(both)
