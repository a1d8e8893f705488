"""Which pods' events are listed, how often, and what becomes of the answers of anybody."""

from typing import Any, cast

from kvgate.api.conditions import Reason
from kvgate.cluster.errors import Forbidden
from kvgate.controller.pod_events import MAX_LOOKS, QUIET_SECONDS, PodEvents
from kvgate.controller.pods import KnownPods, Pod, pod_of
from support.manifests import a_pod

CREATING = {"waiting": {"reason": "ContainerCreating"}}
UNBOUND = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."


def a_quiet_pod(name: str = "qwen-1-a", **options: Any) -> dict[str, Any]:
    """A pod on a node whose containers are not created yet."""
    body = a_pod(name, ready=False, **options)
    body["status"]["containerStatuses"] = [{"name": "vllm", "state": CREATING}]
    return body | {"spec": {"nodeName": "gpu-1"}}


def a_pod_with_a_claim() -> dict[str, Any]:
    body = a_pod(ready=False)
    body["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": UNBOUND}]}
    return body | {"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "models"}}, {"emptyDir": {}}]}}


class Events:
    """A cluster that answers with one event, or refuses, and a clock."""

    def __init__(self, reason: str = "FailedMount", note: str = "mount failed") -> None:
        self.event, self.now = {"reason": reason, "note": note}, 100.0
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.refuses = False
        self.looks = PodEvents(cast("Any", self), clock=lambda: self.now)

    async def events_about(self, namespace: str, **regarding: str) -> list[dict[str, Any]]:
        self.asked.append((namespace, regarding))
        if self.refuses:
            raise Forbidden("list", "events.events.k8s.io", "as the test says")
        return [self.event]

    async def at(self, seconds: float, *pods: Pod) -> bool:
        self.now = 100.0 + seconds
        return await self.looks.look(pods)


async def test_events_are_listed_after_a_while_and_less_and_less_often() -> None:
    world, pod = Events(), pod_of(a_quiet_pod())
    asked_at = []
    for second in range(101):
        before = len(world.asked)
        await world.at(second, pod)
        asked_at += [second] * (len(world.asked) - before)
    assert asked_at[:4] == [QUIET_SECONDS, 6, 9, 12]
    assert asked_at[-1] - asked_at[-2] >= 9
    assert world.asked[0] == ("serving", {"uid": "uid-qwen-1-a"})


async def test_what_they_say_is_the_hindrance_while_the_pod_says_nothing_itself() -> None:
    world, quiet = Events(), pod_of(a_quiet_pod())
    assert await world.at(0, quiet) is False
    assert world.looks.hindrance(quiet) is None
    assert await world.at(QUIET_SECONDS, quiet) is True
    found = world.looks.hindrance(quiet)
    assert found is not None
    assert found.reason is Reason.VOLUME_NOT_MOUNTED
    assert await world.at(2 * QUIET_SECONDS, quiet) is False, "the same again is no news"
    ready = pod_of(a_pod())
    assert world.looks.hindrance(ready) is None


async def test_no_more_than_a_few_pods_are_looked_at_in_one_round_and_each_has_its_turn() -> None:
    world = Events()
    pods = [pod_of(a_quiet_pod(f"p-{index}")) for index in range(3 * MAX_LOOKS)]
    await world.at(0, *pods)
    for round_ in range(3):
        await world.at(QUIET_SECONDS + round_ * 0.1, *pods)
        assert len(world.asked) == (round_ + 1) * MAX_LOOKS
    assert len({regarding["uid"] for _, regarding in world.asked}) == len(pods)


async def test_nothing_is_listed_for_no_pod_and_what_went_is_forgotten() -> None:
    world, pod = Events(), pod_of(a_quiet_pod())
    for second in range(20):
        await world.at(second)
    assert world.asked == []
    await world.at(20, pod)
    await world.at(21)
    assert world.looks._looked == {}


async def test_a_refusal_is_logged_once_and_changes_nothing(caplog: Any) -> None:
    world, pod = Events(), pod_of(a_quiet_pod())
    await world.at(0, pod)
    await world.at(3, pod)
    known = world.looks.hindrance(pod)
    world.refuses = True
    for second in (6, 9, 12):
        await world.at(second, pod)
    assert world.looks.hindrance(pod) == known
    assert len(caplog.records) == 1


async def test_a_claim_without_a_volume_says_why() -> None:
    world, pod = Events("ProvisioningFailed", "quota of the zone"), pod_of(a_pod_with_a_claim())
    await world.at(0, pod)
    await world.at(3, pod)
    assert world.asked == [("serving", {"kind": "PersistentVolumeClaim", "name": "models"})]
    found = world.looks.hindrance(pod)
    assert found is not None
    assert (found.reason, found.message.startswith("ProvisioningFailed: quota of the zone; ")) == (
        Reason.VOLUME_CLAIM_PENDING,
        True,
    )


def test_pods_that_wait_without_a_word_are_known_until_they_say_something() -> None:
    known, body = KnownPods(), a_quiet_pod()
    known.put(body)
    assert known.quiet == {"uid-qwen-1-a"}
    body["status"]["containerStatuses"] = [{"name": "vllm", "state": {"waiting": {"reason": "ErrImagePull"}}}]
    known.put(body)
    assert known.quiet == set()
    known.put(a_quiet_pod())
    known.forget("uid-qwen-1-a")
    assert known.quiet == set()
