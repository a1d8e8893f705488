"""The control plane that every other cluster test stands on: it schedules, collects, records and leaves nothing."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from controlplane.audit import AuditEvent
from controlplane.plane import ControlPlane
from controlplane.programs import ControlPlaneError, wait_until
from fleet.fake_gpus import fake_gpu_node
from support.assets import require_assets
from support.chart import ROOT
from support.processes import command_lines

pytestmark = pytest.mark.cluster

H100 = "NVIDIA-H100-80GB-HBM3"
HOLDER = """
import sys, threading, time
from pathlib import Path
from controlplane.plane import ControlPlane
plane = ControlPlane(Path(sys.argv[1]))
thread = threading.Thread(target=plane.__enter__)
thread.start(); thread.join()
print(plane.kubeconfig.parent, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def assets(pytestconfig: pytest.Config) -> Path:
    return require_assets(pytestconfig)


@pytest.fixture(scope="module")
def plane(assets: Path) -> Iterator[ControlPlane]:
    with ControlPlane(assets) as plane:
        plane.apply(fake_gpu_node("gpu-0", product=H100, memory_mib=81559))
        yield plane


def pod_template(gpus: int) -> dict[str, Any]:
    container = {"name": "vllm", "image": "vllm", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {"metadata": {"labels": {"app": "vllm"}}, "spec": {"containers": [container]}}


def config_map(name: str, *owners: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": list(owners)}}


def exists(plane: ControlPlane, kind: str, name: str) -> bool:
    return plane.kubectl("get", kind, name, check=False).returncode == 0


def processes_of(folder: Path) -> dict[int, list[str]]:
    """Every program of a plane and its guard."""
    return command_lines(f"{folder}/")


def lose_etcd(assets: Path) -> None:
    with ControlPlane(assets, full=False) as plane:
        folder = plane.kubeconfig.parent
        (etcd,) = (pid for pid, words in processes_of(folder).items() if words[0].endswith("/etcd"))
        os.kill(etcd, signal.SIGKILL)
        wait_until(plane.deaths, "the death is known")


def test_the_api_answers_with_the_version_of_the_binary(plane: ControlPlane, assets: Path) -> None:
    said = subprocess.run([assets / "kube-apiserver", "--version"], capture_output=True, text=True, check=True).stdout
    version = plane.request("GET", "/version")
    assert f"Kubernetes {version['gitVersion']}" == said.strip()
    assert version["gitVersion"].startswith(f"v1.{version['minor']}.")


def test_a_deployment_with_gpus_is_scheduled_on_a_fake_node_and_becomes_available(plane: ControlPlane) -> None:
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "vllm"}}, "template": pod_template(4)}
    plane.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "fits"}, "spec": spec})
    plane.kubectl("wait", "deployment/fits", "--for=condition=Available", "--timeout=240s")
    pods = json.loads(plane.kubectl("get", "pods", "-l", "app=vllm", "-o", "json").stdout)["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == {"gpu-0"}
    assert all(ip_address(pod["status"]["podIP"]).is_loopback for pod in pods)
    plane.kubectl("delete", "deployment/fits", "--cascade=foreground", "--timeout=240s")
    assert plane.kubectl("get", "pods", "-l", "app=vllm", "-o", "name").stdout == ""


def test_a_pod_asking_for_more_gpus_than_a_node_has_stays_pending(plane: ControlPlane) -> None:
    plane.apply({"apiVersion": "v1", "kind": "Pod", **pod_template(9), "metadata": {"name": "too-big"}})
    plane.kubectl("wait", "pod/too-big", "--for=condition=PodScheduled=False", "--timeout=240s")
    assert "Insufficient nvidia.com/gpu" in plane.kubectl("get", "pod/too-big", "-o", "yaml").stdout
    plane.kubectl("delete", "pod/too-big", "--now")


def test_the_pod_of_a_job_succeeds(plane: ControlPlane) -> None:
    template = {"spec": {"containers": [{"name": "load", "image": "load"}], "restartPolicy": "Never"}}
    plane.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "load"}, "spec": {"template": template}})
    plane.kubectl("wait", "job/load", "--for=condition=Complete", "--timeout=240s")


def test_a_node_that_lost_its_heartbeat_is_made_ready_again(plane: ControlPlane) -> None:
    lost = {"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}}
    plane.kubectl("patch", "node/gpu-0", "--subresource=status", "-p", json.dumps(lost))
    plane.kubectl("wait", "node/gpu-0", "--for=condition=Ready", "--timeout=240s")


def test_what_an_owner_owns_goes_with_it(plane: ControlPlane) -> None:
    plane.apply(config_map("owner"))
    uid = json.loads(plane.kubectl("get", "configmap/owner", "-o", "json").stdout)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    pod = {"apiVersion": "v1", "kind": "Pod", **pod_template(1)}
    plane.apply(config_map("owned", owner), pod | {"metadata": {"name": "owned", "ownerReferences": [owner]}})
    plane.kubectl("delete", "configmap/owner")
    wait_until(lambda: not exists(plane, "configmap", "owned"), "the owned ConfigMap is collected")
    wait_until(lambda: not exists(plane, "pod", "owned"), "the owned Pod is collected")


def test_the_audit_log_counts_a_write_and_names_who_did_it(plane: ControlPlane) -> None:
    plane.kubectl("create", "configmap", "counted")

    def writes() -> list[AuditEvent]:
        return [event for event in plane.audit() if event.is_write and event.name == "counted"]

    wait_until(writes, "the write is in the audit log")
    plane.kubectl("get", "configmap/counted")
    (event,) = writes()
    assert (event.user, event.verb, event.code, event.resource) == ("kvgate-admin", "create", 201, "configmaps")
    assert event.user_agent.startswith("kubectl/")


def test_a_service_account_has_the_rights_it_was_given_and_no_others(plane: ControlPlane) -> None:
    plane.kubectl("create", "serviceaccount", "reader")
    reader = plane.kubeconfig_for("reader")
    denied = plane.kubectl("get", "pods", kubeconfig=reader, check=False)
    assert 'User "system:serviceaccount:default:reader" cannot list resource "pods"' in denied.stderr
    plane.kubectl("create", "rolebinding", "reader", "--clusterrole=view", "--serviceaccount=default:reader")
    wait_until(
        lambda: plane.kubectl("get", "pods", kubeconfig=reader, check=False).returncode == 0, "the binding is honoured"
    )
    assert plane.kubectl("delete", "pods", "--all", kubeconfig=reader, check=False).returncode == 1


def test_a_refused_request_is_an_error_with_the_words_of_the_server(plane: ControlPlane) -> None:
    with pytest.raises(ControlPlaneError, match=r'404 .*serviceaccounts "nobody" not found'):
        plane.kubeconfig_for("nobody")
    with pytest.raises(ControlPlaneError, match=r"kubectl get nonsense ended with 1: error: .*nonsense"):
        plane.kubectl("get", "nonsense")


def test_an_api_server_goes_away_and_comes_back_with_what_it_knew(plane: ControlPlane) -> None:
    plane.apply(config_map("remembered"))
    url = plane.url
    plane.stop("kube-apiserver")
    gone = plane.kubectl("get", "configmap/remembered", check=False)
    assert "connection" in gone.stderr
    plane.start("kube-apiserver")
    assert plane.url == url
    assert exists(plane, "configmap", "remembered")


def test_nothing_of_a_plane_outlives_the_kill_of_its_holder(assets: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(assets)]
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(ROOT / "tools")}, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout
        folder = Path(holder.stdout.readline().strip())
        assert len(processes_of(folder)) == 2 * len(("etcd", "apiserver", "controller-manager", "scheduler", "kwok"))
        holder.send_signal(signal.SIGKILL)
    wait_until(lambda: not processes_of(folder), "no process of the plane is left")
    wait_until(lambda: not folder.exists(), "its folder is gone")


def test_a_plane_leaves_no_process_and_no_file(assets: Path) -> None:
    with ControlPlane(assets, full=False) as plane:
        folder = plane.kubeconfig.parent
        assert len(processes_of(folder)) == 4
        assert plane.kubectl("auth", "whoami").returncode == 0
    assert not processes_of(folder)
    assert not folder.exists()


def test_a_program_that_dies_is_reported_and_its_log_kept(assets: Path) -> None:
    with pytest.raises(
        ControlPlaneError, match=r"etcd ended with status .*; the end of .*/logs/etcd\.log:\n"
    ) as raised:
        lose_etcd(assets)
    folder = Path(re.findall(r"the end of (.*)/logs/etcd\.log", str(raised.value))[0])
    assert [path.name for path in folder.iterdir()] == ["logs"]
    shutil.rmtree(folder)


def test_a_missing_binary_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ControlPlaneError, match=r"/etcd: no such program; `make tools` builds it"):
        ControlPlane(tmp_path).__enter__()
