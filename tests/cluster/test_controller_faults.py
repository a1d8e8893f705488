"""What goes wrong around the controller: rights that are missing, an API server that is gone, objects from another release."""

import copy
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.plane import ControlPlane
from controlplane.programs import PATIENCE_SECONDS, free_port, wait_until
from fleet.doors import KVGATE, answers, door
from kvgate.cluster.permissions import LEASE_RULES, RULES
from support.assets import require_assets
from support.doors import running
from support.inference import CRD, Objects, inference_deployment

pytestmark = pytest.mark.cluster
LOOPBACK = "--metrics-host=127.0.0.1"


@pytest.fixture(scope="module")
def objects(plane: ControlPlane) -> Objects:
    return Objects(plane=plane)


def role(name: str, *without: tuple[str, str]) -> dict[str, Any]:
    """The controller's rules, less some (resource, verb)."""
    rules = [
        {"apiGroups": [rule.group], "resources": [resource], "verbs": verbs}
        for rule in (*RULES, *LEASE_RULES)
        for resource in rule.resources
        if (verbs := [verb for verb in rule.verbs if (resource, verb) not in without])
    ]
    api = "rbac.authorization.k8s.io"
    return {"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}


def account(plane: ControlPlane, name: str, *without: tuple[str, str]) -> Path:
    """A kubeconfig with the controller's role, less some rights."""
    plane.apply(role(name, *without))
    plane.kubectl("create", "serviceaccount", name)
    plane.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--serviceaccount=default:{name}")
    return plane.kubeconfig_for(name)


def log_has(log: Path, *words: str) -> bool:
    return any(all(word in line for word in words) for line in log.read_text(encoding="utf-8").splitlines())


def test_the_declared_rights_are_enough(plane: ControlPlane, objects: Objects) -> None:
    with running("controller", LOOPBACK, "--resync-seconds=2", kubeconfig=account(plane, "enough")):
        plane.apply(inference_deployment("allowed"))
        objects.wait_for("allowed", "Ready", "True")
        wait_until(lambda: objects.events("allowed") == [("Normal", "Fits")], "the event is there alone")

        def num_lists() -> int:
            asked = (e for e in plane.audit() if e.user.endswith(":enough"))
            return sum((e.verb, e.resource) == ("list", "inferencedeployments") for e in asked)

        before = num_lists()
        wait_until(lambda: num_lists() > before, "a resync more")
    refused = [e for e in plane.audit() if e.user.endswith(":enough") and e.code == 403]
    assert [(e.verb, e.resource, e.subresource) for e in refused] == []


def test_a_missing_right_to_render_is_told_on_the_object_and_heals(plane: ControlPlane, objects: Objects) -> None:
    kubeconfig = account(plane, "no-apply", ("deployments", "create"), ("deployments", "patch"))
    with running("controller", LOOPBACK, "--resync-seconds=2", kubeconfig=kubeconfig):
        plane.apply(inference_deployment("unrendered"))
        message = objects.wait_for("unrendered", "Stalled", "True", "ApiForbidden")
        assert "patch deployments.apps" in message
        assert objects.condition("unrendered", "Accepted")[:2] == ("True", "Fits")
        plane.apply(role("no-apply"))
        objects.wait_for("unrendered", "Ready", "True")


def test_a_missing_right_to_read_a_config_map_is_told_on_the_object(plane: ControlPlane, objects: Objects) -> None:
    model = {"name": "nobody/x", "configFrom": {"configMapKeyRef": {"name": "x", "key": "config.json"}}}
    kubeconfig = account(plane, "no-config", ("configmaps", "get"))
    with running("controller", LOOPBACK, kubeconfig=kubeconfig):
        plane.apply(inference_deployment("unread", model=model))
        assert "get configmaps" in objects.wait_for("unread", "Stalled", "True", "ApiForbidden")
    assert objects.find("deployment", "unread") is None


def test_a_missing_right_to_write_the_status_is_logged_and_nothing_crashes(
    plane: ControlPlane, objects: Objects, tmp_path: Path
) -> None:
    kubeconfig, log = account(plane, "no-status", ("inferencedeployments/status", "patch")), tmp_path / "log"
    with door("controller", log, LOOPBACK, "--metrics-port=0", f"--kubeconfig={kubeconfig}") as process:
        plane.apply(inference_deployment("mute"))
        words = ('"verb": "patch"', '"resource": "inferencedeployments.kvgate.io/status"', '"name": "mute"')
        wait_until(lambda: log_has(log, *words), "the log names verb and resource")
        wait_until(lambda: objects.find("deployment", "mute"), "the pods are rendered all the same")
        assert process.poll() is None


def test_a_missing_right_to_watch_keeps_it_from_being_ready_and_says_so(plane: ControlPlane, tmp_path: Path) -> None:
    kubeconfig, log = account(plane, "no-list", ("deployments", "list")), tmp_path / "log"
    port = free_port()
    with door("controller", log, LOOPBACK, f"--metrics-port={port}", f"--kubeconfig={kubeconfig}"):
        said = ("cannot work yet", "list deployments.apps", "role lacks a rule")
        wait_until(lambda: log_has(log, *said), "the log says what is missing")
        assert answers(port, "/livez")
        assert not answers(port, "/readyz")
        plane.apply(role("no-list"))
        wait_until(lambda: answers(port, "/readyz"), "it works once the right is there")


def test_without_an_event_right_everything_else_works(plane: ControlPlane, objects: Objects) -> None:
    with running("controller", LOOPBACK, kubeconfig=account(plane, "no-events", ("events", "create"))):
        plane.apply(inference_deployment("silent"))
        objects.wait_for("silent", "Ready", "True")

        def denied() -> bool:
            return any(
                (e.verb, e.resource, e.code) == ("create", "events", 403) and e.user.endswith(":no-events")
                for e in plane.audit()
            )

        wait_until(denied, "the API server denied an event")
    assert objects.events("silent") == []


def test_an_outage_of_the_api_server_is_survived(plane: ControlPlane, objects: Objects, tmp_path: Path) -> None:
    port = free_port()
    log = tmp_path / "log"
    options = (LOOPBACK, f"--metrics-port={port}", f"--kubeconfig={plane.kubeconfig}", "--resync-seconds=5")
    with door("controller", log, *options) as process:
        wait_until(lambda: answers(port, "/readyz"), "it is ready")
        plane.apply(inference_deployment("survivor"))
        objects.wait_for("survivor", "Ready", "True")
        plane.stop("kube-apiserver")
        try:
            time.sleep(12)  # time is the subject: longer than it may write without a confirmation of its Lease
            assert process.poll() is None
            assert answers(port, "/livez")
        finally:
            plane.start("kube-apiserver")  # the tests after this one need it
        plane.apply(inference_deployment("late"))
        objects.patch("survivor", {"spec": {"vllm": {"maxNumSeqs": 3}}})
        objects.wait_for("late", "Ready", "True")
        objects.wait_for("survivor", "Ready", "True")
        arguments = objects.get("deployment", "survivor")["spec"]["template"]["spec"]["containers"][0]["args"]
        assert "--max-num-seqs=3" in arguments


def test_a_stored_object_that_this_release_cannot_read_is_told_with_all_findings(
    plane: ControlPlane, objects: Objects
) -> None:
    loose = copy.deepcopy(yaml.load(CRD.read_text(encoding="utf-8"), yaml.CSafeLoader))
    spec = loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["vllm"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    del spec["x-kubernetes-validations"]  # they speak of fields of vllm, which has none any more
    plane.apply(loose)
    bad = {"maxModelLen": "32k", "gpuMemoryUtilisation": "0.9"}

    def stored() -> bool:
        document = json.dumps(inference_deployment("stored", vllm=bad))
        return plane.kubectl("apply", "-f", "-", input=document, check=False).returncode == 0

    wait_until(stored, "the loose schema is served")
    with running("controller", LOOPBACK, kubeconfig=plane.kubeconfig) as process:
        message = objects.wait_for("stored", "Accepted", "False", "InvalidSpec")
        assert "spec.vllm.maxModelLen is '32k'" in message
        assert "did you mean gpuMemoryUtilization?" in message
        assert objects.condition("stored", "Stalled")[:2] == ("True", "InvalidSpec")
        wait_until(lambda: process.count("kvgate_condition") > 0, "alerts can see it")
    plane.kubectl("delete", "infd", "stored")
    plane.apply(yaml.load(CRD.read_text(encoding="utf-8"), yaml.CSafeLoader))


def test_without_the_crd_it_says_what_to_do_and_ends_with_1(pytestconfig: pytest.Config) -> None:
    with ControlPlane(require_assets(pytestconfig), full=False) as bare:
        said = subprocess.run(
            [KVGATE, "controller", LOOPBACK, "--metrics-port=0", f"--kubeconfig={bare.kubeconfig}"],
            capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
    assert said.returncode == 1
    assert "install the CustomResourceDefinition of kvgate first" in said.stderr


def test_without_a_cluster_it_says_what_to_do_and_ends_with_1(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    missing = tmp_path / "missing"
    for options, words in (([], "not in a cluster"), ([f"--kubeconfig={missing}"], str(missing))):
        said = subprocess.run(
            [KVGATE, "controller", LOOPBACK, "--metrics-port=0", *options],
            env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        assert said.returncode == 1
        assert words in said.stderr
        assert "KUBECONFIG" in said.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_quickly_and_with_0_when_told_to(plane: ControlPlane, number: signal.Signals) -> None:
    port = free_port()
    command = [KVGATE, "controller", LOOPBACK, f"--metrics-port={port}", f"--kubeconfig={plane.kubeconfig}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: answers(port, "/readyz"), "it is ready")
        began = time.monotonic()
        process.send_signal(number)
        _, log = process.communicate(timeout=25)
    assert process.returncode == 0
    assert time.monotonic() - began < 20
    assert "traceback" not in log
    assert re.search('"event": "stopped"', log)


def test_it_ends_with_1_when_its_working_thread_dies(plane: ControlPlane) -> None:
    code = """
import sys
from kvgate.controller import command, working_thread
async def dies(*_, **__): raise RuntimeError("as the test says")
working_thread._watch = dies
command.main(sys.argv[1:])
"""
    said = subprocess.run(
        [sys.executable, "-c", code, LOOPBACK, "--metrics-port=0", f"--kubeconfig={plane.kubeconfig}"],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert said.returncode == 1
    assert "the working thread has ended by itself" in said.stderr
    assert "as the test says" in said.stderr


def test_only_the_named_namespaces_are_served(plane: ControlPlane, objects: Objects) -> None:
    for namespace in ("served", "ignored"):
        plane.kubectl("create", "namespace", namespace)
        plane.apply(inference_deployment("here", namespace=namespace))
    with running("controller", LOOPBACK, "--namespace=served", kubeconfig=plane.kubeconfig):
        objects.wait_for("here", "Ready", "True", namespace="served")
    ignored = objects.get("infd", "here", namespace="ignored")
    assert ignored["status"] == {"observedGeneration": -1}, "the default of the CRD, and no word of a controller"
