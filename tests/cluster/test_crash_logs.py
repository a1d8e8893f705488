"""Crash loops on a real control plane whose last words miss the cause; the log comes from the kubelet that kwok plays."""

from pathlib import Path

import pytest
import yaml

from controlplane.audit import AuditEvent
from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from fleet.doors import door
from kvgate.calibration.keeping import shard_name, shard_of
from support.crash_log import LOG, PROMPT, SENTENCE, crashed
from support.doors import running
from support.inference import CRD, Objects, crash, inference_deployment
from support.shared_plane import SharedPlane

pytestmark = pytest.mark.cluster

OPTIONS = ("--metrics-host=127.0.0.1", "--observe-seconds=1")
KINDS = "infd,events,deployments,replicasets,services,configmaps"


@pytest.fixture
def plane(shared_plane: SharedPlane) -> ControlPlane:
    """For each test as at the start: the last one changes the CRD, and logs are counted."""
    return shared_plane.as_at_the_start()


def ready(objects: Objects, name: str) -> dict[str, object]:
    """The InferenceDeployment with its one pod."""
    objects.plane.apply(inference_deployment(name))
    objects.wait_for(name, "Ready", "True")
    (pod,) = objects.pods(name)
    return pod


def reads(plane: ControlPlane, pod: str) -> list[AuditEvent]:
    return [event for event in plane.audit() if event.subresource == "log" and event.name == pod]


def test_a_log_is_read_once_and_nothing_but_the_refusal_is_seen_of_it_anywhere(
    plane: ControlPlane, tmp_path: Path
) -> None:
    objects, log = Objects(plane=plane), tmp_path / "log"
    with door("controller", log, *OPTIONS, "--metrics-port=0", f"--kubeconfig={plane.kubeconfig}"):
        unread = crash(plane, ready(objects, "unread"), crashed(), restarts=2)
        told = objects.wait_for("unread", "Stalled", "True", "EngineCrashed")
        assert "Engine core initialization failed" in told
        plane.write_container_log(LOG)
        refused = crash(plane, ready(objects, "refused"), crashed())
        told = objects.wait_for("refused", "Stalled", "True", "KVCacheTooSmall")
        assert told.startswith(f"pod {refused}: vLLM reports: {SENTENCE[:-1]}; kvgate expects ")
        objects.wait_for_event("refused", ("Warning", "KVCacheTooSmall"))
        objects.settle()
        assert [(event.verb, event.code) for event in reads(plane, unread)] == [("get", 400)]
        assert [(event.verb, event.code) for event in reads(plane, refused)] == [("get", 200)]
        written = plane.kubectl("get", KINDS, "--all-namespaces", "-o", "json").stdout
    logged = log.read_text(encoding="utf-8")
    assert f"the log of the crashed pod default/{unread} cannot be read: Rejected" in logged
    for text in (written, logged):
        assert PROMPT not in text
        assert "call_number_0" not in text, "nor anything else that only the log holds"


def test_a_refused_start_widens_the_next_verdict_and_leaves_its_own_alone(plane: ControlPlane) -> None:
    objects = Objects(plane=plane)
    plane.write_container_log(LOG.replace("(3.5 GiB)", "(50.0 GiB)").replace("5.62 GiB", "70.0 GiB"))
    with running("controller", *OPTIONS, "--calibration=default/starts", kubeconfig=plane.kubeconfig):
        pod = ready(objects, "first")
        predicted = available(objects, "first")
        crash(plane, pod, crashed())
        objects.wait_for("first", "Stalled", "True", "KVCacheTooSmall")
        wait_until(
            lambda: objects.find("configmap", shard_name("starts", shard_of("default"))), "the start is remembered"
        )
        assert "default/first, " in str(objects.get("configmap", shard_name("starts", shard_of("default")))["data"])
        assert "(refused to start)" in str(objects.get("configmap", shard_name("starts", shard_of("default")))["data"])
        ready(objects, "second")
        assert available(objects, "second") == {**predicted, "low": pytest.approx(50 << 30, rel=0.01)}
        assert predicted["low"] > 51 << 30
        assert available(objects, "first") == predicted


def available(objects: Objects, name: str) -> dict[str, int]:
    """Low, expected and high."""
    bounds: dict[str, int] = objects.get("infd", name)["status"]["budget"]["availableKvCacheBytes"]
    return bounds


def test_with_the_crd_of_an_older_release_the_metrics_and_the_pods_are_there_all_the_same(plane: ControlPlane) -> None:
    objects, crd = Objects(plane=plane), yaml.load(CRD.read_text(encoding="utf-8"), yaml.CSafeLoader)
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["budget"]
    plane.apply(crd)
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig) as controller:
        plane.apply(inference_deployment("newer"))
        wait_until(lambda: controller.has('inferencedeployment="newer"'), "its figures are served")
        wait_until(lambda: objects.find("deployment", "newer"), "its pods are rendered")
        objects.settle()
    written = {event.code for event in plane.audit() if event.resource == "inferencedeployments" and event.subresource}
    assert written == {200}, "the API server drops what the schema does not declare, and keeps the rest"
