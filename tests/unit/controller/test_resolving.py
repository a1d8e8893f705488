"""The hub is asked once, for whom it is asked waits no longer than it may, and whatever the answer is, the wait ends."""

import asyncio
import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kvgate.api.conditions import Reason
from kvgate.api.validation import parse_document
from kvgate.checkpoint.published import ModelName, Published
from kvgate.checkpoint.stored import entry_key, packed
from kvgate.cluster.client import Kind
from kvgate.cluster.errors import Unavailable
from kvgate.controller.fetches import Failure, Fetched, FetchLimits, FetchQueue
from kvgate.controller.model_store import MAX_BYTES, UNUSED_SECONDS, ModelStore, superfluous
from kvgate.controller.resolution import Resolution
from kvgate.controller.resolving import MAX_RETRY_SECONDS, REFUSED_SECONDS, Resolver, ResolvingInstruments
from kvgate.controller.starts import ConfigMapName
from kvgate.runtime.background import Troubles
from support.builders import new_llama_config
from support.manifests import a_document
from support.waiting import Clock, turns, until

MAP = ConfigMapName(namespace="kvgate-system", name="kvgate-models")
NAME = ModelName("mine/small")
KEY = ("serving", "qwen")
Key = tuple[str, str]


def a_fetched(name: str = NAME.name) -> Fetched:
    return Fetched(entry=packed(Published(name=name, config=new_llama_config())), commit="0a1b", source="hub")


GATED = Failure(reason=Reason.GATED, message="mine/small is gated")
AWAY = Failure(reason=Reason.HUB_UNREACHABLE, message="the hub cannot be reached", is_temporary=True)


class FakeCluster:
    """One ConfigMap."""

    def __init__(self) -> None:
        self.map: dict[str, Any] | None = None
        self.writes = 0
        self.is_away = False

    async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        return json.loads(json.dumps(self.map))  # type: ignore[no-any-return]

    async def apply(self, kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
        if self.is_away:
            raise Unavailable("patch", "configmaps", "as the test says")
        self.map = self.map or {**body, "data": {}, "binaryData": {}}
        return self.map

    async def merge(self, kind: Kind, namespace: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        assert self.map is not None
        self.writes += 1
        for part in ("data", "binaryData"):
            merged = {**self.map[part], **body[part]}
            self.map[part] = {key: value for key, value in merged.items() if value is not None}
        return self.map


class Hub:
    """Answers by the name of the model, and counts who asks."""

    def __init__(self, **answers: Fetched | Failure) -> None:
        self.answers: dict[str, Fetched | Failure] = {NAME.name: a_fetched(), **answers}
        self.asked: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, namespace: str, name: ModelName) -> Fetched | Failure:
        self.asked.append((namespace, name.name))
        await self.gate.wait()
        return self.answers[name.name]


class Setting:
    """A resolver with all that it works on."""

    def __init__(self, hub: Hub, clock: Clock, *, limits: FetchLimits | None = None) -> None:
        self.hub, self.clock, self.cluster, self.store = hub, clock, FakeCluster(), ModelStore(MAP)
        self.failed: list[str] = []
        self.enqueued: list[tuple[Key, float]] = []
        self.resolver = Resolver(
            self.store, hub, ResolvingInstruments.registered(CollectorRegistry()), Troubles(self.failed.append),
            resolve_seconds=60, queue=FetchQueue(limits or FetchLimits(per_minute=6000)), clock=clock,
        )  # fmt: skip
        self.resolver.enqueue = lambda key, delay_seconds: self.enqueued.append((key, delay_seconds))

    def look(self, key: Key = KEY, *, generation: int = 1, **spec: Any) -> Resolution | None:
        document = a_document(**({"model": {"name": NAME.name}} | spec))
        document["metadata"] |= {"namespace": key[0], "name": key[1], "uid": "/".join(key), "generation": generation}
        return self.resolver.look(key, document, parse_document(document))

    def ask(self, key: Key = KEY, **spec: Any) -> Resolution:
        """As a reconcile does."""
        state = self.look(key, **spec)
        assert state is not None
        self.resolver.ask(key, state)
        return state

    @contextmanager
    def working(self) -> Iterator[None]:
        task = asyncio.create_task(self.resolver.run_forever(self.cluster))  # type: ignore[arg-type]
        try:
            yield
        finally:
            task.cancel()
            self.resolver.close()

    async def answered(self, number: int) -> None:
        """Wait until that many fetches have ended."""
        results = self.resolver._instruments.results
        await until(
            lambda: sum(s.value for m in results.collect() for s in m.samples if s.name.endswith("_total")) >= number
        )


@pytest.fixture
def clock() -> Clock:
    return Clock(now=1_000_000.0)


async def test_an_object_is_held_until_its_model_is_found_and_the_hub_is_asked_once(clock: Clock) -> None:
    setting = Setting(Hub(), clock)
    with setting.working():
        state = setting.ask()
        assert (state.reason, state.is_held, state.statement[1]) == (Reason.RESOLVING, True, None)
        assert "at most until 1970-01-12T13:47:40Z" in state.message
        setting.ask(("other", "same"))
        await setting.answered(1)
    found, other = setting.look(), setting.look(("other", "same"))
    assert found is not None
    assert other is not None
    assert (found.reason, found.is_held, found.origin) == (Reason.FOUND, False, "mine/small at commit 0a1b from hub")
    assert found.models.get(NAME.key) is not None
    assert other.content == found.content != ()
    assert len(setting.hub.asked) == 1
    assert {key for key, delay in setting.enqueued if delay == 0} == {KEY, ("other", "same")}


async def test_a_final_answer_ends_the_wait_at_once_and_holds_for_those_who_come_soon(clock: Clock) -> None:
    setting = Setting(Hub(**{NAME.name: GATED}), clock)
    with setting.working():
        setting.ask()
        await setting.answered(1)
        state = setting.look()
        assert state is not None
        assert (state.reason, state.is_held, state.statement[1]) == (Reason.GATED, False, False)
        assert "models.tokenSecret" in state.message
        clock.now += REFUSED_SECONDS / 2
        assert not setting.ask(("other", "soon")).is_held
        clock.now += REFUSED_SECONDS
        assert setting.ask(("other", "later")).is_held, "the hub is asked again"
        await setting.answered(2)
        kept = setting.look()
        assert kept is not None
        assert kept.reason is Reason.GATED, "the object that has its answer keeps it"


async def test_a_hub_that_is_away_is_asked_again_until_the_wait_is_over(clock: Clock) -> None:
    setting = Setting(Hub(**{NAME.name: AWAY}), clock)
    with setting.working():
        setting.ask()
        await setting.answered(1)
        state = setting.look()
        assert state is not None
        assert state.is_held
        assert "the last try: the hub cannot be reached" in state.message
        clock.now += 5
        setting.ask()
        await setting.answered(2)
        clock.now += 60
        late = setting.look()
        assert late is not None
        assert (late.reason, late.is_held) == (Reason.HUB_UNREACHABLE, False)
        setting.resolver.ask(KEY, late)
        setting.resolver._wake.set()
        await asyncio.sleep(0)
        assert len(setting.hub.asked) == 2


async def test_an_object_that_stands_on_an_assumption_has_the_hub_asked_until_it_answers(clock: Clock) -> None:
    hub = Hub(**{NAME.name: AWAY})
    setting = Setting(hub, clock)
    with setting.working():
        setting.ask()
        await setting.answered(1)
        clock.now += 61
        late = setting.look()
        assert late is not None
        assert not late.is_held
        setting.resolver.ask(KEY, late, is_assumed=True)
        await setting.answered(2)
        clock.now += MAX_RETRY_SECONDS
        setting.resolver._wake.set()
        await setting.answered(3)
        assert setting.look() == late, "nothing is held back meanwhile"


async def test_a_final_answer_ends_the_asking_for_an_assumed_model(clock: Clock) -> None:
    setting = Setting(Hub(**{NAME.name: GATED}), clock)
    with setting.working():
        setting.ask()
        await setting.answered(1)
        clock.now += 2 * REFUSED_SECONDS
        state = setting.look()
        assert state is not None
        setting.resolver.ask(KEY, state, is_assumed=True)
        setting.resolver._wake.set()
        await asyncio.sleep(0)
        assert len(setting.hub.asked) == 1


async def test_a_fetch_that_takes_too_long_holds_nobody_longer_than_it_may(clock: Clock) -> None:
    setting = Setting(Hub(), clock)
    setting.hub.gate.clear()
    with setting.working():
        setting.ask()
        assert (KEY, pytest.approx(60.2)) in setting.enqueued, "the object is looked at when its wait is over"
        clock.now += 61
        state = setting.look()
        assert state is not None
        assert (state.reason, state.is_held) == (Reason.TIME_OVER, False)
        assert "mine/small was not fetched within 60 s" in state.message


async def test_each_generation_has_a_wait_of_its_own(clock: Clock) -> None:
    setting = Setting(Hub(), clock)
    setting.ask()
    clock.now += 61
    assert not setting.ask().is_held
    assert setting.ask(generation=2).is_held


async def test_facts_that_are_gone_hold_a_refused_spec_back_without_end(clock: Clock) -> None:
    """Otherwise what was refused by its numbers would be rendered because somebody deleted a ConfigMap."""
    setting = Setting(Hub(), clock)
    with setting.working():
        setting.ask()
        await setting.answered(1)
        setting.look()
        setting.store.drop([entry_key(NAME.key)])
        setting.hub.answers[NAME.name] = AWAY
        clock.now += 3600
        state = setting.ask()
        assert (state.reason, state.held_until) == (Reason.RESOLVING, float("inf"))
        await setting.answered(2)
        setting.hub.answers[NAME.name] = a_fetched()
        clock.now += 600
        setting.ask()
        await setting.answered(3)
        again = setting.look()
        assert again is not None
        assert again.reason is Reason.FOUND


async def test_a_new_process_goes_on_with_the_wait_that_the_status_tells(clock: Clock) -> None:
    setting = Setting(Hub(), clock)
    document = a_document(model={"name": NAME.name})
    condition = {"type": "ModelResolved", "status": "Unknown", "reason": "Resolving", "observedGeneration": 1}
    document["metadata"]["generation"] = 1
    document["status"] = {"conditions": [condition | {"lastTransitionTime": "1970-01-12T13:46:00Z"}]}  # 40 s ago
    state = setting.resolver.look(KEY, document, parse_document(document))
    assert state is not None
    assert state.held_until == clock.now - 40 + 60


@pytest.mark.parametrize(
    "model",
    [
        {"name": "Qwen/Qwen3-8B"},
        {"name": "mine/small", "configFrom": {"configMapKeyRef": {"name": "x", "key": "config.json"}}},
        {"name": "mine/small", "source": {"image": {"reference": "registry.example/models/small:1"}}},
        {"name": "mine/small", "source": {"persistentVolumeClaim": {"claimName": "models"}}},
        {"name": "mine--small"},
        {"name": "mine/small.git"},
        {"name": "a" * 97},
        {"name": "mine/small", "revision": "../main"},
    ],
    ids=lambda model: str(model)[:50],
)
def test_the_hub_is_not_asked_for_what_it_cannot_tell(clock: Clock, model: dict[str, Any]) -> None:
    assert Setting(Hub(), clock).look(model=model) is None


async def test_too_many_names_of_a_namespace_are_not_held_back(clock: Clock) -> None:
    setting = Setting(Hub(), clock, limits=FetchLimits(waiting_per_namespace=1))
    setting.ask(("greedy", "a"), model={"name": "greedy/a"})
    setting.ask(("greedy", "b"), model={"name": "greedy/b"})
    state = setting.look(("greedy", "b"), model={"name": "greedy/b"})
    assert state is not None
    assert (state.reason, state.is_held) == (Reason.TOO_MANY_MODELS, False)
    assert setting.ask(("other", "c"), model={"name": "greedy/c"}).is_held


async def test_a_deleted_object_is_fetched_for_no_longer(clock: Clock) -> None:
    setting = Setting(Hub(), clock)
    setting.ask()
    setting.resolver.forget(KEY)
    with setting.working():
        setting.resolver._wake.set()
        await asyncio.sleep(0)
    assert setting.hub.asked == []


async def test_a_rate_limit_holds_back_all_fetches_and_twice_as_long_when_it_comes_again(clock: Clock) -> None:
    limited = Failure(reason=Reason.RATE_LIMITED, message="slow down", is_temporary=True)
    setting = Setting(Hub(**{NAME.name: limited, "mine/other": a_fetched("mine/other")}), clock)

    async def asked_after(seconds: float) -> list[str]:
        clock.now += seconds
        setting.resolver._wake.set()
        await turns(5)
        return [name for _, name in setting.hub.asked]

    with setting.working():
        setting.ask()
        await setting.answered(1)
        setting.ask(("other", "soon"), model={"name": "mine/other"})
        assert await asked_after(29.9) == [NAME.name]
        assert sorted(await asked_after(0.2)) == ["mine/other", NAME.name, NAME.name]
        await setting.answered(3)
        setting.hub.answers["mine/third"] = a_fetched("mine/third")
        setting.ask(("other", "late"), model={"name": "mine/third"})
        assert len(await asked_after(59.8)) == 3
        assert "mine/third" in await asked_after(0.3)


async def test_a_defect_of_a_fetch_is_counted_and_ends_the_wait(clock: Clock) -> None:
    setting = Setting(Hub(), clock)
    del setting.hub.answers[NAME.name]
    with setting.working():
        setting.ask()
        await setting.answered(1)
    state = setting.look()
    assert state is not None
    assert (state.reason, state.is_held) == (Reason.BROKEN, False)
    assert setting.failed == ["models"]


# ── the ConfigMap ─────────────────────────────────────────────────────────────────────────────────────────────────


async def found(setting: Setting) -> None:
    with setting.working():
        setting.ask()
        await setting.answered(1)
        await until(lambda: setting.cluster.writes > 0)


async def test_what_was_fetched_is_stored_with_its_origin_and_read_by_the_next_process(clock: Clock) -> None:
    setting = Setting(Hub(), clock)
    await found(setting)
    assert setting.cluster.map is not None
    (origin,) = map(json.loads, setting.cluster.map["data"].values())
    assert (origin["name"], origin["commit"], origin["source"]) == ("mine/small", "0a1b", "hub")
    store = ModelStore(MAP)
    await store.load(setting.cluster)  # type: ignore[arg-type]
    stored = store.find(NAME)
    assert stored is not None
    assert (stored.entry, stored.origin.commit) == (a_fetched().entry, "0a1b")
    await store.save(setting.cluster)  # type: ignore[arg-type]
    assert setting.cluster.writes == 1


async def test_an_entry_that_cannot_be_written_is_used_and_written_later(clock: Clock) -> None:
    setting = Setting(Hub(), clock)
    setting.cluster.is_away = True
    with setting.working():
        setting.ask()
        await setting.answered(1)
        await until(lambda: setting.failed == ["models"])
    state = setting.look()
    assert state is not None
    assert state.reason is Reason.FOUND
    setting.cluster.is_away = False
    await setting.store.load(setting.cluster)  # type: ignore[arg-type]
    await setting.resolver.tidy(setting.cluster)  # type: ignore[arg-type]
    assert setting.cluster.map is not None
    assert len(setting.cluster.map["binaryData"]) == 1


async def test_entries_that_somebody_broke_are_told_once_and_left_out(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting(Hub(), clock)
    await found(setting)
    assert setting.cluster.map is not None
    (key, text), *_ = setting.cluster.map["binaryData"].items()
    cut, alien = base64.b64encode(base64.b64decode(text)[:40]).decode(), entry_key("theirs/model")
    setting.cluster.map["binaryData"] = {key: cut, alien: text, "x.json.gz": "!", "y.json.gz": "AAAA"}
    store = ModelStore(MAP)
    for _ in range(2):
        await store.load(setting.cluster)  # type: ignore[arg-type]
    assert len(store) == 0
    told = [record.message for record in caplog.records]
    assert len(told) == 4
    assert any("it is the entry of mine/small" in message for message in told)


async def test_a_deleted_config_map_is_written_again_when_something_is_fetched(clock: Clock) -> None:
    setting = Setting(Hub(), clock)
    await found(setting)
    setting.cluster.map = None
    await setting.store.load(setting.cluster)  # type: ignore[arg-type]
    assert setting.store.find(NAME) is None
    setting.store.put(NAME, found_again := stored_of(setting))
    await setting.store.save(setting.cluster)  # type: ignore[arg-type]
    assert setting.cluster.map is not None
    assert base64.b64decode(setting.cluster.map["binaryData"][entry_key(NAME.key)]) == found_again.entry


def stored_of(setting: Setting) -> Any:
    from kvgate.controller.fetches import Origin
    from kvgate.controller.model_store import Stored

    return Stored(entry=a_fetched().entry, origin=Origin(name=NAME.name))


def dropped(
    sizes: dict[str, int], users: dict[str, set[str]], unused: dict[str, float] | None = None, **limits: int
) -> list[str]:
    return list(superfluous(sizes, users, lambda key: (unused or {}).get(key, 0.0), **limits))


def test_what_nobody_names_goes_after_a_day_and_earlier_where_room_is_needed() -> None:
    sizes, users = {"a": 10, "b": 10, "c": 10}, {"c": {"x"}}
    assert dropped(sizes, users) == []
    assert dropped(sizes, users, {"b": UNUSED_SECONDS + 1}) == ["b"]
    assert dropped(sizes, users, {"a": 5.0, "b": 9.0}, max_entries=2) == ["b"]
    assert dropped(sizes, users, {"a": 5.0, "b": 9.0}, max_bytes=10) == ["b", "a"]


def test_the_namespace_with_the_most_bytes_loses_its_newest_entry_and_no_other_namespace_loses_one() -> None:
    sizes = {"small": 10, "first": 60, "shared": 90, "second": 60}
    users = {"small": {"victim"}, "first": {"greedy"}, "second": {"greedy"}, "shared": {"greedy", "victim"}}
    assert dropped(sizes, users, max_bytes=200) == ["second"]
    assert dropped(sizes, users, max_bytes=100) == ["second", "first"]
    assert dropped({"a": 10, "b": 10}, {"a": {"x", "y"}, "b": {"x", "y"}}, max_entries=1) == ["b"]


async def test_an_entry_without_room_is_told_and_the_object_is_not_held_for_ever(clock: Clock) -> None:
    setting = Setting(Hub(), clock)
    setting.store.sizes = lambda: {entry_key(NAME.key): MAX_BYTES + 1}  # type: ignore[method-assign]
    with setting.working():
        setting.ask()
        await setting.answered(1)
        await until(lambda: (state := setting.look()) is not None and state.reason is Reason.TOO_MANY_MODELS)
