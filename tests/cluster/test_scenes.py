"""Why an engine does not serve: each way has a reason of its own, within seconds of the API server saying it, and one event."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from fleet.fake_gpus import fake_gpu_node
from kvgate.api.conditions import Reason
from kvgate.api.pod_reasons import POD_REASONS
from support.doors import Door
from support.inference import H100, Objects, crash, inference_deployment

pytestmark = pytest.mark.cluster

OPTIONS = ("--metrics-host=127.0.0.1", "--observe-seconds=60", "--watch-nodes")
"""A round of observation takes longer than the test waits: the watches alone tell it."""
SECONDS = 5.0
A100 = "NVIDIA-A100-SXM4-80GB"
EARLIER = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
ON_PODS = {
    "failurePolicy": "Fail",
    "matchConstraints": {
        "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    },
}
DENIES = {"validations": [{"expression": "false", "message": "no engines on Fridays"}]}
INJECTS = {
    "reinvocationPolicy": "Never",
    "mutations": [
        {
            "patchType": "ApplyConfiguration",
            "applyConfiguration": {"expression": "Object{spec: Object.spec{hostNetwork: true}}"},
        }
    ],
}


def policy(kind: str, namespace: str, spec: Mapping[str, Any], **binding: Any) -> list[dict[str, Any]]:
    """An admission policy about the pods of one namespace, and its binding."""
    version = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": f"about-{namespace}"}}
    where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    bound = {"policyName": f"about-{namespace}", "matchResources": where, **binding}
    return [
        {"kind": kind, **version, "spec": {**ON_PODS, **spec}},
        {"kind": f"{kind}Binding", **version, "spec": bound},
    ]


def tell(objects: Objects, pod: Mapping[str, Any], status: Mapping[str, Any]) -> None:
    """Write what the kubelet would."""
    patch = json.dumps({"status": {"conditions": [{"type": "Ready", "status": "False"}], **status}})
    name = pod["metadata"]["name"]
    objects.plane.kubectl("patch", "pod", name, "-n", "default", "--subresource=status", "-p", patch)


def in_container(pod: Mapping[str, Any], **state: Any) -> dict[str, Any]:
    """The engine's container in this state, not ready."""
    found = {name: value for name, value in pod["status"]["containerStatuses"][0].items() if name != "lastState"}
    return {"containerStatuses": [found | {"ready": False, "started": False} | state]}


def namespace(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def nothing(_: Objects) -> None:
    """The cluster is as it is."""


def lack(objects: Objects) -> None:
    cordoned = fake_gpu_node("gpu-1", product=H100, memory_mib=81559, gpus=8)
    objects.plane.apply(cordoned | {"spec": cordoned.get("spec", {}) | {"unschedulable": True}})


def taint(objects: Objects) -> None:
    node = fake_gpu_node("gpu-2", product=A100, memory_mib=81920, gpus=8)
    taints = [{"key": "reserved", "value": "yes", "effect": "NoSchedule"}]
    objects.plane.apply(node | {"spec": node.get("spec", {}) | {"taints": taints}})


def limit(objects: Objects) -> None:
    spec = {"hard": {"requests.nvidia.com/gpu": "0"}}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": "tight"},
        "spec": spec,
    }
    objects.plane.apply(namespace("tight"), quota)


def wait_for_policy(objects: Objects, where: str, words: str) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "try", "namespace": where}}
    pod |= {"spec": {"containers": [{"name": "a", "image": "a"}]}}
    command = ("create", "--dry-run=server", "-f", "-")
    wait_until(
        lambda: words in objects.plane.kubectl(*command, input=json.dumps(pod), check=False).stderr,
        "the policy is enforced",
    )


def forbid(objects: Objects) -> None:
    denied = policy("ValidatingAdmissionPolicy", "fridays", DENIES, validationActions=["Deny"])
    objects.plane.apply(namespace("fridays"), *denied)
    wait_for_policy(objects, "fridays", "no engines on Fridays")


def restrict(objects: Objects) -> None:
    """Something adds to pods what the level of the namespace forbids; kvgate's own pods are allowed at each level."""
    objects.plane.apply(
        namespace("strict", **{"pod-security.kubernetes.io/enforce": "baseline"}),
        *policy("MutatingAdmissionPolicy", "strict", INJECTS),
    )
    wait_for_policy(objects, "strict", "host namespaces")


def claim(objects: Objects) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast"}
    metadata = {"name": "pending", "namespace": "default"}
    objects.plane.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})


def volume(name: str) -> dict[str, Any]:
    return {"name": "Qwen/Qwen3-8B", "source": {"persistentVolumeClaim": {"claimName": name}}}


API: dict[str, tuple[Callable[[Objects], None], dict[str, Any], str, str, str]] = {
    "no-gpu": (nothing, {"accelerator": {"type": "L4-24GB"}, "model": {"name": "Qwen/Qwen3-0.6B"}}, "default", "NoMatchingNode", ""),
    "few-gpus": (
        lack, {"replicas": 9, "vllm": {"maxNumSeqs": 4, "tensorParallelSize": 8}}, "default", "NotEnoughGpus",
        "needs 8 nvidia.com/gpu on one node: 0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable",
    ),
    "tainted": (taint, {"accelerator": {"type": "A100-SXM-80GB"}}, "default", "NodesTainted", "gpu-2, have the taint reserved"),
    "memory": (nothing, {"template": {"resources": {"requests": {"memory": "9Ti"}}}}, "default", "NotEnoughResources", ""),
    "quota": (limit, {}, "tight", "QuotaExceeded", "exceeded quota: gpus"),
    "class": (nothing, {"template": {"priorityClassName": "nobody-made-it"}}, "default", "PriorityClassMissing", ""),
    "policy": (forbid, {}, "fridays", "AdmissionDenied", "no engines on Fridays"),
    "security": (restrict, {}, "strict", "PodSecurityDenied", "hostNetwork=true"),
    "no-claim": (nothing, {"model": volume("absent")}, "default", "VolumeClaimMissing", ""),
    "claim": (claim, {"model": volume("pending")}, "default", "VolumeClaimPending", "ProvisioningFailed: storageclass.storage"),
}  # fmt: skip
"""What the cluster is like, the spec, its namespace, the reason, and words of the message."""


@pytest.mark.parametrize("name", API)
def test_what_scheduler_and_api_server_say_is_the_reason(objects: Objects, name: str) -> None:
    arrange, spec, where, reason, words = API[name]
    arrange(objects)
    objects.plane.apply(inference_deployment(name, namespace=where, **spec))
    wait_until(lambda: is_said(objects, name, where), f"the API says why {name} does not start")
    began = time.monotonic()
    message = objects.wait_for(name, "Ready", "False", reason, namespace=where)
    assert time.monotonic() - began < SECONDS
    if words:
        wait_until(lambda: words in objects.condition(name, "Ready", where)[2], f"{words} in {message}")
    assert objects.condition(name, "Scheduled", where)[:2] == ("False", reason)
    assert objects.condition(name, "Stalled", where)[0] == str(not POD_REASONS[Reason(reason)].passes)
    assert reason in objects.plane.kubectl("get", "infd", name, "-n", where).stdout, "the column WHY"
    assert objects.condition(name, "Degraded", where)[0] == "False"
    objects.plane.kubectl("delete", "infd", name, "-n", where)
    wait_until(lambda: not objects.pods(name, where), "its pods are gone")


def is_said(objects: Objects, name: str, where: str) -> bool:
    """Whether a pod is unscheduled, or the Deployment has a ReplicaFailure."""
    deployment = objects.find("deployment", name, where) or {}
    subjects = [deployment, *objects.pods(name, where)]
    conditions = [each for subject in subjects for each in subject.get("status", {}).get("conditions", ())]
    wanted = (("PodScheduled", "False"), ("ReplicaFailure", "True"))
    return any((each["type"], each["status"]) in wanted for each in conditions)


def pulls(message: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return waits("ErrImagePull", message)


def waits(reason: str, message: str = "") -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return lambda pod: in_container(pod, state={"waiting": {"reason": reason, "message": message}})


OOM = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
CUDA = "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.9"
KUBELET: dict[str, tuple[Callable[[Mapping[str, Any]], dict[str, Any]], str, str]] = {
    "no such image": (pulls("docker.io/vllm/vllm-openai:v0.33.0: not found"), "ImageNotFound", "Loading=False"),
    "credentials": (pulls("failed to authorize: 401 Unauthorized"), "ImageUnauthorized", "Loading=False"),
    "rate": (pulls("429 Too Many Requests - toomanyrequests"), "ImageRateLimited", "Loading=False"),
    "architecture": (pulls("no match for platform in manifest: not found"), "ImageWrongPlatform", "Loading=False"),
    "Secret": (waits("CreateContainerConfigError", 'secret "hf-token" not found'), "SecretMissing", "Loading=False"),
    "key": (
        waits("CreateContainerConfigError", "couldn't find key config.json in ConfigMap default/settings"), "KeyMissing", "Loading=False",
    ),
    "driver": (waits("RunContainerError", CUDA), "DriverTooOld", "Loading=False"),
    "memory": (lambda pod: in_container(pod, state=EARLIER, lastState=OOM), "HostMemoryExceeded", "Loading=False"),
    "probe": (lambda pod: in_container(pod, state=EARLIER, started=True), "NotAnswering", "Loading=False"),
    "node": (lambda pod: in_container(pod, state=EARLIER, started=True, ready=True), "NodeLost", "Loading=False"),
    "slow load": (lambda pod: in_container(pod, state=EARLIER), "LoadingSlowly", "Loading=True"),
}  # fmt: skip
EVENTS: dict[str, tuple[str, str, str]] = {
    "other node": (
        "FailedAttachVolume",
        'Multi-Attach error for volume "pvc-1" Volume is already exclusively attached',
        "VolumeInUse",
    ),
    "mount": (
        "FailedMount",
        "MountVolume.SetUp failed: mount -o username=me,password=swordfish1 failed",
        "VolumeNotMounted",
    ),
    "full": ("FailedMount", "mkdir /var/lib/kubelet/pods: no space left on device", "VolumeFull"),
}
CRASHES: dict[str, tuple[str, str]] = {
    "port": ("OSError: [Errno 98] Address already in use", "PortInUse"),
    "NCCL": ("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)", "Nccl"),
    "disk": ("OSError: [Errno 28] No space left on device", "DiskFull"),
    "gated": ("OSError: You are trying to access a gated repo.", "GatedModel"),
    "tokenizer": ("OSError: Can't load tokenizer for 'Qwen/Qwen3-8B'.", "TokenizerNotLoaded"),
}


@pytest.fixture(scope="module")
def chat(plane: ControlPlane, door: Door) -> Iterator[Mapping[str, Any]]:
    """The pod of an engine that is ready before the kubelet says anything else."""
    objects = Objects(plane=plane)
    plane.apply(inference_deployment("chat"))
    objects.wait_for("chat", "Ready", "True")
    (pod,) = objects.pods("chat")
    yield pod
    plane.kubectl("delete", "infd", "chat")


@pytest.mark.parametrize("scene", KUBELET)
def test_what_the_kubelet_says_is_the_reason(objects: Objects, chat: Mapping[str, Any], scene: str) -> None:
    status, reason, condition = KUBELET[scene]
    tell(objects, chat, status(chat))
    began = time.monotonic()
    message = objects.wait_for("chat", "Ready", "False", reason)
    assert time.monotonic() - began < SECONDS
    assert f"pod {chat['metadata']['name']}: " in message
    kind, _, expected = condition.partition("=")
    assert objects.condition("chat", kind)[:2] == (expected, reason)
    assert objects.condition("chat", "Degraded")[:2] == ("True", reason), "it was ready before"
    assert objects.condition("chat", "Scheduled")[0] == "True"
    is_killed = reason == "HostMemoryExceeded"
    assert ("; kvgate expects a need of " in message) == is_killed, "the ledger of the host stands beside the limit"


@pytest.mark.parametrize("scene", EVENTS)
def test_what_only_events_say_is_the_reason(objects: Objects, chat: Mapping[str, Any], scene: str) -> None:
    word, note, reason = EVENTS[scene]
    tell(objects, chat, in_container(chat, state={"waiting": {"reason": "PodInitializing"}}))
    about = {name: chat["metadata"][name] for name in ("name", "namespace", "uid")}
    for event in objects.plane.request("GET", "/api/v1/namespaces/default/events")["items"]:
        if event["metadata"]["name"].startswith("told-"):
            objects.plane.delete(f"/api/v1/namespaces/default/events/{event['metadata']['name']}")
    objects.plane.apply({
        "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": word, "message": note,
        "metadata": {"name": f"told-{word.lower()}-{scene.replace(' ', '-')}", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "apiVersion": "v1", **about}, "source": {"component": "kubelet"},
        "lastTimestamp": "2099-01-01T00:00:00Z", "firstTimestamp": "2099-01-01T00:00:00Z", "count": 1,
    })  # fmt: skip
    began = time.monotonic()
    message = objects.wait_for("chat", "Loading", "False", reason)
    assert time.monotonic() - began < SECONDS
    assert "swordfish1" not in message
    tell(objects, chat, in_container(chat, state=EARLIER, started=True))
    objects.wait_for("chat", "Ready", "False", "NotAnswering")


@pytest.mark.parametrize("scene", CRASHES)
def test_a_crash_after_the_start_has_the_name_of_its_row(objects: Objects, scene: str) -> None:
    words, reason = CRASHES[scene]
    name = f"crash-{scene.lower()}"
    objects.plane.apply(inference_deployment(name))
    objects.wait_for(name, "Ready", "True")
    (pod,) = objects.pods(name)
    ended = {"exitCode": 1, "reason": "Error", "message": words, "containerID": "containerd://1"}
    crash(objects.plane, pod, ended, restarts=1)
    began = time.monotonic()
    objects.wait_for(name, "Degraded", "True", reason)
    assert time.monotonic() - began < SECONDS
    assert objects.condition(name, "Stalled")[0] == "False", "it may pass once"
    crash(objects.plane, pod, ended | {"containerID": "containerd://2"}, restarts=2)
    objects.wait_for(name, "Stalled", "True", reason)
    objects.wait_for_event(name, ("Warning", reason))
    assert [event for event in objects.events(name) if event[1] == reason] == [("Warning", reason)], "one event"
    objects.plane.kubectl("delete", "infd", name)


def test_one_lost_replica_of_two_is_named_and_is_no_rollout_and_comes_back(objects: Objects) -> None:
    objects.plane.apply(inference_deployment("pair", replicas=2))
    objects.wait_for("pair", "Ready", "True")
    lost, _ = objects.pods("pair")
    tell(objects, lost, in_container(lost, state=EARLIER, started=True))
    began = time.monotonic()
    message = objects.wait_for("pair", "Degraded", "True", "NotAnswering")
    assert time.monotonic() - began < SECONDS
    assert message.startswith(f"1 of 2 replicas are ready, and all were; pod {lost['metadata']['name']}: ")
    assert objects.condition("pair", "Reconciling")[1] == "NotAnswering"
    back = {"conditions": lost["status"]["conditions"], "containerStatuses": lost["status"]["containerStatuses"]}
    tell(objects, lost, back)
    objects.wait_for("pair", "Degraded", "False", "ReplicasReady")
    objects.wait_for_event("pair", ("Normal", "ReplicasReady"))
    objects.settle()
    assert sorted(objects.events("pair")) == [
        ("Normal", "Fits"),
        ("Normal", "ReplicasReady"),
        ("Warning", "NotAnswering"),
    ]
    objects.plane.kubectl("delete", "infd", "pair")


def test_no_replica_is_wanted(objects: Objects) -> None:
    objects.plane.apply(inference_deployment("zero", replicas=0))
    assert objects.wait_for("zero", "Ready", "True", "ScaledToZero")
    objects.plane.kubectl("delete", "infd", "zero")


def test_an_evicted_pod_is_the_reason_while_another_one_loads(objects: Objects) -> None:
    objects.plane.apply(inference_deployment("evicted"))
    objects.wait_for("evicted", "Ready", "True")
    (pod,) = objects.pods("evicted")
    tell(
        objects,
        pod,
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."},
    )
    wait_until(lambda: len(objects.pods("evicted")) == 2, "another pod takes its place")
    (new,) = (each for each in objects.pods("evicted") if each["metadata"]["name"] != pod["metadata"]["name"])
    wait_until(lambda: objects.pods("evicted")[0]["status"].get("containerStatuses"), "it runs")
    wait_until(
        lambda: all(each["status"].get("containerStatuses") for each in objects.pods("evicted")), "its container runs"
    )
    (new,) = (each for each in objects.pods("evicted") if each["metadata"]["name"] == new["metadata"]["name"])
    tell(objects, new, in_container(new, state=EARLIER))
    began = time.monotonic()
    objects.wait_for("evicted", "Ready", "False", "Evicted")
    assert time.monotonic() - began < SECONDS
    objects.plane.kubectl("delete", "infd", "evicted")


def test_nothing_is_requested_and_nothing_written_where_no_pod_waits(objects: Objects, chat: Mapping[str, Any]) -> None:
    objects.settle()
    before = len([event for event in objects.plane.audit() if event.resource == "events" and event.verb == "list"])
    assert before > 0, "events were listed while a pod waited"
    time.sleep(4)
    after = [event for event in objects.plane.audit() if event.resource == "events" and event.verb == "list"]
    assert len(after) == before
