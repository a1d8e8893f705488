"""One observed start on a real control plane: the next verdict follows it, its own never does, and people's edits are kept."""

import json

import pytest

from controlplane import ControlPlane
from fake_vllm import Engine, serving
from kvgate.calibration import read_records
from kvgate.rendering.pod import PORT
from programs import wait_until
from support.doors import running
from support.inference import Objects, inference_deployment

pytestmark = pytest.mark.cluster

CONFIG_MAP = "kvgate-calibration"
OPTIONS = ("--observe-seconds=1", f"--calibration=default/{CONFIG_MAP}")
BLOCK_SIZE = 16


def pods(objects: Objects, name: str) -> dict[str, str]:
    """Names and addresses."""
    found = objects.plane.kubectl("get", "pods", "-l", f"kvgate.io/inferencedeployment={name}", "-o", "json")
    return {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in json.loads(found.stdout)["items"]}


def expected_blocks(objects: Objects, name: str) -> int:
    objects.plane.apply(inference_deployment(name))
    objects.wait_for(name, "Ready", "True")
    return int(objects.get("infd", name)["status"]["budget"]["capacityTokens"]) // BLOCK_SIZE


def reporting(objects: Objects, name: str, num_gpu_blocks: int):  # type: ignore[no-untyped-def]  # noqa: ANN201 - as `serving`
    engine = Engine(num_gpu_blocks=num_gpu_blocks, block_size=BLOCK_SIZE, vllm_version="0.33.0")
    return serving(engine, *((ip, PORT) for ip in pods(objects, name).values()))


def kept(objects: Objects) -> str:
    found = objects.plane.kubectl("get", "configmap", CONFIG_MAP, "-o", "json", check=False)
    return str(json.loads(found.stdout)["data"]["starts.jsonl"]) if found.returncode == 0 else ""


def test_one_observed_start_makes_the_next_prediction_exact_and_leaves_its_own_alone(plane: ControlPlane) -> None:
    objects = Objects(plane=plane)
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig) as door:
        blocks = expected_blocks(objects, "first")
        observed, first_pods = blocks * 92 // 100, pods(objects, "first")
        with reporting(objects, "first", observed):
            assert "-8.0 %" in objects.wait_for("first", "PredictionDrift", "True")
            wait_until(lambda: kept(objects), "the start is in the ConfigMap")
            (start,) = read_records(kept(objects)).starts
            assert start.source.startswith("default/first, ")
            assert expected_blocks(objects, "second") == observed
            budget = objects.get("infd", "second")["status"]["budget"]
            assert budget["observedStarts"] == 1
            width = budget["availableKvCacheBytes"]
            with reporting(objects, "second", observed):
                objects.wait_for("second", "PredictionDrift", "False", "WithinTolerance")
                assert door.count_of('kvgate_calibration_starts{state="used"}') == 1
        before = objects.get("infd", "first")["status"]["budget"]
        narrow, wide = (each["high"] - each["low"] for each in (width, before["availableKvCacheBytes"]))
        assert narrow < wide
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig), reporting(objects, "first", observed):
        assert "-8.0 %" in objects.wait_for("first", "PredictionDrift", "True")
        assert objects.get("infd", "first")["status"]["budget"] == before, "a verdict stands for its generation"
        assert pods(objects, "first") == first_pods, "and no engine is restarted"
        assert expected_blocks(objects, "third") == observed, "the ConfigMap survives a restart"


def test_a_config_map_that_somebody_broke_is_told_where_it_matters_and_stays_as_it_is(plane: ControlPlane) -> None:
    objects = Objects(plane=plane)
    broken = kept(objects) + "oops\n"
    patch = json.dumps({"data": {"starts.jsonl": broken}})
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig) as door:
        plane.kubectl("patch", "configmap", CONFIG_MAP, "--type=merge", "-p", patch)
        objects.plane.apply(inference_deployment("fourth", vllm={"maxNumSeqs": 3}))
        objects.wait_for("fourth", "Ready", "True")
        blocks = int(objects.get("infd", "fourth")["status"]["budget"]["capacityTokens"]) // BLOCK_SIZE
        with reporting(objects, "fourth", blocks * 92 // 100):
            message = objects.wait_for("fourth", "PredictionDrift", "True")
        assert f"not remembered: ConfigMap default/{CONFIG_MAP}, key starts.jsonl, line 3: no JSON object" in message
        assert door.count_of('kvgate_calibration_starts{state="unreadable"}') == 1
        assert door.count_of('kvgate_calibration_starts{state="used"}') == 1, "the other line is used"
    assert kept(objects) == broken
