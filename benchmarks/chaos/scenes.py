"""Faults of controllers, of the API server and of the machine: each lasts for some seconds and is taken back."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from chaos import proxy
from chaos.replicas import World, skewed
from controlplane.programs import wait_until
from support.inference import place

CONVERGED_SECONDS = 90.0
"""Promise: all is as the specs say so long after a fault."""
SLOWEST_SECONDS = 240.0
HOURS_AHEAD = 3


@dataclass(frozen=True, kw_only=True)
class Scene:
    name: str
    seconds: float
    """How long the fault lasts, with an edit each third of it."""
    fault: Callable[[World], AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    converged_seconds: float
    """From the end of the fault until every object, Deployment and Service is as its spec says."""
    leader_changes: int
    turns: int
    """How often another controller wrote than before: more than the changes of the leader would be two writers at once."""
    differences: tuple[str, ...] = ()
    """What was still not so at the end."""

    @property
    def is_well(self) -> bool:
        return (
            not self.differences and self.converged_seconds <= CONVERGED_SECONDS and self.turns <= self.leader_changes
        )


def play(scene: Scene, world: World, *, seconds: float | None = None) -> Outcome:
    """Let the fault last, edit meanwhile, take it back, and wait until all has converged."""
    lasting = scene.seconds if seconds is None else seconds
    wait_until(lambda: not world.differences(), "all is as it should be before", within_seconds=SLOWEST_SECONDS)
    changes = world.leader_changes()
    world.plane.begin_audit()
    began = time.monotonic()
    with scene.fault(world):
        for third in range(3):
            with suppress(OSError, HTTPException):  # the API server itself may be away
                world.edit()
            time.sleep(max(0.0, began + lasting * (third + 1) / 3 - time.monotonic()))
    ended = time.monotonic()
    for replica in world.replicas:
        replica.revive()
    world.edit()
    while (left := world.differences()) and time.monotonic() - ended < SLOWEST_SECONDS:
        time.sleep(0.2)
    return Outcome(
        converged_seconds=time.monotonic() - ended, leader_changes=world.leader_changes() - changes, turns=world.turns(),
        differences=tuple(left),
    )  # fmt: skip


def through(fault: proxy.Fault, *, cut: bool = False) -> Callable[[World], AbstractContextManager[None]]:
    """Return the fault that both proxies do, until they are put back."""

    @contextmanager
    def put(world: World) -> Iterator[None]:
        for replica in world.replicas:
            replica.proxy.fault, replica.proxy.cut = fault, replica.proxy.cut + cut
        try:
            yield
        finally:
            for replica in world.replicas:
                replica.proxy.fault = proxy.nothing

    return put


def sent(number: signal.Signals, back: signal.Signals | None = None) -> Callable[[World], AbstractContextManager[None]]:
    """Return the fault that sends the leader a signal, and another one at the end."""

    @contextmanager
    def send(world: World) -> Iterator[None]:
        leader = world.leader
        leader.send(number)
        yield
        if back is not None:
            leader.send(back)

    return send


def stopped(name: str) -> Callable[[World], AbstractContextManager[None]]:
    """Return the fault that kills a program of the control plane, and starts it again."""

    @contextmanager
    def stop(world: World) -> Iterator[None]:
        world.plane.stop(name)
        try:
            yield
        finally:
            world.plane.start(name)

    return stop


@contextmanager
def clock_ahead(world: World) -> Iterator[None]:
    """The controller that waits is started again with a clock that is ahead, and takes over from the leader, which ends."""
    leader = world.leader
    (other,) = (each for each in world.replicas if each is not leader)
    with tempfile.TemporaryDirectory() as folder:
        other.restart(environment=skewed(Path(folder), HOURS_AHEAD * 3600))
        leader.send(signal.SIGTERM)
        yield
        other.restart()


@contextmanager
def full_disk(world: World) -> Iterator[None]:
    """Both begin again where each folder that they may write to is full."""
    fill = 'mount -t tmpfs -o size=4k none "$0" && head -c 9999 /dev/zero >"$0/all" 2>/dev/null'
    script = f'{fill}; TMPDIR="$0" HOME="$0" XDG_CACHE_HOME="$0" exec "$@"'
    with tempfile.TemporaryDirectory() as folder:
        for replica in world.replicas:
            replica.restart("unshare", "--mount", "--map-root-user", "sh", "-c", script, folder)
        yield
        for replica in world.replicas:
            replica.restart()


@contextmanager
def starved(_: World) -> Iterator[None]:
    """Four times as many busy processes as there are processors."""
    code = "while True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


@contextmanager
def config_maps_gone(world: World) -> Iterator[None]:
    for document in world.plane.request("GET", place("configmap"))["items"]:
        world.plane.delete(f"{place('configmap')}/{document['metadata']['name']}")
    yield


SCENES = (
    Scene(name="each answer takes 2 s", seconds=30, fault=through(proxy.latency)),
    Scene(name="nothing is answered for 5 minutes", seconds=300, fault=through(proxy.black_hole, cut=True)),
    Scene(name="7 of 10 connections are reset", seconds=30, fault=through(proxy.resets)),
    Scene(name="watches are half open", seconds=5, fault=through(proxy.nothing, cut=True)),
    Scene(name="each watch is too old (410)", seconds=20, fault=through(proxy.expired_watches)),
    Scene(name="7 of 10 requests are too many (429)", seconds=30, fault=through(proxy.answers(429, "TooManyRequests"))),
    Scene(name="7 of 10 requests fail (500)", seconds=30, fault=through(proxy.answers(500, "InternalError"))),
    Scene(
        name="7 of 10 writes conflict (409)",
        seconds=30,
        fault=through(proxy.answers(409, "Conflict", to=proxy.is_write)),
    ),
    Scene(name="the token has expired (401)", seconds=20, fault=through(proxy.answers(401, "Unauthorized", share=1.0))),
    Scene(name="the leader is killed", seconds=20, fault=sent(signal.SIGKILL)),
    Scene(name="the leader is frozen, and wakes", seconds=30, fault=sent(signal.SIGSTOP, signal.SIGCONT)),
    Scene(name="the leader is told to end", seconds=5, fault=sent(signal.SIGTERM)),
    Scene(name="the API server is killed", seconds=20, fault=stopped("kube-apiserver")),
    Scene(name="etcd is killed", seconds=20, fault=stopped("etcd")),
    Scene(name=f"a clock is {HOURS_AHEAD} hours ahead", seconds=30, fault=clock_ahead),
    Scene(name="each folder is full", seconds=20, fault=full_disk),
    Scene(name="four busy processes for each processor", seconds=20, fault=starved),
    Scene(name="all ConfigMaps are gone", seconds=5, fault=config_maps_gone),
)
SHORT, SHORT_SECONDS = ("7 of 10 requests fail (500)", "7 of 10 writes conflict (409)"), 6.0
"""Those of `make test`, and how long they last there."""
NEEDS_ROOT = frozenset({"each folder is full"})


def can_play(scene: Scene) -> str:
    """Return why the scene cannot be played here; nothing where it can."""
    if scene.name in NEEDS_ROOT and (shutil.which("unshare") is None or os.geteuid()):
        return "it needs root and unshare"
    return ""
