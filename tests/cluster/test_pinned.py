"""A pinned capacity on a real control plane: argv, status and metrics, what runs, and what never moves by itself."""

from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import ControlPlaneError, wait_until
from fleet.fake_vllm import Engine, serving
from kvgate.calibration.keeping import shard_name, shard_of
from kvgate.rendering.workload import PORT
from support.doors import Door, running
from support.inference import Objects, inference_deployment, without_times

pytestmark = pytest.mark.cluster

OPTIONS = ("--metrics-host=127.0.0.1", "--observe-seconds=1", "--resync-seconds=2", "--calibration=default/starts")
BLOCK_SIZE = 16
PINNED = {"capacity": "Pinned"}
GUARANTEES_TOO_MUCH = {"vllm": {"maxModelLen": 40960, "maxNumSeqs": 64}}


def args(objects: Objects, name: str) -> list[str]:
    (container,) = objects.get("deployment", name)["spec"]["template"]["spec"]["containers"]
    found: list[str] = container["args"]
    return found


def pinned(objects: Objects, name: str, **spec: Any) -> dict[str, Any]:
    """What its status says is pinned, once its pods are ready."""
    objects.plane.apply(inference_deployment(name, admission=PINNED, **spec))
    objects.wait_for(name, "Ready", "True")
    found: dict[str, Any] = objects.get("infd", name)["status"]["budget"]["pinned"]
    return found


def reporting(objects: Objects, name: str, blocks: int):  # type: ignore[no-untyped-def]  # noqa: ANN201 - as `serving`
    engine = Engine(num_gpu_blocks=blocks, block_size=BLOCK_SIZE, vllm_version="0.33.0")
    return serving(engine, *((pod["status"]["podIP"], PORT) for pod in objects.pods(name)))


def series(name: str, **labels: str) -> str:
    owner = {"namespace": "default", "inferencedeployment": "chat", **labels}
    told = ",".join(f'{key}="{value}"' for key, value in owner.items())
    return f"{name}{{{told}}}"


def test_a_pinned_size_moves_with_its_spec_alone(plane: ControlPlane) -> None:
    """Neither a restart of the controller, nor observed starts of the same setting, nor scaling.

    The test comes first, while no other controller runs.
    """
    objects = Objects(plane=plane)
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig):
        found, argv = pinned(objects, "still"), args(objects, "still")
        before = without_times(objects.get("infd", "still")["status"])
        plane.apply(inference_deployment("teacher"))
        objects.wait_for("teacher", "Ready", "True")
        expected = objects.get("infd", "teacher")["status"]["budget"]["capacityTokens"] // BLOCK_SIZE
        with reporting(objects, "teacher", expected * 90 // 100):
            wait_until(
                lambda: objects.find("configmap", shard_name("starts", shard_of("default"))) is not None,
                "a profiled start is learnt",
            )
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig):
        plane.kubectl("scale", "infd", "still", "--replicas=2")
        wait_until(lambda: objects.get("deployment", "still")["spec"]["replicas"] == 2, "scaling works")
        objects.wait_for("still", "Ready", "True")
        after = objects.get("infd", "still")["status"]
        assert after["budget"] == before["budget"]
        assert after["budget"]["pinned"] == found
        assert args(objects, "still") == argv


def test_every_replica_gets_the_size_that_the_status_and_the_metrics_say(objects: Objects, door: Door) -> None:
    objects.plane.apply(inference_deployment("measured"))
    profiled = (
        objects.wait_for("measured", "Accepted", "True", "Fits") and objects.get("infd", "measured")["status"]["budget"]
    )
    found = pinned(objects, "chat", replicas=2)
    assert f"--kv-cache-memory-bytes={found['kvCacheBytes']}" in args(objects, "chat")
    commands = {tuple(pod["spec"]["containers"][0]["args"]) for pod in objects.pods("chat")}
    assert commands == {tuple(args(objects, "chat"))}, "equal on every replica"
    status = objects.get("infd", "chat")["status"]
    assert status["effective"]["kvCacheMemoryBytes"] == found["kvCacheBytes"]
    assert found["profiledKvCacheBytes"] == profiled["availableKvCacheBytes"]
    assert found["kvCacheBytes"] <= profiled["availableKvCacheBytes"]["low"] - 150 * 2**20
    assert found["forgoneTokens"] == profiled["capacityTokens"] - found["capacityTokens"]
    assert f"({found['capacityTokens']} tokens)" in objects.condition("chat", "Accepted")[2]
    wide = objects.plane.kubectl("get", "infd", "chat", "-o", "wide").stdout
    assert "CAPACITY" in wide
    assert "Pinned" in wide

    wait_until(
        lambda: door.count_of(series("kvgate_pinned_kv_cache_tokens")) == found["capacityTokens"], "the metrics follow"
    )
    assert door.count_of(series("kvgate_forgone_kv_cache_bytes")) == found["forgoneBytes"]
    for bound in ("low", "expected", "high"):
        assert door.count_of(series("kvgate_kv_cache_capacity_tokens", bound=bound)) == found["capacityTokens"]
    assert not door.has('kvgate_pinned_kv_cache_tokens{namespace="default",inferencedeployment="measured"}')

    with reporting(objects, "chat", found["numBlocks"]):
        message = objects.wait_for("chat", "PredictionDrift", "False", "WithinTolerance")
        assert f"kvgate expects {found['capacityTokens']:,}: +0.0 %" in message
        wait_until(lambda: door.has(series("kvgate_prediction_error_ratio")), "the error is a metric")
        assert door.count_of(series("kvgate_prediction_error_ratio")) == 0
    with reporting(objects, "chat", found["numBlocks"] - 1):
        wait_until(lambda: objects.condition("chat", "PredictionDrift")[0] == "True", "one block less is a difference")
    told = f"{found['numBlocks'] - 1:,} blocks of 16 tokens, and {found['numBlocks']:,} are pinned"
    assert told in objects.condition("chat", "PredictionDrift")[2]
    objects.wait_for_event("chat", ("Warning", "CapacityDiffers"))
    starts = objects.find("configmap", shard_name("starts", shard_of("default")))
    assert starts is None or "default/chat" not in starts["data"]["starts.jsonl"], (
        "nothing is learnt from a pinned start"
    )


def test_a_release_without_the_option_gets_blocks(objects: Objects) -> None:
    found = pinned(objects, "older", vllm={"maxNumSeqs": 4, "version": "0.9.2"})
    assert f"--num-gpu-blocks-override={found['numBlocks']}" in args(objects, "older")
    assert not any(argument.startswith("--kv-cache-memory") for argument in args(objects, "older"))


def test_the_api_server_refuses_two_sizes_and_names_both(objects: Objects) -> None:
    vllm = {"maxNumSeqs": 4, "kvCacheMemoryBytes": 20_000_000_000}
    with pytest.raises(ControlPlaneError) as refused:
        objects.plane.apply(inference_deployment("twice", vllm=vllm, admission=PINNED))
    assert "admission.capacity Pinned and vllm.kvCacheMemoryBytes both set the size" in str(refused.value)
    with pytest.raises(ControlPlaneError) as refused:
        objects.plane.apply(inference_deployment("word", admission={"capacity": "Reserved"}))
    assert 'supported values: "Profiled", "Pinned"' in str(refused.value)


def test_what_the_low_end_does_not_hold_is_refused_and_the_last_pinned_spec_runs_on(objects: Objects) -> None:
    before = pinned(objects, "kept")
    argv = args(objects, "kept")
    objects.plane.apply(inference_deployment("kept", admission=PINNED, **GUARANTEES_TOO_MUCH))
    message = objects.wait_for("kept", "Accepted", "False", "BudgetExceeded")
    assert "spec.admission.capacity Pinned gives it" in message or "capacity Pinned gives it" in message
    figures = objects.record("kept")["figures"]
    assert figures["pinnedBytes"]["expected"] == before["kvCacheBytes"]
    assert args(objects, "kept") == argv
