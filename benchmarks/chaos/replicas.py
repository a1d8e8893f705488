"""Two controllers of one installation, each behind its own proxy and under its own ServiceAccount, and what they did."""

import os
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from chaos.proxy import Proxy
from controlplane.audit import AuditEvent
from controlplane.plane import ControlPlane
from fleet.doors import started, stop
from support.inference import inference_deployment, place

NAMES = ("left", "right")
FITTING_SEQUENCES = (1, 2, 3)
"""Numbers of sequences that fit, which edits turn."""


class Replica:
    """One controller; it may be stopped, killed and started again."""

    def __init__(self, name: str, proxy: Proxy, kubeconfig: Path, log: Path) -> None:
        self.name, self.proxy = name, proxy
        self._log = log
        self._options = ("controller", "--metrics-host=127.0.0.1", "--metrics-port=0", f"--kubeconfig={kubeconfig}")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *before: str, environment: Mapping[str, str] | None = None) -> None:
        """Start it; `before` is a command that runs it."""
        self._process = started(self._log, {**os.environ, **(environment or {})}, *self._options, before=before)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it, and wait for its end where it ends by that."""
        assert self._process is not None
        self._process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def ends(self) -> None:
        """End it, whatever state it is in."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            stop(self._process)

    def restart(self, *before: str, environment: Mapping[str, str] | None = None) -> None:
        self.ends()
        self.start(*before, environment=environment)

    def revive(self) -> None:
        """Start it again where it has ended."""
        if self._process is not None and self._process.poll() is not None:
            self.start()


class World:
    """The control plane, both controllers, and the objects that they serve."""

    def __init__(self, plane: ControlPlane, replicas: Sequence[Replica], count: int) -> None:
        self.plane, self.replicas, self.count = plane, replicas, count
        self._edits = 0
        plane.apply(*(inference_deployment(f"object-{number}", vllm={"maxNumSeqs": 4}) for number in range(count)))

    @property
    def leader(self) -> Replica:
        holder = self._lease["holderIdentity"]
        return next((each for each in self.replicas if f"_{each.pid}_" in holder), self.replicas[0])

    @property
    def _lease(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.plane.request("GET", f"{place('lease', 'kube-system')}/kvgate-controller")["spec"]
        return spec

    def edit(self) -> None:
        """Change an object, and create one, as a user does while something is wrong."""
        self._edits += 1
        sequences = FITTING_SEQUENCES[self._edits % len(FITTING_SEQUENCES)]
        name = f"object-{self._edits % self.count}"
        self.plane.apply(
            inference_deployment(name, vllm={"maxNumSeqs": sequences}),
            inference_deployment(f"made-{self._edits}", vllm={"maxNumSeqs": 4}),
        )

    def differences(self) -> list[str]:
        """What is not yet as the specs say; nothing where all has converged."""
        found = list[str]()
        children = self._children()
        for document in self._items("infd"):
            name, metadata, status = document["metadata"]["name"], document["metadata"], document.get("status", {})
            if status.get("observedGeneration") != metadata["generation"]:
                found.append(f"{name} is not judged")
            deployments = children.get(("Deployment", metadata["uid"]), [])
            services = children.get(("Service", metadata["uid"]), [])
            if (len(deployments), len(services)) != (1, 1):
                found.append(f"{name} has {len(deployments)} Deployments and {len(services)} Services")
            sequences = f"--max-num-seqs={document['spec']['vllm']['maxNumSeqs']}"
            if any(sequences not in each["spec"]["template"]["spec"]["containers"][0]["args"] for each in deployments):
                found.append(f"{name} runs with other settings")
            if not status.get("admission", {}).get("record"):
                found.append(f"{name} has no record of its admission")
        return found

    def _items(self, kind: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.plane.request("GET", place(kind))["items"]
        return items

    def _children(self) -> Mapping[tuple[str, str], list[dict[str, Any]]]:
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for kind, name in (("deployment", "Deployment"), ("service", "Service")):
            for each in self._items(kind):
                for owner in each["metadata"].get("ownerReferences", ()):
                    found.setdefault((name, owner["uid"]), []).append(each)
        return found

    def leader_changes(self) -> int:
        return int(self._lease.get("leaseTransitions") or 0)

    def turns(self) -> int:
        """How often the controller that writes was another one than before, since the audit log began."""
        writes = sorted(
            (e for e in self.plane.audit() if is_write_of_ours(e)), key=lambda e: datetime.fromisoformat(e.time)
        )
        users = [event.user for event in writes]
        return sum(one != other for one, other in pairwise(users))


def is_write_of_ours(event: AuditEvent) -> bool:
    """Requests that the API server took; those about Leases and events are no work on objects."""
    is_ours = event.user.rpartition(":")[2] in NAMES
    return is_ours and event.is_write and event.code < 300 and event.resource not in ("leases", "events")


@contextmanager
def world(plane: ControlPlane, count: int) -> Iterator[World]:
    """Two controllers, the left one first."""
    trust = ssl.create_default_context(cadata=plane.ca_pem)
    with ExitStack() as stack:
        replicas = list[Replica]()
        for name in NAMES:
            plane.kubectl("create", "serviceaccount", name)
            plane.kubectl(
                "create", "clusterrolebinding", name, "--clusterrole=cluster-admin", f"--serviceaccount=default:{name}"
            )
            proxy = stack.enter_context(Proxy(plane.url, trust))
            kubeconfig = proxy.kubeconfig(plane.kubeconfig_for(name), plane.logs.parent / f"{name}.kubeconfig")
            replica = Replica(name, proxy, kubeconfig, plane.logs / f"controller-{name}.log")
            replica.start()
            stack.callback(replica.ends)
            replicas.append(replica)
            time.sleep(1)
        yield World(plane, replicas, count)


SKEWED = """
import datetime, time
ahead, clock, real = {ahead}, time.time, datetime.datetime
time.time = lambda: clock() + ahead
class Shifted(real):
    @classmethod
    def now(cls, tz=None):
        return real.now(tz) + datetime.timedelta(seconds=ahead)
datetime.datetime = Shifted
"""
"""A `sitecustomize` whose clock goes before those of the others."""


def skewed(folder: Path, ahead_seconds: int) -> Mapping[str, str]:
    """Return the environment of a process whose clock is ahead."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(SKEWED.format(ahead=ahead_seconds), encoding="utf-8")
    return {"PYTHONPATH": os.pathsep.join((str(folder), *filter(None, [os.environ.get("PYTHONPATH")])))}
