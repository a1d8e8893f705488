"""Why a pod is not ready, in the words that scheduler, kubelet and containerd use, and what of it stops a rollout."""

import re
from typing import Any

import pytest

from kvgate.api.conditions import ConditionType, Reason
from kvgate.api.pod_reasons import POD_REASONS
from kvgate.rendering.hindrances import (
    MAX_QUOTED,
    Hindrance,
    hindrance_in_claim,
    hindrance_in_events,
    hindrance_of,
    refusal_of,
    with_nodes,
)  # fmt: skip
from kvgate.rendering.observation import Rollout, progress, rollout_of
from support.manifests import NOW, a_deployment, a_pod

PULL = "failed to pull and unpack image"
VLLM = "docker.io/vllm/vllm-openai:v0.33.0"


def unscheduled(message: str, reason: str = "Unschedulable") -> dict[str, Any]:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]}


def waiting(reason: str, message: str = "", name: str = "vllm", kind: str = "containerStatuses") -> dict[str, Any]:
    return {kind: [{"name": name, "ready": False, "state": {"waiting": {"reason": reason, "message": message}}}]}


def running(*, started: bool, ready: bool = False, last: dict[str, Any] | None = None) -> dict[str, Any]:
    status = {"name": "vllm", "ready": ready, "started": started, "state": {"running": {"startedAt": NOW}}}
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"conditions": conditions, "containerStatuses": [status | ({"lastState": last} if last else {})]}


KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}

SCENES: dict[str, tuple[dict[str, Any], Reason]] = {
    "no such GPU": (
        unscheduled("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."),
        Reason.NO_MATCHING_NODE,
    ),
    "too few GPUs": (
        unscheduled("0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 2 Insufficient nvidia.com/gpu."),
        Reason.NOT_ENOUGH_GPUS,
    ),
    "no free MIG slice": (unscheduled("0/1 nodes are available: 1 Insufficient nvidia.com/mig-3g.40gb."), Reason.NOT_ENOUGH_GPUS),
    "no device of a claim": (unscheduled("0/1 nodes are available: 1 cannot allocate all claims."), Reason.NOT_ENOUGH_GPUS),
    "taint": (
        unscheduled("0/2 nodes are available: 2 node(s) had untolerated taint {nvidia.com/gpu: present}."),
        Reason.NODES_TAINTED,
    ),
    "taint among nodes of other kinds": (
        unscheduled(
            "0/3 nodes are available: 1 node(s) had untolerated taint {reserved: yes}, 2 node(s) didn't match Pod's node "
            "affinity/selector."
        ),
        Reason.NODES_TAINTED,
    ),
    "no such GPU, beside a control plane": (
        unscheduled(
            "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 2 node(s) didn't "
            "match Pod's node affinity/selector."
        ),
        Reason.NO_MATCHING_NODE,
    ),
    "memory among nodes of other kinds": (
        unscheduled("0/3 nodes are available: 1 Insufficient memory, 2 node(s) didn't match Pod's node affinity/selector."),
        Reason.NOT_ENOUGH_RESOURCES,
    ),
    "memory": (unscheduled("0/2 nodes are available: 2 Insufficient memory."), Reason.NOT_ENOUGH_RESOURCES),
    "claim missing": (
        unscheduled('0/2 nodes are available: persistentvolumeclaim "models" not found.'), Reason.VOLUME_CLAIM_MISSING,
    ),
    "claim pending": (
        unscheduled("0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."), Reason.VOLUME_CLAIM_PENDING,
    ),
    "gate": (unscheduled("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated"), Reason.SCHEDULING_GATED),
    "words of a later scheduler": (unscheduled("0/2 nodes are available: 2 something new."), Reason.UNSCHEDULABLE),
    "no such tag": (
        waiting("ErrImagePull", f'rpc error: code = NotFound desc = {PULL} "{VLLM}": {VLLM}: not found'), Reason.IMAGE_NOT_FOUND,
    ),
    "no such tag, some time later": (
        waiting("ImagePullBackOff", f'Back-off pulling image "{VLLM}": ErrImagePull: {VLLM}: not found'), Reason.IMAGE_NOT_FOUND,
    ),
    "back-off without a cause": (waiting("ImagePullBackOff", f'Back-off pulling image "{VLLM}"'), Reason.IMAGE_NOT_PULLED),
    "credentials": (
        waiting("ErrImagePull", f"{PULL}: failed to authorize: failed to fetch oauth token: unexpected status: 401 Unauthorized"),
        Reason.IMAGE_UNAUTHORIZED,
    ),
    "rate": (
        waiting("ErrImagePull", f"{PULL}: 429 Too Many Requests - toomanyrequests: You have reached your pull rate limit"),
        Reason.IMAGE_RATE_LIMITED,
    ),
    "architecture": (waiting("ErrImagePull", "no match for platform in manifest: not found"), Reason.IMAGE_WRONG_PLATFORM),
    "no image's name": (waiting("InvalidImageName", "couldn't parse image name: invalid reference format"), Reason.IMAGE_NOT_FOUND),
    "Secret": (waiting("CreateContainerConfigError", 'secret "hf-token" not found'), Reason.SECRET_MISSING),
    "key": (
        waiting("CreateContainerConfigError", "couldn't find key token in Secret serving/hf-token"), Reason.KEY_MISSING,
    ),
    "ConfigMap": (waiting("CreateContainerConfigError", 'configmap "settings" not found'), Reason.CONFIG_MAP_MISSING),
    "driver": (
        waiting("RunContainerError", "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.9, please update"),
        Reason.DRIVER_TOO_OLD,
    ),
    "runtime": (waiting("CreateContainerError", "context deadline exceeded"), Reason.CONTAINER_NOT_CREATED),
    "init container": (
        waiting("ErrImagePull", "manifest unknown", name="fetch", kind="initContainerStatuses"), Reason.IMAGE_NOT_FOUND,
    ),
    "evicted": (
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}, Reason.EVICTED,
    ),
    "device plugin": (
        {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed due to device plugin"},
        Reason.NODE_REFUSED_POD,
    ),
    "killed at the memory limit": (running(started=False, last=KILLED), Reason.HOST_MEMORY_EXCEEDED),
    "loads": (running(started=False), Reason.LOADING),
    "no more ready": (running(started=True), Reason.NOT_ANSWERING),
    "node without a word": (
        running(started=True, ready=True) | {"conditions": [{"type": "Ready", "status": "False"}]}, Reason.NODE_LOST,
    ),
}  # fmt: skip


def found(status: dict[str, Any], **metadata: Any) -> Hindrance | None:
    pod = a_pod() | {"status": status}
    return hindrance_of(pod | {"metadata": pod["metadata"] | metadata})


@pytest.mark.parametrize("scene", SCENES)
def test_each_way_not_to_become_ready_has_its_reason_and_says_what_kubernetes_says(scene: str) -> None:
    status, reason = SCENES[scene]
    hindrance = found(status)
    assert hindrance is not None
    assert hindrance.reason is reason
    assert hindrance.message


def test_the_message_has_the_words_of_kubernetes_on_one_line_and_what_to_do() -> None:
    hindrance = found(waiting("CreateContainerConfigError", 'secret "hf-token"\n  not found'))
    assert hindrance is not None
    expected = (
        'container vllm: CreateContainerConfigError: secret "hf-token" not found; create the Secret in this namespace'
    )
    assert hindrance.message == expected
    long = found(unscheduled("x " * 5000))
    assert long is not None
    assert len(long.message) <= MAX_QUOTED


@pytest.mark.parametrize(
    "status",
    [
        {},
        running(started=True, ready=True),
        running(started=True, ready=True, last=KILLED),
        waiting("ContainerCreating"),
        waiting("PodInitializing"),
        waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container"),
        {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    ],
    ids=["new", "ready", "ready again", "in its usual course", "init", "crashed", "scheduled"],
)
def test_a_pod_without_such_a_hindrance_has_none(status: dict[str, Any]) -> None:
    assert found(status) is None


REFUSALS = [
    ('pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8', Reason.QUOTA_EXCEEDED),
    ('pods "x" is forbidden: no PriorityClass with name high was found', Reason.PRIORITY_CLASS_MISSING),
    ('pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot', Reason.POD_SECURITY_DENIED),
    ('pods "x" is forbidden: error looking up service account a/b: serviceaccount "b" not found', Reason.SERVICE_ACCOUNT_MISSING),
    ('admission webhook "policy.example" denied the request: no latest tags', Reason.ADMISSION_DENIED),
    ("the server is shy", Reason.PODS_REFUSED),
]  # fmt: skip
MULTI_ATTACH = 'Multi-Attach error for volume "pvc-1" Volume is already exclusively attached to one node'
TIMED_OUT = "Unable to attach or mount volumes: unmounted volumes=[model], timed out waiting for the condition"
EVENTS: dict[str, tuple[list[tuple[str, str]], Reason]] = {
    "nothing": ([], Reason.CONTAINER_CREATING),
    "pull": ([("Scheduled", "assigned"), ("Pulling", 'Pulling image "x"')], Reason.CONTAINER_CREATING),
    "Secret of a volume": ([("FailedMount", 'MountVolume.SetUp failed for volume "a" : secret "tls" not found')], Reason.SECRET_MISSING),
    "ConfigMap of a volume": ([("FailedMount", 'MountVolume.SetUp failed: configmap "a" not found')], Reason.CONFIG_MAP_MISSING),
    "key of a volume": ([("FailedMount", "MountVolume.SetUp failed: references non-existent secret key: a")], Reason.KEY_MISSING),
    "other node": ([("FailedAttachVolume", MULTI_ATTACH), ("FailedMount", TIMED_OUT)], Reason.VOLUME_IN_USE),
    "attach": ([("FailedAttachVolume", "AttachVolume.Attach failed: rpc error"), ("FailedMount", TIMED_OUT)], Reason.VOLUME_NOT_ATTACHED),
    "mount": ([("FailedMount", "MountVolume.MountDevice failed: mount failed: exit status 32")], Reason.VOLUME_NOT_MOUNTED),
    "block device": ([("FailedMapVolume", "MapVolume failed")], Reason.VOLUME_NOT_MOUNTED),
    "full": ([("FailedMount", "mkdir /var/lib: no space left on device")], Reason.VOLUME_FULL),
    "network": ([("FailedCreatePodSandBox", "Failed to create pod sandbox: plugin type cilium failed")], Reason.CONTAINER_NOT_CREATED),
    "what is over": ([("FailedMount", TIMED_OUT), ("Pulling", 'Pulling image "x"')], Reason.CONTAINER_CREATING),
    "words of a later kubelet": ([("FailedSomething", "new")], Reason.CONTAINER_CREATING),
}  # fmt: skip


def in_events(*events: tuple[str, str]) -> Hindrance:
    return hindrance_in_events("qwen-1-a", "hash", [{"reason": reason, "note": note} for reason, note in events])


@pytest.mark.parametrize("scene", EVENTS)
def test_events_say_why_a_pod_waits_on_its_node(scene: str) -> None:
    events, reason = EVENTS[scene]
    hindrance = in_events(*events)
    assert hindrance.reason is reason
    assert hindrance.message


def test_messages_have_no_secrets_and_are_short_however_long_they_were() -> None:
    secret = "mount -o username=me,password=swordfish1 failed: hf_abcdefghijkl https://me:letmein@nas/x"
    told = [in_events(("FailedMount", secret + " ☠\u202e" * 300_000)).message, f"{found(unscheduled(secret))}"]
    for message in told:
        assert not {"swordfish1", "hf_abcdefghijkl", "letmein"} & set(re.findall(r"\w+", message))
        assert len(message) < 2 * MAX_QUOTED


def test_a_claim_says_why_it_has_no_volume() -> None:
    pending = found(SCENES["claim pending"][0])
    assert pending is not None
    failed = {"reason": "ProvisioningFailed", "note": 'storageclass.storage.k8s.io "fast" not found'}
    told = hindrance_in_claim(pending, [failed, {"reason": "ExternalProvisioning", "note": "waiting"}])
    assert told.message.startswith('ProvisioningFailed: storageclass.storage.k8s.io "fast" not found; not scheduled')
    assert hindrance_in_claim(pending, []) == pending


def test_too_few_gpus_are_told_with_the_number_that_one_node_must_have() -> None:
    pod = a_pod() | {"status": SCENES["too few GPUs"][0]}
    limits = {"limits": {"nvidia.com/gpu": "8", "memory": "1Gi"}}
    hindrance = hindrance_of(pod | {"spec": {"containers": [{"name": "vllm", "resources": limits}]}})
    assert hindrance is not None
    assert hindrance.message.startswith("not scheduled, needs 8 nvidia.com/gpu on one node: 0/3 nodes are available")


def test_every_reason_of_the_table_is_reached_by_a_scene() -> None:
    reached = {reason for _, reason in (*SCENES.values(), *EVENTS.values())} | {
        refusal_of(each) for each, _ in REFUSALS
    }
    by_other_tests = {
        Reason.LOADING_SLOWLY, Reason.REPLICA_LOST, Reason.KV_CACHE_TOO_SMALL, Reason.OUT_OF_MEMORY,
        Reason.ENGINE_REFUSED_TO_START, Reason.ENGINE_CRASHED,
    }  # fmt: skip
    assert reached | by_other_tests == set(POD_REASONS)


def test_a_pod_that_is_being_deleted_has_none() -> None:
    assert found(SCENES["taint"][0], deletionTimestamp=NOW) is None


@pytest.mark.parametrize(("message", "reason"), REFUSALS)
def test_pods_that_the_api_server_refuses_have_a_reason(message: str, reason: Reason) -> None:
    assert refusal_of(message) is reason
    ready, _, stalled = progress(None, None, Rollout(wanted=1, refused=message), None)
    assert (ready[1:3], stalled[1:3]) == ((False, reason), (True, reason))


ROLLING = rollout_of(a_deployment(available=1))


def hindered(*scenes: str) -> list[Hindrance]:
    return [each for each in (found(SCENES[scene][0]) for scene in scenes) if each is not None]


@pytest.mark.parametrize(
    ("scenes", "reason", "is_stalled"),
    [
        (["loads"], Reason.LOADING, False),
        (["too few GPUs"], Reason.NOT_ENOUGH_GPUS, False),
        (["loads", "too few GPUs"], Reason.NOT_ENOUGH_GPUS, False),
        (["loads", "Secret"], Reason.SECRET_MISSING, True),
        (["no more ready"], Reason.NOT_ANSWERING, False),
        (["no such tag", "no such tag", "loads"], Reason.IMAGE_NOT_FOUND, True),
    ],
)
def test_the_conditions_name_the_pod_that_needs_somebody_before_one_that_time_helps(
    scenes: list[str],
    reason: Reason,
    is_stalled: bool,  # noqa: FBT001
) -> None:
    ready, reconciling, stalled = progress(None, None, ROLLING, None, hindrances=hindered(*scenes))
    assert (ready[0], ready[1], ready[2]) == (ConditionType.READY, False, reason)
    assert ready[3].startswith("1 of 2 replicas are ready; pod ")
    assert (reconciling[1], reconciling[2], stalled[1]) == (not is_stalled, reason, is_stalled)
    assert ("so does 1 more" in ready[3]) == (scenes.count("no such tag") == 2)


def test_what_time_helps_is_stalled_once_the_deadline_has_passed() -> None:
    late = rollout_of(a_deployment(available=0, stuck="has timed out"))
    ready, _, stalled = progress(None, None, late, None, hindrances=hindered("loads"))
    assert ready[2] is Reason.LOADING
    assert stalled[1:3] == (True, Reason.PROGRESS_DEADLINE_EXCEEDED)
    assert "loads the model" in stalled[3]


def test_a_crash_whose_cause_vllm_states_counts_more() -> None:
    crash = (Reason.KV_CACHE_TOO_SMALL, "one request does not fit")
    ready, *_ = progress(None, None, ROLLING, crash, hindrances=hindered("killed at the memory limit"))
    assert ready[2:] == crash


def test_known_nodes_say_what_the_scheduler_only_counts() -> None:
    without = found(SCENES["no such GPU"][0])
    few = found(SCENES["too few GPUs"][0])
    sick = found(SCENES["no more ready"][0])
    assert without is not None
    assert few is not None
    assert sick is not None
    tainted = with_nodes(without, "", "nodes have the taint reserved")
    assert (tainted.reason, tainted.message.startswith("nodes have the taint reserved: add the toleration")) == (
        Reason.NODES_TAINTED,
        True,
    )
    assert with_nodes(few, "needs 8; 2 nodes have 4 free", "").message.startswith(
        "needs 8; 2 nodes have 4 free; not scheduled"
    )
    assert [with_nodes(without, "", ""), with_nodes(sick, "room", "taints")] == [without, sick]
