"""Pods that are replaced although nobody edited their objects: one first, halted where it fails, and then all, a few at a time."""

import json
from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from kvgate.calibration.keeping import shard_name, shard_of
from kvgate.calibration.records import write_records
from support.doors import running
from support.inference import Objects, inference_deployment
from support.starts import a_start

pytestmark = pytest.mark.cluster

OPTIONS = (
    "--resync-seconds=3600",
    "--observe-seconds=1",
    "--calibration=default/kvgate-calibration",
    "--max-replacing=2",
)
NAMES = [f"follows-{number}" for number in range(4)]
LESS, MORE = (a_start(error, max_num_seqs=12, vllm_version="0.33.0") for error in (-6, 1.2))
"""Starts after which kvgate renders a shorter, or a longer, maxModelLen."""
BY = "kvgate.io/replaced-by"


def write(plane: ControlPlane, start: Any) -> None:
    name = shard_name("kvgate-calibration", shard_of(""))
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}
    plane.kubectl("apply", "-f", "-", input=json.dumps({**document, "data": {"starts.jsonl": write_records((start,))}}))


def replaced(objects: Objects) -> list[str]:
    found = {name: objects.get("deployment", name)["metadata"]["annotations"] for name in NAMES}
    return [name for name in NAMES if BY in found[name]]


def the_first(objects: Objects) -> str:
    """The only one that is replaced; the others wait a moment before its Deployment is changed."""
    wait_until(lambda: replaced(objects), "the Deployment of the first is changed")
    (found,) = replaced(objects)
    return found


def test_one_goes_first_and_the_others_wait_for_it(plane: ControlPlane) -> None:
    objects = Objects(plane=plane)
    admission = {"policy": "Adjust", "adjust": {"knobs": ["MaxModelLen"]}, "recalibrate": True}
    write(plane, LESS)
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig):
        plane.apply(*(inference_deployment(name, vllm={"maxNumSeqs": 12}, admission=admission) for name in NAMES))
        for name in NAMES:
            objects.wait_for(name, "Ready", "True")
    templates = {name: objects.get("deployment", name)["spec"]["template"] for name in NAMES}
    write(plane, MORE)
    plane.kubectl("cordon", "gpu-0")
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig) as door:
        wait_until(lambda: door.count_of('kvgate_replacements{state="waiting"}') == len(NAMES) - 1, "the others wait")
        canary = the_first(objects)
        others = [name for name in NAMES if name != canary]
        for name in others:
            assert canary in objects.wait_for(name, "ReplacementPending", "True", "CanaryFirst")
            assert objects.condition(name, "Ready")[0] == "True"
        plane.kubectl("scale", "infd", others[0], "--replicas=2")
        wait_until(lambda: objects.get("deployment", others[0])["spec"]["replicas"] == 2, "who waits is scaled")
        assert objects.get("deployment", others[0])["spec"]["template"] == templates[others[0]]
        plane.kubectl("scale", "infd", others[0], "--replicas=1")
    with running(
        "controller", *OPTIONS, kubeconfig=plane.kubeconfig
    ) as door:  # the next one knows it from the Deployments
        wait_until(lambda: door.count_of('kvgate_replacements{state="waiting"}') == len(others), "they wait again")
        assert replaced(objects) == [canary]
        (pod,) = [pod for pod in objects.pods(canary) if not pod["spec"].get("nodeName")]
        waiting = {"reason": "ImagePullBackOff", "message": 'failed to pull image "vllm/vllm-openai:v0": not found'}
        container = {
            "name": "vllm",
            "image": "x",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"waiting": waiting},
        }
        conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]
        status = json.dumps({"status": {"conditions": conditions, "containerStatuses": [container]}})
        plane.kubectl("patch", "pod", pod["metadata"]["name"], "--subresource=status", "-p", status)
        for name in others:
            message = objects.wait_for(name, "ReplacementPending", "True", "ReplacementHalted")
            assert f"default/{canary} did not become ready" in message
        objects.wait_for_event(others[0], ("Warning", "ReplacementHalted"))
        assert door.count_of('kvgate_replacements{state="failed"}') == 1
        assert replaced(objects) == [canary]
        plane.kubectl("uncordon", "gpu-0")
        plane.kubectl("delete", "pod", pod["metadata"]["name"])
        wait_until(lambda: replaced(objects) == NAMES, "once it is ready the others follow")
        for name in NAMES:
            objects.wait_for(name, "Ready", "True")
            assert objects.get("deployment", name)["spec"]["template"] != templates[name]
        for name in others:
            objects.wait_for(name, "ReplacementPending", "False")
        wait_until(lambda: door.count_of('kvgate_replacements{state="ready"}') == len(NAMES), "all are counted")
