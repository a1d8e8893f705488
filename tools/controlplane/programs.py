"""One guarded server on the loopback: its port, its log, when it is ready, how it died."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.guard import guarded

LOG_TAIL_LINES = 20
PORT_ATTEMPTS = 5
IDLE_SECONDS = 60.0
"""A program that is not ready hangs when it has neither logged nor used a second of CPU for so long."""
GIVE_UP_SECONDS = 600.0
"""Work that goes on for so long leads nowhere."""
PATIENCE_SECONDS = 240.0
"""For what has no progress that could be seen. A wait that succeeds ends at once, so only a failure takes so long."""
POLL_SECONDS = 0.05
SLOWEST_POLL_SECONDS = 0.5


class ControlPlaneError(Exception):
    """A program which did not start, or ended when nobody asked it to."""


_reserved: list[socket.socket] = []
"""Bound, so that the kernel gives their ports to nobody else; not listening, so that a server which reuses addresses may bind them."""


@atexit.register
def _release() -> None:
    while _reserved:
        _reserved.pop().close()


def free_port() -> int:
    """A port of the loopback that the kernel gives to nobody else while this process lives; servers that set SO_REUSEADDR can bind it."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> tuple[int, ...]:
    """Several such ports, no two alike."""
    fresh = [socket.socket() for _ in range(count)]
    _reserved.extend(fresh)
    for each in fresh:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", 0))
    return tuple(each.getsockname()[1] for each in fresh)


def wait_until(
    condition: Callable[[], object],
    what: str,
    *,
    within_seconds: float = PATIENCE_SECONDS,
    progress: Callable[[], object] | None = None,
) -> None:
    """Poll until the condition holds; `what` completes the sentence 'not within N s: ...'.

    With `progress`, the seconds count from the last change of its answer: a slow machine has the time that it needs.
    """
    began = since = time.monotonic()
    seen = progress() if progress else None
    while not condition():
        now = time.monotonic()
        if progress and now - began < GIVE_UP_SECONDS and (found := progress()) != seen:
            seen, since = found, now
        if now - since > within_seconds:
            waited = f"{now - began:.0f} s, the last {within_seconds:g} s idle" if progress else f"{within_seconds:g} s"
            raise ControlPlaneError(f"not within {waited}: {what}")
        time.sleep(min(max(POLL_SECONDS, (now - began) / 10), SLOWEST_POLL_SECONDS))


def work_of(pid: int, log: Path) -> tuple[int, int, int]:
    """Bytes that a process has logged, and of it and its descendants: whole seconds of CPU, and page faults that read the disk."""
    logged = log.stat().st_size if log.exists() else 0
    ticks, faults = _used(pid)
    return logged, ticks // os.sysconf("SC_CLK_TCK"), faults


def _used(pid: int) -> tuple[int, int]:
    """Ticks of CPU and major page faults of a process, of its descendants, and of those that have ended (proc_pid_stat(5))."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        lists = [path.read_text(encoding="utf-8") for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # it has ended
        return 0, 0
    children = [_used(int(child)) for child in " ".join(lists).split()]
    ticks, faults = sum(map(int, fields[11:15])), sum(map(int, fields[9:11]))
    return ticks + sum(each[0] for each in children), faults + sum(each[1] for each in children)


def http_answer(
    port: int,
    path: str,
    *,
    tls: ssl.SSLContext,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    timeout_seconds: float = 60.0,
) -> tuple[int, bytes]:
    """Status and body from the loopback, past any proxy of the environment; OSError or HTTPException where there is no answer."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout_seconds, context=tls)
    with contextlib.closing(connection):
        connection.request(method, path, body=body, headers=dict(headers or {}))
        response = connection.getresponse()
        return response.status, response.read()


@dataclass(kw_only=True)
class Program:
    """A binary, and the process that runs it at present."""

    binary: Path
    flags: Callable[[int], Sequence[str]]
    """Its command line for a port."""
    health_path: str
    folder: Path
    tls: ssl.SSLContext
    """Trusts this program's certificate only: another one on the port is never taken for it."""
    port: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def log(self) -> Path:
        return self.folder / "logs" / f"{self.binary.name}.log"

    @property
    def died(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def start(self) -> None:
        """Start it on its port, or on a free one the first time; returns at once."""
        self.port = self.port or free_port()
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder), "GOGC": "200"}  # memory for time
        command = guarded([str(self.binary), *self.flags(self.port)], self.folder)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def wait_ready(self) -> None:
        """Wait until it answers that it is ready; start it on another port if its port was taken meanwhile."""
        for attempt in range(PORT_ATTEMPTS):
            self._wait_for_answer()
            if not self.died:
                return
            if "address already in use" not in self.last_words() or attempt == PORT_ATTEMPTS - 1:
                raise ControlPlaneError(self.death())
            self.log.rename(self.log.with_suffix(f".{attempt}.log"))
            self.port = 0
            self.start()

    def _wait_for_answer(self) -> None:
        try:
            wait_until(
                lambda: self.died or self._answers(),
                f"{self.binary.name} is ready",
                within_seconds=IDLE_SECONDS,
                progress=self.work,
            )
        except ControlPlaneError as error:
            raise ControlPlaneError(f"{error}; {self.last_words()}") from None

    def work(self) -> tuple[int, int, int]:
        """Return what grows while it works."""
        return work_of(self._process.pid, self.log) if self._process else (0, 0, 0)

    def _answers(self) -> bool:
        try:
            return http_answer(self.port, self.health_path, tls=self.tls, timeout_seconds=10.0)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def kill(self) -> None:
        """Stop it at once: a test does not need a graceful end. Its guard waits for it, so no zombie is left."""
        if self._process:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def death(self) -> str:
        code = self._process.poll() if self._process else None
        return f"{self.binary.name} ended with status {code}; {self.last_words()}"

    def last_words(self) -> str:
        """The end of its log, and where that is."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "\n".join([f"the end of {self.log}:", *lines])
