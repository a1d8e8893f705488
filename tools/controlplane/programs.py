"""One guarded server on the loopback: its port, its log, when it is ready, how it died."""

from __future__ import annotations

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
READY_WITHIN_SECONDS = 60.0
POLL_SECONDS = 0.05


class ControlPlaneError(Exception):
    """A program which did not start, or ended when nobody asked it to."""


def free_port() -> int:
    """A port that was free a moment ago; whoever binds it must be ready to lose the race."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> tuple[int, ...]:
    """Ports that were free a moment ago, no two alike: each is held until all are known."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return tuple(listener.getsockname()[1] for listener in sockets)


def wait_until(condition: Callable[[], object], what: str, *, within_seconds: float = 60.0) -> None:
    """Poll until the condition holds; `what` completes the sentence 'not within N s: ...'."""
    deadline = time.monotonic() + within_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ControlPlaneError(f"not within {within_seconds:g} s: {what}")
        time.sleep(POLL_SECONDS)


def http_answer(
    port: int,
    path: str,
    *,
    tls: ssl.SSLContext,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    timeout_seconds: float = 10.0,
) -> tuple[int, bytes]:
    """Status and body from the loopback, past any proxy of the environment."""
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
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder)}
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
            self.log.unlink()
            self.port = 0
            self.start()

    def _wait_for_answer(self) -> None:
        try:
            wait_until(
                lambda: self.died or self._answers(),
                f"{self.binary.name} is ready",
                within_seconds=READY_WITHIN_SECONDS,
            )
        except ControlPlaneError as error:
            raise ControlPlaneError(f"{error}; {self.last_words()}") from None

    def _answers(self) -> bool:
        try:
            return http_answer(self.port, self.health_path, tls=self.tls, timeout_seconds=1.0)[0] == 200
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
