"""Two controllers never write at the same time, whatever freezes, hangs or is lost; and one of them always works again."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from selectors import SelectSelector
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from kvgate.cluster.errors import ApiError, Conflict, NotFound, Unavailable
from kvgate.cluster.leases import ALL, DURATION_SECONDS, Claim, Lease, Leases
from kvgate.controller.leadership import RENEW_SECONDS, WRITE_SECONDS, Elector, Gate, LeaseLost
from support.tables import table

FAIL_OVER_SECONDS = 17.0
"""What another controller may take to work after one was killed."""


T = TypeVar("T")


class Hurried(SelectSelector):
    """Waits for nothing: the clock of its loop jumps to the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now += timeout or 0.0
        return super().select(0)


class Virtual(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.hurried = Hurried()
        super().__init__(self.hurried)

    def time(self) -> float:
        return self.hurried.now


def lived(scene: Awaitable[T]) -> T:
    """The scene in virtual time."""
    with asyncio.Runner(loop_factory=Virtual) as runner:

        async def main() -> T:
            return await scene

        return runner.run(main())


def now() -> float:
    return asyncio.get_running_loop().time()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - in virtual time, and of conditions that the clock brings about
        await asyncio.sleep(0.01)


@dataclass
class StoredLeases:
    """The Leases of the API server; each write needs the version that was read."""

    held: dict[str, Lease] = field(default_factory=dict)
    version: int = 0

    def write(self, name: str, before: Lease | None, lease: Lease) -> Lease:
        known = self.held.get(name)
        if before is None and known is not None:
            raise Conflict("create", "leases", "it exists")
        if before is not None and known is None:
            raise NotFound("update", "leases", "it is gone")
        if before is not None and known is not None and known.resource_version != before.resource_version:
            raise Conflict("update", "leases", "another version")
        self.version += 1
        self.held[name] = replace(lease, resource_version=str(self.version))
        return self.held[name]


class FakeLeases(Leases):
    """The same over a network that takes its time: `link` waits, or fails, before and after the server has done its part."""

    def __init__(
        self, store: StoredLeases, link: Callable[[], Awaitable[None]], thaw: Callable[[], Awaitable[None]]
    ) -> None:
        self._store = store
        self._link = link
        self._thaw = thaw
        self.namespace = "kube-system"

    async def list(self) -> dict[str, Lease]:
        return await self._send(lambda: dict(self._store.held), 4.0)

    async def hold(self, claim: Claim, before: Lease | None, *, timeout_seconds: float) -> Lease:
        lease = Lease(
            name=claim.lease, holder=claim.holder, instance=claim.instance, namespaces=claim.namespaces,
            duration_seconds=DURATION_SECONDS, resource_version="", spec={},
        )  # fmt: skip
        return await self._send(lambda: self._store.write(claim.lease, before, lease), timeout_seconds)

    async def release(self, claim: Claim, held: Lease, *, timeout_seconds: float) -> None:
        freed = replace(held, holder="", duration_seconds=1)
        await self._send(lambda: self._store.write(claim.lease, held, freed), timeout_seconds)

    async def _send(self, act: Callable[[], T], timeout_seconds: float) -> T:
        """As a real request: once it is under way the server may do its part after the client has given up."""

        async def server() -> T:
            await self._link()
            done = act()
            await self._link()
            return done

        under_way = asyncio.ensure_future(server())
        under_way.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may be left to ask
        try:
            return await asyncio.wait_for(asyncio.shield(under_way), timeout_seconds)
        except TimeoutError:
            raise Unavailable("update", "leases", "no answer") from None
        finally:
            await self._thaw()


@dataclass
class Controller:
    """One process: it takes the Lease, keeps it, and writes whenever its gate lets it."""

    name: str
    store: StoredLeases
    namespaces: tuple[str, ...]
    chance: random.Random
    trouble: float = 0.0
    """How often a request goes wrong."""
    is_frozen: bool = False
    is_dead: bool = False
    worked_at: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.claim = Claim.of(self.namespaces, holder=self.name, instance=self.name[0])
        self.gate = Gate(now)
        self.elector = Elector(
            FakeLeases(self.store, self.link, self.thaw), self.claim, self.gate, random_seconds=self.chance.uniform
        )

    async def link(self) -> None:
        if self.chance.random() >= self.trouble:
            await asyncio.sleep(self.chance.uniform(0.0, 0.05))
        elif self.chance.random() < 0.5:
            await asyncio.sleep(self.chance.uniform(0.5, 14.0))
        else:
            raise Unavailable("update", "leases", "reset")

    async def thaw(self) -> None:
        await until(lambda: not self.is_frozen)

    async def run(self) -> None:
        """Restarted whenever it loses the Lease, as a pod is."""
        while not self.is_dead:
            with suppress(LeaseLost):
                await self.live()

    async def live(self) -> None:
        while not self.is_dead:
            await self.thaw()
            pause_seconds = RENEW_SECONDS
            with suppress(ApiError):
                rival = await self.elector.take()
                if rival is None:
                    break
                pause_seconds = self.elector.pause_seconds(rival)
            await asyncio.sleep(pause_seconds)
        while not self.is_dead:
            await asyncio.sleep(RENEW_SECONDS)
            await self.thaw()
            with suppress(ApiError):
                await self.elector.confirm()


def two_writers(controllers: list[Controller]) -> list[str]:
    writing = [each for each in controllers if each.gate.is_open() and not each.is_dead]
    return [
        f"{one.name} and {other.name} at {now():.2f}"
        for number, one in enumerate(writing)
        for other in writing[:number]
        if one.claim.overlaps(Lease(
            name="", holder="x", instance="", namespaces=other.claim.namespaces, duration_seconds=1, resource_version="", spec={},
        ))
    ]  # fmt: skip


async def chaos(seed: int, seconds: float = 90.0) -> None:
    """Controllers with overlapping namespaces freeze, hang and die; then the trouble ends."""
    chance, store = random.Random(seed), StoredLeases()
    scopes = [(), ("a",), ("a", "b"), ("b",), ("c",)]
    controllers = [
        Controller(str(number), store, chance.choice(scopes), chance, trouble=chance.choice((0.0, 0.1, 0.5)))
        for number in range(chance.randint(2, 4))
    ]
    tasks = [asyncio.create_task(each.run()) for each in controllers]
    end = now() + seconds
    while now() < end:
        await asyncio.sleep(chance.uniform(0.05, 0.5))
        assert two_writers(controllers) == []
        one = chance.choice(controllers)
        if chance.random() < 0.02:
            one.is_frozen = not one.is_frozen
    for each in controllers:
        each.is_frozen, each.trouble = False, 0.0
    controllers[0].is_dead = True
    controllers[0].gate.shut()
    calm = now() + 60.0
    while now() < calm and not any(each.gate.is_open() for each in controllers[1:]):
        await asyncio.sleep(0.25)
        assert two_writers(controllers) == []
    assert any(each.gate.is_open() for each in controllers[1:]), "somebody works again"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@table("seed", range(8))
def test_no_two_write_at_the_same_time_whatever_freezes_or_hangs(seed: int) -> None:
    lived(chaos(seed))


@pytest.fixture
def chance() -> random.Random:
    return random.Random(1)


async def pair(chance: random.Random, *scopes: tuple[str, ...]) -> tuple[Controller, Controller]:
    store = StoredLeases()
    first, second = (Controller(name, store, scope, chance) for name, scope in zip(("a1", "b1"), scopes, strict=True))
    assert await first.elector.take() is None
    return first, second


def test_the_second_waits_and_takes_over_from_a_killed_one_in_time(chance: random.Random) -> None:
    async def scene() -> float:
        first, second = await pair(chance, (), ())
        keeping = asyncio.create_task(second.run())
        for _ in range(8):
            await asyncio.sleep(RENEW_SECONDS)
            await first.elector.confirm()
            assert not second.gate.is_open()
        killed_at = now()
        await until(second.gate.is_open)
        keeping.cancel()
        return now() - killed_at

    took_seconds = lived(scene())
    assert WRITE_SECONDS < took_seconds <= FAIL_OVER_SECONDS


def test_after_a_release_the_next_may_begin_at_once(chance: random.Random) -> None:
    async def scene() -> None:
        first, second = await pair(chance, (), ())
        await first.elector.release()
        assert not first.gate.is_open()
        assert await second.elector.take() is None
        assert second.gate.is_open()

    lived(scene())


@pytest.mark.parametrize(
    ("scopes", "waiting"),
    [
        (((), ()), 1), (((), ("a",)), 1), ((("a",), ()), 1), ((("a", "b"), ("b", "c")), 1),
        ((("a",), ("b",)), 0), ((("b", "a"), ("a", "b")), 1),
    ],
)  # fmt: skip
def test_whoever_serves_a_namespace_that_is_served_waits(
    scopes: tuple[tuple[str, ...], tuple[str, ...]], waiting: int, chance: random.Random
) -> None:
    async def scene() -> None:
        first, second = await pair(chance, *scopes)
        rival = await second.elector.take()
        assert (rival is not None) == bool(waiting)
        assert first.gate.is_open()
        assert second.gate.is_open() != bool(waiting)
        if rival is not None:
            told = second.elector.describe(rival)
            assert told.startswith(f"waiting for Lease kube-system/{rival.name}: a1 (a) holds it for ")
            assert "stop that one, or serve others" in told

    lived(scene())


@pytest.mark.parametrize(
    ("waited_seconds", "pause_seconds"), [(0.0, 1.0), (13.9, 1.0), (14.5, 0.5), (14.99, 0.05), (30.0, 0.05)]
)
def test_who_waits_looks_once_a_second_and_no_later_than_the_lease_ends(
    waited_seconds: float, pause_seconds: float, chance: random.Random
) -> None:
    async def scene() -> None:
        _, second = await pair(chance, (), ())
        rival = await second.elector.take()
        assert rival is not None
        await asyncio.sleep(waited_seconds)
        assert second.elector.pause_seconds(rival) == pytest.approx(pause_seconds, abs=0.12)
        assert f"confirmed it {waited_seconds:.0f} s ago" in second.elector.describe(rival)

    lived(scene())


def test_a_leader_is_who_the_lease_names_while_it_is_valid(chance: random.Random) -> None:
    """The gate shuts earlier: it is what the process believes, and the metric is what the API server answered."""

    async def scene() -> None:
        first, second = await pair(chance, (), ())
        assert first.elector.holds_lease()
        await second.elector.take()
        assert not second.elector.holds_lease()
        await asyncio.sleep(WRITE_SECONDS + 1)
        assert first.elector.holds_lease()
        assert not first.gate.is_open()
        await asyncio.sleep(DURATION_SECONDS - WRITE_SECONDS)
        assert not first.elector.holds_lease()
        assert await second.elector.take() is None
        assert second.elector.holds_lease()
        await second.elector.release()
        assert not second.elector.holds_lease()

    lived(scene())


def test_a_lease_that_somebody_took_has_another_leader_at_the_next_confirmation(chance: random.Random) -> None:
    async def scene() -> None:
        first, second = await pair(chance, (), ())
        lease = first.store.held[first.claim.lease]
        first.store.write(lease.name, lease, replace(lease, holder=second.name))
        with pytest.raises(LeaseLost):
            await first.elector.confirm()
        assert not first.elector.holds_lease()

    lived(scene())


def test_two_that_look_at_the_same_moment_both_step_back_and_one_works_soon(chance: random.Random) -> None:
    async def scene() -> None:
        store = StoredLeases()
        both = [Controller(name, store, scope, chance) for name, scope in (("a1", ()), ("b1", ("a",)))]
        tasks = [asyncio.create_task(each.run()) for each in both]
        until = now() + 30
        while now() < until and not any(each.gate.is_open() for each in both):
            await asyncio.sleep(0.02)
            assert two_writers(both) == []
        assert sum(each.gate.is_open() for each in both) == 1
        for task in tasks:
            task.cancel()

    lived(scene())


def test_one_that_slept_finds_the_gate_shut_and_ends_where_another_took_over(chance: random.Random) -> None:
    async def scene() -> None:
        for scope in ((), ("a",)):  # under the same Lease, and under one of its own
            first, second = await pair(chance, (), scope)
            await second.elector.take()
            await asyncio.sleep(DURATION_SECONDS + 1)
            assert not first.gate.is_open()
            assert await second.elector.take() is None
            with pytest.raises(LeaseLost, match="nothing is written any more"):
                await first.elector.confirm()
            assert not first.gate.is_open()

    lived(scene())


def test_after_an_outage_whose_lease_nobody_took_it_works_on(chance: random.Random) -> None:
    async def scene() -> None:
        first, _ = await pair(chance, (), ())
        await asyncio.sleep(600)
        assert not first.gate.is_open()
        await first.elector.confirm()
        assert first.gate.is_open()

    lived(scene())


def test_a_lease_that_somebody_edited_is_still_held_and_one_that_was_deleted_is_lost(chance: random.Random) -> None:
    async def scene() -> None:
        first, _ = await pair(chance, (), ())
        store = first.store
        store.held[first.claim.lease] = replace(store.held[first.claim.lease], resource_version="edited")
        await first.elector.confirm()
        await first.elector.confirm()
        assert first.gate.is_open()
        store.held.clear()
        with pytest.raises(LeaseLost, match="it was deleted"):
            await first.elector.confirm()

    lived(scene())


def test_replicas_of_one_installation_know_each_other(chance: random.Random) -> None:
    async def scene() -> None:
        store = StoredLeases()
        first, replica, other = (Controller(name, store, (), chance) for name in ("a1", "a2", "b1"))
        await first.elector.take()
        for each, is_replica in ((replica, True), (other, False)):
            rival = await each.elector.take()
            assert rival is not None
            assert each.elector.is_replica(rival) == is_replica

    lived(scene())


# ── as coordination.k8s.io has them ───────────────────────────────────────────────────────────────────────────────


class FakeCluster:
    """Keeps what is written."""

    def __init__(self, *bodies: dict[str, Any]) -> None:
        self.bodies = list(bodies)

    async def list(self, *_: object, label_selector: str) -> Any:
        assert label_selector == "kvgate.io/lease"
        for body in self.bodies:
            yield body

    async def create(self, _: object, body: dict[str, Any], **__: float) -> dict[str, Any]:
        self.bodies.append(body)
        body["metadata"]["resourceVersion"] = "1"
        return body

    async def update(self, _: object, body: dict[str, Any], **__: float) -> dict[str, Any]:
        self.bodies[-1] = body
        return body


CLAIM = Claim.of(["b", "a"], holder="me", instance="one/kvgate")


async def test_a_lease_reads_back_with_all_that_others_must_know() -> None:
    cluster = FakeCluster()
    leases = Leases(cluster, "kube-system")  # type: ignore[arg-type]
    held = await leases.hold(CLAIM, None, timeout_seconds=1)
    (read,) = (await leases.list()).values()
    assert read == held
    assert (read.holder, read.instance, read.namespaces) == ("me", "one/kvgate", {"a", "b"})
    first = cluster.bodies[0]["spec"]
    await leases.hold(CLAIM, held, timeout_seconds=1)
    renewed = cluster.bodies[0]["spec"]
    assert (renewed["acquireTime"], renewed["leaseTransitions"]) == (first["acquireTime"], 0)
    await leases.hold(replace(CLAIM, holder="you"), held, timeout_seconds=1)
    assert cluster.bodies[0]["spec"]["leaseTransitions"] == 1
    assert cluster.bodies[0]["metadata"]["resourceVersion"] == "1", "the server compares it"


@pytest.mark.parametrize(
    ("body", "holder", "namespaces", "seconds"),
    [
        ({}, "", set(), 15),
        ({"spec": {"holderIdentity": "x", "leaseDurationSeconds": 10**9}}, "x", set(), 60),
        ({"annotations": {"kvgate.io/namespaces": ALL}}, "", set(), 15),
        ({"annotations": {"kvgate.io/namespaces": "a,b"}}, "", {"a", "b"}, 15),
    ],
)
async def test_a_lease_that_somebody_else_wrote_is_read_with_care(
    body: dict[str, Any], holder: str, namespaces: set[str], seconds: int
) -> None:
    metadata = {"name": "x", "resourceVersion": "1", "annotations": body.pop("annotations", None)}
    (lease,) = (await Leases(FakeCluster({"metadata": metadata, **body}), "n").list()).values()  # type: ignore[arg-type]
    assert (lease.holder, lease.namespaces, lease.duration_seconds) == (holder, namespaces, seconds)


def names() -> Iterator[str]:
    for namespaces in ([], ["a"], ["b"], ["a", "b"], ["a,b"]):
        yield Claim.of(namespaces, holder="", instance="").lease


def test_every_set_of_namespaces_has_a_lease_of_its_own() -> None:
    assert len(set(names())) == 4, "a comma is no part of a namespace's name"
    assert all(len(name) <= 63 for name in names())
    assert Claim.of(["b", "a", "a"], holder="", instance="").lease == CLAIM.lease
