"""Two real controllers on a real API server: one writes at a time, whatever is killed, frozen or started beside it.

Each runs under a ServiceAccount of its own, so that the audit log says which of them wrote.
"""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controlplane.audit import AuditEvent
from controlplane.plane import ControlPlane
from controlplane.programs import PATIENCE_SECONDS, free_port, wait_until
from fleet.doors import KVGATE, answers, scrape
from kvgate.cluster import leases
from kvgate.cluster.permissions import LEASE_RULES, RULES, Permission
from support.inference import Objects, inference_deployment

pytestmark = pytest.mark.cluster

FAIL_OVER_SECONDS = 17.0
SLACK_SECONDS = 2.0
"""For the test's own polling. Beside it counts the time that the first one needed, which waited for nobody: it lists everything once."""


@dataclass
class Controller:
    """One process under its own name."""

    plane: ControlPlane
    name: str
    options: tuple[str, ...]
    log: Path
    port: int
    process: subprocess.Popen[bytes]
    events_before: int

    @property
    def is_active(self) -> bool:
        with contextlib.suppress(OSError):
            return re.search(r'kvgate_leader\{lease="[^"]+"\} 1\.0', scrape(self.port)) is not None
        return False

    def readyz(self) -> tuple[int, str]:
        try:
            return 200, scrape(self.port, "/readyz").strip()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode().strip()

    def writes(self) -> list[AuditEvent]:
        """What the API server did for it; its own Lease aside."""
        return [
            event
            for event in itertools.islice(self.plane.audit(), self.events_before, None)
            if event.is_write
            and event.user.endswith(f":{self.name}")
            and event.code < 400
            and event.resource != "leases"
        ]

    def until_active(self) -> float:
        """Wait until it works; the seconds that took."""
        began = time.monotonic()
        wait_until(lambda: self.is_active, f"{self.name} works")
        return time.monotonic() - began

    def until_waiting(self) -> str:
        wait_until(lambda: "waiting for Lease" in self.readyz()[1], f"{self.name} waits")
        return self.readyz()[1]


def role(name: str, permissions: Sequence[Permission]) -> dict[str, Any]:
    rules = [
        {"apiGroups": [rule.group], "resources": list(rule.resources), "verbs": list(rule.verbs)}
        for rule in permissions
    ]
    api = "rbac.authorization.k8s.io/v1"
    return {"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}


@pytest.fixture(scope="module")
def objects(plane: ControlPlane) -> Objects:
    plane.apply(role("controller", (*RULES, *LEASE_RULES)))
    for namespace in ("team-a", "team-b"):
        plane.kubectl("create", "namespace", namespace)
    return Objects(plane=plane)


@pytest.fixture(autouse=True)
def _no_lease(plane: ControlPlane) -> None:
    """Where the machine is busy, a controller that a test ends may be killed before it gives its Lease up."""
    plane.kubectl("delete", "lease", "-n", leases.NAMESPACE, "-l", leases.LABEL)


@contextlib.contextmanager
def started(objects: Objects, folder: Path, name: str, *options: str) -> Iterator[Controller]:
    """It is there when it listens; at the end it is killed, if it still runs."""
    plane, port, log = objects.plane, free_port(), folder / f"{name}.log"
    if plane.kubectl("get", "serviceaccount", name, check=False).returncode:
        plane.kubectl("create", "serviceaccount", name)
        plane.kubectl(
            "create", "clusterrolebinding", name, "--clusterrole=controller", f"--serviceaccount=default:{name}"
        )
    before = sum(1 for _ in plane.audit())
    command = [
        KVGATE,
        "controller",
        "--metrics-host=127.0.0.1",
        f"--metrics-port={port}",
        f"--instance={name}",
        *options,
    ]
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig_for(name))}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        wait_until(lambda: answers(port, "/livez"), f"{name} listens")
        yield Controller(
            plane=plane, name=name, options=options, log=log, port=port, process=process, events_before=before
        )
    except BaseException as error:
        error.add_note(f"log of {name}:\n{log.read_text(errors='replace')[-3000:]}")
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        process.kill()
        process.wait()


def lease(objects: Objects, name: str = leases.NAME) -> dict[str, Any]:
    found = objects.plane.kubectl("get", "lease", name, "-n", leases.NAMESPACE, "-o", "json")
    document: dict[str, Any] = json.loads(found.stdout)
    return document


def rendered(objects: Objects, name: str, namespace: str = "default") -> None:
    objects.plane.apply(inference_deployment(name, namespace=namespace))
    objects.wait_for(name, "Ready", "True", namespace=namespace)


def test_a_second_controller_waits_writes_nothing_and_says_for_whom(objects: Objects, tmp_path: Path) -> None:
    with started(objects, tmp_path, "first") as first:
        first.until_active()
        with started(objects, tmp_path, "second") as second:
            told = second.until_waiting()
            holder = lease(objects)["spec"]["holderIdentity"]
            assert (
                f"waiting for Lease kube-system/kvgate-controller: {holder} (first) holds it for all namespaces" in told
            )
            assert "stop that one, or serve others (--namespace, watchNamespaces)" in told
            assert second.readyz()[0] == 503, "two installations are a mistake that somebody must see"
            assert answers(second.port, "/livez"), "and a restart would not mend it"
            with started(objects, tmp_path, "third", "--instance=first") as replica:
                replica.until_waiting()
                assert replica.readyz()[0] == 200, "a rollout must not wait for its replica for ever"
            rendered(objects, "waited")
            assert second.writes() == []
            assert not second.is_active
            assert "inferencedeployment=" not in scrape(second.port), "and no figures twice"
            log = second.log.read_text()
            assert log.count("waiting for Lease") == 1, "it is logged once"
        assert first.process.poll() is None
    assert first.writes() != []


def test_after_sigterm_the_next_begins_at_once(objects: Objects, tmp_path: Path) -> None:
    with started(objects, tmp_path, "first") as first, started(objects, tmp_path, "second") as second:
        first.until_active()
        second.until_waiting()
        first.process.send_signal(signal.SIGTERM)
        first.process.wait(PATIENCE_SECONDS)
        assert second.until_active() < leases.DURATION_SECONDS, "a Lease that was not released holds longer"
        assert first.process.returncode == 0
        rendered(objects, "after-sigterm")


def test_a_killed_controller_is_replaced_in_17_seconds(objects: Objects, tmp_path: Path) -> None:
    with started(objects, tmp_path, "first") as first, started(objects, tmp_path, "second") as second:
        alone_seconds = first.until_active()
        second.until_waiting()
        rendered(objects, "before-kill")
        first.process.kill()
        took_seconds = second.until_active()
        print(f"active {took_seconds:.1f} s after kill -9")
        assert took_seconds <= FAIL_OVER_SECONDS + alone_seconds + SLACK_SECONDS
        rendered(objects, "after-kill")
        assert last(first.writes()) < first_of(second.writes())
        assert lease(objects)["spec"]["leaseTransitions"] >= 1


def test_a_frozen_controller_writes_nothing_when_it_wakes_and_ends(objects: Objects, tmp_path: Path) -> None:
    with (
        started(objects, tmp_path, "first", "--resync-seconds=1") as first,
        started(objects, tmp_path, "second") as second,
    ):
        first.until_active()
        second.until_waiting()
        rendered(objects, "frozen")
        first.process.send_signal(signal.SIGSTOP)
        second.until_active()
        rendered(objects, "thawed")
        objects.patch("frozen", {"spec": {"vllm": {"maxNumSeqs": 3}}})
        objects.wait_for("frozen", "Ready", "True")
        for change in ("frozen", "thawed"):  # something for the first to mend as soon as it wakes
            objects.plane.kubectl("delete", "service", change)
        first.process.send_signal(signal.SIGCONT)
        assert first.process.wait(PATIENCE_SECONDS) == 1
        assert "nothing is written any more" in first.log.read_text()
        assert second.process.poll() is None
        wait_until(lambda: objects.find("service", "thawed"), "the second goes on")
        assert last(first.writes()) < first_of(second.writes())


def last(events: list[AuditEvent]) -> str:
    return max(event.time for event in events)


def first_of(events: list[AuditEvent]) -> str:
    return min(event.time for event in events)


@pytest.mark.parametrize(
    ("one", "other"),
    [((), ("--namespace=team-a",)), (("--namespace=team-a",), ()), (("--namespace=team-a", "--namespace=team-b"), ("--namespace=team-b",))],
    ids=["a part beside the whole", "the whole beside a part", "two that share one"],
)  # fmt: skip
def test_releases_whose_namespaces_overlap_do_not_work_together(
    objects: Objects, tmp_path: Path, one: tuple[str, ...], other: tuple[str, ...]
) -> None:
    with started(objects, tmp_path, "first", *one) as first:
        first.until_active()
        with started(objects, tmp_path, "second", *other) as second:
            assert "(first) holds it for" in second.until_waiting()
            assert second.readyz()[0] == 503
            first.process.send_signal(signal.SIGTERM)
            second.until_active()
            assert first.process.wait(PATIENCE_SECONDS) == 0


def test_releases_of_different_namespaces_work_side_by_side(objects: Objects, tmp_path: Path) -> None:
    with (
        started(objects, tmp_path, "first", "--namespace=team-a") as first,
        started(objects, tmp_path, "second", "--namespace=team-b") as second,
    ):
        for each in (first, second):
            each.until_active()
        for namespace in ("team-a", "team-b"):
            rendered(objects, "side-by-side", namespace)
        assert {event.namespace for event in first.writes() if event.name == "side-by-side"} == {"team-a"}
        assert {event.namespace for event in second.writes() if event.name == "side-by-side"} == {"team-b"}


def test_where_no_lease_can_be_kept_it_works_not_and_says_why(objects: Objects, tmp_path: Path) -> None:
    with started(objects, tmp_path, "second", "--lease-namespace=nowhere") as process:
        wait_until(lambda: "cannot take the Lease" in process.readyz()[1], "it says so")
        assert 'namespaces "nowhere" not found' in process.readyz()[1]
        assert process.readyz()[0] == 503
        assert process.writes() == []


def test_without_a_right_to_the_lease_it_says_what_to_do(objects: Objects, tmp_path: Path) -> None:
    plane = objects.plane
    plane.apply(role("no-lease", RULES))
    plane.kubectl("create", "serviceaccount", "no-lease")
    plane.kubectl(
        "create", "clusterrolebinding", "no-lease", "--clusterrole=no-lease", "--serviceaccount=default:no-lease"
    )
    with started(objects, tmp_path, "no-lease") as process:
        wait_until(lambda: "cannot take the Lease" in process.readyz()[1], "it says so")
        assert "the role lacks a rule: list, create and update leases in that namespace" in process.readyz()[1]
        plane.apply(role("no-lease", (*RULES, *LEASE_RULES)))
        process.until_active()
