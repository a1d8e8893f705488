"""Rounds of the observer against a cluster in memory and real servers on the loopback: who is asked, and what is made of it."""

import logging
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from kvgate.cluster.client import Kind
from kvgate.cluster.errors import ApiError, Forbidden, Unavailable
from kvgate.controller import observe as observing
from kvgate.controller.decision import Intent, Situation, assess_owner
from kvgate.controller.memory import Key, Memory
from kvgate.controller.observe import MOST_LEFT_OUT, Observer, Scrape, ScrapeResult
from kvgate.controller.pods import KnownPods
from kvgate.controller.starts import ObservedStarts
from kvgate.metrics.exporter import DeploymentSnapshot
from kvgate.rendering.status import previous_status, status_of
from kvgate.runtime.background import Troubles
from kvgate.vllm.metric_names import EngineReading
from support.crash_log import SENTENCE, crashed
from support.manifests import NOW, a_document, a_pod, an_owner

KEY = ("serving", "qwen")
DEPLOYMENT = {"metadata": {"uid": "uid-deployment"}}


class FakeCluster:
    """ReplicaSets by name, and pods; counts what it was asked."""

    def __init__(self) -> None:
        self.owners = {"qwen-1": "uid-deployment"}
        self.pods: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.refusal: type[ApiError] | None = None
        self.log_refusal: type[ApiError] | None = None

    async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        self.asked.append(name)
        if self.refusal:
            raise self.refusal("get", kind.resource, "as the test says")
        return self._replica_set(name) if name in self.owners else None

    def _replica_set(self, name: str) -> dict[str, Any]:
        owner = {"kind": "Deployment", "name": "qwen", "uid": self.owners[name], "controller": True}
        return {"metadata": {"name": name, "uid": f"uid-{name}", "ownerReferences": [owner]}}

    async def list_metadata(self, kind: Kind, namespace: str, *, label_selector: str) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(f"{label_selector} in {namespace}")
        for name in self.owners:
            yield self._replica_set(name)

    async def log(self, namespace: str, pod: str, container: str, *, of_previous: bool) -> str:
        self.asked.append(f"log of {pod}, {container}, {of_previous}")
        if self.log_refusal:
            raise self.log_refusal("get", "pods/log", "as the test says")
        return "ValueError: No available memory for the cache blocks.\nRuntimeError: Engine core initialization failed."

    async def list(
        self, kind: Kind, namespace: str | None = None, *, label_selector: str | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        assert label_selector == "kvgate.io/inferencedeployment"
        for body in self.pods:
            yield body


class World:
    """An observer and all around it; servers answer what `answers` says for their address."""

    def __init__(self) -> None:
        self.cluster, self.pods, self.memory = (
            FakeCluster(),
            KnownPods(),
            Memory(DeploymentSnapshot(), ObservedStarts(None)),
        )
        self.answers: dict[str, Scrape] = {}
        self.scraped: list[str] = []
        self.lengths: dict[str, int | Scrape] = {}
        self.asked_for_length: list[str] = []
        self.enqueued: list[Key] = []
        self.failed: list[str] = []
        self.observer = Observer(
            cluster=self.cluster, namespaces=(), pods=self.pods, scrape=self.scrape,  # type: ignore[arg-type]
            length=self.length, memory=self.memory, enqueue=self.enqueued.append, troubles=Troubles(self.failed.append),
        )  # fmt: skip
        self.show()

    def show(self) -> None:
        """What a reconcile does at its end."""
        document, owner = a_document(), an_owner()
        judged = assess_owner(owner, "")
        status = status_of(
            owner, judged.assessment, left_out=None, obstacle=None, deployment=None, before=previous_status(document, NOW),
            observation=self.memory.observation(KEY), template_hash="hash",
        )  # fmt: skip
        intent = Intent(owner=owner, judged=judged, template_hash="hash")
        self.memory.show(KEY, Situation(document=document, owner=owner), intent, status, DEPLOYMENT)

    async def scrape(self, ip: str, known: EngineReading | None = None) -> Scrape:
        self.scraped.append(ip)
        return self.answers[ip]

    async def length(self, ip: str) -> int | Scrape:
        self.asked_for_length.append(ip)
        return self.lengths.get(ip, 40960)

    async def round(self) -> list[Key]:
        """Whose reconcile it asked for."""
        self.enqueued.clear()
        self.scraped.clear()
        await self.observer.run_once()
        return list(self.enqueued)

    @property
    def usage(self) -> float | None:
        sample = self.memory._samples[KEY].observed
        return sample.usage_ratio if sample else None


def read(tokens: int = 1600, usage: float = 0.5) -> Scrape:
    reading = EngineReading(num_gpu_blocks=100, block_size=16, kv_cache_size_tokens=tokens, usage_ratio=usage)
    return Scrape(result=ScrapeResult.READ, reading=reading)


def trouble(result: ScrapeResult = ScrapeResult.TIMEOUT) -> Scrape:
    return Scrape(result=result, trouble="does not answer")


async def test_a_capacity_is_reconciled_once_and_a_usage_never() -> None:
    world = World()
    assert await world.round() == [KEY], "that there is no pod is news as well"
    world.pods.put(a_pod(ip="a"))
    world.answers["a"] = read(usage=0.25)
    assert await world.round() == [KEY]
    world.show()
    assert world.usage == 0.25
    world.answers["a"] = read(usage=0.75)
    assert await world.round() == []
    assert world.usage == 0.75
    world.answers["a"] = read(tokens=3200)
    assert await world.round() == [KEY]


async def test_pods_are_shown_with_node_start_and_restarts_whether_they_answer_or_not() -> None:
    world = World()
    started, waiting, evicted = (
        a_pod(name, ip=name, ready=name == "started", restarts=3 * (name == "waiting"))
        for name in ("started", "waiting", "evicted")
    )
    for body in (started, waiting, evicted):
        body["spec"] = {"nodeName": f"node-of-{body['metadata']['name']}"}
        body["status"]["startTime"] = "2026-11-21T00:00:00Z"
    started["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": "2026-11-21T00:01:00Z"}}
    waiting["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    evicted["status"]["phase"] = "Failed"
    for body in (started, waiting, evicted, a_pod("going", ip="going", going=True)):
        world.pods.put(body)
    world.answers["started"] = trouble()
    await world.round()
    first, second = world.memory._samples[KEY].pods
    assert (first.name, first.node, first.is_ready, first.restarts) == ("started", "node-of-started", True, 0)
    assert (second.name, second.is_ready, second.restarts) == ("waiting", False, 3)
    assert first.started_seconds is not None
    assert second.started_seconds is not None
    assert first.started_seconds - second.started_seconds == 60
    assert first.headroom_tokens is None
    world.answers["started"] = read(tokens=1600, usage=0.25)
    await world.round()
    assert [pod.headroom_tokens for pod in world.memory._samples[KEY].pods] == [1200, None]
    world.show()
    assert [pod.headroom_tokens for pod in world.memory._samples[KEY].pods] == [1200, None]
    for name in ("started", "waiting"):
        world.pods.forget(f"uid-{name}")
    await world.round()
    assert world.memory._samples[KEY].pods == ()


async def test_a_time_that_cannot_be_read_is_no_start() -> None:
    world, body = World(), a_pod(ip="a", ready=False)
    body["status"]["startTime"] = "yesterday"
    world.pods.put(body)
    await world.round()
    assert world.memory._samples[KEY].pods[0].started_seconds is None


async def test_only_ready_pods_of_our_deployment_are_asked_whatever_labels_say() -> None:
    world = World()
    world.cluster.owners["stranger"] = "uid-of-another-deployment"
    world.pods.put(a_pod("ours", ip="a"))
    world.pods.put(a_pod("not-ready", ip="b", ready=False))
    world.pods.put(a_pod("going", ip="c", going=True))
    world.pods.put(a_pod("copied-label", ip="d", replica_set=None))
    world.pods.put(a_pod("others", ip="e", replica_set="stranger"))
    world.pods.put(a_pod("invented", ip="f", replica_set="does-not-exist"))
    stolen = a_pod("stolen-name", ip="g")
    stolen["metadata"]["ownerReferences"][0]["uid"] = "another-uid"
    world.pods.put(stolen)
    world.answers["a"] = read()
    await world.round()
    assert world.scraped == ["a"]
    seen = world.memory.observation(KEY)
    assert seen is not None
    assert [engine.pod for engine in seen.engines] == ["ours"]


async def test_of_many_new_pods_the_replica_sets_are_listed_and_no_others() -> None:
    world = World()
    for number in range(5):
        world.cluster.owners[f"set-{number}"] = "uid-deployment"
        world.pods.put(a_pod(f"pod-{number}", ip=str(number), replica_set=f"set-{number}"))
        world.answers[str(number)] = read()
    for _ in range(2):
        await world.round()
    assert world.cluster.asked == ["kvgate.io/inferencedeployment in (qwen) in serving"]
    assert len(world.scraped) == 5


async def test_a_change_of_what_hinders_a_pod_enqueues_its_object_and_no_other() -> None:
    world = World()
    gone = {"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    hindered = a_pod("ours", ready=False)
    hindered["status"]["containerStatuses"] = [{"name": "vllm", **gone}]
    world.pods.put(hindered)
    copied = a_pod("copied-label", ready=False, replica_set=None)
    copied["status"]["containerStatuses"] = [{"name": "vllm", **gone}]
    world.pods.put(copied)
    assert world.pods.hindered.is_set()
    await world.observer.look_at_hindrances()
    assert world.enqueued == [KEY]
    await world.observer.look_at_hindrances()
    assert world.enqueued == [KEY], "nothing changed"
    (found,) = world.memory._hindrances[KEY]
    assert found.pod == "ours"


async def test_a_replica_set_is_asked_for_once() -> None:
    world = World()
    for name in ("a", "b"):
        world.pods.put(a_pod(name, ip=name))
        world.answers[name] = read()
    for _ in range(3):
        await world.round()
    assert world.cluster.asked == ["qwen-1"]
    world.pods.forget("uid-a")
    world.pods.forget("uid-b")
    await world.round()
    world.pods.put(a_pod("c", ip="a"))
    await world.round()
    assert world.cluster.asked == ["qwen-1", "qwen-1"], "and forgotten with its last pod"


async def test_a_trouble_is_told_when_it_comes_again_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.pods.put(a_pod(ip="a"))
    world.answers["a"] = trouble()
    with caplog.at_level(logging.WARNING):
        assert await world.round() == [], "it may come right the next time"
        assert await world.round() == [KEY]
        for _ in range(5):
            assert await world.round() == []
    assert [record.getMessage() for record in caplog.records] == ["pod serving/qwen-1-a does not answer"]
    seen = world.memory.observation(KEY)
    assert seen is not None
    assert [(each.reason, each.message) for each in seen.troubles] == [
        ("ScrapeTimedOut", "does not answer; it may be overloaded: look at its CPU usage and its log")
    ]
    world.answers["a"] = read()
    assert await world.round() == [KEY]


async def test_a_pod_that_never_answers_is_read_less_and_less_often() -> None:
    world = World()
    world.pods.put(a_pod(ip="a"))
    world.answers["a"] = trouble()
    rounds = list[int]()
    for number in range(80):
        await world.round()
        rounds += [number] * len(world.scraped)
    gaps = [later - earlier for earlier, later in pairwise(rounds)]
    assert gaps == sorted(gaps)
    assert gaps[0] == 1
    assert gaps[-1] == MOST_LEFT_OUT
    world.answers["a"] = read()
    for _ in range(MOST_LEFT_OUT + 1):
        await world.round()
    assert world.scraped, "one that answers is read in each round"


async def test_a_trouble_whose_words_change_is_told_once() -> None:
    world = World()
    world.pods.put(a_pod(ip="a"))
    for status in (500, 500):
        world.answers["a"] = Scrape(result=ScrapeResult.HTTP_ERROR, trouble=f"answers HTTP {status}")
        told = await world.round()
    assert told == [KEY]
    world.answers["a"] = Scrape(result=ScrapeResult.HTTP_ERROR, trouble="answers HTTP 503")
    assert await world.round() == []


async def test_two_troubles_in_turn_are_not_told_in_turn() -> None:
    world = World()
    world.pods.put(a_pod(ip="a"))
    enqueued = []
    for result in [ScrapeResult.TIMEOUT] * 2 + [ScrapeResult.UNREACHABLE, ScrapeResult.TIMEOUT] * 4:
        world.answers["a"] = trouble(result)
        enqueued += await world.round()
    assert enqueued == [KEY]


async def test_a_capacity_outlives_a_lost_answer_and_the_usage_does_not() -> None:
    world = World()
    world.pods.put(a_pod(ip="a"))
    world.answers["a"] = read()
    await world.round()
    world.show()
    world.answers["a"] = trouble()
    assert await world.round() == []
    assert world.usage is None
    seen = world.memory.observation(KEY)
    assert seen is not None
    assert len(seen.engines) == 1


def changed(tokens: int) -> Scrape:
    return Scrape(result=ScrapeResult.CHANGED, reading=read(tokens).reading, trouble="reports another capacity")


def seen_tokens(world: World) -> list[int | None]:
    seen = world.memory.observation(KEY)
    return [] if seen is None else [engine.reading.kv_cache_size_tokens for engine in seen.engines]


async def test_a_capacity_that_changes_all_the_time_is_one_trouble_and_the_first_one_stays() -> None:
    world = World()
    world.pods.put(a_pod(ip="a"))
    world.answers["a"] = read()
    await world.round()
    enqueued = []
    for round_ in range(3 * observing.SETTLED_AFTER):
        world.answers["a"] = changed(tokens=3200 + round_)
        enqueued += await world.round()
    assert enqueued == [KEY], "a liar costs one reconcile"
    assert seen_tokens(world) == [1600]
    seen = world.memory.observation(KEY)
    assert seen is not None
    assert [each.reason for each in seen.troubles] == ["CapacityChanges"]


async def test_a_capacity_that_changes_and_stays_is_believed_in_the_end() -> None:
    world = World()
    world.pods.put(a_pod(ip="a"))
    world.answers["a"] = read()
    await world.round()
    world.answers["a"] = changed(tokens=3200)
    for _ in range(observing.SETTLED_AFTER - 1):
        await world.round()
    assert seen_tokens(world) == [1600]
    assert await world.round() == [KEY]
    assert seen_tokens(world) == [3200]


async def test_names_that_nobody_knows_are_told_beside_the_capacity() -> None:
    world = World()
    world.pods.put(a_pod(ip="a"))
    world.answers["a"] = Scrape(
        result=ScrapeResult.UNKNOWN_NAMES, reading=read().reading, trouble="has unknown metrics"
    )
    await world.round()
    assert seen_tokens(world) == [1600]
    assert await world.round() == [KEY]
    seen = world.memory.observation(KEY)
    assert seen is not None
    assert [each.reason for each in seen.troubles] == ["ReleaseUnknown"]


async def test_a_container_that_was_started_again_has_to_tell_anew() -> None:
    world = World()
    world.pods.put(a_pod(ip="a"))
    world.answers["a"] = read()
    await world.round()
    world.pods.put(a_pod(ip="a", restarts=1))
    world.answers["a"] = read(tokens=3200)
    assert await world.round() == [KEY]
    seen = world.memory.observation(KEY)
    assert seen is not None
    assert [engine.reading.kv_cache_size_tokens for engine in seen.engines] == [3200]


async def test_a_crash_is_reconciled_once() -> None:
    world = World()
    await world.round()
    ended = {"exitCode": 1, "reason": "Error", "message": "ValueError: No available memory for the cache blocks."}
    world.pods.put(a_pod(ready=False, restarts=1, ended=ended))
    assert await world.round() == [KEY]
    world.pods.put(a_pod(ready=False, restarts=2, ended=ended))
    assert await world.round() == []


def wrapped(run: int = 0) -> dict[str, object]:
    return crashed("RuntimeError: Engine core initialization failed.", run=f"containerd://{run}")


async def test_a_log_is_read_once_for_an_end_whose_cause_is_not_in_its_last_words() -> None:
    world = World()
    await world.round()
    world.pods.put(a_pod(ready=False, restarts=1, ended=wrapped()))
    assert await world.round() == [KEY]
    seen = world.memory.observation(KEY)
    assert seen is not None
    assert [crash.reason for crash in seen.crashes] == ["KVCacheTooSmall"]
    assert await world.round() == []
    world.pods.put(a_pod(ready=False, restarts=2, ended=wrapped(1)))
    assert await world.round() == [], "the same cause again"
    assert world.cluster.asked == ["qwen-1", *["log of qwen-1-a, vllm, True"] * 2]


async def test_a_log_that_may_not_be_read_leaves_the_last_words(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.cluster.log_refusal = Forbidden
    world.pods.put(a_pod(ready=False, restarts=2, ended=wrapped()))
    for _ in range(3):
        await world.round()
    seen = world.memory.observation(KEY)
    assert seen is not None
    assert [crash.reason for crash in seen.crashes] == ["EngineCrashed"]
    assert len(caplog.records) == 1


async def test_no_log_is_read_of_a_pod_that_is_not_ours() -> None:
    world = World()
    world.pods.put(a_pod(ready=False, restarts=2, ended=wrapped(), replica_set=None))
    await world.round()
    assert world.cluster.asked == []


async def test_a_refused_start_is_learnt_from_once_a_kind_however_often_it_comes_again() -> None:
    world = World()
    for run, available in enumerate(("3.5 GiB", "3.48 GiB", "3.51 GiB")):
        words = f"ValueError: {SENTENCE}".replace("3.5 GiB", available)
        world.pods.put(a_pod(ready=False, restarts=run, ended=crashed(words, run=f"containerd://{run}")))
        await world.round()
        starts = world.memory.new_starts(KEY, "hash")
        assert len(starts) == (1 if run == 0 else 0)
        world.memory.learnt(KEY, starts, "")


async def test_every_engine_of_the_current_spec_is_learnt_from_once() -> None:
    world = World()
    world.pods.put(a_pod("a", ip="a"))
    world.pods.put(a_pod("old", ip="a", template="earlier"))
    world.answers["a"] = read()
    await world.round()
    engines = world.memory.new_starts(KEY, "hash")
    assert [engine.pod for engine in engines] == ["a"]
    assert world.memory.new_starts(KEY, "hash") == engines, "until it was learnt from"
    world.memory.learnt(KEY, engines, "")
    assert world.memory.new_starts(KEY, "hash") == ()


async def test_what_a_deleted_object_said_is_gone() -> None:
    world = World()
    world.pods.put(a_pod(ip="a"))
    world.answers["a"] = read()
    await world.round()
    world.memory.forget(KEY)
    assert world.memory.observation(KEY) is None
    assert await world.round() == []
    assert world.scraped == []


async def test_what_no_watch_told_of_is_found_by_the_list() -> None:
    world = World()
    world.pods.put(a_pod("gone", ip="a"))
    world.cluster.pods = [a_pod("new", ip="b")]
    await world.pods.relist(world.cluster, [None])  # type: ignore[arg-type]
    world.answers["b"] = read()
    await world.round()
    assert world.scraped == ["b"]


async def test_the_loop_goes_on_after_an_api_server_that_refuses_and_after_a_defect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.cluster.pods = [a_pod(ip="a")]
    world.cluster.refusal = Unavailable

    class Enough(BaseException):
        """Ends a loop that nothing else ends."""

    async def sleep(_: float) -> None:
        if world.cluster.refusal:
            world.cluster.refusal = None  # the next round fails for want of an answer, which is a defect of this test
        elif "a" not in world.answers:
            world.answers["a"] = read()
        else:
            raise Enough

    monkeypatch.setattr(observing.asyncio, "sleep", sleep)
    with caplog.at_level(logging.WARNING), pytest.raises(Enough):
        await world.observer.run_forever(15.0)
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    assert world.enqueued == [KEY]


async def test_a_container_is_asked_for_its_longest_request_until_it_answers_and_then_no_more() -> None:
    world = World()
    for name in ("a", "b", "c"):
        world.pods.put(a_pod(name, ip=name))
        world.answers[name] = read()
    world.lengths = {
        "a": 25456, "b": trouble(), "c": Scrape(result=ScrapeResult.HTTP_ERROR, trouble="answers HTTP 401", http_status=401),
    }  # fmt: skip
    await world.round()
    assert sorted(world.asked_for_length) == ["a", "b", "c"]
    seen = world.memory.observation(KEY)
    assert seen is not None
    assert [(each.pod, each.tokens, each.reason) for each in seen.lengths] == [
        ("a", 25456, "NotObserved"), ("b", None, "LengthNotTold"), ("c", None, "ApiKeyRequired"),
    ]  # fmt: skip
    assert "kvgate never reads one" in seen.lengths[2].message
    world.lengths["b"] = 30000
    assert await world.round() == [KEY], "a length that is learnt later is news"
    assert await world.round() == []
    assert sorted(world.asked_for_length) == ["a", "b", "b", "c"]
    world.pods.put(a_pod("a", ip="a", restarts=1))
    await world.round()
    assert world.asked_for_length[4:] == ["a"], "a restarted container may have found another length"


async def test_a_pod_that_does_not_answer_is_not_asked_a_second_thing() -> None:
    world = World()
    world.pods.put(a_pod(ip="a"))
    world.answers["a"] = trouble()
    await world.round()
    assert world.asked_for_length == []


async def test_a_pod_that_came_before_its_object_was_known_is_looked_at_once_it_is() -> None:
    world = World()
    world.memory.forget(KEY)
    body = a_pod(ready=False)
    body["status"]["containerStatuses"] = [{"name": "vllm", "state": {"waiting": {"reason": "ErrImagePull"}}}]
    world.pods.put(body)
    world.pods.hindered.clear()
    await world.observer.look_at_hindrances()
    assert world.memory.hindrances(KEY, "hash") == ()
    world.show()
    await world.observer.look_at_events()
    assert world.pods.hindered.is_set()
    await world.observer.look_at_hindrances()
    assert [each.reason for each in world.memory.hindrances(KEY, "hash")] == ["ImageNotPulled"]
    world.pods.hindered.clear()
    await world.observer.look_at_events()
    assert not world.pods.hindered.is_set()


async def test_an_engine_that_ends_is_reported_before_the_next_round_and_one_that_is_gone_is_not() -> None:
    world = World()
    world.pods.put(a_pod(ready=False, ended=crashed(), restarts=1))
    await world.observer.look_at_hindrances()
    observation = world.memory.observation(KEY)
    assert observation is not None
    assert [crash.reason for crash in observation.crashes] == ["KVCacheTooSmall"]
    assert world.enqueued == [KEY]
    world.pods.forget("uid-qwen-1-a")
    world.pods.put(a_pod("other", ready=False))
    await world.observer.look_at_hindrances()
    observation = world.memory.observation(KEY)
    assert observation is not None
    assert observation.crashes == ()
