"""What a controller that starts makes of what stands in the status: it keeps what was admitted, and judges anew what cannot be."""

import json
from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from support.doors import running
from support.inference import Objects, inference_deployment, without_times

pytestmark = pytest.mark.cluster

OPTIONS = ("--resync-seconds=1", "--observe-seconds=1")


@pytest.fixture(scope="module")
def objects(plane: ControlPlane) -> Objects:
    return Objects(plane=plane)


def ended(objects: Objects, name: str, *, refused: bool = False) -> dict[str, Any]:
    """Admitted, edited to what is refused if so asked, and its controller ended; the status when it was admitted."""
    with running("controller", *OPTIONS, kubeconfig=objects.plane.kubeconfig):
        objects.plane.apply(inference_deployment(name))
        objects.wait_for(name, "Ready", "True")
        objects.wait_for(name, "Observed", "False", "PodUnreachable")  # nothing changes by itself any more
        status: dict[str, Any] = objects.get("infd", name)["status"]
        if refused:
            objects.patch(name, {"spec": {"vllm": {"maxNumSeqs": 64}}})
            objects.wait_for(name, "Accepted", "False", "BudgetExceeded")
    return status


def test_an_admitted_spec_outlives_a_refused_one_and_a_restart(plane: ControlPlane, objects: Objects) -> None:
    status = ended(objects, "kept", refused=True)
    before = objects.get("deployment", "kept")["spec"]["template"]
    plane.kubectl("delete", "deployment", "kept")
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig):
        wait_until(lambda: objects.find("deployment", "kept"), "the Deployment is back")
        assert objects.get("deployment", "kept")["spec"]["template"] == before
        objects.patch("kept", {"spec": {"vllm": {"maxNumSeqs": 4}}})
        objects.wait_for("kept", "Accepted", "True", "Fits")
        after = objects.get("infd", "kept")["status"]
        assert objects.get("deployment", "kept")["spec"]["template"] == before
    assert after["budget"] == status["budget"]
    assert after["effective"] == status["effective"]


def test_a_restart_writes_nothing(plane: ControlPlane, objects: Objects) -> None:
    ended(objects, "quiet")
    written = len(objects.writes("quiet"))
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig) as door:
        wait_until(lambda: door.count("kvgate_kv_cache_capacity_tokens") > 0, "it has judged")
        objects.resync(3)
    assert len(objects.writes("quiet")) == written


def test_a_status_that_somebody_forged_while_nobody_watched_is_not_believed(
    plane: ControlPlane, objects: Objects
) -> None:
    status = ended(objects, "forged")
    forged = {"effective": {"maxNumSeqs": 64}, "admission": {"record": "another", "message": "it fits, believe me"}}
    patch = json.dumps({"status": {**forged, "budget": {"capacityTokens": 10**9}}})
    plane.kubectl("patch", "infd", "forged", "--subresource=status", "--type=merge", "-p", patch)
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig):
        wait_until(
            lambda: without_times(objects.get("infd", "forged")["status"]) == without_times(status), "it is right again"
        )
    assert (
        "--max-num-seqs=4" in objects.get("deployment", "forged")["spec"]["template"]["spec"]["containers"][0]["args"]
    )
