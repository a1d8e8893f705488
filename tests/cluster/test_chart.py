"""The chart on a real API server: Helm installs it, its pods are restricted, its webhook decides, its rights are enough."""

import base64
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controlplane.audit import AuditEvent
from controlplane.certificates import write_certificates
from controlplane.plane import ControlPlane
from controlplane.programs import free_port, wait_until
from fleet.fake_gpus import fake_gpu_node
from kvgate.cluster.permissions import LEASE_RULES, RULES
from support.assets import require_assets
from support.chart import CHART, NAMESPACE, ROOT, documents, helm, render
from support.crash_log import crashed
from support.doors import Door, running
from support.inference import crash, inference_deployment

pytestmark = pytest.mark.cluster

CONTROLLER = f"system:serviceaccount:{NAMESPACE}:kvgate-controller"
WEBHOOK = f"kvgate-webhook.{NAMESPACE}"
SAMPLES = ROOT / "deploy" / "samples"
NEEDED_ELSEWHERE = {
    ("apps", "deployments", "create"),  # asked for by each server-side apply of a new object, which is a patch
    ("", "services", "create"),
    ("policy", "poddisruptionbudgets", "create"),
    ("resource.k8s.io", "resourceclaimtemplates", "create"),
    ("resource.k8s.io", "resourceclaimtemplates", "list"),  # by a resync
    ("kvgate.io", "inferencedeployments/finalizers", "update"),  # by the admission of OpenShift, and never asked for
    ("", "configmaps", "get"),  # by spec.model.configFrom
    ("apps", "replicasets", "list"),  # of several new pods at once
    ("events.k8s.io", "events", "patch"),  # by an event that comes again
    ("kvgate.io", "admissionrecords", "get"),  # after a restart, by the name in the status
    ("kvgate.io", "admissionrecords", "list"),  # by a resync
    ("kvgate.io", "admissionrecords", "patch"),  # by the adoption after a restore from a backup
}
CLAIM = {"type": "H100-SXM-80GB", "resourceClaim": {"deviceClassName": "gpu.nvidia.com"}}
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


def namespace(name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}}


@dataclass(frozen=True, kw_only=True)
class Installation:
    """The chart, installed by Helm; its webhook configuration leads to a port of this machine."""

    plane: ControlPlane
    helm: Path
    certificates: Path
    webhook_port: int

    def get(self, *what: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.plane.kubectl("get", *what, "-o", "json").stdout)
        return found

    def apply(self, path: Path, *options: str) -> str:
        """What kubectl says about it, on both channels, whether or not it is refused."""
        result = self.plane.kubectl("apply", "-f", str(path), *options, check=False)
        return result.stdout + result.stderr

    @contextlib.contextmanager
    def webhook(self) -> Iterator[Door]:
        files = {"tls-cert": "tls.crt", "tls-key": "tls.key"}
        options = [f"--{option}={self.certificates / name}" for option, name in files.items()]
        address = ["--host=127.0.0.1", f"--port={self.webhook_port}", "--linger-seconds=0"]
        with running("webhook", *address, *options) as door:
            yield door


@pytest.fixture(scope="module")
def installation(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    assets, folder = require_assets(pytestconfig), tmp_path_factory.mktemp("certificates")
    write_certificates(folder)
    with ControlPlane(assets) as plane:
        plane.apply(
            fake_gpu_node("gpu-0", product="NVIDIA-H100-80GB-HBM3", memory_mib=81559), namespace(NAMESPACE, RESTRICTED)
        )
        secret = [f"--cert={folder / 'tls.crt'}", f"--key={folder / 'tls.key'}"]
        plane.kubectl("create", "secret", "tls", "webhook-tls", "--namespace", NAMESPACE, *secret)
        installed = Installation(plane=plane, helm=assets / "helm", certificates=folder, webhook_port=free_port())
        install(installed)
        lead_webhook_here(installed)
        yield installed


def install(installed: Installation) -> None:
    """As in the chart's README for a certificate of one's own; it waits until everything is ready."""
    values = ["--set=webhook.certs.mode=provided", "--set=webhook.certs.secretName=webhook-tls"]
    authority = f"--set-file=webhook.certs.caBundle={installed.certificates / 'ca.crt'}"
    helm(installed.helm, "install", "kvgate", CHART, *where(installed), *values, authority)


def where(installed: Installation) -> list[str]:
    return [f"--namespace={NAMESPACE}", f"--kubeconfig={installed.plane.kubeconfig}", "--wait", "--timeout=240s"]


def lead_webhook_here(installed: Installation) -> None:
    """To a Service without kube-proxy nothing leads; an address of this machine stands in, with the same CA."""
    found = installed.get("validatingwebhookconfiguration", WEBHOOK)
    authority = found["webhooks"][0]["clientConfig"]["caBundle"]
    assert base64.b64decode(authority) == (installed.certificates / "ca.crt").read_bytes()
    url = f"https://127.0.0.1:{installed.webhook_port}/validate"
    patch = [{"op": "replace", "path": "/webhooks/0/clientConfig", "value": {"url": url, "caBundle": authority}}]
    arguments = [f"validatingwebhookconfiguration/{WEBHOOK}", "--type=json", "-p", json.dumps(patch)]
    installed.plane.kubectl("patch", *arguments)
    wait_until(
        lambda: f"127.0.0.1:{installed.webhook_port}" in installed.apply(SAMPLES / "fits.yaml", "--dry-run=server"),
        "the API server calls the new address",
    )


@pytest.fixture(scope="module")
def plane(installation: Installation) -> ControlPlane:
    return installation.plane


# ── the objects ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_helm_installed_it_and_everything_became_ready(installation: Installation) -> None:
    found = installation.get("deployments", "--namespace", NAMESPACE)["items"]
    assert {each["metadata"]["name"]: each["status"]["availableReplicas"] for each in found} == {
        "kvgate-controller": 2,
        "kvgate-webhook": 2,
    }


def test_the_crd_is_served_and_explains_itself(plane: ControlPlane) -> None:
    plane.kubectl("wait", "crd/inferencedeployments.kvgate.io", "--for=condition=Established", "--timeout=240s")
    assert "prompt and output together" in plane.kubectl("explain", "infd.spec.vllm.maxModelLen").stdout


def test_the_namespace_refuses_what_is_not_restricted(plane: ControlPlane) -> None:
    refused = plane.kubectl("run", "loose", "--image=any", "--namespace", NAMESPACE, check=False)
    assert 'violates PodSecurity "restricted:latest"' in refused.stderr


def test_no_pod_of_the_chart_was_refused_there(installation: Installation) -> None:
    """Events of Services are the API server's own: it checks addresses that it gave while it was starting."""
    events = installation.get("events", "--namespace", NAMESPACE)["items"]
    of_pods = [event for event in events if event["involvedObject"]["kind"] != "Service"]
    assert {event["involvedObject"]["kind"] for event in of_pods} >= {"Deployment", "ReplicaSet"}
    assert [event["message"] for event in of_pods if event["type"] != "Normal"] == []
    assert len(installation.get("pods", "--namespace", NAMESPACE)["items"]) == 4


def test_only_the_controllers_pod_is_given_a_token(installation: Installation) -> None:
    with_token = {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for pod in installation.get("pods", "--namespace", NAMESPACE)["items"]
        for volume in pod["spec"]["volumes"]
        if any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", ()))
    }
    assert with_token == {"controller"}


def test_the_webhook_has_no_rights(plane: ControlPlane) -> None:
    who = f"--as=system:serviceaccount:{NAMESPACE}:kvgate-webhook"
    assert plane.kubectl("auth", "can-i", "list", "infd", who, check=False).stdout.strip() == "no"


def test_one_webhook_pod_may_be_evicted_at_a_time(installation: Installation) -> None:
    wait_until(
        lambda: installation.get("pdb", "kvgate-webhook", "--namespace", NAMESPACE)["status"].get("disruptionsAllowed") == 1,
        "the PodDisruptionBudget counts both pods",
    )  # fmt: skip


# ── the webhook ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_too_large_is_refused_at_apply_with_the_numbers(installation: Installation) -> None:
    with installation.webhook():
        for options in ([], ["--dry-run=server"]):
            said = installation.apply(SAMPLES / "too-long.yaml", *options)
            assert 'admission webhook "validate.inferencedeployments.kvgate.io" denied the request' in said
            assert said.count("GiB") >= 2
    assert installation.get("infd", "--all-namespaces")["items"] == []


def test_only_a_changed_spec_is_reviewed(installation: Installation) -> None:
    plane, sample = installation.plane, str(SAMPLES / "fits.yaml")
    edit = json.dumps({"spec": {"vllm": {"maxModelLen": 16384}}})
    status = json.dumps({"status": {"observedGeneration": 1}})
    with installation.webhook() as door:
        wait_until(  # a review that a loaded machine gives no time is answered 503 and is not counted
            lambda: plane.kubectl("apply", "-f", sample, check=False).returncode == 0, "the first review is answered"
        )
        assert door.count("kvgate_admission_reviews_total") == 1
        plane.kubectl("annotate", "-f", sample, "example.com/note=1")
        plane.kubectl("label", "-f", sample, "example.com/team=a")
        plane.kubectl("patch", "-f", sample, "--subresource=status", "--type=merge", "-p", status)
        plane.kubectl("scale", "-f", sample, "--replicas=3")
        assert door.count("kvgate_admission_reviews_total") == 1
        plane.kubectl("patch", "-f", sample, "--type=merge", "-p", edit)
        assert door.count("kvgate_admission_reviews_total") == 2
        plane.kubectl("delete", "-f", sample)
        assert door.count("kvgate_admission_reviews_total") == 2


def test_without_a_webhook_a_spec_stays_as_it_is_and_all_else_goes_on(installation: Installation) -> None:
    plane, sample = installation.plane, str(SAMPLES / "fits.yaml")
    with installation.webhook():
        plane.kubectl("apply", "-f", sample)
    edit = json.dumps({"spec": {"vllm": {"maxNumSeqs": 2}}})
    refused = plane.kubectl("patch", "-f", sample, "--type=merge", "-p", edit, check=False)
    assert 'failed calling webhook "validate.inferencedeployments.kvgate.io"' in refused.stderr
    plane.kubectl("annotate", "-f", sample, "example.com/note=1")
    plane.kubectl("delete", "-f", sample, "--timeout=240s")


def test_a_namespace_can_opt_out(installation: Installation) -> None:
    plane = installation.plane
    plane.apply(namespace("opted-out", {"kvgate.io/disable-validation": "true"}))
    for verb in ("apply", "delete"):
        plane.kubectl(verb, "-f", str(SAMPLES / "too-long.yaml"), "--namespace=opted-out")


# ── the controller's rights ───────────────────────────────────────────────────────────────────────────────────────


WATCHES_ITS_OWN = ("kvgate.io", "inferencedeployments", "watch")


def serve_one(installation: Installation, in_namespace: str, *options: str) -> list[AuditEvent]:
    """The controller under its ServiceAccount takes one that fits from creation to its end; what it asked for."""
    plane, sample = installation.plane, str(SAMPLES / "fits.yaml")
    before = sum(1 for _ in plane.audit())
    there = ["--namespace", in_namespace]
    token = plane.kubeconfig_for("kvgate-controller", NAMESPACE)
    with installation.webhook(), running("controller", *options, "--observe-seconds=1", kubeconfig=token) as door:
        plane.kubectl("apply", "-f", sample, *there)
        plane.kubectl("wait", "-f", sample, *there, "--for=condition=Accepted", "--timeout=240s")
        wait_until(lambda: installation.get("deployments", *there)["items"], "its Deployment exists")
        wait_until(lambda: door.count("kvgate_pod_scrapes_total"), "its pod is asked")
        plane.apply(a_foreign_deployment("taken", in_namespace), inference_deployment("taken", namespace=in_namespace))
        plane.kubectl("wait", "infd/taken", *there, "--for=condition=Stalled", "--timeout=240s")
        plane.kubectl("delete", "infd/taken", "deployment/taken", *there)
        wait_quietly(plane, installation.get("pods", *there)["items"][0])
        wait_until(lambda: reads_events(plane.audit()[before:]), "the events of its pod are read")
        crash(plane, installation.get("pods", *there)["items"][0], crashed(), restarts=2)
        plane.kubectl("wait", "-f", sample, *there, "--for=condition=Stalled", "--timeout=240s")
        plane.kubectl("patch", "-f", sample, *there, "--type=merge", "-p", '{"spec": {"vllm": {"maxNumSeqs": 2}}}')
        wait_until(lambda: settled(installation, sample, there), "the change is judged")
        unguarded = '{"spec": {"podDisruptionBudget": {"enabled": false}}}'
        plane.kubectl("patch", "-f", sample, *there, "--type=merge", "-p", unguarded)
        wait_until(lambda: not installation.get("pdb", *there)["items"], "it has no PodDisruptionBudget")
        plane.kubectl("delete", "-f", sample, *there)
        plane.apply(inference_deployment("claims", namespace=in_namespace, accelerator=CLAIM))
        wait_until(lambda: installation.get("resourceclaimtemplates", *there)["items"], "its claim has a template")
        plane.kubectl("delete", "infd/claims", *there)
    wait_until(lambda: WATCHES_ITS_OWN in asked(of_the_controller(plane, before)), "its watch has ended")
    return of_the_controller(plane, before)


def of_the_controller(plane: ControlPlane, before: int) -> list[AuditEvent]:
    """Requests of the controller since then; the audit log names a watch when it has ended."""
    return [event for event in plane.audit()[before:] if event.user == CONTROLLER and event.resource]


def wait_quietly(plane: ControlPlane, pod: Mapping[str, Any]) -> None:
    """As the kubelet tells that a pod waits on its node, without why."""
    container = {"name": pod["spec"]["containers"][0]["name"], "ready": False, "started": False, "restartCount": 0}
    container |= {"image": "", "imageID": "", "state": {"waiting": {"reason": "PodInitializing"}}}
    conditions = [{"type": kind, "status": "False"} for kind in ("Ready", "ContainersReady")]
    status = json.dumps({"status": {"conditions": conditions, "containerStatuses": [container]}})
    name, there = pod["metadata"]["name"], pod["metadata"]["namespace"]
    plane.kubectl("patch", "pod", name, "-n", there, "--subresource=status", "-p", status)


def reads_events(events: Sequence[AuditEvent]) -> bool:
    return any(event.user == CONTROLLER and (event.resource, event.verb) == ("events", "list") for event in events)


def a_foreign_deployment(name: str, in_namespace: str) -> dict[str, Any]:
    """Whose name an InferenceDeployment has: the controller finds that out by asking for it."""
    labels = {"app": name}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "registry.example/main"}]}}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": in_namespace},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod},
    }  # fmt: skip


def settled(installation: Installation, sample: str, there: list[str]) -> bool:
    found = installation.get("-f", sample, *there)
    return bool(found["status"].get("observedGeneration") == found["metadata"]["generation"])


def asked(events: list[AuditEvent]) -> set[tuple[str, str, str]]:
    return {(event.group, "/".join(filter(None, [event.resource, event.subresource])), event.verb) for event in events}


def declared() -> set[tuple[str, str, str]]:
    return {
        (rule.group, resource, verb)
        for rule in (*RULES, *LEASE_RULES)
        for resource in rule.resources
        for verb in rule.verbs
    }


def test_the_controller_is_never_forbidden_and_asks_for_what_is_declared_and_no_more(
    installation: Installation,
) -> None:
    events = serve_one(installation, "default")
    assert [event for event in events if event.code == 403] == []
    assert {("kvgate.io", "inferencedeployments/status", "patch"), ("apps", "deployments", "patch")} <= asked(events)
    assert asked(events) - declared() == set()
    assert declared() - asked(events) - NEEDED_ELSEWHERE == set()


OWNER = {"apiVersion": "kvgate.io/v1alpha1", "kind": "InferenceDeployment", "name": "a", "uid": "u", "controller": True}
OWNED: dict[str, Any] = {"metadata": {"ownerReferences": [OWNER]}}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "": (OWNED, {}),
    "is controlled by an InferenceDeployment": ({}, {}),
    "carry the name of their InferenceDeployment": (
        OWNED,
        {"metadata": {"labels": {"kvgate.io/inferencedeployment": "b"}}},
    ),
    "have no token": (OWNED, {"spec": {"automountServiceAccountToken": None}}),
    "none of the node's namespaces": (OWNED, {"spec": {"hostNetwork": True}}),
    "mount no folder of the node": (OWNED, {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}),
    "is privileged": (OWNED, {"spec": {"containers": [{"securityContext": {"privileged": True}}]}}),
    "have no ServiceAccount": (OWNED, {"spec": {"serviceAccountName": "deployer"}}),
}
"""What the policy says, the parts of a Deployment that it is about, and the parts of its pods."""


def merged(document: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A document with other parts; an element of a list is merged with the one at its place."""
    for key, value in more.items():
        if isinstance(value, dict):
            merged(document.setdefault(key, {}), value)
        elif isinstance(value, list) and isinstance(document.get(key), list):
            for before, after in zip(document[key], value, strict=True):
                merged(before, after)
        else:
            document[key] = value
    return document


def test_with_the_controllers_token_nobody_gets_pods_of_another_shape(installation: Installation) -> None:
    plane, said = installation.plane, {}
    for name, (parts, pod) in SHAPES.items():
        deployment = merged(a_foreign_deployment("a", "default"), parts)
        template = merged(deployment["spec"]["template"], {"spec": {"automountServiceAccountToken": False}})
        merged(template, {"metadata": {"labels": {"kvgate.io/inferencedeployment": "a"}}})
        merged(template, pod)
        command = ("create", "--dry-run=server", "-f", "-", f"--as={CONTROLLER}")
        done = plane.kubectl(*command, input=json.dumps(deployment), check=False)
        said[name] = done.stdout + done.stderr
    assert "created (server dry run)" in said.pop("")
    assert {name: text for name, text in said.items() if "denied request" not in text or name not in text} == {}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", **OWNED["metadata"]}}
    service["spec"] = {"type": "NodePort", "selector": {"app": "a"}, "ports": [{"port": 80}]}
    command = ("create", "--dry-run=server", "-f", "-", f"--as={CONTROLLER}")
    assert "leads from inside" in plane.kubectl(*command, input=json.dumps(service), check=False).stderr


def test_with_roles_in_named_namespaces_it_is_never_forbidden_either(installation: Installation) -> None:
    plane = installation.plane
    plane.apply(namespace("team-a"), namespace("team-b"))
    plane.kubectl("delete", f"clusterrolebinding/kvgate-controller.{NAMESPACE}")
    found = documents(render(installation.helm, "--set", "watchNamespaces={team-a,team-b}"))
    plane.apply(*(document for document in found if document["kind"] in ("Role", "RoleBinding")))
    events = serve_one(installation, "team-a", "--namespace=team-a", "--namespace=team-b")
    assert [event for event in events if event.code == 403] == []
    assert ("apps", "deployments", "patch") in asked(events)


# ── a second release ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_release_of_the_same_name_lives_beside_the_first(installation: Installation) -> None:
    plane, there = installation.plane, "second-kvgate"
    plane.apply(namespace(there, RESTRICTED))
    secret = [f"--cert={installation.certificates / 'tls.crt'}", f"--key={installation.certificates / 'tls.key'}"]
    plane.kubectl("create", "secret", "tls", "webhook-tls", "--namespace", there, *secret)
    options = ["--set=watchNamespaces={second},crds.enabled=false", "--set=webhook.certs.mode=provided"]
    plane.apply(namespace("second"))
    authority = f"--set-file=webhook.certs.caBundle={installation.certificates / 'ca.crt'}"
    place = [f"--namespace={there}", f"--kubeconfig={plane.kubeconfig}", "--wait", "--timeout=240s"]
    values = [*options, "--set=webhook.certs.secretName=webhook-tls", authority]
    helm(installation.helm, "install", "kvgate", CHART, *place, *values)
    found = {each["metadata"]["name"] for each in installation.get("validatingwebhookconfigurations")["items"]}
    assert found == {WEBHOOK, f"kvgate-webhook.{there}"}
    helm(installation.helm, "uninstall", "kvgate", *place)
    found = {each["metadata"]["name"] for each in installation.get("validatingwebhookconfigurations")["items"]}
    assert found == {WEBHOOK}, "the first is left as it was"
    assert len(installation.get("deployments", "--namespace", NAMESPACE)["items"]) == 2


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_uninstalling_keeps_the_crd_and_what_users_wrote(installation: Installation) -> None:
    plane = installation.plane
    with installation.webhook():
        plane.kubectl("apply", "-f", str(SAMPLES / "fits.yaml"))
    helm(installation.helm, "uninstall", "kvgate", *where(installation))
    assert len(installation.get("infd", "--all-namespaces")["items"]) == 1
    assert installation.get("validatingwebhookconfigurations")["items"] == []
    assert installation.get("deployments", "--namespace", NAMESPACE)["items"] == []
