"""kvgate's two processes, started as a user starts them: for the demo, tests and benchmarks."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from controlplane.programs import IDLE_SECONDS, wait_until, work_of

KVGATE = Path(sys.executable).parent / "kvgate"
"""The console script of the environment that runs this."""


class DoorError(Exception):
    """A process of kvgate ended by itself, or did not end with 0 after SIGTERM."""


def started(
    log: Path, environment: Mapping[str, str] | None, *arguments: str, before: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start `kvgate NAME …` as users do; `before` is a command that runs it."""
    with log.open("ab") as output:
        command = [*before, KVGATE, *arguments]
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)


@contextmanager
def door(
    name: str,
    log: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    start: Callable[..., subprocess.Popen[bytes]] = started,
) -> Iterator[subprocess.Popen[bytes]]:
    """`kvgate NAME …` until the block ends, then SIGTERM; whatever goes wrong carries the end of its log."""
    log.write_bytes(b"")
    running = start(log, environment, name, *arguments)
    try:
        yield running
        _expect_running(name, running)
    except BaseException as error:
        error.add_note(f"log of kvgate {name}:\n{log.read_text(errors='replace')[-3000:]}")
        raise
    finally:
        code = stop(running)
    if code != 0:
        raise DoorError(f"kvgate {name} ended with {code} after SIGTERM:\n{log.read_text(errors='replace')[-3000:]}")


def wait_ready(name: str, running: subprocess.Popen[bytes], log: Path, port: int, *, host: str = "127.0.0.1") -> None:
    """Wait until it answers that it is ready. Raises DoorError where it ended, ControlPlaneError where it neither logs nor uses CPU."""
    wait_until(
        lambda: running.poll() is not None or answers(port, "/readyz", host=host),
        f"kvgate {name} is ready",
        within_seconds=IDLE_SECONDS,
        progress=lambda: work_of(running.pid, log),
    )
    _expect_running(name, running)


def _expect_running(name: str, running: subprocess.Popen[bytes]) -> None:
    if running.poll() is not None:
        raise DoorError(f"kvgate {name} ended by itself with {running.returncode}")


def stop(running: subprocess.Popen[bytes]) -> int:
    """SIGTERM, and SIGKILL for what does not listen."""
    running.terminate()
    try:
        return running.wait(timeout=60)
    except subprocess.TimeoutExpired:
        running.kill()
        return running.wait()


def scrape(port: int, path: str = "/metrics", *, host: str = "127.0.0.1") -> str:
    """Return the answer of a plain-HTTP endpoint on the loopback. Raises OSError for anything but a success."""
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def answers(port: int, path: str, *, host: str = "127.0.0.1") -> bool:
    """True where the endpoint answers with a success."""
    try:
        scrape(port, path, host=host)
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        return False
    except OSError:
        return False
    return True
